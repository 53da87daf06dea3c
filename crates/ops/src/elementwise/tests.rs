use super::*;
use crate::test_support::{TARGET, assert_close, exact, random};

#[test]
fn arithmetic_agrees_with_candle() {
    for (a, b) in [(vec![2, 3, 5], vec![2, 3, 5]), (vec![3, 4, 7], vec![4, 7]), (vec![2, 300, 9], vec![9])] {
        let (a, b) = (random(&a), random(&b));
        let (x, y) = (exact(&a), exact(&b));
        let expected = [x.broadcast_add(&y), x.broadcast_sub(&y), x.broadcast_mul(&y)].map(Result::unwrap);
        for (function, expected) in [Arithmetic::Add, Arithmetic::Sub, Arithmetic::Mul].into_iter().zip(expected) {
            assert_close(&arithmetic(function, &a, &b).unwrap(), &expected, 1e-7);
        }
        assert_close(&affine(&a, 0.37, -1.5).unwrap(), &x.affine(0.37, -1.5).unwrap(), 1e-7);
    }
    // A transposed operand, and shapes that do not fit.
    let (a, b) = (random(&[5, 4]), random(&[4, 5]));
    let expected = (exact(&a) + exact(&b).t().unwrap()).unwrap();
    assert_close(&arithmetic(Arithmetic::Add, &a, &b.t().unwrap()).unwrap(), &expected, 1e-7);
    assert!(arithmetic(Arithmetic::Add, &a, &b).is_err());
}

#[test]
fn copies_are_contiguous() {
    let x = random(&[3, 4, 5, 6]);
    let views = [
        x.clone(),
        x.narrow(3, 2, 3).unwrap(),
        x.permute((3, 1, 0, 2)).unwrap(),
        x.narrow(1, 1, 2).unwrap().t().unwrap(),
        x.narrow(2, 4, 1).unwrap(),
        x.unsqueeze(1).unwrap().broadcast_as((3, 2, 4, 5, 6)).unwrap(),
        x.permute((2, 0, 3, 1)).unwrap().unsqueeze(2).unwrap(),
    ];
    for view in views {
        let copied = copy(&view).unwrap();
        assert!(copied.is_contiguous());
        assert_close(&copied, &exact(&view), 0.0);
    }
    let half = cast(&x, DType::F16).unwrap().permute((3, 1, 0, 2)).unwrap();
    assert_close(&contiguous(&half).unwrap(), &exact(&half), 0.0);
    // Parts of wider rows, which may start anywhere.
    let wide = random(&[2, 7, 96]);
    for (first, width) in [(32, 32), (64, 32), (8, 40), (4, 4), (1, 64), (2, 30)] {
        let part = wide.narrow(2, first, width).unwrap();
        assert_close(&copy(&part).unwrap(), &exact(&part), 0.0);
    }
}

#[test]
fn types_change_and_come_back() {
    let x = random(&[3, 5, 7]);
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let found = cast(&x, dtype).unwrap();
        assert_eq!(found.dtype(), dtype);
        let expected = exact(&x).to_dtype(dtype).unwrap().to_dtype(DType::F32).unwrap();
        assert_close(&cast(&found, DType::F32).unwrap(), &expected, 0.0);
    }
    assert_eq!(cast(&x.zeros_like().unwrap(), DType::F64).unwrap().dtype(), DType::F64);
}

#[test]
fn sums_have_the_bits_of_the_cpu() {
    let terms: Vec<Tensor> = (0..6).map(|_| random(&[2, 4, 33])).collect();
    let factors = [0.25, -1.75, 1.0, 0.0, 3.1, -0.6];
    for count in 1..=6 {
        let all: Vec<(f64, &Tensor)> = factors.into_iter().zip(&terms).take(count).collect();
        let on_cpu: Vec<(f64, Tensor)> = all.iter().map(|(factor, term)| (*factor, exact(term))).collect();
        let on_cpu: Vec<(f64, &Tensor)> = on_cpu.iter().map(|(factor, term)| (*factor, term)).collect();
        assert_close(&weighted_sum(&all).unwrap(), &weighted_sum(&on_cpu).unwrap(), 0.0);
    }
    let nan = (random(&[3]) * f64::NAN).unwrap();
    let sum = weighted_sum(&[(0.0, &nan)]).unwrap();
    assert_close(&sum, &exact(&nan.zeros_like().unwrap()), 0.0);
    assert!(weighted_sum(&[]).is_err());
    assert!(weighted_sum(&[(1.0, &random(&[3])), (1.0, &random(&[4]))]).is_err());
}

#[test]
fn rows_are_those_of_the_table() {
    for row in [vec![1], vec![6], vec![2, 16], vec![33]] {
        let table = random(&[&[9], &row[..]].concat());
        let rows = Tensor::new(&[8u32, 0, 0, 3, 8], &TARGET.0).unwrap();
        let expected =
            exact(&table).index_select(&Tensor::new(&[8u32, 0, 0, 3, 8], &candle_core::Device::Cpu).unwrap(), 0);
        assert_close(&index_select(&table, &rows).unwrap(), &expected.unwrap(), 0.0);
    }
}
