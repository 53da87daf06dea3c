//! Control networks in the engine: parity with diffusers, their images, modes and batches.

mod diffusers;
mod inputs;
mod runs;

use std::path::{Path, PathBuf};

use kiln_engine::{ControlUse, Request, Rule, SamplerKind};
use kiln_media::{Rgb8Image, StillFormat, encode};
use kiln_testkit::{TinyAdapter, TinyControl, TinyLllite, TinyUnion, control_pixels};

use crate::support::request;

/// Largest error of final latents in f32, in their standard deviations.
const BOUND: f64 = 1e-3;

/// The size of the control image in the cases, which is resized.
const CONTROL_SIZE: (usize, usize) = (80, 48);

/// A folder with a control image and networks.
struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (width, height) = CONTROL_SIZE;
        let image = Rgb8Image::new(width, height, control_pixels(width, height)).unwrap();
        std::fs::write(folder.path().join("control.png"), encode(&image, StillFormat::Png).unwrap()).unwrap();
        Self(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A network for the model `kind`, which is written where it is not there yet.
    fn net(&self, kind: &str, number: u32, is_small: bool) -> PathBuf {
        let path = self.path(&format!("{kind}-{number}-{is_small}"));
        if !path.exists() {
            TinyControl { number, is_small }.write(kind, &path);
        }
        path
    }

    /// A network of another form: a T2I-Adapter, a Union network, or a ControlNet of means.
    fn other(&self, kind: &str, form: &str, number: u32) -> PathBuf {
        let path = self.path(&format!("{kind}-{form}-{number}"));
        if path.exists() {
            return path;
        }
        match form {
            "union" => TinyUnion.write(kind, &path),
            "lllite" => TinyLllite { number }.write(&path),
            "pool" => {
                TinyControl::full(0).write(kind, &path);
                let mut config = TinyControl::full(0).config(kind);
                config["global_pool_conditions"] = true.into();
                std::fs::write(path.join("config.json"), config.to_string()).unwrap();
            }
            form => {
                let known = ["full", "gray", "light", "full_xl"].into_iter().find(|known| *known == form);
                TinyAdapter::new(known.unwrap(), number).write(&path);
            }
        }
        path
    }

    /// A network with the control image.
    fn control(&self, net: &Path) -> ControlUse {
        ControlUse { image: Some(self.path("control.png")), ..ControlUse::new(net) }
    }
}

/// The request with a second pass by diffusers' rules.
fn hires(strength: f64, request: Request) -> Request {
    Request { hires_scale: Some(1.5), hires_strength: Some(strength), rule: Some(Rule::Diffusers), ..request }
}

/// A request with two networks, one of which acts on the conditional rows of a part of the evaluations.
fn two_nets(files: &Files) -> Request {
    let first = ControlUse { weight: 0.7, ..files.control(&files.net("sd1", 0, false)) };
    let second = ControlUse { guess: true, end: 0.5, ..files.control(&files.net("sd1", 1, false)) };
    Request {
        controls: vec![first, second],
        batch_size: Some(3),
        sampler: Some(SamplerKind::EulerA.into()),
        ..request("a pear", (64, 64), 4, 7)
    }
}
