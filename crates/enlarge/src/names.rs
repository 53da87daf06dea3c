//! Names for upscaled images.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use kiln_files::{FileRules, PlannedFile, check_writable};
use kiln_request::ImageSource;
use kiln_scheduler::number_text;

use kiln_setup::error::{Error, Result};

/// The file's name in a folder.
const DEFAULT_PATTERN: &str = "{stem}-x{scale}.png";
const STEM: &str = "{stem}";
const SCALE: &str = "{scale}";
const INDEX: &str = "{index}";

/// Plans a file for each image. `output` is a folder that exists, or a path whose last part may have `{stem}`, the
/// image's name without its ending, `{scale}`, and `{index}`, the image's number from 1 in four digits.
///
/// # Errors
/// [`Error::Files`] where a name is not possible or exists already, or the folder is missing or takes no files.
pub(super) fn plan(
    output: Option<&Path>,
    overwrite: bool,
    scale: f64,
    sources: &[ImageSource],
) -> Result<Vec<PlannedFile>> {
    let rules = FileRules { field: "output", what: "the images", extensions: &["png"], overwrite };
    let output = output.unwrap_or(Path::new("."));
    let refused = |expected: String| Error::from(rules.refused(output, expected));
    let path = if output.is_dir() { output.join(DEFAULT_PATTERN) } else { output.to_path_buf() };
    let pattern = path.file_name().and_then(|name| name.to_str()).ok_or_else(|| refused("a file's name".into()))?;
    let folder = path.parent().unwrap_or(Path::new(""));
    if let Ok(file) = PlannedFile::named(&path, FileRules { overwrite: true, ..rules })
        && file.is_stream()
    {
        return match sources.len() {
            1 => Ok(vec![file]),
            _ => Err(refused("a folder, since there are several images; this takes one".into())),
        };
    }
    if !pattern.to_ascii_lowercase().ends_with(".png") {
        return Err(refused(
            "a name that ends in .png, the one format that is written, or a folder that is there".into(),
        ));
    }
    if [STEM, SCALE, INDEX].iter().fold(pattern.to_string(), |rest, name| rest.replace(name, "")).contains(['{', '}']) {
        return Err(refused("no placeholders but {stem}, {scale} and {index}".into()));
    }
    if sources.len() > 1 && !pattern.contains(STEM) && !pattern.contains(INDEX) {
        return Err(refused("a folder, or a name with {stem} or {index}, since there are several images".into()));
    }
    check_writable(&folder.join("x.png"), rules.what)?;
    let mut taken: HashMap<PathBuf, &ImageSource> = HashMap::new();
    let mut files = Vec::with_capacity(sources.len());
    for (i, source) in sources.iter().enumerate() {
        // The stem last: it may have braces of its own.
        let name = pattern.replace(SCALE, &number_text(scale)).replace(INDEX, &format!("{:04}", i + 1));
        let path = folder.join(name.replace(STEM, &source.stem()));
        if let Some(other) = taken.insert(path.clone(), source) {
            let [a, b] = [other, source].map(ImageSource::name);
            return Err(refused(format!("different names for {a} and {b}, such as '{{index}}-{{stem}}.png'")));
        }
        let file = PlannedFile::named(&path, rules)?;
        if file.is_stream() {
            return Err(refused(format!("names of regular files; {} is none", path.display())));
        }
        files.push(file);
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(output: &Path, sources: &[&str]) -> std::result::Result<Vec<String>, String> {
        let sources: Vec<_> = sources.iter().map(|name| ImageSource::from(PathBuf::from(name))).collect();
        let files = plan(Some(output), false, 1.5, &sources).map_err(|error| error.to_string())?;
        Ok(files.iter().map(|file| file.path().file_name().unwrap().to_str().unwrap().to_string()).collect())
    }

    #[test]
    fn names_come_from_the_images() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("old.png"), "").unwrap();
        assert_eq!(names(folder.path(), &["a/x.jpg", "-"]).unwrap(), ["x-x1.5.png", "stdin-x1.5.png"]);
        assert_eq!(names(&path("{index}_{stem}.png"), &["a/x.jpg", "b/x.gif"]).unwrap(), ["0001_x.png", "0002_x.png"]);
        assert_eq!(names(&path("large.PNG"), &["{scale}.jpg"]).unwrap(), ["large.PNG"]);
        assert_eq!(names(folder.path(), &["{scale}.jpg"]).unwrap(), ["{scale}-x1.5.png"]);
        for (output, sources, told) in [
            (path("a.png"), &["x.png", "y.png"][..], "a folder, or a name with {stem} or {index}"),
            (
                folder.path().into(),
                &["a/x.png", "b/x.jpg"],
                "different names for a/x.png and b/x.jpg, such as '{index}",
            ),
            (path("{seed}.png"), &["x.png"], "no placeholders but {stem}, {scale} and {index}"),
            (path("a.jpg"), &["x.png"], "a name that ends in .png"),
            (path("old.png"), &["x.png"], "old.png exists already"),
            (path("no/a.png"), &["x.png"], "no: not found; looked for a folder for the images; create it first"),
        ] {
            let message = names(&output, sources).unwrap_err();
            assert!(message.contains(told), "{output:?}: {message}");
        }
    }
}
