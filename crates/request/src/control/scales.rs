//! The factors of a control network's residuals, and the evaluations at which it acts.

use std::sync::Arc;

use kiln_scheduler::Convention;

use super::spec::{ControlMode, ControlUse};

/// The factor from one residual to the one before in AUTOMATIC1111's soft weights, and the number of the last one
/// (`scripts/hook.py` of sd-webui-controlnet, `soft_injection`): 13 residuals in Stable Diffusion 1, of which networks with
/// fewer have the first ones.
const SOFT: f64 = 0.825;
const LAST_SOFT: usize = 12;

/// The factors of `count` residuals, those of the skip connections and then the middle's.
pub fn scales(control: &ControlUse, count: usize) -> Arc<[f32]> {
    let weight = control.weight;
    let of = |i: usize| match control.mode {
        // diffusers: `torch.logspace(-1, 0, count) * conditioning_scale`.
        _ if control.guess => {
            let exponent = i as f64 / count.saturating_sub(1).max(1) as f64 - 1.0;
            10f64.powf(exponent) as f32 * weight as f32
        }
        ControlMode::Balanced => weight as f32,
        ControlMode::Prompt | ControlMode::Control => (weight * SOFT.powi(LAST_SOFT.saturating_sub(i) as i32)) as f32,
    };
    (0..count).map(of).collect()
}

/// AUTOMATIC1111's soft weights of a T2I-Adapter's feature maps (`soft_injection` for `ControlModelType.T2I_Adapter` there).
const SOFT_FEATURES: [f64; 4] = [0.25, 0.62, 0.825, 1.0];

/// The factors of the `count` feature maps of a T2I-Adapter.
pub fn adapter_scales(control: &ControlUse, count: usize) -> Arc<[f32]> {
    let of = |i: usize| match control.mode {
        ControlMode::Balanced => control.weight as f32,
        ControlMode::Prompt | ControlMode::Control => {
            (control.weight * SOFT_FEATURES.get(i).copied().unwrap_or(1.0)) as f32
        }
    };
    (0..count).map(of).collect()
}

/// An evaluation of the sampler, for what acts in a part of them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Evaluation {
    /// Its number, from 0.
    pub call: usize,
    /// All evaluations.
    pub calls: usize,
    /// The step that it belongs to, from 0.
    pub step: usize,
    /// All steps.
    pub steps: usize,
    /// The denoiser's timestep.
    pub timestep: f64,
}

/// Whether a T2I-Adapter acts at an evaluation, as [`is_active`]. diffusers (`adapter_conditioning_factor`): in the first
/// `int(calls * end)`; with a `start` not in the first `int(calls * start)`.
pub fn is_adapter_active(control: &ControlUse, convention: Convention, at: Evaluation) -> bool {
    match convention {
        Convention::Automatic1111 | Convention::ComfyUi => is_active(control, convention, at),
        Convention::Diffusers => {
            let first = |part: f64| (at.calls as f64 * part) as usize;
            (first(control.start)..first(control.end)).contains(&at.call)
        }
    }
}

/// Whether a control network acts at an evaluation.
pub fn is_active(control: &ControlUse, convention: Convention, at: Evaluation) -> bool {
    acts((control.start, control.end), convention, at)
}

/// Whether what acts from the part `start` of the evaluations to the part `end` acts at one of them.
///
/// diffusers (`controlnet_keep`): not if `call / calls < start or (call + 1) / calls > end`. AUTOMATIC1111's extension
/// compares the part of the steps before this one with both ends. In ComfyUI the ends are noise levels (`is_between`).
pub fn acts((start, end): (f64, f64), convention: Convention, at: Evaluation) -> bool {
    let part = |i: usize, n: usize| i as f64 / n.max(1) as f64;
    match convention {
        Convention::Automatic1111 => (start..=end).contains(&part(at.step, at.steps)),
        Convention::ComfyUi => is_between((start, end), at.timestep),
        Convention::Diffusers => !(part(at.call, at.calls) < start || part(at.call + 1, at.calls) > end),
    }
}

/// Whether a timestep of a U-Net is between two parts of ComfyUI's noise levels: `percent_to_sigma` there is the level of timestep
/// `999 (1 - part)`, and no bound for the parts 0 and 1.
pub fn is_between((start, end): (f64, f64), timestep: f64) -> bool {
    let level = |part: f64| 999.0 * (1.0 - part);
    (start <= 0.0 || timestep <= level(start)) && (end >= 1.0 || timestep >= level(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One of `calls` evaluations, one in each step, at evenly spaced timesteps.
    fn at(call: usize, calls: usize) -> Evaluation {
        let timestep = 999.0 * (1.0 - call as f64 / (calls.max(2) - 1) as f64);
        Evaluation { call, calls, step: call, steps: calls, timestep }
    }

    /// `torch.logspace(-1, 0, 13)[[0, 6, 12]]`, and the last of AUTOMATIC1111's soft weights.
    #[test]
    fn factors_are_those_of_the_programs() {
        let close =
            |found: f32, expected: f64| assert!((f64::from(found) - expected).abs() < 1e-6, "{found} {expected}");
        let guess = scales(&ControlUse { guess: true, weight: 0.5, ..ControlUse::new("a") }, 13);
        close(guess[0], 0.05);
        close(guess[6], 0.5 * 0.316_227_77);
        close(guess[12], 0.5);
        for mode in [ControlMode::Prompt, ControlMode::Control] {
            let soft = scales(&ControlUse { mode, weight: 2.0, ..ControlUse::new("a") }, 10);
            assert_eq!(soft.len(), 10);
            close(soft[0], 2.0 * 0.825f64.powi(12));
            close(soft[9], 2.0 * 0.825f64.powi(3));
        }
        assert_eq!(&*scales(&ControlUse { weight: 0.7, ..ControlUse::new("a") }, 3), [0.7f32; 3]);
    }

    #[test]
    fn ranges_are_those_of_the_programs() {
        let active = |start, end, convention| {
            let control = ControlUse { start, end, ..ControlUse::new("a") };
            (0..10).filter(|&i| is_active(&control, convention, at(i, 10))).collect::<Vec<_>>()
        };
        assert_eq!(active(0.0, 1.0, Convention::Diffusers), (0..10).collect::<Vec<_>>());
        assert_eq!(active(0.25, 0.75, Convention::Diffusers), [3, 4, 5, 6]);
        assert_eq!(active(0.2, 0.5, Convention::Diffusers), [2, 3, 4]);
        assert_eq!(active(0.2, 0.5, Convention::Automatic1111), [2, 3, 4, 5]);
        // Timesteps 999, 888, .. 0: those from 799.2 to 499.5.
        assert_eq!(active(0.2, 0.5, Convention::ComfyUi), [2, 3, 4]);
        assert_eq!(active(0.0, 1.0, Convention::ComfyUi), (0..10).collect::<Vec<_>>());
        // Of three evaluations none lies within the first third of a half.
        assert_eq!(active(0.0, 0.05, Convention::Diffusers), [0; 0]);
    }

    #[test]
    fn adapters_have_rules_of_their_own() {
        let active = |start, end, calls| {
            let control = ControlUse { start, end, ..ControlUse::new("a") };
            (0..calls).filter(|&i| is_adapter_active(&control, Convention::Diffusers, at(i, calls))).collect::<Vec<_>>()
        };
        let none: Vec<usize> = Vec::new();
        assert_eq!(active(0.0, 1.0, 5), vec![0, 1, 2, 3, 4]);
        // int(5 * 0.5) is 2.
        assert_eq!(active(0.0, 0.5, 5), vec![0, 1]);
        assert_eq!(active(0.5, 1.0, 4), vec![2, 3]);
        assert_eq!(active(0.0, 0.1, 4), none);
        let control = ControlUse { weight: 0.5, mode: ControlMode::Prompt, ..ControlUse::new("a") };
        assert_eq!(*adapter_scales(&control, 4), [0.125, 0.31, 0.4125, 0.5]);
    }
}
