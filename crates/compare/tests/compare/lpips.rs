//! LPIPS against the package `lpips`, with weights that both sides make from the tensors' names; tests/reference/compare.py makes the
//! values.

use std::collections::HashMap;
use std::path::Path;

use candle_core::Tensor;
use kiln_compare::{Error, Lpips};
use kiln_testkit::hashed_weights as weights;

use crate::images::{noisy, pattern, values};

/// The numbers of convolutions in torchvision's lists, with their channels and sides, by the slices of `lpips`.
type Network = [&'static [(usize, [usize; 3])]; 5];

const ALEX: Network =
    [&[(0, [64, 3, 11])], &[(3, [192, 64, 5])], &[(6, [384, 192, 3])], &[(8, [256, 384, 3])], &[(10, [256, 256, 3])]];
const VGG: Network = [
    &[(0, [64, 3, 3]), (2, [64, 64, 3])],
    &[(5, [128, 64, 3]), (7, [128, 128, 3])],
    &[(10, [256, 128, 3]), (12, [256, 256, 3]), (14, [256, 256, 3])],
    &[(17, [512, 256, 3]), (19, [512, 512, 3]), (21, [512, 512, 3])],
    &[(24, [512, 512, 3]), (26, [512, 512, 3]), (28, [512, 512, 3])],
];

/// The state dict of `lpips.LPIPS` without its constants.
fn tensors(network: &Network) -> HashMap<String, Tensor> {
    let mut all = Vec::new();
    for (i, slice) in network.iter().enumerate() {
        for &(number, [out, inputs, side]) in *slice {
            all.push((format!("net.slice{}.{number}.weight", i + 1), vec![out, inputs, side, side]));
            all.push((format!("net.slice{}.{number}.bias", i + 1), vec![out]));
        }
        let channels = slice.last().map_or(0, |(_, [out, ..])| *out);
        all.push((format!("lin{i}.model.1.weight"), vec![1, channels, 1, 1]));
    }
    all.into_iter().map(|(name, shape)| (name.clone(), weights(&name, &shape))).collect()
}

/// Writes tensors into a file and opens it.
fn opened(path: &Path, tensors: &HashMap<String, Tensor>) -> kiln_compare::Result<Lpips> {
    candle_core::safetensors::save(tensors, path).unwrap();
    Lpips::open(path)
}

fn check(network: &Network, name: &str, least: usize) {
    let folder = tempfile::tempdir().unwrap();
    let lpips = opened(&folder.path().join("lpips.safetensors"), &tensors(network)).unwrap();
    let cases = values(name);
    assert_eq!(cases.len(), 2);
    for case in cases {
        let first = pattern(case.size[0], case.size[1]);
        let second = noisy(&first, case.amplitude);
        let found = lpips.distance(&first, &second).unwrap();
        println!("{name} {:?}: {found}, expected {}", case.size, case.value);
        assert!((found - case.value).abs() < 1e-5, "{name} {:?}: {found}, expected {}", case.size, case.value);
        assert_eq!(lpips.distance(&first, &first).unwrap(), 0.0);
        assert_eq!(lpips.distance(&second, &first).unwrap(), found);
    }
    // Every layer has a window in the smallest images.
    let of = |side: usize| lpips.distance(&pattern(side, side), &noisy(&pattern(side, side), 9));
    assert!(of(least).unwrap() > 0.0);
    assert!(matches!(of(least - 1), Err(Error::TooSmall { .. })), "{}", lpips.network());
    assert!(matches!(lpips.distance(&pattern(40, 41), &pattern(41, 40)), Err(Error::Sizes { .. })));
}

#[test]
fn alexnet_gives_the_values_of_lpips() {
    check(&ALEX, "alex", 31);
}

#[test]
fn vgg16_gives_the_values_of_lpips() {
    check(&VGG, "vgg", 16);
}

#[test]
fn files_are_recognized_by_their_tensors() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lpips.safetensors");
    let own = tensors(&ALEX);
    let renamed = |name: &String| match name.strip_prefix("net.slice") {
        Some(rest) => format!("features.{}", &rest[2..]),
        None => name.clone(),
    };
    let of_torchvision: HashMap<String, Tensor> = own.iter().map(|(name, x)| (renamed(name), x.clone())).collect();
    let (a, b) = (pattern(64, 48), noisy(&pattern(64, 48), 40));
    let [first, second] = [&own, &of_torchvision].map(|x| opened(&path, x).unwrap().distance(&a, &b).unwrap());
    assert_eq!(first, second);
    let message = |tensors: &HashMap<String, Tensor>| opened(&path, tensors).err().unwrap().to_string();
    let mut lacking = own.clone();
    lacking.remove("lin3.model.1.weight");
    assert!(message(&lacking).contains("`lin3.model.1.weight` is missing"));
    let other = HashMap::from([("net.slice1.0.weight".to_string(), weights("a", &[64, 3, 3, 1]))]);
    assert!(message(&other).contains("has the shape [64, 3, 3, 1], expected the state dict of lpips.LPIPS"));
    assert!(message(&HashMap::from([("x".to_string(), weights("x", &[1]))])).contains("there is no tensor"));
    std::fs::write(&path, "no file").unwrap();
    assert!(Lpips::open(&path).is_err());
    assert!(Lpips::open(&folder.path().join("none")).err().unwrap().to_string().contains("looked for `lpips`"));
}
