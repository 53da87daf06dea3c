//! The compressed pixels of a PNG, from several threads.
//!
//! An image is cut into bands of rows. Each becomes a block of the zlib stream (RFC 1950, 1951), with the filters and the codes of the
//! whole image's stream. The file does not depend on the number of threads.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{available_parallelism, scope};

use crate::png_filter::RowFilter;

/// The approximate size of a band in bytes of pixels. One core of an AMD EPYC takes 0.5 ms for it (2026-11-29).
const BAND: usize = 192 << 10;
/// The most threads: an image is compressed in a few milliseconds.
const MOST_THREADS: usize = 8;
/// Bytes of the header of a zlib stream.
const HEADER: usize = 2;
/// Bytes of the checksum at the end of a zlib stream.
const CHECKSUM: usize = 4;
/// An empty stored block without its first three bits, which are 0. It ends at a byte.
const EMPTY_BLOCK: [u8; 4] = [0, 0, 0xff, 0xff];

/// A band's zlib stream.
struct Band {
    stream: Vec<u8>,
    /// Bytes before the compression.
    length: usize,
}

/// The zlib stream of an image's rows of `row` bytes, at least 1, filtered. A pixel has `UNIT` bytes.
pub(crate) fn deflate<const UNIT: usize>(pixels: &[u8], row: usize) -> io::Result<Vec<u8>> {
    let rows = pixels.len() / row;
    let rows_of_band = rows.div_ceil(pixels.len().div_ceil(BAND).max(1)).max(1);
    let bands = rows.div_ceil(rows_of_band);
    let next = AtomicUsize::new(0);
    let work = || -> io::Result<Vec<(usize, Band)>> {
        let (mut done, none) = (Vec::new(), vec![0; row]);
        loop {
            let band = next.fetch_add(1, Ordering::Relaxed);
            if band >= bands {
                return Ok(done);
            }
            let start = band * rows_of_band * row;
            let above = start.checked_sub(row).map_or(none.as_slice(), |above| &pixels[above..start]);
            let end = (start + rows_of_band * row).min(rows * row);
            done.push((band, Band::new::<UNIT>(&pixels[start..end], above)?));
        }
    };
    let threads = available_parallelism().map_or(1, usize::from).min(MOST_THREADS).min(bands);
    // Not rayon's global pool, whose threads a forked process does not have.
    let mut all = scope(|scope| {
        let spawn = |_| std::thread::Builder::new().spawn_scoped(scope, work).ok();
        let others: Vec<_> = (1..threads).map_while(spawn).collect();
        let mut all = work()?;
        for other in others {
            all.extend(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
        }
        Ok::<_, io::Error>(all)
    })?;
    all.sort_unstable_by_key(|(band, _)| *band);
    Ok(joined(&all.into_iter().map(|(_, band)| band).collect::<Vec<_>>()))
}

impl Band {
    /// Compresses rows. `above` is the row before them, zeros for the first one of an image.
    fn new<'a, const UNIT: usize>(pixels: &'a [u8], mut above: &'a [u8]) -> io::Result<Self> {
        let mut compressor = fdeflate::Compressor::new(Vec::with_capacity(pixels.len() / 2))?;
        let (mut filter, mut length) = (RowFilter::new(above.len()), 0);
        for row in pixels.chunks_exact(above.len()) {
            let filtered = filter.filter::<UNIT>(row, above);
            compressor.write_data(filtered)?;
            (above, length) = (row, length + filtered.len());
        }
        Ok(Self { stream: compressor.finish()?, length })
    }
}

/// One stream of the blocks of several streams, each of which has one block.
fn joined(bands: &[Band]) -> Vec<u8> {
    let Some(first) = bands.first() else { return Vec::new() };
    let mut joined = Vec::with_capacity(bands.iter().map(|band| band.stream.len() + EMPTY_BLOCK.len() + 1).sum());
    joined.extend_from_slice(&first.stream[..HEADER]);
    let mut sum = Adler32::EMPTY;
    for (i, band) in bands.iter().enumerate() {
        let (block, checksum) = band.stream.split_at(band.stream.len() - CHECKSUM);
        sum = sum.then(Adler32::of(checksum), band.length);
        let start = joined.len();
        joined.extend_from_slice(&block[HEADER..]);
        if i + 1 < bands.len() {
            joined[start] &= !1; // the bit that marks the last block
            // The code of a block's end ends with a 1, so that the zeros above it are free.
            if joined.last().is_some_and(|byte| byte.leading_zeros() < 3) {
                joined.push(0);
            }
            joined.extend_from_slice(&EMPTY_BLOCK);
        }
    }
    joined.extend_from_slice(&sum.to_bytes());
    joined
}

/// The checksum of a zlib stream (RFC 1950, section 8.2).
#[derive(Clone, Copy)]
struct Adler32 {
    /// 1 and the sum of the bytes.
    a: u32,
    /// The sum of `a` after each byte.
    b: u32,
}

impl Adler32 {
    const EMPTY: Self = Self { a: 1, b: 0 };
    const MODULUS: u32 = 65_521;

    /// The checksum at the end of a stream.
    fn of(bytes: &[u8]) -> Self {
        let sum = bytes.iter().fold(0u32, |sum, byte| sum << 8 | u32::from(*byte));
        Self { a: sum & 0xffff, b: sum >> 16 }
    }

    /// The checksum of the bytes of `self` and of `length` bytes after them, which have the checksum `next`.
    fn then(self, next: Self, length: usize) -> Self {
        let modulus = u64::from(Self::MODULUS);
        let before = u64::from(self.a) + modulus - 1; // the sum of the bytes before, in each of the following `a`
        let b = u64::from(self.b) + u64::from(next.b) + length as u64 % modulus * (before % modulus);
        Self { a: ((before + u64::from(next.a)) % modulus) as u32, b: (b % modulus) as u32 }
    }

    fn to_bytes(self) -> [u8; CHECKSUM] {
        (self.b << 16 | self.a).to_be_bytes()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    /// Pixels with gradients, noise and runs of zeros.
    fn pixels(bytes: usize) -> Vec<u8> {
        let mut state = 7u32;
        let mut next = |i: usize| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            match i / 5000 % 3 {
                0 => (i / 7) as u8,
                1 => (state >> 24) as u8,
                _ => 0,
            }
        };
        (0..bytes).map(&mut next).collect()
    }

    #[test]
    fn a_stream_of_blocks_has_the_bytes_of_one_block() {
        let inflated = |stream: &[u8]| {
            let mut bytes = Vec::new();
            // It compares the checksum.
            flate2::read::ZlibDecoder::new(stream).read_to_end(&mut bytes).unwrap();
            bytes
        };
        // The last block's end falls on each bit of a byte.
        for width in (1..40).chain([1024]) {
            let row = 3 * width;
            let rows = 3 * BAND / row + width;
            let pixels = pixels(rows * row);
            let one = Band::new::<3>(&pixels, &vec![0; row]).unwrap();
            let stream = deflate::<3>(&pixels, row).unwrap();
            assert_ne!(stream.len(), one.stream.len(), "there are several blocks");
            assert!(inflated(&stream) == inflated(&one.stream), "width {width}");
        }
        let small = pixels(BAND / 3 / 3 * 3);
        assert_eq!(deflate::<3>(&small, 3).unwrap(), Band::new::<3>(&small, &[0; 3]).unwrap().stream);
    }
}
