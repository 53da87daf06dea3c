//! The first-block cache in whole runs: diffusers' latents and decisions, the same bits in every mode and batch, and what it refuses.

use std::ops::ControlFlow;
use std::path::PathBuf;

use kiln_engine::{DeviceList, Event, ModeChoice, Request, RunningBatch};
use kiln_prompt::{ChunkCut, Emphasis};
use kiln_testkit::{Fixture, Parity, fixtures, repository};
use serde_json::Value;

use crate::support::{bits, cpu, cpu_in, images, latents, load, request, tiny, try_images, values};

/// Largest error of final latents in f32, in their standard deviations.
const BOUND: f64 = 1e-3;

fn model() -> PathBuf {
    repository().join("models/emoji-sd3")
}

/// A request with guidance in so many steps, with the cache if there is a threshold.
fn guided(steps: usize, seed: u64, block_cache: Option<f64>) -> Request {
    Request { negative_prompt: Some("blue".into()), block_cache, ..request("a rocket", (64, 64), steps, seed) }
}

/// The two rows of an image decide together, as in the pipeline, which has both in one batch.
#[test]
fn latents_and_decisions_are_those_of_diffusers() {
    let rows: Vec<Value> =
        serde_json::from_str(&std::fs::read_to_string(fixtures("block_cache.json")).unwrap()).unwrap();
    let results = Fixture::open("block_cache.safetensors");
    let parity = Parity::new("block_cache", "emoji-sd3 f32");
    let mut engine = load(&model(), &cpu());
    let mut shares = Vec::new();
    for row in rows.iter().filter(|row| row["kind"] == "sd3") {
        let number = |key: &str| row[key].as_u64().unwrap() as usize;
        let text = |key: &str| row[key].as_str().unwrap().to_string();
        let wanted = Request {
            negative_prompt: Some(text("negative_prompt")),
            cfg_scale: row["cfg_scale"].as_f64(),
            max_length: Some(number("length")),
            emphasis: Emphasis::None,
            chunk_cut: ChunkCut::Truncate,
            block_cache: row["threshold"].as_f64(),
            ..request(&text("prompt"), (number("width"), number("height")), number("steps"), number("seed") as u64)
        };
        let before = engine.timings();
        let found = images(&mut engine, &wanted);
        let name = row["name"].as_str().unwrap();
        parity.check(name, &latents(&found), &results.tensor(name), BOUND);
        let whole: Vec<bool> = serde_json::from_value(row["whole"].clone()).unwrap();
        let skipped = whole.iter().filter(|whole| !**whole).count();
        let timings = engine.timings() - before;
        assert_eq!((timings.skipped, timings.steps), (skipped, number("steps")), "{name}");
        shares.push(skipped);
    }
    assert!(shares[..2] == [0, 0] && shares.is_sorted() && shares[2] < shares[4], "{shares:?}");
}

#[test]
fn a_threshold_of_zero_changes_no_bit_of_a_run() {
    let mut engine = load(&model(), &cpu());
    let [plain, zero, some] = [None, Some(0.0), Some(0.3)].map(|of| bits(&images(&mut engine, &guided(12, 5, of))));
    assert!(plain == zero && plain != some);
    let skipped = engine.timings().skipped;
    assert!(skipped > 0 && skipped < 12, "{skipped} of 12");
}

#[test]
fn modes_and_batches_change_no_bit() {
    let one = guided(12, 5, Some(0.3));
    let expected = images(&mut load(&model(), &cpu()), &one);
    // Guidance that ends has other rows, for which the cache is empty again.
    let ends = Request { guidance_end: Some(0.5), ..one.clone() };
    let ended = images(&mut load(&model(), &cpu()), &ends);
    let predicts = Request { block_cache_predict: true, ..one.clone() };
    let predicted = images(&mut load(&model(), &cpu()), &predicts);
    assert!(bits(&predicted) != bits(&expected));
    for mode in [ModeChoice::Full, ModeChoice::Medvram, ModeChoice::Lowvram] {
        let mut engine = load(&model(), &cpu_in(mode));
        let batch = images(&mut engine, &Request { batch_size: Some(3), seed: Some(4), ..one.clone() });
        assert!(bits(&batch[1..2]) == bits(&expected), "{mode:?}");
        let before = engine.timings();
        assert!(bits(&images(&mut engine, &one)) == bits(&expected), "{mode:?}");
        let skipped = (engine.timings() - before).skipped;
        assert!(skipped > 0 && skipped < 12, "{mode:?}: {skipped} of 12");
        assert!(bits(&images(&mut engine, &ends)) == bits(&ended), "{mode:?}");
        let batch = images(&mut engine, &Request { batch_size: Some(2), seed: Some(4), ..predicts.clone() });
        assert!(bits(&batch[1..]) == bits(&predicted), "{mode:?}");
    }
}

/// Groups that share calls at other places of their schedules decide as they do alone.
#[test]
fn groups_that_share_calls_have_the_bits_that_they_have_alone() {
    let mut engine = load(&model(), &cpu());
    let wanted = [guided(12, 5, Some(0.3)), guided(14, 6, Some(0.3)), guided(12, 7, None)];
    let wanted = wanted.map(|wanted| Request { block_cache_predict: wanted.block_cache.is_some(), ..wanted });
    let expected = wanted.each_ref().map(|wanted| bits(&images(&mut engine, wanted)));
    let (mut running, mut ids, mut done) = (RunningBatch::new(), Vec::new(), 0);
    let mut go_on = |_: Event| ControlFlow::Continue(());
    for turn in 0..20 {
        if let Some(wanted) = wanted.get(turn / 2).filter(|_| turn % 2 == 0) {
            let job = wanted.resolve(engine.model()).unwrap();
            ids.push((engine.join(&mut running, &job, 0, &mut go_on).unwrap(), job));
        }
        for id in engine.step(&mut running, &mut go_on).unwrap() {
            let place = ids.iter().position(|(known, _)| *known == id).unwrap();
            let found = bits(&engine.finish(&mut running, id, (&ids[place].1, 0), &mut go_on).unwrap());
            assert!(found == expected[place], "group {place}");
            done += 1;
        }
    }
    assert_eq!(done, 3);
}

/// On a straight line blocks are nearer to what they would have added.
#[test]
fn prediction_is_nearer_to_the_image_of_all_blocks() {
    let mut engine = load(&model(), &cpu());
    let of = |predicts| Request { block_cache_predict: predicts, ..guided(20, 5, Some(0.15)) };
    let expected = values(&images(&mut engine, &guided(20, 5, None)));
    let error = [false, true].map(|predicts| {
        let found = values(&images(&mut engine, &of(predicts)));
        found.iter().zip(&expected).map(|(a, b)| (a - b).powi(2)).sum::<f32>()
    });
    assert!(error[1] < 0.8 * error[0], "{error:?}");
}

/// The second pass has a cache of its own, in another size.
#[test]
fn a_second_pass_has_its_own_cache() {
    let wanted = |block_cache| Request {
        hires_scale: Some(1.5),
        hires_strength: Some(0.6),
        hires_steps: Some(12),
        ..guided(12, 5, block_cache)
    };
    let mut engine = load(&model(), &cpu());
    let [plain, zero, some] = [None, Some(0.0), Some(0.3)].map(|of| images(&mut engine, &wanted(of)));
    assert!(bits(&plain) == bits(&zero) && bits(&plain) != bits(&some));
    assert_eq!(latents(&some).dims(), [1, 4, 12, 12]);
    let message =
        Request { hires_steps: Some(9), ..wanted(Some(0.3)) }.resolve(engine.model()).unwrap_err().to_string();
    assert!(message.starts_with("`hires_steps` is 9, expected 10 or more with `block_cache`: "), "{message}");
}

#[test]
fn what_the_cache_cannot_do_is_refused_with_the_reason() {
    let engine = load(&model(), &cpu());
    let message = |wanted: Request| wanted.resolve(engine.model()).unwrap_err().to_string();
    let found = message(guided(9, 5, Some(0.1)));
    assert!(
        found
            .starts_with("`steps` is 9, expected 10 or more with `block_cache`: with fewer, one step differs too much")
    );
    assert!(message(guided(12, 5, Some(-0.1))).contains("`block_cache` is -0.1, expected a number from 0 to 10"));
    let found = guided(12, 5, Some(0.1)).resolve(tiny("sd1", &cpu()).model()).unwrap_err().to_string();
    assert!(found.contains("`block_cache` is 0.1, expected none: it works with transformers, and "), "{found}");
    let shared = "cpu,cpu".parse::<DeviceList>().unwrap().parallel_cfg(&cpu()).unwrap();
    let mut engine = load(&model(), &shared);
    let found = try_images(&mut engine, &guided(12, 5, Some(0.1))).unwrap_err().to_string();
    assert!(found.contains("`block_cache` is 0.1, expected none with `parallel` cfg"), "{found}");
}
