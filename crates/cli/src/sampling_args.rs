//! The flags of the sampler, of guidance and of the noise.

use clap::Args;
use kiln_engine::{
    Convention, InitialNoise, Request, Rng, SamplerChoice, SamplerKind, ScheduleChoice, SigmaRange, SigmaSchedule,
    UniPcScale,
};

use crate::values::{Seed, parse_number, parse_offset, parse_seed, parse_size};

/// What a user may say about the way from noise to a picture.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Sampler, guidance and noise")]
pub struct SamplingArgs {
    #[arg(long, value_name = "NAME", help = samplers())]
    sampler: Option<SamplerChoice>,
    #[arg(long, value_name = "NAME", help = schedules())]
    scheduler: Option<ScheduleChoice>,
    /// Whose rules hold where programs differ: diffusers, a1111 or comfyui. Default: diffusers.
    #[arg(long, value_name = "NAME")]
    convention: Option<Convention>,
    /// Where karras, exponential, polyexponential and beta_sigmas lie: table, between all trained noise levels, or
    /// spacing, between those that diffusers' class visits. Default: by the name, else by the convention.
    #[arg(long, value_name = "NAME")]
    sigma_range: Option<SigmaRange>,
    /// The least noise level of a schedule. Default: that of its range.
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = parse_number)]
    sigma_min: Option<f64>,
    /// The largest noise level of a schedule. Default: that of its range.
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = parse_number)]
    sigma_max: Option<f64>,
    /// Makes one noise level more and leaves out the next-to-last one: true or false. Default: by the convention.
    #[arg(long, value_name = "BOOL")]
    discard_penultimate_sigma: Option<bool>,
    /// The first latents: sigma, noise times the noise level, or variance, noise times sqrt(sigma^2 + 1). Default: by the
    /// convention.
    #[arg(long, value_name = "NAME")]
    initial_noise: Option<InitialNoise>,
    /// UniPC's function B(h): bh1 or bh2. Default: the model's, else bh2; with a1111 and comfyui bh1.
    #[arg(long, value_name = "NAME")]
    unipc_variant: Option<UniPcScale>,
    /// The noise levels themselves, the noisiest first: 14.6,6.5,2.7,1,0.4,0.
    #[arg(long, value_name = "LIST", conflicts_with = "scheduler", value_parser = parse_levels)]
    sigmas: Option<Levels>,
    /// How much of the noise is drawn again at each step, 0 to 1. Default: the sampler's.
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = parse_number)]
    eta: Option<f64>,
    /// How much the noise level is raised before the steps, over all of them: euler, heun and dpm2.
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = parse_number)]
    s_churn: Option<f64>,
    /// The least noise level that is raised.
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = parse_number)]
    s_tmin: Option<f64>,
    /// The largest noise level that is raised.
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = parse_number)]
    s_tmax: Option<f64>,
    /// What noise is multiplied by that is drawn after the first. Default: 1.
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = parse_number)]
    s_noise: Option<f64>,
    /// The power of the schedules karras (7) and polyexponential (1).
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = parse_number)]
    rho: Option<f64>,

    /// Gives guided steps the contrast of unguided ones, 0 to 1; 0.7 is usual. Default: 0.
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = parse_number)]
    guidance_rescale: Option<f64>,
    /// The part of the steps before which there is no guidance, 0 to 1.
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = parse_number)]
    guidance_start: Option<f64>,
    /// The part of the steps after which there is none. Steps without guidance take half the time.
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = parse_number)]
    guidance_end: Option<f64>,
    /// Gives strong guidance the range of weaker one: the share of the values that is not clipped, as 1 or 0.995.
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = parse_number)]
    dynamic_thresholding: Option<f64>,
    /// The strength of that weaker guidance. Default: 7.
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = parse_number)]
    mimic_scale: Option<f64>,

    /// Whose random numbers: cpu or cuda, as PyTorch draws them there. Either runs anywhere. Default: cpu.
    #[arg(long, value_name = "NAME", value_parser = parse_rng)]
    rng: Option<Rng>,
    /// Added to the seed for the noise after the first: AUTOMATIC1111's eta noise seed delta.
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = parse_offset,
          visible_alias = "eta-noise-seed-delta")]
    ensd: Option<i64>,
    /// The seed of a second noise that is mixed into the first. Negative, and the default: a random one.
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = parse_seed,
          visible_alias = "variation-seed")]
    subseed: Option<Seed>,
    /// How much of the second noise, 0 to 1, for variations.
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = parse_number,
          visible_alias = "variation-strength")]
    subseed_strength: Option<f64>,
    /// Keeps in its middle the noise of a picture of this size, in pixels: 512x512.
    #[arg(long, value_name = "WxH", value_parser = parse_size)]
    seed_resize_from: Option<(usize, usize)>,
}

impl SamplingArgs {
    /// Whether they name a sampler, and noise levels.
    pub fn names(&self) -> (bool, bool) {
        (self.sampler.is_some(), self.scheduler.is_some() || self.sigmas.is_some())
    }

    /// Writes them into a request, in the place of what it says.
    pub fn apply(&self, request: &mut Request) {
        if let Some(sampler) = self.sampler {
            request.sampler = Some(sampler);
            if sampler.schedule.is_some() {
                request.scheduler = SigmaSchedule::Default; // the one that the sampler's name ends in
            }
        }
        if let Some(ScheduleChoice { schedule, range }) = self.scheduler {
            (request.scheduler, request.sigmas) = (schedule, None);
            request.sigma_range = range.or(request.sigma_range);
        }
        request.convention = self.convention.unwrap_or(request.convention);
        if let Some(Levels(levels)) = &self.sigmas {
            (request.sigmas, request.steps, request.scheduler) = (Some(levels.clone()), None, SigmaSchedule::Default);
        }
        // What the request said of another sampler; what is said here is refused where it does not fit.
        request.drop_unfit();
        request.sigma_range = self.sigma_range.or(request.sigma_range);
        request.discard_penultimate_sigma = self.discard_penultimate_sigma.or(request.discard_penultimate_sigma);
        request.initial_noise = self.initial_noise.or(request.initial_noise);
        request.unipc_variant = self.unipc_variant.or(request.unipc_variant);
        if let Some(rng) = self.rng {
            request.rng = rng;
        }
        if let Some(Seed(subseed)) = self.subseed {
            request.subseed = subseed;
        }
        for (said, place) in [
            (self.sigma_min, &mut request.sigma_min),
            (self.sigma_max, &mut request.sigma_max),
            (self.eta, &mut request.eta),
            (self.s_churn, &mut request.s_churn),
            (self.s_tmin, &mut request.s_tmin),
            (self.s_tmax, &mut request.s_tmax),
            (self.s_noise, &mut request.s_noise),
            (self.rho, &mut request.rho),
            (self.guidance_rescale, &mut request.guidance_rescale),
            (self.guidance_start, &mut request.guidance_start),
            (self.guidance_end, &mut request.guidance_end),
            (self.dynamic_thresholding, &mut request.dynamic_thresholding),
            (self.mimic_scale, &mut request.mimic_scale),
            (self.subseed_strength, &mut request.subseed_strength),
        ] {
            *place = said.or(*place);
        }
        request.ensd = self.ensd.or(request.ensd);
        request.seed_resize_from = self.seed_resize_from.or(request.seed_resize_from);
    }
}

/// The samplers, for the help.
fn samplers() -> String {
    let ids: Vec<_> = SamplerKind::ALL.into_iter().map(SamplerKind::id).collect();
    let names = "AUTOMATIC1111's, ComfyUI's and diffusers' names are understood too";
    format!("The sampler: {}. Default: the model's own. {names}", ids.join(", "))
}

/// The sigma schedules, for the help.
fn schedules() -> String {
    let ids: Vec<_> = SigmaSchedule::ALL.into_iter().map(SigmaSchedule::id).collect();
    format!("How noise levels are spaced: {}. Default: default, the model's own", ids.join(", "))
}

/// Noise levels; which ones are possible is the sampler's to say.
#[derive(Debug, Clone)]
struct Levels(Vec<f64>);

fn parse_levels(text: &str) -> Result<Levels, String> {
    let levels: Result<_, _> = text.split(',').map(|level| level.trim().parse()).collect();
    levels.map(Levels).map_err(|_| "expected noise levels that fall, as in 14.6,6.5,2.7,1,0.4,0".into())
}

fn parse_rng(text: &str) -> Result<Rng, String> {
    match text {
        "cpu" => Ok(Rng::Cpu),
        "cuda" => Ok(Rng::Cuda),
        _ => Err("expected cpu or cuda".into()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Args, Command};

    fn request(line: &[&str]) -> Result<Request, String> {
        let words = ["kiln", "txt2img", "a pear"].iter().chain(line);
        match Args::try_parse_from(words).map_err(|error| error.to_string())?.command {
            Command::Txt2img(args) => Ok(args.request()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn names_may_be_anybodys() {
        let asked = request(&["--sampler", "DPM++ 2M Karras"]).unwrap().sampler.unwrap();
        assert_eq!((asked.kind, asked.schedule), (SamplerKind::Dpmpp2m, Some(SigmaSchedule::Karras)));
        let message = request(&["--sampler", "eulr"]).unwrap_err();
        assert!(message.contains("did you mean euler, "), "{message}");
        assert!(request(&["--scheduler", "karas"]).unwrap_err().contains("did you mean karras, "));
    }

    #[test]
    fn flags_replace_what_a_picture_says() {
        let base = Request {
            prompt: "a {b}".into(),
            literal_prompt: true,
            negative_prompt: Some("c".into()),
            literal_negative_prompt: true,
            seed: Some(5),
            sampler: Some(SamplerKind::EulerA.into()),
            scheduler: SigmaSchedule::Karras,
            eta: Some(0.5),
            rho: Some(5.0),
            guidance_end: Some(0.8),
            subseed: Some(1),
            ..Request::default()
        };
        let over = |line: &[&str]| {
            let words = ["kiln", "txt2img", "--like", "x.png"].iter().chain(line);
            match Args::try_parse_from(words).unwrap().command {
                Command::Txt2img(args) => args.request_over(base.clone()),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(over(&[]), base);
        let found = over(&["-p", "d", "-s", "-1", "--sampler", "DPM++ 2M Exponential", "--guidance-end", "1"]);
        let expected = Request {
            prompt: "d".into(),
            literal_prompt: false,
            seed: None,
            sampler: Some("DPM++ 2M Exponential".parse().unwrap()),
            scheduler: SigmaSchedule::Default,
            eta: None,
            rho: None,
            guidance_end: Some(1.0),
            ..base.clone()
        };
        assert_eq!(found, expected);
        let found = over(&["--sampler", "euler", "--eta", "0.1", "--subseed", "-1", "-n", ""]);
        assert_eq!((found.eta, found.rho, found.subseed), (Some(0.1), Some(5.0), None)); // eta is refused, later
        assert_eq!((found.negative_prompt.as_deref(), found.literal_negative_prompt), (Some(""), false));
        let levels = Request { sigmas: Some(vec![2.0, 1.0]), steps: Some(2), ..base.clone() };
        let over = |line: &[&str]| {
            let words = ["kiln", "txt2img", "--like", "x.png"].iter().chain(line);
            match Args::try_parse_from(words).unwrap().command {
                Command::Txt2img(args) => args.request_over(levels.clone()),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!((over(&["--steps", "9"]).sigmas, over(&["--steps", "9"]).steps), (None, Some(9)));
        assert_eq!(over(&["--sigmas", "3,2,1"]).steps, None);
        assert_eq!(over(&["--scheduler", "simple"]).sigmas, None);
    }

    #[test]
    fn a_name_tells_the_range() {
        let range = |line: &[&str]| request(line).unwrap().sigma_range;
        assert_eq!(range(&["--scheduler", "karras"]), None);
        assert_eq!(range(&["--scheduler", "Karras"]), Some(SigmaRange::Table));
        assert_eq!(range(&["--scheduler", "Karras", "--sigma-range", "spacing"]), Some(SigmaRange::Spacing));
        let found =
            request(&["--convention", "a1111", "--discard-penultimate-sigma", "true", "--sigma-max", "9"]).unwrap();
        assert_eq!((found.convention, found.discard_penultimate_sigma), (Convention::Automatic1111, Some(true)));
        assert_eq!(found.sigma_max, Some(9.0));
        let found = request(&["--discard-penultimate-sigma", "false", "--initial-noise", "variance"]).unwrap();
        assert_eq!(found.discard_penultimate_sigma, Some(false));
        assert_eq!(found.initial_noise, Some(InitialNoise::Variance));
        assert!(request(&["--sigma-range", "all"]).unwrap_err().contains("expected table or spacing"));
    }

    #[test]
    fn flags_reach_the_request() {
        let asked = request(&[
            "--sigmas",
            "10,2,0.5",
            "--rng",
            "cuda",
            "--ensd",
            "-3",
            "--variation-seed",
            "5",
            "--subseed-strength",
            "0.2",
            "--seed-resize-from",
            "512x256",
            "--guidance-end",
            "0.8",
        ])
        .unwrap();
        assert_eq!(asked.sigmas, Some(vec![10.0, 2.0, 0.5]));
        assert_eq!((asked.rng, asked.ensd, asked.subseed), (Rng::Cuda, Some(-3), Some(5)));
        assert_eq!((asked.subseed_strength, asked.seed_resize_from), (Some(0.2), Some((512, 256))));
        assert_eq!(asked.guidance_end, Some(0.8));
        assert!(request(&["--sigmas", "10,2", "--scheduler", "karras"]).unwrap_err().contains("cannot be used with"));
    }
}
