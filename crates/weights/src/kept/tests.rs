use std::collections::HashSet;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use kiln_ops::linear;
use safetensors::Dtype;

use super::*;
use crate::error::Result;
use crate::load::{Placement, load};
use crate::segment::{Param, SegmentModule, StackedParam};
use crate::source::{ParamData, ParamInfo};
use crate::stored_type::StoredType;
use crate::stream::{Residency, Stream, StreamConfig};

/// Tensors with arbitrary bytes that are valid in any type.
struct Source(Vec<(&'static str, ParamInfo)>);

impl ParamSource for Source {
    fn info(&self, key: &str) -> Option<ParamInfo> {
        self.0.iter().find(|(name, _)| *name == key).map(|(_, info)| info.clone())
    }

    fn data(&self, key: &str) -> Result<Option<ParamData<'_>>> {
        let Some(info) = self.info(key) else { return Ok(None) };
        let size = info.dtype.bytes(&info.shape).unwrap();
        let bytes: Vec<u8> = (0..size).map(|i| ((i * 29 + key.len()) % 48) as u8).collect();
        Ok(Some(ParamData { info, bytes: bytes.into() }))
    }

    fn origin(&self, _: &str) -> String {
        "arbitrary bytes".into()
    }

    fn keys(&self) -> Vec<String> {
        self.0.iter().map(|(name, _)| name.to_string()).collect()
    }
}

/// Three matrices and one that stacks them.
type Stacked = ([Param; 3], StackedParam);

/// Layers with matrices of several types: two segments, with a stack in the first.
fn network() -> (Segments, SegmentModule<Stacked>, SegmentModule<[Param; 2]>) {
    let mut segments = Segments::default();
    let first = segments.add("first", |p| {
        let matrix = |name: &str| p.param(name, &[32, 256], Packing::Linear);
        let params = [matrix("q"), matrix("k"), matrix("v")];
        (params, p.stack(3).unwrap())
    });
    let second = segments.add("second", |p| {
        [p.param("conv", &[32, 64], Packing::Linear), p.param("table", &[32, 256], Packing::AsStored)]
    });
    (segments, first, second)
}

fn source(types: [StoredType; 5]) -> Source {
    let shapes = [("q", 256), ("k", 256), ("v", 256), ("conv", 64), ("table", 256)];
    let info = |((name, k), dtype): ((&'static str, usize), _)| (name, ParamInfo { shape: vec![32, k], dtype });
    Source(shapes.into_iter().zip(types).map(info).collect())
}

const Q4_K: StoredType = StoredType::Blocks(BlockType::Q4_K);
const Q6_K: StoredType = StoredType::Blocks(BlockType::Q6_K);

/// The sources of these tests: a type of each kind, and a stack of two types.
fn sources() -> Vec<Source> {
    let rows = |kind| StoredType::Rows(kind);
    vec![
        source([Q4_K, Q4_K, Q6_K, StoredType::Blocks(BlockType::IQ4_NL), Q4_K]),
        source([Q4_K, Q4_K, Q4_K, StoredType::Blocks(BlockType::NF4), Dtype::F16.into()]),
        source([
            rows(MatrixType::F8),
            rows(MatrixType::F8),
            rows(MatrixType::F8),
            Dtype::F8_E4M3.into(),
            Dtype::F32.into(),
        ]),
        source([
            rows(MatrixType::Int8(kiln_ops::Rotation::By256)),
            rows(MatrixType::Int8(kiln_ops::Rotation::None)),
            rows(MatrixType::F8E5M2),
            Dtype::F8_E5M2.into(),
            Dtype::BF16.into(),
        ]),
    ]
}

/// The results of all layers, as bits.
fn results(first: &SegmentModule<([Param; 3], StackedParam)>, second: &SegmentModule<[Param; 2]>) -> Vec<Vec<u32>> {
    let x = |k: usize| Tensor::arange(0f32, (3 * k) as f32, &Device::Cpu).unwrap().reshape((3, k)).unwrap();
    let bits = |y: Tensor| -> Vec<u32> {
        y.flatten_all().unwrap().to_vec1::<f32>().unwrap().into_iter().map(f32::to_bits).collect()
    };
    let run = |k, weight: &kiln_ops::Weight| bits(linear(&x(k), weight, None, None, None).unwrap());
    let mut found = Vec::new();
    {
        let (params, stack) = &*first.enter().unwrap();
        found.extend(params.iter().map(|param| run(256, &param.weight().unwrap())));
        if stack.is_uniform() {
            found.push(run(256, &stack.weight().unwrap()));
        } else {
            assert!(stack.weight().is_err());
        }
    }
    let [conv, table] = &*second.enter().unwrap();
    found.push(run(64, &conv.weight().unwrap()));
    found.push(bits(table.tensor().unwrap()));
    found
}

#[test]
fn matrices_that_stay_as_they_are_have_the_same_results_in_less_memory() {
    for (case, source) in sources().into_iter().enumerate() {
        let (segments, first, second) = network();
        let placement = Placement::new(Device::Cpu, DType::F32);
        load(&segments, &source, &placement).unwrap();
        let (dense, expected) = (segments.bytes(DType::F32), results(&first, &second));

        segments.unload();
        segments.keep_stored(&source, |_| false);
        load(&segments, &source, &placement).unwrap();
        let stored: usize = ["q", "k", "v", "conv"]
            .map(|key| {
                let info = source.info(key).unwrap();
                let factors = if matches!(info.dtype, StoredType::Plain(_)) { 4 * 32 } else { 0 };
                (info.dtype.bytes(&info.shape).unwrap() + factors).next_multiple_of(256)
            })
            .into_iter()
            .sum();
        assert_eq!(segments.bytes(DType::F32), stored + 32 * 256 * 4, "case {case}");
        assert!(segments.bytes(DType::F32) < dense / 2, "case {case}");
        assert_eq!(first.module().1.is_uniform(), [false, true, true, false][case]);
        let found = results(&first, &second);
        let uniform = expected.len() - usize::from(found.len() < expected.len());
        assert_eq!(found.len(), uniform);
        assert!(found.iter().all(|one| expected.contains(one)), "case {case}");

        // Streamed through a ring that has room for one segment, from the same bytes.
        segments.unload();
        let source: Arc<dyn ParamSource> = Arc::new(source);
        let largest = segments.iter().map(|segment| segment.bytes(DType::F32)).max().unwrap();
        let residency = Residency::none(&segments, &placement, largest).unwrap();
        let config = StreamConfig { residency, pinned: None, host_bytes: u64::MAX, copy_stream: false, pool: None };
        let stream = Stream::start(&segments, source, &placement, config).unwrap();
        for _ in 0..2 {
            assert_eq!(results(&first, &second), found, "case {case}");
        }
        drop(stream);
    }
}

#[test]
fn a_type_of_all_matrices_goes_before_the_stored_ones() {
    let source = sources().swap_remove(0);
    let (segments, first, second) = network();
    let placement = Placement::new(Device::Cpu, DType::F32).with_matrices(Some(MatrixType::Bf16));
    let before = segments.bytes(placement.slab());
    load(&segments, &source, &placement).unwrap();
    let expected = results(&first, &second);
    assert_eq!(expected.len(), 6, "with the stack");
    segments.unload();
    segments.keep_stored(&source, |_| false);
    assert_eq!(segments.bytes(placement.slab()), before);
    load(&segments, &source, &placement).unwrap();
    let ([q, ..], _) = &*first.enter().unwrap();
    let weight = q.weight().unwrap();
    assert_eq!(linear(&ones(256), &weight, None, None, None).unwrap().dims(), [1, 32]);
    assert_eq!(weight.tensor().elem_count() * 4, 32 * 256 * 2);
}

fn ones(k: usize) -> Tensor {
    Tensor::ones((1, k), DType::F32, &Device::Cpu).unwrap()
}

#[test]
fn merged_matrices_are_in_blocks_of_8_bits() {
    let source = sources().swap_remove(0);
    let (segments, first, second) = network();
    let changed: HashSet<&str> = ["k", "conv", "table"].into();
    segments.keep_stored(&source, |key| changed.contains(key));
    let kept = |params: &[Param]| params.iter().map(Param::kept).collect::<Vec<_>>();
    let blocks = |block| Some(MatrixType::Blocks(block));
    let q8_0 = blocks(BlockType::Q8_0);
    assert_eq!(kept(&first.module().0), [blocks(BlockType::Q4_K), q8_0, blocks(BlockType::Q6_K)]);
    assert_eq!(kept(second.module()), [q8_0, None]);
    let (other, ..) = network();
    assert!(other.keep_as(&segments) && !other.keep_as(&segments));
    assert_eq!(other.bytes(DType::BF16), segments.bytes(DType::BF16));
}
