//! The bytes of all bodies together.

use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Semaphore;

use crate::budget::{Budget, Taken};
use crate::error::{Refused, RefusedKind};

/// The bytes of one permit.
const UNIT: usize = 1 << 10;
/// The largest bodies that there can be at once; one of them is a client's part.
const LARGEST_AT_ONCE: usize = 4;
/// The first bytes of every body come from a part of their own, so that small bodies are read while large ones fill the rest.
const FIRST: usize = 256 << 10;
/// The memory that a growing body takes at once.
const STEP: usize = 1 << 20;
/// When a client is asked to come back.
const COME_BACK: Duration = Duration::from_secs(5);

/// The bytes that the bodies of all requests may have together, while they come and until they are parsed.
pub(crate) struct Bodies {
    first: Budget,
    rest: Budget,
}

/// A body that grows. Its bytes are given back when it goes.
pub(crate) struct GrowingBody<'a> {
    bodies: &'a Bodies,
    bytes: Vec<u8>,
    /// Its parts of both budgets, in units.
    first: Option<Taken>,
    rest: Option<Taken>,
    units: usize,
}

/// A whole body.
struct Whole {
    bytes: Vec<u8>,
    /// Its parts of both budgets.
    _held: [Option<Taken>; 2],
}

impl AsRef<[u8]> for Whole {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Bodies {
    /// Four times as many bytes as one body may have, a quarter of them for the beginnings of bodies. With `shares` a client has a
    /// quarter of these, and of the rest as much as one body.
    pub(crate) fn new(largest: usize, shares: bool) -> Self {
        let units = largest.div_ceil(UNIT).clamp(FIRST / UNIT, Semaphore::MAX_PERMITS / LARGEST_AT_ONCE);
        let first = (units / LARGEST_AT_ONCE).max(FIRST / UNIT);
        Self {
            first: Budget::new(units, shares.then_some(first)),
            rest: Budget::new((LARGEST_AT_ONCE - 1) * units, shares.then_some(units)),
        }
    }

    /// A body without bytes.
    pub(crate) fn begin(&self) -> GrowingBody<'_> {
        GrowingBody { bodies: self, bytes: Vec::new(), first: None, rest: None, units: 0 }
    }
}

impl GrowingBody<'_> {
    /// The bytes so far.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Adds bytes.
    ///
    /// # Errors
    /// [`RefusedKind::Busy`] where all bodies together would have too many.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<(), Refused> {
        let length = self.bytes.len() + bytes.len();
        let units = length.div_ceil(UNIT);
        let first = units.min(FIRST / UNIT);
        let take = |held: &mut Option<Taken>, of: &Budget, more: usize| {
            let taken = of.try_take(more)?;
            match held {
                Some(held) => held.add(taken),
                None => *held = Some(taken),
            }
            Some(())
        };
        let more_first = first - self.units.min(first);
        let more_rest = units - self.units - more_first;
        let taken = take(&mut self.first, &self.bodies.first, more_first)
            .and_then(|()| take(&mut self.rest, &self.bodies.rest, more_rest));
        if taken.is_none() {
            let message = "the bodies of all requests together are too large at the moment; try again later";
            return Err(Refused { retry_after: Some(COME_BACK), ..Refused::new(RefusedKind::Busy, message) });
        }
        self.units = units;
        if length > self.bytes.capacity() {
            self.bytes.reserve_exact(bytes.len().max(self.bytes.len().min(STEP)));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    /// The whole body.
    pub(crate) fn end(self) -> Bytes {
        Bytes::from_owner(Whole { bytes: self.bytes, _held: [self.first, self.rest] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connections::CLIENT_NETWORK;

    #[test]
    fn bodies_share_a_budget_and_give_it_back() {
        const LARGEST: usize = 2 << 20;
        let bodies = Bodies::new(LARGEST, false);
        let body = |length: usize| {
            let mut body = bodies.begin();
            (0..length / 1000)
                .try_for_each(|_| body.push(&[7; 1000]))
                .and_then(|()| body.push(&vec![7; length % 1000]))?;
            assert_eq!(body.len(), length);
            Ok::<_, Refused>(body.end())
        };
        let large: Vec<Bytes> = (0..3).map(|_| body(LARGEST).unwrap()).collect();
        assert!(large.iter().all(|body| body.len() == LARGEST && body.iter().all(|byte| *byte == 7)));
        let refused = body(LARGEST).unwrap_err();
        assert_eq!((refused.kind, refused.retry_after), (RefusedKind::Busy, Some(COME_BACK)));
        // What was refused holds nothing, and small bodies have a part of their own.
        let small: Vec<Bytes> = (0..4).map(|_| body(FIRST).unwrap()).collect();
        drop((large, small));
        let rest = (bodies.first.left(), bodies.rest.left());
        assert_eq!(rest, (LARGEST / UNIT, 3 * LARGEST / UNIT));
        assert_eq!(body(0).unwrap().len(), 0);
    }

    #[test]
    fn one_client_leaves_room_for_the_bodies_of_others() {
        const LARGEST: usize = 2 << 20;
        let bodies = Bodies::new(LARGEST, true);
        let push = |last: u8, length: usize| {
            CLIENT_NETWORK.sync_scope([192, 0, 2, last].into(), || {
                let mut body = bodies.begin();
                body.push(&vec![7; length]).map(|()| body.end())
            })
        };
        let large = push(1, LARGEST).unwrap();
        assert!(push(1, LARGEST).is_err(), "it has its part");
        let small: Vec<Bytes> = (0..100).map_while(|_| push(1, FIRST).ok()).collect();
        assert_eq!(small.len(), 1, "a quarter of the beginnings, of which the large body has one");
        assert!(push(2, LARGEST).is_ok() && push(2, 1000).is_ok());
        drop((large, small));
        assert!(push(1, LARGEST).is_ok());
    }
}
