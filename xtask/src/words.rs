//! Words that readers of this field do not know, and what to write in their place.
//!
//! A phrase has a budget: how often it may stand in prose, which is documents, comments and texts of the programs. A budget
//! may only fall. A new phrase begins with its count of that day, so that no new text uses it.

use std::path::Path;
use std::process::Command;

use crate::Result;
use crate::workspace::{read, root};

/// Phrase, what to write, and how often the phrase is still allowed.
type Row = (&'static str, &'static str, usize);

#[rustfmt::skip]
const PHRASES: &[Row] = &[
    ("in the place of", "instead of", 46),
    ("anew", "again", 20),
    ("is told", "is reported", 32),
    ("are told", "are reported", 11),
    ("tells", "reports, shows, prints", 52),
    ("told", "reported, shown", 205),
    ("beside", "next to, with, in parallel with; or name the thing", 213),
    ("card", "GPU", 265),
    ("cards", "GPUs", 24),
    ("processor", "CPU", 121),
    ("picture", "image", 545),
    ("pictures", "images", 371),
    ("what is drawn", "the images", 6),
    ("nobody", "no one, or name the subject", 61),
    ("for who", "for those who", 6),
    ("whose it is", "its owner, or name it", 2),
    ("foreseen", "prefetched, expected", 4),
    ("page-locked", "pinned", 13),
];

/// Whose texts are counted.
const ENDINGS: [&str; 5] = [".rs", ".md", ".cu", ".cuh", ".sh"];

/// Prints what is over its budget and fails then; with `every` prints all counts.
pub fn check(every: bool) -> Result {
    let mut texts = Vec::new();
    for path in tracked()? {
        // This file has to name the phrases.
        if ENDINGS.iter().any(|ending| path.ends_with(ending)) && !path.ends_with("xtask/src/words.rs") {
            texts.push((read(&root().join(&path))?.to_lowercase(), path));
        }
    }
    let mut over = Vec::new();
    for &(phrase, instead, budget) in PHRASES {
        let places: Vec<_> =
            texts.iter().filter_map(|(text, path)| Some((count(text, phrase), path)).filter(|c| c.0 > 0)).collect();
        let found: usize = places.iter().map(|place| place.0).sum();
        if every {
            println!("{found:5} of {budget:5}  {phrase}");
        }
        if found > budget {
            let most = places.iter().max_by_key(|place| place.0).map_or("", |place| place.1);
            over.push(format!(
                "\"{phrase}\" stands {found} times, {budget} are allowed (write: {instead}); most in {most}"
            ));
        } else if found < budget {
            println!("\"{phrase}\": lower its budget from {budget} to {found} in xtask/src/words.rs");
        }
    }
    if over.is_empty() { Ok(()) } else { Err(over.join("\n       ").into()) }
}

/// The files that git knows, or would add, below the root.
fn tracked() -> Result<Vec<String>> {
    let args = ["ls-files", "--cached", "--others", "--exclude-standard", "--deduplicate"];
    let output = Command::new("git").args(args).current_dir(root()).output()?;
    let list = String::from_utf8(output.stdout)?;
    let exists = |path: &&str| Path::new(&root()).join(path).is_file();
    Ok(list.lines().filter(exists).map(str::to_string).collect())
}

/// How often a phrase stands in a text as whole words; one space stands for any white space, also a line's end with the
/// beginning of a comment.
fn count(text: &str, phrase: &str) -> usize {
    let words: Vec<&str> = phrase.split(' ').collect();
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let tokens: Vec<&str> = text.split(|c: char| !is_word(c) && c != '-').filter(|token| !token.is_empty()).collect();
    tokens.windows(words.len()).filter(|window| *window == words.as_slice()).count()
}

#[cfg(test)]
mod tests {
    use super::count;

    #[test]
    fn phrases_are_found_across_lines_as_whole_words() {
        assert_eq!(count("in the place\n/// of it, in the place of that", "in the place of"), 2);
        assert_eq!(count("renewed anew, anew_one", "anew"), 1);
    }
}
