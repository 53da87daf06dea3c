//! Measures the layers of a network while it runs.

use std::sync::Arc;

use kiln_ops::InputObserver;

use crate::param_spec::ParamSpec;
use crate::segment::Segments;

impl Segments {
    /// Shows the inputs of products with parameters to the observers that `of` gives for them, from now on, and to no others. Matrices of
    /// layers that are computed as one product ([`crate::StackedParam`]) show nothing; the CPU has none.
    pub fn observe(&self, of: impl Fn(&ParamSpec) -> Option<Arc<dyn InputObserver>>) {
        for segment in self.iter() {
            let params = segment.params().iter().enumerate();
            segment.set_observers(params.filter_map(|(i, param)| Some((i, of(param)?))).collect());
        }
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Tensor};
    use kiln_ops::{Conv2d, Conv2dInputs, Packing, Weight, conv2d, linear};
    use parking_lot::Mutex;

    use super::*;
    use crate::load::{Placement, load};
    use crate::source::MapSource;

    /// The shapes of the inputs, and whether they are those of convolutions.
    #[derive(Debug, Default)]
    struct Seen(Mutex<Vec<(Vec<usize>, bool)>>);

    impl InputObserver for Seen {
        fn observe(&self, x: &Tensor, weight: &Weight, config: Option<Conv2d>) -> kiln_ops::Result<()> {
            self.0.lock().push((x.dims().to_vec(), config.is_some()));
            if config.is_none() {
                linear(x, weight, None, None, None)?; // it has no observer: this ends
            }
            Ok(())
        }
    }

    #[test]
    fn observers_get_the_inputs_of_the_products_with_their_weights() {
        let mut segments = Segments::default();
        let part = segments.add("part", |p| {
            [
                p.pp("a").param("weight", &[4, 8], Packing::Linear),
                p.pp("b").param("weight", &[4, 8], Packing::Linear),
                p.pp("c").param("weight", &[4, 8, 3, 3], Packing::Conv2d),
            ]
        });
        let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &Device::Cpu).unwrap();
        let source: MapSource = [("a", vec![4, 8]), ("b", vec![4, 8]), ("c", vec![4, 8, 3, 3])]
            .into_iter()
            .map(|(name, shape)| (format!("{name}.weight"), zeros(&shape)))
            .collect();
        load(&segments, &source, &Placement::new(Device::Cpu, DType::F32)).unwrap();
        let run = || {
            let [a, b, c] = &*part.enter().unwrap();
            let [a, b, c] = [a, b, c].map(|param| param.weight().unwrap());
            linear(&zeros(&[3, 8]), &a, None, None, None).unwrap();
            linear(&zeros(&[5, 8]), &b, None, None, None).unwrap();
            let x = zeros(&[1, 6, 7, 8]);
            let inputs = Conv2dInputs { x: &x, weight: &c, bias: None, image_bias: None, residual: None };
            conv2d(inputs, Conv2d::same(3), None).unwrap();
        };
        let seen = Arc::new(Seen::default());
        segments.observe(|param| (param.key != "b.weight").then(|| seen.clone() as Arc<dyn InputObserver>));
        run();
        assert_eq!(*seen.0.lock(), [(vec![3, 8], false), (vec![1, 6, 7, 8], true)]);
        segments.observe(|_| None);
        run();
        assert_eq!(seen.0.lock().len(), 2);
    }
}
