//! Attention.

use kiln_ops::portable::PortableTensor;
use kiln_ops::{AttentionOp, GroupedAttention, GroupedAttentionOp, MaskedAttentionOp, Operand, Result};

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
    let [q, k, v] = [Rows::of(q)?, Rows::of(k)?, Rows::of(v)?];
    let bias_image = match bias {
        Some(bias) if bias.dims().first() != Some(&1) => num_heads * s * t,
        _ => 0,
    };
    let (kernel, queries) = match gpu.is_software() && head_dim <= DIRECT_HEAD {
        true => (Kernel::new("attention_direct", include_str!("../kernels/attention_direct.wgsl")), DIRECT_QUERIES),
        false => {
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
    gpu.add(&Dispatch::new(gpu, kernel, buffers, numbers)?.groups([s.div_ceil(queries), num_heads, b]))
}
