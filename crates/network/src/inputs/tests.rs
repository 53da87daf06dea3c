use candle_core::Device;
use kiln_nn::MetaDevice;
use kiln_nn::ops::Target;

use super::*;
use crate::slots::{CONTEXT, EXTRA_CHANNELS, GUIDANCE, PERTURBED, TIME_IDS};

const HINT: Slot = Slot::last("hint");
const FEATURE: Slot = Slot::each("feature").output();

/// Row `i` of a tensor `(b, 2)` has the values `i`.
fn rows(b: usize) -> Tensor {
    Tensor::arange(0f32, b as f32, &Device::Cpu).unwrap().reshape((b, 1)).unwrap().repeat((1, 2)).unwrap()
}

fn first(tensor: Option<&Tensor>) -> Vec<f32> {
    tensor.unwrap().to_dtype(DType::F32).unwrap().to_vec2::<f32>().unwrap().iter().map(|row| row[0]).collect()
}

fn cat(parts: &[&Tensor]) -> Result<Tensor> {
    Ok(TensorLike::cat(parts, 0)?)
}

fn text(b: usize) -> Inputs {
    Inputs::new().with(CONTEXT, rows(b))
}

#[test]
fn rows_of_several_batches_become_one() {
    let of = |b| text(b).with(EXTRA_CHANNELS, rows(b)).with_shared(GUIDANCE, 7, rows(1)).with_rows(PERTURBED, b / 2);
    let joined = Inputs::combine(&[&of(2), &of(4)], cat).unwrap();
    assert_eq!((joined.batch(), joined.rows_of(PERTURBED)), (6, 3));
    assert_eq!(first(joined.get(EXTRA_CHANNELS)), [0.0, 1.0, 0.0, 1.0, 2.0, 3.0]);
    assert_eq!(first(joined.get(GUIDANCE)), [0.0], "all rows share it");
    let differs = |other: Inputs| Inputs::combine(&[&of(2), &other], cat).unwrap_err().to_string();
    let [without, other_scale, constant] =
        [text(1), text(1).with(EXTRA_CHANNELS, rows(1)).with_shared(GUIDANCE, 8, rows(1)), of(2).with_constant("k", 1)];
    for (inputs, name) in [(without, "extra_channels"), (other_scale, "guidance"), (constant, "k")] {
        assert!(differs(inputs).contains(name), "{name}");
    }
    assert!(Inputs::<Tensor>::combine(&[], cat).is_err());
}

#[test]
fn rows_follow_the_rule_of_their_slot() {
    let all = text(4).with(HINT, rows(2)).with(GUIDANCE, rows(1)).with_rows(PERTURBED, 2);
    let low = all.rows(0..2).unwrap();
    assert_eq!((first(low.get(CONTEXT)), first(low.get(GUIDANCE))), (vec![0.0, 1.0], vec![0.0]));
    assert!(low.get(HINT).is_none() && low.rows_of(PERTURBED) == 0, "these belong to the last two rows");
    let middle = all.rows(1..3).unwrap();
    assert_eq!((first(middle.get(CONTEXT)), first(middle.get(HINT))), (vec![1.0, 2.0], vec![0.0]));
    assert_eq!(middle.rows_of(PERTURBED), 1);
    let high = all.rows(2..4).unwrap();
    assert_eq!((first(high.get(HINT)), high.rows_of(PERTURBED)), (vec![0.0, 1.0], 2));
    assert!(all.rows(4..5).is_err());
    assert!(all.with(FEATURE, rows(4)).rows(0..2).unwrap_err().to_string().contains("feature"));
}

#[test]
fn types_and_memory_follow_the_slots() {
    let all = text(2).with(TIME_IDS, rows(2)).with(FEATURE, rows(2));
    let half = all.to_dtype(DType::F16).unwrap();
    let dtypes: Vec<DType> = half.tensors().map(Tensor::dtype).collect();
    assert_eq!(dtypes, [DType::F16, DType::F32, DType::F16]);
    let copy = all.copy().unwrap();
    let shared = all.to_dtype(DType::F32).unwrap();
    let other = all.map(|_, tensor| tensor.affine(1.0, 1.0)).unwrap();
    other.write_to(&copy, |access| access == Access::Output).unwrap();
    assert_eq!((first(copy.get(FEATURE)), first(copy.get(CONTEXT))), (vec![1.0, 2.0], vec![0.0, 1.0]));
    assert_eq!(first(all.get(FEATURE)), [0.0, 1.0], "a copy has memory of its own");
    other.write_to(&shared, |_| true).unwrap();
    assert_eq!(first(all.get(CONTEXT)), [1.0, 2.0], "another type is the same memory where it is the same type");
}

#[test]
fn keys_differ_by_constants_and_shapes() {
    let of = |b, scale: f32| text(b).with_constant("scale", u64::from(scale.to_bits()));
    assert_eq!(of(2, 1.0).key(), of(2, 1.0).key());
    assert_ne!(of(2, 1.0).key(), of(2, 0.5).key());
    assert_ne!(of(2, 1.0).key(), of(4, 1.0).key());
    assert_eq!(of(2, 1.0).group_key(1), of(4, 1.0).group_key(2), "two rows for each image");
    assert_ne!(of(2, 1.0).group_key(1), of(2, 0.5).group_key(1));
    let guided = |tag| text(1).with_shared(GUIDANCE, tag, rows(1));
    assert_eq!(guided(1).key(), guided(2).key(), "a recorded step reads the value");
    assert_ne!(guided(1).group_key(1), guided(2).group_key(1), "the rows of one call share it");
    let stored = |slot| text(1).with(slot, rows(1)).key();
    assert_ne!(stored(FEATURE), stored(Slot::each("feature").state()));
    assert_ne!(text(2).with_rows(PERTURBED, 1).key(), text(2).key());
}

#[test]
fn inputs_of_one_kind_have_numbers() {
    let mut all = text(1);
    for (index, count) in [(0, 2), (1, 1)] {
        all.add_constant("network", index, 10 + index as u64);
        (0..count).for_each(|_| all.add(HINT, index, rows(1)));
    }
    assert_eq!((all.count_of("network"), all.count_of("other")), (2, 0));
    assert_eq!((all.all_of(HINT, 0).count(), all.all_of(HINT, 1).count(), all.all(HINT).count()), (2, 1, 3));
    assert_eq!(all.constants_of("network", 1).collect::<Vec<_>>(), [11]);
    assert!(all.without(HINT).get(HINT).is_none());
}

#[test]
fn bytes_are_those_of_all_tensors() {
    let device = MetaDevice::new(Target::Gpu, DType::F16);
    let (context, ids) = (device.tensor(&[2, 77, 8], DType::F16), device.tensor(&[2, 6], DType::F32));
    let bytes = context.bytes() + ids.bytes();
    assert_eq!(Inputs::new().with(CONTEXT, context).with(TIME_IDS, ids).bytes(), bytes);
}
