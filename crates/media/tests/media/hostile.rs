//! Malformed and hostile files: each is an error that names the file, or an image. Nothing panics, and memory is bounded.

use std::io::Write;

use flate2::write::ZlibEncoder;
use flate2::{Compression, Crc};
use kiln_media::{DecodeOptions, DecodedImage, Error, Image8, Rgb8Image, StillFormat, decode, encode};

/// Limits of these tests: four megapixels, and 24 MiB for a decoder.
const OPTIONS: DecodeOptions =
    DecodeOptions { max_pixels: 4_000_000, max_side: 20_000, max_memory: 24 << 20, max_file: 8 << 20 };

fn read(name: &str, data: &[u8]) -> Result<DecodedImage, Error> {
    let result = decode(data, name, &OPTIONS);
    match &result {
        Ok(image) => {
            assert!(image.width() * image.height() <= 4_000_000, "{name}");
            assert_eq!(image.rgb().data().len(), image.width() * image.height() * 3, "{name}");
        }
        Err(error) => assert!(error.to_string().starts_with(name), "{name}: {error}"),
    }
    result
}

// PNG ----------------------------------------------------------------------------------------------------------------

fn chunk(kind: &[u8; 4], data: &[u8]) -> Vec<u8> {
    let mut crc = Crc::new();
    crc.update(kind);
    crc.update(data);
    [&(data.len() as u32).to_be_bytes()[..], kind, data, &crc.sum().to_be_bytes()].concat()
}

fn zlib(data: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(data).unwrap();
    encoder.finish().unwrap()
}

fn header(width: u32, height: u32, depth: u8, color: u8, interlace: u8) -> Vec<u8> {
    let sizes = [width.to_be_bytes(), height.to_be_bytes()].concat();
    chunk(b"IHDR", &[&sizes[..], &[depth, color, 0, 0, interlace]].concat())
}

fn png(chunks: &[Vec<u8>]) -> Vec<u8> {
    [&b"\x89PNG\r\n\x1a\n"[..], &chunks.concat()].concat()
}

fn end() -> Vec<u8> {
    chunk(b"IEND", &[])
}

/// 8 zeros of filter and samples a row of a gray image of 7x5.
fn gray_lines() -> Vec<u8> {
    chunk(b"IDAT", &zlib(&[0; 40]))
}

fn broken_crc(mut chunk: Vec<u8>) -> Vec<u8> {
    *chunk.last_mut().unwrap() ^= 1;
    chunk
}

fn pngs() -> Vec<(&'static str, Vec<u8>)> {
    let good = || header(7, 5, 8, 0, 0);
    let bomb = zlib(&vec![0; 64 << 20]);
    let named_bomb = [b"x\0\0", &bomb[..]].concat();
    vec![
        ("png without width", png(&[header(0, 5, 8, 0, 0), gray_lines(), end()])),
        ("png without height", png(&[header(7, 0, 8, 0, 0), gray_lines(), end()])),
        ("png of 2^31 pixels a side", png(&[header(0x7fff_ffff, 0x7fff_ffff, 16, 6, 0), gray_lines(), end()])),
        ("png of 2^32 pixels a side", png(&[header(u32::MAX, u32::MAX, 8, 2, 0), gray_lines(), end()])),
        ("png of one long row", png(&[header(0x7fff_ffff, 1, 1, 0, 0), gray_lines(), end()])),
        (
            "png of 100 megapixels in 64 MB of zeros",
            png(&[header(10_000, 10_000, 1, 0, 0), chunk(b"IDAT", &bomb), end()]),
        ),
        ("png over the limit of memory", png(&[header(2000, 2000, 16, 6, 0), chunk(b"IDAT", &bomb), end()])),
        ("png with too few rows", png(&[header(7, 500, 8, 0, 0), gray_lines(), end()])),
        ("png with a checksum of its header that is wrong", png(&[broken_crc(good()), gray_lines(), end()])),
        ("png with a checksum of its pixels that is wrong", png(&[good(), broken_crc(gray_lines()), end()])),
        ("png without pixels", png(&[good(), end()])),
        ("png without anything after its header", png(&[good()])),
        ("png without a header", png(&[gray_lines(), end()])),
        ("png with a palette image and no palette", png(&[header(7, 5, 8, 3, 0), gray_lines(), end()])),
        ("png of depth 3", png(&[header(7, 5, 3, 0, 0), gray_lines(), end()])),
        ("png of color type 5", png(&[header(7, 5, 8, 5, 0), gray_lines(), end()])),
        ("png of depth 16 with a palette", png(&[header(7, 5, 16, 3, 0), gray_lines(), end()])),
        ("png of interlacing 9", png(&[header(7, 5, 8, 0, 9), gray_lines(), end()])),
        ("png with a filter 9", png(&[good(), chunk(b"IDAT", &zlib(&[9; 40])), end()])),
        ("png with pixels that are no zlib", png(&[good(), chunk(b"IDAT", &[7; 40]), end()])),
        ("png with a chunk of 4 GiB", png(&[good(), [&u32::MAX.to_be_bytes()[..], b"IDAT", &[0; 9]].concat()])),
    ]
    .into_iter()
    .chain([
        // These may be read: what is wrong is not in the pixels.
        ("?png with 64 MB after its pixels", png(&[good(), chunk(b"IDAT", &bomb), end()])),
        ("?png with a text of 64 MB", png(&[good(), chunk(b"zTXt", &named_bomb), gray_lines(), end()])),
        ("?png with a color profile of 64 MB", png(&[good(), chunk(b"iCCP", &named_bomb), gray_lines(), end()])),
        ("?png without an end", png(&[good(), gray_lines()])),
        ("?png with two headers", png(&[good(), header(9000, 9000, 8, 6, 0), gray_lines(), end()])),
        (
            "?png with an index beyond its palette",
            png(&[
                header(7, 5, 8, 3, 0),
                chunk(b"PLTE", &[1, 2, 3]),
                chunk(b"IDAT", &zlib(&[0, 9, 9, 9, 9, 9, 9, 255].repeat(5))),
                end(),
            ]),
        ),
        (
            "?png with Exif that points to itself",
            png(&[
                good(),
                chunk(b"eXIf", b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\xff\xff\xff\xff\x08\0\0\0\x08\0\0\0"),
                gray_lines(),
                end(),
            ]),
        ),
        ("?png of an animation without frames", png(&[good(), chunk(b"acTL", &[0; 8]), gray_lines(), end()])),
    ])
    .collect()
}

// Others -------------------------------------------------------------------------------------------------------------

fn photo() -> Rgb8Image {
    let data = (0..40 * 30 * 3).map(|i: usize| (i * i / 7 % 251) as u8).collect();
    Image8::new(40, 30, data).unwrap()
}

/// A JPEG file with bytes of its frame header changed: `(offset after the marker, value)`.
fn jpeg(changes: &[(usize, u8)]) -> Vec<u8> {
    let mut data = encode(&photo(), StillFormat::Jpeg(80)).unwrap();
    let frame = data.windows(2).position(|pair| pair == [0xff, 0xc0]).unwrap();
    changes.iter().for_each(|(at, value)| data[frame + 2 + at] = *value);
    data
}

fn jpegs() -> Vec<(&'static str, Vec<u8>)> {
    let whole = jpeg(&[]);
    let without = |marker: u8| {
        let at = whole.windows(2).position(|pair| pair == [0xff, marker]).unwrap();
        let len = usize::from(whole[at + 2]) << 8 | usize::from(whole[at + 3]);
        [&whole[..at], &whole[at + 2 + len..]].concat()
    };
    let start = whole.windows(2).position(|pair| pair == [0xff, 0xda]).unwrap();
    let exif = b"\xff\xe1\x00\x22Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\xff\xff\0\0\0\0\0\x08";
    vec![
        ("jpeg of 65535x65535", jpeg(&[(3, 255), (4, 255), (5, 255), (6, 255)])),
        ("jpeg without width", jpeg(&[(5, 0), (6, 0)])),
        ("jpeg without height", jpeg(&[(3, 0), (4, 0)])),
        ("jpeg of 12 bits", jpeg(&[(2, 12)])),
        ("jpeg of seven components", jpeg(&[(7, 7)])),
        ("jpeg with a table that is not there", jpeg(&[(10, 3)])),
        ("jpeg without a frame", without(0xc0)),
        ("jpeg without tables of its code", [&without(0xc4)[..]].concat()),
        ("jpeg that ends in its pixels", whole[..start + 60].to_vec()),
        ("jpeg that ends before its pixels", whole[..start].to_vec()),
        ("jpeg that begins and ends", vec![0xff, 0xd8, 0xff, 0xd9]),
        ("jpeg with a marker that is too long", [&whole[..2], &[0xff, 0xe0, 0xff, 0xff], &whole[2..40]].concat()),
        ("?jpeg with zeros for pixels", [&whole[..start + 14], &[0; 200], &[0xff, 0xd9]].concat()),
        ("?jpeg with 32 MiB of frame and few pixels", [&jpeg(&[(3, 7), (4, 208), (5, 7), (6, 208)])[..]].concat()),
        ("?jpeg with an orientation that is none", [&whole[..2], exif, &whole[2..]].concat()),
    ]
}

fn gif(screen: [u8; 4], frame: [u8; 8], rest: &[u8]) -> Vec<u8> {
    let colors = [0, 0, 0, 255, 255, 255];
    [&b"GIF89a"[..], &screen, &[0x80, 0, 0], &colors, &[0x2c], &frame, &[0], rest].concat()
}

fn gifs() -> Vec<(&'static str, Vec<u8>)> {
    let lzw = [2, 3, 0x84, 0x8f, 0x05, 0, 0x3b];
    vec![
        ("gif of 65535x65535", gif([255; 4], [0, 0, 0, 0, 255, 255, 255, 255], &lzw)),
        ("gif without width", gif([0, 0, 3, 0], [0, 0, 0, 0, 3, 0, 3, 0], &lzw)),
        ("gif without frames", [&b"GIF89a\x03\0\x03\0\0\0\0"[..], &[0x3b]].concat()),
        ("gif with a frame of 4 gigapixels", gif([3, 0, 3, 0], [0, 0, 0, 0, 255, 255, 255, 255], &lzw)),
        ("gif with code words of 99 bits", gif([3, 0, 3, 0], [0, 0, 0, 0, 3, 0, 3, 0], &[99, 3, 1, 2, 3, 0, 0x3b])),
        ("gif that ends in its frame", gif([3, 0, 3, 0], [0, 0, 0, 0, 3, 0, 3, 0], &[2, 3, 0x84])),
        ("?gif with a frame outside of its screen", gif([3, 0, 3, 0], [9, 0, 9, 0, 3, 0, 3, 0], &lzw)),
    ]
}

fn bmp(width: i32, height: i32, bits: u16, compression: u32, colors: u32) -> Vec<u8> {
    let info = [40u32.to_le_bytes(), width.to_le_bytes(), height.to_le_bytes()].concat();
    let more = [compression, 0, 0, 0, colors, 0].map(u32::to_le_bytes).concat();
    let file = [&b"BM"[..], &[0; 8], &54u32.to_le_bytes()].concat();
    [&file[..], &info, &1u16.to_le_bytes(), &bits.to_le_bytes(), &more, &[5; 40]].concat()
}

fn bmps() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("bmp of 2^31 pixels a side", bmp(i32::MAX, i32::MAX, 24, 0, 0)),
        ("bmp of a negative width", bmp(-4, 4, 24, 0, 0)),
        ("bmp without height", bmp(4, 0, 24, 0, 0)),
        ("bmp with the least height", bmp(4, i32::MIN, 24, 0, 0)),
        ("bmp of 7 bits", bmp(4, 4, 7, 0, 0)),
        ("bmp with too few pixels", bmp(400, 400, 24, 0, 0)),
        ("bmp of compression 77", bmp(4, 4, 8, 77, 0)),
        ("?bmp with 4 billion colors", bmp(4, 4, 8, 0, u32::MAX)),
        ("?bmp with runs that never end", bmp(1000, 1000, 8, 1, 2)),
    ]
}

/// A little-endian TIFF file of tags `(tag, kind, count, value)`, and 64 bytes.
fn tiff(tags: &[(u16, u16, u32, u32)], next: u32) -> Vec<u8> {
    let mut data = [&b"II*\0"[..], &8u32.to_le_bytes(), &(tags.len() as u16).to_le_bytes()].concat();
    for (tag, kind, count, value) in tags {
        data.extend([tag.to_le_bytes(), kind.to_le_bytes()].concat());
        data.extend([count.to_le_bytes(), value.to_le_bytes()].concat());
    }
    data.extend(next.to_le_bytes());
    data.extend([9; 64]);
    data
}

fn tiffs() -> Vec<(&'static str, Vec<u8>)> {
    let with = |width: u32, height: u32, changes: &[(u16, u16, u32, u32)]| {
        let mut tags = vec![(256, 4, 1, width), (257, 4, 1, height), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1)];
        tags.extend([(273, 4, 1, 150), (277, 3, 1, 1), (278, 4, 1, height), (279, 4, 1, 16)]);
        for change in changes {
            tags.retain(|tag| tag.0 != change.0);
            tags.push(*change);
        }
        tags.sort_unstable();
        tiff(&tags, 0)
    };
    vec![
        ("tiff of 2^32 pixels a side", with(u32::MAX, u32::MAX, &[])),
        ("tiff without width", with(0, 4, &[])),
        ("tiff with strips outside of the file", with(4, 4, &[(273, 4, 1, 0xffff_fff0)])),
        ("tiff with 4 billion strips", with(4, 4, &[(273, 4, u32::MAX, 150)])),
        ("tiff with 4 billion samples a pixel", with(4, 4, &[(277, 4, 1, u32::MAX)])),
        ("tiff with a compression of 777", with(4, 4, &[(259, 3, 1, 777)])),
        ("tiff with LZW that is none", with(4, 4, &[(259, 3, 1, 5)])),
        ("tiff of a million pixels in 16 bytes", with(1000, 1000, &[])),
        ("tiff whose directory lies outside", b"II*\0\xff\xff\xff\xff".to_vec()),
        ("tiff without tags", tiff(&[], 8)),
        (
            "tiff with a tile of 4 gigapixels",
            with(4, 4, &[(322, 4, 1, 65535), (323, 4, 1, 65535), (324, 4, 1, 150), (325, 4, 1, 16)]),
        ),
    ]
}

fn webps() -> Vec<(&'static str, Vec<u8>)> {
    let whole = encode(&photo(), StillFormat::WebPLossless).unwrap();
    let riff = |chunks: &[u8]| [&b"RIFF"[..], &(chunks.len() as u32 + 4).to_le_bytes(), b"WEBP", chunks].concat();
    let canvas = [&b"VP8X\x0a\0\0\0\0\0\0\0"[..], &[255, 255, 255, 255, 255, 255]].concat();
    let lossless = |bytes: &[u8]| riff(&[&b"VP8L"[..], &(bytes.len() as u32).to_le_bytes(), bytes].concat());
    vec![
        ("webp of 2^24 pixels a side", riff(&canvas)),
        ("webp without chunks", riff(&[])),
        ("webp of 16384x16384", lossless(&[0x2f, 255, 255, 255, 0x0f, 0, 0, 0])),
        ("webp with a wrong signature", lossless(&[0x2e, 9, 0, 0, 0, 0, 0, 0])),
        ("webp with codes that are none", lossless(&[[0x2f, 9, 0, 1, 0].as_slice(), &[0xff; 30]].concat())),
        ("webp that ends in its pixels", whole[..whole.len() / 2].to_vec()),
    ]
}

fn others() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("nothing", vec![]),
        ("one byte", vec![0x89]),
        ("text", b"This is a note and not an image.".to_vec()),
        ("a page", b"<!DOCTYPE html><html></html>".to_vec()),
        ("an archive", b"PK\x03\x04\x14\0\0\0\x08\0".to_vec()),
        ("an HEIF image", b"\0\0\0\x18ftypheic\0\0\0\0mif1heic".to_vec()),
        ("an AVIF image", b"\0\0\0\x18ftypavif\0\0\0\0mif1avif".to_vec()),
        ("a checkpoint", b"\x30\0\0\0\0\0\0\0{\"__metadata__\":{}}".to_vec()),
        ("png's first bytes", b"\x89PNG\r\n\x1a\n".to_vec()),
        ("jpeg's first bytes", vec![0xff, 0xd8, 0xff]),
        ("gif's first bytes", b"GIF89a".to_vec()),
        ("bmp's first bytes", b"BM".to_vec()),
        ("tiff's first bytes", b"MM\0*".to_vec()),
        ("webp's first bytes", b"RIFF\xff\xff\xff\xffWEBP".to_vec()),
        ("png's first bytes before a jpeg", [b"\x89PNG\r\n\x1a\n", &jpeg(&[])[..]].concat()),
    ]
}

/// The most memory that this process has held, in KiB.
#[cfg(target_os = "linux")]
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// In one test, because it measures the memory of the process.
#[test]
fn hostile_files_are_errors_within_bounded_memory() {
    let families = [pngs(), jpegs(), gifs(), bmps(), tiffs(), webps(), others()];
    let count: usize = families.iter().map(Vec::len).sum();
    assert!(count >= 80, "{count}");
    #[cfg(target_os = "linux")]
    let before = peak();
    let mut wrong = Vec::new();
    for (name, data) in families.into_iter().flatten() {
        let result = read(name, &data);
        match &result {
            Ok(image) => println!("{name}: {}x{}", image.width(), image.height()),
            Err(error) => println!("{error}"),
        }
        if !name.starts_with('?') && result.is_ok() {
            wrong.push(name);
        }
    }
    assert!(wrong.is_empty(), "these were read: {wrong:?}");
    // The decoder's 24 MiB, as much for the pixels while they are taken apart, and what the allocator keeps.
    #[cfg(target_os = "linux")]
    assert!(peak() - before < 96 << 10, "{} KiB before, {} KiB after", before, peak());

    truncated_and_changed_files();
}

/// Every fixture, cut at many places, and with bytes changed.
fn truncated_and_changed_files() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/files");
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort_unstable();
    let mut state = 16u64;
    let mut random = move |below: usize| {
        // Numerical Recipes' generator: the same files every time.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    for path in paths {
        let (name, whole) = (path.file_name().unwrap().to_str().unwrap(), std::fs::read(&path).unwrap());
        let kind = name.rsplit('.').next().unwrap();
        for part in 0..32 {
            let cut = whole.len() * part / 32;
            let result = read(name, &whole[..cut]);
            // Formats whose pixels have no lengths of their own may end early; these may not.
            let strict = matches!(kind, "png" | "jpg") && cut + 12 < whole.len();
            assert!(!strict || result.is_err(), "{name} was read from {cut} of {} bytes", whole.len());
        }
        for _ in 0..64 {
            let mut changed = whole.clone();
            for _ in 0..=random(4) {
                let at = random(changed.len());
                changed[at] = if random(3) == 0 { 255 } else { random(256) as u8 };
            }
            let _ = read(name, &changed);
        }
    }
}
