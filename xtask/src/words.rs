//! Phrases that readers of this field do not know, with replacements.
//!
//! A phrase has a budget: the maximum number of its occurrences in prose, which is documents, comments and messages. A
//! budget may only decrease. A new phrase starts with its current count, so that no new text uses it.
//! Some folders are free of all phrases, and stay so.

use std::path::Path;
use std::process::Command;

use crate::workspace::{read, root};
use crate::{Result, sentences};

/// The phrase, its replacement, and its budget.
type Row = (&'static str, &'static str, usize);

#[rustfmt::skip]
const PHRASES: &[Row] = &[
    ("in the place of", "instead of", 6),
    ("anew", "again", 1),
    ("is told", "is reported", 1),
    ("are told", "are reported", 0),
    ("tells", "reports, shows, prints", 5),
    ("told", "reported, shown", 36),
    ("beside", "next to, with, in parallel with; or name the thing", 26),
    ("card", "GPU", 19),
    ("cards", "GPUs", 11),
    ("processor", "CPU", 30),
    ("picture", "image", 19),
    ("pictures", "images", 23),
    ("what is drawn", "the images", 0),
    ("nobody", "no one, or name the subject", 9),
    ("for who", "for those who", 0),
    ("whose it is", "its owner, or name it", 0),
    ("foreseen", "prefetched, expected", 2),
    ("page-locked", "pinned", 2),
];

/// Folders in which no phrase may occur.
const CLEAN: [&str; 11] = [
    "crates/clip/",
    "crates/files/",
    "crates/media/",
    "crates/models/",
    "crates/nn/",
    "crates/prompt/",
    "crates/scheduler/",
    "crates/testkit/",
    "crates/unet/",
    "crates/vae/",
    "crates/weights/",
];

/// Phrases in those folders that are names in other programs' files or in fixtures.
const NAMES: [(&str, &str); 3] = [
    ("crates/scheduler/tests/scheduler/rng_cuda.rs", "card"),
    ("crates/vae/tests/vae/taesd.rs", "picture"),
    ("crates/weights/src/lora/role.rs", "processor"),
];

/// The file types to check.
const ENDINGS: [&str; 5] = [".rs", ".md", ".cu", ".cuh", ".sh"];

/// Fails if a phrase exceeds its budget. With `every` it prints all counts.
pub fn check(every: bool) -> Result {
    let mut texts = Vec::new();
    for path in tracked()? {
        // These files contain the phrases.
        let lists = ["xtask/src/words.rs", "xtask/src/sentences.rs"];
        if ENDINGS.iter().any(|ending| path.ends_with(ending)) && !lists.contains(&path.as_str()) {
            texts.push((read(&root().join(&path))?, path));
        }
    }
    let mut over = sentences::check(&texts, every);
    texts.iter_mut().for_each(|(text, _)| *text = text.to_lowercase());
    for &(phrase, instead, budget) in PHRASES {
        let places: Vec<_> =
            texts.iter().filter_map(|(text, path)| Some((count(text, phrase), path)).filter(|c| c.0 > 0)).collect();
        let found: usize = places.iter().map(|place| place.0).sum();
        let wrong = places.iter().filter(|place| is_clean(place.1, phrase));
        over.extend(wrong.map(|place| format!("{}: \"{phrase}\" may not occur here (write: {instead})", place.1)));
        if every {
            println!("{found:5} of {budget:5}  {phrase}");
        }
        if found > budget {
            let most = places.iter().max_by_key(|place| place.0).map_or("", |place| place.1);
            over.push(format!(
                "\"{phrase}\" occurs {found} times, the budget is {budget} (write: {instead}); most in {most}"
            ));
        } else if found < budget {
            println!("\"{phrase}\": lower its budget from {budget} to {found} in xtask/src/words.rs");
        }
    }
    if over.is_empty() { Ok(()) } else { Err(over.join("\n       ").into()) }
}

/// Whether `phrase` may not occur in the file at `path`.
fn is_clean(path: &str, phrase: &str) -> bool {
    CLEAN.iter().any(|folder| path.starts_with(folder)) && !NAMES.contains(&(path, phrase))
}

/// All files in git, and those that could be added.
fn tracked() -> Result<Vec<String>> {
    let args = ["ls-files", "--cached", "--others", "--exclude-standard", "--deduplicate"];
    let output = Command::new("git").args(args).current_dir(root()).output()?;
    let list = String::from_utf8(output.stdout)?;
    let exists = |path: &&str| Path::new(&root()).join(path).is_file();
    Ok(list.lines().filter(exists).map(str::to_string).collect())
}

/// Counts a phrase in a text as whole words. A space matches any white space, including a line break followed by the
/// start of a comment.
fn count(text: &str, phrase: &str) -> usize {
    let words: Vec<&str> = phrase.split(' ').collect();
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let tokens: Vec<&str> = text.split(|c: char| !is_word(c) && c != '-').filter(|token| !token.is_empty()).collect();
    tokens.windows(words.len()).filter(|window| *window == words.as_slice()).count()
}

#[cfg(test)]
mod tests {
    use super::{count, is_clean};

    #[test]
    fn phrases_are_found_across_lines_as_whole_words() {
        assert_eq!(count("in the place\n/// of it, in the place of that", "in the place of"), 2);
        assert_eq!(count("renewed anew, anew_one", "anew"), 1);
    }

    #[test]
    fn clean_folders_have_no_phrase_except_names() {
        assert!(is_clean("crates/vae/src/tiling.rs", "picture"));
        assert!(!is_clean("crates/vae/tests/vae/taesd.rs", "picture"));
        assert!(!is_clean("crates/cli/src/lib.rs", "picture"));
    }
}
