//! Parts of a prompt with places and blends of texts against ComfyUI's rules, in every mode and batch.

use kiln_engine::{Engine, Job, ModeChoice, Request};
use kiln_testkit::{Fixture, Parity, fixtures};
use serde::Deserialize;

use crate::support::{bits, cpu, cpu_in, latents, run, tiny};

/// Largest error of final latents in f32, in their standard deviations.
const BOUND: f64 = 1e-3;

/// A case of `cases.json`.
#[derive(Deserialize)]
struct Case {
    kind: String,
    name: String,
    request: Request,
}

impl Case {
    /// All cases of the model `kind`.
    fn all(kind: &str) -> Vec<Self> {
        let text = std::fs::read_to_string(fixtures("regions/cases.json")).unwrap();
        let cases: Vec<Self> = serde_json::from_str(&text).unwrap();
        cases.into_iter().filter(|case| case.kind == kind).collect()
    }

    /// The case of this name for `sd1`.
    fn named(name: &str) -> Self {
        Self::all("sd1").into_iter().find(|case| case.name == name).unwrap()
    }

    fn job(&self, engine: &Engine, change: impl FnOnce(&mut Request)) -> Job {
        let mut request = self.request.clone();
        for mask in request.regions.iter_mut().filter_map(|region| region.mask.as_mut()) {
            *mask = fixtures("regions").join(&mask);
        }
        change(&mut request);
        request.resolve(engine.model()).unwrap_or_else(|error| panic!("{}: {error}", self.name))
    }

    /// The bits of its latents.
    fn bits(&self, engine: &mut Engine, change: impl FnOnce(&mut Request)) -> Vec<u32> {
        let job = self.job(engine, change);
        bits(&run(engine, &job))
    }
}

#[test]
fn latents_are_those_of_the_reference() {
    let fixture = Fixture::open("regions/latents.safetensors");
    for kind in ["sd1", "sdxl"] {
        let mut engine = tiny(kind, &cpu());
        let cases = Case::all(kind);
        assert!(cases.len() >= 8, "{kind}");
        for case in cases {
            let parity = Parity::new("regions", format!("{kind} f32"));
            let job = case.job(&engine, |_| {});
            let expected = fixture.tensor(&format!("{kind}.{}", case.name));
            parity.check(&case.name, &latents(&run(&mut engine, &job)), &expected, BOUND);
        }
    }
}

#[test]
fn an_image_is_the_same_in_every_mode_and_batch() {
    let mut engine = tiny("sd1", &cpu());
    for case in ["whole_and_parts", "masked", "blended_longer"].map(Case::named) {
        let expected = case.bits(&mut engine, |_| {});
        let batch = case.bits(&mut engine, |request| request.batch_size = Some(2));
        assert!(batch[..expected.len()] == expected, "{}", case.name);
        for mode in [ModeChoice::Medvram, ModeChoice::Lowvram] {
            let mut other = tiny("sd1", &cpu_in(mode));
            assert!(case.bits(&mut other, |_| {}) == expected, "{}: {mode:?}", case.name);
        }
    }
}

/// Rectangles in pixels keep their place in a larger second pass, and shares grow with it.
#[test]
fn a_second_pass_has_its_own_rectangles() {
    let mut engine = tiny("sd1", &cpu());
    let case = Case::named("whole_and_parts");
    let larger = |request: &mut Request| request.hires_scale = Some(1.5);
    let found = case.bits(&mut engine, larger);
    let moved = case.bits(&mut engine, |request| {
        larger(request);
        request.regions[0].share = Some([0.3, 0.1, 0.45, 0.5]);
    });
    assert!(found != moved);
}

/// A region that changes nothing leaves the image of the prompt alone.
#[test]
fn a_region_of_the_whole_image_changes_nothing() {
    let mut engine = tiny("sd1", &cpu());
    let case = Case::named("blended");
    let plain = case.bits(&mut engine, |request| request.regions.clear());
    let whole = case.bits(&mut engine, |request| request.regions[0].blend.clear());
    let blended = case.bits(&mut engine, |_| {});
    assert!(plain == whole && plain != blended);
}
