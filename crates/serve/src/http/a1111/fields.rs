//! From the fields of `txt2img` and `img2img` to a request.

use kiln_engine::{
    Convention, FamilyRef, Infotext, LoraName, Request, Rng, Rule, SD, SamplerChoice, SamplerKind, find_lora,
};
use kiln_media::DecodeOptions;
use kiln_request::settings::from_infotext;
use kiln_request::{FieldError, JobSpec, RequestBuilder};
use serde_json::{Map, Value, json};

use super::control::Place;
use super::left_out::{left_out, of_other_routes};
use super::options::Options;
use super::scripts::{Scripts, no_script, refiner};
use super::{forge, hires};
use crate::app::App;
use crate::error::{Refused, RefusedKind};
use crate::http::Client;
use crate::http::json_body::text;
use crate::http::settings::without_files;
use crate::named_files::ip_adapters;
use crate::scheduler::Previews;

/// A request, and what of it was left out.
pub(super) struct Fields {
    pub(super) request: Request,
    pub(super) options: Options,
    pub(super) warnings: Vec<String>,
    /// The images of the request in Base64: what to begin with, one for each result of a batch, and a mask.
    pub(super) inits: Vec<String>,
    pub(super) mask: Option<String>,
    /// Maps of preprocessors, PNG files in Base64.
    pub(super) maps: Vec<String>,
    pub(super) previews: Previews,
    pub(super) task_id: Option<String>,
    pub(super) send_images: bool,
    pub(super) include_init_images: bool,
}

/// Options of samplers, by their keys in an infotext, with the values that change nothing.
const WITHOUT_EFFECT: [(&str, f64); 4] =
    [("Eta", 1.0), ("Sigma churn", 0.0), ("Sigma tmin", 0.0), ("Sigma noise", 1.0)];

impl Fields {
    /// Reads the fields with the client's options; `is_img2img` says of which route.
    ///
    /// # Errors
    /// [`Refused`] with the field.
    pub(super) fn read(
        app: &App,
        client: &Client,
        mut fields: Map<String, Value>,
        is_img2img: bool,
    ) -> Result<Self, Refused> {
        fields.retain(|_, value| !value.is_null());
        no_script(&mut fields)?;
        let mut warnings = Vec::new();
        let mut options = app.web_options(client);
        let stays = fields.remove("override_settings_restore_afterwards") == Some(Value::Bool(false));
        for (name, value) in object_of(&mut fields, "override_settings")? {
            match options.set(app, &name, &value) {
                Ok(true) => {}
                Ok(false) => warnings.push(format!("`override_settings.{name}` is left out: Kiln has no such option")),
                // An unknown model is left out there, too.
                Err(refused) if refused.kind == RefusedKind::NotFound => warnings.push(refused.message),
                Err(refused) => return Err(refused),
            }
        }
        if stays {
            app.set_web_options(client, options.clone());
        }
        let send_images = fields.remove("send_images").is_none_or(|value| value != Value::Bool(false));
        let has_mask = fields.get("mask").and_then(Value::as_str).is_some_and(|mask| !mask.is_empty());
        warnings.extend(of_other_routes(&fields, is_img2img, has_mask));
        let include_init_images = fields.remove("include_init_images") == Some(Value::Bool(true));
        let without_tags = fields.remove("disable_extra_networks") == Some(Value::Bool(true));
        let task_id = text(&mut fields, "force_task_id")?;
        let inits = images(&mut fields)?;
        let mask = text(&mut fields, "mask")?.filter(|text| !text.is_empty());
        let model = app.models.find(options.model.as_deref())?;
        let mut given = infotext(&mut fields, model.folder.family(), &mut warnings)?;
        if is_img2img {
            given.retain(|name| !name.starts_with("hires_")); // that route has no second pass
        }
        let scripts = object_of(&mut fields, "alwayson_scripts")?;
        forge::fill(&mut fields, &model.folder, given.has("cfg_scale"));
        let mut job = job(&mut fields, &options, &given, is_img2img && mask.is_some(), is_img2img)?;
        forge::take(&mut fields, &model.folder, &mut job);
        let images = app.options.limits.input_images();
        let side = |name: &str| job.get(name).and_then(Value::as_f64).map_or(512, |side| side as usize);
        let is_hires = ["hires_scale", "hires_size"].iter().any(|name| job.contains_key(*name) || given.has(name));
        let adapters = ip_adapters(app.options.ip_adapters_dir.as_deref());
        let place = Place {
            size: (side("width"), side("height")),
            init: inits.first().map(String::as_str),
            is_img2img,
            is_hires,
            images,
            ip_adapters: &adapters,
        };
        let scripts = Scripts::read(&scripts, &place)?;
        job.extend(scripts.job);
        warnings.extend(scripts.warnings);
        warnings.extend(left_out(&fields, app.options.output.is_some()));
        let has_infotext = !given.is_empty();
        let spec = build(given, job).map_err(|error| named_as_there(error.message))?;
        let mut request = spec.request;
        if !has_infotext {
            request.convention = Convention::Automatic1111;
            request.pad_conds = Some(false);
            request.rng = if options.randn_source == "CPU" { Rng::Cpu } else { Rng::Cuda };
        }
        request.controls = scripts.units.controls;
        request.ip_adapters = scripts.units.ip_adapters;
        // A tag of a file that is not there is a comment in that program, and the image is made (`load_networks` of its LoRA extension).
        let folder = app.options.setup().lora_dir.as_deref();
        let is_known = |name: &str| !without_tags && find_lora(&LoraName::Named(name.into()), folder).is_ok();
        let dropped = request.drop_lora_tags(&is_known).into_iter().filter(|_| !without_tags);
        warnings.extend(dropped.map(|tag| format!("Lora not found: {tag} is left out of the prompt")));
        // Clients send these fields whatever the sampler is.
        let unfit = request.drop_unfit().into_iter().filter(|unfit| !WITHOUT_EFFECT.contains(unfit));
        warnings
            .extend(unfit.map(|(name, value)| format!("`{name}` {value} is left out: the sampler does not have it")));
        let on_levels = |sampler: SamplerChoice| !sampler.kind.is_on_timesteps() && sampler.kind != SamplerKind::UniPc;
        let has_own_mask = mask.is_some() && model.folder.takes_mask();
        if is_img2img && !has_own_mask && request.sampler.is_some_and(on_levels) {
            request.rule = Some(Rule::Automatic1111);
        }
        // As there: for those who ask for the progress.
        let previews = match usize::try_from(options.preview_every) {
            Ok(every) if every > 0 => Previews::Asked(every),
            _ => Previews::None,
        };
        let maps = scripts.units.maps;
        Ok(Self { request, options, warnings, inits, mask, maps, previews, task_id, send_images, include_init_images })
    }
}

/// Reads fields without a server, for [`crate::read_request`].
pub(super) fn read(mut fields: Map<String, Value>, is_img2img: bool) {
    let options = Options::default();
    let _ = no_script(&mut fields);
    let given = infotext(&mut fields, SD, &mut Vec::new()).unwrap_or_default();
    let inits = images(&mut fields).unwrap_or_default();
    let scripts = object_of(&mut fields, "alwayson_scripts").unwrap_or_default();
    let init = inits.first().map(String::as_str);
    let images = DecodeOptions::default();
    let place = Place { size: (64, 64), init, is_img2img, is_hires: false, images, ip_adapters: &[] };
    let scripts = Scripts::read(&scripts, &place);
    if let (Ok(mut job), Ok(scripts)) = (job(&mut fields, &options, &given, is_img2img, is_img2img), scripts) {
        job.extend(scripts.job);
        let _ = left_out(&fields, false);
        let _ = build(given, job); // errors are of no interest
    }
}

/// The job of an infotext's fields with those of the request in their places.
fn build(mut given: RequestBuilder, job: Map<String, Value>) -> Result<JobSpec, FieldError> {
    job.into_iter().try_for_each(|(name, value)| given.replace(&name, value))?;
    Ok(given.build()?)
}

/// The fields of a job in `infotext`, for those that the request does not set.
fn infotext(
    fields: &mut Map<String, Value>,
    family: FamilyRef,
    warnings: &mut Vec<String>,
) -> Result<RequestBuilder, Refused> {
    let Some(text) = text(fields, "infotext")?.filter(|text| !text.is_empty()) else {
        return Ok(RequestBuilder::default());
    };
    let Some(info) = Infotext::parse(&text) else {
        return Err(Refused::value("infotext", "a text without settings", "what an image has under `parameters`"));
    };
    let (request, left_out) = from_infotext::request(&info, family);
    warnings.extend(left_out.into_iter().map(|what| format!("`infotext`: {what}")));
    Ok(RequestBuilder::of(&without_files(request)))
}

/// The fields of a job of Kiln that the others say. `given` are those that hold where a field is not set.
fn job(
    fields: &mut Map<String, Value>,
    options: &Options,
    given: &RequestBuilder,
    is_masked: bool,
    is_img2img: bool,
) -> Result<Map<String, Value>, Refused> {
    let mut job = Map::new();
    // The size of the first pass is needed before the job is whole.
    let sizes = [("width", given.request().width), ("height", given.request().height)];
    job.extend(sizes.into_iter().filter_map(|(name, side)| Some((name.into(), side?.into()))));
    let mut take = |name: &str, own: &str, default: Value| {
        if !fields.contains_key(name) && given.has(own) {
            return;
        }
        let value = fields.remove(name).unwrap_or(default);
        if !value.is_null() {
            job.insert(own.into(), value);
        }
    };
    take("prompt", "prompt", "".into());
    take("negative_prompt", "negative_prompt", "".into());
    take("seed", "seed", (-1).into());
    take("subseed", "subseed", (-1).into());
    take("subseed_strength", "subseed_strength", Value::Null);
    take("steps", "steps", 50.into());
    take("cfg_scale", "cfg_scale", 7.into());
    take("width", "width", 512.into());
    take("height", "height", 512.into());
    take("batch_size", "batch_size", 1.into());
    take("n_iter", "batch_count", 1.into());
    take("eta", "eta", Value::Null);
    // Clients send the defaults, too, which say nothing of the sampler.
    for (name, usual) in [("s_churn", 0.0), ("s_tmin", 0.0), ("s_noise", 1.0)] {
        if let Some(value) = fields.remove(name).filter(|value| value.as_f64() != Some(usual)) {
            job.insert(name.into(), value);
        }
    }
    if let Some(most) = fields.remove("s_tmax").filter(|most| most.as_f64() != Some(0.0)) {
        job.insert("s_tmax".into(), most); // 0 stands for no limit
    }
    let is_named = |name: &String| !name.is_empty();
    let (sampler, former) = (text(fields, "sampler_name")?, text(fields, "sampler_index")?);
    let sampler = sampler.filter(is_named).or(former.filter(is_named));
    if sampler.is_some() || !given.has("sampler") {
        job.insert("sampler".into(), sampler.unwrap_or_else(|| "Euler".into()).into());
    }
    if let Some(schedule) = text(fields, "scheduler")?.filter(|name| !name.is_empty()) {
        job.insert("scheduler".into(), schedule.into());
    }
    let sides = ["seed_resize_from_w", "seed_resize_from_h"].map(|name| fields.remove(name).and_then(|v| v.as_i64()));
    if let [Some(width @ 1..), Some(height @ 1..)] = sides {
        job.insert("seed_resize_from".into(), format!("{width}x{height}").into());
    }
    if options.clip_skip > 1 {
        job.insert("clip_skip".into(), options.clip_skip.into());
    }
    if options.ensd != 0 {
        job.insert("ensd".into(), options.ensd.into());
    }
    let strength = fields.remove("denoising_strength");
    let input = input(fields)?;
    refiner(fields, &mut job);
    if !is_img2img {
        hires::take(fields, strength.as_ref(), &mut job)?;
    } else {
        fields.retain(|name, _| name != "enable_hr" && !name.starts_with("hr_")); // that route has no such fields
        job.insert("strength".into(), strength.unwrap_or_else(|| 0.75.into()));
        let of_mask = ["mask_blur", "mask_content", "inpaint_area", "inpaint_padding", "mask_invert"];
        job.extend(input.into_iter().filter(|(name, _)| is_masked || !of_mask.contains(&name.as_str())));
    }
    Ok(job)
}

/// The fields about an input image and its mask.
fn input(fields: &mut Map<String, Value>) -> Result<Map<String, Value>, Refused> {
    let mut job = Map::new();
    let mut choice = |name: &str, own: &str, default: u64, choices: &[&str]| {
        let value = fields.remove(name).unwrap_or_else(|| default.into());
        let number = match value {
            Value::Bool(flag) => Some(u64::from(flag)),
            ref value => value.as_u64(),
        };
        let chosen = number.and_then(|number| choices.get(usize::try_from(number).ok()?));
        let expected = || format!("a number from 0 to {}", choices.len() - 1);
        let chosen = chosen.ok_or_else(|| Refused::value(name, value, expected()))?;
        job.insert(own.into(), (*chosen).into());
        Ok::<(), Refused>(())
    };
    choice("resize_mode", "resize_mode", 0, &["stretch", "crop", "fill"])?;
    choice("inpainting_fill", "mask_content", 0, &["fill", "original", "noise", "nothing"])?;
    choice("inpaint_full_res", "inpaint_area", 1, &["whole", "masked"])?;
    let invert = fields.remove("inpainting_mask_invert");
    if invert.is_some_and(|value| value == Value::Bool(true) || value.as_f64().is_some_and(|number| number != 0.0)) {
        job.insert("mask_invert".into(), true.into());
    }
    let padding = fields.remove("inpaint_full_res_padding").unwrap_or_else(|| 0.into());
    if job.get("inpaint_area").is_some_and(|area| area == "masked") {
        job.insert("inpaint_padding".into(), padding);
    }
    let blurs = ["mask_blur_x", "mask_blur_y"].map(|name| fields.get(name).and_then(Value::as_f64));
    let blur = match (fields.remove("mask_blur"), blurs) {
        (Some(blur), _) => blur,
        (None, [Some(x), Some(y)]) if x == y => {
            fields.remove("mask_blur_x");
            fields.remove("mask_blur_y");
            json!(x)
        }
        (None, _) => 4.into(),
    };
    job.insert("mask_blur".into(), blur);
    if let Some(multiplier) = fields.remove("initial_noise_multiplier") {
        job.insert("noise_multiplier".into(), multiplier);
    }
    Ok(job)
}

fn object_of(fields: &mut Map<String, Value>, name: &str) -> Result<Map<String, Value>, Refused> {
    match fields.remove(name) {
        None => Ok(Map::new()),
        Some(Value::Object(object)) => Ok(object),
        Some(other) => Err(Refused::value(name, other, "an object")),
    }
}

/// The images to begin with.
fn images(fields: &mut Map<String, Value>) -> Result<Vec<String>, Refused> {
    let one = |image| match image {
        Value::String(image) => Ok(image),
        other => Err(Refused::value("init_images", other, "images in Base64")),
    };
    match fields.remove("init_images") {
        None => Ok(Vec::new()),
        Some(Value::Array(images)) => images.into_iter().map(one).collect(),
        Some(other) => Err(Refused::value("init_images", other, "a list of images in Base64")),
    }
}

/// A message in the words of that API, which clients look for.
fn named_as_there(message: String) -> Refused {
    if message.starts_with("sampler:") {
        return Refused::invalid(format!("Sampler not found ({message})")).at("sampler_name");
    }
    Refused::invalid(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(fields: Value, is_masked: bool) -> (Request, Vec<String>) {
        let mut fields = fields.as_object().unwrap().clone();
        fields.remove("init_images");
        fields.retain(|_, value| !value.is_null());
        no_script(&mut fields).unwrap();
        let job = job(&mut fields, &Options::default(), &RequestBuilder::default(), is_masked, is_masked).unwrap();
        let spec = JobSpec::of_object(job).unwrap();
        (spec.request, left_out(&fields, false))
    }

    /// A request of PyPI's webuiapi with nothing but a prompt.
    #[test]
    fn a_client_that_sends_every_field_gets_no_warning() {
        let (request, warnings) = taken(
            json!({
                "enable_hr": false, "hr_scale": 2, "hr_upscaler": "Latent", "hr_second_pass_steps": 0, "hr_resize_x": 0,
                "hr_resize_y": 0, "hr_prompt": "", "hr_negative_prompt": "", "denoising_strength": 0.7,
                "firstphase_width": 0, "firstphase_height": 0, "prompt": "a cat", "styles": [], "seed": -1, "subseed": -1,
                "subseed_strength": 0.0, "seed_resize_from_h": 0, "seed_resize_from_w": 0, "batch_size": 1, "n_iter": 2,
                "steps": 20, "cfg_scale": 7.0, "width": 512, "height": 512, "restore_faces": false, "tiling": false,
                "do_not_save_samples": false, "do_not_save_grid": false, "negative_prompt": "", "eta": 1.0, "s_churn": 0,
                "s_tmax": 0, "s_tmin": 0, "s_noise": 1,
                "sampler_name": "Euler a", "scheduler": "automatic", "sampler_index": "Euler a", "script_name": null,
                "script_args": [], "save_images": false,
            }),
            false,
        );
        assert_eq!(warnings, [] as [String; 0]);
        assert_eq!(
            (request.steps, request.batch_count, request.seed, request.strength),
            (Some(20), Some(2), None, None)
        );
        assert_eq!((request.s_tmax, request.eta), (None, Some(1.0)));
    }

    #[test]
    fn what_is_not_there_is_named() {
        let (_, warnings) = taken(
            json!({ "prompt": "a", "hr_checkpoint_name": "a", "enable_hr": true, "restore_faces": true, "promt": "b", "tiling": null }),
            false,
        );
        let named: Vec<&str> = warnings.iter().filter_map(|text| text.split('`').nth(1)).collect();
        assert_eq!(named, ["hr_checkpoint_name", "promt", "restore_faces"]);
    }

    #[test]
    fn an_infotext_holds_where_nothing_is_set() {
        let text = "an apple\nSteps: 7, Sampler: DPM++ 2M, Schedule type: Karras, CFG scale: 4, Seed: 9, Size: 64x96";
        let mut fields = json!({ "infotext": text, "steps": 3 }).as_object().unwrap().clone();
        let given = infotext(&mut fields, SD, &mut Vec::new()).unwrap();
        let job = job(&mut fields, &Options::default(), &given, false, false).unwrap();
        let request = build(given, job).unwrap().request;
        assert_eq!((request.prompt.as_str(), request.steps, request.seed), ("an apple", Some(3), Some(9)));
        assert_eq!((request.width, request.height, request.cfg_scale), (Some(64), Some(96), Some(4.0)));
        assert_eq!(
            (request.sampler.map(|sampler| sampler.kind), request.convention),
            (Some(SamplerKind::Dpmpp2m), Convention::Automatic1111)
        );
        let mut wrong = json!({ "infotext": "nothing" }).as_object().unwrap().clone();
        assert!(infotext(&mut wrong, SD, &mut Vec::new()).is_err());
    }

    #[test]
    fn masks_have_the_rules_of_that_program() {
        let (request, warnings) = taken(
            json!({ "prompt": "a", "inpainting_fill": 1, "inpaint_full_res": false, "mask_blur": 8, "resize_mode": 1 }),
            true,
        );
        assert_eq!((request.mask_blur, request.strength, warnings.len()), (Some(8.0), Some(0.75), 0));
        let found = serde_json::to_value(&request).unwrap();
        assert_eq!((&found["mask_content"], &found["inpaint_area"]), (&json!("original"), &json!("whole")));
        let usual = serde_json::to_value(taken(json!({ "prompt": "a" }), true).0).unwrap();
        assert_eq!((&usual["mask_content"], &usual["inpaint_area"]), (&json!("fill"), &json!("masked")));
        assert_eq!((&usual["inpaint_padding"], &usual["mask_blur"]), (&json!(0), &json!(4.0)));
    }
}
