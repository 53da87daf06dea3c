//! Control networks of FLUX.1 with small random weights.

use candle_core::{DType, Device, Tensor};
use kiln_dit::{FluxControlConfig, FluxControlInput, FluxControlNet};
use kiln_network::slots::REFERENCE;
use kiln_network::{Control, ControlSpec, ControlTakes, Denoiser, Embed, Inputs, StepShape};
use kiln_nn::ops::Target;
use kiln_nn::ops::trace::record;
use kiln_nn::{MetaDevice, MetaTensor};
use kiln_weights::{Placement, RandomSource, Segments, load};

use crate::common::{build, inputs, networks, tensor};

fn net(more: &str, seed: u64) -> FluxControlNet {
    sized_net(4, 2, more, seed)
}

fn sized_net(heads: usize, single_layers: usize, more: &str, seed: u64) -> FluxControlNet {
    let json = format!(
        r#"{{"attention_head_dim": 16, "num_attention_heads": {heads}, "axes_dims_rope": [4, 6, 6], "num_layers": 1,
            "num_single_layers": {single_layers}, "joint_attention_dim": 48, "pooled_projection_dim": 24{more}}}"#
    );
    let net = FluxControlNet::new(FluxControlConfig::from_json(&json).unwrap());
    let source = RandomSource::new(net.segments(), seed);
    load(net.segments(), &source, &Placement::new(Device::Cpu, DType::F32)).unwrap();
    net
}

/// FLUX.1 dev, its inputs for three rows, and latents.
fn dev() -> (Box<dyn Denoiser>, Inputs, Tensor) {
    let (_, config) = networks().remove(1);
    let network = build(config.as_ref(), DType::F32);
    let all = inputs(config.as_ref(), network.latents(), [2, 6, 4]);
    (network, all, tensor(&[2, 16, 6, 4], 0))
}

fn control(network: usize, rows: usize) -> FluxControlInput {
    FluxControlInput { network, latents: tensor(&[rows, 16, 6, 4], 8), mode: None, scale: 0.7 }
}

fn with(inputs: &Inputs, control: FluxControlInput) -> Inputs {
    let mut inputs = inputs.clone();
    control.add_to(&mut inputs);
    inputs
}

fn run(network: &dyn Denoiser, x: &Tensor, inputs: &Inputs) -> Vec<f32> {
    let timesteps = Tensor::new(&[700f32], &Device::Cpu).unwrap();
    network.forward(x, &timesteps, inputs).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

fn message(network: &dyn Denoiser, x: &Tensor, inputs: &Inputs) -> String {
    let timesteps = Tensor::new(&[700f32], &Device::Cpu).unwrap();
    network.forward(x, &timesteps, inputs).unwrap_err().to_string()
}

#[test]
fn control_networks_change_the_result() {
    let (flux, all, x) = dev();
    let nets = [net("", 3), sized_net(4, 0, r#", "guidance_embeds": true"#, 4)];
    let both = flux.with_controls(nets.iter().map(|net| net as &dyn Control).collect()).unwrap();
    let base = run(flux.as_ref(), &x, &all);
    assert_eq!(run(both.as_ref(), &x, &all), base, "networks without an input");
    let off = FluxControlInput { scale: 0.0, ..control(0, 2) };
    assert_eq!(run(both.as_ref(), &x, &with(&all, off)), base, "a weight of 0");
    let first = run(both.as_ref(), &x, &with(&all, control(0, 2)));
    let second = run(both.as_ref(), &x, &with(&all, control(1, 2)));
    let sum = run(both.as_ref(), &x, &with(&with(&all, control(0, 2)), control(1, 2)));
    assert!(first != base && second != base && first != second && sum != first && sum != second);
    // Rows are as they are alone, prepared or not.
    let rows = with(&all, control(0, 2));
    for i in 0..2 {
        let own = both.prepare(rows.rows(i..i + 1).unwrap()).unwrap();
        let found = run(both.as_ref(), &x.narrow(0, i, 1).unwrap(), &own);
        assert_eq!(found, first[i * found.len()..][..found.len()], "row {i}");
    }
    // Tokens of references are not controlled.
    let reference = all.clone().with(REFERENCE, tensor(&[2, 16, 2, 2], 5));
    assert_ne!(run(both.as_ref(), &x, &with(&reference, control(0, 2))), run(both.as_ref(), &x, &reference));
}

/// With true guidance both halves get the residuals of the prompt.
#[test]
fn residuals_of_the_prompt_are_those_of_all_rows() {
    let (flux, all, x) = dev();
    let net = net("", 3);
    let controlled = flux.with_controls(vec![&net]).unwrap();
    let last = control(0, 1);
    let twice = FluxControlInput { latents: Tensor::cat(&[&last.latents, &last.latents], 0).unwrap(), ..control(0, 1) };
    let (found, each) =
        (run(controlled.as_ref(), &x, &with(&all, last)), run(controlled.as_ref(), &x, &with(&all, twice)));
    let half = found.len() / 2;
    assert!(found[half..] == each[half..] && found[..half] != each[..half]);
}

#[test]
fn union_networks_have_types() {
    let (flux, all, x) = dev();
    let net = net(r#", "num_mode": 3"#, 3);
    let controlled = flux.with_controls(vec![&net]).unwrap();
    let mode = |mode| FluxControlInput { mode, ..control(0, 2) };
    let [a, b] = [0, 2].map(|i| run(controlled.as_ref(), &x, &with(&all, mode(Some(i)))));
    assert_ne!(a, b);
    for wrong in [None, Some(3)] {
        let found = message(controlled.as_ref(), &x, &with(&all, mode(wrong)));
        assert!(found.contains("expected a type below 3: the network is a Union network"), "{found}");
    }
}

#[test]
fn others_are_refused() {
    struct Other(Segments);
    impl<T: Clone> Embed<T> for Other {}
    impl Control for Other {
        fn spec(&self) -> ControlSpec {
            ControlSpec::of_steps("another network", ControlTakes::Pixels { channels: 3 })
        }

        fn step_segments(&self) -> &Segments {
            &self.0
        }
    }
    let (flux, all, x) = dev();
    let refused = |control: &dyn Control| flux.with_controls(vec![control]).err().unwrap().to_string();
    assert!(refused(&Other(Segments::default())).contains("a control network for FLUX.1"));
    assert!(refused(&sized_net(2, 1, "", 1)).contains("with 64 channels, 4 heads"));
    let net = net("", 3);
    let controlled = flux.with_controls(vec![&net]).unwrap();
    let found = message(controlled.as_ref(), &x, &with(&all, control(1, 2)));
    assert!(found.contains("the number of a ControlNet among 1 open networks"), "{found}");
    let small = FluxControlInput { latents: tensor(&[2, 16, 4, 4], 8), ..control(0, 2) };
    let found = message(controlled.as_ref(), &x, &with(&all, small));
    assert!(found.contains("`control latents` has shape [2, 16, 4, 4], expected [2, 16, 6, 4]"), "{found}");
    let typed = FluxControlInput { mode: Some(1), ..control(0, 2) };
    assert!(message(controlled.as_ref(), &x, &with(&all, typed)).contains("the network is no Union network"));
}

#[test]
fn a_dry_run_has_the_operations_of_a_run() {
    let (flux, all, x) = dev();
    let net = net(r#", "num_mode": 3"#, 3);
    let controlled = flux.with_controls(vec![&net]).unwrap();
    let all = controlled.prepare(with(&all, FluxControlInput { mode: Some(0), scale: 1.0, ..control(0, 2) })).unwrap();
    let real = || Ok::<_, kiln_nn::ops::Error>(run(controlled.as_ref(), &x, &all));
    let (_, trace) = record(&Device::Cpu, real).unwrap();
    let flop: f64 = trace.operators.iter().map(|operator| operator.flop).sum();
    let device = MetaDevice::new(Target::of(&Device::Cpu), DType::F32);
    let shape = StepShape { rows: 2, height: 6, width: 4, tokens: 7 };
    let mut inputs = controlled.meta_inputs(&device, shape, DType::F32);
    net.add_meta_inputs(&mut inputs, 0, &device, [2, 6, 4], DType::F32);
    let inputs = controlled.prepare(inputs).unwrap();
    assert_eq!(inputs.key(), all.key());
    let (x, timesteps) = (device.tensor(&[2, 16, 6, 4], DType::F32), device.tensor(&[1], DType::F32));
    let _: MetaTensor = controlled.forward(&x, &timesteps, &inputs).unwrap();
    assert_eq!(device.take_flop().total(), flop);
}
