//! Names of the pictures' files, below the set's folder.

use std::path::{Component, Path};

const INDEX: &str = "{index}";
const SEED: &str = "{seed}";
/// The pattern where a job says none.
const DEFAULT_PATTERN: &str = "{index}-{seed}.png";

/// Refuses a pattern that names no file below the folder.
pub(crate) fn check_pattern(pattern: &str) -> Result<(), String> {
    let below = Path::new(pattern).components().all(|part| matches!(part, Component::Normal(_)));
    if pattern.is_empty() || pattern.ends_with('/') || !below {
        return Err(format!("output: '{pattern}' is no name below the output folder, such as cats/{{seed}}.png"));
    }
    if !pattern.to_ascii_lowercase().ends_with(".png") {
        return Err(format!("output: '{pattern}' does not end in .png, the one format that is written"));
    }
    if pattern.replace(INDEX, "").replace(SEED, "").contains(['{', '}']) {
        return Err(format!("output: '{pattern}' has placeholders other than {{index}} and {{seed}}"));
    }
    Ok(())
}

/// The pattern of several pictures: with `-{index}` before its ending, where it has no placeholder.
pub(crate) fn with_index(pattern: &str) -> String {
    match is_fixed(pattern) {
        true => with_suffix(pattern, "-{index}"),
        false => pattern.into(),
    }
}

/// Whether all pictures of the pattern have one name.
pub(crate) fn is_fixed(pattern: &str) -> bool {
    !pattern.contains(INDEX) && !pattern.contains(SEED)
}

/// The name of picture `number` with `seed`.
pub(crate) fn file_name(pattern: Option<&str>, number: usize, seed: u64) -> String {
    let pattern = pattern.unwrap_or(DEFAULT_PATTERN);
    pattern.replace(INDEX, &format!("{number:05}")).replace(SEED, &seed.to_string())
}

/// A name with `suffix` before its ending.
pub(crate) fn with_suffix(name: &str, suffix: &str) -> String {
    let (stem, ending) = name.split_at(name.len() - ".png".len());
    format!("{stem}{suffix}{ending}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_below_the_folder() {
        for bad in ["", "/etc/a.png", "../a.png", "a/../../b.png", "a.jpg", "a", "{sed}.png", "a/", "{{index}}.png"] {
            assert!(check_pattern(bad).unwrap_err().starts_with("output: '"), "{bad}");
        }
        for good in ["a.png", "cats/{seed}.PNG", "{index}-{seed}.png"] {
            assert_eq!(check_pattern(good), Ok(()));
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
