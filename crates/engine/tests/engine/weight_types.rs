//! Linear layers in another type than the activations': the same bits as from a model whose weights were converted to
//! that type and back, in every memory mode, from files of every kind.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use candle_core::quantized::QTensor;
use candle_core::{DType, Device, Tensor};
use kiln_clip::{TextEncoder, TextEncoderConfig};
use kiln_engine::{
    DTypeChoice, DeviceChoice, Engine, LinearWeightType, MemoryOptions, ModeChoice, ModelFolder, ModelOptions, Setup,
    WeightType, convert,
};
use kiln_testkit::repository;
use kiln_unet::{Unet, UnetConfig};
use kiln_vae::{Decoder, VaeConfig};
use kiln_weights::{BlockType, Checkpoint, MatrixType, NewTensor, ParamSource, Segments, SlabType, write_safetensors};

use crate::support::{bits, images, request};

/// Its rows are long enough for every type: a block of 256 divides the second layers of its feed-forward networks.
pub(crate) fn emoji() -> std::path::PathBuf {
    repository().join("models/emoji")
}

/// All types as a user types them.
fn names() -> Vec<String> {
    let blocks = BlockType::writable().map(|block| MatrixType::Blocks(block).to_string());
    ["f16", "bf16", "f8"].into_iter().map(String::from).chain(blocks).collect()
}

pub(crate) fn setup(dtype: DTypeChoice, weight_type: &str, mode: ModeChoice) -> Setup {
    let memory = MemoryOptions { mode, ..MemoryOptions::default() };
    let weight_type = weight_type.parse().unwrap();
    Setup { device: DeviceChoice::Cpu, dtype, weight_type, memory, ..Setup::default() }
}

/// The latents' bits, and the image.
fn run(model: &Path, setup: &Setup) -> (Vec<u32>, Vec<u8>) {
    run_with(model, &ModelOptions::default(), setup)
}

fn run_with(model: &Path, options: &ModelOptions, setup: &Setup) -> (Vec<u32>, Vec<u8>) {
    draw(model, options, setup, "a red apple")
}

pub(crate) fn draw(model: &Path, options: &ModelOptions, setup: &Setup, prompt: &str) -> (Vec<u32>, Vec<u8>) {
    let model = ModelFolder::open_with(model, options).unwrap();
    let mut engine = Engine::load(model, setup, &mut |_| ControlFlow::Continue(())).unwrap();
    let image = images(&mut engine, &request(prompt, (64, 64), 2, 7)).remove(0);
    (bits(std::slice::from_ref(&image)), image.rgb)
}

/// Converts a matrix to a type and back.
fn through(matrix: &Tensor, kind: MatrixType) -> Tensor {
    let back = |dtype| matrix.to_dtype(dtype).unwrap().to_dtype(DType::F32).unwrap();
    match kind {
        MatrixType::F16 => back(DType::F16),
        MatrixType::Bf16 => back(DType::BF16),
        MatrixType::F8 => {
            // The maximum of a row becomes the maximum of the type.
            let row = |row: &Vec<f32>| {
                let factor = row.iter().fold(0f32, |largest, value| largest.max(value.abs())) / 448.0;
                let numbers: Vec<f32> = row.iter().map(|value| (value / factor).clamp(-448.0, 448.0)).collect();
                let numbers = Tensor::new(numbers, &Device::Cpu).unwrap().to_dtype(DType::F8E4M3).unwrap();
                let numbers: Vec<f32> = numbers.to_dtype(DType::F32).unwrap().to_vec1().unwrap();
                numbers.into_iter().map(|value| value * factor).collect()
            };
            let rows: Vec<Vec<f32>> = matrix.to_vec2().unwrap().iter().map(row).collect();
            Tensor::new(rows, &Device::Cpu).unwrap()
        }
        MatrixType::Blocks(block) => {
            QTensor::quantize(matrix, block.quantizer().unwrap()).unwrap().dequantize(&Device::Cpu).unwrap()
        }
        MatrixType::F8E5M2 | MatrixType::Int8(_) => panic!("{kind} is for weights that are stored so"),
    }
}

/// A copy of the model with linear matrices converted to a type and back; returns their number.
fn model_through(kind: MatrixType, folder: &Path) -> usize {
    let mut changed = 0;
    for entry in fs::read_dir(emoji()).unwrap().map(|entry| entry.unwrap().path()) {
        let to = folder.join(entry.file_name().unwrap());
        if !entry.is_dir() {
            fs::copy(&entry, &to).unwrap();
            continue;
        }
        fs::create_dir_all(&to).unwrap();
        for file in fs::read_dir(&entry).unwrap().map(|file| file.unwrap().path()) {
            let to = to.join(file.file_name().unwrap());
            if file.extension().is_some_and(|extension| extension == "safetensors") {
                changed += file_through(kind, &file, &segments(&entry), &to);
            } else {
                fs::copy(&file, &to).unwrap();
            }
        }
    }
    changed
}

fn segments(component: &Path) -> Segments {
    let json = fs::read_to_string(component.join("config.json")).unwrap();
    match component.file_name().unwrap().to_str().unwrap() {
        "unet" => Unet::new(UnetConfig::from_json(&json).unwrap()).segments().clone(),
        "vae" => Decoder::new(&VaeConfig::from_json(&json).unwrap()).segments().clone(),
        _ => TextEncoder::new(TextEncoderConfig::from_json(&json).unwrap()).unwrap().segments().clone(),
    }
}

fn file_through(kind: MatrixType, from: &Path, segments: &Segments, to: &Path) -> usize {
    let slab = SlabType { dtype: DType::F32, matrices: Some(kind) };
    let params = segments.iter().flat_map(|segment| segment.params());
    let kept: HashSet<&str> = params.filter(|param| param.rows(slab).is_some()).map(|param| &*param.key).collect();
    let source = Checkpoint::open(from).unwrap();
    let mut changed = 0;
    let mut tensors = Vec::new();
    for name in source.keys() {
        let info = source.info(&name).unwrap();
        if !kept.contains(&*name) && !kept.contains(&*format!("text_model.{name}")) {
            let bytes = source.data(&name).unwrap().unwrap().bytes.into_owned();
            let bytes = Box::new(move || Ok(bytes.clone().into()));
            tensors.push(NewTensor { name, shape: info.shape, dtype: info.dtype, bytes });
            continue;
        }
        changed += 1;
        let values = source.data(&name).unwrap().unwrap().to_f32().unwrap();
        let (n, k) = (info.shape[0], info.shape[1]);
        let matrix = through(&Tensor::from_vec(values, (n, k), &Device::Cpu).unwrap(), kind);
        let values: Vec<f32> = matrix.flatten_all().unwrap().to_vec1().unwrap();
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let bytes = Box::new(move || Ok(bytes.clone().into()));
        tensors.push(NewTensor { name, shape: info.shape, dtype: safetensors::Dtype::F32.into(), bytes });
    }
    write_safetensors(&mut fs::File::create(to).unwrap(), tensors, &Default::default()).unwrap();
    changed
}

#[test]
fn a_weight_type_equals_converted_weights() {
    for name in names() {
        let Ok(LinearWeightType::Kept(kind)) = name.parse() else { panic!("{name}") };
        let folder = tempfile::tempdir().unwrap();
        let changed = model_through(kind, folder.path());
        assert!(changed > 10, "{name}: {changed} matrices");
        let both: &[_] =
            if name == "q8_0" || name == "f8" { &[DTypeChoice::F32, DTypeChoice::Bf16] } else { &[DTypeChoice::F32] };
        for &dtype in both {
            let expected = run(folder.path(), &setup(dtype, "auto", ModeChoice::Full));
            let found = run(&emoji(), &setup(dtype, &name, ModeChoice::Full));
            assert!(found == expected, "{name} {dtype:?}: other bits than of {changed} matrices that went through it");
        }
    }
}

#[test]
fn modes_do_not_change_a_bit() {
    for (name, dtype) in [("q8_0", DTypeChoice::Bf16), ("q4_k", DTypeChoice::F32), ("f8", DTypeChoice::F16)] {
        let expected = run(&emoji(), &setup(dtype, name, ModeChoice::Full));
        for mode in [ModeChoice::Medvram, ModeChoice::Lowvram] {
            assert!(run(&emoji(), &setup(dtype, name, mode)) == expected, "{name} {mode:?}");
        }
    }
}

#[test]
fn a_files_blocks_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    for block in [BlockType::Q4_0, BlockType::Q5_K] {
        let path = folder.path().join("model.gguf");
        convert(&emoji(), &path, &ModelOptions::default(), WeightType::Blocks(block), true, &|| {
            ControlFlow::Continue(())
        })
        .unwrap();
        let name = MatrixType::Blocks(block).to_string();
        // The token tables of the text encoders are blocks in the file as well, so only its U-Net is used.
        let options = ModelOptions { unet: Some(path), ..ModelOptions::default() };
        let expected = run(&emoji(), &setup(DTypeChoice::F32, &name, ModeChoice::Full));
        for mode in [ModeChoice::Full, ModeChoice::Lowvram] {
            assert!(run_with(&emoji(), &options, &setup(DTypeChoice::F32, &name, mode)) == expected, "{name} {mode:?}");
        }
    }
}

#[test]
fn a_wider_type_than_the_files_changes_nothing() {
    // The model's weights are f16.
    let expected = run(&emoji(), &setup(DTypeChoice::F32, "auto", ModeChoice::Full));
    assert!(run(&emoji(), &setup(DTypeChoice::F32, "f16", ModeChoice::Full)) == expected);
    assert!(run(&emoji(), &setup(DTypeChoice::F32, "f32", ModeChoice::Full)) == expected);
    assert!(run(&emoji(), &setup(DTypeChoice::F32, "q8_0", ModeChoice::Full)) != expected);
}

/// The model with links to all its folders but the U-Net's, which has its configuration alone.
pub fn link_all_but_unet(folder: &Path) {
    for entry in fs::read_dir(emoji()).unwrap().map(|entry| entry.unwrap().path()) {
        let to = folder.join(entry.file_name().unwrap());
        if to.ends_with("unet") {
            fs::create_dir(&to).unwrap();
            fs::copy(entry.join("config.json"), to.join("config.json")).unwrap();
        } else {
            std::os::unix::fs::symlink(&entry, &to).unwrap();
        }
    }
}

/// A copy of the model in which `w` of one matrix is `w + up down`, and the corresponding LoRA file. f32 represents
/// each sum exactly, so the order of addition does not matter.
fn with_lora(layer: &str, folder: &Path) {
    let save = |tensors: HashMap<String, Tensor>, path: &Path| candle_core::safetensors::save(&tensors, path).unwrap();
    let unet = Path::new("unet/diffusion_pytorch_model.safetensors");
    link_all_but_unet(folder);
    let mut tensors = candle_core::safetensors::load(emoji().join(unet), &Device::Cpu).unwrap();
    let matrix = tensors.get_mut(&format!("{layer}.weight")).unwrap();
    let (n, k) = matrix.dims2().unwrap();
    let eighths = |count: usize, of: usize| {
        let values: Vec<f32> = (0..count).map(|i| (i * 5 % of) as f32 / 8.0 - 0.25).collect();
        Tensor::new(values, &Device::Cpu).unwrap()
    };
    let (down, up) = (eighths(k, 4).reshape((1, k)).unwrap(), eighths(n, 5).reshape((n, 1)).unwrap());
    *matrix = (matrix.to_dtype(DType::F32).unwrap() + up.matmul(&down).unwrap()).unwrap();
    save(tensors, &folder.join(unet));
    let name = |part: &str| format!("lora_unet_{}.{part}", layer.replace('.', "_"));
    let alpha = Tensor::new(1f32, &Device::Cpu).unwrap();
    let lora = [(name("lora_down.weight"), down), (name("lora_up.weight"), up), (name("alpha"), alpha)];
    save(lora.into_iter().collect(), &folder.join("ink.safetensors"));
}

#[test]
fn a_lora_is_added_before_weights_are_rounded() {
    let folder = tempfile::tempdir().unwrap();
    with_lora("mid_block.attentions.0.transformer_blocks.0.attn1.to_q", folder.path());
    for (name, mode) in [("q8_0", ModeChoice::Full), ("q4_k", ModeChoice::Full), ("f8", ModeChoice::Lowvram)] {
        let plain = setup(DTypeChoice::F32, name, mode);
        let setup = Setup { lora_dir: Some(folder.path().into()), ..plain.clone() };
        let found = draw(&emoji(), &ModelOptions::default(), &setup, "a red apple<lora:ink:1>");
        assert!(found == run(folder.path(), &plain), "{name}: other bits than of a model with the sums");
        assert!(found != run(&emoji(), &plain), "{name}: the LoRA does nothing");
    }
}
