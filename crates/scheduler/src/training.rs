//! The noise that the model was trained with: betas, and values derived from them.
//!
//! diffusers computes these values in f32, and the sigmas contain that rounding, so each value here is rounded to f32
//! where PyTorch rounds it (its `cumprod` accumulates in f64).

use crate::BetaSchedule;

/// arXiv 2102.09672: caps the last betas of the cosine schedule, which would be singular.
const MAX_BETA: f64 = 0.999;

/// The value that diffusers sets for a last `alphas_cumprod` of zero, so that its sigma is finite (4096): the smallest
/// f16 subnormal.
const SMALLEST_ALPHA_CUMPROD: f32 = 1.0 / (1 << 24) as f32;

/// The training schedule, one value for each training timestep.
#[derive(Debug, Clone)]
pub(crate) struct Training {
    /// The variance of the signal: `alphas_cumprod`.
    pub alphas_cumprod: Vec<f32>,
    /// The ratio of noise to signal: `sqrt((1 - a) / a)`.
    pub sigmas: Vec<f64>,
    /// The logarithms of `sigmas`.
    pub log_sigmas: Vec<f64>,
}

impl Training {
    /// `timesteps` is the length of the schedule. `zero_snr` rescales it to zero terminal SNR. `finite_sigmas` keeps that
    /// SNR slightly above zero, as the samplers that work on sigmas need.
    pub fn new(schedule: &BetaSchedule, timesteps: usize, zero_snr: bool, finite_sigmas: bool) -> Self {
        let mut betas = betas(schedule, timesteps);
        if zero_snr {
            betas = rescale_zero_terminal_snr(&betas);
        }
        let mut alphas_cumprod = cumprod(&betas);
        if zero_snr && finite_sigmas {
            *alphas_cumprod.last_mut().expect("at least two timesteps") = SMALLEST_ALPHA_CUMPROD;
        }
        let sigmas: Vec<f32> = alphas_cumprod.iter().map(|&a| ((1.0 - a) / a).sqrt()).collect();
        let log_sigmas = sigmas.iter().map(|&s| f64::from(s.ln())).collect();
        Self { alphas_cumprod, sigmas: sigmas.into_iter().map(f64::from).collect(), log_sigmas }
    }
}

fn betas(schedule: &BetaSchedule, n: usize) -> Vec<f32> {
    match schedule {
        BetaSchedule::Linear { start, end } => linspace(*start as f32, *end as f32, n),
        BetaSchedule::ScaledLinear { start, end } => {
            linspace(start.sqrt() as f32, end.sqrt() as f32, n).into_iter().map(|root| root * root).collect()
        }
        BetaSchedule::SquaredCosCapV2 => {
            let alpha_bar =
                |i: usize| ((i as f64 / n as f64 + 0.008) / 1.008 * std::f64::consts::FRAC_PI_2).cos().powi(2);
            (0..n).map(|i| (1.0 - alpha_bar(i + 1) / alpha_bar(i)).min(MAX_BETA) as f32).collect()
        }
        BetaSchedule::Trained(betas) => betas.clone(),
    }
}

/// `torch.linspace` in f32: from both ends towards the middle, with fused multiply-add.
fn linspace(start: f32, end: f32, n: usize) -> Vec<f32> {
    let step = (end - start) / (n - 1) as f32;
    (0..n)
        .map(|i| if i < n / 2 { step.mul_add(i as f32, start) } else { step.mul_add(-((n - 1 - i) as f32), end) })
        .collect()
}

/// The running product of `1 - beta`.
fn cumprod(betas: &[f32]) -> Vec<f32> {
    let running = betas.iter().scan(1.0f64, |product, &beta| {
        *product *= f64::from(1.0 - beta);
        Some(*product as f32)
    });
    running.collect()
}

/// arXiv 2305.08891, algorithm 1: shifts and scales `sqrt(alphas_cumprod)` so that the last one is zero and the first
/// one is unchanged.
fn rescale_zero_terminal_snr(betas: &[f32]) -> Vec<f32> {
    let roots: Vec<f32> = cumprod(betas).into_iter().map(f32::sqrt).collect();
    let (first, last) = (roots[0], roots[roots.len() - 1]);
    let scale = first / (first - last);
    let alphas_bar: Vec<f32> = roots.iter().map(|root| ((root - last) * scale).powi(2)).collect();
    let ratios = alphas_bar.windows(2).map(|pair| 1.0 - pair[1] / pair[0]);
    std::iter::once(1.0 - alphas_bar[0]).chain(ratios).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Process, SamplerKind, SchedulerConfig, SigmaSchedule};

    fn alphas_cumprod(json: &str) -> Vec<f32> {
        let config = SchedulerConfig::from_json(json).unwrap();
        let resolved = config.resolve(SamplerKind::Ddim, SigmaSchedule::Default).unwrap();
        match &resolved.process {
            Process::Betas { schedule, zero_snr } => {
                Training::new(schedule, resolved.num_train_timesteps, *zero_snr, false).alphas_cumprod
            }
            Process::Flow(_) => panic!("the configuration has betas"),
        }
    }

    /// `[DDIMScheduler(**json).alphas_cumprod[i].item() for i in (0, 1, 250, 500, 750, 998, 999)]`
    ///
    /// The values are equal except for the rescaled ones: PyTorch's vectorized square root is sometimes off by a unit
    /// in the last place, and the product of a thousand roundings remains.
    #[test]
    fn alphas_cumprod_are_diffusers() {
        const SCALED: &str = r#"{"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}"#;
        const COSINE: &str = r#"{"beta_schedule": "squaredcos_cap_v2"}"#;
        const ZERO_SNR: &str = r#"{"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "rescale_betas_zero_snr": true}"#;
        #[rustfmt::skip]
        const CASES: [(&str, [f64; 7]); 4] = [
            ("{}", [0.9998999834060669, 0.9997800588607788, 0.5214229822158813, 0.07779665291309357, 0.003300158539786935, 4.118194192415103e-05, 4.035830352222547e-05]),
            (SCALED, [0.9991499781608582, 0.9982960224151611, 0.67379230260849, 0.27633246779441833, 0.05616980418562889, 0.004716695751994848, 0.00466009508818388]),
            (COSINE, [0.9999586939811707, 0.9999125599861145, 0.8458880186080933, 0.4922850430011749, 0.14317865669727325, 2.428766265438753e-06, 2.4287349909002387e-09]),
            (ZERO_SNR, [0.9991499781608582, 0.9982334971427917, 0.6524567604064941, 0.2410186380147934, 0.03279908001422882, 1.9679633567193378e-07, 0.0]),
        ];
        for (json, expected) in CASES {
            let tolerance = if json == ZERO_SNR { 1e-6 } else { 1.2e-7 };
            let found = alphas_cumprod(json);
            for (i, expected) in [0, 1, 250, 500, 750, 998, 999].into_iter().zip(expected) {
                let error = (f64::from(found[i]) - expected).abs();
                assert!(error <= tolerance * expected + 1e-11, "{json} at {i}: {} for {expected}", found[i]);
            }
        }
    }

    #[test]
    fn trained_betas_are_taken_as_they_are() {
        assert_eq!(alphas_cumprod(r#"{"num_train_timesteps": 2, "trained_betas": [0.5, 0.25]}"#), [0.5, 0.375]);
    }
}
