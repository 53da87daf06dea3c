//! Arguments that follow from the table of options.
//!
//! An option's flag is its name with hyphens, its help, range and default are those of its row. What the command line has
//! beside that stands in the constants here.

use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, value_parser};
use kiln_engine::{
    OPTIONS, OptionGroup, OptionKind, OptionRow, Request, ScheduleChoice, SigmaSchedule, find_option, respell,
};

use crate::flags::{flag, spell};

/// Flags of one letter.
const SHORT: [(&str, char); 5] =
    [("negative_prompt", 'n'), ("width", 'W'), ("height", 'H'), ("seed", 's'), ("batch_count", 'b')];
/// Options whose arguments differ from their values: a prompt may be given without a flag, LoRAs, controls, IP-Adapters and input images are
/// given one by one, and the batch size may be chosen by Kiln.
const BY_HAND: [&str; 6] = ["prompt", "loras", "controls", "ip_adapters", "batch_size", "init"];
/// Options with an environment variable.
const VARIABLES: [(&str, &str); 1] = [("upscaler_dir", "KILN_UPSCALERS")];
/// Options that cannot be given together.
const CONFLICTS: [(&str, &str); 1] = [("sigmas", "scheduler")];
/// The heading over the options of the sampler.
const SAMPLING: &str = "Sampler, guidance and noise";
/// The heading over the options of input images.
pub const INPUT: &str = "Input image";
/// The heading over the options of the second pass.
const HIRES: &str = "Hires fix";
/// Options that replace others of an image's settings; they are applied before what those settings have for another sampler
/// is removed.
const FIRST: [&str; 4] = ["sampler", "scheduler", "convention", "sigmas"];

/// The options that were given as arguments.
#[derive(Debug, Clone, Default)]
pub struct OptionArgs {
    values: Request,
    given: Vec<&'static OptionRow>,
}

/// The options of input images that were given as arguments.
#[derive(Debug, Clone, Default)]
pub struct InputArgs(OptionArgs);

/// The options of a second pass that were given as arguments.
#[derive(Debug, Clone, Default)]
pub struct HiresArgs(OptionArgs);

/// Which command has an argument.
#[derive(Clone, Copy, PartialEq)]
enum Owner {
    /// Every one that makes images.
    Common,
    /// The one with input images.
    Input,
    /// The one with a second pass.
    Hires,
}

/// The options with an argument.
fn rows(owner: Owner) -> impl Iterator<Item = &'static OptionRow> {
    let is_asked = move |row: &&OptionRow| match row.group {
        OptionGroup::Internal => false,
        OptionGroup::Input => owner == Owner::Input,
        OptionGroup::Hires => owner == Owner::Hires,
        _ => owner == Owner::Common,
    };
    OPTIONS.iter().filter(is_asked).filter(|row| !BY_HAND.contains(&row.name))
}

impl HiresArgs {
    /// The request with what was given instead of what it has.
    pub fn apply(&self, mut request: Request) -> Request {
        // A size of an image's settings gives way to another kind of size.
        match (self.0.has("hires_scale"), self.0.has("hires_size")) {
            (true, false) => request.hires_size = None,
            (false, true) => request.hires_scale = None,
            _ => {}
        }
        self.0.given.iter().for_each(|row| row.copy(&self.0.values, &mut request));
        request
    }
}

impl Args for HiresArgs {
    fn augment_args(command: Command) -> Command {
        rows(Owner::Hires).fold(command, |command, row| command.arg(argument(row).help_heading(HIRES)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for HiresArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut args = Self::default();
        args.update_from_arg_matches(matches)?;
        Ok(args)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.0.read(rows(Owner::Hires), matches)
    }
}

impl InputArgs {
    /// The request with what was given instead of what it has.
    pub fn apply(&self, mut request: Request) -> Request {
        self.0.given.iter().for_each(|row| row.copy(&self.0.values, &mut request));
        request
    }
}

impl Args for InputArgs {
    fn augment_args(command: Command) -> Command {
        rows(Owner::Input).fold(command, |command, row| command.arg(argument(row)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for InputArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut args = Self::default();
        args.update_from_arg_matches(matches)?;
        Ok(args)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.0.read(rows(Owner::Input), matches)
    }
}

impl OptionArgs {
    /// Whether an option was given.
    pub fn has(&self, name: &str) -> bool {
        self.given.iter().any(|row| row.name == name)
    }

    /// The request with what was given instead of what it has.
    pub fn apply(&self, mut request: Request) -> Request {
        let (first, others): (Vec<&OptionRow>, Vec<&OptionRow>) =
            self.given.iter().partition(|row| FIRST.contains(&row.name));
        if self.has("steps") {
            request.sigmas = None; // those of an image, which say how many steps there are
        }
        for row in first {
            row.copy(&self.values, &mut request);
            match row.name {
                // The schedule is the one that the sampler's name ends in.
                "sampler" if self.values.sampler.is_some_and(|sampler| sampler.schedule.is_some()) => {
                    request.scheduler = SigmaSchedule::Default
                }
                "scheduler" => {
                    request.sigmas = None;
                    request.sigma_range = self.values.sigma_range.or(request.sigma_range);
                }
                "sigmas" => (request.steps, request.scheduler) = (None, SigmaSchedule::Default),
                _ => {}
            }
        }
        // What the request has for another sampler; what is given here is refused where it does not fit.
        request.drop_unfit();
        for row in others {
            row.copy(&self.values, &mut request);
        }
        if self.has("negative_prompt") {
            request.literal_negative_prompt = false;
        }
        request
    }
}

impl Args for OptionArgs {
    fn augment_args(command: Command) -> Command {
        rows(Owner::Common).fold(command, |command, row| command.arg(argument(row)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for OptionArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut args = Self::default();
        args.update_from_arg_matches(matches)?;
        Ok(args)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.read(rows(Owner::Common), matches)
    }
}

impl OptionArgs {
    /// Reads the arguments of `rows`.
    fn read(
        &mut self,
        rows: impl Iterator<Item = &'static OptionRow>,
        matches: &ArgMatches,
    ) -> Result<(), clap::Error> {
        let is_given = |row: &&OptionRow| {
            matches!(matches.value_source(row.name), Some(ValueSource::CommandLine | ValueSource::EnvVariable))
        };
        for row in rows.filter(is_given) {
            let value = row.value_mut(&mut self.values);
            let read = match row.kind {
                OptionKind::Flag => value.read("on"),
                OptionKind::Folder | OptionKind::File | OptionKind::Model | OptionKind::Upscaler(_) => {
                    matches.get_one::<PathBuf>(row.name).map_or(Ok(()), |path| value.read_path(path))
                }
                _ => matches.get_one::<String>(row.name).map_or(Ok(()), |text| value.read(text)),
            };
            read.map_err(|problem| clap::Error::raw(ErrorKind::ValueValidation, problem))?;
            if row.name == "scheduler" {
                // AUTOMATIC1111's "Karras" says more than the id `karras`.
                let choice = matches.get_one::<String>(row.name).and_then(|name| name.parse::<ScheduleChoice>().ok());
                self.values.sigma_range = choice.and_then(|choice| choice.range);
            }
            self.given.push(row);
        }
        Ok(())
    }
}

/// The argument of an option.
fn argument(row: &'static OptionRow) -> Arg {
    let find = |pairs: &[(&str, char)]| pairs.iter().find(|(name, _)| *name == row.name).map(|(_, short)| *short);
    let aliases: Vec<String> = row.aliases.iter().map(|alias| flag(alias)).collect();
    let mut arg = Arg::new(row.name).long(flag(row.name)).help(help(row)).visible_aliases(aliases);
    if let Some(short) = find(&SHORT) {
        arg = arg.short(short);
    }
    if row.group == OptionGroup::Sampling {
        arg = arg.help_heading(SAMPLING);
    }
    if row.group == OptionGroup::Input {
        arg = arg.help_heading(INPUT);
    }
    for (name, other) in CONFLICTS {
        if name == row.name {
            arg = arg.conflicts_with(other);
        }
    }
    if let Some((_, variable)) = VARIABLES.iter().find(|(name, _)| *name == row.name) {
        arg = arg.env(variable);
    }
    let parser = move |text: &str| {
        let read = row.value_mut(&mut Request::default()).read(text);
        read.map(|()| text.to_string()).map_err(|problem| respell(&problem, &spell))
    };
    match row.kind {
        OptionKind::Flag => return arg.action(ArgAction::SetTrue),
        OptionKind::File => return arg.value_name("IMAGE").value_parser(value_parser!(PathBuf)),
        OptionKind::Model => return arg.value_name("PATH").value_parser(value_parser!(PathBuf)),
        OptionKind::Folder => return arg.value_name("DIR").value_parser(value_parser!(PathBuf)),
        OptionKind::Upscaler(_) => return arg.value_name("NAME|FILE").value_parser(value_parser!(PathBuf)),
        OptionKind::Text | OptionKind::Seed | OptionKind::Offset => arg = arg.allow_hyphen_values(true),
        OptionKind::Whole { .. } | OptionKind::Number { .. } | OptionKind::Side { .. } => {
            arg = arg.allow_negative_numbers(true)
        }
        _ => {}
    }
    arg.value_name(value_name(row.kind)).value_parser(parser)
}

/// How help texts show a value.
fn value_name(kind: OptionKind) -> &'static str {
    match kind {
        OptionKind::Whole { .. } | OptionKind::Seed | OptionKind::Offset => "N",
        OptionKind::Number { .. } => "X",
        OptionKind::Side { .. } => "PIXELS",
        OptionKind::Size => "WxH",
        OptionKind::Choice(_) | OptionKind::Name(_) => "NAME",
        OptionKind::Numbers => "LIST",
        OptionKind::Switch => "on|off",
        OptionKind::Folder => "DIR",
        OptionKind::File => "IMAGE",
        OptionKind::Model => "PATH",
        OptionKind::Borders => "SIDES",
        _ => "TEXT",
    }
}

/// What an option does, its values and its default.
fn help(row: &OptionRow) -> String {
    let mut help = respell(&row.help(), &spelled_by_rule);
    let names = row.kind.names();
    if !names.iter().all(|name| help.contains(name)) {
        help += &format!(" One of {}.", names.join(", "));
    }
    match row.kind {
        OptionKind::Whole { max: usize::MAX, .. } => {}
        OptionKind::Whole { min, max } => help += &format!(" From {min} to {max}."),
        OptionKind::Number { min, max } => help += &format!(" From {min} to {max}."),
        _ => {}
    }
    if !row.default.is_empty() {
        help += &format!(" Default: {}.", row.default);
    }
    help.pop(); // help texts have no full stop at their end
    help
}

/// The flag of an option in a help text, from which the list of flags is made.
fn spelled_by_rule(name: &str) -> Option<String> {
    find_option(name).map(|row| format!("--{}", flag(row.name)))
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use kiln_engine::{Convention, InitialNoise, Rng, SamplerKind, SigmaRange};

    use super::*;
    use crate::args::{Args, Command};

    #[test]
    fn constants_name_options() {
        let pairs = CONFLICTS.iter().flat_map(|(a, b)| [*a, *b]);
        let variables = VARIABLES.map(|(name, _)| name);
        for name in SHORT.map(|(name, _)| name).into_iter().chain(variables).chain(BY_HAND).chain(FIRST).chain(pairs) {
            assert!(OPTIONS.iter().any(|row| row.name == name), "{name}");
        }
    }

    #[test]
    fn help_has_values_range_and_default() {
        let help = |name| help(find_option(name).unwrap());
        assert!(help("rng").ends_with("One of cpu, cuda. Default: cpu"), "{}", help("rng"));
        assert!(help("subseed_strength").ends_with("From 0 to 1. Default: 0"), "{}", help("subseed_strength"));
        assert!(help("chunk_cut").contains("(see --comma-backtrack)"), "{}", help("chunk_cut"));
    }

    fn request(line: &[&str]) -> Result<Request, String> {
        let words = ["kiln", "txt2img", "a pear"].iter().chain(line);
        match Args::try_parse_from(words).map_err(|error| error.to_string())?.command {
            Command::Txt2img(args) => Ok(args.common.request()),
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
                Command::Txt2img(args) => args.common.request_over(base.clone()),
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
                Command::Txt2img(args) => args.common.request_over(levels.clone()),
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
