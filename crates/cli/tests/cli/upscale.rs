//! `kiln upscale`: with the tiny random networks of `tests/fixtures/upscale`, and without a network.

use std::fs::{self, File};
use std::io::BufReader;
use std::path::Path;

use kiln_testkit::fixtures;
use png::{BitDepth, ColorType};

use crate::sandbox::{Run, Sandbox};

/// What a PNG has.
#[derive(Debug, PartialEq)]
struct Image {
    size: (u32, u32),
    color: ColorType,
    bytes: Vec<u8>,
    texts: Vec<(String, String)>,
}

impl Image {
    /// With values that differ from pixel to pixel.
    fn new(size: (u32, u32), color: ColorType) -> Self {
        let count = size.0 * size.1 * color.samples() as u32;
        let bytes = (0..count).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        Self { size, color, bytes, texts: Vec::new() }
    }

    fn with_text(mut self, key: &str, text: &str) -> Self {
        self.texts.push((key.into(), text.into()));
        self
    }

    fn write(&self, path: &Path) {
        let mut encoder = png::Encoder::new(File::create(path).unwrap(), self.size.0, self.size.1);
        encoder.set_color(self.color);
        encoder.set_depth(BitDepth::Eight);
        for (key, text) in &self.texts {
            encoder.add_text_chunk(key.clone(), text.clone()).unwrap();
        }
        encoder.write_header().unwrap().write_image_data(&self.bytes).unwrap();
    }

    #[track_caller]
    fn read(path: &Path) -> Self {
        let mut reader = png::Decoder::new(BufReader::new(File::open(path).unwrap())).read_info().unwrap();
        let mut bytes = vec![0; reader.output_buffer_size().unwrap()];
        let frame = reader.next_frame(&mut bytes).unwrap();
        reader.finish().unwrap();
        let texts = &reader.info().uncompressed_latin1_text;
        let texts = texts.iter().map(|chunk| (chunk.keyword.clone(), chunk.text.clone())).collect();
        Self { size: (frame.width, frame.height), color: frame.color_type, bytes, texts }
    }
}

fn network(name: &str) -> String {
    fixtures("upscale").join(name).display().to_string()
}

/// Runs `kiln upscale` on the CPU in f32.
fn upscale(sandbox: &Sandbox, args: &[&str]) -> Run {
    sandbox.kiln(&[&["upscale", "--device", "cpu", "--dtype", "f32"], args].concat())
}

fn with_apple() -> Sandbox {
    let sandbox = Sandbox::new();
    Image::new((12, 9), ColorType::Rgb).with_text("parameters", "an apple").write(&sandbox.path("apple.png"));
    sandbox
}

#[test]
fn an_image_becomes_larger_and_keeps_its_texts() {
    let sandbox = with_apple();
    let compact = network("compact_x4.safetensors");
    let run = upscale(&sandbox, &["apple.png", "-u", &compact]).succeeds();
    assert_eq!(run.stdout, "./apple-x4.png (48x36)\n");
    assert!(run.stderr.contains("compact_x4, SRVGGNetCompact x4, 3 convolutions, 8 features, PReLU, scale 4"), "{run}");
    let large = Image::read(&sandbox.path("apple-x4.png"));
    assert_eq!((large.size, large.color), ((48, 36), ColorType::Rgb));
    let how = "Postprocess upscale by: 4, Postprocess upscaler: compact_x4";
    let expected = [("parameters", "an apple"), ("postprocessing", how), ("extras", how)];
    assert_eq!(large.texts, expected.map(|(key, text)| (key.to_string(), text.to_string())));
    // Strips of any rows have the same bits.
    for tile in ["2", "5", "1000"] {
        upscale(&sandbox, &["apple.png", "-u", &compact, "--tile", tile, "-o", "{stem}-{index}.png", "--overwrite"])
            .succeeds();
        assert!(Image::read(&sandbox.path("apple-0001.png")) == large, "{tile}");
    }
    // A second upscaling replaces what the first one wrote about itself.
    upscale(&sandbox, &["apple-x4.png", "--scale", "0.5"]).succeeds();
    let small = Image::read(&sandbox.path("apple-x4-x0.5.png"));
    assert_eq!((small.size, small.texts.len()), ((24, 18), 3));
    assert_eq!(small.texts[2].1, "Postprocess upscale by: 0.5, Postprocess upscaler: Lanczos");
}

#[test]
fn other_scales_are_reached_by_more_passes_and_by_resizing() {
    let sandbox = with_apple();
    for (file, scale, size) in [
        ("compact_x2.pth", "3", (36, 27)),
        ("compact_x2.pth", "1.25", (15, 11)),
        ("compact_x3_gray.safetensors", "3", (36, 27)),
        ("original_x1.safetensors", "1", (12, 9)),
        ("params_ema_x2.pth", "2", (24, 18)),
    ] {
        let output = format!("{file}-{scale}.png");
        upscale(&sandbox, &["apple.png", "-u", &network(file), "--scale", scale, "-o", &output]).succeeds();
        assert_eq!(Image::read(&sandbox.path(&output)).size, size, "{file}");
    }
    // Two passes, then Lanczos, are what is done by hand.
    let x2 = network("compact_x2.pth");
    upscale(&sandbox, &["apple.png", "-u", &x2, "-o", "2.png"]).succeeds();
    upscale(&sandbox, &["2.png", "-u", &x2, "-o", "4.png"]).succeeds();
    upscale(&sandbox, &["4.png", "--scale", "0.75", "-o", "3.png"]).succeeds();
    upscale(&sandbox, &["apple.png", "-u", &x2, "--scale", "3", "-o", "at-once.png"]).succeeds();
    let pixels = |name: &str| Image::read(&sandbox.path(name)).bytes;
    assert!(pixels("3.png") == pixels("at-once.png"));
}

#[test]
fn filters_need_no_file() {
    let sandbox = with_apple();
    let apple = Image::read(&sandbox.path("apple.png"));
    for filter in ["nearest", "bilinear", "bicubic", "Lanczos"] {
        upscale(&sandbox, &["apple.png", "-u", filter, "-o", &format!("{filter}.png")]).succeeds();
        assert_eq!(Image::read(&sandbox.path(&format!("{filter}.png"))).size, (24, 18));
    }
    let near = Image::read(&sandbox.path("nearest.png"));
    for (i, pixel) in near.bytes.chunks(3).enumerate() {
        let (x, y) = (i % 24 / 2, i / 24 / 2);
        assert_eq!(pixel, &apple.bytes[(y * 12 + x) * 3..][..3]);
    }
    let default = upscale(&sandbox, &["apple.png"]).succeeds();
    assert_eq!(default.stdout, "./apple-x2.png (24x18)\n");
    let lanczos = Image::read(&sandbox.path("Lanczos.png"));
    assert!(Image::read(&sandbox.path("apple-x2.png")) == lanczos && lanczos.bytes != near.bytes);
}

#[test]
fn alpha_is_kept() {
    let sandbox = Sandbox::new();
    let mut image = Image::new((8, 6), ColorType::Rgba);
    let left = |i: usize, width: usize| i % width < width / 2;
    for (i, pixel) in image.bytes.chunks_mut(4).enumerate() {
        pixel[3] = if left(i, 8) { 0 } else { 255 };
    }
    image.write(&sandbox.path("half.png"));
    image.bytes.chunks_mut(4).for_each(|pixel| pixel[3] = 255);
    image.write(&sandbox.path("opaque.png"));
    for upscaler in ["lanczos", "nearest", &network("compact_x2.pth")] {
        upscale(&sandbox, &["half.png", "opaque.png", "-u", upscaler, "--overwrite"]).succeeds();
        let half = Image::read(&sandbox.path("half-x2.png"));
        assert_eq!((half.size, half.color), ((16, 12), ColorType::Rgba), "{upscaler}");
        for (i, pixel) in half.bytes.chunks(4).enumerate() {
            let far = !(6..10).contains(&(i % 16)); // Lanczos rings at the edge
            let least = if far { 235 } else { 127 };
            let expected = if left(i, 16) { 0..=255 - least } else { least..=255 };
            assert!(expected.contains(&pixel[3]), "{upscaler}: pixel {i} has alpha {}", pixel[3]);
        }
        assert_eq!(Image::read(&sandbox.path("opaque-x2.png")).color, ColorType::Rgb, "{upscaler}");
    }
}

#[cfg_attr(not(unix), ignore = "needs a shell and signals of Unix")]
#[test]
fn an_upscaler_is_found_by_its_name() {
    let sandbox = with_apple();
    let folder = fixtures("upscale").display().to_string();
    upscale(&sandbox, &["apple.png", "-u", "compact_x2", "--upscaler-dir", &folder]).succeeds();
    let script = format!("KILN_UPSCALERS='{folder}' exec \"$@\"");
    let args = ["upscale", "apple.png", "-u", "original_x4.pth", "--device", "cpu"];
    sandbox.shell_kiln(&script, &args).succeeds();
    assert_eq!(sandbox.names(), ["apple-x2.png", "apple-x4.png", "apple.png"]);
    upscale(&sandbox, &["apple.png", "-u", "compact_x9", "--upscaler-dir", &folder]).fails(
        1,
        &["compact_x9: not found; looked for an upscaler's file", &folder, "lanczos, bicubic, bilinear, nearest"],
    );
}

#[cfg_attr(not(unix), ignore = "needs a shell and signals of Unix")]
#[test]
fn standard_input_and_output() {
    let sandbox = with_apple();
    let run = |script: &str, args: &[&str]| sandbox.shell_kiln(script, &[&["upscale", "-u", "nearest"], args].concat());
    assert_eq!(run("\"$@\" < apple.png", &["-"]).succeeds().stdout, "./stdin-x2.png (24x18)\n");
    let out = run("\"$@\" < apple.png > out.png", &["-", "-o", "/dev/stdout"]).succeeds();
    assert!(out.stderr.contains("/dev/stdout (24x18)"), "{out}");
    let [file, piped] = ["stdin-x2.png", "out.png"].map(|name| fs::read(sandbox.path(name)).unwrap());
    assert!(file == piped);
    run("\"$@\" < apple.png", &["-", "-"]).refused(&["the standard input once at most"]);
    run("\"$@\"", &["-", "-o", "empty.png"]).fails(1, &["the standard input: has no bytes"]);
    run("\"$@\"", &["apple.png", "stdin-x2.png", "-o", "/dev/stdout"]).refused(&["--output is '/dev/stdout'"]);
}

#[test]
fn an_image_that_fails_does_not_stop_the_others() {
    let sandbox = with_apple();
    Image::new((900, 900), ColorType::Rgb).write(&sandbox.path("large.png"));
    Image::new((5, 5), ColorType::Rgb).write(&sandbox.path("pear.png"));
    let compact = network("compact_x4.safetensors");
    let args = ["apple.png", "large.png", "pear.png", "-u", &compact, "--vram-budget", "24M"];
    let run = upscale(&sandbox, &args);
    assert_eq!(run.status.code(), Some(1), "{run}");
    assert_eq!(run.stdout, "./apple-x4.png (48x36)\n./pear-x4.png (20x20)\n");
    assert!(run.stderr.contains("image 2 (large.png) failed: an image of 900x900 pixels in strips of 2 rows needs "));
    assert!(run.stderr.ends_with("error: 1 of 3 images failed\n"), "{run}");
    upscale(&sandbox, &["large.png", "-u", &compact, "--vram-budget", "24M"])
        .fails(1, &["error: an image of 900x900 pixels", "of memory"]);
    assert!(!sandbox.names().contains(&"large-x4.png".to_string()));
}

#[test]
fn what_is_wrong_is_refused_before_anything_is_done() {
    let sandbox = with_apple();
    fs::write(sandbox.path("text.png"), "no image").unwrap();
    fs::write(sandbox.path("cut.png"), &fs::read(sandbox.path("apple.png")).unwrap()[..80]).unwrap();
    fs::write(sandbox.path("taken.png"), "old").unwrap();
    fs::write(sandbox.path("random.pth"), vec![7; 500]).unwrap();
    fs::create_dir(sandbox.path("folder")).unwrap();
    Image::new((3000, 3000), ColorType::Grayscale).write(&sandbox.path("large.png"));
    let before = sandbox.names();
    let (compact, relu) = (network("compact_x4.safetensors"), network("compact_x1_relu.safetensors"));
    let vae = fixtures("models/sd1/vae/diffusion_pytorch_model.safetensors").display().to_string();
    for (status, args, told) in [
        (1, &["nowhere.png"][..], "nowhere.png: No such file"),
        (1, &["apple.png", "text.png"], "text.png: begins with the bytes 6e 6f"),
        (1, &["cut.png"], "cut.png: the PNG image is damaged or truncated"),
        (1, &["folder"], "folder: is a folder, expected an image file"),
        (1, &["apple.png", "-u", "nowhere.pth"], "nowhere.pth: not found; looked for an upscaler's file"),
        (1, &["apple.png", "-u", "folder"], "folder: is a folder, expected an upscaler's file"),
        (1, &["apple.png", "-u", "random.pth"], "random.pth"),
        (1, &["apple.png", "-u", &vae], "this is no upscaler that Kiln can run: it has "),
        (1, &["apple.png", "-u", &relu], "does not say whether it was trained with ReLU or LeakyReLU"),
        (
            1,
            &["large.png", "--scale", "10"],
            "large.png: the result has 30000x30000 pixels, and the limit is 268435456",
        ),
        (
            1,
            &["large.png", "-u", &compact, "--scale", "5"],
            "large.png: the network's result of pass 2 has 48000x48000",
        ),
        (1, &["apple.png", "-o", "nowhere/a.png"], "nowhere: not found; looked for a folder for the images; create it"),
        (2, &["apple.png", "-o", "taken.png"], "taken.png exists already; choose another name, or add --overwrite"),
        (2, &["apple.png", "-o", "apple.jpg"], "--output is 'apple.jpg', expected a name that ends in .png"),
        (2, &["apple.png", "-o", "{seed}.png"], "no placeholders but {stem}, {scale} and {index}"),
        (2, &["apple.png", "cut.png", "-o", "a.png"], "a folder, or a name with {stem} or {index}"),
        (2, &["apple.png", "apple.png"], "different names for apple.png and apple.png"),
        (2, &[], "<IMAGE>..."),
        (1, &["apple.png", "-u", &compact, "--device", "cuda:99"], "--device cuda:99: "),
        (2, &["apple.png", "-u", "hf:emoji"], "expected OWNER/NAME"),
        (1, &["apple.png", "-u", "hf:owner/name/4x.pth", "--offline"], "owner/name"),
    ] {
        let args = [&["upscale"], args].concat();
        let run = sandbox.kiln(&args).fails(status, &[told]);
        assert!(!run.stderr.contains("running in"), "weights were read: {run}");
    }
    assert_eq!(sandbox.names(), before);
    assert_eq!(fs::read(sandbox.path("taken.png")).unwrap(), b"old");
    upscale(&sandbox, &["apple.png", "-o", "taken.png", "--overwrite"]).succeeds();
    assert_eq!(Image::read(&sandbox.path("taken.png")).size, (24, 18));
}

#[test]
fn bad_values_are_refused() {
    let sandbox = with_apple();
    for (flag, values, told) in [
        ("--scale", &["0", "-2", "0.01", "65", "1e300", "nan", "inf"][..], "expected a number from 0.05 to 64"),
        ("--scale", &["", "big", "4x"], "expected a number"),
        ("--tile", &["0", "2000000"], "expected auto or a number from 1 to 1048576"),
        ("--tile", &["", "-1", "all", "1.5", "64x64"], "expected auto or a whole number of rows"),
        ("--device", &["opencl", "", "cuda:", "vulkan:"], "expected auto, cpu, cuda, cuda:N, gpu, vulkan"),
        ("--dtype", &["f8", "", "F32"], "expected auto, f32, bf16 or f16"),
        ("--threads", &["0", "1025"], "expected a number from 1 to 1024"),
        ("--threads", &["", "-1", "all"], "expected a whole number"),
        ("--vram-budget", &["", "0", "lots", "-1G"], "such as 6G"),
        ("--upscaler", &[""], "a value is required"),
        ("--output", &["", "a.jpg"], ""),
    ] {
        for value in values {
            let args = ["upscale", "apple.png", &format!("{flag}={value}")];
            sandbox.kiln(&args).refused(&[told, flag]);
        }
    }
    assert_eq!(sandbox.names(), ["apple.png"]);
}
