//! FLUX.1's transformer compared with diffusers: the velocity of the first step of whole runs.

use candle_core::{DType, Device, Tensor};
use kiln_dit::{FluxConfig, FluxTransformer};
use kiln_network::Inputs;
use kiln_network::slots::{CONTEXT, GUIDANCE, TEXT_EMBEDS};
use kiln_testkit::{Fixture, Parity, Target, shared_data};
use kiln_weights::{Placement, load, open_component};

/// Largest error in f32, in standard deviations. The sinusoids of 1000 times the guidance in f32 differ by 1e-4 of it between
/// implementations.
const BOUND: f64 = 2e-4;

fn open(model: &str) -> FluxTransformer {
    let folder = shared_data("families/models").join(model).join("transformer");
    let config = FluxConfig::from_json(&std::fs::read_to_string(folder.join("config.json")).unwrap()).unwrap();
    let flux = FluxTransformer::new(config);
    let source = open_component(&folder).unwrap();
    load(flux.segments(), source.as_ref(), &Placement::new(Device::Cpu, DType::F32)).unwrap();
    flux
}

/// Compares the first step of `case` with diffusers'. Its text is that of `text`, whose embeddings are known.
fn check(model: &str, case: &str, text: &str, noise_level: f32, guidance: Option<f32>) {
    let flux = open(model);
    let read = |name: &str| Fixture::read(name, &shared_data("families").join(format!("{name}.safetensors")));
    let (case_file, text) = (read(case), read(text));
    let noise = case_file.tensor("noise");
    let rows = |tensor: Tensor| Tensor::cat(&vec![&tensor; noise.dims()[0]], 0).unwrap();
    let number = |value: f32| Tensor::new(&[1000.0 * value], &Device::Cpu).unwrap();
    let mut inputs =
        Inputs::new().with(CONTEXT, rows(text.tensor("prompt_embeds"))).with(TEXT_EMBEDS, rows(text.tensor("pooled")));
    if let Some(guidance) = guidance {
        inputs = inputs.with(GUIDANCE, number(guidance));
    }
    let found = flux.forward(&noise, &number(noise_level), &inputs).unwrap();
    let target = Target { device: Device::Cpu, dtype: DType::F32 };
    Parity::new("dit", target.label(model)).check(case, &found, &case_file.tensor("velocity"), BOUND);
}

#[test]
#[ignore = "needs ../shared/data"]
fn shared_data_schnell() {
    let text = "flux_schnell-plain-96x64-3";
    check("flux_schnell", text, text, 1.0, None);
    check("flux_schnell", "flux_schnell-batch-64x64-11", text, 1.0, None);
}

#[test]
#[ignore = "needs ../shared/data"]
fn shared_data_dev() {
    let text = "flux_dev-plain-96x64-3";
    check("flux_dev", text, text, 1.0, Some(3.5));
    // Noisy latents of an image, at another noise level.
    check("flux_dev", "flux_dev-img2img-96x64-3", text, 0.863_777_3, Some(3.5));
    check("flux_dev", "flux_dev-inpaint-96x64-3", text, 1.0, Some(3.5));
}
