//! Sentence patterns that plain technical English avoids, counted by crate in the sources below `crates/*/src`.
//!
//! A pattern has a budget for the sum of all crates, which may only decrease. Tests are not counted.

use std::collections::BTreeMap;

/// A pattern: its name, whether a line has it and how often, a replacement, and its budget.
struct Pattern {
    name: &'static str,
    count: fn(&str) -> usize,
    instead: &'static str,
    budget: usize,
}

const PATTERNS: [Pattern; 3] = [
    Pattern {
        name: "doc comments that open with What, Those of, The same, As",
        count: opens_without_subject,
        instead: "name the thing: \"The negative prompt, if set.\"",
        budget: 24,
    },
    Pattern { name: "where there, where it, where that ..", count: says_where, instead: "if, when", budget: 42 },
    Pattern { name: "said, told in comments", count: says_said, instead: "set, requested, reported", budget: 0 },
];

/// Checks the files `(text, path)`. Returns a problem for each pattern above its budget. With `every` it prints the counts of
/// all crates.
pub fn check(files: &[(String, String)], every: bool) -> Vec<String> {
    let mut problems = Vec::new();
    for Pattern { name, count, instead, budget } in &PATTERNS {
        let mut crates: BTreeMap<&str, usize> = BTreeMap::new();
        for (text, path) in files {
            if let Some(name) = crate_of(path) {
                *crates.entry(name).or_default() += text.lines().map(count).sum::<usize>();
            }
        }
        let found: usize = crates.values().sum();
        if every {
            println!("{found:5} of {budget:5}  {name}");
            crates.iter().filter(|(_, count)| **count > 0).for_each(|(name, count)| println!("{count:9}  {name}"));
        }
        if found > *budget {
            problems.push(format!("{name}: {found} times, the budget is {budget} (write: {instead})"));
        } else if found < *budget {
            println!("{name}: lower the budget from {budget} to {found} in xtask/src/sentences.rs");
        }
    }
    problems
}

/// The crate of a source file that is no test.
fn crate_of(path: &str) -> Option<&str> {
    let (name, file) = path.strip_prefix("crates/")?.split_once("/src/")?;
    let is_test = file.ends_with("tests.rs") || file.ends_with("test.rs") || file.contains("tests/");
    (file.ends_with(".rs") && !is_test).then_some(name)
}

fn opens_without_subject(line: &str) -> usize {
    let line = line.trim_start();
    let doc = line.strip_prefix("/// ").or_else(|| line.strip_prefix("//! "));
    let opens = |doc: &str| ["What ", "Those of ", "The same ", "As "].iter().any(|start| doc.starts_with(start));
    usize::from(doc.is_some_and(opens))
}

fn says_where(line: &str) -> usize {
    let words = words(line);
    let after = ["there", "it", "that", "one", "none", "nothing"];
    words.windows(2).filter(|pair| pair[0] == "where" && after.contains(&pair[1])).count()
}

fn says_said(line: &str) -> usize {
    let comment = line.trim_start().starts_with("//");
    usize::from(comment && words(line).iter().any(|word| ["said", "told"].contains(word)))
}

/// The words of a line; underscores join words, as in names.
fn words(line: &str) -> Vec<&str> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    line.split(|c: char| !is_word(c)).filter(|word| !word.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_found_in_lines() {
        assert_eq!(opens_without_subject("    /// What it makes."), 1);
        assert_eq!(opens_without_subject("    /// Whether it makes images."), 0);
        assert_eq!(says_where("// where there is one, and where it is, or somewhere it is"), 2);
        assert_eq!(says_said("/// If anything was said."), 1);
        assert_eq!(says_said("let said = 1;"), 0);
    }

    #[test]
    fn tests_and_other_files_are_not_counted() {
        assert_eq!(crate_of("crates/vae/src/decoder.rs"), Some("vae"));
        assert_eq!(crate_of("crates/vae/src/tests.rs"), None);
        assert_eq!(crate_of("crates/vae/tests/parity.rs"), None);
        assert_eq!(crate_of("docs/parity.md"), None);
    }
}
