//! The SD3 transformer compared with diffusers.

use candle_core::{DType, Device, Tensor};
use kiln_dit::sd3::{Sd3Config, Sd3Transformer};
use kiln_network::slots::{CONTEXT, SKIPPED_LAYERS, TEXT_EMBEDS};
use kiln_network::{Denoiser, Inputs};
use kiln_testkit::{Fixture, Parity, shared_data};
use kiln_weights::{Placement, load, open_component};
use serde_json::Value;

/// Largest error of a velocity in f32, in standard deviations.
const VELOCITY: f64 = 1e-4;
/// Largest error of the last latents.
const LATENTS: f64 = 1e-3;

/// A transformer of the reference data with its weights in f32.
fn open(model: &str) -> Sd3Transformer {
    let folder = shared_data(&format!("families/models/{model}/transformer"));
    let config = Sd3Config::from_json(&std::fs::read_to_string(folder.join("config.json")).unwrap()).unwrap();
    let transformer = Sd3Transformer::new(config);
    let source = open_component(&folder).unwrap();
    load(transformer.segments(), &*source, &Placement::new(Device::Cpu, DType::F32)).unwrap();
    transformer
}

/// A case of the reference data.
struct Case {
    case: Value,
    tensors: Fixture,
    /// The tensors of the case that has the text's.
    text: Fixture,
}

impl Case {
    fn open(name: &str) -> Self {
        let cases: Value =
            serde_json::from_str(&std::fs::read_to_string(shared_data("families/cases.json")).unwrap()).unwrap();
        let case = cases.as_array().unwrap().iter().find(|case| case["name"] == name).unwrap().clone();
        let read = |name: &str| Fixture::read(name, &shared_data(&format!("families/{name}.safetensors")));
        let tensors = read(name);
        let text = match tensors.get("prompt_embeds") {
            Some(_) => read(name),
            None => {
                let plain = format!("{}-plain-96x64-3", case["model"].as_str().unwrap());
                let other = cases.as_array().unwrap().iter().find(|case| case["name"] == plain.as_str()).unwrap();
                assert_eq!((&case["prompt"], &case["negative"]), (&other["prompt"], &other["negative"]), "{name}");
                read(&plain)
            }
        };
        Self { case, tensors, text }
    }

    /// The inputs of the negative prompt and of `prompts` rows of the prompt.
    fn inputs(&self, prompts: usize) -> Inputs {
        let rows = |negative: &str, prompt: &str| {
            let mut all = vec![self.text.tensor(negative)];
            all.extend(vec![self.text.tensor(prompt); prompts]);
            Tensor::cat(&all, 0).unwrap()
        };
        let context = rows("negative_embeds", "prompt_embeds");
        Inputs::new().with(CONTEXT, context).with(TEXT_EMBEDS, rows("negative_pooled", "pooled"))
    }

    /// The velocity of latents `x` `(1, c, h, w)` after guidance, at a timestep.
    fn velocity(&self, denoiser: &dyn Denoiser, x: &Tensor, timestep: f64, slg: Option<(u64, f64)>) -> Tensor {
        let rows = if slg.is_some() { 3 } else { 2 };
        let mut inputs = self.inputs(rows - 1);
        if let Some((layers, _)) = slg {
            inputs = inputs.with_constant(SKIPPED_LAYERS, layers).with_rows(SKIPPED_LAYERS, 1);
        }
        let timestep = Tensor::new(&[timestep as f32], &Device::Cpu).unwrap();
        let all = denoiser.forward(&Tensor::cat(&vec![x; rows], 0).unwrap(), &timestep, &inputs).unwrap();
        let [negative, prompt] = [0, 1].map(|row| all.narrow(0, row, 1).unwrap());
        let cfg = self.case["cfg"].as_f64().unwrap();
        if cfg <= 1.0 {
            return prompt;
        }
        let mut v = (&negative + ((&prompt - &negative).unwrap() * cfg).unwrap()).unwrap();
        if let Some((_, scale)) = slg {
            let skipped = all.narrow(0, 2, 1).unwrap();
            v = (v + ((&prompt - &skipped).unwrap() * scale).unwrap()).unwrap();
        }
        v
    }
}

#[test]
#[ignore = "needs ../shared/data"]
fn shared_data_velocities_are_diffusers() {
    for (model, names) in [
        (
            "sd3",
            &[
                "sd3-plain-96x64-3",
                "sd3-cfg1-64x96-5",
                "sd3-long-96x64-3",
                "sd3-shift5-96x64-6",
                "sd3-dpmpp_2m-96x64-3",
                "sd3-img2img-96x64-3",
            ][..],
        ),
        ("sd35_medium", &["sd35_medium-plain-96x64-3", "sd35_medium-slg-96x64-9"]),
    ] {
        let transformer = open(model);
        for name in names {
            let case = Case::open(name);
            let timestep = case.case["timesteps"][0].as_f64().unwrap();
            // Guidance without some layers begins after the first step.
            let found = case.velocity(&transformer, &case.tensors.tensor("noise"), timestep, None);
            Parity::new("sd3", *name).check("velocity", &found, &case.tensors.tensor("velocity"), VELOCITY);
        }
    }
}

/// All steps of a run whose guidance has predictions without some of the blocks.
#[test]
#[ignore = "needs ../shared/data"]
fn shared_data_skipped_layers_guide_as_in_diffusers() {
    let name = "sd35_medium-slg-96x64-9";
    let (transformer, case) = (open("sd35_medium"), Case::open(name));
    let slg = &case.case["slg"];
    let layers = slg["layers"].as_array().unwrap().iter().map(|layer| 1 << layer.as_u64().unwrap()).sum::<u64>();
    let [scale, start, end] = ["scale", "start", "end"].map(|key| slg[key].as_f64().unwrap());
    let list = |key: &str| case.case[key].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect::<Vec<_>>();
    let (timesteps, sigmas) = (list("timesteps"), list("schedule"));
    let mut x = case.tensors.tensor("noise");
    let steps = timesteps.len() as f64;
    for (i, timestep) in timesteps.iter().enumerate() {
        let acts = steps * start < i as f64 && (i as f64) < steps * end;
        let v = case.velocity(&transformer, &x, *timestep, acts.then_some((layers, scale)));
        x = (x + (v * (sigmas[i + 1] - sigmas[i])).unwrap()).unwrap();
    }
    Parity::new("sd3", name).check("latents", &x, &case.tensors.tensor("latents"), LATENTS);
}
