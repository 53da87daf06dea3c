//! Consecutive runs of one engine: prompts, batches, seeds, and interruption.

use std::ops::ControlFlow;

use kiln_engine::{Event, Request};
use kiln_testkit::{Parity, Target};

use crate::support::{from_env, images, latents, request, tiny};

/// On the CPU the text encoders are unloaded after the first job, and loaded again for another prompt.
#[test]
fn a_repeated_prompt_gives_the_same_image() {
    let mut engine = tiny("sd1", &from_env());
    let mut image = |prompt: &str, cfg_scale| {
        let request = Request { cfg_scale: Some(cfg_scale), ..request(prompt, (64, 64), 1, 7) };
        images(&mut engine, &request).remove(0).rgb
    };
    let apple = image("a red apple", 7.0);
    assert_ne!(image("a blue whale", 7.0), apple);
    assert_eq!(image("a red apple", 7.0), apple);
    assert_ne!(image("a red apple", 1.0), apple, "without guidance the conditions are others");
    assert_eq!(image("a red apple", 7.0), apple);
}

/// On the CPU an image has the same bits in any batch. A GPU chooses kernels by the batch's shape: there the images differ
/// by rounding.
#[test]
fn seeds_increase_over_batches() {
    let target = Target::from_env();
    let mut engine = tiny("sd1", &from_env());
    let base = request("a red apple", (64, 64), 3, 7);
    let two_batches = Request { batch_count: Some(2), batch_size: Some(2), ..base.clone() };
    let four = images(&mut engine, &two_batches);
    assert_eq!(four.iter().map(|p| (p.index, p.seed)).collect::<Vec<_>>(), [(0, 7), (1, 8), (2, 9), (3, 10)]);
    let parity = Parity::new("pipeline", "batches");
    for (index, seed) in [(2, 9), (3, 10)] {
        let alone = images(&mut engine, &Request { seed: Some(seed), ..base.clone() });
        let (found, expected) = (latents(&four[index..=index]), latents(&alone));
        if target.device.is_cpu() {
            parity.check("third of four", &found, &expected, 0.0);
        } else {
            parity.check_similar("one of four", &found, &expected, crate::limits::run("sd1", "folder", target.dtype));
        }
    }
}

#[test]
fn a_run_stops_between_steps() {
    let mut engine = tiny("sd1", &from_env());
    let request = Request { steps: None, ..request("x", (64, 64), 1, 1) };
    let job = request.resolve(engine.model()).unwrap();
    let mut steps = 0;
    let watch = &mut |event| {
        steps += usize::from(matches!(event, Event::Step { .. }));
        Ok(if steps == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    };
    assert!(matches!(engine.txt2img(&job, watch), Err(kiln_engine::Error::Interrupted)));
    assert_eq!(steps, 3);
}
