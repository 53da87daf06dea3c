use candle_core::{DType, Device};
use kiln_ops::{BlockType, MatrixType, Rotation};
use safetensors::Dtype;

use crate::formats::{Checkpoint, NewTensor, write_safetensors};
use crate::source::ParamSource;
use crate::stored_type::StoredType;
use crate::{Packing, Placement, Segments, load};

/// A tensor of a file.
type Part = (&'static str, Vec<usize>, Dtype, Vec<u8>);

/// A file with these tensors.
fn file(parts: Vec<Part>) -> crate::Result<Checkpoint> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.safetensors");
    let tensors = parts.into_iter().map(|(name, shape, dtype, bytes)| NewTensor {
        name: name.into(),
        shape,
        dtype: dtype.into(),
        bytes: Box::new(move || Ok(bytes.clone().into())),
    });
    write_safetensors(&mut std::fs::File::create(&path).unwrap(), tensors.collect(), &Default::default()).unwrap();
    Checkpoint::open(&path)
}

fn message(parts: Vec<Part>) -> String {
    file(parts).err().unwrap().to_string()
}

fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn json(name: &'static str, text: &str) -> Part {
    (name, vec![text.len()], Dtype::U8, text.as_bytes().to_vec())
}

/// Two rows of floats, and their scales.
fn floats(dtype: Dtype, scales: &[f32]) -> Vec<Part> {
    // 1, 2, -1, 0.5 and 4, 0, -2, 1.5
    let numbers = match dtype {
        Dtype::F8_E4M3 => vec![0x38, 0x40, 0xb8, 0x30, 0x48, 0x00, 0xc0, 0x3c],
        _ => vec![0x3c, 0x40, 0xbc, 0x38, 0x44, 0x00, 0xc0, 0x3e],
    };
    let shape = if scales.len() == 1 { vec![] } else { vec![scales.len(), 1] };
    vec![
        ("x.weight", vec![2, 4], dtype, numbers),
        ("x.weight_scale", shape, Dtype::F32, f32s(scales)),
        ("x.input_scale", vec![], Dtype::F32, f32s(&[3.0])),
        ("part.scaled_fp8", vec![0], Dtype::F8_E4M3, vec![]),
    ]
}

#[test]
fn floats_stay_floats_with_their_scales() {
    for (dtype, kind) in [(Dtype::F8_E4M3, MatrixType::F8), (Dtype::F8_E5M2, MatrixType::F8E5M2)] {
        let file = file(floats(dtype, &[0.3, 5.0])).unwrap();
        assert_eq!(file.keys(), ["x.weight"]);
        let info = file.info("x.weight").unwrap();
        assert_eq!((info.shape, info.dtype), (vec![2, 4], StoredType::Rows(kind)));
        let data = file.data("x.weight").unwrap().unwrap();
        let numbers = floats(dtype, &[1.0]).swap_remove(0).3;
        assert_eq!(*data.bytes, [&f32s(&[0.3])[..], &numbers[..4], &f32s(&[5.0]), &numbers[4..]].concat());
        let expected = [[1.0, 2.0, -1.0, 0.5].map(|v| v * 0.3f32), [4.0, 0.0, -2.0, 1.5].map(|v| v * 5.0)];
        assert_eq!(data.to_f32().unwrap(), expected.concat());
        assert_eq!(file.rows("x.weight", 1..2).unwrap().unwrap().to_f32().unwrap(), expected[1]);
        assert!(file.rows("x.weight", 1..3).unwrap().is_none());
    }
    // One scale, in either name; a layer without scales in a file that has the mark of scales is plain.
    let mut parts = floats(Dtype::F8_E4M3, &[0.5]);
    parts[1].0 = "x.scale_weight";
    parts.push(("y.weight", vec![1, 4], Dtype::F8_E4M3, vec![0x38; 4]));
    let file = file(parts).unwrap();
    let values = |key: &str| file.data(key).unwrap().unwrap().to_f32().unwrap();
    assert_eq!(values("x.weight"), [0.5, 1.0, -0.5, 0.25, 2.0, 0.0, -1.0, 0.75]);
    assert_eq!((file.info("y.weight").unwrap().dtype, values("y.weight")), (Dtype::F8_E4M3.into(), vec![1.0; 4]));
}

#[test]
fn integers_have_a_format() {
    let integers: Vec<u8> = (0..32).map(|i| (i * 37 % 251) as u8).collect();
    let parts = |format: &str| {
        vec![
            ("x.weight", vec![2, 16], Dtype::I8, integers.clone()),
            ("x.weight_scale", vec![2, 1], Dtype::F32, f32s(&[0.5, 0.25])),
            json("x.comfy_quant", format),
        ]
    };
    let plain = file(parts(r#"{"format": "int8_tensorwise"}"#)).unwrap();
    assert_eq!(plain.info("x.weight").unwrap().dtype, StoredType::Rows(MatrixType::Int8(Rotation::None)));
    let found = plain.data("x.weight").unwrap().unwrap().to_f32().unwrap();
    let expected = integers.iter().enumerate().map(|(i, &b)| f32::from(b as i8) * if i < 16 { 0.5 } else { 0.25 });
    assert_eq!(found, expected.collect::<Vec<_>>());

    let rotated = file(parts(r#"{"format": "int8_tensorwise", "convrot": true, "convrot_groupsize": 16}"#)).unwrap();
    assert_eq!(rotated.info("x.weight").unwrap().dtype, StoredType::Rows(MatrixType::Int8(Rotation::By16)));
    let found = rotated.data("x.weight").unwrap().unwrap().to_f32().unwrap();
    // Multiplied by the matrix again, the integers come back: it is its own inverse.
    let sign = |i: usize, j: usize| {
        (0..2).fold(1.0, |sign, d| if i >> (2 * d) & 3 == 3 - (j >> (2 * d) & 3) { -sign } else { sign })
    };
    for (row, scale) in [(0, 0.5), (1, 0.25)] {
        for i in 0..16 {
            let sum: f32 = (0..16).map(|j| sign(i, j) * found[row * 16 + j]).sum();
            assert!((sum / 4.0 / scale - f32::from(integers[row * 16 + i] as i8)).abs() < 1e-3);
        }
    }

    let message = |text: &str| message(parts(text));
    let found = message(r#"{"convrot": true}"#);
    assert!(found.contains("a.safetensors: stores `x.weight` as I8 with scales, but does not say"), "{found}");
    let found = message(r#"{"format": "float8_e4m3fn"}"#);
    assert!(found.contains("stores `x.weight` as I8, expected F8_E4M3 or F8_E5M2"), "{found}");
    let found = message(r#"{"format": "int8_tensorwise", "convrot": true}"#);
    assert!(found.contains("rotates groups of 256 in `x.weight`, whose rows have 16 elements"), "{found}");
    assert!(message("\"").contains("no valid JSON in tensor `x.comfy_quant`"));
    assert!(message(r#"{"format": "nvfp4"}"#).contains("stores the layer `x` in the format nvfp4"));
}

#[test]
fn wrong_scales_are_refused_by_name() {
    for (scales, expected) in [
        (vec![0.5, f32::NAN], "has NaN as scale 1 of `x.weight_scale`, expected a finite number"),
        (vec![f32::INFINITY, 1.0], "has inf as scale 0 of `x.weight_scale`"),
        (vec![-1.0], "has -1 as scale 0 of `x.weight_scale`, expected a finite number from 0 on"),
        (vec![1.0; 3], "has F32 [3, 1] as the scales `x.weight_scale`, expected 1 or 2 numbers"),
    ] {
        let found = message(floats(Dtype::F8_E4M3, &scales));
        assert!(found.contains("a.safetensors: ") && found.contains(expected), "{found}");
    }
    let mut parts = floats(Dtype::F8_E4M3, &[1.0]);
    parts[1] = json("x.comfy_quant", r#"{"format": "float8_e4m3fn"}"#);
    let found = message(parts);
    assert!(found.contains("lacks the scales of `x.weight`: expected a tensor `x.weight_scale`"), "{found}");
}

/// The table of NF4.
const NF4: [f32; 16] = [
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

/// A weight of 4-bit codes as bitsandbytes writes it, with magnitudes that may be quantized, and its elements.
fn four_bits([n, k]: [usize; 2], nested: bool) -> (Vec<Part>, Vec<f32>) {
    let (elements, blocks) = (n * k, (n * k).div_ceil(64));
    let codes: Vec<usize> = (0..elements).map(|i| i * 7 % 16).collect();
    let bytes: Vec<u8> = codes.chunks(2).map(|pair| (pair[0] << 4 | pair.get(1).unwrap_or(&0)) as u8).collect();
    let state = |nested: &str| {
        format!(r#"{{"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [{n}, {k}]{nested}}}"#)
    };
    let mut parts = vec![
        ("x.weight", vec![bytes.len(), 1], Dtype::U8, bytes),
        ("x.weight.quant_map", vec![16], Dtype::F32, f32s(&NF4)),
    ];
    let magnitudes: Vec<f32> = if nested {
        let codes: Vec<u8> = (0..blocks).map(|i| (i * 31 % 256) as u8).collect();
        let map: Vec<f32> = (0..256).map(|i| (i as f32 - 127.0) / 128.0).collect();
        let absmax: Vec<f32> = (0..blocks.div_ceil(256)).map(|i| 0.5 + i as f32).collect();
        let of = |(i, code): (usize, &u8)| map[usize::from(*code)] * absmax[i / 256] + 0.75;
        let magnitudes = codes.iter().enumerate().map(of).collect();
        parts.push(("x.weight.nested_quant_map", vec![256], Dtype::F32, f32s(&map)));
        parts.push(("x.weight.nested_absmax", vec![absmax.len()], Dtype::F32, f32s(&absmax)));
        parts.push(("x.weight.absmax", vec![blocks], Dtype::U8, codes));
        let text = r#", "nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.75"#;
        parts.push(json("x.weight.quant_state.bitsandbytes__nf4", &state(text)));
        magnitudes
    } else {
        let magnitudes: Vec<f32> = (0..blocks).map(|i| 0.125 + i as f32 / 8.0).collect();
        parts.push(("x.weight.absmax", vec![blocks], Dtype::F32, f32s(&magnitudes)));
        parts.push(json("x.weight.quant_state.bitsandbytes__nf4", &state("")));
        magnitudes
    };
    let values = codes.iter().enumerate().map(|(i, code)| NF4[*code] * magnitudes[i / 64]).collect();
    (parts, values)
}

#[test]
fn weights_of_4_bits_are_blocks() {
    for (shape, nested) in [([6, 128], false), ([300, 64], true), ([6, 128], true)] {
        let (parts, expected) = four_bits(shape, nested);
        let file = file(parts).unwrap();
        assert_eq!(file.keys(), ["x.weight"]);
        let info = file.info("x.weight").unwrap();
        assert_eq!((info.shape.as_slice(), info.dtype), (shape.as_slice(), StoredType::Blocks(BlockType::NF4)));
        let data = file.data("x.weight").unwrap().unwrap();
        assert_eq!(data.bytes.len(), shape[0] * shape[1] / 64 * 36);
        assert_eq!(data.to_f32().unwrap(), expected);
        let part = file.rows("x.weight", 2..5).unwrap().unwrap();
        assert_eq!(part.to_f32().unwrap(), expected[2 * shape[1]..5 * shape[1]]);
        assert!(file.rows("x.weight", 0..shape[0] + 1).unwrap().is_none());
    }
    // Blocks that run across rows.
    let (parts, expected) = four_bits([5, 40], false);
    let file = file(parts).unwrap();
    assert_eq!(file.info("x.weight").unwrap().dtype, Dtype::F32.into());
    assert_eq!(file.data("x.weight").unwrap().unwrap().to_f32().unwrap(), expected);
    assert_eq!(file.rows("x.weight", 1..3).unwrap().unwrap().to_f32().unwrap(), expected[40..120]);
}

#[test]
fn wrong_weights_of_4_bits_are_refused_by_name() {
    let with = |nested: bool, change: &dyn Fn(&mut Vec<Part>)| {
        let (mut parts, _) = four_bits([4, 64], nested);
        change(&mut parts);
        message(parts)
    };
    let at = |parts: &[Part], name: &str| parts.iter().position(|part| part.0 == name).unwrap();
    type Damage<'a> = &'a dyn Fn(&mut Vec<Part>);
    let cases: [(bool, Damage<'_>, &str); 7] = [
        (
            false,
            &|parts| drop(parts.remove(at(parts, "x.weight.absmax"))),
            "lacks tensor `x.weight.absmax`: expected 4",
        ),
        (false, &|parts| drop(parts.remove(at(parts, "x.weight"))), "lacks tensor `x.weight`: expected 128 bytes"),
        (
            false,
            &|parts| parts[0] = ("x.weight", vec![127, 1], Dtype::U8, vec![0; 127]),
            "has 127 bytes of codes in tensor `x.weight`, expected 128",
        ),
        (false, &|parts| parts[1].3 = f32s(&[0.5; 16]), "a table in `x.weight.quant_map` that is not that of NF4"),
        (
            true,
            &|parts| drop(parts.remove(at(parts, "x.weight.nested_absmax"))),
            "lacks tensor `x.weight.nested_absmax`: expected 1 numbers",
        ),
        (
            true,
            &|parts| {
                let i = at(parts, "x.weight.nested_absmax");
                parts[i].3 = f32s(&[f32::NAN]);
            },
            "nested scales of `x.weight` that are infinite or no numbers",
        ),
        (
            true,
            &|parts| {
                let i = at(parts, "x.weight.quant_state.bitsandbytes__nf4");
                parts[i] = json("x.weight.quant_state.bitsandbytes__nf4", r#"{"blocksize": 64, "shape": null}"#);
            },
            "no valid JSON with a block size and a shape",
        ),
    ];
    for (nested, change, expected) in cases {
        let found = with(nested, change);
        assert!(found.contains("a.safetensors: ") && found.contains(expected), "{found}");
    }
    // Magnitudes are read with the weights: nothing of such a layer is loaded.
    let (mut parts, _) = four_bits([4, 64], false);
    let i = at(&parts, "x.weight.absmax");
    parts[i].3 = f32s(&[1.0, f32::INFINITY, 1.0, 1.0]);
    let file = file(parts).unwrap();
    let mut segments = Segments::default();
    segments.add("block", |p| p.param("x.weight", &[4, 64], Packing::Linear));
    let found = load(&segments, &file, &Placement::new(Device::Cpu, DType::F32)).unwrap_err().to_string();
    assert!(found.contains("a.safetensors: tensor `x.weight`, stored as NF4, has a scale that is infinite"), "{found}");
    assert!(!segments[0].is_loaded());
}
