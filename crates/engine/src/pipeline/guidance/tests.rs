use super::*;
use candle_core::Device;

fn guide(options: GuidanceOptions, both: bool) -> Guidance {
    Guidance { options, both, ..Guidance::plain(3.0, true, 10) }
}

fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

/// The guidance of the first evaluation, on or off.
fn now(guide: &Guidance, on: bool) -> EvaluationGuidance {
    let off = |end| Guidance { options: GuidanceOptions { end, ..guide.options }, ..Guidance::plain(3.0, true, 10) };
    let off = Guidance { both: guide.both, composed: guide.composed, ..off(if on { 1.0 } else { 0.0 }) };
    off.at(0, 500.0)
}

/// The answer to [`halves`].
fn answer_of(mut guide: Guidance, on: bool) -> Result<ModelOutput> {
    let now = now(&guide, on);
    guide.answer(halves(), &now, None)
}

/// Two images of two values, unconditional first.
fn halves() -> Tensor {
    let values = [0f32, 1.0, 2.0, 4.0, 1.0, 0.0, 4.0, 8.0];
    Tensor::new(&values, &Device::Cpu).unwrap().reshape((4, 1, 1, 2)).unwrap()
}

#[test]
fn guidance_is_on_between_its_ends() {
    let options = GuidanceOptions { start: 0.2, end: 0.7, ..Default::default() };
    let on: Vec<bool> = (0..10).map(|i| guide(options, false).at(i, 500.0).on).collect();
    assert_eq!(on.iter().position(|&on| on), Some(2));
    assert_eq!(on.iter().filter(|&&on| on).count(), 5);
    assert!((0..10).all(|i| guide(GuidanceOptions::default(), false).at(i, 500.0).on));
}

/// AUTOMATIC1111's `step / total_steps <= skip_early_cond`, over ten evaluations.
#[test]
fn early_steps_are_skipped_as_in_automatic1111() {
    let skipped = |start, counted| {
        let options = GuidanceOptions { start, ..Default::default() };
        let guide = Guidance { counted: Some(counted), ..guide(options, false) };
        (0..10).filter(|&i| !guide.at(i, 500.0).on).count()
    };
    // Steps 0, 1 and 2 of 10 are at or before 0.2; of 20 steps 0 to 4.
    assert_eq!([skipped(0.2, 10), skipped(0.25, 10), skipped(0.2, 20), skipped(0.0, 10)], [3, 3, 5, 0]);
}

/// diffusers' `rescale_noise_cfg`: with 1 the deviation is the conditional answer's.
#[test]
fn rescaled_guidance_has_the_conditional_deviation() -> Result<()> {
    let options = GuidanceOptions { rescale: 1.0, ..Default::default() };
    let answer = answer_of(guide(options, false), true)?;
    // u + 3 (c - u) = [3, -2], [8, 16], whose differences 5 and 8 become 1 and 4.
    let expected = [0.6, -0.4, 4.0, 8.0];
    assert!(values(&answer.output).iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{}", answer.output);
    let half = GuidanceOptions { rescale: 0.5, ..Default::default() };
    let answer = answer_of(guide(half, false), true)?;
    assert!((values(&answer.output)[0] - 1.8).abs() < 1e-6);
    Ok(())
}

/// `v_n + g (v_p - v_n) + s (v_p - v_skip)`, with the skipped rows last, strictly between start and end.
#[test]
fn skip_layer_guidance_moves_away_from_the_skipped_rows() -> Result<()> {
    let options = GuidanceOptions { slg_scale: 2.0, slg_start: 0.01, slg_end: 0.6, ..Default::default() };
    let mut guide = Guidance { options, ..Guidance::plain(3.0, true, 5) };
    let rows: Vec<bool> = (0..5).map(|i| guide.at(i, 500.0).rows().skipped).collect();
    assert_eq!(rows, [false, true, true, false, false]);
    assert_eq!(guide.at(0, 500.0).within_step, Some(3.0), "other steps guide within themselves");
    let skipped = Tensor::new(&[0f32, 0.0, 3.0, 8.0], &Device::Cpu)?.reshape((2, 1, 1, 2))?;
    let all = Tensor::cat(&[&halves(), &skipped], 0)?;
    let now = guide.at(1, 500.0);
    assert_eq!(now.within_step, None);
    let answer = guide.answer(all, &now, None)?;
    assert_eq!(values(&answer.output), [3.0 + 2.0, -2.0, 8.0 + 2.0, 16.0]);
    let unguided = Guidance { options, ..Guidance::plain(1.0, false, 5) };
    assert!(!unguided.at(1, 500.0).rows().repeats(), "only with guidance");
    Ok(())
}

#[test]
fn zero_star_scales_the_unconditional_prediction_and_leaves_out_the_first() -> Result<()> {
    let mut guide = guide(GuidanceOptions { zero_star: true, ..Default::default() }, false);
    let (first, second) = (guide.at(0, 1000.0), guide.at(1, 900.0));
    assert_eq!(values(&guide.answer(halves(), &first, None)?.output), [0.0; 4]);
    // Image 1: <c, u> = 0, so that 3 c is left. Image 2: c = 2 u, so that c is left.
    let found = values(&guide.answer(halves(), &second, None)?.output);
    assert!(found.iter().zip([3.0, 0.0, 4.0, 8.0]).all(|(a, b)| (a - b).abs() < 1e-5), "{found:?}");
    Ok(())
}

#[test]
fn the_norm_of_guidance_is_bounded() -> Result<()> {
    let answer = answer_of(guide(GuidanceOptions { norm: 1.0, ..Default::default() }, false), true)?;
    // [3, -2] gets the norm of [1, 0], and [8, 16] that of [4, 8].
    let root = 13f32.sqrt();
    let expected = [3.0 / root, -2.0 / root, 4.0, 8.0];
    assert!(values(&answer.output).iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-5), "{}", answer.output);
    let loose = answer_of(guide(GuidanceOptions { norm: 100.0, ..Default::default() }, false), true)?;
    assert_eq!(values(&loose.output), [3.0, -2.0, 8.0, 16.0]);
    Ok(())
}

#[test]
fn samplers_get_both_answers_where_they_need_them() -> Result<()> {
    let answer = answer_of(guide(GuidanceOptions::default(), true), true)?;
    assert_eq!(values(&answer.output), [3.0, -2.0, 8.0, 16.0]);
    assert_eq!(answer.unconditional.map(|u| values(&u)), Some(vec![0.0, 1.0, 2.0, 4.0]));
    let options = GuidanceOptions { percentile: Some(1.0), mimic_scale: Some(1.0), ..Default::default() };
    let answer = answer_of(guide(options, false), true)?;
    assert_eq!(answer.mimic.map(|mimic| values(&mimic.output)), Some(vec![1.0, 0.0, 4.0, 8.0]));
    assert!(answer.unconditional.is_none());
    let off = answer_of(guide(GuidanceOptions::default(), true), false)?;
    assert_eq!(values(&off.output), off.unconditional.map(|u| values(&u)).unwrap_or_default());
    Ok(())
}

/// Combined conditions stay combined without guidance: at strength 1 within the step, else as the conditional half.
#[test]
fn combined_conditions_hold_without_guidance_too() -> Result<()> {
    let composed = |options, both| Guidance { composed: true, ..guide(options, both) };
    let plain = || composed(GuidanceOptions::default(), false);
    assert_eq!([true, false].map(|on| now(&plain(), on).within_step), [Some(3.0), Some(1.0)]);
    assert_eq!(values(&answer_of(plain(), false)?.output), values(&halves()));
    for guide in [
        composed(GuidanceOptions { rescale: 0.5, ..Default::default() }, false),
        composed(GuidanceOptions::default(), true),
    ] {
        assert_eq!(now(&guide, false).within_step, None);
        assert_eq!(values(&answer_of(guide, false)?.output), [1.0, 0.0, 4.0, 8.0]);
    }
    Ok(())
}

#[test]
fn a_strength_that_changes_between_steps_holds_for_the_rest() {
    let mut guide = Guidance::plain(3.0, true, 4);
    guide.set_strength(5.0).unwrap();
    assert_eq!(guide.at(2, 500.0).within_step, Some(5.0));
    guide.set_strength(1.0).unwrap();
    assert!(!guide.at(3, 250.0).on, "a step of strength 1 has one half");
    assert!(guide.set_strength(f64::NAN).is_err() && guide.set_strength(-1.0).is_err());
    let mut plain = Guidance::plain(1.0, false, 4);
    assert!(plain.set_strength(1.0).is_ok());
    let message = plain.set_strength(2.0).unwrap_err().to_string();
    assert!(message.contains("began without guidance"), "{message}");
}

#[test]
fn schedules_are_spread_over_the_evaluations() {
    let at = |strengths: &[f64], evaluations| {
        let guide = Guidance { strengths: strengths.to_vec(), ..Guidance::plain(1.0, true, evaluations) };
        (0..evaluations).map(|i| guide.at(i, 500.0)).map(|now| now.within_step.unwrap_or(-1.0)).collect::<Vec<_>>()
    };
    assert_eq!(at(&[9.0, 7.0, 4.0], 3), [9.0, 7.0, 4.0]);
    assert_eq!(at(&[8.0, 2.0], 4), [8.0, 6.0, 4.0, 2.0]);
    assert_eq!(at(&[8.0, 4.0, 1.0, 1.0], 4), [8.0, 4.0, -1.0, -1.0]); // no guidance at strength 1
    assert_eq!(at(&[5.0, 3.0], 1), [5.0]);
    assert_eq!(at(&[3.0], 2), [3.0, 3.0]);
    assert_eq!(at(&[9.0, 1.0, 5.0], 2), [9.0, 5.0]);
}

#[test]
fn the_norm_of_each_token_is_restored() {
    let wave = |phase: f64| {
        let values: Vec<f32> = (0..48).map(|i| (f64::from(i) * 0.7 + phase).sin() as f32).collect();
        Tensor::from_vec(values, (1, 3, 4, 4), &Device::Cpu).unwrap()
    };
    let halves = Tensor::cat(&[wave(0.0), wave(1.0)], 0).unwrap();
    let mut guide = Guidance { restored_norm: Some(2), ..guide(GuidanceOptions::default(), false) };
    let now = guide.at(0, 500.0);
    assert!(now.on && now.within_step.is_none());
    let found = guide.answer(halves, &now, None).unwrap().output;
    let norms = |x: &Tensor| values(&x.reshape(vec![3, 2, 2, 2, 2]).unwrap().sqr().unwrap().sum((0, 2, 4)).unwrap());
    for (found, expected) in norms(&found).iter().zip(norms(&wave(1.0))) {
        assert!((found - expected).abs() < 1e-5, "{found} {expected}");
    }
}
