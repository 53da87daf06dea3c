//! Attention on the CPU without the matrix of scores (Rabe and Staats, arXiv 2112.05682; Dao et al., arXiv 2205.14135).
//! Keys and values of a head are packed once. A task then processes some queries over all keys, block by block: the
//! scores of a block exist for these queries alone, in the cache, and the sums so far are scaled down where a block
//! raises a query's maximum. Blocks have one size whatever the number of threads and the batch size, so the result does
//! not depend on either.

use std::ops::Range;

use candle_core::Tensor;
use kiln_mempool::HostPool;
use rayon::prelude::*;

use super::grouped::GroupedCall;
use super::{Call, Form, Mask, OP, Shapes};
use crate::backend::{self, Cpu};
use crate::cpu::math::{exp2_of_negative, for_every_isa};
use crate::cpu::product::{Kernel, MOST_ROWS, Out, PANEL, Panels, STRIDE, TILE_GAP, pack, packed_len};
use crate::cpu::rounding::{LANES, Plain};
use crate::cpu::{Element, Operand, Scratch, Shared, View};
use crate::error::Result;
use crate::output::write;
use crate::stop;

/// Queries of a task, in calls of the kernel.
const CALLS: usize = 2;

impl backend::Kernel<Cpu> for Call<'_> {
    fn launch(&self, _cpu: &Cpu, out: Option<&Tensor>) -> Result<Option<Tensor>> {
        dispatch_operands!(OP, "q", self.q.dtype(), typed(self, out)).map(Some)
    }
}

impl backend::Kernel<Cpu> for GroupedCall<'_> {
    fn launch(&self, _cpu: &Cpu, out: Option<&Tensor>) -> Result<Option<Tensor>> {
        dispatch_operands!(OP, "q", self.call.q.dtype(), typed(&self.call, out)).map(Some)
    }
}

fn typed<T: Element, W: Operand<T>>(call: &Call<'_>, out: Option<&Tensor>) -> Result<Tensor> {
    let Call { q, k, v, mask: Mask { bias, lengths }, form, shapes } = *call;
    let (Form { num_heads, group, .. }, Shapes { b, s, t, c, head_dim }) = (form, shapes);
    let (queries, keys, values) = (View::<T>::new(q)?, View::<T>::new(k)?, View::<T>::new(v)?);
    let (biases, lengths) = (View::<T>::optional(bias)?, View::<f32>::optional(lengths)?);
    let num_kv_heads = num_heads / group;
    let heads: Vec<Head<W>> = (0..b * num_kv_heads)
        .into_par_iter()
        .map(|i| {
            let start = i / num_kv_heads * t * (c / group) + i % num_kv_heads * head_dim;
            Head::new(&keys[start.min(keys.len())..], &values[start.min(values.len())..], form, shapes)
        })
        .collect::<Result<_>>()?;
    let limits = |image: usize, head: usize| Limits {
        keys: lengths.as_ref().map_or(t, |lengths| (lengths[image] as usize).clamp(1, t.max(1))).min(t),
        bias: biases.as_ref().map(|biases| {
            let first = if biases.len() == num_heads * s * t { 0 } else { image * num_heads };
            &biases[(first + head) * s * t..][..s * t]
        }),
    };
    let most = CALLS * Kernel::current::<W>().rows();
    let blocks = s.div_ceil(most);
    let inputs: Vec<&Tensor> = [Some(q), Some(k), Some(v), bias].into_iter().flatten().collect();
    write::<T>(OP, out, &[b, s, c], &inputs, |y| {
        let (y, stops) = (Shared::new(y), stop::asked());
        (0..b * num_heads * blocks).into_par_iter().for_each_init(Buffers::new::<W>, |buffers, task| {
            if stops() {
                return;
            }
            let (i, first) = (task / blocks, task % blocks * most);
            let (image, head) = (i / num_heads, i % num_heads);
            let rows = first..(first + most).min(s);
            let start = image * s * c + head * head_dim;
            let place = |row: usize| start + row * c..start + row * c + head_dim;
            heads[image * num_kv_heads + head / group].attend(
                rows,
                limits(image, head),
                |row, channels, out| W::convert(&queries[place(row)][channels], out),
                buffers,
                |row, results, sum| {
                    // SAFETY: every row and head belongs to one task.
                    #[allow(unsafe_code)]
                    let y = unsafe { y.part(place(row)) };
                    divide(results, sum, y);
                },
            );
        });
    })
}

/// Keys and values of one head of one image, packed: `(head_dim, t)` and `(t, head_dim)`.
struct Head<W> {
    keys: Vec<W>,
    values: Vec<W>,
    form: Form,
    t: usize,
    head_dim: usize,
    /// Elements of a row of results: whole panels.
    width: usize,
}

/// The keys that the queries of a head of an image attend to, and the bias of their scores `(s, t)`.
struct Limits<'a, T> {
    keys: usize,
    bias: Option<&'a [T]>,
}

/// The buffers of a task.
struct Buffers {
    kernel: Kernel,
    /// The queries in the kernel's format, one block of channels after another.
    queries: Scratch,
    /// The scores of a block of keys.
    scores: Scratch,
    /// Their exponentials in the kernel's format.
    weights: Scratch,
    /// The sums of weighted values so far.
    results: Scratch,
}

impl Buffers {
    fn new<W: Element>() -> Self {
        let [queries, scores, weights, results] = [(); 4].map(|()| Scratch::default());
        Self { kernel: Kernel::current::<W>(), queries, scores, weights, results }
    }
}

/// The state of a block's queries.
struct Block<'a> {
    kernel: &'a Kernel,
    queries: &'a [u32],
    scores: &'a mut [f32],
    weights: &'a mut [u32],
    results: &'a mut [f32],
    /// The maximum of each query's scores.
    maxima: [f32; CALLS * MOST_ROWS],
    /// The sum of its weights.
    sums: [f32; CALLS * MOST_ROWS],
}

impl<W: Element> Head<W> {
    /// `keys` and `values` begin at the head's first channel of the image's first token.
    fn new<T: Element>(keys: &[T], values: &[T], form: Form, Shapes { t, c, head_dim, .. }: Shapes) -> Result<Self>
    where
        W: Operand<T>,
    {
        let zeros = |len| -> Result<Vec<W>> {
            let mut zeros = HostPool::vector(len)?;
            zeros.resize(len, W::ZERO);
            Ok(zeros)
        };
        let c = c / form.group; // from one token to the next
        let mut packed_keys = zeros(packed_len(head_dim, t))?;
        pack(head_dim, t, W::PAIRED, |channel, token| W::of(keys[token * c + channel]), &mut packed_keys);
        let mut packed_values = zeros(packed_len(t, head_dim))?;
        pack(t, head_dim, W::PAIRED, |token, channel| W::of(values[token * c + channel]), &mut packed_values);
        let width = head_dim.next_multiple_of(PANEL);
        Ok(Self { keys: packed_keys, values: packed_values, form, t, head_dim, width })
    }

    /// Computes the queries `rows`. `query` writes some channels of one. `finish` gets each query's sum of weighted values
    /// and the sum of its weights.
    fn attend<T: Element>(
        &self,
        rows: Range<usize>,
        limits: Limits<'_, T>,
        query: impl Fn(usize, Range<usize>, &mut [W]),
        buffers: &mut Buffers,
        finish: impl Fn(usize, &[f32], f32),
    ) {
        let Buffers { kernel, queries, scores, weights, results } = buffers;
        let (k_block, count) = (kernel.k_block(), rows.len());
        let queries: &mut [u32] = queries.get(self.head_dim.div_ceil(k_block) * count * STRIDE);
        for (part, words) in queries.chunks_exact_mut(count * STRIDE).enumerate() {
            let channels = part * k_block..((part + 1) * k_block).min(self.head_dim);
            for (row, words) in rows.clone().zip(words.chunks_exact_mut(STRIDE)) {
                kernel.fill(channels.len(), &mut Vec::new(), words, |out| query(row, channels.clone(), out));
            }
        }
        let results: &mut [f32] = results.get(count * self.width);
        results.fill(0.0);
        let mut block = Block {
            kernel,
            queries,
            scores: scores.get(count * (k_block + TILE_GAP)),
            weights: weights.get(count * STRIDE),
            results,
            maxima: [f32::NEG_INFINITY; CALLS * MOST_ROWS],
            sums: [0.0; CALLS * MOST_ROWS],
        };
        let visible = |row: usize| limits.keys.min(if self.form.causal { row + 1 } else { self.t });
        for first in (0..self.t.min(visible(rows.end - 1))).step_by(k_block) {
            let keys = first..(first + k_block).min(self.t);
            self.score(keys.clone(), count, &mut block);
            for (i, row) in rows.clone().enumerate() {
                let seen = visible(row).clamp(first, keys.end) - first;
                if let Some(bias) = limits.bias {
                    let scores = &mut block.scores[i * (k_block + TILE_GAP)..][..seen];
                    add_bias(scores, &bias[row * self.t + first..][..seen], self.form.bias_factor);
                }
                self.weigh(i, seen, keys.len(), &mut block);
            }
            self.add_values(keys, &mut block);
        }
        for ((row, results), sum) in rows.zip(block.results.chunks_exact(self.width.max(1))).zip(block.sums) {
            finish(row, &results[..self.head_dim], sum);
        }
    }

    /// The scores of some keys, which start at a panel.
    fn score(&self, keys: Range<usize>, count: usize, block: &mut Block<'_>) {
        let packed = Panels::new(&self.keys, self.head_dim, self.t);
        let (k_block, most) = (block.kernel.k_block(), block.kernel.rows());
        let stride = k_block + TILE_GAP;
        for (part, queries) in block.queries.chunks_exact(count * STRIDE).enumerate() {
            let depth = k_block.min(self.head_dim - part * k_block);
            for (i, queries) in queries.chunks(most * STRIDE).enumerate() {
                for panel in 0..keys.len().div_ceil(PANEL) {
                    let values = &mut block.scores[i * most * stride + panel * PANEL..];
                    let columns = keys.len() - panel * PANEL;
                    let out = Out { values, stride, first: part == 0, columns };
                    let b = packed.block(keys.start / PANEL + panel, part * k_block, depth);
                    block.kernel.run(queries.len() / STRIDE, queries, b, depth, out);
                }
            }
        }
    }

    /// Converts query `i`'s scores of `keys` keys to weights. The mask keeps the first `seen` of them.
    fn weigh(&self, i: usize, seen: usize, keys: usize, block: &mut Block<'_>) {
        let scale = self.form.scale;
        // Whole lanes: a score of minus infinity changes no maximum, and its weight is 0.
        let lanes = seen.next_multiple_of(LANES);
        let scores = &mut block.scores[i * (block.kernel.k_block() + TILE_GAP)..][..lanes];
        scores[seen..].fill(f32::NEG_INFINITY);
        let (maximum, sum) = (&mut block.maxima[i], &mut block.sums[i]);
        let before = *maximum;
        raise(scores, maximum);
        if *maximum > before && *sum > 0.0 {
            let factor = exp2_of_negative::<f32, Plain>(scale * (before - *maximum));
            *sum *= factor;
            block.results[i * self.width..][..self.width].iter_mut().for_each(|result| *result *= factor);
        }
        let words = &mut block.weights[i * STRIDE..][..STRIDE];
        block.kernel.fill(keys.next_multiple_of(LANES), &mut Vec::new(), words, |weights| {
            weights[lanes..].fill(W::ZERO);
            exponentials(scores, scale, *maximum, &mut weights[..lanes], sum);
        });
    }

    /// Adds the values of some keys, weighted.
    fn add_values(&self, keys: Range<usize>, block: &mut Block<'_>) {
        let packed = Panels::new(&self.values, self.t, self.head_dim);
        let most = block.kernel.rows();
        for (i, weights) in block.weights.chunks(most * STRIDE).enumerate() {
            for panel in 0..self.width / PANEL {
                let values = &mut block.results[i * most * self.width + panel * PANEL..];
                let columns = self.head_dim - panel * PANEL;
                let out = Out { values, stride: self.width, first: false, columns };
                let b = packed.block(panel, keys.start, keys.len());
                block.kernel.run(weights.len() / STRIDE, weights, b, keys.len(), out);
            }
        }
    }
}

for_every_isa! {
    fn add_bias<T: Element>(scores: &mut [f32], bias: &[T], factor: f32) {
        scores.iter_mut().zip(bias).for_each(|(score, bias)| *score += factor * bias.to_f32());
    }
}

for_every_isa! {
    /// The maximum of some scores, whole lanes, and `maximum`.
    fn raise(scores: &[f32], maximum: &mut f32) {
        let [mut even, mut odd] = [[*maximum; LANES]; 2];
        let (pairs, rest) = scores.as_chunks::<{ 2 * LANES }>();
        for scores in pairs {
            let (first, second) = scores.split_at(LANES);
            even.iter_mut().zip(first).for_each(|(max, score)| *max = larger(*max, *score));
            odd.iter_mut().zip(second).for_each(|(max, score)| *max = larger(*max, *score));
        }
        for scores in rest.as_chunks::<LANES>().0 {
            even.iter_mut().zip(scores).for_each(|(max, score)| *max = larger(*max, *score));
        }
        even.iter_mut().zip(odd).for_each(|(max, other)| *max = larger(*max, other));
        *maximum = largest(&even);
    }
}

/// The larger of two numbers, and `a` where `b` is none: one instruction.
#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if b > a { b } else { a }
}

/// The largest of all lanes, each compared with that of the other half, until one is left: a chain of all of them would take
/// as long as a loop over a block of keys. Not inlined: the compiler would cut the lanes of the loop before it into quarters.
#[inline(never)]
fn largest(lanes: &[f32; LANES]) -> f32 {
    let eight: [f32; 8] = std::array::from_fn(|i| larger(lanes[i], lanes[i + 8]));
    let four: [f32; 4] = std::array::from_fn(|i| larger(eight[i], eight[i + 4]));
    larger(larger(four[0], four[2]), larger(four[1], four[3]))
}

for_every_isa! {
    /// `2^(scale (score - maximum))` of every score, whole lanes. Adds them to `sum`, summed in lanes.
    fn exponentials<T: Element, R: Rounding>(
        scores: &[f32],
        scale: f32,
        maximum: f32,
        weights: &mut [T],
        sum: &mut f32,
    ) {
        let offset = -scale * maximum;
        let mut sums = [0f32; LANES];
        for (chunk, weights) in scores.as_chunks::<LANES>().0.iter().zip(weights.as_chunks_mut::<LANES>().0) {
            let mut lanes = *chunk;
            lanes.iter_mut().for_each(|lane| *lane = exp2_of_negative::<T, R>(R::mul_add(*lane, scale, offset)));
            sums.iter_mut().zip(&lanes).for_each(|(sum, lane)| *sum += lane);
            R::round(&lanes, weights);
        }
        // From the first to the last lane: another order would be shorter, but changes the bits of all results.
        *sum += sums.iter().sum::<f32>();
    }
}

for_every_isa! {
    /// The result of a query: the sum of weighted values divided by the sum of the weights.
    fn divide<T: Element>(results: &[f32], sum: f32, y: &mut [T]) {
        y.iter_mut().zip(results).for_each(|(y, value)| *y = T::from_f32(*value / sum));
    }
}
