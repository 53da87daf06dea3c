//! FID against pytorch-fid, with weights that both sides make from the tensors' names; tests/reference/fid.py makes the values.

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use candle_core::Tensor;
use kiln_compare::{
    Bounds, CompareOptions, Comparison, Error, Inception, Metric, Moments, PairBy, Report, Statistics, frechet_distance,
};
use kiln_media::{Rgb8Image, StillFormat, encode};
use kiln_testkit::{fixtures, hashed, inception_tensors};
use serde_json::Value;
use tempfile::TempDir;

use crate::images::{noisy, pattern};

/// pytorch-fid's values.
fn reference() -> &'static Value {
    static VALUES: OnceLock<Value> = OnceLock::new();
    VALUES
        .get_or_init(|| serde_json::from_str(&std::fs::read_to_string(fixtures("compare/fid.json")).unwrap()).unwrap())
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect()
}

fn save(tensors: &BTreeMap<String, Tensor>, path: &Path) {
    let all: HashMap<_, _> = tensors.clone().into_iter().collect();
    candle_core::safetensors::save(&all, path).unwrap();
}

/// The network's file, which all tests share.
fn network() -> &'static Path {
    static FILE: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    let (_, path) = FILE.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("inception.safetensors");
        save(&inception_tensors(), &path);
        (folder, path)
    });
    path
}

/// The images of both sets.
fn sets() -> [Vec<Rgb8Image>; 2] {
    let image = |case: &Value| {
        let [width, height, amplitude] = numbers(case)[..] else { panic!("{case}") };
        noisy(&pattern(width as usize, height as usize), amplitude as i64)
    };
    [0, 1].map(|i| reference()["sets"][i].as_array().unwrap().iter().map(image).collect())
}

/// Two folders with the sets, whose names differ.
fn folders() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, images) in ["a", "b"].into_iter().zip(sets()) {
        std::fs::create_dir(folder.path().join(name)).unwrap();
        for (i, image) in images.iter().enumerate() {
            let png = encode(image, StillFormat::Png).unwrap();
            std::fs::write(folder.path().join(name).join(format!("{name}{i}.png")), png).unwrap();
        }
    }
    folder
}

fn options(folder: &TempDir) -> CompareOptions {
    let [a, b] = ["a", "b"].map(|name| folder.path().join(name));
    CompareOptions { a, b, fid: Some(network().into()), ..CompareOptions::default() }
}

fn run(options: &CompareOptions) -> Report {
    Comparison::plan(options).unwrap().run(&mut |_| ControlFlow::Continue(())).unwrap()
}

#[test]
fn features_are_those_of_pytorch_fid() {
    let network = Inception::open(network()).unwrap();
    let [images, _] = sets();
    let found = network.features(&images).unwrap();
    let expected: Vec<Vec<f64>> = reference()["features"].as_array().unwrap().iter().map(numbers).collect();
    assert_eq!((found.len(), found[0].len(), expected.len()), (6, Inception::FEATURES, 6));
    let mut worst = 0.0f64;
    for (found, expected) in found.iter().zip(&expected) {
        for (found, expected) in found.iter().step_by(16).zip(expected) {
            worst = worst.max((f64::from(*found) - expected).abs() / (1.0 + expected.abs()));
        }
    }
    println!("features: largest error {worst:e}");
    assert!(worst < 1e-4, "{worst}");
    // Features do not depend on the images that run together.
    assert_eq!(network.features(&images[4..5]).unwrap()[0], found[4]);
    assert!(network.features(&[Rgb8Image::filled(1, 1, [0; 3]).unwrap()]).unwrap()[0].iter().all(|x| x.is_finite()));
}

/// Two sets of fewer images than features, whose images have no pairs.
#[test]
fn sets_have_the_distance_of_pytorch_fid() {
    let folder = folders();
    let report = run(&options(&folder));
    let (fid, expected) = (report.fid.clone().unwrap(), reference()["value"].as_f64().unwrap());
    let value = fid.value.unwrap();
    println!("FID {value}, expected {expected}");
    assert!((value / expected - 1.0).abs() < 1e-3, "{value}, expected {expected}");
    assert_eq!((fid.images_a, fid.images_b), (6, Some(4)));
    assert!(report.failure().is_none() && report.pairs.is_empty() && report.metrics.is_empty());
    let json = report.to_json();
    assert_eq!((&json["passed"], &json["fid"]["value"]), (&true.into(), &value.into()));
    let bounds = Bounds { max_fid: Some(value - 0.5), ..Bounds::default() };
    let report = run(&CompareOptions { bounds, ..options(&folder) });
    let message = report.failure().unwrap().to_string();
    assert!(message.starts_with(&format!("FID is {value:.5}, expected at most ")), "{message}");
    // A set has no distance from itself.
    let report = run(&CompareOptions { b: folder.path().join("a"), ..options(&folder) });
    assert!(report.fid.unwrap().value.unwrap() < 1e-3);
}

/// Options for pairs bring the pairs back.
#[test]
fn pairs_are_compared_if_an_option_asks_for_them() {
    let folder = folders();
    let report = run(&CompareOptions { pair_by: Some(PairBy::Name), ..options(&folder) });
    let message = report.failure().unwrap().to_string();
    assert!(message.contains("a0.png: ") && message.contains("has no image of this name"), "{message}");
    assert!(report.fid.unwrap().value.is_some());
    let bounds = Bounds { min_psnr: Some(1.0), ..Bounds::default() };
    let report = run(&CompareOptions { b: folder.path().join("a"), bounds, ..options(&folder) });
    assert!(report.failure().is_none() && report.pairs.len() == 6);
    assert!(report.pairs.iter().all(|pair| pair.values[&Metric::Psnr].is_infinite()));
}

/// CLIP scores are those of the first folder's images: the second one may be photographs without prompts.
#[test]
fn scores_of_sets_are_those_of_the_first_one() {
    let folder = folders();
    let texts = [("parameters", "a red apple\nSteps: 4, Sampler: Euler, Seed: 1, Size: 32x32")];
    for i in 0..6 {
        let png = kiln_media::encode_png((32, 32), pattern(32, 32).data(), &texts).unwrap();
        std::fs::write(folder.path().join(format!("a/a{i}.png")), png).unwrap();
    }
    let report = run(&CompareOptions { clip: Some(fixtures("compare/clip")), ..options(&folder) });
    assert!(report.failure().is_none(), "{:?}", report.failure());
    assert_eq!((report.pairs.len(), &report.metrics), (6, &vec![Metric::ClipA]));
    assert!((report.summary(Metric::ClipA).unwrap().mean - 30.830).abs() < 1e-2);
    assert_eq!(report.to_json()["pairs"][0]["b"], Value::Null);
}

#[test]
fn what_has_no_distance_fails() {
    let folder = folders();
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("a/a9.png"), "no image").unwrap();
    let message = |b: &str| {
        let report = run(&CompareOptions { b: path(b), ..options(&folder) });
        assert!(report.fid.as_ref().unwrap().value.is_none());
        report.failure().unwrap().to_string()
    };
    let found = message("b");
    assert!(found.contains("a9.png") && found.ends_with("a: 1 of 7 images cannot be read"), "{found}");
    std::fs::remove_file(path("a/a9.png")).unwrap();
    std::fs::create_dir(path("none")).unwrap();
    assert!(message("none").ends_with("none: 0 images, expected at least 2"), "{}", message("none"));
    let refused = |options: CompareOptions| Comparison::plan(&options).err().unwrap();
    let single = CompareOptions { a: path("a/a0.png"), b: path("b/b0.png"), ..options(&folder) };
    let error = refused(single);
    assert!(error.is_usage() && error.to_string().contains("expected two folders of images"), "{error}");
    let archive = fixtures("compare/fid_f64.npz");
    let error = refused(CompareOptions { b: archive.clone(), ..options(&folder) });
    assert!(error.to_string().ends_with("has 8 features, expected 2048"), "{error}");
    let error = refused(CompareOptions { b: archive, pair_by: Some(PairBy::Name), ..options(&folder) });
    assert!(error.is_usage() && error.to_string().contains("statistics have no pairs"), "{error}");
    assert!(matches!(refused(CompareOptions { b: path("c"), ..options(&folder) }), Error::Files(_)));
    let stopped = Comparison::plan(&options(&folder)).unwrap();
    assert_eq!(stopped.steps(), 10);
    assert!(matches!(stopped.run(&mut |_| ControlFlow::Break(())), Err(Error::Interrupted)));
}

#[test]
fn networks_are_recognized_by_their_tensors() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("network.safetensors");
    let own = inception_tensors();
    let image = [noisy(&pattern(64, 48), 40)];
    let expected = Inception::open(network()).unwrap().features(&image).unwrap();
    let renamed = |rename: &dyn Fn(&str) -> String| {
        save(&own.iter().map(|(name, x)| (rename(name), x.clone())).collect(), &path);
        Inception::open(&path).unwrap().features(&image).unwrap()
    };
    assert_eq!(renamed(&|name| format!("inception.{name}")), expected, "torchmetrics");
    let blocks = ["Conv2d_1a_3x3.", "Conv2d_2a_3x3.", "Conv2d_2b_3x3.", "", "Conv2d_3b_1x1.", "Conv2d_4a_3x3."];
    let of_pytorch_fid = |name: &str| {
        if let Some(i) = blocks.iter().position(|block| !block.is_empty() && name.starts_with(block)) {
            return format!("blocks.{}.{}.{}", i / 4, i % 4, name.split_once('.').unwrap().1);
        }
        let Some((block, rest)) = name.strip_prefix("Mixed_").and_then(|name| name.split_once('.')) else {
            return name.to_string();
        };
        let places = ["5b", "5c", "5d", "6a", "6b", "6c", "6d", "6e", "7a", "7b", "7c"];
        let place = places.iter().position(|place| *place == block).unwrap();
        let (block, layer) = if place < 8 { (2, place) } else { (3, place - 8) };
        format!("blocks.{block}.{layer}.{rest}")
    };
    assert_eq!(renamed(&of_pytorch_fid), expected, "pytorch_fid's InceptionV3");

    let message = |tensors: BTreeMap<String, Tensor>| {
        save(&tensors, &path);
        Inception::open(&path).err().unwrap().to_string()
    };
    let with = |name: &str, shape: &[usize]| {
        let mut tensors = own.clone();
        tensors.insert(name.into(), kiln_testkit::hashed_weights(name, shape));
        tensors
    };
    let torchvision = message(with("fc.weight", &[1000, 2048]));
    assert!(torchvision.contains("which is torchvision's own Inception, expected the state dict of"), "{torchvision}");
    assert!(message(with("Conv2d_1a_3x3.conv.weight", &[32, 3, 1, 1])).contains("has the shape [32, 3, 1, 1]"));
    let lacking = |name: &str| message(own.clone().into_iter().filter(|(key, _)| key != name).collect());
    assert!(lacking("Conv2d_1a_3x3.conv.weight").contains("there is no tensor"));
    for name in
        ["Mixed_6c.branch7x7_2.conv.weight", "Mixed_6c.branch7x7_2.bn.running_var", "Mixed_7c.branch1x1.bn.bias"]
    {
        let found = lacking(name);
        assert!(found.contains(name), "{name}: {found}");
    }
    let short = message(with("Mixed_6c.branch7x7_2.bn.running_mean", &[7]));
    assert!(short.contains("Mixed_6c.branch7x7_2.bn.running_mean"), "{short}");
    assert!(Inception::open(&folder.path().join("none")).err().unwrap().to_string().contains("looked for `fid`"));
}

/// Random numbers from -0.5 to 0.5, row by row.
fn random(seed: u32, count: usize) -> Vec<f64> {
    let unit = |i: usize| f64::from(hashed((i as u32).wrapping_add(seed)) >> 8) / f64::from(1 << 24);
    (0..count).map(|i| unit(i) - 0.5).collect()
}

/// Distances of random features against scipy's root of a matrix, of singular covariances too.
#[test]
fn distances_are_those_of_scipy() {
    let cases = reference()["distances"].as_array().unwrap();
    assert_eq!(cases.len(), 4);
    for case in cases {
        let (columns, images) = (case["features"].as_u64().unwrap() as usize, numbers(&case["images"]));
        let (mixer, shift) = (random(77, columns * columns), random(5, columns));
        let of = |(seed, &count): (usize, &f64)| {
            let rows = random(1000 * seed as u32, count as usize * columns);
            let mut moments = Moments::new(columns);
            for row in rows.chunks(columns) {
                let mixed = |j: usize| {
                    let sum: f64 = row.iter().enumerate().map(|(i, value)| value * mixer[i * columns + j]).sum();
                    (sum + shift[j] * seed as f64) as f32
                };
                moments.add(&(0..columns).map(mixed).collect::<Vec<_>>()).unwrap();
            }
            moments.finish().unwrap()
        };
        let sets: Vec<Statistics> = images.iter().enumerate().map(of).collect();
        for kind in ["value", "by_eigenvalues"] {
            let expected = case[kind].as_f64().unwrap();
            for [a, b] in [[0, 1], [1, 0]] {
                let found = frechet_distance(&sets[a], &sets[b]).unwrap();
                println!("{columns} features, {images:?} images, {kind}: {found}, expected {expected}");
                assert!((found / expected - 1.0).abs() < 1e-5, "{columns} {kind}: {found}, expected {expected}");
            }
        }
    }
}

#[test]
fn archives_of_numpy_are_read() {
    let read = |name: &str| Statistics::read(&fixtures(&format!("compare/{name}")));
    let archive = &reference()["archive"];
    let covariance: Vec<f64> = archive["sigma"].as_array().unwrap().iter().flat_map(numbers).collect();
    let expected = Statistics::new(numbers(&archive["mu"]), covariance).unwrap();
    assert_eq!(read("fid_f64.npz").unwrap(), expected);
    assert_eq!(read("fid_compressed.npz").unwrap(), expected);
    assert!(frechet_distance(&read("fid_f32.npz").unwrap(), &expected).unwrap() < 1e-6);
    let other = read("fid_other.npz").unwrap_err().to_string();
    assert!(other.ends_with("fid_other.npz: has no array `mu`, expected `mu` and `sigma` of pytorch-fid"), "{other}");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.npz");
    let message = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        Statistics::read(&path).unwrap_err().to_string()
    };
    let whole = std::fs::read(fixtures("compare/fid_f64.npz")).unwrap();
    assert!(message(&whole[..whole.len() / 2]).contains("is no .npz archive"));
    assert!(message(b"no archive").contains("is no .npz archive"));
    let mut damaged = whole.clone();
    let place = whole.windows(6).position(|bytes| bytes == b"\x93NUMPY").unwrap() + 128;
    damaged[place] ^= 1;
    assert!(message(&damaged).ends_with("`mu` is damaged: its checksum is another one"));
    let mut unknown = whole;
    unknown[place - 120] ^= 1; // the description of `mu`
    assert!(message(&unknown).contains("`mu`"));
}

/// Covariances as large as those of Inception, of which one is singular.
#[test]
fn large_covariances_have_the_distance_of_the_formula() {
    let n = Inception::FEATURES;
    let diagonal = |factor: f64, zeros: usize| {
        let mut covariance = vec![0.0; n * n];
        // Blocks [[2, 1], [1, 2]] with the eigenvalues 1 and 3.
        for i in 0..n - zeros {
            covariance[i * n + i] = 2.0 * factor;
            covariance[i * n + (i ^ 1)] = factor;
        }
        Statistics::new(vec![0.0; n], covariance).unwrap()
    };
    // Both have the same eigenvectors: the sum of (root - root)^2 of their eigenvalues, and of what only one has.
    let found = frechet_distance(&diagonal(4.0, 48), &diagonal(1.0, 0)).unwrap();
    let expected = 1000.0 * (1.0 + 3.0) * (2.0f64 - 1.0).powi(2) + 24.0 * (1.0 + 3.0);
    assert!((found / expected - 1.0).abs() < 1e-9, "{found}, expected {expected}");
}
