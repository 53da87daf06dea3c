use super::*;
use crate::test_support::{TARGET, random};
use crate::{Activation, activation};

#[test]
fn only_a_gpu_has_markers() {
    let device = &TARGET.0;
    activation(&random(&[1000]), Activation::Relu, None).unwrap();
    let first = Marker::record(device).unwrap();
    activation(&random(&[1000]), Activation::Relu, None).unwrap();
    let second = Marker::record(device).unwrap();
    assert_eq!((first.is_some(), second.is_some()), (device.is_cuda(), device.is_cuda()));
    for marker in first.iter().chain(&second).chain(&first) {
        marker.wait().unwrap();
    }
}
