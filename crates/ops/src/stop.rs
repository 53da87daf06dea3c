//! Ends the work of a call before it is done.
//!
//! A [`StopSign`] holds for the work of a thread ([`StopSign::during`]). While it does, every operator asks it before it runs, and
//! the long kernels of the CPU ask before each of their tasks. When the sign is set, operators return [`Error::Stopped`], so
//! that a network ends in the middle of its layers, also within a convolution that takes seconds. Results that are not complete
//! are never returned.
//!
//! Work that is handed to another thread takes the sign along ([`StopSign::current`], [`StopSign::with`]). Threads without a sign are never
//! stopped: those that stream weights, and the thread on which a GPU's step is recorded ([`crate::graph`]).

use std::cell::RefCell;
use std::fmt::{Debug, Formatter, Result as FmtResult};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, Result};

/// Says whether work should end. Once it is set it stays so.
#[derive(Clone)]
pub struct StopSign(Arc<Sign>);

struct Sign {
    was_set: AtomicBool,
    ask: Box<dyn Fn() -> bool + Send + Sync>,
}

thread_local! {
    static CURRENT: RefCell<Option<StopSign>> = const { RefCell::new(None) };
}

impl StopSign {
    /// A sign that is set when `ask` is true for the first time. Kernels call `ask` often and from several threads at once: it
    /// must return within a microsecond.
    pub fn new(ask: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(Sign { was_set: AtomicBool::new(false), ask: Box::new(ask) }))
    }

    /// Whether work should end.
    pub fn is_set(&self) -> bool {
        let Sign { was_set, ask } = &*self.0;
        // Relaxed: nothing is read that another thread wrote before.
        if was_set.load(Ordering::Relaxed) {
            return true;
        }
        let is_set = ask();
        if is_set {
            was_set.store(true, Ordering::Relaxed);
        }
        is_set
    }

    /// The sign of the current thread's work.
    pub fn current() -> Option<Self> {
        CURRENT.with_borrow(Clone::clone)
    }

    /// Does `work` on this thread, and ends it when the sign is set. Until then no other sign holds.
    pub fn during<T>(&self, work: impl FnOnce() -> T) -> T {
        Self::with(Some(self.clone()), work)
    }

    /// Does `work` with the sign of another thread's work, which may have none.
    pub fn with<T>(sign: Option<Self>, work: impl FnOnce() -> T) -> T {
        /// Restores the sign from before, also after a panic.
        struct Before(Option<StopSign>);
        impl Drop for Before {
            fn drop(&mut self) {
                CURRENT.set(self.0.take());
            }
        }
        let _before = Before(CURRENT.replace(sign));
        work()
    }
}

impl Debug for StopSign {
    fn fmt(&self, f: &mut Formatter<'_>) -> FmtResult {
        f.debug_tuple("StopSign").field(&self.0.was_set).finish()
    }
}

/// An error if the work of this thread should end.
///
/// # Errors
/// [`Error::Stopped`].
pub(crate) fn check() -> Result<()> {
    if CURRENT.with_borrow(|sign| sign.as_ref().is_some_and(StopSign::is_set)) { Err(Error::Stopped) } else { Ok(()) }
}

/// Asked by the tasks of a kernel on all of its threads. A task returns at once when it is true; the operator then fails
/// ([`check`]), since the sign stays set.
pub(crate) fn asked() -> impl Fn() -> bool + Sync {
    let sign = StopSign::current();
    move || sign.as_ref().is_some_and(StopSign::is_set)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use candle_core::{Device, Tensor};

    use super::*;
    use crate::{Attention, Conv2d, Conv2dInputs, Weight, attention, conv2d, layer_norm, linear};

    /// A sign that is set from its `n`th question on.
    fn set_after(n: usize) -> StopSign {
        let asked = AtomicUsize::new(0);
        StopSign::new(move || asked.fetch_add(1, Ordering::Relaxed) >= n)
    }

    fn randn(shape: &[usize]) -> Tensor {
        Tensor::randn(0f32, 1.0, shape, &Device::Cpu).unwrap()
    }

    #[test]
    fn a_sign_stays_set_and_holds_for_its_work_alone() {
        let sign = set_after(1);
        assert!(StopSign::current().is_none() && !sign.is_set() && sign.is_set() && sign.is_set());
        sign.during(|| {
            assert!(matches!(check(), Err(Error::Stopped)));
            StopSign::with(None, || check().unwrap());
            assert!(check().is_err());
        });
        check().unwrap();
        let panics = || sign.during(|| panic!("a test"));
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics)).unwrap_err();
        check().unwrap();
    }

    #[test]
    fn operators_stop_before_they_run() {
        let (x, gamma) = (randn(&[4, 32]), randn(&[32]));
        let norm = || layer_norm(&x, &gamma, &gamma, 1e-5, None);
        assert!(matches!(set_after(0).during(norm), Err(Error::Stopped)));
        let expected = norm().unwrap().to_vec2::<f32>().unwrap();
        assert_eq!(StopSign::new(|| false).during(norm).unwrap().to_vec2::<f32>().unwrap(), expected);
    }

    /// Each of them asks several times, and returns no incomplete result.
    #[test]
    fn long_kernels_stop_between_their_tasks() {
        let image = randn(&[1, 64, 64, 32]); // (b, h, w, c)
        let (taps, points) = (randn(&[64, 3, 3, 32]), randn(&[64, 1, 1, 32]));
        let [taps, points] = [taps, points].map(|weight| Weight::plain(&weight).unwrap());
        let conv = |weight: &Weight, stride| {
            let inputs = Conv2dInputs { x: &image, weight, bias: None, image_bias: None, residual: None };
            let pad = usize::from(weight.shape()[1] == 3);
            conv2d(inputs, Conv2d { stride, pad_before: pad, pad_after: pad }, None)
        };
        let (tokens, matrix) = (randn(&[4096, 320]), Weight::plain(&randn(&[320, 320])).unwrap());
        let q = randn(&[1, 2048, 64]);
        let calls: [(&str, &dyn Fn() -> Result<Tensor>); 5] = [
            ("3x3", &|| conv(&taps, 1)),
            ("3x3 of stride 2", &|| conv(&taps, 2)),
            ("1x1", &|| conv(&points, 1)),
            ("linear", &|| linear(&tokens, &matrix, None, None, None)),
            ("attention", &|| attention(&q, &q, &q, Attention { num_heads: 2, causal: false }, None)),
        ];
        let bits = |y: Tensor| y.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        for (name, call) in calls {
            let asked = Arc::new(AtomicUsize::new(0));
            let count = asked.clone();
            let never = StopSign::new(move || {
                count.fetch_add(1, Ordering::Relaxed);
                false
            });
            let whole = bits(never.during(call).unwrap());
            let asked = asked.load(Ordering::Relaxed);
            assert!(asked >= 4, "{name} asks {asked} times");
            for n in [1, asked / 2] {
                assert!(matches!(set_after(n).during(call), Err(Error::Stopped)), "{name} after {n} questions");
            }
            assert_eq!(bits(call().unwrap()), whole, "{name}");
        }
    }
}
