//! Round trip of the settings in images, over many requests.

use std::path::PathBuf;

use kiln_media::Infotext;
use kiln_models::{ModelFolder, SD};
use kiln_prompt::{ChunkCut, Emphasis};
use kiln_scheduler::{Convention, InitialNoise, NoisePart, SamplerKind, SigmaRange, SigmaSchedule, UniPcScale};
use kiln_testkit::fixtures;

use super::from_infotext;
use crate::job::Job;
use crate::lora::{LoraName, LoraUse};
use crate::options::GuidanceOptions;
use crate::parameters::FilesInText;
use crate::parameters::parameters;
use crate::request::{Request, Rng};

/// Draws of a fixed sequence: SplitMix64.
struct Draws(u64);

impl Draws {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, count: usize) -> usize {
        (self.next() % count as u64) as usize
    }

    fn one<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())].clone()
    }

    /// A value half of the time.
    fn maybe<T>(&mut self, value: impl FnOnce(&mut Self) -> T) -> Option<T> {
        (self.below(2) == 0).then(|| value(self))
    }

    /// From 0 to `most`, with few digits or with all.
    fn number(&mut self, most: f64) -> f64 {
        let part = (self.next() >> 11) as f64 / (1u64 << 53) as f64 * most;
        if self.below(2) == 0 { (part * 100.0).floor() / 100.0 } else { part }
    }
}

const PROMPTS: [&str; 14] = [
    "a cat# a note {x|y}\nand a dog",
    "a very long text with commas, and more of it, so that it has more than seventy-five bytes in all",
    "a red apple",
    "a {red|green} apple, __size__",
    "(a:1.3) [b], [c:d:0.5], [e|f] AND g :0.7",
    "two\nlines: \"quoted\", \\ and more",
    "Steps: 20",
    "ein Äpfelchen, 20 °C",
    "赤いりんご 🍎",
    "<lora:ink:0.8> a cat",
    "{<lora:ink:1>|<lora:wash:0.3:0.7>} a cat",
    "\\{a|b} {{c|d}|e}",
    "embedding1, a_b c",
    "",
];

fn request(draws: &mut Draws) -> Request {
    let scheduler = draws.one(&SigmaSchedule::ALL);
    let sampler = draws.one(&SamplerKind::ALL);
    let lora = |draws: &mut Draws| LoraUse {
        lora: LoraName::File(PathBuf::from(draws.one(&["ink.safetensors", "loras/wash v2.pt"]))),
        text: draws.number(1.0) as f32,
        unet: draws.number(1.0) as f32,
    };
    let threshold = draws.maybe(|draws| draws.number(1.0));
    let mut request = Request {
        prompt: draws.one(&PROMPTS).into(),
        negative_prompt: draws.maybe(|draws| draws.one(&PROMPTS).into()),
        width: draws.maybe(|draws| 8 * (1 + draws.below(100))),
        height: draws.maybe(|draws| 8 * (1 + draws.below(100))),
        steps: draws.maybe(|draws| 1 + draws.below(30)),
        cfg_scale: draws.maybe(|draws| draws.number(12.0)),
        seed: draws.maybe(Draws::next),
        sampler: draws.maybe(|_| sampler.into()),
        scheduler,
        convention: draws.one(&[Convention::Diffusers, Convention::Automatic1111, Convention::ComfyUi]),
        sigma_range: draws.maybe(|draws| draws.one(&[SigmaRange::Table, SigmaRange::Spacing])),
        sigma_min: draws.maybe(|draws| 0.01 + draws.number(1.0)),
        sigma_max: draws.maybe(|draws| 5.0 + draws.number(9.0)),
        discard_penultimate_sigma: draws.maybe(|draws| draws.below(2) == 0),
        initial_noise: draws.maybe(|draws| draws.one(&[InitialNoise::Sigma, InitialNoise::Variance])),
        unipc_variant: draws.maybe(|draws| draws.one(&[UniPcScale::Bh1, UniPcScale::Bh2])),
        eta: draws.maybe(|draws| draws.number(1.0)),
        s_churn: draws.maybe(|draws| draws.number(5.0)),
        s_tmin: draws.maybe(|draws| draws.number(1.0)),
        s_tmax: draws.maybe(|draws| 1.0 + draws.number(10.0)),
        s_noise: draws.maybe(|draws| draws.number(2.0)),
        rho: draws.maybe(|draws| 1.0 + draws.number(8.0)),
        guidance_rescale: draws.maybe(|draws| draws.number(1.0)),
        guidance_start: draws.maybe(|draws| draws.number(0.4)),
        guidance_end: draws.maybe(|draws| 0.5 + draws.number(0.5)),
        dynamic_thresholding: threshold,
        mimic_scale: threshold.and_then(|_| draws.maybe(|draws| draws.number(7.0))),
        ensd: draws.maybe(|draws| draws.next() as i64),
        subseed: draws.maybe(Draws::next),
        subseed_strength: draws.maybe(|draws| draws.number(1.0)),
        noise_part: draws.maybe(|draws| NoisePart::new(draws.below(3), 32)).flatten(),
        seed_resize_from: draws.maybe(|draws| (8 * (1 + draws.below(100)), 64)),
        rng: draws.one(&[Rng::Cpu, Rng::Cuda]),
        loras: (0..draws.below(3)).map(|_| lora(draws)).collect(),
        batch_count: draws.maybe(|draws| 1 + draws.below(3)),
        batch_size: draws.maybe(|draws| 1 + draws.below(3)),
        emphasis: draws.one(&Emphasis::ALL),
        clip_skip: draws.maybe(|draws| 1 + draws.below(2)),
        comma_backtrack: draws.maybe(|draws| draws.below(75)),
        chunk_cut: draws.one(&ChunkCut::ALL),
        pad_conds: draws.maybe(|draws| draws.below(2) == 0),
        keep_comments: draws.below(2) == 0,
        ..Request::default()
    };
    if draws.below(4) == 0 {
        let sigmas: Vec<f64> = (1..5).rev().map(|level| f64::from(level) + draws.number(0.9)).collect();
        (request.sigmas, request.steps, request.scheduler) = (Some(sigmas), None, SigmaSchedule::Default);
    }
    // The model's own sampler is PNDM, which takes none of these.
    let sampler = request.sampler;
    request.sampler = sampler.or(Some(SamplerKind::Pndm.into()));
    request.drop_unfit();
    request.sampler = sampler;
    request
}

/// Jobs of many requests. What a schedule refuses is left out, which most are not.
fn jobs(model: &ModelFolder, count: usize) -> Vec<Job> {
    let mut draws = Draws(7);
    let jobs: Vec<Job> = (0..count).filter_map(|_| request(&mut draws).resolve(model).ok()).collect();
    assert!(jobs.len() > count / 2, "{} of {count}", jobs.len());
    jobs
}

/// The differences between a job of many images and that of one of them: the texts, of which choices are made, and
/// counts.
fn alone(job: &Job, index: usize) -> Job {
    let prompts = job.prompts(index);
    let mut seeds = job.seeds;
    match seeds.subseed_strength > 0.0 {
        true => seeds.subseed = seeds.subseed.wrapping_add(index as u64),
        false => seeds.subseed = 0, // drawn by nobody
    }
    seeds.part = seeds.part.and_then(|part| part.after(index));
    Job {
        prompt: prompts.prompt.clone(),
        negative_prompt: prompts.negative_prompt.clone(),
        seed: job.seed_of(index),
        seeds,
        batch_count: 1,
        batch_size: 1,
        hires: None,
        parsed: Default::default(),
        ..job.clone()
    }
}

#[test]
fn the_request_of_a_picture_makes_its_job() {
    let model = ModelFolder::open(&fixtures("models/sd1")).unwrap();
    for job in jobs(&model, 400) {
        for index in [0, job.images() - 1] {
            let request = job.request_of(index);
            let json = super::OwnSettings { request: request.clone(), ..Default::default() }.to_json();
            let read = super::OwnSettings::from_json(&json).unwrap().0.request;
            assert_eq!(read, request, "{json}");
            let again = read.resolve(&model).unwrap();
            let mut expected = alone(&job, index);
            // Neither folders nor tags in choices stay.
            expected.prompt = again.prompt.clone();
            assert!(alone(&job, index).prompt.ends_with(&again.prompt), "{}", again.prompt);
            for lora in &mut expected.loras {
                if let LoraName::File(path) = &mut lora.lora {
                    *path = path.file_name().unwrap().into();
                }
            }
            (expected.literal_prompt, expected.literal_negative_prompt) =
                (again.literal_prompt, again.literal_negative_prompt);
            assert_eq!(again, expected, "{json}");
            let texts = again.prompts(0);
            assert_eq!((&texts.prompt, &texts.negative_prompt), (&again.prompt, &again.negative_prompt));
        }
    }
}

/// Removes values that the text has no field for, or writes in another way.
fn as_text_tells(job: &Job, read: &Request) -> Request {
    let mut expected = job.request_of(0);
    let weighed = [Some(&expected.prompt), expected.negative_prompt.as_ref()];
    if !weighed.into_iter().flatten().any(|text| text.contains(['(', '['])) {
        expected.emphasis = Emphasis::Original; // there is nothing that it weighs
    }
    expected.negative_prompt = expected.negative_prompt.filter(|text| !text.is_empty());
    expected.prompt = crate::lora::with_tags(&expected.prompt, &expected.prompt, &job.loras).trim().into();
    expected.loras.clear();
    expected.comma_backtrack = None;
    expected.chunk_cut = ChunkCut::Comma;
    expected.keep_comments = true;
    // The key for padding is written only if a text may be long.
    expected.pad_conds = expected.pad_conds.or(read.pad_conds.filter(|&padded| padded));
    expected.clip_skip = expected.clip_skip.filter(|&skip| skip > 1);
    (expected.literal_prompt, expected.literal_negative_prompt) = (true, true);
    if job.guidance == GuidanceOptions::default() {
        assert_eq!(read.guidance_end, None);
    }
    expected
}

#[test]
fn every_field_that_is_written_is_read_back() {
    let model = ModelFolder::open(&fixtures("models/sd1")).unwrap();
    let files = FilesInText {
        model: "a, \"b\": c".into(),
        model_hash: Some("0123456789".into()),
        refiner: None,
        loras: vec![("ink".into(), "0123456789ab".into()), ("wash v2".into(), "ba9876543210".into())],
    };
    for job in jobs(&model, 400) {
        let text = parameters(&job, &files, 0);
        let info = Infotext::parse(&text).unwrap_or_else(|| panic!("{text}"));
        let (read, warnings) = from_infotext::request(&info, SD);
        assert_eq!((&read, warnings), (&as_text_tells(&job, &read), vec![]), "{text}");
        assert_eq!(info.get("Model"), Some(files.model.as_str()));
        assert_eq!(info.get("Lora hashes"), Some("ink: 0123456789ab, wash v2: ba9876543210"));
    }
}
