//! A guided step with one ControlNet.

use candle_core::DType;
use kiln_engine::pipeline::{GuidedStep, RecordedStep, control_flop};
use kiln_unet::{ControlConfig, ControlInput, ControlModel, ControlModelConfig, UnetConfig};

use super::report::StageReport;
use super::stage::{CFG_SCALE, Meter, TIMESTEP, TOKENS, Weights};
use super::{Architecture, BenchStage};
use crate::error::{Error, Result};

/// The maps between a control image and the first feature map of all published ControlNets.
const HINT_WIDTHS: [usize; 4] = [16, 32, 96, 256];

/// The configuration of a ControlNet of the shape of the model's own U-Net.
///
/// # Errors
/// [`Error::NoUnet`] for a model without a U-Net.
fn control_config(model: &Architecture) -> Result<ControlConfig> {
    let unet = model.unet().ok_or(Error::NoUnet(BenchStage::ControlStep))?;
    Ok(ControlConfig {
        network: UnetConfig { up: Vec::new(), ..unet.clone() },
        hint_channels: 3,
        hint_widths: HINT_WIDTHS.to_vec(),
        bgr: false,
        global_pool: false,
        union: None,
    })
}

/// The bytes of such a ControlNet's weights for the steps.
pub(super) fn control_bytes(model: &Architecture, dtype: DType) -> Result<usize> {
    Ok(ControlModel::new(&ControlModelConfig::ControlNet(control_config(model)?)).step_segments().bytes(dtype))
}

impl Meter<'_, '_> {
    /// The step of [`BenchStage::Step`] with a ControlNet of the U-Net's own shape. Its control image is embedded before:
    /// that happens once a run.
    pub(super) fn control_step(&mut self) -> Result<StageReport> {
        let (model, n, dtype) = (self.model, self.plan.batch, self.dtype);
        let unet = self.unet()?;
        let config = control_config(model)?;
        let depth = config.hint_depth();
        let control = ControlModel::new(&ControlModelConfig::ControlNet(config));
        let (h, w) = model.latent_size();
        let flop = self.step_flop(&*unet, 2 * n)?;
        let own = control_flop(&control, &*unet, 2 * n, (h, w), TOKENS)?;
        let loaded = self.load(
            "the U-Net and the ControlNet",
            &[
                Weights { segments: control.step_segments(), dtype, flop: &own },
                Weights { segments: unet.segments(), dtype, flop: &flop },
            ],
        )?;
        let latents = self.normal(n, (model.latents().channels, h, w))?;
        let hint = self.normal(2 * n, (h, w, depth))?.to_dtype(dtype)?;
        let scales = vec![1.0; control.additions()].into();
        let mut inputs = self.inputs(&*unet, 2 * n)?;
        let text_keys = Vec::new(); // made with the U-Net's
        ControlInput { network: 0, hints: vec![hint], kinds: None, scales, text_keys }.add_to(&mut inputs);
        let (denoiser, mut recorded) = (unet.with_controls(vec![&control])?, RecordedStep::default());
        let step = GuidedStep::new(&inputs, Some(CFG_SCALE), dtype)?.prepared(&*denoiser)?;
        let mut guided = || -> Result<()> {
            step.run(&*denoiser, Some(&mut recorded), &latents, &[TIMESTEP], None)?;
            Ok(())
        };
        self.until_recorded(&mut guided)?;
        let flop = flop.iter().chain(&own).sum();
        self.time(BenchStage::ControlStep, &loaded, flop, &mut guided)
    }
}
