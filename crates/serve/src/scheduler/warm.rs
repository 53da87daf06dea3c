//! Images that are made before the first request of their size: a GPU has recorded its step then, and libraries have chosen their
//! kernels.

use std::ops::ControlFlow;
use std::time::Instant;

use kiln_engine::pipeline::RUNS_UNTIL_RECORDED;
use kiln_engine::{Engine, Request, Result};
use kiln_models::ModelFolder;

/// The request of such an image: as few steps as show whether the step can be recorded.
pub fn request((width, height): (usize, usize)) -> Request {
    let (width, height, steps) = (Some(width), Some(height), Some(RUNS_UNTIL_RECORDED + 1));
    Request { prompt: "an image".into(), width, height, steps, seed: Some(0), ..Request::default() }
}

/// Makes an image of each size. One that cannot be made is left out with a warning.
pub(super) fn make(engine: &mut Engine, model: &ModelFolder, sizes: &[(usize, usize)], is_unwanted: impl Fn() -> bool) {
    for &size in sizes.iter().take_while(|_| !is_unwanted()) {
        let start = Instant::now();
        let flow = || if is_unwanted() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
        let mut draw = || -> Result<()> { engine.txt2img(&request(size).resolve(model)?, &mut |_| Ok(flow())) };
        let (name, [width, height]) = (model.name(), [size.0, size.1]);
        match draw() {
            Ok(()) => tracing::info!(
                "made an image of {width}x{height} with {name} in {:.2} s",
                start.elapsed().as_secs_f64()
            ),
            Err(error) => tracing::warn!("no image of {width}x{height} was made with {name}: {error}"),
        }
    }
}
