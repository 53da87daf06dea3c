//! Whether a JPEG file is complete. The decoder fills missing parts of a truncated file with gray.

/// Whether the markers of `data` reach the end of image (ITU T.81, annex B). The decoder detects damage before it.
pub(crate) fn reaches_its_end(data: &[u8]) -> bool {
    let mut rest = data.get(2..).unwrap_or_default(); // after the start of image
    loop {
        // The next marker: 0xff followed by anything except a stuffed zero, a fill byte or a restart (which occur in
        // compressed data).
        let is_marker =
            |pair: &[u8]| matches!(pair, &[0xff, code] if !matches!(code, 0x00 | 0x01 | 0xff | 0xd0..=0xd8));
        let Some(at) = rest.windows(2).position(is_marker) else { return false };
        let code = rest.get(at + 1).copied().unwrap_or(0);
        rest = rest.get(at + 2..).unwrap_or_default();
        if code == 0xd9 {
            return true;
        }
        let Some((&[high, low], _)) = rest.split_first_chunk::<2>() else { return false };
        let Some(after) = rest.get(usize::from(u16::from_be_bytes([high, low])).max(2)..) else { return false };
        rest = after;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_ends_with_its_marker() {
        let whole = [0xff, 0xd8, 0xff, 0xe0, 0, 4, 0xff, 0xd9, 0xff, 0xda, 0, 2, 7, 0xff, 0, 0xff, 0xd0, 1, 0xff, 0xd9];
        assert!(reaches_its_end(&whole));
        for len in 0..whole.len() {
            assert!(!reaches_its_end(&whole[..len]), "{len}");
        }
    }
}
