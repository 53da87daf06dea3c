//! The language model with images, against transformers (`tests/reference/qwen_edit.py`).

use candle_core::{DType, Device, Tensor};
use kiln_media::Rgb8Image;
use kiln_nn::ops::Target;
use kiln_nn::{MetaDevice, MetaTensor};
use kiln_qwen::{Error, ImagePatches, QwenConfig, QwenEncoder, Text, TextImage};
use kiln_testkit::Fixture;
use kiln_weights::{MapSource, ParamSource, Placement, RandomSource, Segment, load, mismatches};

const CONFIG: &str = r#"{"model_type": "qwen2_5_vl", "vision_config": {"depth": 3, "hidden_size": 32, "intermediate_size": 40,
    "num_heads": 2, "out_hidden_size": 32, "fullatt_block_indexes": [1]}, "text_config": {"model_type": "qwen2_5_vl_text",
    "vocab_size": 270, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "rope_parameters": {"mrope_section": [2, 3, 3], "rope_theta": 1000000.0, "rope_type": "default"}}}"#;
/// The kernel that is applied to patches, in the checkpoint.
const KERNEL: (&str, [usize; 5]) = ("visual.patch_embed.proj.weight", [32, 3, 2, 14, 14]);

/// Values of about 1 that do not repeat.
fn weight(name: &str, shape: &[usize]) -> Tensor {
    let (count, seed) = (shape.iter().product::<usize>(), name.bytes().map(usize::from).sum::<usize>());
    let value = |i: usize| ((i + 1) as f64 * 0.618_033_988_749_895 + seed as f64 * 0.379).fract() as f32 * 3.4 - 1.7;
    let values = Tensor::from_vec((0..count).map(value).collect::<Vec<_>>(), shape, &Device::Cpu).unwrap();
    match shape {
        [_] => values.affine(0.1, 0.5).unwrap(),
        [_, rest @ ..] => values.affine(1.0 / (rest.iter().product::<usize>() as f64).sqrt(), 0.0).unwrap(),
        [] => values,
    }
}

fn source(encoder: &QwenEncoder) -> MapSource {
    let random = RandomSource::new(encoder.segments(), 1);
    let value = |key: String| {
        let shape = random.info(&key).unwrap().shape;
        let value = weight(&key, if key == KERNEL.0 { &KERNEL.1 } else { &shape });
        (key, value)
    };
    random.keys().into_iter().map(value).collect()
}

fn encoder(dtype: DType) -> QwenEncoder {
    let encoder = QwenEncoder::seeing(QwenConfig::from_json(CONFIG).unwrap()).unwrap();
    load(encoder.segments(), &source(&encoder), &Placement::new(Device::Cpu, dtype)).unwrap();
    encoder
}

fn patches(encoder: &QwenEncoder, width: usize, height: usize) -> ImagePatches {
    let byte = |i: usize| {
        let (x, y, c) = (i / 3 % width, i / 3 / width, i % 3);
        ((7 * x + 13 * y + 29 * c + x * y) % 256) as u8
    };
    let image = Rgb8Image::new(width, height, (0..3 * width * height).map(byte).collect()).unwrap();
    ImagePatches::new(&image, encoder.vision().unwrap()).unwrap()
}

/// Two images of 20 and 14 tokens, and a text with both.
fn two_images(encoder: &QwenEncoder) -> (Vec<ImagePatches>, Text) {
    let images = vec![patches(encoder, 150, 100), patches(encoder, 60, 190)];
    assert_eq!([images[0].grid(), images[1].grid()], [[4, 5], [7, 2]]);
    let ids = [&[3, 9][..], &[261; 20], &[20], &[261; 14], &[30, 31, 32]].concat();
    let places = vec![TextImage { start: 2, image: 0 }, TextImage { start: 23, image: 1 }];
    (images, Text { images: places, ..Text::whole(ids) })
}

fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

#[test]
fn hidden_states_are_those_of_transformers() {
    let expected = values(&Fixture::open("qwen_edit/values.safetensors").tensor("hidden"));
    for (dtype, bound) in [(DType::F32, 2e-5), (DType::BF16, 0.1)] {
        let encoder = encoder(dtype);
        let (images, text) = two_images(&encoder);
        let found = values(&encoder.encode_with(&[text], &images, &Device::Cpu.into()).unwrap()[0]);
        assert_eq!(found.len(), expected.len());
        let largest = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
        assert!(largest < bound, "{dtype:?}: {largest}");
    }
}

#[test]
fn a_text_has_the_same_bits_alone_and_with_others() {
    let encoder = encoder(DType::F32);
    let (images, text) = two_images(&encoder);
    let second = Text { images: vec![TextImage { start: 1, image: 1 }], ..Text::whole(vec![7; 16]) };
    let texts = [text.clone(), Text::whole(vec![1, 2, 3]), second.clone()];
    let all = encoder.encode_with(&texts, &images, &Device::Cpu.into()).unwrap();
    let alone = |text: &Text, images: &[ImagePatches]| {
        values(&encoder.encode_with(std::slice::from_ref(text), images, &Device::Cpu.into()).unwrap()[0])
    };
    assert_eq!(values(&all[0]), alone(&texts[0], &images));
    assert_eq!(values(&all[1]), values(&encoder.encode(&texts[1..2], &Device::Cpu).unwrap()[0]));
    let first = Text { images: vec![TextImage { start: 1, image: 0 }], ..second };
    assert_eq!(values(&all[2]), alone(&first, &images[1..]));
    // The same ids without images are another text.
    assert_ne!(values(&all[0]), alone(&Text { images: Vec::new(), ..text }, &[]));
}

#[test]
fn shapes_without_elements_are_those_of_tensors() {
    let encoder = encoder(DType::F32);
    let device = MetaDevice::new(Target::Cpu { threads: 2 }, DType::F32);
    let (images, text) = two_images(&encoder);
    let found: Vec<MetaTensor> = encoder.forward(&[text], &images, &device).unwrap();
    assert_eq!(found[0].dims(), [1, 40, 32]);
    assert!(device.take_flop().total() > 0.0);
    let blank = ImagePatches::blank((150, 100), encoder.vision().unwrap()).unwrap();
    assert_eq!((blank.grid(), blank.tokens()), ([4, 5], 20));
}

#[test]
fn the_tower_is_part_of_the_network_that_sees() {
    let config = QwenConfig::from_json(CONFIG).unwrap();
    let keys = |encoder: &QwenEncoder| -> Vec<String> {
        encoder.segments().iter().flat_map(Segment::params).map(|param| param.key.clone()).collect()
    };
    let (seeing, plain) = (QwenEncoder::seeing(config.clone()).unwrap(), QwenEncoder::normed(config.clone()).unwrap());
    let own: Vec<String> = keys(&seeing).into_iter().filter(|key| key.starts_with("visual.")).collect();
    assert_eq!((own.len(), keys(&seeing).len()), (1 + 3 * 12 + 5, keys(&plain).len() + own.len()));
    assert!(mismatches(seeing.segments(), &source(&seeing)).is_empty());
    let mut whole = config;
    whole.vision = None;
    let message = QwenEncoder::seeing(whole).err().unwrap().to_string();
    assert!(message.contains("`vision_config` is missing, expected that of a vision tower"), "{message}");
    let sections = QwenConfig::from_json(&CONFIG.replace("[2, 3, 3]", "[2, 3, 2]")).unwrap();
    let message = QwenEncoder::seeing(sections).err().unwrap().to_string();
    assert!(message.contains("`mrope_section` is [2, 3, 2], expected three numbers with the sum 8"), "{message}");
}

#[test]
fn images_without_a_place_are_refused() {
    let encoder = encoder(DType::F32);
    let (images, text) = two_images(&encoder);
    let refused = |images: &[ImagePatches], text: Text| {
        let found = encoder.encode_with(&[text], images, &Device::Cpu.into());
        assert!(matches!(found, Err(Error::Input { input: "images", .. })));
    };
    refused(&images[..1], text.clone());
    for places in [[(21, 1), (2, 0)], [(2, 0), (21, 1)], [(2, 0), (27, 1)], [(2, 0), (usize::MAX, 1)]] {
        let places = places.map(|(start, image)| TextImage { start, image }).to_vec();
        refused(&images, Text { images: places, ..text.clone() });
    }
}
