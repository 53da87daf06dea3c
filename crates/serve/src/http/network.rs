//! Images that networks enlarge, on the thread that owns the engine.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use kiln_engine::{StopSign, UpscalerChoice};
use kiln_media::Rgb8Image;
use tokio::sync::mpsc;

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
    // An answer whose receiver can be asked for from the threads of the kernels.
    let (answer, mut answered) = mpsc::channel(1);
    let (state, begin) = (app.clone(), Instant::now());
    app.scheduler.run(Box::new(move |engine| {
        let waiting = answer.clone();
        let sign = StopSign::new(move || {
            let is_late = state.options.limits.time.is_some_and(|limit| begin.elapsed() >= limit);
            waiting.is_closed() || is_late || state.scheduler.is_stopping()
        });
        let mut go_on = |_| if sign.is_set() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
        let enlarged = sign.during(|| engine.enlarge(&upscaler, &image, target, &mut go_on));
        let _ = answer.try_send(enlarged); // the client may have gone
    }))?;
    let enlarged =
        answered.recv().await.ok_or_else(|| Refused::new(RefusedKind::Stopping, "the server is stopping"))?;
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
