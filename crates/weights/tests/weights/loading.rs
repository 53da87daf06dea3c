//! Errors of a load, and its treatment of names, shapes and types.

use candle_core::{DType, Device, Tensor};
use kiln_testkit::fixtures;
use kiln_weights::{
    BlockType, Checkpoint, KeyRule, MapSource, MatrixType, Packing, ParamBuilder, ParamInfo, ParamSource, Placement,
    Renamed, SafetensorsFile, Segments, StoredType, Weight, load,
};

fn map(tensors: &[(&str, Tensor)]) -> MapSource {
    tensors.iter().map(|(name, tensor)| (name.to_string(), tensor.clone())).collect()
}

fn ones(shape: &[usize]) -> Tensor {
    Tensor::ones(shape, DType::F32, &Device::Cpu).unwrap()
}

fn network<M>(build: impl FnOnce(&ParamBuilder<'_>) -> M) -> Segments {
    let mut segments = Segments::default();
    segments.add("block", build);
    segments
}

fn cpu(dtype: DType) -> Placement {
    Placement::new(Device::Cpu, dtype)
}

#[test]
fn a_missing_tensor_is_named_with_its_shape() {
    let segments = network(|p| p.pp("conv").param("weight", &[2, 3], Packing::AsStored));
    let error = load(&segments, &map(&[]), &cpu(DType::F32)).unwrap_err();
    assert_eq!(error.to_string(), "tensors in memory: tensor `conv.weight` is missing, expected shape [2, 3]");
    assert!(!segments[0].is_loaded());
}

#[test]
fn a_wrong_shape_is_named_with_both_shapes() {
    let segments = network(|p| p.param("weight", &[2, 3], Packing::AsStored));
    let error = load(&segments, &map(&[("weight", ones(&[3, 2]))]), &cpu(DType::F32)).unwrap_err();
    assert!(error.to_string().contains("tensor `weight` has shape [3, 2], expected [2, 3]"), "{error}");
}

#[test]
fn a_1x1_convolution_is_a_linear_layer() {
    let mut segments = Segments::default();
    let block = segments.add("block", |p| p.param("weight", &[2, 3], Packing::AsStored));
    load(&segments, &map(&[("weight", ones(&[2, 3, 1, 1]))]), &cpu(DType::F32)).unwrap();
    assert_eq!(block.enter().unwrap().tensor().unwrap().dims(), [2, 3]);
}

#[test]
fn alternative_names_are_found() {
    let mut segments = Segments::default();
    let block = segments.add("block", |p| p.pp("text_model").param("bias", &[2], Packing::AsStored));
    let source = Renamed::new(map(&[("bias", ones(&[2]))]), KeyRule::TEXT_MODEL);
    load(&segments, &source, &cpu(DType::BF16)).unwrap();
    assert_eq!(block.enter().unwrap().tensor().unwrap().dtype(), DType::BF16);
}

#[test]
fn sizes_are_exact_and_views_aligned() {
    let mut segments = Segments::default();
    let block = segments
        .add("block", |p| [p.param("a", &[3], Packing::AsStored), p.param("b", &[2, 2, 3, 3], Packing::Conv2d)]);
    assert_eq!(segments.parameters(), 3 + 36);
    // 256 bytes for 3 elements; one panel of 32 columns for a (18, 2) matrix
    assert_eq!(segments.bytes(DType::F32), 256 + 18 * 32 * 4);
    assert_eq!(segments.bytes(DType::F16), 256 + 1280); // 1152, aligned
    load(&segments, &map(&[("a", ones(&[3])), ("b", ones(&[2, 2, 3, 3]))]), &cpu(DType::F16)).unwrap();
    let [a, b] = &*block.enter().unwrap();
    assert_eq!(a.tensor().unwrap().layout().start_offset(), 0);
    assert_eq!(b.tensor().unwrap().layout().start_offset(), 128);
    assert_eq!(b.weight().unwrap().shape(), [2, 3, 3, 2]);
}

#[test]
fn a_network_without_weights_is_an_error() {
    let mut segments = Segments::default();
    let block = segments.add("down_blocks.0", |p| p.param("a", &[1], Packing::AsStored));
    let error = block.enter().err().unwrap();
    assert!(error.to_string().contains("`down_blocks.0` has no weights yet"), "{error}");
}

#[test]
fn a_released_tensor_can_be_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let values: Vec<f32> = (0..100_000).map(|i| i as f32).collect();
    let tensors = ["a", "b"].map(|name| (name, Tensor::new(values.as_slice(), &Device::Cpu).unwrap()));
    candle_core::safetensors::save(&tensors.into_iter().collect(), &path).unwrap();
    let source = Renamed::new(SafetensorsFile::open(&path).unwrap(), KeyRule::TEXT_MODEL);
    let bytes = |key: &str| source.data(key).unwrap().unwrap().bytes.into_owned();
    let before = [bytes("a"), bytes("b")];
    for key in ["a", "b", "missing"] {
        source.release(key);
    }
    assert!([bytes("a"), bytes("b")] == before);
}

/// The bytes of a parameter's memory in an f32 slab.
fn memory(weight: &Weight) -> Vec<u8> {
    let values: Vec<f32> = weight.tensor().to_vec1().unwrap();
    values.iter().flat_map(|value| value.to_bits().to_le_bytes()).collect()
}

#[test]
fn rows_of_the_requested_type_are_copied_bit_by_bit() {
    let source = Checkpoint::open(&fixtures("single/blocks.gguf")).unwrap();
    let mut found = 0;
    for key in source.keys() {
        let ParamInfo { shape, dtype } = source.info(&key).unwrap();
        let (StoredType::Blocks(block), [_, _]) = (dtype, shape.as_slice()) else { continue };
        let mut segments = Segments::default();
        let param = segments.add("block", |p| p.param(&key, &shape, Packing::Linear));
        let placement = cpu(DType::F32).with_matrices(Some(MatrixType::Blocks(block)));
        load(&segments, &source, &placement).unwrap();
        let data = source.data(&key).unwrap().unwrap();
        let stored = memory(&param.enter().unwrap().weight().unwrap());
        assert_eq!(stored[..data.bytes.len()], *data.bytes, "{key}");
        assert_eq!((stored.len(), stored.len() % 256), (segments.bytes(placement.slab()), 0), "{key}");
        found += 1;
    }
    assert!(found >= 10, "{found} tensors of blocks");
}

#[test]
fn floats_of_8_bits_are_kept_and_others_get_a_factor_for_each_row() {
    let mut segments = Segments::default();
    let param = segments.add("block", |p| p.param("weight", &[2, 4], Packing::Linear));
    let placement = cpu(DType::F32).with_matrices(Some(MatrixType::F8));
    let rows = Tensor::new(&[[448f32, -1.0, 0.5, 3.0], [0.0, 7.0, -3.5, 1.75]], &Device::Cpu).unwrap();
    load(&segments, &map(&[("weight", rows)]), &placement).unwrap();
    let stored = memory(&param.enter().unwrap().weight().unwrap());
    let (first, second) = (1f32.to_le_bytes(), (7f32 / 448.0).to_le_bytes());
    assert_eq!(stored[..16], [&first[..], &[0x7e, 0xb8, 0x30, 0x44], &second[..], &[0, 0x7e, 0xf6, 0x6e]].concat());
}

#[test]
fn adjacent_matrices_are_one_matrix_and_their_biases_one_vector() {
    let mut segments = Segments::default();
    let block = segments.add("block", |p| {
        p.pp("q").param("weight", &[128, 64], Packing::Linear);
        p.pp("k").param("weight", &[128, 64], Packing::Linear);
        let weight = p.stack(2).unwrap();
        p.pp("q").param("bias", &[128], Packing::AsStored);
        assert!(p.stack(2).is_none(), "a matrix and a vector");
        p.pp("k").param("bias", &[128], Packing::AsStored);
        (weight, p.stack(2).unwrap())
    });
    let bias = |first: f32| Tensor::arange(first, first + 128.0, &Device::Cpu).unwrap();
    let matrices = [("q.weight", ones(&[128, 64])), ("k.weight", ones(&[128, 64]))];
    let tensors: Vec<_> = matrices.into_iter().chain([("q.bias", bias(0.0)), ("k.bias", bias(128.0))]).collect();
    for kind in [MatrixType::F8, MatrixType::Blocks(BlockType::Q5_0), MatrixType::Blocks(BlockType::Q2_K)] {
        load(&segments, &map(&tensors), &cpu(DType::F32).with_matrices(Some(kind))).unwrap();
        let (weight, bias) = &*block.enter().unwrap();
        let bias = bias.tensor().unwrap().to_vec1::<f32>().unwrap();
        assert_eq!(bias, (0..256).map(|i| i as f32).collect::<Vec<_>>());
        let weight = weight.weight().unwrap();
        assert_eq!(weight.shape(), [256, 1, 1, 64]);
        assert_eq!(weight.layout().is_some(), kind == MatrixType::Blocks(BlockType::Q2_K), "rows of 64 are no blocks");
    }
}
