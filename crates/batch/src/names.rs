//! Names of image files relative to the set's folder.

use std::path::{Component, Path};

use kiln_files::name_problem;

const INDEX: &str = "{index}";
const SEED: &str = "{seed}";
/// The default pattern.
const DEFAULT_PATTERN: &str = "{index}-{seed}.png";

/// The maximum bytes of a file name on common file systems.
const MAX_NAME: usize = 255;

/// Checks that a pattern names a file below the folder, and returns its normal form for comparisons: `d//a.png` is
/// `d/a.png`.
pub(crate) fn check_pattern(pattern: &str) -> Result<String, String> {
    if pattern.replace(INDEX, "").replace(SEED, "").contains(['{', '}']) {
        let pattern = pattern.escape_debug();
        return Err(format!("output: '{pattern}' has placeholders other than {{index}} and {{seed}}"));
    }
    check_file(pattern).map_err(|problem| format!("output: {problem}"))
}

/// Checks that a name is an image file below the folder, and returns it with single separators.
pub(crate) fn check_file(name: &str) -> Result<String, String> {
    let (path, shown) = (Path::new(name), name.escape_debug());
    let below = path.components().all(|part| matches!(part, Component::Normal(_)));
    if name.is_empty() || name.ends_with('/') || !below || name.contains(char::is_control) {
        return Err(format!("'{shown}' is not a name below the output folder, such as cats/{{seed}}.png"));
    }
    if !name.to_ascii_lowercase().ends_with(".png") {
        return Err(format!("'{shown}' does not end in .png, the only format that is written"));
    }
    let mut parts = path.components().filter_map(|part| part.as_os_str().to_str());
    if parts.any(|part| part.len() > MAX_NAME) {
        return Err(format!("'{shown}' has a part of more than {MAX_NAME} bytes"));
    }
    let parts: Vec<&str> = path.components().filter_map(|part| part.as_os_str().to_str()).collect();
    if let Some(problem) = parts.iter().find_map(|part| name_problem(part)) {
        return Err(format!("'{shown}' {problem}"));
    }
    Ok(parts.join("/"))
}

/// The pattern for several images: with `-{index}` before the extension if it has no placeholder.
pub(crate) fn with_index(pattern: &str) -> String {
    match is_fixed(pattern) {
        true => with_suffix(pattern, "-{index}"),
        false => pattern.into(),
    }
}

/// Whether all images of the pattern have the same name.
pub(crate) fn is_fixed(pattern: &str) -> bool {
    !pattern.contains(INDEX) && !pattern.contains(SEED)
}

/// The name of image `number` with `seed`.
pub(crate) fn file_name(pattern: Option<&str>, number: usize, seed: u64) -> String {
    let pattern = pattern.unwrap_or(DEFAULT_PATTERN);
    pattern.replace(INDEX, &format!("{number:05}")).replace(SEED, &seed.to_string())
}

/// A name with `suffix` before its extension.
pub(crate) fn with_suffix(name: &str, suffix: &str) -> String {
    let (stem, ending) = name.split_at(name.len() - ".png".len());
    format!("{stem}{suffix}{ending}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_below_the_folder() {
        let long = format!("{}.png", "a".repeat(MAX_NAME));
        for bad in [
            "",
            "/etc/a.png",
            "../a.png",
            "a/../../b.png",
            "a.jpg",
            "a",
            "{sed}.png",
            "a/",
            "{{index}}.png",
            "\0.png",
            "a\u{1b}[2J.png",
            "a\n.png",
            &long,
        ] {
            assert!(check_pattern(bad).unwrap_err().starts_with("output: '"), "{bad}");
        }
        for good in ["a.png", "cats/{seed}.PNG", "{index}-{seed}.png"] {
            assert_eq!(check_pattern(good), Ok(good.to_string()));
        }
        assert_eq!(check_file("cats//a/./b.png"), Ok("cats/a/b.png".into()));
        // A backslash separates on Windows, and is part of a name elsewhere; journals have slashes.
        let back = check_file(r"cats\b.png").unwrap();
        assert_eq!(back, if cfg!(windows) { "cats/b.png" } else { r"cats\b.png" });
        for name in [r"C:\b.png", "c:b.png", "con/b.png", "nul.png"] {
            assert_eq!(check_file(name).is_err(), cfg!(windows), "{name}");
        }
    }

    #[test]
    fn placeholders_are_filled_in() {
        assert_eq!(file_name(None, 12, 42), "00012-42.png");
        assert_eq!(file_name(Some("cats/{seed}.png"), 12, 42), "cats/42.png");
        assert_eq!(with_index("cats.png"), "cats-{index}.png");
        assert_eq!(with_index("{seed}.png"), "{seed}.png");
        assert_eq!(with_suffix("a.PNG", "-2"), "a-2.PNG");
    }
}
