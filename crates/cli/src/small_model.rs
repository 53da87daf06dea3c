//! The small model that is a part of the program, and the line of a run that names no model.

use kiln_engine::ModelFolder;

/// Says that this program contains the small model, if it was built with it.
pub fn provide() {
    #[cfg(feature = "small-model")]
    kiln_models::set_built_in(kiln_small_model::folder);
}

/// Deletes the temporary copy of a process that has no cache folder.
pub fn clean_up() {
    #[cfg(feature = "small-model")]
    kiln_small_model::remove_temporary();
}

/// The line that says which model a run without `--model` uses. Programs read the name from the event of the job.
pub fn announce(model: &ModelFolder) {
    if !crate::status::is_json() {
        tell!("{}", line(&model.name()));
    }
}

/// The default is always the model of this name, also if a folder of the user has it.
fn line(name: &str) -> String {
    format!(
        "no --model was given: using {name}, the small model that comes with Kiln and draws single emoji; kiln pull lists models \
         for everything else"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_names_the_model_and_the_command() {
        let text = line("emoji");
        assert!(
            text.contains("using emoji, the small model") && text.contains("kiln pull") && !text.contains('\n'),
            "{text}"
        );
    }
}
