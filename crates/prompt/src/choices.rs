//! Random choices for each image: `{a|b|c}`, and `__name__` for a line of a list.
//!
//! The choices depend on the seed only. They are made from left to right, an outer one before those in it, with numbers
//! of SplitMix64 (Steele, Lea and Flood 2014) that starts at the seed.

use std::ops::Range;

/// The maximum depth of lists in lists.
const MAX_DEPTH: usize = 16;
/// The maximum length of the text in bytes. Names in a longer text are not expanded.
const MAX_BYTES: usize = 1 << 20;
/// The maximum number of names that a prompt expands. Without it, long lists that name each other would expand
/// indefinitely.
const MAX_NAMES: usize = 1000;

/// The prompt with its choices made by `seed`. `lists` returns the lines of a list by its name. Unknown names do not
/// change, and neither do braces without their own `|`, nor `\{`. At most 1000 names are expanded, at most 16 deep.
pub fn expand<'l>(prompt: &str, seed: u64, lists: &dyn Fn(&str) -> Option<&'l [String]>) -> String {
    if !prompt.contains('{') && !prompt.contains("__") {
        return prompt.into();
    }
    let mut expansion = Expansion { text: String::new(), random: seed, names: 0, lists };
    expansion.add(prompt, 0);
    expansion.text
}

struct Expansion<'a, 'l> {
    text: String,
    random: u64,
    /// The number of names that were expanded.
    names: usize,
    lists: &'a dyn Fn(&str) -> Option<&'l [String]>,
}

impl Expansion<'_, '_> {
    fn add(&mut self, prompt: &str, depth: usize) {
        let choices = choices(prompt);
        let mut open: Vec<Range<usize>> = std::iter::once(0..prompt.len()).collect();
        while let Some(Range { start, end }) = open.pop() {
            let next = choices.partition_point(|choice| choice.start < start);
            let choice = choices.get(next).filter(|choice| choice.start < end);
            self.add_names(&prompt[start..choice.map_or(end, |choice| choice.start)], depth);
            if let Some(choice) = choice {
                open.push(choice.end..end);
                open.push(choice.branches[self.draw(choice.branches.len())].clone());
            }
        }
    }

    /// Adds text without braces, and expands the names in it.
    fn add_names(&mut self, mut text: &str, depth: usize) {
        const MARK: &str = "__";
        while let Some(start) = text.find(MARK).filter(|_| self.may_grow(depth)) {
            let inner = &text[start + MARK.len()..];
            let Some(length) = inner.find(MARK) else { break };
            let lines = (self.lists)(&inner[..length]).filter(|lines| !lines.is_empty());
            self.text += &text[..start];
            match lines {
                Some(lines) => {
                    self.names += 1;
                    let line = &lines[self.draw(lines.len())];
                    self.add(line, depth + 1);
                    text = &inner[length + MARK.len()..];
                }
                None => {
                    self.text += &text[start..start + MARK.len() + length];
                    text = &inner[length..];
                    if length == 0 {
                        self.text += MARK; // four underscores begin no name
                        text = &text[MARK.len()..];
                    }
                }
            }
        }
        self.text += text;
    }

    /// Whether names are still expanded.
    fn may_grow(&self, depth: usize) -> bool {
        depth < MAX_DEPTH && self.names < MAX_NAMES && self.text.len() < MAX_BYTES
    }

    /// A random number below `count`.
    fn draw(&mut self, count: usize) -> usize {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((u128::from(z ^ (z >> 31)) * count as u128) >> 64) as usize
    }
}

/// A pair of braces and the ranges between its bars.
struct Choice {
    start: usize,
    branches: Vec<Range<usize>>,
    end: usize,
}

/// All choices of a text, sorted by their start. A `|` belongs to the innermost bracket around it, so that a choice may
/// contain `[a|b]`.
fn choices(text: &str) -> Vec<Choice> {
    let mut found = Vec::new();
    // Open brackets: the position of each, and its bars.
    let mut open: Vec<(u8, usize, Vec<usize>)> = Vec::new();
    let mut braces = 0;
    let mut escaped = false;
    for (i, byte) in text.bytes().enumerate() {
        let literal = escaped;
        escaped = byte == b'\\' && !literal;
        match byte {
            _ if literal => {}
            b'{' | b'[' => {
                braces += usize::from(byte == b'{');
                open.push((byte, i, Vec::new()));
            }
            b'|' => {
                if let Some((_, _, bars)) = open.last_mut() {
                    bars.push(i);
                }
            }
            b']' => _ = open.pop_if(|(bracket, ..)| *bracket == b'['),
            b'}' if braces > 0 => {
                braces -= 1;
                while open.pop_if(|(bracket, ..)| *bracket == b'[').is_some() {}
                if let Some((_, start, bars)) = open.pop().filter(|(_, _, bars)| !bars.is_empty()) {
                    let begins = std::iter::once(start).chain(bars.iter().copied()).map(|at| at + 1);
                    let branches = begins.zip(bars.iter().copied().chain([i])).map(|(from, to)| from..to).collect();
                    found.push(Choice { start, branches, end: i + 1 });
                }
            }
            _ => {}
        }
    }
    found.sort_unstable_by_key(|choice| choice.start);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(prompt: &str, seed: u64) -> String {
        expand(prompt, seed, &|_| None)
    }

    #[test]
    fn every_choice_is_drawn_and_a_seed_draws_the_same() {
        let drawn: std::collections::BTreeSet<String> = (0..40).map(|seed| plain("a {red|green|} cat", seed)).collect();
        assert_eq!(drawn.into_iter().collect::<Vec<_>>(), ["a  cat", "a green cat", "a red cat"]);
        assert_eq!(plain("{a|b|c|d|e|f}{a|b|c|d|e|f}", 7), plain("{a|b|c|d|e|f}{a|b|c|d|e|f}", 7));
        // The choices of a seed are part of the meaning of an image's settings, so they may not change.
        let drawn: String = (0..16).map(|seed| plain("{a|b|c|d|e|f}", seed)).collect();
        assert_eq!(drawn, "fddaccecdeabdecd");
    }

    #[test]
    fn choices_nest_and_alternation_stays_within_them() {
        for seed in 0..20 {
            let text = plain("{x {1|2}|[a|b]} {y}", seed);
            assert!(["x 1 {y}", "x 2 {y}", "[a|b] {y}"].contains(&&*text), "{text}");
        }
    }

    #[test]
    fn text_without_choices_is_unchanged() {
        for text in ["{a}", "{a|b", "a|b}", r"\{a|b}", "[{b|d{:.5]", "a__b", "____", "__unknown__", "}{", "[a|b]"] {
            assert_eq!(plain(text, 3), text);
        }
    }

    #[test]
    fn names_become_lines() {
        let colors = ["red".to_string(), "dark __color__".into()];
        let lists = |name: &str| (name == "color").then_some(&colors[..]);
        for seed in 0..50 {
            let text = expand("a __color__ __cat__", seed, &lists);
            assert!(text.starts_with("a ") && text.ends_with("red __cat__") || text.contains("__color__"), "{text}");
        }
        let many = ["__x__ __x__ __x__".to_string()];
        let text = expand("__x__", 1, &|name| (name == "x").then_some(&many[..]));
        assert!(text.len() < 2 * MAX_BYTES);
    }

    #[test]
    fn lists_that_name_each_other_end() {
        // Each line names the next list a thousand times: 1000^4 names in all, and no text except braces at the end.
        let line = |name: &str| [format!("__{name}__").repeat(1000)];
        let lists = [line("b"), line("c"), line("d"), line("e"), ["{|}".to_string()]];
        let asked = std::cell::Cell::new(0usize);
        let find = |name: &str| {
            asked.set(asked.get() + 1);
            let i = "abcde".find(name).filter(|_| name.len() == 1)?;
            Some(&lists[i][..])
        };
        let text = expand("x __a__", 1, &find);
        assert_eq!(asked.get(), MAX_NAMES, "each lookup of a list is an expanded name");
        // The part that was not expanded follows unchanged.
        assert!(text.starts_with("x ") && text.ends_with("__b____b__") && text.len() < 5 * 5000, "{}", text.len());
        // A list that names itself twice doubles at each level.
        let twice = ["w __r__ __r__".to_string()];
        let text = expand("__r__", 1, &|name| (name == "r").then_some(&twice[..]));
        assert_eq!(text.matches('w').count(), MAX_NAMES);
    }

    #[test]
    fn deep_nesting_takes_neither_stack_nor_time() {
        plain(&format!("{}a{}", "{x|".repeat(100_000), "}".repeat(100_000)), 1);
        for text in ["{", "{|", "[{|", "_", "__a", "__a__", "}", "\\{"] {
            plain(&text.repeat(100_000), 1);
        }
    }
}
