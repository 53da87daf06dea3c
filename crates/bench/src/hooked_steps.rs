//! Guided steps with parts that change the network: an image prompt, DeepCache, and the first-block cache.

use candle_core::{DType, Tensor};
use kiln_engine::pipeline::{GuidedStep, RecordedStep};
use kiln_network::StepShape;
use kiln_network::slots::{BLOCK_CACHE, CACHED_FEATURE, FIRST_RESIDUAL, OTHER_RESIDUAL, SKIPPED_EVALUATIONS};
use kiln_unet::{FeatureCache, HookInputs, ImagePrompt, ImagePromptConfig, ImagePromptNet, Projection, PromptInput};

use super::BenchStage;
use super::report::StageReport;
use super::stage::{CFG_SCALE, Meter, TIMESTEP, TOKENS, Weights};
use crate::error::{Error, Result};

/// Steps of [`BenchStage::DeepCacheSteps`]: the interval at which the whole network runs.
pub const DEEP_CACHE_STEPS: usize = 3;
/// The skip connection at the shortcut, which is the usual one.
const BRANCH: usize = 0;
/// Tokens of an image, and channels of its embedding, of all published plain IP-Adapters for Stable Diffusion 1.
const IMAGE_TOKENS: usize = 4;
const EMBED_DIM: usize = 1024;

/// A threshold of the first-block cache, which latents that stay the same are below.
const THRESHOLD: f64 = 0.1;

impl Meter<'_, '_> {
    /// The step of [`BenchStage::Step`] with an image prompt. Its keys and values are made before: that happens once a run.
    pub(super) fn ip_adapter_step(&mut self) -> Result<StageReport> {
        let (model, n, dtype) = (self.model, self.plan.batch, self.dtype);
        let unet = self.unet()?;
        let config = model.unet().ok_or(Error::NoUnet(BenchStage::IpAdapterStep))?;
        let layers = config.cross_layers();
        let prompt = ImagePromptConfig {
            projection: Projection::Plain { embed_dim: EMBED_DIM, tokens: IMAGE_TOKENS },
            context_dim: config.context_dim().unwrap_or(1),
            layers: config.image_prompt_order().iter().map(|&i| layers[i].channels).collect(),
        };
        let adapter = ImagePromptNet::new(prompt, config)?;
        let flop = self.step_flop(&*unet, 2 * n)?;
        let loaded = self.load(
            "the U-Net and the IP-Adapter",
            &[
                Weights { segments: unet.segments(), dtype, flop: &flop },
                Weights { segments: adapter.segments(), dtype, flop: &[] },
            ],
        )?;
        let latents = self.normal(n, (model.latents().channels, model.latent_size().0, model.latent_size().1))?;
        let features = self.normal(2 * n, (1, 1, EMBED_DIM))?.flatten_from(1)?.to_dtype(dtype)?;
        let input = PromptInput { features: Some(features), identity: None, shortcut: false };
        let layers = adapter.keys_values(&adapter.tokens(&input)?, &vec![1.0; layers.len()])?;
        let mut inputs = self.inputs(&*unet, 2 * n)?;
        ImagePrompt { layers, masks: Vec::new() }.add_to(&mut inputs);
        let step = GuidedStep::new(&inputs, Some(CFG_SCALE), dtype)?.prepared(&*unet)?;
        let mut recorded = RecordedStep::default();
        let mut guided = || -> Result<()> {
            step.run(&*unet, Some(&mut recorded), &latents, &[TIMESTEP], None)?;
            Ok(())
        };
        self.until_recorded(&mut guided)?;
        self.time(BenchStage::IpAdapterStep, &loaded, flop.iter().sum(), &mut guided)
    }

    /// [`DEEP_CACHE_STEPS`] steps of [`BenchStage::Step`] with DeepCache.
    pub(super) fn deep_cache_steps(&mut self) -> Result<StageReport> {
        let (model, n, dtype) = (self.model, self.plan.batch, self.dtype);
        let unet = self.unet()?;
        let (h, w) = model.latent_size();
        let flop = self.step_flop(&*unet, 2 * n)?;
        let loaded = self.load("the U-Net", &[Weights { segments: unet.segments(), dtype, flop: &flop }])?;
        let latents = self.normal(n, (model.latents().channels, h, w))?;
        let shape = StepShape { rows: 2 * n, height: h, width: w, tokens: TOKENS };
        let feature = unet.state(CACHED_FEATURE, BRANCH, shape).unwrap_or([0; 4]);
        let feature = Tensor::zeros(&feature, dtype, self.device)?;
        let inputs = self.inputs(&*unet, 2 * n)?;
        let step = |is_shortcut| -> Result<GuidedStep> {
            let cache = Some(FeatureCache { branch: BRANCH, is_shortcut, feature: feature.clone() });
            let hooks = HookInputs { cache, ..HookInputs::default() };
            Ok(GuidedStep::new(&hooks.add_to(inputs.clone()), Some(CFG_SCALE), dtype)?.prepared(&*unet)?)
        };
        let (whole, shortcut) = (step(false)?, step(true)?);
        let mut recorded = RecordedStep::default();
        let mut steps = || -> Result<()> {
            whole.run(&*unet, Some(&mut recorded), &latents, &[TIMESTEP], None)?;
            for _ in 1..DEEP_CACHE_STEPS {
                shortcut.run(&*unet, Some(&mut recorded), &latents, &[TIMESTEP], None)?;
            }
            Ok(())
        };
        self.until_recorded(&mut steps)?;
        // The operations of the steps without it: what is left out shows as speed.
        let flop = DEEP_CACHE_STEPS as f64 * flop.iter().sum::<f64>();
        self.time(BenchStage::DeepCacheSteps, &loaded, flop, &mut steps)
    }

    /// The step of [`BenchStage::Step`] with the first-block cache, of latents that stay the same: after the first one, at which
    /// all blocks run, it has the first block alone.
    pub(super) fn block_cache_step(&mut self) -> Result<StageReport> {
        let (model, n, dtype) = (self.model, self.plan.batch, self.dtype);
        let denoiser = self.unet()?;
        let ((h, w), rows) = (model.latent_size(), model.halves() * n);
        let flop = self.step_flop(&*denoiser, rows)?;
        let loaded = self.load("the denoiser", &[Weights { segments: denoiser.segments(), dtype, flop: &flop }])?;
        let latents = self.normal(n, (model.latents().channels, h, w))?;
        let shape = StepShape { rows, height: h, width: w, tokens: TOKENS };
        let residual = |slot| denoiser.state(slot, 0, shape).ok_or(Error::NoTransformer(BenchStage::BlockCacheStep));
        let mut inputs = self.inputs(&*denoiser, rows)?;
        for slot in [FIRST_RESIDUAL, OTHER_RESIDUAL] {
            inputs = inputs.with(slot, Tensor::zeros(&residual(slot)?, dtype, self.device)?);
        }
        let inputs = inputs.with(SKIPPED_EVALUATIONS, Tensor::zeros(rows, DType::F32, self.device)?);
        let inputs = inputs.with_constant(BLOCK_CACHE, THRESHOLD.to_bits()).with_rows(BLOCK_CACHE, n);
        let guidance = model.guided.then_some(CFG_SCALE);
        let step = GuidedStep::new(&inputs, guidance, dtype)?.prepared(&*denoiser)?;
        let mut guided = || -> Result<()> {
            step.run(&*denoiser, None, &latents, &[TIMESTEP], None)?;
            Ok(())
        };
        guided()?;
        // The operations of a step without it: what is left out shows as speed.
        self.time(BenchStage::BlockCacheStep, &loaded, flop.iter().sum(), &mut guided)
    }
}
