//! Parses a tensor's name in a LoRA file: the layer, and the factor of its change.

use std::fmt;

/// A factor of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Role {
    /// `(out, rank)`.
    Up,
    /// `(rank, rank, kh, kw)` between the two.
    Mid,
    /// `(rank, in, kh, kw)`.
    Down,
    /// The bias of `Up`, `(out)`.
    UpBias,
    /// One number: alpha, which divided by the rank scales the change; for rotations their bound.
    Alpha,
    /// One number that scales the change.
    Scalar,
    /// DoRA's magnitudes in LyCORIS' layout: `(out, 1, ..)`, or `(1, in, ..)`.
    DoraScale,
    /// DoRA's magnitudes in PEFT's layout: one for each row, `(out)`.
    Magnitude,
    HadaW1a,
    HadaW1b,
    HadaT1,
    HadaW2a,
    HadaW2b,
    HadaT2,
    LokrW1,
    LokrW1a,
    LokrW1b,
    LokrW2,
    LokrW2a,
    LokrW2b,
    LokrT2,
    /// `(blocks, n, n)` whose skew part generates a rotation, or `(stages, blocks, n, n)`.
    OftBlocks,
    /// `(blocks, n, n)`, rotation matrices.
    OftDiag,
    /// A factor for each row, after the rotation.
    Rescale,
    /// The full change of a weight.
    Diff,
    /// The full change of a bias.
    DiffBias,
    /// A kind of change that is not supported.
    Unknown,
}

/// The reason why a tensor of a LoRA file has no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum UnusedReason {
    /// The name belongs to no dialect.
    Name,
    /// The model has no layer of this name.
    Layer,
    /// The model lacks the network of the name.
    Network,
    /// The form of the change is not supported, or a factor is missing.
    Form,
}

impl fmt::Display for UnusedReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Name => "its name is not a LoRA name",
            Self::Layer => "the model has no such layer",
            Self::Network => "the model has no such network",
            Self::Form => "a factor is missing, or the kind of change is unknown",
        })
    }
}

/// The suffixes of names.
const ENDINGS: &[(&str, Role)] = &[
    // kohya's scripts and LyCORIS
    (".lora_up.weight", Role::Up),
    (".lora_mid.weight", Role::Mid),
    (".lora_down.weight", Role::Down),
    (".alpha", Role::Alpha),
    (".scalar", Role::Scalar),
    (".dora_scale", Role::DoraScale),
    (".hada_w1_a", Role::HadaW1a),
    (".hada_w1_b", Role::HadaW1b),
    (".hada_t1", Role::HadaT1),
    (".hada_w2_a", Role::HadaW2a),
    (".hada_w2_b", Role::HadaW2b),
    (".hada_t2", Role::HadaT2),
    (".lokr_w1", Role::LokrW1),
    (".lokr_w1_a", Role::LokrW1a),
    (".lokr_w1_b", Role::LokrW1b),
    (".lokr_w2", Role::LokrW2),
    (".lokr_w2_a", Role::LokrW2a),
    (".lokr_w2_b", Role::LokrW2b),
    (".lokr_t2", Role::LokrT2),
    (".oft_blocks", Role::OftBlocks),
    (".oft_diag", Role::OftDiag),
    (".rescale", Role::Rescale),
    (".diff", Role::Diff),
    (".diff_b", Role::DiffBias),
    (".w_norm", Role::Diff),
    (".b_norm", Role::DiffBias),
    // PEFT, and diffusers since it uses PEFT
    (".lora_B.weight", Role::Up),
    (".lora_A.weight", Role::Down),
    (".lora_B.bias", Role::UpBias),
    (".lora_magnitude_vector.weight", Role::Magnitude),
    (".lora_magnitude_vector", Role::Magnitude),
    // diffusers before that
    (".lora.up.weight", Role::Up),
    (".lora.down.weight", Role::Down),
    (".lora_linear_layer.up.weight", Role::Up),
    (".lora_linear_layer.down.weight", Role::Down),
    // Kinds that are not supported. Their layers are named, so that the reason can be reported.
    (".oft_R.weight", Role::Unknown),
    (".on_input", Role::Unknown),
    (".a1.weight", Role::Unknown),
    (".a2.weight", Role::Unknown),
    (".b1.weight", Role::Unknown),
    (".b2.weight", Role::Unknown),
    (".lokr_t1", Role::Unknown),
];

/// diffusers' first names and XLabs', if the layer's own name ends in one of [`LORA`]: `to_q_lora.up.weight`.
const PROCESSOR_ENDINGS: &[(&str, Role)] = &[(".up.weight", Role::Up), (".down.weight", Role::Down)];

/// Endings of layers. XLabs numbers the layers of image and text.
const LORA: [&str; 3] = ["_lora", "_lora1", "_lora2"];

/// The layer's name in the file, and the factor. `None` if the name is not a LoRA name.
pub(super) fn parse(key: &str) -> Option<(String, Role)> {
    // PEFT inserts the adapter's name before it saves; diffusers' first names contain the attention processor.
    let key = key.replace(".default.", ".").replace(".processor.", ".");
    let key = key.strip_suffix(".default").unwrap_or(&key);
    let ending = |endings: &[(&str, Role)]| {
        endings.iter().find_map(|&(ending, role)| Some((key.strip_suffix(ending)?.to_string(), role)))
    };
    ending(ENDINGS)
        .or_else(|| ending(PROCESSOR_ENDINGS).filter(|(layer, _)| LORA.iter().any(|end| layer.ends_with(end))))
}
