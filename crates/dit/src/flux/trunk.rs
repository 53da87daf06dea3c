//! The blocks of a network in their order.

use kiln_nn::{Modulation, Result, TensorLike};
use kiln_weights::{SegmentModule, Segments};

use super::attention::Attending;
use super::block::{DoubleBlock, SingleBlock, Vectors};
use super::dims::FluxDims;
use super::streams::Streams;
use crate::block_cache::{BlockCache, Rows, Tokens, run_blocks};
use crate::tokens::{join_tokens, tokens};

/// A block's kind and number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// A double block.
    Double(usize),
    /// A single block.
    Single(usize),
}

/// The vectors of a block, made of its own layers if it has any: shift, scale and gate of each of its layers.
pub(super) type MakeVectors<'a, T> = &'a dyn Fn(Place, &[Modulation]) -> Result<Vec<T>>;

/// A function that gets the tokens `(b, n, c)` of the image after each block, and may return others for them.
pub(super) type ImageHook<'a, T> = &'a mut dyn FnMut(Place, &T) -> Result<Option<T>>;

/// A block, and the layers that make its vectors.
struct Modulated<B> {
    own: Vec<Modulation>,
    block: B,
}

/// All blocks of a network, a segment each.
pub(super) struct Trunk {
    double: Vec<SegmentModule<Modulated<DoubleBlock>>>,
    single: Vec<SegmentModule<Modulated<SingleBlock>>>,
}

impl Trunk {
    /// Declares `transformer_blocks` and `single_transformer_blocks`, in segments whose names begin with `label`. `modulated` blocks
    /// have layers that make vectors of an embedding.
    pub(super) fn new(segments: &mut Segments, label: &str, dims: &FluxDims, modulated: bool) -> Self {
        let c = dims.channels();
        let double = (0..dims.layers).map(|i| {
            let path = format!("transformer_blocks.{i}");
            segments.add(format!("{label}{path}"), |p| {
                let p = p.pp(&path);
                let norms = ["norm1.linear", "norm1_context.linear"].into_iter().filter(|_| modulated);
                let own = norms.map(|name| Modulation::new(&p.pp(name), [c, c], 6, true, true)).collect();
                Modulated { own, block: DoubleBlock::new(&p, dims) }
            })
        });
        let double = double.collect();
        let single = (0..dims.single_layers).map(|i| {
            let path = format!("single_transformer_blocks.{i}");
            segments.add(format!("{label}{path}"), |p| {
                let p = p.pp(&path);
                let own = modulated.then(|| Modulation::new(&p.pp("norm.linear"), [c, c], 3, true, true));
                Modulated { own: own.into_iter().collect(), block: SingleBlock::new(&p, dims) }
            })
        });
        Self { double, single: single.collect() }
    }

    /// Image tokens `x` `(b, m, c)`, of which the first `n` are those of the image, and text tokens `y` `(b, s, c)`, to the
    /// image's `(b, n, c)`.
    pub(super) fn run<T: TensorLike>(
        &self,
        [x, y]: [T; 2],
        n: usize,
        vectors: MakeVectors<'_, T>,
        attending: Attending<T>,
        mut hook: Option<ImageHook<'_, T>>,
        cache: Option<BlockCache<T>>,
    ) -> Result<T> {
        let running = Running { streams: Streams::new(x, y, n), attending, rows: None };
        run_blocks(cache, running, self.double.len() + self.single.len(), |running, range| {
            let Running { mut streams, attending, rows } = running;
            let vectors = |place, own: &[Modulation]| {
                let all = vectors(place, own)?;
                match &rows {
                    Some(rows) => all.iter().map(|vector| rows.of(vector)).collect(),
                    None => Ok(all),
                }
            };
            for i in range {
                match i.checked_sub(self.double.len()) {
                    None => {
                        let (place, [x, y]) = (Place::Double(i), streams.apart()?);
                        let [x, y] = T::run(&self.double[i], |Modulated { own, block }| {
                            block.forward([x, y], &Vectors::of(vectors(place, own)?)?, &attending)
                        })?;
                        streams = Streams::new(hooked(x, n, place, &mut hook)?, y, n);
                    }
                    Some(i) => {
                        let (place, z) = (Place::Single(i), streams.joined()?);
                        let z = T::run(&self.single[i], |Modulated { own, block }| {
                            block.forward(z, &Vectors::of(vectors(place, own)?)?, &attending)
                        })?;
                        streams = Streams::of_all(hooked(z, n, place, &mut hook)?, n);
                    }
                }
            }
            Ok(Running { streams, attending, rows })
        })
    }
}

/// The tensors between two blocks.
struct Running<T> {
    streams: Streams<T>,
    attending: Attending<T>,
    /// The rows of the batch, if they are some of them.
    rows: Option<Rows>,
}

impl<T: TensorLike> Tokens<T> for Running<T> {
    fn image(&self) -> Result<T> {
        self.streams.image()
    }

    fn pick(self, rows: Rows) -> Result<Self> {
        let (streams, attending) = (self.streams.pick(&rows)?, self.attending.pick(&rows)?);
        Ok(Self { streams, attending, rows: Some(rows) })
    }
}

/// `x` `(b, m, c)` with the first `n` tokens that `hook` returns for its own.
fn hooked<T: TensorLike>(x: T, n: usize, place: Place, hook: &mut Option<ImageHook<'_, T>>) -> Result<T> {
    let Some(hook) = hook else { return Ok(x) };
    let Some(image) = hook(place, &tokens(&x, 0, n)?)? else { return Ok(x) };
    let [_, m, _] = x.size3()?;
    if m == n { Ok(image) } else { join_tokens(&image, &tokens(&x, n, m - n)?) }
}
