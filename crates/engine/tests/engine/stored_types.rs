//! Matrices that stay as their file stores them: the same bits as from a file with the same numbers in f32, in every memory mode,
//! and in the memory of the file.

use std::collections::HashMap;
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};
use kiln_engine::{
    DTypeChoice, ExecutionTarget, ModeChoice, ModelFolder, ModelOptions, PlanReport, Planner, Setup, WeightType,
    convert,
};
use kiln_weights::{BlockType, Checkpoint, NewTensor, ParamSource, StoredType, write_gguf, write_safetensors};
use safetensors::Dtype;

use crate::weight_types::{draw, emoji, link_all_but_unet, setup};

/// A tensor of a file.
type Part = (String, Vec<usize>, Dtype, Vec<u8>);

/// How a test's file stores matrices.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Format {
    /// 8-bit floats with a scale for each row, or for all of them.
    Floats { by_row: bool },
    /// 8-bit integers, rotated where 64 divides the rows.
    Integers,
    /// bitsandbytes' 4-bit codes, with magnitudes in 8 bits.
    Nf4,
}

pub(crate) const FORMATS: [Format; 4] =
    [Format::Floats { by_row: true }, Format::Floats { by_row: false }, Format::Integers, Format::Nf4];

fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn largest(values: &[f32]) -> f32 {
    values.iter().fold(1e-6, |largest: f32, value| largest.max(value.abs()))
}

impl Format {
    /// The tensors of the matrix `name`.
    fn parts(self, name: &str, values: &[f32], [n, k]: [usize; 2]) -> Vec<Part> {
        let module = name.strip_suffix("weight").unwrap();
        let part = |name: String, shape: &[usize], dtype, bytes| (name, shape.to_vec(), dtype, bytes);
        match self {
            Self::Floats { by_row } => {
                let rows = if by_row { n } else { 1 };
                let scales: Vec<f32> = values.chunks(n * k / rows).map(|part| largest(part) / 448.0).collect();
                let number = |(i, value): (usize, &f32)| kiln_ops::to_f8_e4m3(value / scales[i / (n * k / rows)]);
                let numbers = values.iter().enumerate().map(number).collect();
                let shape: &[usize] = if by_row { &[n, 1] } else { &[] };
                let scale = if by_row { "weight_scale" } else { "scale_weight" };
                vec![
                    part(name.into(), &[n, k], Dtype::F8_E4M3, numbers),
                    part(format!("{module}{scale}"), shape, Dtype::F32, f32s(&scales)),
                    part(format!("{module}scale_input"), &[], Dtype::F32, f32s(&[0.1])),
                ]
            }
            Self::Integers => {
                let group: usize = if k.is_multiple_of(64) { 64 } else { 1 };
                // -1 where two digits of the indices, of 2 bits each, add up to 3.
                let is_minus = |i: usize, j: usize| {
                    let digits = (0..group.ilog2() / 2).filter(|d| i >> (2 * d) & 3 == 3 - (j >> (2 * d) & 3));
                    digits.count() % 2 == 1
                };
                let rotated = |group_values: &[f32], i: usize| -> f32 {
                    let signed = group_values.iter().enumerate().map(|(j, v)| if is_minus(i, j) { -v } else { *v });
                    signed.sum::<f32>() / (group as f32).sqrt()
                };
                let groups = values.chunks(group).flat_map(|values| (0..group).map(move |i| rotated(values, i)));
                let turned: Vec<f32> = groups.collect();
                let scales: Vec<f32> = turned.chunks(k).map(|row| largest(row) / 127.0).collect();
                let number = |(i, value): (usize, &f32)| (value / scales[i / k]).round() as i8 as u8;
                let numbers = turned.iter().enumerate().map(number).collect();
                let rotation = if group > 1 { r#", "convrot": true, "convrot_groupsize": 64"# } else { "" };
                let format = format!(r#"{{"format": "int8_tensorwise"{rotation}}}"#).into_bytes();
                vec![
                    part(name.into(), &[n, k], Dtype::I8, numbers),
                    part(format!("{module}weight_scale"), &[n, 1], Dtype::F32, f32s(&scales)),
                    part(format!("{module}comfy_quant"), &[format.len()], Dtype::U8, format),
                ]
            }
            Self::Nf4 => {
                const TABLE: [f32; 16] = [
                    -1.0,
                    -0.6961928,
                    -0.52507305,
                    -0.3949175,
                    -0.28444138,
                    -0.18477343,
                    -0.091050036,
                    0.0,
                    0.0795803,
                    0.1609302,
                    0.2461123,
                    0.33791524,
                    0.44070983,
                    0.562617,
                    0.72295684,
                    1.0,
                ];
                let map: Vec<f32> = (0..256).map(|i| i as f32 / 255.0).collect();
                let absmax: Vec<f32> = values.chunks(64).map(largest).collect();
                let nested: Vec<f32> = absmax.chunks(256).map(largest).collect();
                let code = |(i, value): (usize, &f32)| (value / nested[i / 256] * 255.0).round() as u8;
                let magnitudes: Vec<u8> = absmax.iter().enumerate().map(code).collect();
                let nearest = |(i, value): (usize, &f32)| {
                    let off = |entry: &f32| (entry - value / absmax[i / 64]).abs();
                    (0..16u8)
                        .min_by(|a, b| off(&TABLE[usize::from(*a)]).total_cmp(&off(&TABLE[usize::from(*b)])))
                        .unwrap()
                };
                let codes: Vec<u8> = values.iter().enumerate().map(nearest).collect();
                let codes: Vec<u8> = codes.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect();
                let state = format!(
                    r#"{{"quant_type": "nf4", "blocksize": 64, "dtype": "float16", "shape": [{n}, {k}],
                        "nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.0}}"#
                );
                let of = |ending: &str| format!("{name}.{ending}");
                vec![
                    part(name.into(), &[codes.len(), 1], Dtype::U8, codes),
                    part(of("absmax"), &[magnitudes.len()], Dtype::U8, magnitudes),
                    part(of("quant_map"), &[16], Dtype::F32, f32s(&TABLE)),
                    part(of("nested_absmax"), &[nested.len()], Dtype::F32, f32s(&nested)),
                    part(of("nested_quant_map"), &[256], Dtype::F32, f32s(&map)),
                    part(of("quant_state.bitsandbytes__nf4"), &[state.len()], Dtype::U8, state.into_bytes()),
                ]
            }
        }
    }
}

const UNET: &str = "unet/diffusion_pytorch_model.safetensors";

/// The model with a file of these tensors as its U-Net.
fn model(folder: &Path, parts: Vec<Part>) {
    link_all_but_unet(folder);
    let tensors = parts.into_iter().map(|(name, shape, dtype, bytes)| NewTensor {
        name,
        shape,
        dtype: dtype.into(),
        bytes: Box::new(move || Ok(bytes.clone().into())),
    });
    let mut file = fs::File::create(folder.join(UNET)).unwrap();
    write_safetensors(&mut file, tensors.collect(), &Default::default()).unwrap();
}

/// The U-Net's matrices in a format, and the numbers of such a file in f32.
pub(crate) fn packed_and_plain(format: Format, packed: &Path, plain: &Path) {
    let source = Checkpoint::open(&emoji().join(UNET)).unwrap();
    let parts = source.keys().into_iter().flat_map(|name| {
        let data = source.data(&name).unwrap().unwrap();
        match data.info.shape[..] {
            [n, k] => format.parts(&name, &data.to_f32().unwrap(), [n, k]),
            _ => vec![(name, data.info.shape.clone(), Dtype::F16, data.bytes.into_owned())],
        }
    });
    model(packed, parts.collect());
    let source = Checkpoint::open(&packed.join(UNET)).unwrap();
    let parts = source.keys().into_iter().map(|name| {
        let data = source.data(&name).unwrap().unwrap();
        (name, data.info.shape.clone(), Dtype::F32, f32s(&data.to_f32().unwrap()))
    });
    model(plain, parts.collect());
}

#[test]
fn stored_matrices_have_the_bits_of_their_numbers() {
    for format in FORMATS {
        let (packed, plain) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        packed_and_plain(format, packed.path(), plain.path());
        let run = |folder: &Path, dtype, weights: &str, mode| {
            draw(folder, &ModelOptions::default(), &setup(dtype, weights, mode), "a red apple")
        };
        for dtype in [DTypeChoice::F32, DTypeChoice::Bf16] {
            let expected = run(plain.path(), dtype, "auto", ModeChoice::Full);
            for mode in [ModeChoice::Full, ModeChoice::Lowvram] {
                assert!(run(packed.path(), dtype, "auto", mode) == expected, "{format:?} {dtype:?} {mode:?}");
            }
        }
        let expected = run(plain.path(), DTypeChoice::F32, "auto", ModeChoice::Full);
        assert!(run(packed.path(), DTypeChoice::F32, "f32", ModeChoice::Full) == expected, "{format:?} dequantized");
        assert!(run(&emoji(), DTypeChoice::F32, "auto", ModeChoice::Full) != expected, "{format:?} changes nothing");
    }
}

#[test]
fn plans_count_matrices_as_they_are_stored() {
    for (format, types, most) in [
        (Format::Floats { by_row: true }, "f8", 0.85),
        (Format::Integers, "int8_convrot64", 0.85),
        (Format::Nf4, "nf4", 0.75),
    ] {
        let (packed, plain) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        packed_and_plain(format, packed.path(), plain.path());
        let plan = |folder: &Path, weights: &str| {
            let setup = setup(DTypeChoice::Bf16, weights, ModeChoice::Full);
            let model = ModelFolder::open(folder).unwrap();
            let planner = Planner::new(&model, None).unwrap();
            let planner = planner.with_stored_types(&model, setup.keeps_stored());
            let work = planner.work([Some(64), Some(64)], Some(2), 1).unwrap();
            let report = PlanReport::new(&planner, work, ExecutionTarget::of(&setup).0, None).unwrap();
            let steps = report.plans[0].stages.iter().find(|stage| stage.stage == kiln_engine::Stage::Denoise).unwrap();
            (report.stored_types.join(", "), steps.weights)
        };
        let (none, dense) = plan(plain.path(), "auto");
        let (found, bytes) = plan(packed.path(), "auto");
        assert_eq!((none.as_str(), found.as_str()), ("", types));
        assert!((bytes as f64) < most * dense as f64, "{format:?}: {bytes} bytes, {dense} in bf16");
        assert_eq!(plan(packed.path(), "bf16"), (String::new(), dense), "{format:?} dequantized");
    }
}

#[test]
fn a_lora_is_merged_into_blocks_of_8_bits() {
    let layer = "mid_block.attentions.0.transformer_blocks.0.attn1.to_q";
    let save = |tensors: HashMap<String, Tensor>, path: &Path| candle_core::safetensors::save(&tensors, path).unwrap();
    let (packed, plain) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    packed_and_plain(Format::Nf4, packed.path(), plain.path());
    let mut tensors = candle_core::safetensors::load(plain.path().join(UNET), &Device::Cpu).unwrap();
    let matrix = tensors.get_mut(&format!("{layer}.weight")).unwrap();
    let (n, k) = matrix.dims2().unwrap();
    let eighths = |count: usize, of: usize| {
        let values: Vec<f32> = (0..count).map(|i| (i * 5 % of) as f32 / 8.0 - 0.25).collect();
        Tensor::new(values, &Device::Cpu).unwrap()
    };
    let (down, up) = (eighths(k, 4).reshape((1, k)).unwrap(), eighths(n, 5).reshape((n, 1)).unwrap());
    let merged = (&*matrix + up.matmul(&down).unwrap()).unwrap();
    *matrix = QTensor::quantize(&merged, GgmlDType::Q8_0).unwrap().dequantize(&Device::Cpu).unwrap();
    save(tensors, &plain.path().join(UNET));
    let name = |part: &str| format!("lora_unet_{}.{part}", layer.replace('.', "_"));
    let alpha = Tensor::new(1f32, &Device::Cpu).unwrap();
    let lora = [(name("lora_down.weight"), down), (name("lora_up.weight"), up), (name("alpha"), alpha)];
    save(lora.into_iter().collect(), &packed.path().join("ink.safetensors"));
    for mode in [ModeChoice::Full, ModeChoice::Lowvram] {
        let setup = Setup { lora_dir: Some(packed.path().into()), ..setup(DTypeChoice::F32, "auto", mode) };
        let run = |folder: &Path, prompt: &str| draw(folder, &ModelOptions::default(), &setup, prompt);
        let found = run(packed.path(), "a red apple<lora:ink:1>");
        assert!(found == run(plain.path(), "a red apple"), "{mode:?}: other bits than of the merged matrix in 8 bits");
        assert!(found != run(packed.path(), "a red apple"), "{mode:?}: the LoRA does nothing");
    }
}

/// The values of ggml's 4-bit codes.
const IQ4: [f32; 16] = [-127., -104., -83., -65., -49., -35., -22., -10., 1., 13., 25., 38., 53., 69., 89., 113.];

/// Values as blocks of 32 with codes of the table, or of 256 with scales of 6 bits.
fn table_blocks(values: &[f32], block: BlockType) -> Vec<u8> {
    let codes = |group: &[f32], scale: f32| -> Vec<u8> {
        let nearest = |value: &f32| {
            let off = |code: &u8| (IQ4[usize::from(*code)] - value / scale).abs();
            (0..16u8).min_by(|a, b| off(a).total_cmp(&off(b))).unwrap()
        };
        let codes: Vec<u8> = group.iter().map(nearest).collect();
        (0..16).map(|i| codes[i] | codes[i + 16] << 4).collect()
    };
    let blocks = values.chunks(block.elements()).flat_map(|values| {
        let steps = if block == BlockType::IQ4_XS { 31.0 } else { 1.0 };
        // A power of two: an f16 has its exponent above 10 bits.
        let exponent = (largest(values) / 127.0 / steps).log2().ceil().max(-14.0);
        let d = exponent.exp2();
        let mut bytes = (((exponent as i16 + 15) as u16) << 10).to_le_bytes().to_vec();
        let groups = values.chunks(32);
        if block == BlockType::IQ4_NL {
            bytes.extend(groups.flat_map(|group| codes(group, d)));
            return bytes;
        }
        let scale = |group: &[f32]| (largest(group) / 127.0 / d).round().clamp(1.0, 31.0);
        let scales: Vec<u16> = groups.clone().map(|group| scale(group) as u16 + 32).collect();
        let top = scales.iter().enumerate().fold(0u16, |top, (i, scale)| top | (scale >> 4) << (2 * i));
        bytes.extend(top.to_le_bytes());
        bytes.extend(scales.chunks(2).map(|pair| (pair[0] & 0xf | (pair[1] & 0xf) << 4) as u8));
        bytes.extend(groups.flat_map(|group| codes(group, d * scale(group))));
        bytes
    });
    blocks.collect()
}

#[test]
fn blocks_of_a_gguf_file_stay_blocks() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let proceed = || ControlFlow::Continue(());
    let halves = WeightType::Plain(Dtype::F16);
    convert(&emoji(), &path("f16.gguf"), &ModelOptions::default(), halves, true, &proceed).unwrap();
    let write = |from: &str, to: &str, of: &dyn Fn(&[usize]) -> Option<BlockType>| {
        let source = Checkpoint::open(&path(from)).unwrap();
        let tensors = source.keys().into_iter().map(|name| {
            let data = source.data(&name).unwrap().unwrap();
            let (shape, values) = (data.info.shape.clone(), data.to_f32().unwrap());
            let (dtype, bytes) = match of(&shape) {
                Some(block) => (StoredType::Blocks(block), table_blocks(&values, block)),
                None => (Dtype::F32.into(), f32s(&values)),
            };
            NewTensor { name, shape, dtype, bytes: Box::new(move || Ok(bytes.clone().into())) }
        });
        write_gguf(&mut fs::File::create(path(to)).unwrap(), tensors.collect(), source.metadata()).unwrap();
    };
    let block = |shape: &[usize]| match shape {
        [_, k] if k.is_multiple_of(256) => Some(BlockType::IQ4_XS),
        [_, k] if k.is_multiple_of(32) => Some(BlockType::IQ4_NL),
        _ => None,
    };
    write("f16.gguf", "packed.gguf", &block);
    write("packed.gguf", "plain.gguf", &|_| None);
    let run = |name: &str, weights: &str, mode| {
        let options = ModelOptions { unet: Some(path(name)), ..ModelOptions::default() };
        draw(&emoji(), &options, &setup(DTypeChoice::F32, weights, mode), "a red apple")
    };
    let expected = run("plain.gguf", "auto", ModeChoice::Full);
    for (weights, mode) in [("auto", ModeChoice::Full), ("auto", ModeChoice::Lowvram), ("f32", ModeChoice::Full)] {
        assert!(run("packed.gguf", weights, mode) == expected, "{weights} {mode:?}");
    }
    assert!(run("f16.gguf", "auto", ModeChoice::Full) != expected);
}
