//! Attention on the processor. Keys and values of a head are packed once; a task then takes a block of queries: their
//! scores exist for that block alone, in the cache.

use candle_core::Tensor;
use rayon::prelude::*;

use super::{Attention, OP, Shapes};
use crate::cpu::math::{exp, for_every_isa};
use crate::cpu::product::{Multiplier, Panels, ROWS, pack, packed_len};
use crate::cpu::{Element, Shared, View};
use crate::error::Result;
use crate::output::write;

/// Queries of a task: 28 rows of 4,096 scores are 448 KiB.
const BLOCK: usize = 2 * ROWS;

pub(super) fn forward(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    config: Attention,
    shapes: Shapes,
    out: Option<&Tensor>,
) -> Result<Tensor> {
    dispatch!(OP, "q", q.dtype(), typed(q, k, v, config, shapes, out))
}

fn typed<T: Element>(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    config: Attention,
    shapes: Shapes,
    out: Option<&Tensor>,
) -> Result<Tensor> {
    let Shapes { b, s, t, c, head_dim } = shapes;
    let (queries, keys, values) = (View::<T>::new(q)?, View::<T>::new(k)?, View::<T>::new(v)?);
    let heads: Vec<Head<T>> = (0..b * config.num_heads)
        .into_par_iter()
        .map(|i| {
            let start = i / config.num_heads * t * c + i % config.num_heads * head_dim;
            Head::new(&keys[start.min(keys.len())..], &values[start.min(values.len())..], shapes)
        })
        .collect();
    let blocks = s.div_ceil(BLOCK);
    write::<T>(OP, out, &[b, s, c], &[q, k, v], |y| {
        let y = Shared::new(y);
        (0..heads.len() * blocks).into_par_iter().for_each_init(Scratch::default, |scratch, task| {
            let (i, first) = (task / blocks, task % blocks * BLOCK);
            let rows = first..(first + BLOCK).min(s);
            let start = i / config.num_heads * s * c + i % config.num_heads * head_dim;
            let query = |row: usize, from: usize, out: &mut [T]| {
                out.copy_from_slice(&queries[start + row * c + from..][..out.len()]);
            };
            heads[i].attend(rows, config.causal, shapes, query, scratch, |row, values| {
                let place = start + row * c..start + row * c + head_dim;
                // SAFETY: every row and head belongs to one task.
                #[allow(unsafe_code)]
                let y = unsafe { y.part(place) };
                y.iter_mut().zip(values).for_each(|(y, value)| *y = T::from_f32(*value));
            });
        });
    })
}

/// Keys and values of one head of one image, packed: `(head_dim, t)` and `(t, head_dim)`.
struct Head<T> {
    keys: Vec<T>,
    values: Vec<T>,
}

/// A task's buffers.
struct Scratch<T> {
    scores: Multiplier<T>,
    result: Multiplier<T>,
    /// The exponentials of a block's scores, `(rows, t)`.
    weights: Vec<f32>,
}

impl<T: Element> Default for Scratch<T> {
    fn default() -> Self {
        Self { scores: Multiplier::default(), result: Multiplier::default(), weights: Vec::new() }
    }
}

impl<T: Element> Head<T> {
    /// `keys` and `values` begin at the head's first channel of the image's first token; tokens lie `c` apart.
    fn new(keys: &[T], values: &[T], Shapes { t, c, head_dim, .. }: Shapes) -> Self {
        let packed = |k: usize, n: usize, value: &dyn Fn(usize, usize) -> T| {
            let mut packed = vec![T::ZERO; packed_len(k, n)];
            pack(k, n, T::PAIRED, value, &mut packed);
            packed
        };
        Self {
            keys: packed(head_dim, t, &|channel, token| keys[token * c + channel]),
            values: packed(t, head_dim, &|token, channel| values[token * c + channel]),
        }
    }

    /// Attends from the queries `rows`; `query` gathers them, `finish` gets each row's `head_dim` results.
    fn attend(
        &self,
        rows: std::ops::Range<usize>,
        causal: bool,
        Shapes { t, head_dim, .. }: Shapes,
        query: impl Fn(usize, usize, &mut [T]),
        scratch: &mut Scratch<T>,
        finish: impl Fn(usize, &[f32]),
    ) {
        let scale = 1.0 / (head_dim as f32).sqrt();
        let scores = scratch.scores.multiply(Panels::new(&self.keys, head_dim, t), rows.clone(), 0..t, &query);
        scratch.weights.resize(rows.len() * t, 0.0);
        let mut sums = [0f32; BLOCK];
        for ((row, weights), sum) in rows.clone().zip(scratch.weights.chunks_exact_mut(t.max(1))).zip(&mut sums) {
            let visible = if causal { row + 1 } else { t };
            exponentials(&scores.row(row)[..visible], scale, &mut weights[..visible], sum);
            weights[visible..].fill(0.0);
        }
        let weights = &scratch.weights;
        let weight = |row: usize, from: usize, out: &mut [T]| {
            let weights = &weights[(row - rows.start) * t + from..];
            out.iter_mut().zip(weights).for_each(|(out, weight)| *out = T::from_f32(*weight));
        };
        let values = Panels::new(&self.values, t, head_dim);
        let result = scratch.result.multiply(values, rows.clone(), 0..head_dim, &weight);
        let mut normal = vec![0f32; head_dim];
        for (row, sum) in rows.clone().zip(sums) {
            normal.iter_mut().zip(result.row(row)).for_each(|(normal, value)| *normal = value / sum);
            finish(row, &normal);
        }
    }
}

for_every_isa! {
    /// `exp(scale (score - max))` of every score, and their sum, added up in sixteen columns.
    fn exponentials(scores: &[f32], scale: f32, weights: &mut [f32], sum: &mut f32) {
        const COLUMNS: usize = 16;
        let mut maxima = [f32::NEG_INFINITY; COLUMNS];
        let (chunks, rest) = scores.as_chunks::<COLUMNS>();
        for chunk in chunks {
            maxima.iter_mut().zip(chunk).for_each(|(max, score)| *max = if *score > *max { *score } else { *max });
        }
        let max = maxima.iter().chain(rest).copied().fold(f32::NEG_INFINITY, f32::max);
        let mut sums = [0f32; COLUMNS];
        let (weight_chunks, weight_rest) = weights.as_chunks_mut::<COLUMNS>();
        for (chunk, weights) in chunks.iter().zip(weight_chunks) {
            for ((score, weight), sum) in chunk.iter().zip(weights).zip(&mut sums) {
                *weight = exp(scale * (*score - max));
                *sum += *weight;
            }
        }
        for ((score, weight), sum) in rest.iter().zip(weight_rest).zip(&mut sums) {
            *weight = exp(scale * (*score - max));
            *sum += *weight;
        }
        *sum = sums.iter().sum();
    }
}
