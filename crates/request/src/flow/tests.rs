use kiln_families::{FAMILIES, FamilyRef, class_label, of_class};
use kiln_models::ModelFolder;
use kiln_scheduler::{Convention, Schedule, SchedulerConfig};
use kiln_testkit::{fixtures, shared_data};
use serde_json::Value;

use crate::error::{Error, Result};
use crate::job::Job;
use crate::options::{FlowOptions, Request};

const STATIC: &str = r#"{"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 3.0}"#;
const DYNAMIC: &str =
    r#"{"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 3.0, "use_dynamic_shifting": true}"#;

fn family(id: &str) -> FamilyRef {
    FAMILIES.iter().copied().find(|family| family.id() == id).unwrap()
}

fn sd1() -> ModelFolder {
    ModelFolder::open(&fixtures("models/sd1")).unwrap()
}

/// A job of SD1's folder, for parts that do not depend on the model.
fn job(request: Request) -> Job {
    request.resolve(&sd1()).unwrap()
}

fn euler(steps: usize) -> Request {
    Request { sampler: Some("euler".parse().unwrap()), steps: Some(steps), ..Request::default() }
}

fn schedule(job: &Job, config: &str, family: FamilyRef) -> Result<Schedule> {
    let config = SchedulerConfig::from_json(config).unwrap();
    job.schedule_from((&config, family), true, &Error::from)
}

fn sigmas(job: &Job, config: &str, id: &str) -> Vec<f64> {
    schedule(job, config, family(id)).unwrap().points().iter().map(|point| point.sigma).collect()
}

fn close(found: &[f64], expected: &[f64], tolerance: f64) -> bool {
    found.len() == expected.len() && found.iter().zip(expected).all(|(a, b)| (a - b).abs() < tolerance)
}

#[test]
fn levels_are_the_familys() {
    let job = job(euler(4));
    assert!(close(&sigmas(&job, STATIC, "sd3"), &[1.0, 0.8576923, 0.6021506, 0.0089286], 1e-6));
    assert!(close(&sigmas(&job, STATIC, "z_image"), &[1.0, 0.9, 0.75, 0.5], 1e-6));
    let shifted = Job { flow: FlowOptions { shift: Some(5.0), ..job.flow }, ..job };
    let found = sigmas(&shifted, STATIC, "sd3");
    assert!(close(&found, &[1.0, 0.9097071, 0.7173175, 0.0244141], 1e-6), "{found:?}");
    assert_eq!(
        sigmas(&shifted, DYNAMIC, "flux"),
        sigmas(&shifted, STATIC, "flux"),
        "a static shift replaces the other"
    );
}

#[test]
fn a_dynamic_shift_follows_the_size_of_each_pass() {
    let job = job(Request { width: Some(96), height: Some(64), hires_scale: Some(2.0), ..euler(4) });
    let second = &job.second_pass().unwrap().job;
    let found = sigmas(&job, DYNAMIC, "flux");
    assert!(close(&found, &[1.0, 0.8262588, 0.6131872, 0.3457252], 1e-6), "{found:?}");
    let larger = Job { width: 128, height: 96, ..job.clone() };
    let found = sigmas(&larger, DYNAMIC, "flux");
    assert!(close(&found, &[1.0, 0.8268412, 0.6141503, 0.3466447], 1e-6), "{found:?}");
    let noise = Job { init: crate::Init::Noise, image: job.image, ..second.clone() };
    assert!(sigmas(&noise, DYNAMIC, "flux")[1] > sigmas(&job, DYNAMIC, "flux")[1]);
    assert_ne!(job.schedule_key(), larger.schedule_key());
    let shifted = Job { flow: FlowOptions { shift: Some(2.0), ..job.flow }, ..job.clone() };
    assert_ne!(job.schedule_key(), shifted.schedule_key());
    // ComfyUI has one shift for all sizes.
    let comfy = |job: &Job| {
        let mut job = job.clone();
        (job.sampling.convention, job.scheduler) = (Convention::ComfyUi, "simple".parse().unwrap());
        sigmas(&job, DYNAMIC, "flux")
    };
    assert_eq!(comfy(&job), comfy(&larger));
}

/// `int(N - min(N strength, N))`: 8 of 10 steps at .75, where Stable Diffusion 1 runs 7.
#[test]
fn the_number_of_steps_on_an_image_is_rounded_up() {
    let started = |strength: f64, id: &str| {
        let job = job(euler(10));
        let init = crate::Init::FirstPass { strength, steps: None };
        let schedule = schedule(&Job { init, ..job }, STATIC, family(id)).unwrap();
        schedule.points().len() - schedule.start()
    };
    assert_eq!([0.75, 0.7, 1.0, 0.01].map(|strength| started(strength, "sd3")), [8, 7, 10, 1]);
}

#[test]
fn samplers_that_are_not_defined_are_refused_by_name() {
    let job = job(Request { sampler: Some("ddim".parse().unwrap()), ..euler(4) });
    let message = schedule(&job, STATIC, family("sd3")).unwrap_err().to_string();
    assert!(message.starts_with("sampler ddim is not defined for flow models"), "{message}");
}

/// LCM has noise levels on a flow model: AUTOMATIC1111's rule for samplers on timesteps is not for it.
#[test]
fn lcm_on_a_flow_model_is_on_noise_levels() {
    let request = Request { sampler: Some("lcm".parse().unwrap()), ..euler(4) };
    let mut job = job(request);
    let of_euler = self::job(euler(4));
    job.init = crate::Init::FirstPass { strength: 0.5, steps: None };
    job.image.rule = crate::Rule::Automatic1111;
    let with_lcm = schedule(&job, STATIC, family("sd3")).unwrap();
    let with_euler = Job { init: job.init.clone(), image: job.image, ..of_euler };
    let with_euler = schedule(&with_euler, STATIC, family("sd3")).unwrap();
    assert!(!with_lcm.config().is_on_timesteps());
    assert_eq!(with_lcm.start(), with_euler.start());
}

#[test]
fn a_negative_prompt_turns_guidance_on_where_a_pipeline_needs_it() {
    let job = Job { needs_negative_prompt: true, ..job(Request { cfg_scale: Some(3.0), ..euler(4) }) };
    assert!(job.lacks_negative_prompt() && !job.is_guided());
    let job = Job { negative_prompt: Some(String::new()), ..job };
    assert!(!job.lacks_negative_prompt() && job.is_guided());
    assert!(!Job { cfg_scale: 1.0, ..job }.is_guided());
}

#[test]
fn the_guidance_input_is_in_the_networks_unit() {
    let plain = job(euler(4));
    assert_eq!(plain.guidance_input(), None);
    let flux = Job { flow: FlowOptions { guidance: Some(3.5), ..plain.flow }, ..plain.clone() };
    assert_eq!(flux.guidance_input(), Some(3500.0));
    assert_eq!(Job { guidance_inside: true, cfg_scale: 8.5, ..plain }.guidance_input(), Some(7500.0));
}

#[test]
fn shift_and_guidance_are_written_and_read() {
    let job = job(euler(4));
    let job = Job { flow: FlowOptions { shift: Some(3.0), guidance: Some(3.5) }, ..job };
    let text = crate::parameters(&job, &crate::FilesInText { model: "m".into(), ..Default::default() }, 0);
    assert!(text.contains("Shift: 3, Distilled CFG Scale: 3.5"), "{text}");
    let info = kiln_media::Infotext::parse(&text).unwrap();
    let (read, warnings) = crate::settings::from_infotext::request(&info, family("flux"));
    assert_eq!((read.shift, read.guidance, warnings), (Some(3.0), Some(3.5), vec![]));
    let (read, warnings) = crate::settings::from_infotext::request(&info, family("sd"));
    assert_eq!((read.shift, read.guidance, warnings.len()), (None, None, 2));
    assert!(warnings[0].starts_with("Shift: 3.0 is left out: it works with flow models, and "), "{warnings:?}");
}

#[test]
fn skip_layer_options_need_its_scale() {
    let request = Request { slg_layers: Some("1,2".parse().unwrap()), ..Request::default() };
    let message = request.guidance_options().unwrap_err().to_string();
    assert_eq!(message, "`slg_layers` is 1,2, expected `slg_scale` too");
    let request = Request { slg_scale: Some(2.8), ..request };
    assert_eq!(request.guidance_options().unwrap().slg_layers.bits(), 0b110);
}

#[test]
fn an_input_image_has_the_models_strength() {
    let defaults = kiln_models::Defaults { strength: 0.6, mask_strength: 1.0, ..sd1().defaults() };
    let image = Request { init: Some("a.png".into()), ..Request::default() };
    let strength = |request: &Request| request.with_default_strength(defaults).map(|with| with.strength);
    assert_eq!(strength(&image), Some(Some(0.6)));
    assert_eq!(strength(&Request { mask: Some("m.png".into()), ..image.clone() }), Some(Some(1.0)));
    assert_eq!(strength(&Request { strength: Some(0.75), ..image.clone() }), None);
    assert_eq!(strength(&Request::default()), None);
    assert!(image.with_default_strength(sd1().defaults()).is_none(), "the option's own default");
}

#[test]
fn guidance_without_a_negative_prompt_is_noted() {
    let request = Request { cfg_scale: Some(3.0), cfg_norm: Some(1.0), ..euler(4) };
    let notes = |negative_prompt: Option<String>| {
        let resolved = job(Request { cfg_norm: None, ..request.clone() });
        let job = Job { needs_negative_prompt: true, negative_prompt, ..resolved };
        request.notes(&job, &sd1()).0
    };
    let found = notes(None);
    assert!(found[0].starts_with("`cfg_scale` has no effect: there is no `negative_prompt`"), "{found:?}");
    assert!(found[1].starts_with("`cfg_norm` has no effect: there is no guidance"), "{found:?}");
    assert!(notes(Some("night".into())).is_empty());
}

/// SD1's folder with a flow model's schedule, as some fine-tuned U-Nets have it.
fn flow_folder(folder: &tempfile::TempDir) -> std::path::PathBuf {
    let (from, to) = (fixtures("models/sd1"), folder.path().join("flow"));
    copy(&from, &to);
    std::fs::write(to.join("scheduler/scheduler_config.json"), STATIC).unwrap();
    to
}

fn copy(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(|entry| entry.unwrap()) {
        let to = to.join(entry.file_name());
        match entry.path().is_dir() {
            true => copy(&entry.path(), &to),
            false => drop(std::fs::copy(entry.path(), to).unwrap()),
        }
    }
}

#[test]
fn a_flow_model_is_resolved_with_its_options() {
    let folder = tempfile::tempdir().unwrap();
    let path = flow_folder(&folder);
    let model = ModelFolder::open(&path).unwrap();
    let request = Request { steps: Some(4), shift: Some(5.0), hires_scale: Some(2.0), ..Request::default() };
    let job = request.resolve(&model).unwrap();
    assert_eq!(job.sampler.id(), "euler", "the sampler of the configuration");
    let levels = |job: &Job| job.schedule(&model).unwrap().points().iter().map(|point| point.sigma).collect::<Vec<_>>();
    assert!(close(&levels(&job), &[1.0, 0.9097071, 0.7173175, 0.0244141], 1e-6));
    assert_eq!(job.request_of(0).shift, Some(5.0));
    let refused = |request: Request| request.resolve(&model).unwrap_err().to_string();
    let message = refused(Request { sampler: Some("plms".parse().unwrap()), ..Request::default() });
    assert!(message.starts_with("sampler pndm is not defined for flow models"), "{message}");
    let message = refused(Request { slg_scale: Some(2.8), ..Request::default() });
    let expected = "`slg_scale` is 2.8, expected none: it works with transformers of Stable Diffusion 3, and flow has";
    assert!(message.starts_with(expected), "{message}");
    let message = refused(Request { shift: Some(0.0), ..Request::default() });
    assert!(message.starts_with("`shift` is 0.0, expected a number from 0.01 to 100"), "{message}");
    let options =
        kiln_models::ModelOptions { prediction: Some(kiln_models::Prediction::Epsilon), ..Default::default() };
    let message = ModelFolder::open_with(&path, &options).unwrap_err().to_string();
    assert!(message.contains("`prediction` is epsilon, expected none: this model predicts"), "{message}");
}

/// The request of a reference case.
fn case_request(case: &Value) -> Request {
    let number = |name: &str| case[name].as_f64();
    let whole = |name: &str| case[name].as_u64().map(|value| value as usize);
    let text = |name: &str| case[name].as_str();
    let file = |name: &str| text(name).map(|path| shared_data(&format!("families/{path}")));
    Request {
        prompt: text("prompt").unwrap().into(),
        negative_prompt: text("negative").map(String::from),
        width: whole("width"),
        height: whole("height"),
        steps: whole("steps"),
        cfg_scale: number("cfg"),
        seed: case["seed"].as_u64(),
        sampler: Some(text("sampler").unwrap_or("euler").parse().unwrap()),
        scheduler: text("scheduler").unwrap_or("default").parse().unwrap(),
        init: file("init"),
        mask: file("mask"),
        strength: number("strength"),
        ..Request::default()
    }
}

/// The timesteps that the network gets and all levels are diffusers', for every case. Models that cannot be opened yet are
/// replaced by their scheduler's configuration and their family.
#[test]
#[ignore = "needs ../shared/data"]
fn shared_data_schedules_are_diffusers() {
    let read = |path: &str| std::fs::read_to_string(shared_data(&format!("families/{path}"))).unwrap();
    let cases: Vec<Value> = serde_json::from_str(&read("cases.json")).unwrap();
    assert_eq!(cases.len(), 33);
    let numbers = |value: &Value| value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect::<Vec<_>>();
    for case in cases {
        let name = case["name"].as_str().unwrap();
        let folder = format!("models/{}", case["model"].as_str().unwrap());
        let request = case_request(&case);
        let found = match ModelFolder::open(&shared_data(&format!("families/{folder}"))) {
            Ok(model) => {
                let guidance = case["guidance"].as_f64().filter(|_| model.takes_guidance());
                let request = Request { shift: case["shift"].as_f64(), guidance, ..request };
                request.resolve(&model).unwrap().schedule(&model).unwrap().as_ref().clone()
            }
            Err(_) => {
                let class: Value = serde_json::from_str(&read(&format!("{folder}/model_index.json"))).unwrap();
                let class = class["_class_name"].as_str().unwrap();
                let family = of_class(class).or_else(|| class_label(class)?.family).unwrap();
                let job = job(request);
                let job = Job { flow: FlowOptions { shift: case["shift"].as_f64(), guidance: None }, ..job };
                schedule(&job, &read(&format!("{folder}/scheduler/scheduler_config.json")), family).unwrap()
            }
        };
        let timesteps = found.timesteps().split_off(found.start());
        assert!(close(&timesteps, &numbers(&case["timesteps"]), 1.1e-4), "{name}: {timesteps:?}");
        let mut levels: Vec<f64> = found.points().iter().map(|point| point.sigma).collect();
        levels.push(0.0);
        assert!(close(&levels, &numbers(&case["schedule"]), 1e-6), "{name}: {levels:?}");
    }
}
