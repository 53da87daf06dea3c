//! Rows of 8-bit integers with a factor, as ComfyUI's format `int8_tensorwise` has them: as they are, or rotated ("ConvRot").
//!
//! A rotation multiplies each group of neighboring input channels by an orthogonal, symmetric matrix: the Kronecker power of
//! the 4x4 matrix with -1 where the indices add up to 3 and 1 elsewhere, over the square root of its size
//! (`_build_hadamard` in comfy-kitchen's `int8_utils.py`). It is its own inverse. Sums of a group's integers are exact in 32
//! bits, and the square root is a power of two, so that an element is rounded once, by its row's factor.

/// The size of the groups of a row that are rotated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rotation {
    /// Rows are not rotated.
    None,
    /// Groups of 16.
    By16,
    /// Groups of 64.
    By64,
    /// Groups of 256.
    By256,
}

impl Rotation {
    /// The rotation of groups of this size. `None` if there is none.
    pub fn of(group: usize) -> Option<Self> {
        [Self::By16, Self::By64, Self::By256].into_iter().find(|rotation| rotation.group() == group)
    }

    /// The number of elements that are read together.
    pub fn group(self) -> usize {
        match self {
            Self::None => 1,
            Self::By16 => 16,
            Self::By64 => 64,
            Self::By256 => 256,
        }
    }
}

/// The largest group.
const MAX_GROUP: usize = 256;

/// Passes elements `start..start + count` of a row of integers, times its factor, to `put`, in parts.
pub(super) fn read(
    rotation: Rotation,
    factor: f32,
    numbers: &[u8],
    start: usize,
    count: usize,
    put: &mut impl FnMut(&[f32]),
) {
    let mut values = [0f32; MAX_GROUP];
    let Some(wanted) = numbers.get(start..start + count) else { return };
    if rotation == Rotation::None {
        for bytes in wanted.chunks(MAX_GROUP) {
            values.iter_mut().zip(bytes).for_each(|(value, &byte)| *value = f32::from(byte as i8) * factor);
            put(&values[..bytes.len()]);
        }
        return;
    }
    let size = rotation.group();
    let mut sums = [0i32; MAX_GROUP];
    let scale = 1.0 / (size as f32).sqrt(); // a power of two
    let (mut skipped, mut rest) = (start % size, count);
    for group in numbers.chunks_exact(size).skip(start / size) {
        if rest == 0 {
            break;
        }
        let sums = &mut sums[..size];
        sums.iter_mut().zip(group).for_each(|(sum, &byte)| *sum = i32::from(byte as i8));
        rotate(sums);
        values.iter_mut().zip(&*sums).for_each(|(value, &sum)| *value = sum as f32 * scale * factor);
        let taken = rest.min(size - skipped);
        put(&values[skipped..skipped + taken]);
        (rest, skipped) = (rest - taken, 0);
    }
}

/// Multiplies a group by its rotation without the square root: one step for each factor of 4.
fn rotate(group: &mut [i32]) {
    let mut stride = 1;
    while stride < group.len() {
        for block in group.chunks_exact_mut(4 * stride) {
            for i in 0..stride {
                let at = [i, i + stride, i + 2 * stride, i + 3 * stride];
                let [a, b, c, d] = at.map(|at| block[at]); // within a block of 4 strides
                let sum = a + b + c + d;
                // Row i has -1 in column 3 - i.
                for (at, other) in at.into_iter().zip([d, c, b, a]) {
                    block[at] = sum - 2 * other;
                }
            }
        }
        stride *= 4;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The matrix of a rotation without the square root: the Kronecker power of the 4x4 one.
    fn matrix(size: usize) -> Vec<Vec<i32>> {
        const FOUR: [[i32; 4]; 4] = [[1, 1, 1, -1], [1, 1, -1, 1], [1, -1, 1, 1], [-1, 1, 1, 1]];
        let mut matrix = vec![vec![1]];
        while matrix.len() < size {
            let rows = matrix.iter().flat_map(|row| FOUR.map(|four| (row, four)));
            matrix = rows.map(|(row, four)| row.iter().flat_map(|a| four.map(|b| a * b)).collect()).collect();
        }
        matrix
    }

    #[test]
    fn groups_are_multiplied_by_the_matrix() {
        let integers: Vec<u8> = (0..256u32).map(|i| (i * 167 % 255) as u8).collect();
        for rotation in [Rotation::By16, Rotation::By64, Rotation::By256] {
            let size = rotation.group();
            assert_eq!(Rotation::of(size), Some(rotation));
            let expected: Vec<f32> = integers
                .chunks(size)
                .flat_map(|group| {
                    matrix(size).into_iter().map(move |row| {
                        let sum: i32 = row.iter().zip(group).map(|(h, &byte)| h * i32::from(byte as i8)).sum();
                        sum as f32 / (size as f32).sqrt() * 0.3
                    })
                })
                .collect();
            for (start, count) in [(0, 256), (3, 200), (255, 1), (16, 0)] {
                let mut found = Vec::new();
                read(rotation, 0.3, &integers, start, count, &mut |part: &[f32]| found.extend_from_slice(part));
                assert_eq!(found, expected[start..start + count], "{size} from {start}");
            }
        }
        assert_eq!(Rotation::of(4), None);
    }

    #[test]
    fn a_rotation_is_its_own_inverse() {
        let mut group: Vec<i32> = (0..64).map(|i| i * i % 101 - 50).collect();
        let before = group.clone();
        rotate(&mut group);
        rotate(&mut group);
        assert!(group.iter().zip(before).all(|(twice, once)| *twice == 64 * once));
    }
}
