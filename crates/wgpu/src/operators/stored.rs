//! Stored matrices: a kernel writes their elements to memory that the product right after it reads.

use candle_core::DType;
use kiln_ops::portable::{PortableTensor, PortableWeight, Rows};
use kiln_ops::{BlockType, Error, MatrixType, Operand, Result, Rotation, WeightOperand};

use super::GROUP;
use crate::dispatch::{Dispatch, Numbers};
use crate::gpu::Gpu;
use crate::pipelines::Kernel;

/// Elements that a thread converts.
const FOUR: usize = 4;

/// The kernels of all types but rotated rows, and the parts that they have in common.
const KINDS: &str = concat!(
    include_str!("../kernels/stored_bytes.wgsl"),
    include_str!("../kernels/stored_rows.wgsl"),
    include_str!("../kernels/stored_blocks.wgsl"),
    include_str!("../kernels/stored_tables.wgsl")
);
const BYTES: &str = include_str!("../kernels/stored_bytes.wgsl");

/// Queues a product with the elements of a weight in the type `dtype`: its own tensor, or, of stored rows, memory that is used again
/// afterwards.
pub(super) fn with_elements(
    gpu: &Gpu,
    weight: &PortableWeight,
    dtype: DType,
    product: impl FnOnce(&PortableTensor) -> Result<()>,
) -> Result<()> {
    let Some(rows) = weight.stored_rows() else { return product(weight.tensor()) };
    let (shape, backend) = (weight.shape(), weight.tensor().backend());
    let count = shape.iter().product::<usize>().next_multiple_of(FOUR);
    gpu.with_scratch(count * dtype.size_in_bytes(), |memory| {
        let elements = PortableTensor::new(backend, memory, &shape, 0, dtype);
        write(gpu, weight, rows, &elements)?;
        product(&elements)
    })
}

/// Writes the elements of stored rows.
fn write(gpu: &Gpu, weight: &PortableWeight, rows: Rows, elements: &PortableTensor) -> Result<()> {
    let (Rows { kind, part, stride }, [n, _, _, k], tensor) = (rows, weight.shape(), weight.tensor());
    let (start, dtype) = (tensor.offset() * tensor.dtype().size_in_bytes(), elements.dtype());
    let row_bytes = kind.row_bytes(k).unwrap_or(0); // never 0: `Weight::rows` has checked it
    // Elements of 16 bits follow one another, so that all rows of one part are as good as one.
    let is_joined = !k.is_multiple_of(FOUR) && part == n;
    let (n, k) = if is_joined { (1, (n * k).next_multiple_of(FOUR)) } else { (n, k) };
    // No four of a row is read beyond the end of its buffer.
    if [k, stride].iter().any(|size| !size.is_multiple_of(FOUR)) || !start.is_multiple_of(2 * FOUR) {
        let message = format!(
            "rows of {k} elements in {kind}, from byte {start} on in parts of {stride}: expected multiples of 4, and of 8 bytes"
        );
        return Err(Error::Config { op: "linear", message });
    }
    let buffers = vec![gpu.buffer(tensor)?, gpu.buffer(elements)?];
    let addresses = [start, part, stride, row_bytes];
    if let MatrixType::Int8(rotation @ (Rotation::By16 | Rotation::By64 | Rotation::By256)) = kind {
        let tiles = k.div_ceil(GROUP);
        let kernel = Kernel::new("stored_rotated", include_str!("../kernels/stored_rotated.wgsl")).after(BYTES);
        let kernel = kernel.of("S", dtype).with("GROUP", rotation.group());
        let numbers = Numbers::default().all([n * tiles, tiles]).all(addresses).u32(k);
        return gpu.add(Dispatch::new(gpu, kernel, buffers, numbers)?.over(n * tiles * GROUP, GROUP));
    }
    let kernel = Kernel::new("stored", include_str!("../kernels/stored.wgsl")).after(KINDS);
    let kernel = kernel.of("S", dtype).with("TYPE", number(kind));
    let count = n * k / FOUR;
    let numbers = Numbers::default().all([count, k / FOUR]).all(addresses);
    gpu.add(Dispatch::new(gpu, kernel, buffers, numbers)?.over(count, GROUP))
}

/// The case of a type in stored.wgsl.
fn number(kind: MatrixType) -> usize {
    match kind {
        MatrixType::Blocks(BlockType::Q4_0) => 0,
        MatrixType::Blocks(BlockType::Q4_1) => 1,
        MatrixType::Blocks(BlockType::Q5_0) => 2,
        MatrixType::Blocks(BlockType::Q5_1) => 3,
        MatrixType::Blocks(BlockType::Q8_0) => 4,
        MatrixType::Blocks(BlockType::Q2_K) => 5,
        MatrixType::Blocks(BlockType::Q3_K) => 6,
        MatrixType::Blocks(BlockType::Q4_K) => 7,
        MatrixType::Blocks(BlockType::Q5_K) => 8,
        MatrixType::Blocks(BlockType::Q6_K) => 9,
        MatrixType::Blocks(BlockType::IQ4_NL) => 10,
        MatrixType::Blocks(BlockType::IQ4_XS) => 11,
        MatrixType::Blocks(BlockType::NF4) => 12,
        MatrixType::Blocks(BlockType::FP4) => 13,
        MatrixType::F8 => 14,
        MatrixType::F8E5M2 => 15,
        // Rotated rows have a kernel of their own.
        MatrixType::Int8(_) => 16,
        MatrixType::F16 => 17,
        MatrixType::Bf16 => 18,
    }
}
