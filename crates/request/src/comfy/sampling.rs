//! Samplers: `KSampler` and its relatives, and samplers made of nodes for noise, guidance, method and noise levels.

use kiln_media::NodeAt;
use serde_json::Value;

use super::conditioning::Conditioning;
use super::model::{Chain, TOKEN_PIXELS};
use super::problem::{Problem, Result, named};
use super::reader::Reader;
use crate::options::Request;

/// Where a field of a request comes from: a node's id and its input.
pub(super) type Place<'a> = (&'a str, &'static str);

/// One run of a sampler.
pub(super) struct Sampling<'a> {
    pub(super) node: NodeAt<'a>,
    pub(super) model: Chain<'a>,
    pub(super) positive: Conditioning<'a>,
    /// `None` for guiders without one.
    pub(super) negative: Option<Conditioning<'a>>,
    pub(super) cfg: f64,
    pub(super) seed: u64,
    pub(super) steps: usize,
    /// The part of the noise levels that is run; 1 is all of them.
    pub(super) strength: f64,
    /// The names of the method and of the noise levels.
    pub(super) sampler: &'a str,
    pub(super) scheduler: &'a str,
    /// Options of both.
    pub(super) options: Options,
    /// The size that the noise levels are made for, with its node, if they depend on one.
    pub(super) levels: Option<((usize, usize), NodeAt<'a>)>,
    /// The places of these fields.
    pub(super) places: Vec<(&'static str, Place<'a>)>,
}

/// Options of methods and noise levels; the default leaves them out.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Options {
    eta: Option<f64>,
    s_noise: Option<f64>,
    sigma_min: Option<f64>,
    sigma_max: Option<f64>,
    rho: Option<f64>,
    keeps_penultimate: bool,
}

impl Options {
    /// Writes them into a request.
    pub(super) fn write(&self, request: &mut Request) {
        (request.eta, request.s_noise, request.rho) = (self.eta, self.s_noise, self.rho);
        (request.sigma_min, request.sigma_max) = (self.sigma_min, self.sigma_max);
        request.discard_penultimate_sigma = self.keeps_penultimate.then_some(false);
    }
}

/// Methods for which `KSampler` leaves out the next-to-last noise level, which the other samplers do not
/// (`DISCARD_PENULTIMATE_SIGMA_SAMPLERS` of comfy/samplers.py).
const DISCARDING: [&str; 4] = ["dpm_2", "dpm_2_ancestral", "uni_pc", "uni_pc_bh2"];

impl<'a> Reader<'a> {
    /// The run of a sampler.
    pub(super) fn sampling(&self, at: NodeAt<'a>) -> Result<Sampling<'a>> {
        match at.1.class_type.as_str() {
            "KSampler" => {
                let denoise = self.number_or(at, "denoise", 1.0)?;
                self.of_inputs(at, "seed", denoise, self.count(at, "steps")?)
            }
            "KSamplerAdvanced" => {
                let (steps, strength) = self.part(at)?;
                let mut all = self.of_inputs(at, "noise_seed", strength, steps)?;
                all.places.push(("strength", (at.0, "start_at_step")));
                Ok(all)
            }
            "SamplerCustom" => self.custom(at),
            "SamplerCustomAdvanced" => self.custom_advanced(at),
            _ => Err(Problem::not_understood(at)),
        }
    }

    /// A sampler whose inputs have all values.
    fn of_inputs(&self, at: NodeAt<'a>, seed: &'static str, strength: f64, steps: usize) -> Result<Sampling<'a>> {
        Ok(Sampling {
            node: at,
            seed: self.whole(at, seed)?,
            model: self.chain(at, "model", "model")?,
            positive: self.conditioning(at, "positive")?,
            negative: Some(self.conditioning(at, "negative")?),
            cfg: self.number(at, "cfg")?,
            steps,
            strength,
            sampler: self.name(at, "sampler_name")?,
            scheduler: self.name(at, "scheduler")?,
            options: Options::default(),
            levels: None,
            places: [
                ("seed", seed),
                ("steps", "steps"),
                ("cfg_scale", "cfg"),
                ("sampler", "sampler_name"),
                ("scheduler", "scheduler"),
                ("strength", "denoise"),
            ]
            .map(|(field, input)| (field, (at.0, input)))
            .to_vec(),
        })
    }

    /// The steps of `KSamplerAdvanced`, and the part of the noise levels that they are. It adds noise and runs to the end.
    fn part(&self, at: NodeAt<'a>) -> Result<(usize, f64)> {
        let why = "which is not a whole run";
        for (name, expected) in [("add_noise", "enable"), ("return_with_leftover_noise", "disable")] {
            self.only(at, name, &Value::from(expected), why)?;
        }
        let (steps, start) = (self.count(at, "steps")?, self.count(at, "start_at_step")?);
        if !self.has_images || start >= steps {
            self.only(at, "start_at_step", &Value::from(0), why)?;
        }
        if self.count(at, "end_at_step")? < steps {
            let message = format!("node {} ends before its last step", named(at));
            return Err(Problem::of_input(at, "end_at_step", message));
        }
        Ok((steps - start, strength_of(steps - start, steps)))
    }

    fn custom(&self, at: NodeAt<'a>) -> Result<Sampling<'a>> {
        self.only(at, "add_noise", &Value::from(true), "expected true: Kiln's runs begin with noise")?;
        let all = Sampling {
            node: at,
            seed: self.whole(at, "noise_seed")?,
            model: self.chain(at, "model", "model")?,
            positive: self.conditioning(at, "positive")?,
            negative: Some(self.conditioning(at, "negative")?),
            cfg: self.number(at, "cfg")?,
            steps: 0,
            strength: 1.0,
            sampler: "",
            scheduler: "",
            options: Options::default(),
            levels: None,
            places: vec![("seed", (at.0, "noise_seed")), ("cfg_scale", (at.0, "cfg"))],
        };
        self.with_method(all)
    }

    fn custom_advanced(&self, at: NodeAt<'a>) -> Result<Sampling<'a>> {
        let (noise, guider) = (self.link(at, "noise")?, self.link(at, "guider")?);
        if noise.1.class_type != "RandomNoise" {
            return Err(Problem::not_understood(noise));
        }
        let (positive, negative, cfg) = match guider.1.class_type.as_str() {
            "BasicGuider" => (self.conditioning(guider, "conditioning")?, None, 1.0),
            "CFGGuider" => {
                let negative = Some(self.conditioning(guider, "negative")?);
                (self.conditioning(guider, "positive")?, negative, self.number(guider, "cfg")?)
            }
            _ => return Err(Problem::not_understood(guider)),
        };
        let all = Sampling {
            node: at,
            seed: self.whole(noise, "noise_seed")?,
            model: self.chain(guider, "model", "model")?,
            positive,
            negative,
            cfg,
            steps: 0,
            strength: 1.0,
            sampler: "",
            scheduler: "",
            options: Options::default(),
            levels: None,
            places: vec![("seed", (noise.0, "noise_seed")), ("cfg_scale", (guider.0, "cfg"))],
        };
        self.with_method(all)
    }

    /// With the method and the noise levels of the nodes for them.
    fn with_method(&self, mut all: Sampling<'a>) -> Result<Sampling<'a>> {
        let (method, levels) = (self.link(all.node, "sampler")?, self.link(all.node, "sigmas")?);
        let noise = |options: &mut Options| {
            options.eta = Some(self.number(method, "eta")?);
            options.s_noise = Some(self.number(method, "s_noise")?);
            Ok(())
        };
        let on_gpu = || match method.1.inputs.get("noise_device").and_then(Value::as_str) {
            Some("gpu") => "_gpu",
            _ => "",
        };
        all.sampler = match method.1.class_type.as_str() {
            "KSamplerSelect" => self.name(method, "sampler_name")?,
            "SamplerEulerAncestral" => {
                noise(&mut all.options)?;
                "euler_ancestral"
            }
            "SamplerDPMPP_2M_SDE" => {
                noise(&mut all.options)?;
                match (self.name(method, "solver_type")?, on_gpu()) {
                    ("heun", "") => "dpmpp_2m_sde_heun",
                    ("heun", _) => "dpmpp_2m_sde_heun_gpu",
                    (_, "") => "dpmpp_2m_sde",
                    _ => "dpmpp_2m_sde_gpu",
                }
            }
            "SamplerDPMPP_3M_SDE" => {
                noise(&mut all.options)?;
                if on_gpu().is_empty() { "dpmpp_3m_sde" } else { "dpmpp_3m_sde_gpu" }
            }
            _ => return Err(Problem::not_understood(method)),
        };
        all.options.keeps_penultimate = DISCARDING.contains(&all.sampler);
        all.steps = self.count(levels, "steps")?;
        let bounds = |options: &mut Options| {
            options.sigma_min = Some(self.number(levels, "sigma_min")?);
            options.sigma_max = Some(self.number(levels, "sigma_max")?);
            Ok(())
        };
        all.scheduler = match levels.1.class_type.as_str() {
            "BasicScheduler" => {
                let model = self.chain(levels, "model", "model")?;
                if self.shift(&model.nodes)? != self.shift(&all.model.nodes)?
                    || model.checkpoint != all.model.checkpoint
                {
                    let message = format!(
                        "the noise levels of node {} are those of another model than node {} runs",
                        named(levels),
                        named(all.node)
                    );
                    return Err(Problem::of_input(levels, "model", message));
                }
                all.strength = self.number_or(levels, "denoise", 1.0)?;
                all.places.push(("strength", (levels.0, "denoise")));
                self.name(levels, "scheduler")?
            }
            "KarrasScheduler" => {
                bounds(&mut all.options)?;
                all.options.rho = Some(self.number(levels, "rho")?);
                "karras"
            }
            "PolyexponentialScheduler" => {
                bounds(&mut all.options)?;
                all.options.rho = Some(self.number(levels, "rho")?);
                "polyexponential"
            }
            "ExponentialScheduler" => {
                bounds(&mut all.options)?;
                "exponential"
            }
            "Flux2Scheduler" => {
                all.levels = Some(((self.count(levels, "width")?, self.count(levels, "height")?), levels));
                "default"
            }
            _ => return Err(Problem::not_understood(levels)),
        };
        let names = [
            ("steps", (levels.0, "steps")),
            ("sampler", (method.0, "sampler_name")),
            ("scheduler", (levels.0, "scheduler")),
        ];
        let options = [("eta", (method.0, "eta")), ("s_noise", (method.0, "s_noise"))];
        let ranges = ["sigma_min", "sigma_max", "rho"].map(|name| (name, (levels.0, name)));
        all.places.extend(names.into_iter().chain(options).chain(ranges));
        Ok(all)
    }
}

impl Sampling<'_> {
    /// Refuses noise levels for another number of tokens than images of `size` have: Kiln makes them for its image.
    pub(super) fn check_levels(&self, size: Option<(usize, usize)>) -> Result<()> {
        let tokens = |(width, height): (usize, usize)| (width * height) as f64 / TOKEN_PIXELS;
        match (self.levels, size) {
            (Some((of, at)), Some(size)) if tokens(of).round_ties_even() != tokens(size).round_ties_even() => {
                let ((wide, tall), (width, height)) = (of, size);
                let message =
                    format!("node {} is for {wide}x{tall}, expected {width}x{height}, the image's size", named(at));
                Err(Problem::of_input(at, "width", message))
            }
            _ => Ok(()),
        }
    }
}

/// The part of `all` steps of which the last `steps` are run: so much that `int(steps / part)` is `all`, which is how ComfyUI
/// counts (`set_steps` of comfy/samplers.py).
fn strength_of(steps: usize, all: usize) -> f64 {
    if steps >= all {
        return 1.0;
    }
    let mut part = steps as f64 / all as f64;
    while ((steps as f64 / part) as usize) < all {
        part = part.next_down();
    }
    part
}

#[cfg(test)]
mod tests {
    use super::strength_of;

    #[test]
    fn a_part_of_the_steps_counts_back_to_all_of_them() {
        for all in 1..=200usize {
            for steps in 1..=all {
                let part = strength_of(steps, all);
                assert!(part > 0.0 && part <= 1.0);
                assert_eq!((steps as f64 / part) as usize, all, "{steps} of {all}");
            }
        }
    }
}
