//! Problems of a job file: all that are found, in the order of its lines.

use std::fmt;

use crate::error::{Error, Result};

/// Problems that are kept. Each takes some hundred bytes, and a file of 256 MiB may have one in every line.
const MAX_KEPT: usize = 10_000;
/// Problems in the message of an error.
const SHOWN: usize = 20;

/// A problem of one line of a job file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// The line, from 1.
    pub line: usize,
    /// The problem.
    pub text: String,
}

/// The problems of a job file. They are displayed as lines `file:line: problem`, at most 20 of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Problems {
    file: String,
    all: Vec<Problem>,
    /// Problems that were found and are not kept.
    left_out: usize,
}

impl Problems {
    pub(crate) fn new(file: &str) -> Self {
        Self { file: file.into(), all: Vec::new(), left_out: 0 }
    }

    /// Adds a problem. The images of one job often have the same: it counts once.
    pub(crate) fn push(&mut self, line: usize, text: impl Into<String>) {
        let problem = Problem { line, text: text.into() };
        let same_line = self.all.iter().rev().take_while(|known| known.line == line);
        if same_line.into_iter().any(|known| *known == problem) {
            return;
        }
        match self.all.len() < MAX_KEPT {
            true => self.all.push(problem),
            false => self.left_out += 1,
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.all.len() + self.left_out
    }

    /// The file's name in messages.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// The problems in the order of their lines: the first 10,000 that were found.
    pub fn iter(&self) -> impl Iterator<Item = &Problem> {
        self.all.iter()
    }

    /// In the order of lines; of one line in the order in which they were found.
    pub(crate) fn sorted(mut self) -> Self {
        self.all.sort_by_key(|problem| problem.line);
        self
    }

    /// The error of all problems.
    ///
    /// # Errors
    /// [`Error::Job`] for one problem, [`Error::Jobs`] for several.
    pub(crate) fn result(mut self) -> Result<()> {
        match self.all.len() {
            0 => Ok(()),
            1 => {
                let Problem { line, text } = self.all.remove(0);
                Err(Error::Job { file: self.file, line, problem: text })
            }
            _ => Err(Error::Jobs(self.sorted())),
        }
    }

    /// The message of the first 20, each text in the spelling of `spell`.
    pub(crate) fn message(&self, spell: &dyn Fn(&str) -> String) -> String {
        let mut message = format!("{} has {} errors, nothing was made", self.file, self.len());
        for Problem { line, text } in self.all.iter().take(SHOWN) {
            message += &format!("\n{}:{line}: {}", self.file, spell(text));
        }
        match self.len().saturating_sub(SHOWN) {
            0 => message,
            more => message + &format!("\nand {more} more"),
        }
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message(&str::to_string))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_are_in_the_order_of_lines_and_bounded() {
        let mut problems = Problems::new("jobs");
        assert!(problems.is_empty() && problems.clone().result().is_ok());
        problems.push(41, "is not JSON");
        assert_eq!(problems.clone().result().unwrap_err().to_string(), "jobs:41: is not JSON");
        problems.push(37, "no such sampler");
        problems.push(37, "no such sampler");
        problems.push(37, "no such LoRA");
        let message = problems.clone().result().unwrap_err().to_string();
        let expected = "jobs has 3 errors, nothing was made\njobs:37: no such sampler\njobs:37: no such LoRA\njobs:41: is not JSON";
        assert_eq!(message, expected);
        for line in 100..50_000 {
            problems.push(line, "no prompt");
        }
        assert_eq!((problems.len(), problems.iter().count()), (49_903, MAX_KEPT));
        let message = problems.result().unwrap_err().to_string();
        assert!(message.lines().count() == 22 && message.ends_with("\nand 49883 more"), "{message}");
    }
}
