//! The flags of `kiln bench`.

use std::path::PathBuf;

use clap::Args;
use kiln_bench::{BenchPlan, BenchStage, SelfTest, StreamPlan};
use kiln_engine::Preset;

use crate::place_args::PlaceArgs;
use crate::values::{parse_as, parse_size};

/// `kiln bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// Models whose configurations are part of the program. Can be repeated. Default: emoji.
    #[arg(value_name = "MODEL", long_help = format!("Models: {}. Can be repeated. Default: emoji. sd-turbo has TAESD and no guidance", Preset::names()),
        conflicts_with = "config", value_parser = parse_as::<Preset>)]
    models: Vec<Preset>,
    /// Tests the device instead: each operator against the CPU in f32, and an image of the small model, in about a minute. Fails if
    /// a result is wrong.
    #[arg(long, conflicts_with_all = ["models", "config", "size", "batch", "steps", "stages", "runs", "warmup", "trace", "lowvram",
        "resident_mib", "ring_mib", "memory_trace"])]
    pub selftest: bool,
    /// Another model: a folder in the diffusers layout, whose weights may be missing, or a checkpoint file.
    #[arg(long, value_name = "PATH")]
    pub config: Option<PathBuf>,
    /// Size of the images in pixels, multiples of 8. Default: the model's.
    #[arg(long, value_name = "WxH", value_parser = parse_size)]
    size: Option<(usize, usize)>,
    /// Number of images in a batch.
    #[arg(long, value_name = "N", default_value = "1")]
    batch: usize,
    /// Number of sampling steps of a call.
    #[arg(long, value_name = "N", default_value = "20")]
    steps: usize,
    /// The stages: step (one guided step), control-step (a guided step with a ControlNet), ip-adapter-step (with an image prompt), deepcache-steps
    /// (3 steps with DeepCache), block-cache-step (a guided step of a transformer with the first-block cache, at which the first
    /// block alone runs), vae (latents to an image),
    /// vae-encode (an image to latents), upscale (an image through a network of RealESRGAN_x4plus's shape), text (a text of
    /// 77 tokens), call (both prompts to PNG files in memory, once the model is loaded).
    #[arg(long, value_name = "STAGES", value_delimiter = ',', default_value = "step,vae,text")]
    stages: Vec<BenchStage>,
    /// Number of measured runs of a stage.
    #[arg(long, value_name = "N", default_value = "5")]
    runs: usize,
    /// Number of runs before the measured ones.
    #[arg(long, value_name = "N", default_value = "1")]
    warmup: usize,
    /// Writes JSON to a file, which is replaced if it exists; - prints it instead of the table.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Writes a trace of one step of each model by operator, for ui.perfetto.dev. A .json file, replaced if it exists.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Streams the weights through a small ring on the device.
    #[arg(long)]
    lowvram: bool,
    /// Keeps this many MiB of weights on the device, and streams the others.
    #[arg(long, value_name = "N")]
    resident_mib: Option<usize>,
    /// The ring's size in MiB. Default: the smallest that does not slow steps down.
    #[arg(long, value_name = "N", conflicts_with = "resident_mib")]
    ring_mib: Option<usize>,
    /// Writes every allocation of the run, for kiln memory. A .jsonl file, replaced if it exists.
    #[arg(long, value_name = "FILE")]
    pub memory_trace: Option<PathBuf>,
    #[command(flatten)]
    pub place: PlaceArgs,
}

impl BenchArgs {
    /// The presets to measure, where no folder is given.
    pub fn presets(&self) -> &[Preset] {
        if self.models.is_empty() { &[Preset::Emoji] } else { &self.models }
    }

    /// The measurements to make.
    pub fn plan(&self) -> BenchPlan {
        BenchPlan {
            size: self.size,
            batch: self.batch,
            steps: self.steps,
            stages: self.stages.clone(),
            runs: self.runs,
            warmup: self.warmup,
            trace: self.trace.is_some(),
            stream: (self.lowvram || self.resident_mib.is_some() || self.ring_mib.is_some()).then(|| {
                let bytes = |mib: usize| mib.saturating_mul(1 << 20);
                StreamPlan { resident: self.resident_mib.map_or(0, bytes), ring: self.ring_mib.map(bytes) }
            }),
            setup: self.place.setup(),
        }
    }

    /// The test of a device.
    pub fn self_test(&self) -> SelfTest {
        SelfTest { setup: self.place.setup(), model: None }
    }

    /// Starts the threads of the process, for one device.
    ///
    /// # Errors
    /// See [`kiln_engine::start_threads`] and of several devices.
    pub fn start_threads(&self) -> kiln_engine::Result<()> {
        self.place.check_one()?;
        self.place.start_threads()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Args, Command};

    /// The arguments of `kiln bench`, or what is wrong with them.
    fn bench(line: &str) -> Result<BenchArgs, String> {
        let words = ["kiln", "bench"].into_iter().chain(line.split_whitespace());
        match Args::try_parse_from(words).map_err(|error| error.to_string())?.command {
            Command::Bench(args) => Ok(args),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn bench_measures_everything_of_the_emoji_model_when_nothing_is_said() {
        let args = bench("").unwrap();
        assert_eq!(args.presets(), [Preset::Emoji]);
        assert_eq!(args.plan(), BenchPlan::default());
    }

    #[test]
    fn bench_takes_presets_stages_and_a_size() {
        let args = bench("sd15-512 sdxl-1024 --stages vae,text --size 512x768 --batch 4 --steps 30 --runs 3 --json -")
            .unwrap();
        assert_eq!(args.presets(), [Preset::Sd15, Preset::Sdxl]);
        let plan = args.plan();
        assert_eq!(plan.stages, [BenchStage::Vae, BenchStage::Text]);
        assert_eq!((plan.size, plan.batch, plan.steps, plan.runs), (Some((512, 768)), 4, 30, 3));
    }

    #[test]
    fn bench_says_what_it_expected() {
        for (line, expected) in [
            ("sd14", "expected emoji, sd15-512, sdxl-1024"),
            (
                "--stages step,unet",
                "expected step, control-step, ip-adapter-step, deepcache-steps, block-cache-step, vae, \
                 vae-encode, upscale, text, call",
            ),
            ("--size 512", "as in 512x768"),
            ("--runs few", "invalid digit"),
            ("emoji --config models/emoji", "cannot be used with"),
            ("--dtype int8", "expected auto, f32, bf16 or f16"),
        ] {
            let message = bench(line).unwrap_err();
            assert!(message.contains(expected), "{line}: {message}");
        }
    }
}
