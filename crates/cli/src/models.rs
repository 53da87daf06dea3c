//! `kiln models`: the models on this machine, with the argument for each.

use kiln_engine::Result;
use kiln_models::{InstalledModel, InstalledPlace, built_in_name, installed};
use serde_json::json;

use crate::args::ModelsArgs;
use crate::output::{print, print_json};
use crate::table::{counted, size, table};

/// Runs the command.
pub fn run(args: &ModelsArgs) -> Result<()> {
    let places = installed(args.folder.as_deref())?;
    let built_in = built_in_name().filter(|_| args.folder.is_none());
    if args.json {
        print_json(&json!({ "built_in": built_in, "places": places }));
    } else {
        print(&text(&places, built_in));
    }
    Ok(())
}

fn text(places: &[InstalledPlace], built_in: Option<&str>) -> String {
    let models = || places.iter().flat_map(|place| &place.models);
    let rows: Vec<Vec<String>> = models().map(row).collect();
    let lines = table(&rows, 3);
    let mut lines = lines.lines();
    let mut text = String::new();
    for InstalledPlace { title, path, models, others, is_cut } in places {
        text += &format!("{title}: {}\n", path.display());
        for model in models {
            text += &format!("{}\n", lines.next().unwrap_or_default());
            text +=
                &model.problem.as_ref().map_or_else(String::new, |problem| format!("      {}\n", one_line(problem)));
        }
        let kiln = format!("kiln inspect {} lists them", quoted(&path.display().to_string()));
        match (others, is_cut) {
            (_, true) => text += "  there are more files than are opened\n",
            (0, false) => {}
            (others, false) => {
                text += &format!("  and {} that {}; {kiln}\n", counted(*others, "file"), are_no_models(*others))
            }
        }
    }
    match built_in {
        Some(name) => {
            text += &format!("in the program:\n  -m {name}  the small model that comes with Kiln, the default\n")
        }
        None if places.is_empty() => text += "no models; kiln pull lists models to download\n",
        None => {}
    }
    text
}

fn are_no_models(count: usize) -> &'static str {
    if count == 1 { "is no model" } else { "are no models" }
}

fn row(model: &InstalledModel) -> Vec<String> {
    let InstalledModel { what, dtype, bytes, option, argument, .. } = model;
    let flag = match option {
        Some("unet") => "--unet ",
        Some(_) => "-m ",
        None => "",
    };
    vec![format!("  {flag}{}", quoted(argument)), what.clone(), dtype.clone().unwrap_or_default(), size(*bytes)]
}

/// The reason on one line, and not longer than a few.
fn one_line(problem: &str) -> String {
    const LONGEST: usize = 300;
    problem.replace('\n', " ").chars().take(LONGEST).collect()
}

/// A text as a word of a shell.
fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_./:@+,=\\".contains(c);
    match text.chars().all(is_plain) && !text.starts_with('-') {
        true => text.into(),
        false if cfg!(windows) => format!("\"{text}\""),
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_words_of_a_shell() {
        assert_eq!(quoted("hf:stabilityai/sd-turbo"), "hf:stabilityai/sd-turbo");
        if !cfg!(windows) {
            assert_eq!(quoted("my model's.safetensors"), r"'my model'\''s.safetensors'");
        }
    }

    #[test]
    fn each_model_is_a_line_with_its_argument() {
        let model = |argument: &str, problem: Option<&str>| InstalledModel {
            what: "Stable Diffusion XL".into(),
            dtype: Some("F16".into()),
            bytes: 7 << 30,
            option: problem.is_none().then_some("model"),
            argument: argument.into(),
            path: argument.into(),
            problem: problem.map(String::from),
        };
        let models = vec![model("a.safetensors", None), model("b.safetensors", Some("is cut\noff"))];
        let place = InstalledPlace { title: "KILN_MODELS".into(), path: "/m".into(), models, others: 1, is_cut: false };
        let expected = "KILN_MODELS: /m\n  -m a.safetensors  Stable Diffusion XL  F16  7.00 GiB\n  \
                        b.safetensors     Stable Diffusion XL  F16  7.00 GiB\n      is cut off\n  \
                        and 1 file that is no model; kiln inspect /m lists them\n";
        assert_eq!(text(&[place], None), expected);
        assert!(text(&[], None).contains("kiln pull"));
        assert!(text(&[], Some("emoji")).contains("-m emoji"));
    }
}
