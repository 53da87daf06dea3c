//! Who hears how far a run is, and may stop it.

use std::cell::{Cell, RefCell};
use std::ops::ControlFlow;

/// Hears which part of the work is done, from 0 to 1, and says whether to go on.
pub type Listener<'a> = dyn FnMut(f32) -> ControlFlow<()> + 'a;

/// A listener, and where in a batch the run is.
pub(crate) struct Watch<'a> {
    listener: RefCell<&'a mut Listener<'a>>,
    stopped: Cell<bool>,
    /// The number of the image, and how many there are.
    image: Cell<(usize, usize)>,
}

impl<'a> Watch<'a> {
    pub(crate) fn new(listener: &'a mut Listener<'_>) -> Self {
        Self { listener: RefCell::new(listener), stopped: Cell::new(false), image: Cell::new((0, 1)) }
    }

    /// Image `i` of `b` begins.
    pub(crate) fn image(&self, i: usize, b: usize) {
        self.image.set((i, b));
    }

    /// Reports the part of the image that is done, and returns whether to stop.
    pub(crate) fn report(&self, part: f32) -> bool {
        let (i, b) = self.image.get();
        if !self.stopped.get() && (*self.listener.borrow_mut())((i as f32 + part) / b as f32).is_break() {
            self.stopped.set(true);
        }
        self.stopped.get()
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.get()
    }
}
