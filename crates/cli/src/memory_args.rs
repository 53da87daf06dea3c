//! The flags that bound memory, the same for every command that runs a model.

use clap::Args;
use kiln_engine::{ByteSize, MemoryOptions, ModeChoice, VaeMemory};

use crate::values::parse_count;

/// Memory options. By default Kiln takes the fastest mode that fits.
#[derive(Debug, Clone, Args)]
pub struct MemoryArgs {
    /// Keeps one of text encoders, U-Net and VAE in memory at a time.
    #[arg(long)]
    medvram: bool,
    /// Keeps only the layers that run next in memory: the lowest peak.
    #[arg(long, conflicts_with = "medvram")]
    lowvram: bool,
    /// Keeps all networks in memory.
    #[arg(long, conflicts_with_all = ["medvram", "lowvram"])]
    highvram: bool,
    /// The most memory that Kiln may use, of the GPU, or of the CPU if it runs there: 6G, 512M, 64K.
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    vram_budget: Option<ByteSize>,
    /// Decodes one image of a batch at a time. Kiln always does; the flag is accepted for compatibility.
    #[arg(long)]
    #[allow(dead_code, reason = "taken, so that command lines written for other programs work")]
    vae_slicing: bool,
    /// Decodes in strips of rows, without seams.
    #[arg(long)]
    vae_tiling: bool,
    /// Height of a strip, in pixels of the image. Default: as much as fits.
    #[arg(long, value_name = "PIXELS", allow_negative_numbers = true, value_parser = parse_count)]
    vae_tile_size: Option<usize>,
    /// Caches freed GPU memory for the next allocation: on or off.
    #[arg(long, value_name = "SWITCH", num_args = 0..=1, require_equals = true, default_value = "on",
          default_missing_value = "on", value_parser = parse_switch)]
    cuda_malloc: Switch,
    /// Copies weights to the GPU while it computes: on or off.
    #[arg(long, value_name = "SWITCH", num_args = 0..=1, require_equals = true, default_value = "on",
          default_missing_value = "on", value_parser = parse_switch)]
    cuda_stream: Switch,
    /// Keeps offloaded weights in pinned memory: on or off.
    #[arg(long, value_name = "SWITCH", num_args = 0..=1, require_equals = true, default_value = "on",
          default_missing_value = "on", value_parser = parse_switch)]
    pin_shared_memory: Switch,
}

impl MemoryArgs {
    /// The engine's memory options.
    pub fn options(&self) -> MemoryOptions {
        let mode = match (self.highvram, self.medvram, self.lowvram) {
            (true, ..) => ModeChoice::Full,
            (_, true, _) => ModeChoice::Medvram,
            (.., true) => ModeChoice::Lowvram,
            _ => ModeChoice::Auto,
        };
        MemoryOptions {
            mode,
            budget: self.vram_budget,
            cuda_malloc: self.cuda_malloc.0,
            cuda_stream: self.cuda_stream.0,
            pin_shared_memory: self.pin_shared_memory.0,
            vae: VaeMemory { tiling: self.vae_tiling || self.vae_tile_size.is_some(), tile_size: self.vae_tile_size },
            shared_by: 1,
            held_by_others: 0,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Switch(bool);

fn parse_switch(text: &str) -> Result<Switch, String> {
    match text {
        "on" | "true" | "1" => Ok(Switch(true)),
        "off" | "false" | "0" => Ok(Switch(false)),
        _ => Err("expected on or off".into()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        memory: MemoryArgs,
    }

    fn options(line: &str) -> Result<MemoryOptions, String> {
        let words = ["kiln"].into_iter().chain(line.split_whitespace());
        Line::try_parse_from(words).map(|line| line.memory.options()).map_err(|error| error.to_string())
    }

    #[test]
    fn nothing_said_is_the_default() {
        assert_eq!(options("").unwrap(), MemoryOptions::default());
    }

    #[test]
    fn flags_of_other_programs_mean_what_they_mean_there() {
        assert_eq!(options("--medvram").unwrap().mode, ModeChoice::Medvram);
        assert_eq!(options("--lowvram --cuda-malloc --pin-shared-memory").unwrap().mode, ModeChoice::Lowvram);
        assert_eq!(options("--vram-budget 6G").unwrap().budget, Some(ByteSize(6 << 30)));
        let off = options("--cuda-malloc=off --cuda-stream=off --pin-shared-memory=off").unwrap();
        assert!(!off.cuda_malloc && !off.cuda_stream && !off.pin_shared_memory);
        assert!(options("--vae-tiling --vae-slicing").unwrap().vae.tiling);
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        assert!(options("--medvram --lowvram").unwrap_err().contains("cannot be used with"));
        assert!(options("--highvram --lowvram").unwrap_err().contains("cannot be used with"));
        assert!(options("--vram-budget lots").unwrap_err().contains("such as 6G"));
        assert!(options("--cuda-malloc=maybe").unwrap_err().contains("expected on or off"));
    }
}
