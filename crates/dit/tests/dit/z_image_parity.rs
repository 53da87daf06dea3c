//! Z-Image's transformer compared with diffusers: the velocity of the first step of whole runs.

use candle_core::{DType, Device, Tensor};
use kiln_dit::z_image::{ZImageConfig, ZImageTransformer};
use kiln_network::slots::{CONTEXT, TEXT_LENGTHS};
use kiln_network::{Forward, Inputs};
use kiln_testkit::{Fixture, Parity, Target, shared_data};
use kiln_weights::{Placement, load, open_component};

/// Largest error in f32, in standard deviations.
const BOUND: f64 = 2e-5;

#[test]
#[ignore = "needs ../shared/data"]
fn shared_data_z_image() {
    let folder = shared_data("families/models/zimage/transformer");
    let config = ZImageConfig::from_json(&std::fs::read_to_string(folder.join("config.json")).unwrap()).unwrap();
    let network = ZImageTransformer::new(config);
    let source = open_component(&folder).unwrap();
    load(network.segments(), source.as_ref(), &Placement::new(Device::Cpu, DType::F32)).unwrap();
    let name = "zimage-plain-96x64-3";
    let case = Fixture::read(name, &shared_data("families").join(format!("{name}.safetensors")));
    let (noise, text) = (case.tensor("noise"), case.tensor("prompt_embeds"));
    let timesteps = Tensor::new(&[1000f32], &Device::Cpu).unwrap();
    let target = Target { device: Device::Cpu, dtype: DType::F32 };
    let plain = Inputs::new().with(CONTEXT, text.clone());
    // The text as a batch has it: with rows behind that are not part of it.
    let rows = Tensor::ones((1, 64 - 22, 48), DType::F32, &Device::Cpu).unwrap();
    let padded = Inputs::new()
        .with(CONTEXT, Tensor::cat(&[&text, &rows], 1).unwrap())
        .with(TEXT_LENGTHS, Tensor::new(&[22f32], &Device::Cpu).unwrap());
    for (what, inputs) in [("plain", plain), ("padded", padded)] {
        let inputs = network.prepare(inputs).unwrap();
        let found = network.forward(&noise, &timesteps, &inputs).unwrap();
        Parity::new("dit", target.label("zimage")).check(what, &found, &case.tensor("velocity"), BOUND);
    }
}
