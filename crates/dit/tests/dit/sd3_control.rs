//! SD3 control networks with random weights.

use candle_core::{DType, Device, Tensor};
use kiln_dit::sd3::{Sd3Config, Sd3ControlConfig, Sd3ControlInput, Sd3ControlNet, Sd3Transformer};
use kiln_network::slots::{CONTEXT, TEXT_EMBEDS};
use kiln_network::{Control, ControlSpec, ControlTakes, Denoiser, Embed, Inputs};
use kiln_weights::{Placement, RandomSource, Segments, load};

/// The sizes that the networks have in common.
const SIZES: &str = r#""num_attention_heads": 2, "attention_head_dim": 16, "caption_projection_dim": 32,
    "joint_attention_dim": 24, "pooled_projection_dim": 12, "pos_embed_max_size": 8, "in_channels": 4, "out_channels": 4"#;

fn fill(segments: &Segments, seed: u64) {
    load(segments, &RandomSource::new(segments, seed), &Placement::new(Device::Cpu, DType::F32)).unwrap();
}

fn transformer(layers: usize) -> Sd3Transformer {
    let config = Sd3Config::from_json(&format!(r#"{{{SIZES}, "num_layers": {layers}}}"#)).unwrap();
    let transformer = Sd3Transformer::new(config);
    fill(transformer.segments(), 3);
    transformer
}

/// A control network; `more` replaces or adds keys.
fn net(layers: usize, more: &str) -> Sd3ControlNet {
    let base = format!(r#"{{{SIZES}, "num_layers": {layers}, "force_zeros_for_pooled_projection": false}}"#);
    let mut json: serde_json::Value = serde_json::from_str(&base).unwrap();
    let more: serde_json::Value = serde_json::from_str(more).unwrap();
    json.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let net = Sd3ControlNet::new(Sd3ControlConfig::from_json(&json.to_string()).unwrap());
    fill(net.segments(), 5);
    net
}

fn tensor(shape: &[usize], seed: usize) -> Tensor {
    let value = |i: usize| ((i + 1) as f64 * 0.618_033_988_749_895 + seed as f64 * 0.379).fract() as f32 * 2.0 - 1.0;
    let values: Vec<f32> = (0..shape.iter().product()).map(value).collect();
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
}

fn values(x: &Tensor) -> Vec<f32> {
    x.flatten_all().unwrap().to_vec1().unwrap()
}

fn row(x: &Tensor, i: usize) -> Vec<f32> {
    values(&x.narrow(0, i, 1).unwrap())
}

/// The result for two rows, with control images of `controls`, each the network's number, rows and weight.
fn run(denoiser: &dyn Denoiser, controls: &[(usize, usize, f32)], channels: usize) -> Tensor {
    let x = tensor(&[2, 4, 6, 10], 3);
    let mut inputs = Inputs::new().with(CONTEXT, tensor(&[2, 7, 24], 1)).with(TEXT_EMBEDS, tensor(&[2, 12], 2));
    for &(network, rows, weight) in controls {
        let latents = tensor(&[2, channels, 6, 10], 7 + network).narrow(0, 2 - rows, rows).unwrap();
        Sd3ControlInput { network, latents, weight }.add_to(&mut inputs);
    }
    let timestep = Tensor::new(&[700f32], &Device::Cpu).unwrap();
    let y: Tensor = denoiser.forward(&x, &timestep, &inputs).unwrap();
    let prepared = denoiser.prepare(denoiser.for_size(inputs, [6, 10]).unwrap()).unwrap();
    assert!(values(&denoiser.forward(&x, &timestep, &prepared).unwrap()) == values(&y), "prepared inputs change bits");
    y
}

#[test]
fn residuals_are_added_to_the_rows_with_an_image() {
    let transformer = transformer(4);
    let alone = run(&transformer, &[], 4);
    for more in [
        "{}",
        r#"{"joint_attention_dim": null}"#,
        r#"{"force_zeros_for_pooled_projection": true}"#,
        r#"{"joint_attention_dim": null, "use_pos_embed": false, "force_zeros_for_pooled_projection": true}"#,
        r#"{"extra_conditioning_channels": 1}"#,
        r#"{"dual_attention_layers": [0], "qk_norm": "rms_norm"}"#,
    ] {
        let net = net(2, more);
        let channels = net.control_channels();
        let controlled = transformer.with_controls(vec![&net]).unwrap();
        assert!(values(&run(&*controlled, &[], channels)) == values(&alone), "{more}: a network without an image acts");
        assert!(values(&run(&*controlled, &[(0, 2, 0.0)], channels)) == values(&alone), "{more}: no weight");
        let both = run(&*controlled, &[(0, 2, 1.0)], channels);
        let last = run(&*controlled, &[(0, 1, 1.0)], channels);
        assert!(row(&last, 0) == row(&alone, 0) && row(&last, 1) == row(&both, 1), "{more}");
        assert!(row(&both, 0) != row(&alone, 0) && row(&both, 1) != row(&alone, 1), "{more}");
        assert_ne!(values(&run(&*controlled, &[(0, 2, 0.5)], channels)), values(&both), "{more}");
    }
}

/// Two networks act as one whose residuals are their sum: half of each of two equal ones is a whole one.
#[test]
fn residuals_of_several_networks_are_summed() {
    let transformer = transformer(3);
    let nets = [net(1, "{}"), net(1, "{}")];
    let one = run(&*transformer.with_controls(vec![&nets[0]]).unwrap(), &[(0, 2, 1.0)], 4);
    let controlled = transformer.with_controls(nets.iter().map(|net| net as &dyn Control).collect()).unwrap();
    let x = [tensor(&[2, 4, 6, 10], 7), tensor(&[2, 4, 6, 10], 7)];
    let mut inputs = Inputs::new().with(CONTEXT, tensor(&[2, 7, 24], 1)).with(TEXT_EMBEDS, tensor(&[2, 12], 2));
    for (network, latents) in x.into_iter().enumerate() {
        Sd3ControlInput { network, latents, weight: 0.5 }.add_to(&mut inputs);
    }
    let timestep = Tensor::new(&[700f32], &Device::Cpu).unwrap();
    let halves: Tensor = controlled.forward(&tensor(&[2, 4, 6, 10], 3), &timestep, &inputs).unwrap();
    let worst = values(&halves).iter().zip(values(&one)).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst < 1e-4, "{worst}");
}

#[test]
fn networks_and_images_that_do_not_fit_are_refused() {
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
    let transformer = transformer(2);
    let message = |control: &dyn Control| transformer.with_controls(vec![control]).err().unwrap().to_string();
    assert!(message(&Other(Segments::default())).contains("a control network for SD3"));
    assert!(message(&net(1, r#"{"patch_size": 1}"#)).contains("channels, patches and pooled text of the transformer"));
    assert!(message(&net(1, r#"{"joint_attention_dim": 8}"#)).contains("a text of 24 channels"));
    let net = net(1, "{}");
    let controlled = transformer.with_controls(vec![&net]).unwrap();
    let refused = |network: usize, shape: &[usize]| {
        let mut inputs = Inputs::new().with(CONTEXT, tensor(&[1, 7, 24], 1)).with(TEXT_EMBEDS, tensor(&[1, 12], 2));
        Sd3ControlInput { network, latents: tensor(shape, 1), weight: 1.0 }.add_to(&mut inputs);
        let timestep = Tensor::new(&[700f32], &Device::Cpu).unwrap();
        controlled.forward(&tensor(&[1, 4, 6, 10], 3), &timestep, &inputs).map(drop).unwrap_err().to_string()
    };
    assert!(refused(1, &[1, 4, 6, 10]).contains("among 1 open networks"));
    for shape in [[1, 5, 6, 10], [2, 4, 6, 10], [1, 4, 6, 8]] {
        assert!(refused(0, &shape).contains("the SD3 ControlNet's input `control latents`"));
    }
}
