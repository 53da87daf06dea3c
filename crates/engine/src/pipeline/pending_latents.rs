//! Latents on their way from a GPU to the host, while it makes the steps of others.

use kiln_media::Gray8Image;
use kiln_ops::read_back::ReadBack;

use crate::error::Result;
use crate::pipeline::batch::Batch;
use crate::pipeline::decode::Latents;
use crate::pipeline::denoise::{checked, log_skipped};
use crate::pipeline::group::Group;

/// The latents of one image whose steps were given to the device, which may not have made them yet.
pub struct PendingLatents(State);

enum State {
    Read(Latents),
    UnderWay { values: ReadBack, heaviest: f32, index: usize, seed: u64, visible: Option<Gray8Image> },
}

impl PendingLatents {
    /// The latents of each image of a batch whose group has no evaluations left. The host does not wait for the device, unless the masks of
    /// the images depend on the latents.
    ///
    /// # Errors
    /// Errors of the copies.
    pub(crate) fn of(batch: &Batch<'_>, group: &Group) -> Result<Vec<Self>> {
        log_skipped(group)?;
        let heaviest = group.turns().current().conditions.heaviest();
        let mut visible = group.visible()?.unwrap_or_default().into_iter();
        let one = |place| {
            let (job, index) = batch.image(place);
            let values = ReadBack::start(&group.latents().narrow(0, place, 1)?)?;
            Ok(Self(State::UnderWay { values, heaviest, index, seed: job.seed_of(index), visible: visible.next() }))
        };
        (0..batch.len()).map(one).collect()
    }

    /// The latents, once they are there.
    ///
    /// # Errors
    /// [`crate::Error::NotANumber`] if values are not finite, and errors of the device.
    pub fn read(self) -> Result<Latents> {
        match self.0 {
            State::Read(latents) => Ok(latents),
            State::UnderWay { values, heaviest, index, seed, visible } => {
                Ok(Latents { latents: checked(values.wait()?, heaviest)?, index, seed, visible })
            }
        }
    }
}

impl From<Latents> for PendingLatents {
    fn from(latents: Latents) -> Self {
        Self(State::Read(latents))
    }
}
