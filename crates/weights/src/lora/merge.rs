//! Merges patches into weights. All arithmetic is in f32; rotations are solved in f64.

use std::sync::Arc;

use candle_core::{CpuStorage, Device, Storage, Tensor};

use super::change::{Change, Matrix, Rotation};
use super::factor::Factor;
use super::targets::Network;
use crate::error::Result;
use crate::ldm::Piece;

/// The epsilon that is added to a norm before division: PyTorch's epsilon of f32, as in LyCORIS.
const NORM_EPS: f64 = f32::EPSILON as f64;

/// The stored change of one parameter. Its elements are read when the parameter is read.
pub struct Patch {
    pub(super) network: Network,
    /// The declared name of the parameter.
    pub(super) key: String,
    /// The piece of the change that is the parameter's: its rows in a fused matrix.
    pub(super) piece: Piece,
    pub(super) change: Change,
    /// The file's own scale: `alpha / rank`. For a rotation: the bound of its generator, or 0 for no bound.
    pub(super) scale: f64,
    pub(super) magnitude: Option<Magnitude>,
}

/// DoRA: the norms of the rows or columns of the changed weight.
pub(super) struct Magnitude {
    pub(super) values: Factor,
    /// Whether there is one norm for each column rather than for each row.
    pub(super) columns: bool,
}

impl Patch {
    /// The network.
    pub fn network(&self) -> Network {
        self.network
    }

    /// The parameter's declared name.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The number of elements of a bias that this patch creates.
    pub(super) fn elements(&self) -> usize {
        match &self.change {
            Change::Add(Matrix::Whole(factor)) => self.piece.rows(factor.elements()).map_or(0, |rows| rows.len()),
            _ => 0,
        }
    }

    /// The weight `(out, ..)` in f32 with this change, in its own shape. `strength` 0 yields the unchanged weight, 1
    /// the trained change.
    ///
    /// # Errors
    /// [`crate::Error::StoredDType`] if the file's factors are not numbers.
    pub fn merge(&self, weight: &Tensor, strength: f32) -> Result<Tensor> {
        let shape = weight.dims();
        let kernel: usize = shape.iter().skip(2).product();
        let out = shape.first().copied().unwrap_or(1);
        let flat = weight.reshape((out, ()))?; // (out, in * kh * kw)
        let strength = f64::from(strength);
        // If a magnitude follows, the strength is applied after it.
        let scale = if self.magnitude.is_some() { self.scale } else { self.scale * strength };
        let delta = match &self.change {
            Change::Add(matrix) => matrix.values(scale, self.piece)?,
            Change::Hadamard(first, second) => (first.values(scale, self.piece)? * second.values(1.0, self.piece)?)?,
            Change::Kronecker(first, second) => {
                let (first, second) = (first.values(scale, Piece::Whole)?, second.values(1.0, Piece::Whole)?);
                cut(kronecker(&first, &second)?, self.piece)?
            }
            Change::Rotate { rotation, rescale } => {
                let mut rotated = rotate(&flat, rotation, self.scale, strength)?;
                if let Some(rescale) = rescale {
                    rotated = rotated.broadcast_mul(&rescale.tensor()?.reshape((out, 1))?)?;
                }
                return Ok(rotated.reshape(shape)?);
            }
        };
        let changed = (&flat + delta.reshape(flat.dims())?)?;
        let merged = match &self.magnitude {
            None => changed,
            Some(magnitude) => (&flat + ((magnitude.apply(&changed, kernel, self.piece)? - &flat)? * strength)?)?,
        };
        Ok(merged.reshape(shape)?)
    }
}

impl Magnitude {
    /// `weight` `(out, in * kernel)` with these norms, or with those of its rows.
    fn apply(&self, weight: &Tensor, kernel: usize, piece: Piece) -> Result<Tensor> {
        let (out, rest) = weight.dims2()?;
        let shape = (out, rest / kernel.max(1), kernel.max(1));
        let weight = weight.reshape(shape)?; // (out, in, kernel)
        let (over, norms) = if self.columns { ([0, 2], (1, shape.1, 1)) } else { ([1, 2], (out, 1, 1)) };
        let norm = (weight.sqr()?.sum_keepdim(over.as_slice())?.sqrt()? + NORM_EPS)?;
        let values = self.values.tensor()?.flatten_all()?;
        let values = if self.columns { values } else { cut(values, piece)? };
        let scale = values.reshape(norms)?.div(&norm)?;
        Ok(weight.broadcast_mul(&scale)?.reshape((out, rest))?)
    }
}

impl Matrix {
    /// The piece `(rows, columns)`, times `scale`. The scale is applied to the first factor, which is the smallest.
    fn values(&self, scale: f64, piece: Piece) -> Result<Tensor> {
        match self {
            Self::Whole(factor) => Ok((cut(factor.matrix()?, piece)? * scale)?),
            Self::Product { a, b } => Ok((cut(a.matrix()?, piece)? * scale)?.matmul(&b.matrix()?)?),
            Self::Tucker { a, core, b, transposed } => {
                let a = (a.matrix()? * scale)?;
                let a = if *transposed { a.t()?.contiguous()? } else { a }; // (rows, p)
                let (rows, q) = (a.dim(0)?, b.dims().0);
                let wide = a.matmul(&core.matrix()?)?.reshape((rows, q, ()))?; // (rows, q, kernel)
                let wide = wide.transpose(1, 2)?.contiguous()?.reshape(((), q))?; // (rows * kernel, q)
                let all = wide.matmul(&b.matrix()?)?; // (rows * kernel, columns)
                let all = all.reshape((rows, (), b.dims().1))?.transpose(1, 2)?; // (rows, columns, kernel)
                cut(all.contiguous()?.reshape((rows, ()))?, piece)
            }
        }
    }
}

/// The rows of a change `(rows, ..)` that a piece has, in the order of the declared matrix.
fn cut(change: Tensor, piece: Piece) -> Result<Tensor> {
    let rows = change.dim(0)?;
    let part = |from: usize, to: usize| change.narrow(0, from, to - from);
    match (piece, piece.rows(rows)) {
        (Piece::Rows { .. }, Some(range)) => Ok(part(range.start, range.end)?.contiguous()?),
        (Piece::Exchanged, _) => Ok(Tensor::cat(&[part(rows / 2, rows)?, part(0, rows / 2)?], 0)?),
        _ => Ok(change),
    }
}

/// `first` `(a, c)` and `second` `(b, d * kernel)` to `(a * b, c * d * kernel)`.
fn kronecker(first: &Tensor, second: &Tensor) -> Result<Tensor> {
    let ((a, c), (b, columns)) = (first.dims2()?, second.dims2()?);
    let first = first.reshape((a, 1, c, 1))?;
    let second = second.reshape((1, b, 1, columns))?;
    let product = first.broadcast_mul(&second)?; // (a, b, c, d * kernel)
    Ok(product.reshape((a * b, c * columns))?)
}

/// The rows of `weight` `(out, columns)`, rotated in blocks. `bound` limits the norm of the rotations' generators.
fn rotate(weight: &Tensor, rotation: &Rotation, bound: f64, strength: f64) -> Result<Tensor> {
    let (out, columns) = weight.dims2()?;
    match rotation {
        Rotation::Matrices(factor) | Rotation::Cayley(factor) => {
            let [blocks, n, _] = *factor.shape() else { return Ok(weight.clone()) };
            let mut values = factor.values()?;
            if matches!(rotation, Rotation::Cayley(_)) {
                cayley(&mut values, n, bound * out as f64);
            }
            towards_identity(&mut values, n, strength);
            let rotations = Tensor::from_vec(values, (blocks, n, n), &Device::Cpu)?;
            let rows = weight.reshape((blocks, n, columns))?;
            let rotated = rotations.transpose(1, 2)?.contiguous()?.matmul(&rows)?; // (blocks, n, columns)
            Ok(rotated.reshape((out, columns))?)
        }
        Rotation::Butterfly(factor) => {
            let [stages, blocks, n, _] = *factor.shape() else { return Ok(weight.clone()) };
            let mut values = factor.values()?;
            cayley(&mut values, n, bound * out as f64);
            towards_identity(&mut values, n, strength);
            let rotations = Tensor::from_vec(values, (stages, blocks, n, n), &Device::Cpu)?;
            let mut rows = weight.clone();
            for stage in 0..stages {
                // Two rows at a distance of `far` become neighbors, and move back afterwards.
                let far = (1 << stage) * (n / 2);
                let neighbors = rows.reshape(((), 2, far, columns))?.transpose(1, 2)?.contiguous()?;
                let turned = rotations.get(stage)?.matmul(&neighbors.reshape((blocks, n, columns))?)?;
                let apart = turned.reshape(((), far, 2, columns))?.transpose(1, 2)?.contiguous()?;
                rows = apart.reshape((out, columns))?;
            }
            Ok(rows)
        }
    }
}

/// Cayley's transform of the skew parts of matrices `(.., n, n)`: `R = (I - Q)^-1 (I + Q)` with `Q = B - B^T`, where
/// all `Q` together have a norm of at most `bound`, if that is more than 0.
fn cayley(blocks: &mut [f32], n: usize, bound: f64) {
    let skew: Vec<f64> = blocks
        .chunks_exact(n * n)
        .flat_map(|block| (0..n * n).map(move |at| f64::from(block[at]) - f64::from(block[at % n * n + at / n])))
        .collect();
    let norm = skew.iter().map(|value| value * value).sum::<f64>().sqrt();
    let factor = if bound > 0.0 && norm > bound { bound / norm } else { 1.0 };
    for (block, skew) in blocks.chunks_exact_mut(n * n).zip(skew.chunks_exact(n * n)) {
        let identity = |at: usize| if at / n == at % n { 1.0 } else { 0.0 };
        let mut left: Vec<f64> = skew.iter().enumerate().map(|(at, q)| identity(at) - q * factor).collect();
        let mut right: Vec<f64> = skew.iter().enumerate().map(|(at, q)| identity(at) + q * factor).collect();
        solve(&mut left, &mut right, n);
        for (value, solved) in block.iter_mut().zip(right) {
            *value = solved as f32;
        }
    }
}

/// Solves `left x = right` for matrices `(n, n)` by Gauss-Jordan elimination with pivots, and leaves `x` in `right`.
/// `left` is the identity minus a skew matrix, which is never singular.
fn solve(left: &mut [f64], right: &mut [f64], n: usize) {
    for column in 0..n {
        let size = |row: &usize| left[row * n + column].abs();
        let pivot = (column..n).max_by(|a, b| size(a).total_cmp(&size(b))).unwrap_or(column);
        for at in 0..n {
            left.swap(pivot * n + at, column * n + at);
            right.swap(pivot * n + at, column * n + at);
        }
        let inverse = 1.0 / left[column * n + column];
        for matrix in [&mut *left, &mut *right] {
            matrix[column * n..(column + 1) * n].iter_mut().for_each(|value| *value *= inverse);
        }
        for row in (0..n).filter(|&row| row != column) {
            let factor = left[row * n + column];
            for matrix in [&mut *left, &mut *right] {
                let (above, below) = matrix.split_at_mut(row.max(column) * n);
                let (low, high) = (row.min(column) * n, 0);
                let (low, high) = (&mut above[low..low + n], &mut below[high..high + n]);
                let (target, source) = if row < column { (low, high) } else { (high, low) };
                target.iter_mut().zip(source.iter()).for_each(|(target, source)| *target -= factor * source);
            }
        }
    }
}

/// Interpolates rotations `(.., n, n)`: `I + strength (R - I)`.
fn towards_identity(rotations: &mut [f32], n: usize, strength: f64) {
    let strength = strength as f32;
    for (at, value) in rotations.iter_mut().enumerate() {
        let identity = if at % (n * n) / n == at % n { 1.0 } else { 0.0 };
        *value = identity + strength * (*value - identity);
    }
}

fn merged(values: Vec<f32>, shape: &[usize], patches: &[(Arc<Patch>, f32)]) -> Result<Tensor> {
    let mut weight = Tensor::from_vec(values, shape, &Device::Cpu)?;
    for (patch, strength) in patches {
        weight = patch.merge(&weight, *strength)?;
    }
    Ok(weight.contiguous()?)
}

/// The elements of a parameter with patches merged in order.
pub(super) fn merge_values(values: Vec<f32>, shape: &[usize], patches: &[(Arc<Patch>, f32)]) -> Result<Vec<f32>> {
    Ok(merged(values, shape, patches)?.flatten_all()?.to_vec1()?)
}

/// [`merge_values`] as little-endian bytes.
pub(super) fn merge_all(values: Vec<f32>, shape: &[usize], patches: &[(Arc<Patch>, f32)]) -> Result<Vec<u8>> {
    let weight = merged(values, shape, patches)?;
    let (storage, layout) = weight.storage_and_layout();
    let values = match &*storage {
        Storage::Cpu(CpuStorage::F32(values)) => values.as_slice(),
        _ => &[],
    };
    let (start, end) = layout.contiguous_offsets().unwrap_or_default();
    let values = values.get(start..end).unwrap_or_default();
    let mut bytes = vec![0u8; size_of_val(values)];
    for (bytes, value) in bytes.as_chunks_mut().0.iter_mut().zip(values) {
        *bytes = value.to_le_bytes();
    }
    Ok(bytes)
}
