//! Preprocessors of control images against OpenCV and NumPy (`fixtures/preprocess.py`).

use kiln_media::{Error, Gray8Image, Image8, Preprocessor, Rgb8Image, inpaint_condition};
use safetensors::SafeTensors;

use crate::support::fixtures;

/// A case's preprocessor, from its name and its values.
fn preprocessor(name: &str, values: &str) -> Preprocessor {
    let values: Vec<f64> = values.split(',').filter(|v| !v.is_empty()).map(|v| v.parse().unwrap()).collect();
    match (name, &values[..]) {
        ("canny", [low, high]) => Preprocessor::Canny { low: *low, high: *high },
        ("lineart", []) => Preprocessor::Lineart,
        ("scribble", [threshold]) => Preprocessor::Scribble { threshold: *threshold },
        ("blur", [sigma]) => Preprocessor::Blur { sigma: *sigma },
        ("tile", [factor]) => Preprocessor::Tile { factor: *factor },
        ("threshold", [level]) => Preprocessor::Threshold { level: *level as u8 },
        ("color", []) => Preprocessor::ColorGrid,
        _ => panic!("{name} {values:?}"),
    }
}

#[test]
fn maps_are_opencvs() {
    let data = std::fs::read(fixtures().join("preprocess.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&data).unwrap();
    let mut cases: Vec<&str> = tensors.names().into_iter().filter(|name| !name.starts_with("input/")).collect();
    cases.sort_unstable();
    assert!(cases.len() > 25);
    for case in cases {
        let &[input, name, values, side] = &case.split('/').collect::<Vec<_>>()[..] else { panic!("{case}") };
        let input = tensors.tensor(&format!("input/{input}")).unwrap();
        let image = Rgb8Image::new(input.shape()[1], input.shape()[0], input.data().to_vec()).unwrap();
        let side: usize = side.parse().unwrap();
        let found = preprocessor(name, values).run(&image, (side > 0).then_some(side)).unwrap();
        let expected = tensors.tensor(case).unwrap();
        let found: Vec<u8> = match (name, expected.shape()) {
            // One pixel of many.
            ("color", &[height, width, 3]) => {
                let pick = |y: usize| (0..width).flat_map(move |x| [(x, y)]);
                assert_eq!((found.width().div_ceil(32), found.height().div_ceil(32)), (width, height), "{case}");
                let at = |(x, y): (usize, usize)| found.row(y * 32)[x * 96..x * 96 + 3].to_vec();
                (0..height).flat_map(pick).flat_map(at).collect()
            }
            (_, &[height, width]) => {
                assert_eq!(found.size(), (width, height), "{case}");
                assert!(found.pixels().all(|[r, g, b]| r == g && g == b), "{case}");
                found.pixels().map(|pixel| pixel[0]).collect()
            }
            (_, shape) => {
                assert_eq!([found.height(), found.width(), 3], shape, "{case}");
                found.into_data()
            }
        };
        let apart: Vec<u8> =
            found.iter().zip(expected.data()).map(|(a, b)| a.abs_diff(*b)).filter(|&d| d > 0).collect();
        println!("{case}: {} of {} values differ, by at most {:?}", apart.len(), found.len(), apart.iter().max());
        assert!(apart.is_empty(), "{case}: {} of {} values differ: {:?}", apart.len(), found.len(), apart.iter().max());
    }
}

#[test]
fn images_are_inverted_and_masks_are_minus_one() {
    let image = Rgb8Image::new(2, 1, vec![0, 51, 255, 102, 204, 1]).unwrap();
    assert_eq!(Preprocessor::Invert.run(&image, Some(64)).unwrap().data(), [255, 204, 0, 153, 51, 254]);
    let mask = Gray8Image::new(2, 1, vec![127, 128]).unwrap();
    assert_eq!(inpaint_condition(&image, &mask).unwrap(), [0.0, -1.0, 0.2, -1.0, 1.0, -1.0]);
    assert!(inpaint_condition(&image, &Image8::filled(1, 2, [0]).unwrap()).is_err());
}

#[test]
fn every_name_is_known_and_every_size_has_a_map_or_an_error() {
    for (name, _) in Preprocessor::NAMES {
        let preprocessor = Preprocessor::find(name).unwrap();
        for (width, height) in [(1, 1), (1, 70), (3, 2), (65, 64)] {
            let image = Image8::filled(width, height, [10, 200, 90]).unwrap();
            for side in [None, Some(1), Some(5), Some(64)] {
                match preprocessor.run(&image, side) {
                    Ok(map) => assert!(map.width() > 0, "{name}"),
                    Err(Error::Size(message)) => assert!(name == "color", "{name}: {message}"),
                    Err(error) => panic!("{name}: {error}"),
                }
            }
        }
    }
    let image = Image8::filled(8, 8, [0; 3]).unwrap();
    for wrong in [
        Preprocessor::Blur { sigma: 0.0 },
        Preprocessor::Blur { sigma: f64::NAN },
        Preprocessor::Blur { sigma: 1e9 },
        Preprocessor::Tile { factor: 0.5 },
        Preprocessor::Tile { factor: f64::NAN },
        Preprocessor::Tile { factor: 9.0 },
    ] {
        assert!(matches!(wrong.run(&image, None), Err(Error::Size(_))), "{wrong:?}");
    }
    assert!(Preprocessor::Invert.run(&image, Some(0)).is_ok());
    assert!(matches!(Preprocessor::Lineart.run(&image, Some(0)), Err(Error::Size(_))));
    assert!(matches!(Preprocessor::Lineart.run(&image, Some(usize::MAX)), Err(Error::Size(_))));
    assert_eq!(Preprocessor::find("depth"), None);
}
