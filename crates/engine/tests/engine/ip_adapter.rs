//! IP-Adapters against diffusers' pipelines, in every mode and batch.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use kiln_clip::{ImageFeatures, VisionConfig, VisionEncoder};
use kiln_engine::{
    ControlUse, Convention, Event, IpAdapter, IpAdapterUse, Job, Request, RunningBatch, SamplerKind, Stage, Workload,
};
use kiln_media::{Rgb8Image, StillFormat, clip_pixels, encode};
use kiln_testkit::{
    Fixture, Parity, PromptForm, TinyControl, TinyIpAdapter, TinyVision, control_pixels, write_tensors,
};
use kiln_weights::{MapSource, Placement, load};
use serde::Deserialize;

use crate::support::cases::{Case, assert_same_in_every_mode, images_as_alone, init_of_task, job_with};
use crate::support::{bits, cpu, images, latents, request, run, tiny, values};

/// Largest error of final latents in f32, in their standard deviations.
const BOUND: f64 = 1e-3;
/// The sizes of the prompt's image, and of the control image.
const IMAGE_SIZE: (usize, usize) = (60, 40);
const CONTROL_SIZE: (usize, usize) = (80, 48);

/// What a case of `ip_adapter.json` has besides.
#[derive(Deserialize)]
struct Prompts {
    task: String,
    /// Form, weight, end, blocks, mask.
    adapters: Vec<(String, f64, f64, String, String)>,
}

fn test_image((width, height): (usize, usize)) -> Rgb8Image {
    Rgb8Image::new(width, height, control_pixels(width, height)).unwrap()
}

/// A folder with an image, masks, an image encoder, and adapters.
struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let save = |name: &str, image: &Rgb8Image| {
            std::fs::write(folder.path().join(name), encode(image, StillFormat::Png).unwrap()).unwrap();
        };
        save("image.png", &test_image(IMAGE_SIZE));
        save("control.png", &test_image(CONTROL_SIZE));
        for (name, left) in [("left.png", 255), ("right.png", 0)] {
            let pixel = |x: usize| [if x < 14 { left } else { 255 - left }; 3];
            let data = (0..32).flat_map(|_| (0..32).flat_map(pixel)).collect();
            save(name, &Rgb8Image::new(32, 32, data).unwrap());
        }
        TinyVision::write(&folder.path().join("image_encoder"));
        let identity = Fixture::open("ip_adapter.safetensors").tensor("embeds");
        write_tensors(&[("image_embeds".to_string(), identity)].into(), &folder.path().join("identity.safetensors"));
        Self(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// An adapter for the model `kind`, which is written where it is not there yet.
    fn adapter(&self, kind: &str, number: u32, form: PromptForm) -> PathBuf {
        let path = self.path(&format!("{kind}-{number}-{form:?}.safetensors"));
        if !path.exists() {
            TinyIpAdapter { number, form }.write(kind, &path);
        }
        path
    }

    /// An adapter with its image, or with the vector that it takes.
    fn prompt(&self, kind: &str, number: u32, form: PromptForm) -> IpAdapterUse {
        let new = IpAdapterUse::new(self.adapter(kind, number, form));
        match form {
            PromptForm::Face => IpAdapterUse { embeds: Some(self.path("identity.safetensors")), ..new },
            _ => IpAdapterUse { image: Some(self.path("image.png")), ..new },
        }
    }
}

#[test]
fn pixels_and_features_are_transformers() {
    let fixture = Fixture::open("ip_adapter.safetensors");
    let pixels = clip_pixels(&test_image(IMAGE_SIZE), 24).unwrap();
    let expected: Vec<f32> = fixture.tensor("pixels").flatten_all().unwrap().to_vec1().unwrap();
    let worst = pixels.iter().zip(&expected).map(|(found, expected)| (found - expected).abs()).fold(0.0, f32::max);
    assert!(pixels.len() == expected.len() && worst < 1e-3, "{worst}");
    let encoder = VisionEncoder::new(VisionConfig::from_json(&TinyVision::config()).unwrap()).unwrap();
    let source: MapSource = TinyVision::tensors().into_iter().collect();
    load(encoder.segments(), &source, &Placement::new(Device::Cpu, DType::F32)).unwrap();
    let parity = Parity::new("ip_adapter", "image encoder f32");
    for (name, features) in [("embedding", ImageFeatures::Embedding), ("penultimate", ImageFeatures::Penultimate)] {
        let found = encoder.forward(&fixture.tensor("pixels"), features).unwrap();
        parity.check(name, &found, &fixture.tensor(name), 1e-5);
    }
    let message =
        encoder.forward(&Tensor::zeros((1, 3, 24, 16), DType::F32, &Device::Cpu).unwrap(), ImageFeatures::Embedding);
    assert!(message.unwrap_err().to_string().contains("(b, 3, 24, 24)"));
    // A file without a configuration: all but heads and activation follow from shapes.
    let shapes = VisionConfig::from_shapes(&source).unwrap();
    let config = encoder.config();
    assert_eq!((shapes.image_size, shapes.patch_size, shapes.num_hidden_layers), (24, 8, 3));
    assert_eq!((shapes.intermediate_size, shapes.projection_dim, shapes.tokens()), (32, 12, config.tokens()));
}

#[test]
fn latents_are_diffusers() {
    let (files, fixture) = (Files::new(), Fixture::open("ip_adapter.safetensors"));
    for kind in ["sd1", "sdxl"] {
        let (mut engine, parity) = (tiny(kind, &cpu()), Parity::new("ip_adapter", format!("{kind} f32")));
        for case in Case::<Prompts>::read("ip_adapter.json", kind, 3) {
            let Prompts { task, adapters } = &case.more;
            let adapter =
                |(number, (form, weight, end, blocks, mask)): (usize, &(String, f64, f64, String, String))| {
                    IpAdapterUse {
                        weight: *weight,
                        end: *end,
                        blocks: blocks.parse().unwrap(),
                        mask: Some(mask).filter(|mask| !mask.is_empty()).map(|mask| files.path(&format!("{mask}.png"))),
                        ..files.prompt(kind, number as u32, PromptForm::named(form))
                    }
                };
            let control = || {
                let net = files.path("control");
                TinyControl::full(0).write(kind, &net);
                ControlUse { image: Some(files.path("control.png")), ..ControlUse::new(net) }
            };
            let request = Request {
                ip_adapters: adapters.iter().enumerate().map(adapter).collect(),
                controls: if task == "control" { vec![control()] } else { Vec::new() },
                ..case.request((64, 64))
            };
            let job = job_with(&engine, &request, init_of_task(task, 0.6));
            let images = run(&mut engine, &job);
            parity.check(&case.name, &latents(&images), &fixture.tensor(&case.key()), BOUND);
        }
    }
}

/// A request with two adapters, one of which acts on a part of the image and of the evaluations.
fn two(files: &Files) -> Request {
    let first = IpAdapterUse { weight: 0.7, ..files.prompt("sd1", 0, PromptForm::Plain) };
    let second =
        IpAdapterUse { end: 0.5, mask: Some(files.path("left.png")), ..files.prompt("sd1", 1, PromptForm::Plus) };
    Request {
        ip_adapters: vec![first, second],
        batch_size: Some(3),
        sampler: Some(SamplerKind::EulerA.into()),
        ..request("a pear", (64, 64), 4, 7)
    }
}

#[test]
fn an_image_is_the_same_in_every_mode_and_batch() {
    let files = Files::new();
    let three = two(&files);
    let mut engine = tiny("sd1", &cpu());
    let expected = images_as_alone(&mut engine, &three);
    // Without the prompts another image, and the same again with them; with weight 0 that of the text alone.
    let plain = Request { ip_adapters: Vec::new(), ..three.clone() };
    let text = bits(&images(&mut engine, &plain));
    assert!(text != bits(&expected));
    assert!(bits(&images(&mut engine, &three)) == bits(&expected));
    let nothing = three.ip_adapters.iter().map(|adapter| IpAdapterUse { weight: 0.0, ..adapter.clone() }).collect();
    assert!(bits(&images(&mut engine, &Request { ip_adapters: nothing, ..three.clone() })) == text);
    assert_same_in_every_mode("sd1", &three, &expected);
}

/// Groups with other images share a call, and groups whose prompts act otherwise take turns.
#[test]
fn running_batches_keep_their_bits() {
    let files = Files::new();
    let mut engine = tiny("sd1", &cpu());
    let base = Request { batch_size: None, ..two(&files) };
    let weaker = base.ip_adapters.iter().map(|adapter| IpAdapterUse { weight: 0.3, ..adapter.clone() }).collect();
    let weaker = Request { ip_adapters: weaker, seed: Some(9), ..base.clone() };
    let blocks =
        base.ip_adapters.iter().map(|adapter| IpAdapterUse { blocks: "mid".parse().unwrap(), ..adapter.clone() });
    let blocks = Request { ip_adapters: blocks.collect(), seed: Some(10), ..base.clone() };
    let mut other = base.resolve(engine.model()).unwrap();
    for adapter in &mut other.ip_adapters {
        *adapter =
            IpAdapter { mask: adapter.mask.clone(), ..IpAdapter::new(adapter.using.clone(), test_image((32, 24))) };
        adapter.using.mask = Some(files.path("left.png"));
    }
    let mut jobs: Vec<Job> = [base, weaker, blocks].map(|request| request.resolve(engine.model()).unwrap()).into();
    jobs.push(other);
    let alone: Vec<Vec<u32>> = jobs.iter().map(|job| bits(&run(&mut engine, job))).collect();
    assert!(alone[0] != alone[3], "another image is another prompt");
    let (mut running, mut watch) = (RunningBatch::new(), |_: Event| ControlFlow::Continue(()));
    let mut ids = Vec::new();
    for job in &jobs {
        ids.push(engine.join(&mut running, job, 0, &mut watch).unwrap());
    }
    let plain = request("a pear", (64, 64), 4, 7).resolve(engine.model()).unwrap();
    let message = engine.join(&mut running, &plain, 0, &mut watch).unwrap_err().to_string();
    assert!(message.contains("IP-Adapters"), "{message}");
    while engine.step(&mut running, &mut watch).unwrap().len() < jobs.len() {}
    for ((id, job), alone) in ids.into_iter().zip(&jobs).zip(alone) {
        let images = engine.finish(&mut running, id, (job, 0), &mut watch).unwrap();
        assert!(bits(&images) == alone);
    }
}

/// Features from a file are those of the image.
#[test]
fn features_may_come_from_a_file() {
    let files = Files::new();
    let mut engine = tiny("sd1", &cpu());
    let fixture = Fixture::open("ip_adapter.safetensors");
    let write = |name: &str, tensor: Tensor| {
        write_tensors(&[("features".to_string(), tensor)].into(), &files.path(name));
        files.path(name)
    };
    let embedding = fixture.tensor("embedding");
    let both = Tensor::cat(&[&embedding.zeros_like().unwrap(), &embedding], 0).unwrap().unsqueeze(1).unwrap();
    let image = files.prompt("sd1", 0, PromptForm::Plain);
    let with = |adapter: IpAdapterUse| Request { ip_adapters: vec![adapter], ..request("a pear", (64, 64), 4, 7) };
    let expected = values(&images(&mut engine, &with(image.clone())));
    for path in [write("one.safetensors", embedding.clone()), write("both.safetensors", both)] {
        let adapter = IpAdapterUse { image: None, embeds: Some(path), ..image.clone() };
        let found = values(&images(&mut engine, &with(adapter)));
        let worst = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst < 1e-3, "{worst}");
    }
    let mut refused = |adapter: IpAdapterUse| {
        let job = with(adapter).resolve(engine.model()).unwrap();
        engine.txt2img(&job, &mut |_| Ok(ControlFlow::Continue(()))).unwrap_err().to_string()
    };
    let wide = write("wide.safetensors", Tensor::zeros((1, 1, 13), DType::F32, &Device::Cpu).unwrap());
    let message = refused(IpAdapterUse { image: None, embeds: Some(wide), ..image.clone() });
    assert!(message.contains("wide.safetensors") && message.contains("(1 or 2, n, 12)"), "{message}");
    let both = refused(IpAdapterUse { embeds: Some(files.path("one.safetensors")), ..image.clone() });
    assert!(both.contains("`image` and `embeds`"), "{both}");
    let face = IpAdapterUse { image: image.image.clone(), ..files.prompt("sd1", 0, PromptForm::Face) };
    assert!(refused(face).contains("`embeds` alone"));
    let style = refused(IpAdapterUse { blocks: "style".parse().unwrap(), ..image.clone() });
    assert!(style.contains("blocks of Stable Diffusion XL"), "{style}");
    let nowhere = refused(IpAdapterUse { blocks: "down.3".parse().unwrap(), ..image });
    assert!(nowhere.contains("blocks=down.3") && nowhere.contains("up.3.1"), "{nowhere}");
}

/// The unconditional half of ComfyUI's Plus sees a black image, and that of diffusers zeros in place of normalized pixels.
#[test]
fn the_unconditional_image_is_that_of_the_convention() {
    let files = Files::new();
    let mut engine = tiny("sd1", &cpu());
    let encoder = VisionEncoder::new(VisionConfig::from_json(&TinyVision::config()).unwrap()).unwrap();
    let source: MapSource = TinyVision::tensors().into_iter().collect();
    load(encoder.segments(), &source, &Placement::new(Device::Cpu, DType::F32)).unwrap();
    let features = |image: Option<Rgb8Image>| {
        let pixels = image.map_or_else(|| vec![0.0; 3 * 24 * 24], |image| clip_pixels(&image, 24).unwrap());
        let pixels = Tensor::from_vec(pixels, (1, 3, 24, 24), &Device::Cpu).unwrap();
        encoder.forward(&pixels, ImageFeatures::Penultimate).unwrap()
    };
    let image = files.prompt("sd1", 0, PromptForm::Plus);
    let with = |adapter: IpAdapterUse, convention| Request {
        ip_adapters: vec![adapter],
        convention,
        ..request("a pear", (64, 64), 4, 7)
    };
    let mut found = Vec::new();
    for (i, convention) in [Convention::Diffusers, Convention::ComfyUi].into_iter().enumerate() {
        let black = Rgb8Image::filled(24, 24, [0; 3]).unwrap();
        let unconditional = features((convention == Convention::ComfyUi).then_some(black));
        let both = Tensor::cat(&[&unconditional, &features(Some(test_image(IMAGE_SIZE)))], 0).unwrap();
        let path = files.path(&format!("{i}.safetensors"));
        write_tensors(&[("features".to_string(), both.unsqueeze(1).unwrap())].into(), &path);
        let embeds = IpAdapterUse { image: None, embeds: Some(path), ..image.clone() };
        let expected = values(&images(&mut engine, &with(embeds, convention)));
        let own = values(&images(&mut engine, &with(image.clone(), convention)));
        let worst = own.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst < 1e-3, "{convention:?}: {worst}");
        found.push(own);
    }
    assert!(found[0] != found[1]);
}

/// Malformed and mismatched files are refused by name, and nothing is changed.
#[test]
fn other_files_are_refused_by_name() {
    let files = Files::new();
    let mut engine = tiny("sd1", &cpu());
    let good = files.prompt("sd1", 0, PromptForm::Plain);
    let with = |adapter: IpAdapterUse| Request { ip_adapters: vec![adapter], ..request("a pear", (64, 64), 4, 7) };
    let expected = bits(&images(&mut engine, &with(good.clone())));
    let tensors = TinyIpAdapter { number: 0, form: PromptForm::Plain }.tensors("sd1");
    let plus = TinyIpAdapter { number: 0, form: PromptForm::Plus }.tensors("sd1");
    let write =
        |name: &str, of: &std::collections::BTreeMap<String, Tensor>, edit: &dyn Fn(&str, Tensor) -> Option<Tensor>| {
            let all = of.iter().filter_map(|(key, tensor)| Some((key.clone(), edit(key, tensor.clone())?)));
            write_tensors(&all.collect(), &files.path(name));
            files.path(name)
        };
    let mut cases: Vec<(PathBuf, &str)> = vec![
        (files.adapter("sdxl", 0, PromptForm::Plain), "cross-attention layers"),
        (files.path("nothing.safetensors"), "not found"),
        (files.path("image_encoder"), "is a folder"),
        (files.path("image_encoder/model.safetensors"), "expected an IP-Adapter"),
        (files.path("image.png"), "image.png"),
    ];
    for key in tensors.keys() {
        let missing =
            write(&format!("without-{key}.safetensors"), &tensors, &|name, tensor| (name != key).then_some(tensor));
        cases.push((missing, ".safetensors"));
    }
    for key in ["image_proj.proj_in.weight", "image_proj.layers.1.0.to_q.weight", "image_proj.norm_out.bias"] {
        let missing = write(&format!("plus-{key}.safetensors"), &plus, &|name, tensor| (name != key).then_some(tensor));
        cases.push((missing, "image_proj"));
    }
    let cut = write("cut.safetensors", &tensors, &|name, tensor| match name {
        "ip_adapter.5.to_v_ip.weight" => tensor.narrow(0, 0, 1).ok(),
        _ => Some(tensor),
    });
    cases.push((cut, "ip_adapter.5.to_v_ip.weight"));
    let text = std::fs::read(files.adapter("sd1", 0, PromptForm::Plain)).unwrap();
    std::fs::write(files.path("short.safetensors"), &text[..text.len() / 2]).unwrap();
    cases.push((files.path("short.safetensors"), "short.safetensors"));
    assert!(cases.len() >= 30, "{}", cases.len());
    for (path, part) in cases {
        let job = with(IpAdapterUse { model: path.clone(), ..good.clone() }).resolve(engine.model()).unwrap();
        let result = engine.txt2img(&job, &mut |_| Ok(ControlFlow::Continue(())));
        let message = result.expect_err(&path.display().to_string()).to_string();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        assert!(message.contains(part) && message.contains(&name), "{name}: {message}");
    }
    // An encoder of another width.
    std::fs::create_dir(files.path("other")).unwrap();
    let config = TinyVision::config().replace("\"projection_dim\":12", "\"projection_dim\":11");
    std::fs::write(files.path("other/config.json"), config).unwrap();
    let mut narrow = TinyVision::tensors();
    let projection = narrow["visual_projection.weight"].narrow(0, 0, 11).unwrap().contiguous().unwrap();
    narrow.insert("visual_projection.weight".into(), projection);
    write_tensors(&narrow, &files.path("other/model.safetensors"));
    let adapter = IpAdapterUse { encoder: Some(files.path("other")), ..good.clone() };
    let job = with(adapter).resolve(engine.model()).unwrap();
    let message = engine.txt2img(&job, &mut |_| Ok(ControlFlow::Continue(()))).unwrap_err().to_string();
    assert!(message.contains("other") && message.contains("embeddings of 12 channels"), "{message}");
    assert_eq!(bits(&images(&mut engine, &with(good))), expected);
}

/// The image prompt is a stage of its own, whose networks have left when the steps begin.
/// Perturbed attention has a row of each prompt more.
#[test]
fn prompts_go_with_perturbed_attention() {
    let files = Files::new();
    let mut engine = tiny("sd1", &cpu());
    let plain = Request { sampler: Some(SamplerKind::Ddim.into()), ..two(&files) };
    let perturbed = Request { pag_scale: Some(2.0), pag_layers: Some("up_blocks".parse().unwrap()), ..plain.clone() };
    let expected = images(&mut engine, &perturbed);
    assert!(bits(&expected) != bits(&images(&mut engine, &plain)));
    assert_same_in_every_mode("sd1", &perturbed, &expected);
    let unguided = Request { cfg_scale: Some(1.0), ..perturbed };
    assert!(bits(&images(&mut engine, &unguided)) != bits(&expected));
}

#[test]
fn masks_do_not_go_with_deep_shrink() {
    let files = Files::new();
    let engine = tiny("sd1", &cpu());
    let request = Request { deep_shrink: Some(2.0), ..two(&files) };
    let message = request.resolve(engine.model()).unwrap_err().to_string();
    assert!(message.contains("`deep_shrink`") && message.contains("`mask`"), "{message}");
}

#[test]
fn the_plan_has_the_stage() {
    let files = Files::new();
    let engine = tiny("sd1", &cpu());
    let job = two(&files).resolve(engine.model()).unwrap();
    let stages = Workload::of(&job).stages();
    assert_eq!(stages, [Stage::Encode, Stage::ImagePrompt, Stage::Denoise, Stage::Decode]);
    let plain = Request { ip_adapters: Vec::new(), ..two(&files) }.resolve(engine.model()).unwrap();
    assert!(!Workload::of(&plain).stages().contains(&Stage::ImagePrompt));
}

#[test]
fn settings_make_the_image_again() {
    let files = Files::new();
    let mut engine = tiny("sd1", &cpu());
    let images = images(&mut engine, &Request { batch_size: None, ..two(&files) });
    let settings: serde_json::Value = serde_json::from_str(&images[0].settings).unwrap();
    let adapters = &settings["request"]["ip_adapters"];
    assert_eq!(
        (&adapters[0]["model"], &adapters[0]["image"]),
        (&"sd1-0-Plain.safetensors".into(), &"image.png".into())
    );
    assert_eq!((&adapters[1]["mask"], &adapters[1]["end"]), (&"left.png".into(), &0.5.into()));
    assert_eq!(settings["ip_adapters"][1]["name"], "sd1-1-Plus");
    assert_eq!(settings["inputs"][2]["option"], "ip_adapters[1].mask");
    assert!(!images[0].settings.contains(&files.0.path().display().to_string()));
}

/// The IP-Adapter that comes with Kiln: its encoder's features of an image, and the final latents that diffusers computed.
#[test]
#[ignore = "needs ../shared/models"]
fn shared_data_the_emoji_ip_adapter_gives_diffusers_latents() {
    let expected = kiln_testkit::shared_models("emoji-companions").join("expected");
    let models = kiln_testkit::repository().join("models");
    let mut engine = crate::support::load(&models.join("emoji"), &cpu());
    let parity = Parity::new("ip_adapter", "emoji f32");
    let folder = models.join("emoji-ip-adapter/image_encoder");
    let encoder = VisionEncoder::new(VisionConfig::open(&folder).unwrap()).unwrap();
    let weights = kiln_weights::Checkpoint::open(&folder.join("model.safetensors")).unwrap();
    load(encoder.segments(), &weights, &Placement::new(Device::Cpu, DType::F32)).unwrap();
    for (name, prompt, seed, weight) in [("lion", "", 41, 1.0), ("bus", "", 42, 1.0), ("red-apple", "a heart", 43, 0.7)]
    {
        let file = |end: &str| expected.join(format!("ip-adapter-{name}{end}"));
        let image = kiln_media::open(&file("-reference.png"), &kiln_media::DecodeOptions::default()).unwrap();
        let pixels = clip_pixels(&image.into_rgb(kiln_media::AlphaRule::Drop), 224).unwrap();
        let pixels = Tensor::from_vec(pixels, (1, 3, 224, 224), &Device::Cpu).unwrap();
        let found = encoder.forward(&pixels, ImageFeatures::Embedding).unwrap();
        let features = Fixture::read(name, &file(".safetensors")).tensor("image_embeds");
        parity.check(
            &format!("{name}, features"),
            &found,
            &features.narrow(0, 1, 1).unwrap().squeeze(1).unwrap(),
            BOUND,
        );
        let adapter = IpAdapterUse {
            image: Some(file("-reference.png")),
            encoder: Some(folder.clone()),
            weight,
            ..IpAdapterUse::new(models.join("emoji-ip-adapter/emoji-ip-adapter.safetensors"))
        };
        let request = Request {
            cfg_scale: Some(3.0),
            sampler: Some(SamplerKind::Ddim.into()),
            ip_adapters: vec![adapter],
            ..request(prompt, (256, 256), 20, seed)
        };
        let found = latents(&images(&mut engine, &request));
        let expected = Fixture::read(name, &file(".safetensors")).tensor("latents");
        parity.check(name, &found, &expected, BOUND);
    }
}

/// The file of an adapter for a test that needs its path alone.
#[test]
fn hub_names_are_looked_up() {
    let files = Files::new();
    let mut engine = tiny("sd1", &cpu());
    let adapter = IpAdapterUse {
        image: Some(files.path("image.png")),
        ..IpAdapterUse::new(Path::new("hf:someone/nothing/ip-adapter.safetensors"))
    };
    let request = Request { ip_adapters: vec![adapter], ..request("a pear", (64, 64), 1, 7) };
    let job = request.resolve(engine.model()).unwrap();
    let message = engine.txt2img(&job, &mut |_| Ok(ControlFlow::Continue(()))).unwrap_err().to_string();
    assert!(message.contains("someone/nothing"), "{message}");
}
