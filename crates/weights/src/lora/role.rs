//! What a tensor's name in a LoRA file says: which layer, and which factor of its change.

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
    /// One number: the change is scaled by it over the rank; for rotations their bound.
    Alpha,
    /// One number: the change is scaled by it.
    Scalar,
    /// DoRA's magnitudes as LyCORIS has them: `(out, 1, ..)`, or `(1, in, ..)`.
    DoraScale,
    /// DoRA's magnitudes as PEFT has them: one for each row, `(out)`.
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
    /// `(blocks, n, n)` of which the skew part generates a rotation, or `(stages, blocks, n, n)`.
    OftBlocks,
    /// `(blocks, n, n)`, rotations.
    OftDiag,
    /// A factor for each row, after the rotation.
    Rescale,
    /// A weight's change as it is.
    Diff,
    /// A bias' change as it is.
    DiffBias,
    /// A kind of change that Kiln does not know.
    Unknown,
}

/// What names end with.
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
    // diffusers before
    (".lora.up.weight", Role::Up),
    (".lora.down.weight", Role::Down),
    (".lora_linear_layer.up.weight", Role::Up),
    (".lora_linear_layer.down.weight", Role::Down),
    // Kinds that are known to be unknown: their layers are named, so that the reason can be told.
    (".oft_R.weight", Role::Unknown),
    (".on_input", Role::Unknown),
    (".a1.weight", Role::Unknown),
    (".a2.weight", Role::Unknown),
    (".b1.weight", Role::Unknown),
    (".b2.weight", Role::Unknown),
    (".lokr_t1", Role::Unknown),
];

/// diffusers' first names, where the layer's own ends with `_lora`: `to_q_lora.up.weight`.
const PROCESSOR_ENDINGS: &[(&str, Role)] = &[(".up.weight", Role::Up), (".down.weight", Role::Down)];

/// The layer's name as the file has it, and the factor. `None` where the name is none of a LoRA's.
pub(super) fn parse(key: &str) -> Option<(String, Role)> {
    // PEFT before it saves: with the adapter's name; diffusers' first names: with the place of the layers.
    let key = key.replace(".default.", ".").replace(".processor.", ".");
    let key = key.strip_suffix(".default").unwrap_or(&key);
    let ending = |endings: &[(&str, Role)]| {
        endings.iter().find_map(|&(ending, role)| Some((key.strip_suffix(ending)?.to_string(), role)))
    };
    ending(ENDINGS).or_else(|| ending(PROCESSOR_ENDINGS).filter(|(layer, _)| layer.ends_with("_lora")))
}
