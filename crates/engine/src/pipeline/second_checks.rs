//! The jobs and plans that a second device can share.

use kiln_request::Job;

use crate::error::{Error, Result};
use crate::pipeline::event::Stage;
use crate::pipeline::second_denoiser::SecondDenoiser;
use crate::plan::Plan;
use crate::second_device::Parallel;

impl SecondDenoiser {
    /// Refuses a job whose steps two devices cannot share, in its passes.
    ///
    /// # Errors
    /// [`Error::Request`] with the option at fault.
    pub(crate) fn check(&self, job: &Job) -> Result<()> {
        let refuse = |name: &'static str, found: String, why: &str| {
            Err(Error::value(name, found, format!("none with `parallel` cfg: {why}; use one device for this image")))
        };
        if let Some(cache) = job.network.cache {
            return refuse("cache", cache.to_string(), "the feature that it stores is of both halves of a step");
        }
        if let Some(threshold) = job.network.block_cache {
            let why = "both halves of a step decide together which blocks they skip";
            return refuse("block_cache", threshold.to_string(), why);
        }
        if job.network.sag_scale > 0.0 {
            let why = "self-attention guidance runs the network once more after both halves";
            return refuse("sag_scale", job.network.sag_scale.to_string(), why);
        }
        if !job.controls.is_empty() && self.shares_residuals() {
            let why = "the control network runs for the conditional half, and both halves take its residuals";
            return refuse("controls", job.controls.len().to_string(), why);
        }
        job.hires.as_deref().map_or(Ok(()), |pass| self.check(&pass.job))
    }

    /// Refuses a plan that has no place for the U-Net on both devices.
    ///
    /// # Errors
    /// [`Error::Request`] that names the mode, or the memory of the second device.
    pub(crate) fn check_plan(&self, plan: &Plan) -> Result<()> {
        if plan.mode.streams() {
            let expected = format!(
                "a U-Net that stays in memory on both devices, but this run streams its weights (mode {}): use one device, \
                 a smaller size, fewer images at once, or a larger budget of memory",
                plan.mode
            );
            return Err(Error::value("parallel", Parallel::Cfg, expected));
        }
        let denoise = plan.stages.iter().filter(|stage| stage.stage == Stage::Denoise);
        // At most: the second device computes half of the rows at most.
        let needed = denoise.map(|stage| stage.weights + stage.activations + stage.workspace).max().unwrap_or(0);
        match self.memory() {
            Some(memory) if needed > memory.total.bytes.min(memory.free.bytes) => {
                let expected = format!(
                    "up to {} of memory on the second device, of which {}: end other programs on it, or use one device",
                    kiln_files::ByteSize(needed),
                    memory.free
                );
                Err(Error::value("parallel", Parallel::Cfg, expected))
            }
            _ => Ok(()),
        }
    }
}
