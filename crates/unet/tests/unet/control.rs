//! Control networks compared with diffusers, residual by residual.

use candle_core::{DType, Device, Tensor};
use kiln_testkit::{Fixture, Parity, TinyControl, control_pixels};
use kiln_unet::{
    AddedConditions, Conditioning, ControlConfig, ControlHint, ControlInput, ControlNet, Residuals, UnetConfig,
};
use kiln_weights::{MapSource, Placement, load};

/// Largest error of a residual in f32, in standard deviations.
const BOUND: f64 = 1e-4;

/// A control network with its weights, and the embedding of its images.
fn open(kind: &str, tiny: TinyControl) -> (ControlNet, ControlHint) {
    let config = ControlConfig::from_json(&tiny.config(kind).to_string()).unwrap();
    let source = MapSource::from_iter(tiny.tensors(kind));
    let (net, hint) = (ControlNet::new(config.clone()), ControlHint::new(&config));
    let placement = Placement::new(Device::Cpu, DType::F32);
    load(net.segments(), &source, &placement).unwrap();
    load(hint.segments(), &source, &placement).unwrap();
    (net, hint)
}

/// What a network for one type of images gets.
fn input(hint: &Tensor, scales: &[f32]) -> ControlInput {
    let (hints, text_keys) = (vec![hint.clone()], Vec::new());
    ControlInput { network: 0, hints, kinds: None, scales: scales.into(), text_keys }
}

/// The inputs of a case.
struct Inputs {
    sample: Tensor,
    timestep: Tensor,
    conditioning: Conditioning,
    pixels: Tensor,
}

impl Inputs {
    fn of(fixture: &Fixture, case: &str) -> Self {
        let tensor = |name: &str| fixture.tensor(&format!("{case}.{name}"));
        let sample = tensor("sample");
        let (_, _, h, w) = sample.dims4().unwrap();
        let values: Vec<f32> = control_pixels(8 * w, 8 * h).iter().map(|&value| f32::from(value) / 255.0).collect();
        let pixels = Tensor::from_vec(values, (1, 8 * h, 8 * w, 3), &Device::Cpu).unwrap();
        let added = fixture
            .get(&format!("{case}.text_embeds"))
            .map(|text_embeds| AddedConditions { text_embeds, time_ids: tensor("time_ids") });
        Self {
            conditioning: Conditioning { added, ..Conditioning::of_text(tensor("context")) },
            timestep: tensor("timestep"),
            pixels: pixels.permute((0, 3, 1, 2)).unwrap().contiguous().unwrap(),
            sample,
        }
    }

    /// The residuals for all rows, with diffusers' factors of the guess mode.
    fn run(&self, (net, hint): &(ControlNet, ControlHint)) -> Residuals {
        let embedded = hint.forward(&self.pixels).unwrap().repeat((2, 1, 1, 1)).unwrap();
        let count = net.skips().len() + 1;
        let scale = |i: usize| 10f64.powf(i as f64 / (count - 1) as f64 - 1.0) as f32 * 0.7;
        let scales: Vec<f32> = (0..count).map(scale).collect();
        net.forward(&self.sample, &self.timestep, &self.conditioning, &input(&embedded, &scales)).unwrap()
    }
}

#[test]
fn residuals_are_diffusers() {
    let fixture = Fixture::open("control.safetensors");
    for (kind, form, is_small) in
        [("sd1", "taps", false), ("sd2v", "taps", false), ("sdxl", "taps", false), ("sdxl", "taps_small", true)]
    {
        let case = format!("{kind}.{form}");
        let networks = open(kind, TinyControl { number: 0, is_small });
        let Residuals { down, mid } = Inputs::of(&fixture, &case).run(&networks);
        let parity = Parity::new("control", format!("{kind}{} f32", if is_small { " small" } else { "" }));
        let check = |name: &str, found: &Tensor| {
            let found = found.permute((0, 3, 1, 2)).unwrap();
            parity.check(name, &found, &fixture.tensor(&format!("{case}.{name}")), BOUND);
        };
        assert!(fixture.get(&format!("{case}.down.{}", down.len())).is_none());
        down.iter().enumerate().for_each(|(i, residual)| check(&format!("down.{i}"), residual));
        check("mid", &mid);
    }
}

/// A network that runs for the last rows gives the residuals that it gives them among others.
#[test]
fn rows_are_independent() {
    let fixture = Fixture::open("control.safetensors");
    for kind in ["sd1", "sdxl"] {
        let (net, hint) = open(kind, TinyControl::full(0));
        let inputs = Inputs::of(&fixture, &format!("{kind}.taps"));
        let embedded = hint.forward(&inputs.pixels).unwrap();
        let run = |rows: usize| {
            let hint = embedded.repeat((rows, 1, 1, 1)).unwrap();
            let input = input(&hint, &net.even_scales(0.5));
            net.forward(&inputs.sample, &inputs.timestep, &inputs.conditioning, &input).unwrap()
        };
        let (both, last) = (run(2), run(1));
        let values = |tensor: &Tensor| tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        for (both, last) in both.down.iter().zip(&last.down).chain([(&both.mid, &last.mid)]) {
            assert_eq!(values(&both.narrow(0, 1, 1).unwrap()), values(last));
        }
    }
}

/// Keys and values that are made of the text once give the same residuals as those that each step makes.
#[test]
fn keys_of_the_text_may_be_made_before() {
    let fixture = Fixture::open("control.safetensors");
    for kind in ["sd1", "sdxl"] {
        let (net, hint) = open(kind, TinyControl::full(0));
        let inputs = Inputs::of(&fixture, &format!("{kind}.taps"));
        let hint = hint.forward(&inputs.pixels).unwrap(); // for the last row alone
        let text = inputs.conditioning.context.narrow(0, 1, 1).unwrap();
        let without = input(&hint, &net.even_scales(0.5));
        let with = ControlInput { text_keys: net.text_keys(&text).unwrap(), ..without.clone() };
        assert!(!with.text_keys.is_empty());
        let run = |input: &ControlInput| net.forward(&inputs.sample, &inputs.timestep, &inputs.conditioning, input);
        let [made, given] = [run(&without).unwrap(), run(&with).unwrap()];
        let values = |tensor: &Tensor| tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        for (made, given) in made.down.iter().zip(&given.down).chain([(&made.mid, &given.mid)]) {
            assert_eq!(values(made), values(given));
        }
        // The text of another row is another text.
        let other = net.text_keys(&inputs.conditioning.context.narrow(0, 0, 1).unwrap()).unwrap();
        let other = run(&ControlInput { text_keys: other, ..without.clone() }).unwrap();
        assert_ne!(values(&made.mid), values(&other.mid));
        let few = ControlInput { text_keys: with.text_keys[1..].to_vec(), ..without };
        assert!(run(&few).unwrap_err().to_string().contains("`text_keys`"));
    }
}

/// A configuration from the tensors and the U-Net is that of `config.json`.
#[test]
fn configurations_follow_from_shapes() {
    for (kind, is_small) in [("sd1", false), ("sd2v", false), ("sdxl", false), ("sdxl", true)] {
        let tiny = TinyControl { number: 0, is_small };
        let tensors = tiny.tensors(kind);
        let unet = kiln_testkit::fixtures(&format!("models/{kind}/unet/config.json"));
        let unet = UnetConfig::from_json(&std::fs::read_to_string(unet).unwrap()).unwrap();
        let shape = |name: &str| tensors.get(name).map(|tensor| tensor.dims().to_vec());
        let derived = ControlConfig::from_shapes(&shape, &unet).unwrap();
        let expected = ControlConfig::from_json(&tiny.config(kind).to_string()).unwrap();
        assert_eq!(derived, expected, "{kind} {is_small}");
        for gone in ["conv_in.weight", "mid_block.resnets.0.conv1.weight", "down_blocks.0.resnets.0.conv1.weight"] {
            let without = |name: &str| shape(name).filter(|_| name != gone);
            let message = ControlConfig::from_shapes(&without, &unet).unwrap_err().to_string();
            assert!(message.contains(gone), "{message}");
        }
    }
}

#[test]
fn inputs_that_do_not_fit_are_refused() {
    let fixture = Fixture::open("control.safetensors");
    let (net, hint) = open("sdxl", TinyControl::full(0));
    let inputs = Inputs::of(&fixture, "sdxl.taps");
    let embedded = hint.forward(&inputs.pixels).unwrap();
    let run = |hint: &Tensor, conditioning: &Conditioning, scales: &[f32]| {
        let input = input(hint, scales);
        net.forward(&inputs.sample, &inputs.timestep, conditioning, &input).map(drop).unwrap_err().to_string()
    };
    let scales = net.even_scales(1.0);
    let three = embedded.repeat((3, 1, 1, 1)).unwrap();
    assert!(run(&three, &inputs.conditioning, &scales).contains("`controls`"));
    let narrow = embedded.narrow(2, 0, 3).unwrap();
    assert!(run(&narrow, &inputs.conditioning, &scales).contains("`controls`"));
    assert!(run(&embedded, &inputs.conditioning, &scales[1..]).contains("`scales`"));
    let two = ControlInput { hints: vec![embedded.clone(); 2], ..input(&embedded, &scales) };
    let refused = net.forward(&inputs.sample, &inputs.timestep, &inputs.conditioning, &two).map(drop).unwrap_err();
    assert!(refused.to_string().contains("no Union network"), "{refused}");
    let without = Conditioning { added: None, ..inputs.conditioning.clone() };
    assert!(run(&embedded, &without, &scales).contains("`text_embeds`"));
    let message = hint.forward(&inputs.pixels.narrow(1, 0, 2).unwrap()).unwrap_err().to_string();
    assert!(message.contains("`control image`"), "{message}");
}
