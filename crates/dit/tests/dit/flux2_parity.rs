//! FLUX.2's transformer compared with diffusers: the velocity of the first step of whole runs.

use candle_core::{DType, Device, Tensor};
use kiln_dit::{Flux2Config, Flux2Transformer};
use kiln_network::slots::CONTEXT;
use kiln_network::{Forward, Inputs};
use kiln_testkit::{Fixture, Parity, Target, shared_data};
use kiln_weights::{Placement, load, open_component};

/// Largest error in f32, in standard deviations.
const BOUND: f64 = 2e-5;

#[test]
#[ignore = "needs ../shared/data"]
fn shared_data_klein() {
    let folder = shared_data("families/models/flux2_klein/transformer");
    let config = Flux2Config::from_json(&std::fs::read_to_string(folder.join("config.json")).unwrap()).unwrap();
    let network = Flux2Transformer::new(config);
    let source = open_component(&folder).unwrap();
    load(network.segments(), source.as_ref(), &Placement::new(Device::Cpu, DType::F32)).unwrap();
    let name = "flux2_klein-plain-96x64-3";
    let case = Fixture::read(name, &shared_data("families").join(format!("{name}.safetensors")));
    let inputs = network.prepare(Inputs::new().with(CONTEXT, case.tensor("prompt_embeds"))).unwrap();
    let timesteps = Tensor::new(&[1000f32], &Device::Cpu).unwrap();
    let found = network.forward(&case.tensor("noise"), &timesteps, &inputs).unwrap();
    let target = Target { device: Device::Cpu, dtype: DType::F32 };
    Parity::new("dit", target.label("flux2_klein")).check(name, &found, &case.tensor("velocity"), BOUND);
}
