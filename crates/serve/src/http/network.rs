//! Images that networks enlarge, on the thread that owns the engine.

use std::ops::ControlFlow;
use std::sync::Arc;

use kiln_engine::UpscalerChoice;
use kiln_media::Rgb8Image;
use tokio::sync::oneshot;

use crate::app::App;
use crate::error::{Refused, RefusedKind};

/// An image that a network enlarges, between two steps of the jobs. It is stopped where the client goes away.
pub(crate) async fn enlarge_by_network(
    app: &Arc<App>,
    upscaler: UpscalerChoice,
    image: Rgb8Image,
    target: (usize, usize),
) -> Result<Rgb8Image, Refused> {
    let (answer, answered) = oneshot::channel();
    app.scheduler.run(Box::new(move |engine| {
        let enlarged = engine.enlarge(&upscaler, &image, target, &mut |_| match answer.is_closed() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        });
        let _ = answer.send(enlarged); // the client may have gone
    }))?;
    let enlarged = answered.await.map_err(|_| Refused::new(RefusedKind::Stopping, "the server is stopping"))?;
    enlarged.map_err(|error| match error.is_usage() {
        true => Refused::invalid(error.to_string()),
        false => Refused::new(RefusedKind::Internal, error.to_string()),
    })
}
