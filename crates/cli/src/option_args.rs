//! Options of the table that were given as arguments.

use std::marker::PhantomData;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use kiln_engine::{NetworkOptions, OPTIONS, OptionGroup, OptionKind, OptionRow, Request, SigmaSchedule};
use kiln_request::RequestBuilder;

use crate::option_flags::argument;

/// Options whose arguments differ from their values. The prompt needs no flag. The flags of LoRAs, control networks, IP-Adapters,
/// reference images and input images can be repeated. `--batch-size` also accepts `auto`.
const BY_HAND: [&str; 7] = ["prompt", "loras", "controls", "ip_adapters", "references", "batch_size", "init"];
/// Options that replace others of an image's settings; they are applied before what those settings have for another sampler
/// is removed.
const FIRST: [&str; 4] = ["sampler", "scheduler", "convention", "sigmas"];

/// A part of the table of options: those that a command has as arguments.
pub trait Subset {
    /// Whether an option belongs to it.
    fn has(row: &OptionRow) -> bool;
}

/// The options of every command that makes images.
#[derive(Debug, Clone, Copy, Default)]
pub struct Common;
/// The options of input images.
#[derive(Debug, Clone, Copy, Default)]
pub struct Input;
/// The options of a second pass.
#[derive(Debug, Clone, Copy, Default)]
pub struct Hires;
/// The options that change how the denoiser computes: PAG, SAG, FreeU, DeepCache, the first-block cache and deep shrink. `kiln plan` has them, too.
#[derive(Debug, Clone, Copy, Default)]
pub struct Network;

impl Subset for Common {
    fn has(row: &OptionRow) -> bool {
        !matches!(row.group, OptionGroup::Internal | OptionGroup::Input | OptionGroup::Hires)
    }
}

impl Subset for Input {
    fn has(row: &OptionRow) -> bool {
        row.group == OptionGroup::Input
    }
}

impl Subset for Hires {
    fn has(row: &OptionRow) -> bool {
        row.group == OptionGroup::Hires
    }
}

impl Subset for Network {
    fn has(row: &OptionRow) -> bool {
        NetworkOptions::NAMES.contains(&row.name)
    }
}

/// The options of a part of the table that were given as arguments.
#[derive(Debug, Clone, Default)]
pub struct OptionArgs<S> {
    given: RequestBuilder,
    subset: PhantomData<S>,
}

/// Options of every command that makes images.
pub type CommonArgs = OptionArgs<Common>;
/// Options of input images.
pub type InputArgs = OptionArgs<Input>;
/// Options of a second pass.
pub type HiresArgs = OptionArgs<Hires>;
/// Options of `kiln plan`.
pub type NetworkArgs = OptionArgs<Network>;

/// The options of a part of the table that have an argument of their own.
fn rows<S: Subset>() -> impl Iterator<Item = &'static OptionRow> {
    OPTIONS.iter().filter(|row| S::has(row) && !BY_HAND.contains(&row.name))
}

impl<S> OptionArgs<S> {
    /// Whether an option was given.
    pub fn has(&self, name: &str) -> bool {
        self.given.has(name)
    }

    /// Returns `request` with the command line's values of `rows` in place of its own.
    fn copy(&self, rows: impl Iterator<Item = &'static OptionRow>, mut request: Request) -> Request {
        rows.for_each(|row| row.copy(self.given.request(), &mut request));
        request
    }
}

impl CommonArgs {
    /// Returns `request` with the values of the command line in place of its own.
    pub fn apply(&self, mut request: Request) -> Request {
        let given = self.given.request();
        let (first, others): (Vec<&OptionRow>, Vec<&OptionRow>) =
            self.given.rows().partition(|row| FIRST.contains(&row.name));
        if self.has("steps") {
            request.sigmas = None; // those of an image, which say how many steps there are
        }
        for row in first {
            row.copy(given, &mut request);
            match row.name {
                // The schedule is the one that the sampler's name ends in.
                "sampler" if given.sampler.is_some_and(|sampler| sampler.schedule.is_some()) => {
                    request.scheduler = SigmaSchedule::Default
                }
                "scheduler" => {
                    request.sigmas = None;
                    request.sigma_range = self.given.sigma_range().or(request.sigma_range);
                }
                "sigmas" => (request.steps, request.scheduler) = (None, SigmaSchedule::Default),
                _ => {}
            }
        }
        // Drops options of another sampler; those of the command line are refused if they do not fit.
        request.drop_unfit();
        let mut request = self.copy(others.into_iter(), request);
        if self.has("negative_prompt") {
            request.literal_negative_prompt = false;
        }
        request
    }
}

impl InputArgs {
    /// Returns `request` with the values of the command line in place of its own.
    pub fn apply(&self, request: Request) -> Request {
        self.copy(self.given.rows(), request)
    }
}

impl HiresArgs {
    /// Returns `request` with the values of the command line in place of its own.
    pub fn apply(&self, mut request: Request) -> Request {
        // A size of an image's settings gives way to another kind of size.
        match (self.has("hires_scale"), self.has("hires_size")) {
            (true, false) => request.hires_size = None,
            (false, true) => request.hires_scale = None,
            _ => {}
        }
        self.copy(self.given.rows(), request)
    }
}

impl NetworkArgs {
    /// A request with the values of the command line. All other options have their defaults.
    pub fn request(&self) -> Request {
        self.given.request().clone()
    }
}

impl<S: Subset + Default> Args for OptionArgs<S> {
    fn augment_args(command: Command) -> Command {
        rows::<S>().fold(command, |command, row| command.arg(argument(row)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<S: Subset + Default> FromArgMatches for OptionArgs<S> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut args = Self::default();
        args.update_from_arg_matches(matches)?;
        Ok(args)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        let is_given = |row: &&OptionRow| {
            matches!(matches.value_source(row.name), Some(ValueSource::CommandLine | ValueSource::EnvVariable))
        };
        for row in rows::<S>().filter(is_given) {
            let given = &mut self.given;
            let read = match row.kind {
                OptionKind::Flag => given.read(row, "on"),
                OptionKind::Folder | OptionKind::File | OptionKind::Model | OptionKind::Upscaler(_) => {
                    matches.get_one::<PathBuf>(row.name).map_or(Ok(()), |path| given.read_path(row, path))
                }
                _ => matches.get_one::<String>(row.name).map_or(Ok(()), |text| given.read(row, text)),
            };
            read.map_err(|problem| clap::Error::raw(ErrorKind::ValueValidation, problem))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use kiln_engine::{Convention, InitialNoise, Rng, SamplerKind, SigmaRange};

    use super::*;
    use crate::args::{Args, Command};

    #[test]
    fn constants_name_options() {
        for name in BY_HAND.into_iter().chain(FIRST) {
            assert!(OPTIONS.iter().any(|row| row.name == name), "{name}");
        }
    }

    fn request(line: &[&str]) -> Result<Request, String> {
        let words = ["kiln", "txt2img", "a pear"].iter().chain(line);
        match Args::try_parse_from(words).map_err(|error| error.to_string())?.command {
            Command::Txt2img(args) => Ok(args.common.request()),
            other => panic!("{other:?}"),
        }
    }

    fn request_over(base: &Request, line: &[&str]) -> Request {
        let words = ["kiln", "txt2img", "--like", "x.png"].iter().chain(line);
        match Args::try_parse_from(words).unwrap().command {
            Command::Txt2img(args) => args.common.request_over(base.clone()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn names_may_be_anybodys() {
        let asked = request(&["--sampler", "DPM++ 2M Karras"]).unwrap().sampler.unwrap();
        assert_eq!((asked.kind, asked.schedule), (SamplerKind::Dpmpp2m, Some(SigmaSchedule::Karras)));
        let message = request(&["--sampler", "eulr"]).unwrap_err();
        assert!(message.contains("did you mean euler"), "{message}");
        assert!(request(&["--scheduler", "karas"]).unwrap_err().contains("did you mean karras"));
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
        let over = |line: &[&str]| request_over(&base, line);
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
        let over = |line: &[&str]| request_over(&levels, line);
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
