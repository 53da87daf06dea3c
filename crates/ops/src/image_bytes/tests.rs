use candle_core::{Device, Tensor};

use super::{ByteRounding, Call, image_bytes};
use crate::Error;
use crate::backend::Operator;
use crate::test_support::TARGET;

/// Values around all bytes and halves between them, and extreme ones.
fn values() -> Vec<f32> {
    let around = (-2100..2100).map(|step| step as f32 / 2040.0);
    around.chain([-2.0, 7.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -0.0]).collect()
}

#[test]
fn the_range_is_clamped_and_rounded() {
    let bytes = |rounding: ByteRounding| [-2.0, -1.0, 0.0, 0.999, 1.0, 7.0, f32::NAN].map(|value| rounding.byte(value));
    assert_eq!(bytes(ByteRounding::Nearest), [0, 0, 128, 255, 255, 255, 0]);
    assert_eq!(bytes(ByteRounding::Down), [0, 0, 127, 254, 255, 255, 0]);
    for value in values() {
        let unit = (value / 2.0 + 0.5).clamp(0.0, 1.0);
        assert_eq!(ByteRounding::Nearest.byte(value), (unit * 255.0).round_ties_even() as u8, "{value}");
    }
}

#[test]
fn planes_become_pixels() {
    let planes = [0.0, 1.0, -1.0, 1.0, 1.0, 0.0, -1.0, -1.0, 0.0, 1.0, -1.0, 1.0f32];
    let expected = [128, 255, 128, 255, 128, 255, 0, 0, 0, 255, 0, 255];
    let images = Tensor::from_vec([planes, planes].concat(), (2, 3, 2, 2), &TARGET.0).unwrap();
    let bytes = image_bytes(&images, ByteRounding::Nearest).unwrap();
    assert_eq!(bytes.dims(), [2, 2, 2, 3]);
    assert_eq!(bytes.flatten_all().unwrap().to_vec1::<u8>().unwrap(), [expected, expected].concat());

    let wide = Tensor::zeros((1, 2, 0, 3), candle_core::DType::F32, &Device::Cpu).unwrap();
    assert_eq!(image_bytes(&wide, ByteRounding::Down).unwrap().dims(), [1, 0, 3, 2]);
    let half = images.to_dtype(candle_core::DType::F16).unwrap();
    assert!(matches!(image_bytes(&half, ByteRounding::Down), Err(Error::DType { operand: "images", .. })));
    let flat = images.flatten_all().unwrap();
    assert!(matches!(image_bytes(&flat, ByteRounding::Down), Err(Error::Shape { operand: "images", .. })));
}

#[test]
fn bytes_are_those_of_one_value_on_every_device() {
    let values = values();
    let images = Tensor::from_slice(&values, (1, 1, values.len(), 1), &TARGET.0).unwrap();
    for rounding in [ByteRounding::Nearest, ByteRounding::Down] {
        let expected: Vec<u8> = values.iter().map(|value| rounding.byte(*value)).collect();
        let found = image_bytes(&images, rounding).unwrap().flatten_all().unwrap().to_vec1::<u8>().unwrap();
        assert_eq!(found, expected, "{rounding:?}");
        // candle's clamp keeps NaN, which a conversion to a byte makes 0 or not.
        let finite: Vec<f32> = values.iter().copied().filter(|value| value.is_finite()).collect();
        let images = Tensor::from_slice(&finite, (1, 1, finite.len(), 1), &Device::Cpu).unwrap();
        let call = Call { images: &images, sizes: [1, 1, finite.len(), 1], rounding };
        let expected: Vec<u8> = finite.iter().map(|value| rounding.byte(*value)).collect();
        assert_eq!(call.reference().unwrap().flatten_all().unwrap().to_vec1::<u8>().unwrap(), expected, "{rounding:?}");
    }
}
