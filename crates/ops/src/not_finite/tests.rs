use candle_core::{DType, Tensor};

use super::{Call, count_not_finite};
use crate::backend::Operator;
use crate::test_support::TARGET;

#[test]
fn infinite_values_and_nans_are_counted() {
    for n in [1, 255, 300_000] {
        let mut values = vec![f32::MAX; n];
        let places: Vec<usize> = [0, 17, 254, 255, 262_144, 299_999].into_iter().filter(|place| *place < n).collect();
        for (i, place) in places.iter().enumerate() {
            values[*place] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY][i % 3];
        }
        let x = Tensor::from_vec(values, n, &TARGET.0).unwrap();
        assert_eq!(count_not_finite(&x).unwrap(), places.len(), "{n}");
        let halves = x.to_dtype(DType::F16).unwrap(); // has no number as large
        assert_eq!(count_not_finite(&halves).unwrap(), n);
        assert_eq!(Call { x: &x }.reference().unwrap().to_vec1::<u32>().unwrap(), [places.len() as u32]);
    }
}
