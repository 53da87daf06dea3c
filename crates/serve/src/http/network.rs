//! Images that networks enlarge, on the thread that owns the engine.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use kiln_engine::UpscalerChoice;
use kiln_media::Rgb8Image;
use tokio::sync::oneshot;

use crate::app::App;
use crate::error::{Refused, RefusedKind};

/// An image that a network enlarges, between two steps of the jobs. It is stopped where the client goes away,
/// after the longest time of a job, and where the server stops.
pub(crate) async fn enlarge_by_network(
    app: &Arc<App>,
    upscaler: UpscalerChoice,
    image: Rgb8Image,
    target: (usize, usize),
) -> Result<Rgb8Image, Refused> {
    let (answer, answered) = oneshot::channel();
    let (state, begin) = (app.clone(), Instant::now());
    app.scheduler.run(Box::new(move |engine| {
        let enlarged = engine.enlarge(&upscaler, &image, target, &mut |_| {
            let is_late = state.options.limits.time.is_some_and(|limit| begin.elapsed() >= limit);
            match answer.is_closed() || is_late || state.scheduler.is_stopping() {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        });
        let _ = answer.send(enlarged); // the client may have gone
    }))?;
    let enlarged = answered.await.map_err(|_| Refused::new(RefusedKind::Stopping, "the server is stopping"))?;
    enlarged.map_err(|error| match error {
        kiln_engine::Error::Interrupted if app.scheduler.is_draining() => {
            Refused::new(RefusedKind::Stopping, "the server is stopping")
        }
        kiln_engine::Error::Interrupted => {
            Refused::new(RefusedKind::Expired, "the image was not enlarged within the server's `max_seconds`")
        }
        error if error.is_usage() => Refused::invalid(error.to_string()),
        error => Refused::new(RefusedKind::Internal, error.to_string()),
    })
}
