use candle_core::DType;

use super::*;
use crate::error::Error;
use crate::test_support::{TARGET, assert_close, exact, random};

#[test]
fn kernel_agrees_with_the_reference() {
    let scale = Tensor::new(&[7.5f32], &TARGET.0).unwrap();
    for shape in [[2, 4, 8, 8], [6, 3, 5, 7]] {
        let both = random(&shape);
        let expected = reference::forward(&exact(&both), &exact(&scale)).unwrap();
        let found = guidance(&both, &scale, None).unwrap();
        assert_eq!(found.dtype(), DType::F32);
        assert_close(&found, &expected, 1e-6);
        let out = Tensor::full(9f32, expected.shape(), &TARGET.0).unwrap();
        guidance(&both, &scale, Some(&out)).unwrap();
        assert_close(&out, &expected, 1e-6);
    }
}

#[test]
fn scale_one_is_the_conditional_half() {
    let both = Tensor::new(&[[1f32, 2.], [3., 5.]], &TARGET.0).unwrap();
    let scale = Tensor::new(&[1f32], &TARGET.0).unwrap();
    assert_eq!(guidance(&both, &scale, None).unwrap().to_vec2::<f32>().unwrap(), [[3., 5.]]);
}

#[test]
fn refuses_an_odd_batch() {
    let scale = Tensor::new(&[1f32], &TARGET.0).unwrap();
    assert!(matches!(guidance(&random(&[3, 4]), &scale, None), Err(Error::Shape { .. })));
}
