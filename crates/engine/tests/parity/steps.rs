//! Teacher-forced steps: the denoiser's guided output for the latents of diffusers' run, compared with diffusers'
//! output. Errors of earlier steps do not accumulate, so the bounds are tight in every type.

use candle_core::DType;
use kiln_testkit::{Fixture, Parity, Target};

use crate::cases::{Case, EMOJI, folder};
use crate::limits;
use crate::support::{from_env, load};

/// Largest error in f32, in standard deviations.
const F32_BOUND: f64 = 5e-4;

/// A call of the denoiser in the fixtures.
pub struct Call {
    /// The case.
    pub case: String,
    /// The index of the call in the run.
    pub index: usize,
}

impl Call {
    /// The calls in a fixture, by case name.
    pub fn all(fixture: &Fixture) -> Vec<Self> {
        let calls = fixture.keys().into_iter().filter_map(|key| {
            let (case, index) = key.strip_suffix(".output")?.rsplit_once('.')?;
            Some(Self { case: case.into(), index: index.parse().ok()? })
        });
        calls.collect()
    }

    /// `{case}.{call}`.
    pub fn name(&self) -> String {
        format!("{}.{}", self.case, self.index)
    }

    /// The name of one of its tensors.
    pub fn key(&self, what: &str) -> String {
        format!("{}.{what}", self.name())
    }
}

fn check(model: &str) {
    let target = Target::from_env();
    let cases = Case::all(model);
    let fixture = Fixture::open(&format!("steps_{model}.safetensors"));
    let mut engine = load(&folder(model), &from_env());
    let parity = Parity::new("steps", target.label(model));
    let calls = Call::all(&fixture);
    assert!(calls.len() >= 6, "{} calls", calls.len());
    assert_eq!(2 * calls.len(), fixture.keys().len(), "every tensor belongs to a call");
    let limits = limits::steps(model, &fixture, target.dtype);
    for call in calls {
        let case = cases.iter().find(|case| case.name == call.case).unwrap();
        let job = case.request().resolve(engine.model()).unwrap();
        let latents = fixture.tensor(&call.key("latents"));
        let (stage, expected) = (call.name(), fixture.tensor(&call.key("output")));
        let found = engine.evaluate(&job, &latents, call.index).unwrap();
        if target.dtype == DType::F32 {
            parity.check(&stage, &found, &expected, F32_BOUND);
        }
        parity.check_similar(&stage, &found, &expected, limits[&stage]);
    }
}

#[test]
fn sd1_steps() {
    check("sd1");
}

#[test]
fn sd2v_steps() {
    check("sd2v");
}

#[test]
fn sdxl_steps() {
    check("sdxl");
}

#[test]
fn emoji_steps() {
    check(EMOJI);
}
