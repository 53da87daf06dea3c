//! Whether a measurement fits into CPU memory. Otherwise the system would kill the process without a message.

use kiln_engine::{
    ExecutionTarget, Mode, Plan, Planner, ReferenceWork, Stage, StagePlan, TextWork, VaeMemory, Workload,
};
use kiln_mempool::SystemMemory;

use super::{Architecture, BenchPlan, BenchStage};
use crate::control_step::control_bytes;
use crate::error::{Error, Result};
use crate::image_stages::upscaler;

/// Fails for stages of `model` that need more memory than is available, according to the plan of a run with all weights
/// of the stage in memory. Text encoders are checked when their weights are created.
///
/// # Errors
/// [`Error::Memory`] with the numbers.
pub(super) fn check(
    plan: &BenchPlan,
    model: &Architecture,
    on: ExecutionTarget,
    memory: Option<SystemMemory>,
) -> Result<()> {
    let Some(memory) = memory.filter(|_| !on.target.is_gpu()) else { return Ok(()) };
    let planner = Planner::of_configurations(model)?.with_8_bits(plan.setup.scaled_layers(None, on.target.is_gpu())?);
    let Architecture { name, width, height, .. } = model;
    let work = Workload {
        width: *width,
        height: *height,
        batch_size: plan.batch,
        steps: plan.steps,
        text: TextWork { texts: 2, ..TextWork::short(model.guided) },
        encodes_image: true,
        references: ReferenceWork::default(),
        has_image_prompts: false,
        second: None,
        pasted: 0,
        refiner_steps: 0,
        network: Default::default(),
        // Images are decoded whole.
        vae: VaeMemory { tiling: false, tile_size: Some(*height) },
    };
    let total = |plan: &Plan, stage| plan.stage(stage).map_or(0, StagePlan::total);
    for &stage in &plan.stages {
        let of = |mode| planner.plan(mode, &work, on, None);
        let (needed, n) = match stage {
            BenchStage::Step | BenchStage::IpAdapterStep | BenchStage::DeepCacheSteps | BenchStage::BlockCacheStep => {
                (total(&of(Mode::Medvram)?, Stage::Denoise), plan.batch)
            }
            BenchStage::ControlStep => {
                let net = control_bytes(model, on.dtype)?;
                (total(&of(Mode::Medvram)?, Stage::Denoise) + net, plan.batch)
            }
            BenchStage::Vae => (total(&of(Mode::Medvram)?, Stage::Decode), 1),
            BenchStage::Call => (of(Mode::Full)?.peak(), plan.batch),
            BenchStage::VaeEncode => (total(&of(Mode::Medvram)?, Stage::EncodeImage), 1),
            BenchStage::Upscale => (of_upscaler([*height, *width], on)?, 1),
            BenchStage::Text => continue,
        };
        let (needed, available) = (needed as u64, memory.available);
        if needed > available {
            let what = format!("{name}: the stage {} with {n} of {width}x{height}", stage.id());
            return Err(Error::Memory { what, needed, available });
        }
    }
    Ok(())
}

/// The bytes of enlarging an image of `size`, height and width.
fn of_upscaler(size @ [h, w]: [usize; 2], on: ExecutionTarget) -> Result<usize> {
    let network = upscaler()?;
    let strips = network.fastest(size, on.target);
    Ok(network.segments().bytes(on.dtype) + network.footprint([1, h, w], on.dtype, on.target, strips)?)
}

#[cfg(test)]
mod tests {
    use candle_core::DType;
    use kiln_ops::Target;

    use super::*;
    use kiln_models::Preset;

    #[test]
    fn sizes_that_do_not_fit_are_refused_first() {
        let on = ExecutionTarget::new(Target::Cpu { threads: 2 }, DType::F32);
        let check = |side: usize, stages: &[BenchStage], target| {
            let model = Architecture { width: side, height: side, ..Architecture::preset(Preset::Emoji).unwrap() };
            let plan = BenchPlan { stages: stages.to_vec(), ..BenchPlan::default() };
            let memory = SystemMemory { total: 4 << 30, available: 2 << 30, physical: 4 << 30 };
            check(&plan, &model, ExecutionTarget { target, ..on }, Some(memory))
        };
        check(256, &BenchStage::ALL, on.target).unwrap();
        check(16384, &[BenchStage::Text], on.target).unwrap();
        check(16384, &BenchStage::ALL, Target::Gpu).unwrap();
        for stage in BenchStage::ALL.into_iter().filter(|stage| *stage != BenchStage::Text) {
            let message = check(16384, &[stage], on.target).unwrap_err().to_string();
            let expected = format!("emoji: the stage {} with 1 of 16384x16384 needs ", stage.id());
            assert!(message.starts_with(&expected) && message.contains("2.0 GiB are available"), "{message}");
        }
    }
}
