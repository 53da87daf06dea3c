//! Tables that the program contains in a compressed form.

use std::io::{Read, Result};

use flate2::read::GzDecoder;

/// The contents of a gzip stream that is a part of the program. It is trusted: its size has no limit.
///
/// # Errors
/// Errors of the decompressor for a damaged stream.
pub fn unpack(stream: &[u8]) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    GzDecoder::new(stream).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    #[test]
    fn a_stream_is_unpacked_and_a_damaged_one_is_an_error() {
        let mut stream = GzEncoder::new(Vec::new(), Compression::best());
        stream.write_all(b"table table table").unwrap();
        let stream = stream.finish().unwrap();
        assert_eq!(unpack(&stream).unwrap(), b"table table table");
        assert!(unpack(&stream[..stream.len() - 9]).is_err());
    }
}
