//! The help of long commands: groups of flags, what the short help shows, and examples.
//!
//! The flags themselves are defined where they are read. A flag of the table of options is in the group of its row; the groups here
//! have all others by their identifiers.

use clap::{Arg, Command, CommandFactory};
use kiln_engine::{NetworkOptions, OptionGroup, RefinerOptions, find_option};

use crate::args::Args;

/// The headings in their order.
const HEADINGS: [&str; 16] = [
    PROMPT, JOBS, SERVER, IMAGE, SAMPLING, NETWORK, INPUT, HIRES, REFINER, ADAPTERS, OUTPUT, DEVICE, MEMORY, ACCESS,
    TRACING, MESSAGES,
];
const PROMPT: &str = "Prompt and model";
const JOBS: &str = "Jobs";
const SERVER: &str = "Server";
const IMAGE: &str = "Size, seed and steps";
const SAMPLING: &str = "Sampler, guidance and noise";
const NETWORK: &str = "Attention guidance, FreeU, caches and deep shrink";
const INPUT: &str = "Input image";
const HIRES: &str = "Hires fix";
const REFINER: &str = "Refiner";
const ADAPTERS: &str = "LoRAs, control networks, image prompts and reference images";
const OUTPUT: &str = "Output";
const DEVICE: &str = "Device and types";
const MEMORY: &str = "Memory (no flag is needed; no flag changes the image)";
/// The heading over flags about access to a server.
pub const ACCESS: &str = "Access and limits";
const TRACING: &str = "Tracing";
/// The heading over the flags that all commands have.
pub const MESSAGES: &str = "Messages";

/// Arguments that are no options of a request, by heading.
const GROUPS: &[(&str, &[&str])] = &[
    (
        PROMPT,
        &[
            "model",
            "prompt_flag",
            "preset",
            "like",
            "config",
            "offline",
            "prediction",
            "unet",
            "vae",
            "text_encoder",
            "no_t5",
            "taesd",
        ],
    ),
    (IMAGE, &["batch_size"]),
    (INPUT, &["init", "img2img"]),
    (REFINER, &["refiner"]),
    (ADAPTERS, &["loras", "controls", "ip_adapters", "references", "reference_size", "lora_dir", "embeddings_dir"]),
    (
        OUTPUT,
        &[
            "output",
            "overwrite",
            "json",
            "png_level",
            "preview",
            "preview_every",
            "preview_method",
            "preview_taesd",
            "latents_out",
        ],
    ),
    (
        DEVICE,
        &[
            "device",
            "dtype",
            "weight_type",
            "compute",
            "scales",
            "threads",
            "parallel",
            "weight_cache",
            "prompt_cache",
            "link",
            "measure_link",
        ],
    ),
    (
        MEMORY,
        &[
            "medvram",
            "lowvram",
            "highvram",
            "vram_budget",
            "vae_slicing",
            "vae_tiling",
            "vae_tile_size",
            "cuda_malloc",
            "cuda_stream",
            "pin_shared_memory",
        ],
    ),
    (TRACING, &["trace", "memory_trace"]),
];

/// Flags that the short help shows, with a short text where the first sentence of the long one is too long.
const SHORT: &[(&str, &str)] = &[
    ("model", "A file, a folder, a name, or hf:OWNER/NAME"),
    ("negative_prompt", "The negative prompt"),
    ("like", "The settings of an image, for all other flags"),
    ("width", ""),
    ("height", ""),
    ("steps", ""),
    ("cfg_scale", "Strength of classifier-free guidance; 1 turns it off"),
    ("seed", "Seed of the first image. Default: random"),
    ("batch_count", ""),
    ("sampler", "The sampler, such as euler: kiln samplers lists them"),
    ("scheduler", "The spacing of the noise levels: karras and others"),
    ("init", "The image to begin with, or -"),
    ("mask", "Keeps the image where the mask is black"),
    ("strength", "How much changes, 0 to 1"),
    ("hires_scale", "Size of a second pass, as a factor of both sides"),
    ("loras", "A LoRA, with its strength"),
    ("controls", "A control network with its image"),
    ("ip_adapters", "An image as a prompt"),
    ("output", "A name, a pattern with {seed}, or a folder"),
    ("overwrite", "Replaces existing files"),
    ("preview", "Shows images as they develop"),
    ("device", "auto, cpu, cuda or cuda:N"),
    ("help", ""),
    ("verbose", ""),
    ("quiet", ""),
];

/// The arrangement of one command.
struct Layout {
    command: &'static str,
    /// The heading of arguments that have none here.
    others: &'static str,
    /// Arguments that have another heading than in [`GROUPS`].
    groups: &'static [(&'static str, &'static [&'static str])],
    /// More flags of the short help, and other texts than in [`SHORT`].
    short: &'static [(&'static str, &'static str)],
    examples: &'static str,
}

const LAYOUTS: [Layout; 5] = [
    Layout {
        command: "txt2img",
        others: PROMPT,
        groups: &[],
        short: &[],
        examples: "\
Examples:
  kiln txt2img -m hf:stabilityai/sd-turbo \"a fox\" --steps 1 --cfg-scale 1
  kiln txt2img -m sdxl.safetensors \"a fox\" --lora ink.safetensors:0.8
  kiln txt2img --like fox.png -s 43 -b 4 -o \"{seed}.png\"",
    },
    Layout {
        command: "img2img",
        others: PROMPT,
        groups: &[],
        short: &[],
        examples: "\
Examples:
  kiln img2img -m sdxl.safetensors \"a storm\" -i sea.png --strength 0.6
  kiln img2img -m sdxl.safetensors \"a stormy sky\" -i sea.png --mask sky.png
  kiln img2img -m sdxl.safetensors \"a coast\" -i sea.png --extend left=128",
    },
    Layout {
        command: "batch",
        others: JOBS,
        groups: &[(JOBS, &["batch_size"])],
        short: &[
            ("jobs", "Jobs: JSON Lines (.jsonl), CSV, or a prompt a line; - is the standard input"),
            ("output", "The folder for the images, the journal and the index"),
            ("set", ""),
            ("grid", "A field with several values, all combined: seed=1..4, cfg=3,7"),
            ("shard", ""),
            ("retry", ""),
            ("batch_size", "Number of images in a batch. Default: auto"),
            ("check", ""),
            ("contact_sheet", "Writes all images, small and labeled, into one .png file"),
        ],
        examples: "\
Examples:
  kiln batch -m dreamshaper.safetensors prompts.txt -o images --set steps=30
  kiln batch -m dreamshaper.safetensors jobs.jsonl -o images --shard 2/8
  kiln batch --set prompt=\"a fox\" --grid seed=1..4 --grid cfg=3,7 -o grid",
    },
    Layout {
        command: "serve",
        others: SERVER,
        groups: &[(SERVER, &["output", "upscaler_dir"])],
        short: &[
            ("model", "A model that requests can name. Can be repeated"),
            ("listen", ""),
            ("max_batch", ""),
            ("queue", ""),
            ("output", "A folder into which all images are written"),
            ("control_dir", ""),
            ("upscaler_dir", ""),
            ("lora_dir", "The folder of LoRAs that prompts name"),
            ("api_key", ""),
            ("api_auth", "Users and passwords, one of which requests must have"),
            ("tls_cert", ""),
            ("tls_key", ""),
        ],
        examples: "\
Examples:
  kiln serve -m dreamshaper.safetensors
  kiln serve -m sdxl.safetensors -m sd15.safetensors --lora-dir loras
  kiln serve -m sdxl.safetensors --listen 0.0.0.0:7860 --api-key \"$KEY\"",
    },
    Layout {
        command: "plan",
        others: IMAGE,
        groups: &[(MEMORY, &["vram_budget"])],
        short: &[
            ("preset", "A model whose configuration is part of the program"),
            ("vram_budget", ""),
            ("hires_upscaler", ""),
            ("json", ""),
            ("dtype", ""),
        ],
        examples: "\
Examples:
  kiln plan -m dreamshaper.safetensors -W 768 -H 768 --batch-size auto
  kiln plan sdxl-1024 --vram-budget 6G",
    },
];

/// The command line with its groups and examples.
pub fn command() -> Command {
    let mut order = 0;
    Args::command().mut_subcommands(|command| {
        order += 1;
        let layout = LAYOUTS.iter().find(|layout| layout.command == command.get_name());
        layout.map_or_else(|| command.clone(), |layout| arranged(&command, layout)).display_order(order)
    })
}

/// A command whose arguments are sorted by heading: help shows headings in the order of arguments.
fn arranged(command: &Command, layout: &Layout) -> Command {
    let mut args: Vec<Arg> = command.get_arguments().map(|arg| in_group(arg.clone(), layout)).collect();
    // The model is first of its group.
    args.sort_by_key(|arg| {
        (HEADINGS.iter().position(|heading| Some(*heading) == arg.get_help_heading()), arg.get_id() != "model")
    });
    let args = args.into_iter().enumerate().map(|(order, arg)| match arg.is_positional() {
        true => arg,
        false => arg.display_order(order),
    });
    let about = command.get_about().cloned().unwrap_or_default();
    let more = format!("{}\n\nkiln {} --help shows all flags.", layout.examples, layout.command);
    Command::new(layout.command)
        .about(about)
        .args(args)
        .groups(command.get_groups().cloned())
        .after_help(more)
        .after_long_help(layout.examples)
}

/// An argument with its heading, its short text, and whether the short help shows it.
fn in_group(arg: Arg, layout: &Layout) -> Arg {
    let id = arg.get_id().to_string();
    let long = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
    let find = |list: &'static [(&str, &'static str)]| list.iter().find(|(name, _)| *name == id).map(|(_, text)| *text);
    let short = find(layout.short).or_else(|| find(SHORT));
    let heading = heading(&id, arg.get_help_heading(), layout);
    let text = short.filter(|text| !text.is_empty()).map_or_else(|| first_sentence(&long), String::from);
    let arg = arg.hide_short_help(short.is_none()).help(text).long_help(long);
    if arg.is_positional() { arg } else { arg.help_heading(heading) }
}

/// The heading of an argument.
fn heading(id: &str, own: Option<&str>, layout: &Layout) -> &'static str {
    let find = |groups: &'static [(&'static str, &'static [&'static str])]| {
        groups.iter().find(|(_, ids)| ids.contains(&id)).map(|(heading, _)| *heading)
    };
    let known = own.and_then(|own| HEADINGS.into_iter().find(|heading| *heading == own));
    find(layout.groups).or_else(|| find(GROUPS)).or(known).or_else(|| of_option(id)).unwrap_or(layout.others)
}

/// The heading of an option of a request.
fn of_option(id: &str) -> Option<&'static str> {
    let row = find_option(id)?;
    Some(match row.group {
        _ if NetworkOptions::NAMES.contains(&row.name) => NETWORK,
        _ if RefinerOptions::NAMES.contains(&row.name) => REFINER,
        OptionGroup::Prompt => PROMPT,
        OptionGroup::Sampling => SAMPLING,
        OptionGroup::Input => INPUT,
        OptionGroup::Hires => HIRES,
        _ => IMAGE,
    })
}

/// The first sentence of a help text, without the full stop at its end.
fn first_sentence(text: &str) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let end = text.match_indices(". ").map(|(at, _)| at).find(|at| text[at + 2..].starts_with(char::is_uppercase));
    text[..end.unwrap_or(text.len())].trim_end_matches('.').to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(name: &str) -> Command {
        command().find_subcommand(name).unwrap().clone()
    }

    /// The width of a usual terminal.
    const COLUMNS: usize = 80;

    #[test]
    fn the_short_help_fits_a_screen_and_the_long_one_has_everything() {
        for Layout { command: name, .. } in LAYOUTS {
            let mut command = command().term_width(COLUMNS);
            command.build();
            let command = command.find_subcommand_mut(name).unwrap();
            let (short, long) = (command.render_help().to_string(), command.render_long_help().to_string());
            let lines = short.lines().count();
            assert!(lines <= 50, "kiln {name} -h has {lines} lines:\n{short}");
            for text in [&short, &long] {
                assert!(text.contains("Examples:\n  kiln "), "{text}");
            }
            for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
                let flag = arg
                    .get_long()
                    .map_or_else(|| arg.get_value_names().unwrap()[0].to_string(), |long| format!("--{long}"));
                assert!(long.contains(&flag), "{flag} is not in kiln {name} --help");
            }
        }
    }

    /// A terminal does not break them, so that they can be copied.
    #[test]
    fn an_example_is_a_line_that_begins_with_the_model() {
        for Layout { command, examples, .. } in LAYOUTS {
            for line in examples.lines().skip(1) {
                assert!(line.len() <= COLUMNS - 2 && line.starts_with(&format!("  kiln {command} ")), "{line}");
                let model = line.find(" -m ").is_none_or(|at| at == "  kiln ".len() + command.len());
                assert!(model, "the model is not first: {line}");
            }
        }
    }

    #[test]
    fn headings_are_in_their_order_and_no_flag_has_none() {
        for Layout { command: name, .. } in LAYOUTS {
            let command = layout(name);
            let places: Vec<Option<usize>> = command
                .get_arguments()
                .filter(|arg| !arg.is_positional())
                .map(|arg| HEADINGS.iter().position(|heading| Some(*heading) == arg.get_help_heading()))
                .collect();
            assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{name}: {places:?}");
        }
    }

    #[test]
    fn constants_name_arguments() {
        let all: Vec<String> = LAYOUTS
            .iter()
            .flat_map(|layout_of| {
                let command = layout(layout_of.command);
                command.get_arguments().map(|arg| arg.get_id().to_string()).collect::<Vec<_>>()
            })
            .chain(["help", "verbose", "quiet", "check"].map(String::from))
            .collect();
        let in_groups = GROUPS.iter().flat_map(|(_, ids)| ids.iter());
        let in_layouts = LAYOUTS.iter().flat_map(|layout| layout.short.iter().map(|(id, _)| id));
        for id in in_groups.chain(SHORT.iter().map(|(id, _)| id)).chain(in_layouts) {
            assert!(all.iter().any(|name| name == id), "{id}");
        }
    }

    #[test]
    fn a_sentence_ends_before_the_next_one() {
        assert_eq!(first_sentence("Number of steps. Default: 20."), "Number of steps");
        assert_eq!(first_sentence("As in\n a1111 vs. diffusers."), "As in a1111 vs. diffusers");
    }
}
