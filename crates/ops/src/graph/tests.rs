use candle_core::Tensor;

use super::*;
use crate::test_support::{TARGET, assert_close, exact, random};
use crate::{Activation, Error, activation};

#[test]
fn a_recorded_run_follows_its_inputs() {
    let device = &TARGET.0;
    let (x, y) = (random(&[3, 40]), random(&[3, 40]));
    // Two operators, so that memory is made and freed between.
    let run = || -> crate::Result<()> {
        let between = activation(&x, Activation::Relu, None)?;
        activation(&between, Activation::Silu, Some(&y)).map(drop)
    };
    prepare(device, run).unwrap();
    if !is_recordable(device) {
        assert!(Graph::record(device, run).is_err());
        return;
    }
    let mut graph = Graph::record(device, run).unwrap();
    for _ in 0..3 {
        let input = random(&[3, 40]);
        x.slice_set(&input, 0, 0).unwrap();
        graph.replay().unwrap();
        let expected = exact(&input).relu().unwrap().silu().unwrap();
        assert_close(&y, &expected, 2e-6);
    }
}

#[test]
fn a_run_that_fails_while_it_is_recorded_leaves_the_card_usable() {
    let device = &TARGET.0;
    if !is_recordable(device) {
        return;
    }
    let x = random(&[4]);
    let fails = || -> crate::Result<()> {
        activation(&x, Activation::Silu, None)?;
        Err(Error::Driver("stop".into()))
    };
    assert!(Graph::record(device, fails).is_err());
    let read = || -> crate::Result<()> {
        x.to_dtype(candle_core::DType::F32)?.to_vec1::<f32>()?;
        Ok(())
    };
    assert!(Graph::record(device, read).is_err(), "memory was read while recording");
    assert_close(&activation(&x, Activation::Relu, None).unwrap(), &exact(&x).relu().unwrap(), 0.0);
}

#[test]
fn results_are_the_same_as_without_recording() {
    let device = &TARGET.0;
    let x = random(&[2, 5, 7]);
    let eager = activation(&x, Activation::GeluErf, None).unwrap();
    let out = Tensor::zeros_like(&x).unwrap();
    let run = || -> crate::Result<()> { activation(&x, Activation::GeluErf, Some(&out)).map(drop) };
    prepare(device, run).unwrap();
    if let Ok(mut graph) = Graph::record(device, run) {
        graph.replay().unwrap();
    }
    assert_close(&out, &exact(&eager), 0.0);
}
