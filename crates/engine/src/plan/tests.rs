use std::sync::Arc;

use candle_core::DType;
use kiln_clip::{TextEncoder, TextEncoderConfig};
use kiln_models::{Architecture, Preset};
use kiln_ops::{ByteNumber, EightBits, Target};
use kiln_weights::EightBitLayers;

use crate::pipeline::event::Stage;

use super::{ExecutionTarget, Pass, Plan, Planner, Rates, StagePlan, TextWork, Workload, denoiser_flop};
use crate::mode::Mode;
use crate::residency::{StreamBudget, on_device, planned, residency};
use crate::room::Room;

const GIB: usize = 1 << 30;

fn planner(preset: Preset) -> Planner {
    Planner::of_configurations(&Architecture::preset(preset).unwrap()).unwrap()
}

/// A planner, one image of the preset's size, and both kinds of device.
fn cases() -> impl Iterator<Item = (Planner, Workload, ExecutionTarget)> {
    let on =
        [ExecutionTarget::new(Target::Gpu, DType::F16), ExecutionTarget::new(Target::Cpu { threads: 2 }, DType::BF16)];
    Preset::ALL.into_iter().flat_map(move |preset| {
        on.map(|on| {
            let planner = planner(preset);
            let work = planner.work([None; 2], None, 1).unwrap();
            (planner, work, on)
        })
    })
}

#[test]
fn every_mode_needs_less_than_the_previous_one() {
    for (planner, work, on) in cases() {
        let plans = planner.modes(&work, on, None).unwrap();
        let peaks: Vec<usize> = plans.iter().map(Plan::peak).collect();
        assert!(peaks.is_sorted_by(|a, b| a >= b) && peaks[0] > peaks[1] && peaks[1] > peaks[5], "{peaks:?}");
        assert!(plans.iter().map(|plan| plan.copied_per_step).is_sorted());
    }
}

#[test]
fn the_choice_fits_and_more_memory_is_never_slower() {
    for (planner, work, on) in cases() {
        let modes = planner.modes(&work, on, None).unwrap();
        let (most, least) = (modes[0].peak(), planner.plan(Mode::LOWVRAM, &work, on, Some(0)).unwrap().peak());
        let mut slowest = f64::INFINITY;
        for i in 0..=20 {
            let budget = least + (most - least) / 20 * i;
            let plan = planner.choose(&work, on, budget).unwrap();
            assert!(plan.peak() <= budget, "{}: {} of {budget}", plan.mode, plan.peak());
            assert!(plan.seconds_per_batch <= 1.05 * slowest, "{}: slower with more memory", plan.mode);
            slowest = plan.seconds_per_batch;
        }
        assert_eq!(planner.choose(&work, on, most).unwrap().mode, Mode::Full);
    }
}

/// The rows of a table within a budget: a plan that is chosen is not larger than the rows say.
#[test]
fn rows_within_a_budget_are_as_small_as_the_choice() {
    for (planner, work, on) in cases() {
        let least = planner.plan(Mode::LOWVRAM, &work, on, Some(0)).unwrap().peak();
        let rows = planner.modes(&work, on, Some(least)).unwrap();
        assert_eq!(rows.last().unwrap().peak(), least);
        assert!(rows.iter().any(|row| row.peak() <= least), "one fits, as the choice does");
        assert_eq!(planner.choose(&work, on, least).unwrap().peak(), least);
    }
}

/// Whatever is free, the modes that save memory take no more than the plan that is chosen without a flag.
#[test]
fn a_lowvram_plan_is_never_larger() {
    for (planner, _, on) in cases() {
        for side in [None, Some(128)] {
            let sized = planner.work([side; 2], None, 1).unwrap();
            let work = Workload { encodes_image: side.is_some(), ..sized };
            let most = planner.plan(Mode::Full, &work, on, None).unwrap().peak();
            for bytes in [0, most / 4, most / 2, most - 1] {
                let (Ok(without) | Err(without)) = planner.fit(&work, on, bytes).unwrap();
                for mode in [Mode::Medvram, Mode::LOWVRAM] {
                    let (with, limit) = planner.requested(mode, &work, on, bytes).unwrap();
                    let found = (with.peak(), without.peak());
                    assert!(found.0 <= found.1, "{mode} of {side:?} in {bytes}: {found:?}");
                    assert!(with.mode == mode || with == without, "{mode} in {bytes}: {}", with.mode);
                    assert!(limit.is_none_or(|limit| limit == bytes || with.peak() <= limit));
                }
            }
        }
    }
}

#[test]
fn plans_that_do_not_fit_are_refused_with_numbers() {
    let planner = planner(Preset::Sdxl);
    let work = planner.work([None; 2], None, 1).unwrap();
    let error = planner.choose(&work, ExecutionTarget::new(Target::Gpu, DType::F16), 64 << 20).unwrap_err();
    assert!(error.is_usage());
    let message = error.to_string();
    for part in ["1 of 1024x1024 needs", "activations", "workspace 32.0 MiB", "64.0 MiB are allowed"] {
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn the_best_batch_fits_and_more_memory_allows_more_images() {
    let planner = planner(Preset::Sd15);
    let on = ExecutionTarget::new(Target::Gpu, DType::F16);
    let work = planner.work([None; 2], None, 1).unwrap();
    let batch = |budget| {
        let plan = planner.batch_size(&work, on, Room::given(budget), usize::MAX).unwrap();
        assert!(plan.peak() <= budget);
        plan
    };
    let plans = [1, 3, 6, 40].map(|gib| batch(gib * GIB));
    for pair in plans.windows(2) {
        assert!(pair[1].pictures_per_second() > 0.98 * pair[0].pictures_per_second(), "{} slower", pair[1].mode);
    }
    // With streamed weights many images share a copy.
    assert!(plans[0].mode != Mode::Full && plans[0].batch_size > 1);
    assert!(plans[3].mode == Mode::Full && plans[3].batch_size >= 8);
    assert_eq!(
        planner.batch_size(&work, on, Room::given(40 * GIB), 3).unwrap().batch_size,
        3,
        "no more than are wanted"
    );
}

/// SDXL's goals: a common GPU can keep everything resident, and a small GPU can stream.
#[test]
fn small_gpus_need_no_flags() {
    let on = ExecutionTarget::new(Target::Gpu, DType::F16);
    let choose = |preset, budget| {
        let planner = planner(preset);
        let work = planner.work([None; 2], None, 1).unwrap();
        planner.choose(&work, on, budget).map(|plan| plan.mode.id())
    };
    assert_eq!(choose(Preset::Sdxl, 8 * GIB).unwrap(), "full");
    assert_eq!(choose(Preset::Sdxl, 7 * GIB).unwrap(), "full");
    assert_eq!(choose(Preset::Sdxl, 6 * GIB).unwrap(), "medvram");
    assert_eq!(choose(Preset::Sdxl, 3 * GIB).unwrap(), "lowvram");
    assert_eq!(choose(Preset::Sd15, 4 * GIB).unwrap(), "full");
}

/// SDXL in 7.2 GB: the U-Net and the decoder stay, and decoding has the memory of the text encoders, which leave.
#[test]
fn text_encoders_leave_before_the_networks_stream_or_take_turns() {
    let on = ExecutionTarget::new(Target::Gpu, DType::F16);
    let planner = planner(Preset::Sdxl);
    let work = planner.work([None; 2], None, 1).unwrap();
    let all = planner.plan(Mode::Full, &work, on, None).unwrap();
    assert!(all.keeps_text_encoders && all.peak() > 8_200_000_000);
    let plan = planner.choose(&work, on, 7_200_000_000).unwrap();
    assert!(plan.mode == Mode::Full && !plan.keeps_text_encoders && plan.peak() <= 7_200_000_000, "{plan:?}");
    assert_eq!(plan.tiling, all.tiling);
    assert_eq!(plan.described(&on), "full, text encoders leave");
    let stage = |plan: &Plan, stage| *plan.stage(stage).unwrap();
    let freed = stage(&all, Stage::Denoise).weights - stage(&plan, Stage::Denoise).weights;
    assert!(freed > 1_400_000_000 && stage(&plan, Stage::Encode).weights == stage(&all, Stage::Encode).weights);
    assert!(
        stage(&plan, Stage::Encode).activations > stage(&all, Stage::Encode).activations,
        "the recorded step stays"
    );
    assert!(plan.seconds_per_batch < planner.plan(Mode::Medvram, &work, on, None).unwrap().seconds_per_batch);
    // On the CPU they always leave, and nothing is said of it.
    let cpu = ExecutionTarget::new(Target::Cpu { threads: 2 }, DType::BF16);
    assert_eq!(planner.plan(Mode::Full, &work, cpu, None).unwrap().described(&cpu), "full");
}

/// In 8-bit floats half of the bytes of the covered layers are copied; the others stay in f16.
#[test]
fn streamed_weights_in_8_bits_are_half_of_the_bytes() {
    let on = ExecutionTarget::new(Target::Gpu, DType::F16);
    let layers = EightBitLayers { kind: EightBits::W8A8(ByteNumber::E4m3), ..EightBitLayers::default() };
    for preset in [Preset::Sd15, Preset::Sdxl] {
        let copied = |planner: Planner| {
            let work = planner.work([None; 2], None, 1).unwrap();
            planner.plan(Mode::LOWVRAM, &work, on, None).unwrap()
        };
        let (half, eight) =
            (copied(planner(preset)), copied(planner(preset).with_8_bits(Some(Arc::new(layers.clone())))));
        let share = eight.copied_per_step as f64 / half.copied_per_step as f64;
        assert!((0.5..0.65).contains(&share), "{preset:?}: {share}");
        let shorter = eight.seconds_per_step / half.seconds_per_step;
        assert!(shorter < 0.68 && eight.peak() <= half.peak(), "{preset:?}: {shorter} of the time");
    }
}

/// With any budget, the memory that a plan reserves for streamed text encoders is sufficient, also if segments stay
/// resident next to a smaller ring.
#[test]
fn text_encoders_stream_within_their_plan() {
    let on = ExecutionTarget::new(Target::Cpu { threads: 2 }, DType::BF16);
    let model = Architecture::preset(Preset::Emoji).unwrap();
    let encoders =
        model.texts.iter().map(|text| TextEncoder::new(text.config.own::<TextEncoderConfig>().unwrap().clone()));
    let encoders: Vec<TextEncoder> = encoders.map(|encoder| encoder.unwrap()).collect();
    let planner = planner(Preset::Emoji);
    let work = planner.work([Some(64); 2], None, 1).unwrap();
    let work = Workload { text: TextWork { texts: 300, tokens: 5 * 77, context: 5 * 77, ..work.text }, ..work };
    let least = planner.plan(Mode::LOWVRAM, &work, on, Some(0)).unwrap().peak();
    for i in 0..60 {
        let plan = planner.plan(Mode::LOWVRAM, &work, on, Some(least + i * (64 << 10))).unwrap();
        let encode = plan.stage(Stage::Encode).unwrap();
        let share = StreamBudget { resident: 0, room: encode.weights + encode.ring };
        for encoder in &encoders {
            let segments = on_device(encoder.segments(), on.target);
            residency(&segments, &planned(on.dtype), share, &on.rates.estimate(&[])).unwrap();
        }
    }
}

/// The input that is pasted around a result counts at its own size, on the CPU: in every stage, and while it is pasted.
#[test]
fn an_input_that_is_pasted_back_counts_at_its_own_size() {
    for (planner, work, on) in cases() {
        let small = work.width * work.height;
        let peak = |pasted: usize| {
            let work = Workload { encodes_image: true, pasted, ..work };
            planner.plan(Mode::Full, &work, on, None).unwrap().peak()
        };
        let (without, same, large) = (peak(0), peak(small), peak(1000 * small));
        if on.target.is_gpu() {
            assert!(without == same && same == large);
        } else {
            // Four bytes a pixel all the time and 22 while it is pasted.
            assert!(same >= without && large >= 1000 * small * 26 && large < 1000 * small * 30 + same, "{large}");
        }
    }
}

/// A run that begins with images has one stage more, with the encoder's weights; its others have what they have without,
/// the encoder where all weights stay, and on the CPU the input, which the caller holds: four planes in f32 and bytes.
#[test]
fn initial_images_are_a_stage_of_the_plan() {
    for (planner, work, on) in cases() {
        let with = Workload { encodes_image: true, ..work };
        // The pool rounds to blocks of 128 KiB.
        let input = if on.target.is_gpu() { 0 } else { (5 * 4 * work.width * work.height).next_multiple_of(128 << 10) };
        assert_eq!(with.stages(), [Stage::Encode, Stage::EncodeImage, Stage::Denoise, Stage::Decode]);
        for mode in [Mode::Full, Mode::Medvram, Mode::LOWVRAM] {
            let [plain, with] = [work, with].map(|work| planner.plan(mode, &work, on, None).unwrap());
            assert!(plain.stage(Stage::EncodeImage).is_none() && plain.stages.len() == 3);
            let encode = with.stage(Stage::EncodeImage).unwrap();
            assert!(encode.activations > 0 && encode.weights + encode.ring > 0, "{mode}");
            for stage in &plain.stages {
                let found = with.stage(stage.stage).unwrap();
                match mode {
                    Mode::Full => assert!(found.weights > stage.weights && found.ring == stage.ring, "{mode}"),
                    _ => assert_eq!((found.weights, found.ring), (stage.weights, stage.ring), "{mode}"),
                }
                if stage.stage == Stage::Decode && mode == Mode::LOWVRAM {
                    continue; // its strips are as large as the stages before it allow
                }
                // Buffers that the encoder's convolutions grow stay with their threads.
                assert!(found.workspace >= stage.workspace, "{mode}: {:?}", stage.stage);
                let sizes = [stage, found].map(|stage| (stage.activations, stage.conditions));
                let expected = (sizes[0].0 + input, sizes[0].1);
                assert_eq!(sizes[1], expected, "{mode}: {:?} {:?}", stage.stage, on.target);
            }
        }
    }
}

/// A run of two passes has the stages of both. One mode serves both, and takes what the larger pass takes.
#[test]
fn a_second_pass_is_planned_with_the_first() {
    use Stage::{Decode, Denoise, Encode, EncodeImage, Upscale};
    let network = kiln_testkit::fixtures("upscale/compact_x2.pth").display().to_string();
    for (planner, work, on) in cases() {
        let two = |upscaler: &str| planner.with_second_pass(work, 1.5, &upscaler.parse().unwrap()).unwrap();
        let scaled = |side: usize| side * 3 / 2 / 16 * 16; // a multiple for every model
        let size = (scaled(work.width), scaled(work.height));
        let larger = Workload { width: size.0, height: size.1, ..work };
        let (latents, pixels, network) = (two("latent"), two("lanczos"), two(&network));
        assert_eq!(latents.stages(), [Encode, Denoise, Upscale, Encode, Denoise, Decode]);
        let of_pixels = [Encode, Denoise, Decode, Upscale, Encode, EncodeImage, Denoise, Decode];
        assert!(pixels.stages() == of_pixels && network.stages() == of_pixels);
        for mode in [Mode::Full, Mode::Medvram, Mode::LOWVRAM] {
            let plan = |work| planner.plan(mode, &work, on, None).unwrap();
            let [first, one, latents, pixels, network] = [work, larger, latents, pixels, network].map(plan);
            assert_eq!(latents.stages.iter().filter(|stage| stage.pass == Pass::Second).count(), 4);
            for (stage, pass, alone) in [(Denoise, Pass::First, &first), (Denoise, Pass::Second, &one)] {
                let [found, alone] = [&latents, alone].map(|plan| *plan.stage_of(stage, pass).unwrap());
                assert_eq!((found.weights, found.workspace), (alone.weights, alone.workspace));
                // The ring of the first pass serves both.
                assert_eq!(found.ring, first.stage(Denoise).unwrap().ring, "{mode}, {stage:?} {pass:?}");
                let ratio = found.activations as f64 / alone.activations as f64;
                assert!((1.0..1.05).contains(&ratio), "{mode}, {stage:?} {pass:?}: {ratio}");
            }
            // Besides free memory between blocks, which differs with the order of what is allocated, and the ring, which is that of
            // the first pass. Where weights stream, the autoencoder takes strips as large as fit into what other stages take
            // with their rings.
            let of_stage = |stage: &StagePlan| stage.total() - stage.waiting - stage.ring;
            let counts = |stage: &&StagePlan| !(mode.streams() && matches!(stage.stage, Decode | EncodeImage));
            let used = |plan: &Plan| plan.stages.iter().filter(counts).map(of_stage).max().unwrap();
            let peaks = [&one, &latents, &pixels, &network].map(used);
            assert!(peaks.is_sorted_by(|less, more| *more as f64 >= 0.99 * *less as f64), "{mode}: {peaks:?}");
            assert!(latents.seconds_per_batch > one.seconds_per_batch, "{mode}");
            let [filter, network] = [&pixels, &network].map(|plan| *plan.stage(Upscale).unwrap());
            // The pool of a CPU does not count blocks as small as this network's weights.
            let is_counted = network.weights > 0 || !on.target.is_gpu();
            let is_more = is_counted && network.activations > filter.activations;
            assert!(is_more, "{mode} on {:?}: {filter:?} {network:?}", on.target);
        }
        // A budget that has room for the first pass alone is refused, with both sizes.
        let least = |work| planner.plan(Mode::LOWVRAM, &work, on, Some(0)).unwrap().peak();
        if least(latents) > least(work) {
            let message = planner.choose(&latents, on, least(work)).unwrap_err().to_string();
            assert!(message.contains(&format!(", then {}x{} needs ", size.0, size.1)), "{message}");
        }
        let fitting = planner.choose(&latents, on, least(latents)).unwrap();
        assert!(fitting.peak() <= least(latents));
    }
}

/// The measured times are those of `benches/runs/2026-11.md`.
#[test]
fn gpu_steps_are_about_as_long_as_measured() {
    let rates = Rates::of(Target::Gpu, DType::F16);
    let close = |found: f64, measured: f64| assert!((found / measured - 1.0).abs() < 0.15, "{found}, {measured}");
    let flop = |preset, size| {
        let unet = Architecture::preset(preset).unwrap().denoiser();
        denoiser_flop(&*unet, 2, size, 77).unwrap().iter().sum()
    };
    let (sd15, sdxl) = (flop(Preset::Sd15, (64, 64)), flop(Preset::Sdxl, (128, 128)));
    close(rates.seconds(sd15, 1, 0), 5.35e-3);
    close(rates.seconds(sd15, 8, 0), 8.0 * 3.9e-3);
    close(rates.seconds(sdxl, 1, 0), 29.2e-3);
    close(rates.seconds(sdxl, 4, 0), 4.0 * 27.2e-3);
}
