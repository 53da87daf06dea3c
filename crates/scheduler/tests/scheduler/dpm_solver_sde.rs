//! Noise levels and timesteps of diffusers' multistep classes: `fixtures/dpm_solver_sde.json`, made by
//! `fixtures/dpm_solver_sde.py`.

use kiln_scheduler::{SamplerKind, Schedule, SchedulerConfig, SigmaSchedule};
use serde::Deserialize;

#[derive(Deserialize)]
struct Case {
    sampler: SamplerKind,
    config: serde_json::Value,
    schedule: SigmaSchedule,
    steps: usize,
    init_noise_sigma: f64,
    timesteps: Vec<f64>,
    sigmas: Vec<f64>,
}

#[test]
fn levels_are_diffusers() {
    let cases: Vec<Case> = serde_json::from_str(include_str!("../fixtures/dpm_solver_sde.json")).unwrap();
    assert!(cases.len() > 80);
    for case in cases {
        let what = format!("{} {} {} {}", case.sampler, case.schedule, case.steps, case.config);
        let config = SchedulerConfig::from_json(&case.config.to_string()).unwrap();
        let schedule = Schedule::new(&config.resolve(case.sampler, case.schedule).unwrap(), case.steps)
            .unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(schedule.timesteps(), case.timesteps, "{what}");
        for (point, expected) in schedule.points().iter().zip(&case.sigmas) {
            let found = point.sigma / point.alpha;
            assert!((found / expected - 1.0).abs() < 3e-6, "{what}: {found} for {expected}");
        }
        // diffusers preserves the latents' variance: its factor is 1.
        let first = schedule.points()[0];
        let factor = schedule.init_noise_sigma() / first.alpha.hypot(first.sigma);
        assert!((factor / case.init_noise_sigma - 1.0).abs() < 1e-6, "{what}: {factor}");
    }
}

/// `DPMSolverMultistepScheduler.from_config(sd15, algorithm_type="sde-dpmsolver++")`, 8 steps, and SDXL's configuration.
#[test]
fn dpmpp_2m_sde_has_dpm_solvers_spacing() {
    let first = |config: &str, sampler| {
        let config = SchedulerConfig::from_json(config).unwrap();
        let settings = config.resolve(sampler, SigmaSchedule::Default).unwrap();
        Schedule::new(&settings, 8).unwrap().points()[..3].iter().map(|point| point.sigma).collect::<Vec<_>>()
    };
    let sd1 = r#"{"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "steps_offset": 1}"#;
    let sdxl = sd1.replace("\"steps_offset\"", "\"timestep_spacing\": \"leading\", \"steps_offset\"");
    for sampler in [SamplerKind::Dpmpp2mSde, SamplerKind::Dpmpp2mSdeHeun] {
        for (found, expected) in first(sd1, sampler).into_iter().zip([14.61464, 7.297, 4.082]) {
            assert!((found / expected - 1.0).abs() < 1e-4, "{found} for {expected}");
        }
        assert!((first(&sdxl, sampler)[0] / 7.88 - 1.0).abs() < 1e-3);
    }
    // The samplers that diffusers does not have start where all other programs start.
    for sampler in ["dpmpp_3m_sde", "ipndm", "res_multistep", "res_multistep_a", "er_sde", "euler_cfg_pp", "dpmpp_2s_a"]
    {
        let level = first(&sdxl, sampler.parse().unwrap())[0];
        assert!((level / 14.61464 - 1.0).abs() < 1e-5, "{sampler}: {level}");
    }
}
