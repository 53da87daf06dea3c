use candle_core::Device;

use super::*;
use crate::error::Error;
use crate::test_support::{assert_close, exact, random, random_into};

#[test]
fn kernel_agrees_with_the_reference() {
    for shape in [vec![1, 5], vec![2, 77, 33], vec![3, 4, 5, 64], vec![2, 300, 320]] {
        let (b, c) = (shape[0], shape[shape.len() - 1]);
        let (x, y) = (random(&shape), random(&shape));
        let wide = random(&[b, 3 * c]);
        for gate in [wide.narrow(1, c, c).unwrap(), random(&[1, c])] {
            let expected = Call { x: &exact(&x), gate: &exact(&gate), y: &exact(&y) }.reference().unwrap();
            assert_close(&gated_residual(&x, &gate, &y, None).unwrap(), &expected, 1e-6);
            random_into(&expected, |out| gated_residual(&x, &gate, &y, Some(out)).unwrap(), 1e-6);
        }
    }
}

/// A sum beyond the range of f16 is its largest number there. Other types keep it.
#[test]
fn sums_stay_finite_in_f16() {
    let ones = |value: f64| (Tensor::ones((1, 2, 3), DType::F32, &Device::Cpu).unwrap() * value).unwrap();
    let (x, gate) = (ones(60000.0), ones(-3.0).narrow(1, 0, 1).unwrap().reshape((1, 3)).unwrap());
    for (dtype, expected) in [(DType::F16, 65504.0), (DType::F32, 1.2e5), (DType::BF16, 119_808.0)] {
        for (y, sign) in [(-20000.0, 1.0), (60000.0, -1.0)] {
            let [x, gate, y] = [&(&x * sign).unwrap(), &gate, &ones(y)].map(|x| x.to_dtype(dtype).unwrap());
            let call = Call { x: &x, gate: &gate, y: &y };
            for found in [gated_residual(&x, &gate, &y, None).unwrap(), call.reference().unwrap()] {
                let found = found.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
                assert!(found.iter().all(|&found| f64::from(found) * sign >= expected), "{dtype:?}: {found:?}");
            }
        }
    }
    let infinite = ones(f64::INFINITY).to_dtype(DType::F16).unwrap();
    let [x, gate] = [&x, &gate].map(|x| x.to_dtype(DType::F16).unwrap());
    let found = gated_residual(&x, &gate, &infinite, None).unwrap().to_dtype(DType::F32).unwrap();
    assert_eq!(found.to_vec3::<f32>().unwrap(), vec![vec![vec![-65504.0; 3]; 2]]);
}

#[test]
fn refuses_operands_that_do_not_fit() {
    let (x, gate) = (random(&[2, 3, 4]), random(&[2, 4]));
    assert!(matches!(gated_residual(&x, &random(&[4]), &x, None), Err(Error::Shape { operand: "gate", .. })));
    assert!(matches!(gated_residual(&x, &gate, &gate, None), Err(Error::Shape { operand: "y", .. })));
}
