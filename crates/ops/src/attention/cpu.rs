//! Attention on the processor: a task takes a block of an image's queries through all heads; only the scores of that
//! block and one head exist, and stay in the cache.

use candle_core::Tensor;
use rayon::prelude::*;

use super::{Attention, OP, Shapes};
use crate::cpu::{Matrix, View, matmul};
use crate::error::Result;
use crate::output::write_cpu;

/// Queries of a task: 64 rows of 4,096 scores are 1 MiB.
const BLOCK: usize = 64;

pub(super) fn forward(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    config: Attention,
    shapes: Shapes,
    out: Option<&Tensor>,
) -> Result<Tensor> {
    let Shapes { b, s, t, c, head_dim } = shapes;
    let (queries, keys, values) = (View::new(q)?, View::new(k)?, View::new(v)?);
    let scale = 1.0 / (head_dim as f32).sqrt();
    let image = |tokens: usize, i: usize| i * tokens * c..(i + 1) * tokens * c;
    write_cpu(OP, out, &[b, s, c], q.dtype(), &[q, k, v], |y| {
        for (i, y) in y.chunks_exact_mut((s * c).max(1)).enumerate() {
            let q = &queries[image(s, i)];
            let (k, v) = (&keys[image(t, i)], &values[image(t, i)]);
            y.par_chunks_mut(BLOCK * c).enumerate().for_each_init(Vec::new, |scores, (task, y)| {
                let rows = y.len() / c;
                let first = task * BLOCK;
                scores.resize(rows * t, 0f32);
                for head in 0..config.num_heads {
                    let start = head * head_dim;
                    let q = Matrix::rows(&q[first * c + start..], c);
                    let k = Matrix::rows(&k[start..], c).transposed();
                    matmul((rows, t, head_dim), scale, q, k, scores, t);
                    for (row, scores) in scores.chunks_exact_mut(t).enumerate() {
                        let visible = if config.causal { first + row + 1 } else { t };
                        softmax(scores, visible);
                    }
                    let v = Matrix::rows(&v[start..], c);
                    matmul((rows, head_dim, t), 1.0, Matrix::rows(scores, t), v, &mut y[start..], c);
                }
            });
        }
    })
}

/// The softmax of the first `visible` scores; the rest become 0.
fn softmax(scores: &mut [f32], visible: usize) {
    let (scores, hidden) = scores.split_at_mut(visible);
    hidden.fill(0.0);
    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0f32;
    for score in scores.iter_mut() {
        *score = (*score - max).exp();
        sum += *score;
    }
    let inverse = 1.0 / sum;
    scores.iter_mut().for_each(|score| *score *= inverse);
}
