//! Which layers of a network are computed in 8 bits.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use kiln_ops::{Int8Input, Int8Matrix};

use crate::param_spec::ParamSpec;
use crate::segment::{Segment, Segments};

/// The layers of a network that are computed in 8 bits, and how their inputs become bytes: all layers that allow it
/// ([`ParamSpec::allows_int8`]), except for those that are kept.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Int8Layers {
    /// The inputs of layers, by the name of the layer's weight. Another layer's range is measured at each call.
    pub inputs: HashMap<String, Arc<Int8Input>>,
    /// The names of the weights that keep the type of the others.
    pub kept: HashSet<String>,
}

impl Int8Layers {
    /// How the input of a parameter's layer becomes bytes; `None` where the parameter keeps its type.
    fn input(&self, param: &ParamSpec) -> Option<Arc<Int8Input>> {
        let channels = param.shape.get(1).copied()?;
        param.int8_matrix().filter(|_| !self.kept.contains(&param.key))?;
        let fits = |input: &&Arc<Int8Input>| input.balance.as_ref().is_none_or(|balance| balance.len() == channels);
        Some(self.inputs.get(&param.key).filter(fits).cloned().unwrap_or_default())
    }
}

impl ParamSpec {
    /// The memory of the weight in 8 bits; `None` where its layer is not computed so.
    pub fn int8_matrix(&self) -> Option<Int8Matrix> {
        Int8Matrix::of(self.packing, &self.shape).filter(|_| self.allows_int8)
    }
}

impl Segments {
    /// Computes these layers in 8 bits from the next load on, or none of them; slabs are dropped. Weights are quantized when
    /// they are packed, after patches were merged. Such a network runs on the CPU.
    pub fn set_int8(&self, layers: Option<&Int8Layers>) {
        self.unload();
        for segment in self.iter() {
            let inputs = segment.params().iter().enumerate();
            let inputs = inputs.filter_map(|(i, param)| Some((i, layers?.input(param)?)));
            segment.set_int8(inputs.collect());
        }
    }
}

/// A parameter in 8 bits in a slab.
pub(crate) struct Int8Param {
    pub(crate) matrix: Int8Matrix,
    pub(crate) input: Arc<Int8Input>,
}

impl Segment {
    /// Parameter `index`, where it is in 8 bits.
    pub(crate) fn int8(&self, index: usize) -> Option<Int8Param> {
        let input = self.int8_input(index)?;
        let param = self.params().get(index)?;
        Some(Int8Param { matrix: Int8Matrix::of(param.packing, &param.shape)?, input })
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Tensor};
    use kiln_ops::{Packing, linear};

    use super::*;
    use crate::load::{Placement, load};
    use crate::segment::{Param, SegmentModule};
    use crate::source::MapSource;

    /// A segment with two matrices, of which the first one allows 8 bits, and a convolution that does.
    fn network() -> (Segments, SegmentModule<[Param; 3]>) {
        let mut segments = Segments::default();
        let part = segments.add("part", |p| {
            [
                p.pp("a").allows_int8().param("weight", &[40, 64], Packing::Linear),
                p.pp("b").param("weight", &[40, 64], Packing::Linear),
                p.pp("c").allows_int8().param("weight", &[32, 64, 3, 3], Packing::Conv2d),
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
        segments.set_int8(Some(&Int8Layers::default()));
        let (a, c) = (2 * (64 * 32 + 256), 576 * 32 + 256);
        assert_eq!(segments.bytes(DType::BF16), a + 64 * 64 * 2 + c);
        assert!(segments.bytes(DType::BF16) < before && segments.bytes(DType::F32) > segments.bytes(DType::BF16));
        segments.set_int8(Some(&Int8Layers { kept: ["c.weight".to_string()].into(), ..Int8Layers::default() }));
        assert_eq!(segments.bytes(DType::BF16), a + 64 * 64 * 2 + 576 * 32 * 2);
        segments.set_int8(None);
        assert_eq!(segments.bytes(DType::BF16), before);
    }

    #[test]
    fn layers_that_allow_it_are_computed_in_8_bits() {
        let (segments, part) = network();
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            segments.set_int8(Some(&Int8Layers::default()));
            load(&segments, &source(), &Placement::new(Device::Cpu, dtype)).unwrap();
            let [a, b, c] = &*part.enter().unwrap();
            assert_eq!([a, b, c].map(Param::is_int8), [true, false, true]);
            let [a, b, c] = [a, b, c].map(|param| param.weight().unwrap());
            assert_eq!([a.is_int8(), b.is_int8(), c.is_int8()], [true, false, true]);
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
        segments.set_int8(Some(&Int8Layers { inputs, ..Int8Layers::default() }));
        load(&segments, &source(), &Placement::new(Device::Cpu, DType::F32)).unwrap();
        let [a, _, c] = &*part.enter().unwrap();
        assert!(a.weight().unwrap().is_int8() && c.weight().unwrap().is_int8());
    }
}
