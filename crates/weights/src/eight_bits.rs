//! Which layers of a network are computed in 8 bits.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use kiln_ops::{EightBits, Int8Input, Int8Matrix, Packing, W8Matrix};

use crate::param_spec::ParamSpec;
use crate::segment::{In8Bits, Segment, Segments};

/// The layers of a network that are computed in 8 bits, and how their inputs become bytes: all layers that allow it
/// ([`ParamSpec::in_8_bits`]), except for those that are kept.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EightBitLayers {
    /// The format.
    pub kind: EightBits,
    /// The inputs of layers, by the name of the layer's weight. Another layer's range is measured at each call.
    pub inputs: HashMap<String, Arc<Int8Input>>,
    /// The names of the weights that keep the type of the others.
    pub kept: HashSet<String>,
    /// On the CPU, linear layers with fewer output channels keep the type of the others.
    pub least_outputs: usize,
}

impl EightBitLayers {
    /// How the input of a parameter's layer becomes bytes; `None` where the parameter keeps its type.
    /// It is one of `together` matrices that are one product.
    fn input(&self, param: &ParamSpec, together: usize) -> Option<Arc<Int8Input>> {
        let channels = param.shape.get(1).copied()?;
        let fits = match self.kind {
            EightBits::Int8 => {
                let too_small = param.packing == Packing::Linear && param.shape[0] < self.least_outputs;
                !too_small && Int8Matrix::of(param.packing, &param.shape).is_some()
            }
            EightBits::W8A8(number) => param.w8(number).is_some_and(|matrix| matrix.pays(together)),
        };
        if !fits || !param.in_8_bits.contains(&self.kind) || self.kept.contains(&param.key) {
            return None;
        }
        let fits = |input: &&Arc<Int8Input>| input.balance.as_ref().is_none_or(|balance| balance.len() == channels);
        Some(self.inputs.get(&param.key).filter(fits).cloned().unwrap_or_default())
    }
}

impl ParamSpec {
    /// The memory of the weight in 8 bits; `None` where its layer is not computed so.
    pub fn int8_matrix(&self) -> Option<Int8Matrix> {
        Int8Matrix::of(self.packing, &self.shape).filter(|_| self.in_8_bits.contains(&EightBits::Int8))
    }
}

impl Segments {
    /// Computes these layers in 8 bits from the next load on, or none of them; slabs are dropped. Weights are quantized when
    /// they are packed, after patches were merged. Such a network runs on the CPU ([`EightBits::Int8`]) or on a GPU.
    pub fn set_8_bits(&self, layers: Option<&EightBitLayers>) {
        self.unload();
        for segment in self.iter() {
            let params = segment.params().iter().enumerate();
            let of = |(i, param)| {
                let stack = segment.stacks().iter().find(|stack| (stack.first..stack.first + stack.count).contains(&i));
                let together = stack.map_or(1, |stack| stack.count);
                layers
                    .and_then(|layers| Some((i, In8Bits { kind: layers.kind, input: layers.input(param, together)? })))
            };
            let mut params: HashMap<usize, In8Bits> = params.filter_map(of).collect();
            // A product of stacked matrices has one type. The CPU reads matrices one by one.
            for stack in segment.stacks() {
                let all = stack.first..stack.first + stack.count;
                let is_mixed = all.clone().any(|i| !params.contains_key(&i));
                if is_mixed && layers.is_some_and(|layers| layers.kind != EightBits::Int8) {
                    all.for_each(|i| drop(params.remove(&i)));
                }
            }
            segment.set_in_8_bits(params);
        }
    }
}

/// A parameter in 8-bit integers for the CPU in a slab.
pub(crate) struct Int8Param {
    pub(crate) matrix: Int8Matrix,
    pub(crate) input: Arc<Int8Input>,
}

impl Segment {
    /// The memory of parameter `index`, if it is in bytes with a scale for each row.
    pub(crate) fn w8(&self, index: usize) -> Option<W8Matrix> {
        match self.eight_bits(index)? {
            EightBits::W8A8(number) => self.params().get(index)?.w8(number),
            EightBits::Int8 => None,
        }
    }

    /// Parameter `index`, if it is in 8-bit integers for the CPU.
    pub(crate) fn int8(&self, index: usize) -> Option<Int8Param> {
        let In8Bits { input, .. } = self.in_8_bits(index).filter(|layer| layer.kind == EightBits::Int8)?;
        let param = self.params().get(index)?;
        Some(Int8Param { matrix: Int8Matrix::of(param.packing, &param.shape)?, input })
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Tensor};
    use kiln_ops::{ByteNumber, linear};

    use super::*;
    use crate::load::{Placement, load};
    use crate::segment::{Param, SegmentModule};
    use crate::source::MapSource;

    /// A segment with two matrices, of which the first one allows 8 bits, and a convolution that does.
    fn network() -> (Segments, SegmentModule<[Param; 3]>) {
        let mut segments = Segments::default();
        let part = segments.add("part", |p| {
            [
                p.pp("a").allows_8_bits().param("weight", &[40, 64], Packing::Linear),
                p.pp("b").param("weight", &[40, 64], Packing::Linear),
                p.pp("c").allows_8_bits().param("weight", &[32, 64, 3, 3], Packing::Conv2d),
            ]
        });
        (segments, part)
    }

    fn source() -> MapSource {
        let values = |shape: &[usize]| {
            let count = shape.iter().product::<usize>();
            let values: Vec<f32> = (0..count).map(|i| ((i * 7919 % 2001) as f32 - 1000.0) / 1000.0).collect();
            Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
        };
        [("a", vec![40, 64]), ("b", vec![40, 64]), ("c", vec![32, 64, 3, 3])]
            .into_iter()
            .map(|(name, shape)| (format!("{name}.weight"), values(&shape)))
            .collect()
    }

    #[test]
    fn weights_take_about_half_the_bytes_of_bf16() {
        let (segments, _) = network();
        let before = segments.bytes(DType::BF16);
        segments.set_8_bits(Some(&EightBitLayers::default()));
        let (a, c) = (2 * (64 * 32 + 256), 576 * 32 + 256);
        assert_eq!(segments.bytes(DType::BF16), a + 64 * 64 * 2 + c);
        assert!(segments.bytes(DType::BF16) < before && segments.bytes(DType::F32) > segments.bytes(DType::BF16));
        segments
            .set_8_bits(Some(&EightBitLayers { kept: ["c.weight".to_string()].into(), ..EightBitLayers::default() }));
        assert_eq!(segments.bytes(DType::BF16), a + 64 * 64 * 2 + 576 * 32 * 2);
        // Linear layers with few outputs keep their type, convolutions do not.
        segments.set_8_bits(Some(&EightBitLayers { least_outputs: 41, ..EightBitLayers::default() }));
        assert_eq!(segments.bytes(DType::BF16), before - 576 * 32 * 2 + c);
        segments.set_8_bits(Some(&EightBitLayers { least_outputs: 40, ..EightBitLayers::default() }));
        assert_eq!(segments.bytes(DType::BF16), a + 64 * 64 * 2 + c);
        segments.set_8_bits(None);
        assert_eq!(segments.bytes(DType::BF16), before);
    }

    #[test]
    fn layers_that_allow_it_are_computed_in_8_bits() {
        let (segments, part) = network();
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            segments.set_8_bits(Some(&EightBitLayers::default()));
            load(&segments, &source(), &Placement::new(Device::Cpu, dtype)).unwrap();
            let [a, b, c] = &*part.enter().unwrap();
            assert_eq!([a, b, c].map(|param| param.eight_bits().is_some()), [true, false, true]);
            let [a, b, c] = [a, b, c].map(|param| param.weight().unwrap());
            assert_eq!([&a, &b, &c].map(|weight| weight.eight_bits().is_some()), [true, false, true]);
            assert_eq!((a.shape(), c.shape()), ([40, 1, 1, 64], [32, 3, 3, 64]));
            let x = Tensor::ones((3, 64), DType::F32, &Device::Cpu).unwrap().to_dtype(dtype).unwrap();
            let of = |weight| linear(&x, weight, None, None, None).unwrap().to_dtype(DType::F32).unwrap();
            let (found, expected) = (of(&a).to_vec2::<f32>().unwrap(), of(&b).to_vec2::<f32>().unwrap());
            for (found, expected) in found.concat().into_iter().zip(expected.concat()) {
                assert!((found - expected).abs() < 0.3, "{found}, expected {expected}"); // 64 times up to half of 1/127
            }
        }
    }

    #[test]
    fn a_balance_of_another_length_is_ignored() {
        let (segments, part) = network();
        let input = |count: usize| Arc::new(Int8Input { range: None, balance: Some(vec![1.0; count].into()) });
        let inputs = [("a.weight".to_string(), input(3)), ("c.weight".to_string(), input(64))].into();
        segments.set_8_bits(Some(&EightBitLayers { inputs, ..EightBitLayers::default() }));
        load(&segments, &source(), &Placement::new(Device::Cpu, DType::F32)).unwrap();
        let [a, _, c] = &*part.enter().unwrap();
        assert!([a, c].iter().all(|param| param.weight().unwrap().eight_bits() == Some(EightBits::Int8)));
    }

    #[test]
    fn large_layers_are_in_bytes_for_gpus_if_that_is_faster() {
        [ByteNumber::E4m3, ByteNumber::Int8].into_iter().for_each(large_layers_are_in);
    }

    fn large_layers_are_in(number: ByteNumber) {
        let mut segments = Segments::default();
        let part = segments.add("part", |p| {
            let p = p.allows_8_bits();
            let square = |name| p.pp(name).param("weight", &[640, 640], Packing::Linear);
            let [q, k, v] = ["q", "k", "v"].map(square);
            let stacked = p.stack(3).unwrap();
            let out = square("out");
            let conv = p.pp("conv").param("weight", &[32, 64, 3, 3], Packing::Conv2d);
            let odd = p.pp("odd").param("weight", &[32, 4, 3, 3], Packing::Conv2d);
            ([q, k, v, out, conv, odd], stacked)
        });
        let layers = |kept: &[&str]| EightBitLayers {
            kind: EightBits::W8A8(number),
            kept: kept.iter().map(|name| name.to_string()).collect(),
            ..EightBitLayers::default()
        };
        let in_8_bits = || part.module().0.each_ref().map(|param| param.eight_bits().is_some());
        segments.set_8_bits(Some(&layers(&["k.weight"])));
        assert_eq!(in_8_bits(), [false, false, false, false, true, false], "a product has one type");
        segments.set_8_bits(Some(&layers(&[])));
        assert_eq!(in_8_bits(), [true, true, true, false, true, false]);
        let native: usize = 4 * 640 * 640 * 2 + 64 * 9 * 32 * 2 + 4 * 9 * 32 * 2;
        let bytes = 3 * 640 * 640 + 64 * 9 * 32;
        assert_eq!(segments.bytes(DType::F16), (native - bytes + (3 * 640 + 32) * 4).next_multiple_of(256));
        let values = |shape: &[usize]| Tensor::ones(shape, DType::F32, &Device::Cpu).unwrap();
        let shapes = [("q", vec![640, 640]), ("k", vec![640, 640]), ("v", vec![640, 640]), ("out", vec![640, 640])];
        let convs = [("conv", vec![32, 64, 3, 3]), ("odd", vec![32, 4, 3, 3])];
        let all = shapes.into_iter().chain(convs);
        let source: MapSource = all.map(|(name, shape)| (format!("{name}.weight"), values(&shape))).collect();
        load(&segments, &source, &Placement::new(Device::Cpu, DType::F16)).unwrap();
        let x = values(&[2, 640]).to_dtype(DType::F16).unwrap();
        let (_, stacked) = &*part.enter().unwrap();
        assert_eq!(stacked.eight_bits(), Some(EightBits::W8A8(number)));
        let y = linear(&x, &stacked.weight().unwrap(), None, None, None).unwrap().to_dtype(DType::F32).unwrap();
        assert_eq!(y.to_vec2::<f32>().unwrap(), vec![vec![640.0; 1920]; 2]);
    }
}
