//! Attention.

mod wide;

use candle_core::DType;
use kiln_ops::portable::PortableTensor;
use kiln_ops::{AttentionOp, GroupedAttention, GroupedAttentionOp, MaskedAttentionOp, Operand, Result};

use crate::adapter::Matrices;
use crate::dispatch::{Dispatch, Numbers};
use crate::gpu::Gpu;
use crate::pipelines::Kernel;
use crate::view::Rows;

/// Queries of a workgroup, and threads of a query.
const QUERIES: usize = 16;
const THREADS: usize = 8;
/// Queries of a workgroup on devices that compute on the CPU.
const DIRECT_QUERIES: usize = 64;
/// The largest head there: its drivers unroll loops over channels, and compile for minutes if there are more.
const DIRECT_HEAD: usize = 80;

/// The keys that queries attend to.
enum Limits<'a> {
    All,
    /// The number of keys of each image.
    Lengths(&'a PortableTensor),
    /// 1 for the keys that are seen, `(b, t)`.
    Seen(&'a PortableTensor),
}

pub(super) fn plain(gpu: &Gpu, op: &AttentionOp<'_, PortableTensor>, y: &PortableTensor) -> Result<()> {
    let config = heads(op.config.num_heads, op.config.causal);
    run(gpu, [op.q, op.k, op.v], None, Limits::All, config, y)
}

pub(super) fn masked(gpu: &Gpu, op: &MaskedAttentionOp<'_, PortableTensor>, y: &PortableTensor) -> Result<()> {
    let config = heads(op.config.num_heads, op.config.causal);
    run(gpu, [op.q, op.k, op.v], None, Limits::Seen(&op.seen.contiguous()?), config, y)
}

pub(super) fn grouped(gpu: &Gpu, op: &GroupedAttentionOp<'_, PortableTensor>, y: &PortableTensor) -> Result<()> {
    let bias = op.bias.map(PortableTensor::contiguous).transpose()?;
    let lengths = op.lengths.map(PortableTensor::contiguous).transpose()?;
    let limits = lengths.as_ref().map_or(Limits::All, Limits::Lengths);
    run(gpu, [op.q, op.k, op.v], bias.as_ref(), limits, op.config, y)
}

fn heads(num_heads: usize, causal: bool) -> GroupedAttention {
    GroupedAttention { num_heads, num_kv_heads: num_heads, causal, scale: None }
}

fn run(
    gpu: &Gpu,
    [q, k, v]: [&PortableTensor; 3],
    bias: Option<&PortableTensor>,
    limits: Limits<'_>,
    config: GroupedAttention,
    y: &PortableTensor,
) -> Result<()> {
    let GroupedAttention { num_heads, num_kv_heads, causal, scale } = config;
    let (&[b, s, c], &[_, t, _]) = (q.dims(), k.dims()) else {
        let (expected, found) = ("(b, s, c)".into(), q.dims().to_vec());
        return Err(kiln_ops::Error::Shape { op: "attention", operand: "q", expected, found });
    };
    let head_dim = c / num_heads.max(1);
    let scale = scale.unwrap_or(1.0 / (head_dim as f64).sqrt());
    let is_plain = bias.is_none() && !causal && matches!(limits, Limits::All);
    if is_plain && head_dim > WIDEST && num_heads == num_kv_heads && !gpu.is_software() {
        return wide::attention(gpu, [q, k, v], [b, s, t], ([num_heads, head_dim], scale), y);
    }
    let [q, k, v] = [Rows::of(q)?, Rows::of(k)?, Rows::of(v)?];
    let bias_image = match bias {
        Some(bias) if bias.dims().first() != Some(&1) => num_heads * s * t,
        _ => 0,
    };
    let is_aligned = [&q, &k, &v]
        .iter()
        .flat_map(|rows| [rows.tensor.offset(), rows.row, rows.image])
        .chain([head_dim, y.offset()])
        .all(|size| size % 8 == 0);
    let is_known = y.dtype() == DType::F16 && is_aligned && !matches!(limits, Limits::Seen(_));
    let blocks = Blocks::of(gpu, head_dim).filter(|_| is_known);
    let (kernel, queries) = match blocks {
        Some(blocks) => (blocks.kernel(), blocks.queries),
        None if gpu.is_software() && head_dim <= DIRECT_HEAD => {
            (Kernel::new("attention_direct", include_str!("../kernels/attention_direct.wgsl")), DIRECT_QUERIES)
        }
        None => {
            let kernel = Kernel::new("attention", include_str!("../kernels/attention.wgsl"));
            (kernel.with("PART", head_dim.div_ceil(THREADS)), QUERIES)
        }
    };
    let kernel = kernel.after(include_str!("../kernels/attention_common.wgsl"));
    let kernel = kernel.of("S", y.dtype()).with("HEAD", head_dim);
    let kernel = kernel.when("CAUSAL", causal).when("HAS_BIAS", bias.is_some());
    let kernel = kernel.when("HAS_LENGTHS", matches!(limits, Limits::Lengths(_)));
    let kernel = kernel.when("HAS_SEEN", matches!(limits, Limits::Seen(_)));
    let (of_bias, at_bias) = gpu.optional(bias)?;
    let (of_limits, at_limits) = gpu.optional(match limits {
        Limits::All => None,
        Limits::Lengths(limits) | Limits::Seen(limits) => Some(limits),
    })?;
    let mut numbers = Numbers::default().all([s, t, num_heads, num_heads / num_kv_heads.max(1)]);
    for rows in [&q, &k, &v] {
        numbers = numbers.all([rows.tensor.offset(), rows.row, rows.image]);
    }
    let numbers = numbers.all([at_bias, bias_image, at_limits, y.offset()]).f32(scale);
    let [of_q, of_k, of_v] = [&q, &k, &v].map(|rows| gpu.buffer(&rows.tensor));
    let buffers = vec![of_q?, of_k?, of_v?, of_bias, of_limits, gpu.buffer(y)?];
    let flop = 4.0 * b as f64 * s as f64 * t as f64 * c as f64;
    gpu.add(Dispatch::new(gpu, kernel, buffers, numbers)?.blocks([s.div_ceil(queries), num_heads, b], flop))
}

/// The widest heads whose queries and results stay in registers, with matrices.
const WIDEST: usize = 192;

/// The queries of a workgroup, and the keys that it takes at a time, in the kernel with cooperative matrices.
#[derive(Debug, Clone, Copy)]
struct Blocks {
    queries: usize,
    keys: usize,
    /// Channels of a head, with padding.
    wide: usize,
    matrices: Matrices,
}

impl Blocks {
    /// The largest blocks for which a workgroup has memory; `None` if there are none, or the GPU has no matrices.
    fn of(gpu: &Gpu, head_dim: usize) -> Option<Self> {
        let matrices = gpu.matrices()?;
        let mut blocks = Self::all(matrices, head_dim).filter(|blocks| blocks.wide <= WIDEST);
        blocks.find(|blocks| blocks.memory() <= gpu.workgroup_memory() && blocks.threads() <= gpu.workgroup_threads())
    }

    /// All blocks for a head, the largest ones first.
    fn all(matrices: Matrices, head_dim: usize) -> impl Iterator<Item = Self> {
        let wide = head_dim.next_multiple_of(matrices.side);
        [8, 4, 2].into_iter().map(move |count| Self { queries: count * matrices.side, keys: 32, wide, matrices })
    }

    /// Bytes of workgroup memory: keys, values and weights in f16, and scores in f32, in rows with padding.
    fn memory(&self) -> usize {
        2 * self.keys * (self.wide + 8) * 2 + self.queries * (self.keys + 8) * (2 + 4) + 16
    }

    /// Threads of a workgroup: a subgroup for each row of matrices.
    fn threads(&self) -> usize {
        self.queries * self.matrices.lanes / self.matrices.side
    }

    /// The kernel with the constants of these blocks.
    fn kernel(&self) -> Kernel {
        let Matrices { side, lanes } = self.matrices;
        let threads = self.threads();
        Kernel::new("attention_matrix", include_str!("../kernels/attention_matrix.wgsl"))
            .with_matrices(side)
            .with("LANES", lanes)
            .with("QUERIES", self.queries)
            .with("KEYS", self.keys)
            .with("WIDE", self.wide)
            .with("MATRICES_OF_HEAD", self.wide / side)
            .with("MATRICES_OF_KEYS", self.keys / side)
            .with("PARTS", self.wide.div_ceil(self.keys))
            .with("LOADS", (self.keys * self.wide / 8).div_ceil(threads))
            .with("VECTORS", self.keys / 4 * side / lanes)
    }
}

/// The kernels with these matrices.
#[cfg(test)]
pub(super) fn matrix_kernels(matrices: Matrices) -> Vec<Kernel> {
    let heads = [40, 128];
    let blocks = heads.iter().flat_map(|&head| Blocks::all(matrices, head).map(move |blocks| (head, blocks)));
    blocks.map(|(head, blocks)| blocks.kernel().with("HEAD", head)).collect()
}
