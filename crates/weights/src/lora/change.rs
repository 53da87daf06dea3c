//! The forms in which files store the change of a weight, each computed from its factors.

use std::collections::HashMap;

use super::factor::Factor;
use super::role::Role;

/// A matrix `(rows, columns)` as stored. Dimensions after the second count as columns too.
pub(super) enum Matrix {
    /// The whole matrix.
    Whole(Factor),
    /// `a b`, of `(rows, rank)` and `(rank, columns)`.
    Product { a: Factor, b: Factor },
    /// `a core b`: `(rows, p)`, `(p, q, k..)` and `(q, columns)` make `(rows, columns, k..)`. LyCORIS stores the first
    /// transposed.
    Tucker { a: Factor, core: Factor, b: Factor, transposed: bool },
}

impl Matrix {
    /// The number of rows and columns. `None` if the factors do not match.
    pub(super) fn dims(&self) -> Option<(usize, usize)> {
        match self {
            Self::Whole(factor) => Some(factor.dims()),
            Self::Product { a, b } => (a.dims().1 == b.dims().0).then_some((a.dims().0, b.dims().1)),
            Self::Tucker { a, core, b, transposed } => {
                let (rows, p) = if *transposed { (a.dims().1, a.dims().0) } else { a.dims() };
                let [p_core, q, kernel @ ..] = core.shape() else { return None };
                let kernel: usize = kernel.iter().product();
                (p == *p_core && *q == b.dims().0).then_some((rows, b.dims().1.checked_mul(kernel)?))
            }
        }
    }

    /// The divisor of the factors' alpha. `None` if there is only one factor.
    fn rank(&self) -> Option<usize> {
        match self {
            Self::Whole(_) => None,
            Self::Product { b, .. } | Self::Tucker { b, .. } => Some(b.dims().0),
        }
    }
}

/// The change of a weight `(out, ..)`.
pub(super) enum Change {
    /// Adds a matrix.
    Add(Matrix),
    /// Adds the elementwise product of two matrices.
    Hadamard(Matrix, Matrix),
    /// Adds the Kronecker product of two matrices.
    Kronecker(Matrix, Matrix),
    /// Rotates the rows in blocks, then scales them.
    Rotate { rotation: Rotation, rescale: Option<Factor> },
}

/// Rotations of blocks of rows.
pub(super) enum Rotation {
    /// `(blocks, n, n)`, the rotation matrices.
    Matrices(Factor),
    /// `(blocks, n, n)`, whose skew parts generate the rotations: Cayley's transform.
    Cayley(Factor),
    /// `(stages, blocks, n, n)`, likewise, with the rows in another order in every stage.
    Butterfly(Factor),
}

impl Change {
    /// Removes the factors of one weight's change from the map. `None` if they do not make a known change.
    pub(super) fn take(factors: &mut HashMap<Role, Factor>) -> Option<Self> {
        let mut take = |role| factors.remove(&role);
        if let (Some(a), Some(b)) = (take(Role::Up), take(Role::Down)) {
            return Some(Self::Add(match take(Role::Mid) {
                Some(core) => Matrix::Tucker { a, core, b, transposed: false },
                None => Matrix::Product { a, b },
            }));
        }
        if let Some(factor) = take(Role::Diff) {
            return Some(Self::Add(Matrix::Whole(factor)));
        }
        let mut matrix = |whole: Option<Role>, a, b, core: Option<Role>| {
            if let Some(factor) = whole.and_then(&mut take) {
                return Some(Matrix::Whole(factor));
            }
            let (a, b) = (take(a)?, take(b)?);
            Some(match core.and_then(&mut take) {
                Some(core) => Matrix::Tucker { a, core, b, transposed: true },
                None => Matrix::Product { a, b },
            })
        };
        let first = matrix(None, Role::HadaW1a, Role::HadaW1b, Some(Role::HadaT1));
        if let (Some(first), Some(second)) = (first, matrix(None, Role::HadaW2a, Role::HadaW2b, Some(Role::HadaT2))) {
            return Some(Self::Hadamard(first, second));
        }
        let first = matrix(Some(Role::LokrW1), Role::LokrW1a, Role::LokrW1b, None);
        let second = matrix(Some(Role::LokrW2), Role::LokrW2a, Role::LokrW2b, Some(Role::LokrT2));
        if let (Some(first), Some(second)) = (first, second) {
            return Some(Self::Kronecker(first, second));
        }
        let rescale = take(Role::Rescale);
        let rotation = match (take(Role::OftBlocks), take(Role::OftDiag)) {
            (Some(blocks), _) if blocks.shape().len() == 4 => Rotation::Butterfly(blocks),
            (Some(blocks), _) => Rotation::Cayley(blocks),
            (None, blocks) => Rotation::Matrices(blocks?),
        };
        Some(Self::Rotate { rotation, rescale })
    }

    /// The rank that divides a change's alpha. `None` if the change is not scaled.
    pub(super) fn rank(&self) -> Option<usize> {
        match self {
            Self::Add(matrix) | Self::Hadamard(matrix, _) => matrix.rank(),
            Self::Kronecker(first, second) => first.rank().or_else(|| second.rank()),
            Self::Rotate { .. } => None,
        }
    }

    /// Whether the change fits a weight of this shape. The error is the shape that it fits, or `None` if its factors do
    /// not match each other.
    pub(super) fn check(&self, weight: &[usize]) -> Result<(), Option<Vec<usize>>> {
        let (out, rest) = (weight.first().copied().unwrap_or(1), weight.iter().skip(1).product());
        let same = |found: Option<(usize, usize)>| match found {
            Some(dims) if dims == (out, rest) => Ok(()),
            Some((rows, columns)) => Err(Some(vec![rows, columns])),
            None => Err(None),
        };
        match self {
            Self::Add(matrix) => same(matrix.dims()),
            Self::Hadamard(first, second) => same(first.dims()).and_then(|()| same(second.dims())),
            Self::Kronecker(first, second) => {
                let product = || {
                    let ((a, c), (b, d)) = (first.dims()?, second.dims()?);
                    Some((a.checked_mul(b)?, c.checked_mul(d)?))
                };
                let kernel: usize = weight.iter().skip(2).product();
                same(product())?;
                let columns = second.dims().map_or(0, |(_, columns)| columns);
                if columns.is_multiple_of(kernel) { Ok(()) } else { Err(None) }
            }
            Self::Rotate { rotation, rescale } => {
                if rescale.as_ref().is_some_and(|factor| factor.elements() != out) {
                    return Err(None);
                }
                match rotation {
                    Rotation::Matrices(factor) | Rotation::Cayley(factor) => match *factor.shape() {
                        [blocks, n, m] if n == m && n > 0 => rows(blocks, n, out),
                        _ => Err(None),
                    },
                    Rotation::Butterfly(factor) => match *factor.shape() {
                        [stages, blocks, n, m] if n == m && n > 0 && n.is_multiple_of(2) => {
                            rows(blocks, n, out)?;
                            // Stage i exchanges rows inside of groups of 2^i n.
                            let group = u32::try_from(stages).ok().filter(|&stages| stages > 0);
                            let group = group.and_then(|stages| 1usize.checked_shl(stages - 1)?.checked_mul(n));
                            if group.is_some_and(|group| out.is_multiple_of(group)) { Ok(()) } else { Err(None) }
                        }
                        _ => Err(None),
                    },
                }
            }
        }
    }
}

/// Whether the blocks of `n` rows cover all rows of a weight.
fn rows(blocks: usize, n: usize, out: usize) -> Result<(), Option<Vec<usize>>> {
    match blocks.checked_mul(n) {
        Some(rows) if rows == out => Ok(()),
        rows => Err(rows.map(|rows| vec![rows])),
    }
}
