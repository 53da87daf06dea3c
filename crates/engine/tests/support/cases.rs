//! Cases of fixtures that were made with diffusers, and what several test programs do with them.

use kiln_engine::{Engine, GeneratedImage, Init, InitImage, InitLatents, Job, Mask, ModeChoice, Request, SamplerKind};
use kiln_testkit::{Fixture, fixtures};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::{bits, cpu_in, images, request, tiny};

/// A case of a list: what all have, and what the cases of one list have besides.
#[derive(Deserialize)]
pub struct Case<T> {
    pub kind: String,
    pub name: String,
    prompt: String,
    seed: u64,
    steps: usize,
    cfg_scale: f64,
    #[serde(default = "one")]
    images: usize,
    sampler: SamplerKind,
    #[serde(flatten)]
    pub more: T,
}

fn one() -> usize {
    1
}

impl<T: DeserializeOwned> Case<T> {
    /// The cases of the fixture `file` for the model `kind`, at least `least`.
    #[track_caller]
    pub fn read(file: &str, kind: &str, least: usize) -> Vec<Self> {
        let text = std::fs::read_to_string(fixtures(file)).unwrap();
        let cases: Vec<Self> = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{file}: {error}"));
        let cases: Vec<Self> = cases.into_iter().filter(|case| case.kind == kind).collect();
        assert!(cases.len() >= least, "{file} has {} cases for {kind}", cases.len());
        cases
    }
}

impl<T> Case<T> {
    /// What all cases say of a request, for images of this width and height.
    pub fn request(&self, size: (usize, usize)) -> Request {
        Request {
            cfg_scale: Some(self.cfg_scale),
            sampler: Some(self.sampler.into()),
            batch_size: Some(self.images),
            ..request(&self.prompt, size, self.steps, self.seed)
        }
    }

    /// The name of its result in the list's tensors.
    pub fn key(&self) -> String {
        format!("{}.{}", self.kind, self.name)
    }
}

/// The image of `image_to_image.safetensors`.
pub fn init_image(latents: InitLatents) -> InitImage {
    InitImage::new(&Fixture::open("image_to_image.safetensors").tensor("image"), latents).unwrap()
}

/// The mask of `image_to_image.safetensors`.
pub fn init_mask() -> Mask {
    Mask::new(&Fixture::open("image_to_image.safetensors").tensor("mask")).unwrap()
}

/// What the images of a case begin with: those for the tasks `img2img` and `inpaint`, and noise for others.
pub fn init_of_task(task: &str, strength: f64) -> Option<Init> {
    let image = || init_image(InitLatents::Sample);
    match task {
        "img2img" => Some(Init::Image { image: image(), strength }),
        "inpaint" => Some(Init::Masked { image: image(), mask: init_mask(), strength }),
        _ => None,
    }
}

/// The job of a request whose images begin with `init`.
#[track_caller]
pub fn job_with(engine: &Engine, request: &Request, init: Option<Init>) -> Job {
    let job = request.resolve(engine.model()).unwrap();
    match init {
        Some(init) => job.with_init(init, engine.model()).unwrap(),
        None => job,
    }
}

/// The images of a batch, each of which has the bits of the image that its seed makes alone.
#[track_caller]
pub fn images_as_alone(engine: &mut Engine, batch: &Request) -> Vec<GeneratedImage> {
    let all = images(engine, batch);
    assert!(all.len() > 1);
    for (i, image) in all.iter().enumerate() {
        let seed = batch.seed.map(|seed| seed + i as u64);
        let alone = images(engine, &Request { batch_size: None, seed, ..batch.clone() });
        assert!(alone[0].rgb == image.rgb && bits(&alone) == bits(std::slice::from_ref(image)), "image {i}");
    }
    all
}

/// Compares the images of the tiny model `kind` in every memory mode with those that were made before, bit by bit.
#[track_caller]
pub fn assert_same_in_every_mode(kind: &str, request: &Request, expected: &[GeneratedImage]) {
    for mode in [ModeChoice::Full, ModeChoice::Medvram, ModeChoice::Lowvram] {
        let found = images(&mut tiny(kind, &cpu_in(mode)), request);
        assert!(bits(&found) == bits(expected), "{kind} {mode:?}");
    }
}
