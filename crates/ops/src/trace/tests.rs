use candle_core::{DType, Tensor};

use super::{Operator, Trace, record};
use crate::test_support::{TARGET, random};
use crate::{Activation, Attention, Conv2d, Conv2dInputs, Error, Weight};
use crate::{activation, attention, conv2d, linear};

/// The tolerance of sums of times, in microseconds.
const ROUNDING: f64 = 1e-3;

fn traced(run: impl FnOnce() -> crate::Result<()>) -> Trace {
    record(&TARGET.0, run).unwrap().1
}

fn names(trace: &Trace) -> Vec<&'static str> {
    trace.operators.iter().map(|operator| operator.name).collect()
}

#[test]
fn operators_are_recorded_in_order_without_nested_ones() {
    let (x, matrix) = (random(&[2, 9, 8]), Weight::plain(&random(&[16, 8])).unwrap());
    let trace = traced(|| {
        let y = linear(&x, &matrix, None, None, None)?; // on the CPU it calls a convolution
        let y = activation(&y, Activation::Silu, None)?;
        attention(&y, &y, &y, Attention { num_heads: 2, causal: false }, None).map(drop)
    });
    assert_eq!(names(&trace), ["linear", "activation", "attention"]);
    for pair in trace.operators.windows(2) {
        assert!(pair[0].start + pair[0].duration <= pair[1].start + ROUNDING, "{trace:?}");
    }
    assert!(trace.operators.iter().all(|operator| operator.start >= 0.0 && operator.duration >= 0.0));
    assert!(trace.operators.iter().map(|operator| operator.duration).sum::<f64>() <= trace.duration + ROUNDING);
}

#[test]
fn arithmetic_and_bytes_are_counted() {
    let (x, residual) = (random(&[1, 8, 6, 4]), random(&[1, 8, 6, 10]));
    let weight = Weight::plain(&random(&[10, 3, 3, 4])).unwrap();
    let inputs = Conv2dInputs { x: &x, weight: &weight, bias: None, image_bias: None, residual: Some(&residual) };
    let trace = traced(|| {
        conv2d(inputs, Conv2d::same(3), None)?;
        attention(
            &random(&[2, 5, 8]),
            &random(&[2, 7, 8]),
            &random(&[2, 7, 8]),
            Attention { num_heads: 2, causal: false },
            None,
        )
        .map(drop)
    });
    let [conv, attention] = &trace.operators[..] else { panic!("{trace:?}") };
    let size = TARGET.1.size_in_bytes();
    assert_eq!(conv.flop, (2 * 8 * 6 * 10 * 9 * 4) as f64);
    assert_eq!(conv.bytes, (size * (8 * 6 * 4 + 10 * 9 * 4 + 2 * 8 * 6 * 10)) as f64);
    let shapes: Vec<_> = conv.operands.iter().map(|operand| (operand.name, operand.shape.as_slice())).collect();
    assert_eq!(shapes, [("x", &[1, 8, 6, 4][..]), ("weight", &[10, 3, 3, 4]), ("residual", &[1, 8, 6, 10])]);
    assert_eq!((conv.result.as_slice(), conv.dtype), (&[1, 8, 6, 10][..], TARGET.1));
    assert_eq!(attention.flop, (4 * 2 * 5 * 7 * 8) as f64);
}

#[test]
fn nothing_is_recorded_outside_of_record() {
    let x = random(&[4]);
    let silu = || activation(&x, Activation::Silu, None);
    silu().unwrap();
    let trace = traced(|| {
        std::thread::scope(|scope| scope.spawn(|| silu().map(drop)).join().unwrap())?; // on another thread
        silu().map(drop)
    });
    silu().unwrap();
    assert_eq!(names(&trace), ["activation"]);
    assert_eq!(traced(|| Ok(())).operators, Vec::<Operator>::new());
}

#[test]
fn a_run_that_fails_leaves_no_recording_behind() {
    let x = random(&[4]);
    let failed = record(&TARGET.0, || {
        activation(&x, Activation::Silu, None)?;
        Err::<(), _>(Error::NoCuda)
    });
    assert!(matches!(failed, Err(Error::NoCuda)));
    let refused = Tensor::zeros(3, DType::F32, &TARGET.0).unwrap();
    let trace = traced(|| {
        assert!(crate::geglu(&refused, None).is_err());
        assert!(activation(&x, Activation::Silu, Some(&refused)).is_err());
        activation(&x, Activation::Relu, None).map(drop)
    });
    assert_eq!(names(&trace), ["activation"]);
}

#[test]
fn results_are_the_same_while_recording() {
    let x = random(&[3, 40]);
    let run = || activation(&x, Activation::GeluErf, None);
    let (traced, _) = record::<_, Error>(&TARGET.0, run).unwrap();
    crate::test_support::assert_close(&traced, &crate::test_support::exact(&run().unwrap()), 0.0);
}
