//! The pixels that `tests/fixtures/pixels.py` wrote.

use std::path::PathBuf;

use kiln_media::{Gray8Image, Image8, Rgb8Image};
use safetensors::SafeTensors;

pub fn fixtures() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures"))
}

/// The tensors of a fixture file.
pub struct Pixels(Vec<u8>);

impl Pixels {
    pub fn read() -> Self {
        Self(std::fs::read(fixtures().join("pixels.safetensors")).unwrap())
    }

    fn tensors(&self) -> SafeTensors<'_> {
        SafeTensors::deserialize(&self.0).unwrap()
    }

    /// The names below `prefix`, split at slashes.
    pub fn cases(&self, prefix: &str) -> Vec<Vec<String>> {
        let tensors = self.tensors();
        let mut names: Vec<&str> = tensors.names().into_iter().filter(|name| name.starts_with(prefix)).collect();
        names.sort_unstable();
        assert!(!names.is_empty(), "{prefix}");
        names.iter().map(|name| name.split('/').map(Into::into).collect()).collect()
    }

    pub fn has(&self, name: &str) -> bool {
        self.tensors().tensor(name).is_ok()
    }

    /// The number of channels of a tensor.
    pub fn channels(&self, name: &str) -> usize {
        self.tensors().tensor(name).unwrap().shape()[2]
    }

    pub fn image<const C: usize>(&self, name: &str) -> Image8<C> {
        let tensors = self.tensors();
        let tensor = tensors.tensor(name).unwrap_or_else(|error| panic!("{name}: {error}"));
        let &[height, width, channels] = tensor.shape() else { panic!("{name}") };
        assert_eq!(channels, C, "{name}");
        Image8::new(width, height, tensor.data().to_vec()).unwrap()
    }

    pub fn rgb(&self, name: &str) -> Rgb8Image {
        self.image(name)
    }

    pub fn gray(&self, name: &str) -> Gray8Image {
        self.image(name)
    }
}

/// How far pixels are from the expected ones, in levels of 255.
#[derive(Clone, Copy, Debug, Default)]
pub struct Deviation {
    pub most: u8,
    different: usize,
    sum: usize,
    count: usize,
}

impl Deviation {
    pub fn add<const C: usize>(&mut self, found: &Image8<C>, expected: &Image8<C>, case: &str) {
        assert_eq!(found.size(), expected.size(), "{case}");
        for (a, b) in found.data().iter().zip(expected.data()) {
            let levels = a.abs_diff(*b);
            self.most = self.most.max(levels);
            self.different += usize::from(levels > 0);
            self.sum += usize::from(levels);
            self.count += 1;
        }
    }

    pub fn mean(&self) -> f64 {
        self.sum as f64 / self.count as f64
    }

    pub fn report(&self, what: &str) {
        let share = 100.0 * self.different as f64 / self.count as f64;
        println!(
            "{what}: at most {}, mean {:.4}, {share:.3} % of {} values differ",
            self.most,
            self.mean(),
            self.count
        );
    }
}

pub fn size(text: &str) -> (usize, usize) {
    let (width, height) = text.split_once('x').unwrap();
    (width.parse().unwrap(), height.parse().unwrap())
}
