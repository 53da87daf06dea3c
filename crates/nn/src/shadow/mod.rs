//! A dry run: a network walked through with the shapes of its tensors alone, to learn how much memory a run takes.
//!
//! A [`Shadow`] is what is known of a tensor before it exists: its shape, its type, and the bytes that it holds while
//! it or a clone of it lives. Every layer and network has, beside `forward`, a function `shadow` of the same lines,
//! which makes shadows instead of tensors and drops them where `forward` drops tensors: the ledger's peak is then the
//! run's. Weights are not counted: their segments know their bytes.
//!
//! Shapes are not checked here. What a run would refuse has a footprint without meaning.

mod ops;

use std::cell::RefCell;
use std::rc::Rc;

use candle_core::DType;
use kiln_mempool::{Held, Ledger, Rounding};
use kiln_ops::{MatrixType, Target, Workspace};

pub use ops::{
    activation, attention, cat, chunk, concat_channels, conv2d, elementwise, geglu, group_norm, guidance, layer_norm,
    linear, timestep_embedding, to_channels_first, to_channels_last, upsample_nearest,
};

/// Where shadows are made and counted. Clones are the same dry run.
///
/// ```
/// use candle_core::DType;
/// use kiln_nn::{DryRun, ops::Target, shadow};
///
/// let run = DryRun::new(Target::Card);
/// let x = run.tensor(&[2, 64, 64, 320], DType::F16);
/// let y = shadow::upsample_nearest(&x, (128, 128));
/// drop(x);
/// assert_eq!(run.ledger().now(), 2 * 128 * 128 * 320 * 2);
/// assert_eq!(run.ledger().peak(), 5 * 2 * 64 * 64 * 320 * 2);
/// # drop(y);
/// ```
#[derive(Clone)]
pub struct DryRun(Rc<State>);

struct State {
    target: Target,
    /// The type of linear layers' matrices, where it is not the activations'.
    matrices: Option<MatrixType>,
    ledger: Ledger,
    /// The buffer that the calling thread keeps ([`Workspace::kept`]).
    kept: RefCell<Option<Held>>,
}

impl DryRun {
    /// A dry run of nothing yet, in which sizes are rounded as the target's pool rounds them.
    pub fn new(target: Target) -> Self {
        Self::with_matrices(target, None)
    }

    /// The same for networks whose linear layers' matrices are of another type than the activations.
    pub fn with_matrices(target: Target, matrices: Option<MatrixType>) -> Self {
        let ledger = Ledger::new(if target.is_card() { Rounding::Card } else { Rounding::HostPool });
        Self(Rc::new(State { target, matrices, ledger, kept: RefCell::default() }))
    }

    /// Where the run would take place.
    pub fn target(&self) -> Target {
        self.0.target
    }

    /// The type of linear layers' matrices, where it is not the activations'.
    pub fn matrices(&self) -> Option<MatrixType> {
        self.0.matrices
    }

    /// The bytes of all shadows.
    pub fn ledger(&self) -> &Ledger {
        &self.0.ledger
    }

    /// Bytes of the buffer that the calling thread keeps ([`Workspace::kept`]).
    pub fn kept(&self) -> usize {
        self.0.kept.borrow().as_ref().map_or(0, Held::bytes)
    }

    /// A new tensor.
    pub fn tensor(&self, shape: &[usize], dtype: DType) -> Shadow {
        let bytes = shape.iter().product::<usize>() * dtype.size_in_bytes();
        Shadow { run: self.clone(), shape: shape.to_vec(), dtype, held: Rc::new(self.0.ledger.hold(bytes)) }
    }

    /// What an operator takes besides operands and result, while these are there.
    pub fn takes(&self, workspace: Workspace) {
        let Workspace { call, kept } = workspace;
        let mut buffer = self.0.kept.borrow_mut();
        if kept > buffer.as_ref().map_or(0, Held::bytes) {
            *buffer = None; // it goes before the larger one comes
            *buffer = Some(self.0.ledger.hold(kept));
        }
        self.0.ledger.touch(call);
    }
}

/// What is known of a tensor before it exists. A clone is the same memory.
#[derive(Clone)]
pub struct Shadow {
    run: DryRun,
    shape: Vec<usize>,
    dtype: DType,
    held: Rc<Held>,
}

impl Shadow {
    /// The dry run that it belongs to.
    pub fn run(&self) -> &DryRun {
        &self.run
    }

    /// The shape.
    pub fn dims(&self) -> &[usize] {
        &self.shape
    }

    /// One size of the shape; 1 beyond its end.
    pub fn dim(&self, i: usize) -> usize {
        self.shape.get(i).copied().unwrap_or(1)
    }

    /// The last size: channels.
    pub fn channels(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// How many elements there are.
    pub fn elem_count(&self) -> usize {
        self.shape.iter().product()
    }

    /// The elements' type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The bytes that it holds, as its pool rounds them; those of the whole tensor for a part of one.
    pub fn bytes(&self) -> usize {
        self.held.bytes()
    }

    /// Another tensor of the same type.
    pub fn another(&self, shape: &[usize]) -> Self {
        self.run.tensor(shape, self.dtype)
    }

    /// Another tensor with the last size changed.
    pub fn with_channels(&self, channels: usize) -> Self {
        let outer = self.shape.split_last().map_or(&[][..], |(_, outer)| outer);
        self.another(&[outer, &[channels]].concat())
    }

    /// The same memory as another shape, or a part of it.
    pub fn view(&self, shape: &[usize]) -> Self {
        Self { shape: shape.to_vec(), ..self.clone() }
    }

    /// The same values in another type: the same memory where that is the type already.
    pub fn to_dtype(&self, dtype: DType) -> Self {
        if dtype == self.dtype { self.clone() } else { self.run.tensor(&self.shape, dtype) }
    }

    /// A copy.
    pub fn copy(&self) -> Self {
        self.another(&self.shape)
    }
}
