use super::*;
use crate::test_support::{TARGET, assert_close, exact};

fn embed(values: &[f32], dim: usize, flip_sin_to_cos: bool, freq_shift: f64) -> Vec<Vec<f32>> {
    let config = TimestepEmbedding { dim, flip_sin_to_cos, freq_shift };
    let values = Tensor::new(values, &TARGET.0).unwrap();
    timestep_embedding(&values, config, DType::F32, None).unwrap().to_vec2().unwrap()
}

/// diffusers.models.embeddings.get_timestep_embedding(torch.tensor([1., 500.5]), dim, flip, shift)
#[test]
fn agrees_with_diffusers() {
    let close = |found: &[f32], expected: &[f32]| {
        assert_eq!(found.len(), expected.len());
        found.iter().zip(expected).for_each(|(f, e)| assert!((f - e).abs() < 2e-5, "{found:?}, expected {expected:?}"));
    };
    close(&embed(&[1.0], 4, true, 0.0)[0], &[0.540_302_3, 0.999_95, 0.841_471, 0.009_999_8]);
    close(&embed(&[1.0], 4, false, 1.0)[0], &[0.841_471, 0.000_1, 0.540_302_3, 1.0]);
    close(&embed(&[500.5], 5, true, 0.0)[0], &[-0.551_389, 0.288_453_34, -0.834_248_3, -0.957_494, 0.0]);
}

#[test]
fn refuses_a_width_without_frequencies() {
    let config = TimestepEmbedding { dim: 2, flip_sin_to_cos: true, freq_shift: 1.0 };
    assert!(timestep_embedding(&Tensor::new(&[1f32], &TARGET.0).unwrap(), config, DType::F32, None).is_err());
}

/// At 999 the exponential's last place moves an angle by 1e-4.
#[test]
fn kernel_agrees_with_the_host() {
    let values = Tensor::new(&[0f32, 1.0, 37.25, 500.5, 999.0], &TARGET.0).unwrap();
    for (dim, flip_sin_to_cos, freq_shift) in [(320, true, 0.0), (256, true, 0.0), (7, false, 1.0)] {
        let config = TimestepEmbedding { dim, flip_sin_to_cos, freq_shift };
        let expected = on_host(&exact(&values), config, DType::F32).unwrap();
        assert_close(&timestep_embedding(&values, config, TARGET.1, None).unwrap(), &expected, 3e-4);
    }
}
