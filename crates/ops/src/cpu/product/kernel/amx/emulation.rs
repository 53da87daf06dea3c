//! Tile registers as arrays, for tests on CPUs without AMX: the same instructions in the same order, with the configuration
//! decoded as a CPU does.

use super::{Config, PANEL_ROW, Shape, Steps, TILE, WORD};

/// A register's rows, as words.
type Tile = [[u32; TILE]; TILE];

/// Rows and words of a row of a configured register.
fn size(config: &Config, register: usize) -> (usize, usize) {
    let (rows, bytes) = (usize::from(config.rows[register]), usize::from(config.row_bytes[register]));
    assert!(config.palette == 1 && config.start_row == 0 && config.reserved == [0; 14]);
    assert!(
        (1..=16).contains(&rows) && (WORD..=64).contains(&bytes) && bytes.is_multiple_of(WORD),
        "register {register}"
    );
    (rows, bytes / WORD)
}

/// `tileloadd`.
///
/// # Safety
/// The register's rows are valid at `from`.
unsafe fn load(config: &Config, register: usize, from: *const u8, stride: usize) -> Tile {
    let (rows, words) = size(config, register);
    let mut tile = [[0; TILE]; TILE];
    for (i, row) in tile.iter_mut().take(rows).enumerate() {
        for (j, word) in row.iter_mut().take(words).enumerate() {
            // SAFETY: by the contract.
            *word = unsafe { from.add(i * stride + j * WORD).cast::<u32>().read_unaligned() };
        }
    }
    tile
}

/// `tilestored`.
///
/// # Safety
/// The register's rows are valid at `to`.
unsafe fn store(config: &Config, register: usize, to: *mut u8, stride: usize, tile: &Tile) {
    let (rows, words) = size(config, register);
    for (i, row) in tile.iter().take(rows).enumerate() {
        for (j, word) in row.iter().take(words).enumerate() {
            // SAFETY: by the contract.
            unsafe { to.add(i * stride + j * WORD).cast::<u32>().write_unaligned(*word) };
        }
    }
}

/// `tdpbf16ps`: even and odd elements apart, then both added to the result.
fn multiply_tiles(config: &Config, [c, a, b]: [usize; 3], sums: &mut Tile, left: &Tile, right: &Tile) {
    let [(rows, columns), (a_rows, words), (b_rows, b_columns)] = [c, a, b].map(|register| size(config, register));
    assert!(a_rows == rows && b_rows == words && b_columns == columns, "sizes do not fit together");
    let halves = |word: u32| [word << 16, word & 0xffff_0000].map(f32::from_bits);
    for i in 0..rows {
        for j in 0..columns {
            let mut terms = [0f32; 2];
            for p in 0..words {
                let (a, b) = (halves(left[i][p]), halves(right[p][j]));
                terms = [a[0].mul_add(b[0], terms[0]), a[1].mul_add(b[1], terms[1])];
            }
            sums[i][j] = (f32::from_bits(sums[i][j]) + (terms[0] + terms[1])).to_bits();
        }
    }
}

/// `tdpbusd`: unsigned bytes times signed bytes, summed modulo 2^32.
fn multiply_bytes_of_tiles(config: &Config, [c, a, b]: [usize; 3], sums: &mut Tile, left: &Tile, right: &Tile) {
    let [(rows, columns), (a_rows, words), (b_rows, b_columns)] = [c, a, b].map(|register| size(config, register));
    assert!(a_rows == rows && b_rows == words && b_columns == columns, "sizes do not fit together");
    for i in 0..rows {
        for j in 0..columns {
            for p in 0..words {
                for (a, b) in left[i][p].to_le_bytes().into_iter().zip(right[p][j].to_le_bytes()) {
                    let product = i32::from(a) * i32::from(b.cast_signed());
                    sums[i][j] = sums[i][j].wrapping_add(product.cast_unsigned());
                }
            }
        }
    }
}

/// See [`super::Multiply`].
///
/// # Safety
/// See there.
pub(super) unsafe fn multiply(shape: Shape, steps: &Steps) {
    // SAFETY: the same contract.
    unsafe { multiply_by(multiply_tiles, shape, steps) }
}

/// Multiplies bytes.
///
/// # Safety
/// See [`super::Multiply`].
pub(super) unsafe fn multiply_bytes(shape: Shape, steps: &Steps) {
    // SAFETY: the same contract.
    unsafe { multiply_by(multiply_bytes_of_tiles, shape, steps) }
}

/// Computes some steps with an instruction.
///
/// # Safety
/// See [`super::Multiply`].
unsafe fn multiply_by(
    multiply_tiles: impl Fn(&Config, [usize; 3], &mut Tile, &Tile, &Tile),
    shape: Shape,
    steps: &Steps,
) {
    let config = Config::new(shape);
    let lower_rows = if shape.rows > TILE { 2 } else { 1 };
    let halves = if steps.whole { 2 } else { 1 };
    // SAFETY: the same addresses as in the registers' loop, which are valid by the contract.
    unsafe {
        for lower in 0..lower_rows {
            for half in 0..halves {
                let c = 2 * lower + half;
                let out = steps.out.add(lower * TILE * steps.out_stride + half * 64);
                let mut sums = if steps.first { [[0; TILE]; TILE] } else { load(&config, c, out, steps.out_stride) };
                for step in 0..steps.count {
                    let a = steps.a.add(lower * TILE * steps.a_stride + step * shape.words * WORD);
                    let a = load(&config, 4 + lower, a, steps.a_stride);
                    let b = steps.b.add(step * shape.words * PANEL_ROW + half * 64);
                    let b = load(&config, 6 + half, b, PANEL_ROW);
                    multiply_tiles(&config, [c, 4 + lower, 6 + half], &mut sums, &a, &b);
                }
                store(&config, c, out, steps.out_stride, &sums);
            }
        }
    }
}
