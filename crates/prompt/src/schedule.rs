//! Texts that change during sampling: `[from:to:when]` and `[a|b]`.
//!
//! AUTOMATIC1111 parses these with an ambiguous grammar, and its parser chooses one of the parses. For malformed texts
//! the choice depends on the iteration order of Python's sets. The parse here finds every well-formed construct at any
//! position. It equals AUTOMATIC1111's wherever that does not depend on the order.
//!
//! The construct that a bracket begins depends only on the text after it, so one pass from the end of the text to its
//! start finds all constructs, and nesting takes neither more time nor stack.

use std::ops::Range;

use crate::is_space;
use crate::number::signed_float;

/// The text of a prompt for a range of steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepRange {
    /// The last step of the range, counted as in AUTOMATIC1111's schedules; see [`PromptSchedule::index_at`].
    pub until: usize,
    /// The text, with unparsed brackets of emphasis and escapes.
    pub text: String,
}

/// A prompt as a text for each range of steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PromptSchedule {
    ranges: Vec<StepRange>,
}

impl PromptSchedule {
    /// Parses a prompt for a run of `steps` steps. A text that cannot be parsed is one text for all steps, including
    /// its brackets: one with a `|` outside of `[a|b]`, or with a backslash at its end or before a newline.
    pub fn new(prompt: &str, steps: usize) -> Self {
        Self::parse(prompt, Steps { count: steps, before: None })
    }

    /// The same for a second pass of `steps` steps after one of `first` steps. Its times count on: `[a:b:25]` changes at
    /// step 5 after a first pass of 20 steps, and `[a:b:1.5]` at its middle. Times of the first pass are over
    /// (AUTOMATIC1111's `get_learned_conditioning_prompt_schedules` of `modules/prompt_parser.py`, v1.10).
    pub fn of_second_pass(prompt: &str, first: usize, steps: usize) -> Self {
        Self::parse(prompt, Steps { count: steps, before: Some(first) })
    }

    fn parse(prompt: &str, steps: Steps) -> Self {
        let whole = |text: &str| vec![StepRange { until: steps.count, text: text.into() }];
        // Most prompts contain neither construct.
        let constructs = if prompt.contains(['[', '|', '\\']) { Constructs::find(prompt) } else { None };
        let ranges = match constructs {
            Some(constructs) => {
                let range = |until| StepRange { until, text: constructs.text_at(until, steps) };
                constructs.ends(steps).into_iter().map(range).collect()
            }
            None => whole(prompt),
        };
        Self { ranges }
    }

    /// The ranges in order; the last one ends at the last step. Adjacent ranges may have the same text.
    pub fn ranges(&self) -> &[StepRange] {
        &self.ranges
    }

    /// The index of the range of step `step`, counted from 0.
    ///
    /// AUTOMATIC1111 compares this count from 0 with ends that are counted from 1: `[a:b:3]` is `a` for the steps 0 to
    /// 3, four of them, and `[a|b]` is `a a b a b`.
    pub fn index_at(&self, step: usize) -> usize {
        self.ranges.iter().position(|range| step <= range.until).unwrap_or(0)
    }
}

/// The steps of a run, and those of the run before from which times count on.
#[derive(Clone, Copy)]
struct Steps {
    count: usize,
    before: Option<usize>,
}

impl Steps {
    /// The step of a time: a number with a decimal point is a share of the steps. The result is rounded down, and at most
    /// the number of steps.
    fn of(self, when: &str) -> f64 {
        let (value, count): (f64, _) = (when.parse().unwrap_or(0.0), self.count as f64);
        let value = match (when.contains('.'), self.before) {
            (true, None) => value * count,
            (true, Some(_)) => (value - 1.0) * count,
            (false, before) => value - before.unwrap_or(0) as f64,
        };
        value.trunc().min(count)
    }
}

/// A construct that changes with the steps, and the byte after it.
enum Construct<'a> {
    Scheduled { before: Range<usize>, after: Range<usize>, when: &'a str, end: usize },
    Alternate { branches: Vec<Range<usize>>, end: usize },
}

/// All constructs of a text.
struct Constructs<'a> {
    text: &'a str,
    /// The constructs by the byte of their opening bracket.
    at: Vec<Option<Construct<'a>>>,
}

impl<'a> Constructs<'a> {
    /// `None` if the text cannot be parsed.
    fn find(text: &'a str) -> Option<Self> {
        let bytes = text.as_bytes();
        let n = bytes.len();
        let mut at: Vec<Option<Construct<'a>>> = (0..n).map(|_| None).collect();
        // For each byte, the end of the longest run of text and constructs from there on.
        let mut run = vec![n; n + 1];
        for i in (0..n).rev() {
            run[i] = match bytes[i] {
                b'\\' if is_escape(bytes, i) => run[i + 2],
                b'\\' | b')' | b']' | b':' | b'|' => i,
                b'(' => parenthesis(bytes, &run, i).map_or(i, |end| run[end]),
                b'[' => match bracket(text, &run, i) {
                    Some((end, construct)) => {
                        at[i] = construct;
                        run[end]
                    }
                    None => i,
                },
                _ => run[i + 1],
            };
        }
        let mut i = run[0];
        while i < n {
            if matches!(bytes[i], b'|' | b'\\') {
                return None;
            }
            i = run[i + 1]; // a bracket or colon outside of a construct
        }
        Some(Self { text, at })
    }

    /// Calls `plain` with every piece of plain text, and `change` with every construct. `change` pushes the byte ranges
    /// to visit next.
    fn walk(&self, mut plain: impl FnMut(&str), mut change: impl FnMut(&Construct<'a>, &mut Vec<Range<usize>>)) {
        let bytes = self.text.as_bytes();
        let mut open: Vec<Range<usize>> = std::iter::once(0..bytes.len()).collect();
        while let Some(Range { start, end }) = open.pop() {
            let mut i = start;
            let construct = loop {
                match bytes[..end].get(i) {
                    None => break None,
                    Some(b'\\') => i += 2,
                    Some(_) => match &self.at[i] {
                        Some(construct) => break Some(construct),
                        None => i += 1,
                    },
                }
            };
            plain(&self.text[start..i.min(end)]);
            if let Some(construct) = construct {
                open.push(construct.end()..end);
                change(construct, &mut open);
            }
        }
    }

    /// The steps at which ranges end.
    fn ends(&self, steps: Steps) -> Vec<usize> {
        let count = steps.count;
        let mut ends = vec![false; count + 1];
        ends[count] = true;
        self.walk(
            |_| {},
            |construct, open| match construct {
                Construct::Scheduled { before, after, when, .. } => {
                    let when = steps.of(when);
                    if when >= 1.0 {
                        ends[when as usize] = true;
                    }
                    open.extend([before.clone(), after.clone()]);
                }
                Construct::Alternate { branches, .. } => {
                    ends[1.min(count)..].fill(true);
                    open.extend(branches.iter().cloned());
                }
            },
        );
        (0..=count).filter(|&step| ends[step]).collect()
    }

    /// The text at a step, counted from 1.
    fn text_at(&self, step: usize, steps: Steps) -> String {
        let mut text = String::new();
        self.walk(
            |plain| text += plain,
            |construct, open| {
                open.push(match construct {
                    Construct::Scheduled { before, when, .. } if step as f64 <= steps.of(when) => before.clone(),
                    Construct::Scheduled { after, .. } => after.clone(),
                    Construct::Alternate { branches, .. } => branches[step.saturating_sub(1) % branches.len()].clone(),
                });
            },
        );
        text
    }
}

impl Construct<'_> {
    fn end(&self) -> usize {
        match self {
            Self::Scheduled { end, .. } | Self::Alternate { end, .. } => *end,
        }
    }
}

/// Whether the backslash at `i` escapes the next character: any except a newline.
fn is_escape(bytes: &[u8], i: usize) -> bool {
    bytes.get(i + 1).is_some_and(|&next| next != b'\n')
}

/// The end of `(a)` or `(a:b)` at `i`.
fn parenthesis(bytes: &[u8], run: &[usize], i: usize) -> Option<usize> {
    let first = run[i + 1];
    match bytes.get(first)? {
        b')' => Some(first + 1),
        b':' => Some(run[first + 1]).filter(|&second| bytes.get(second) == Some(&b')')).map(|second| second + 1),
        _ => None,
    }
}

/// The end of the bracket pair at `i`, and its construct if it changes with the steps.
fn bracket<'a>(text: &'a str, run: &[usize], i: usize) -> Option<(usize, Option<Construct<'a>>)> {
    let bytes = text.as_bytes();
    let first = run[i + 1];
    match bytes.get(first)? {
        b']' => Some((first + 1, None)),
        b'|' => {
            let (mut branches, mut bar) = (Vec::from_iter(std::iter::once(i + 1..first)), first);
            while bytes.get(bar) == Some(&b'|') {
                let end = run[bar + 1];
                branches.push(bar + 1..end);
                bar = end;
            }
            let end = bar + 1;
            (bytes.get(bar) == Some(&b']')).then_some((end, Some(Construct::Alternate { branches, end })))
        }
        b':' => {
            let second = run[first + 1];
            let both = (bytes.get(second) == Some(&b':')).then(|| time(text, second + 1)).flatten();
            let (when, end, before, after) = match both {
                Some((when, end)) => (when, end, i + 1..first, first + 1..second),
                None => time(text, first + 1).map(|(when, end)| (when, end, 0..0, i + 1..first))?,
            };
            Some((end, Some(Construct::Scheduled { before, after, when, end })))
        }
        _ => None,
    }
}

/// A number with spaces around it and a closing bracket, from byte `from` on: the number, and the byte after the
/// bracket.
fn time(text: &str, from: usize) -> Option<(&str, usize)> {
    let number = text[from..].trim_start_matches(is_space);
    let length = signed_float(number)?;
    let rest = number[length..].trim_start_matches(is_space).strip_prefix(']')?;
    Some((&number[..length], text.len() - rest.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(prompt: &str) -> Vec<(usize, String)> {
        let PromptSchedule { ranges } = PromptSchedule::new(prompt, 10);
        ranges.into_iter().map(|range| (range.until, range.text)).collect()
    }

    fn check(prompt: &str, expected: &[(usize, &str)]) {
        let expected: Vec<_> = expected.iter().map(|&(until, text)| (until, text.to_string())).collect();
        assert_eq!(schedule(prompt), expected, "{prompt}");
    }

    #[test]
    fn times_are_steps_or_shares() {
        check("a [b:c:3] d", &[(3, "a b d"), (10, "a c d")]);
        check("a [b: .5 ] c", &[(5, "a  c"), (10, "a b c")]);
        check("[a::2]", &[(2, "a"), (10, "")]);
        check("[:b:1e1]", &[(10, "")]);
        check("[a:b:99]", &[(10, "a")]);
        check("[a:b:0]", &[(10, "b")]);
        check("[a:b:-3]", &[(10, "b")]);
        check("[a:3:4]", &[(4, "a"), (10, "3")]);
    }

    #[test]
    fn times_of_a_second_pass_count_on() {
        let of = |prompt| {
            let PromptSchedule { ranges } = PromptSchedule::of_second_pass(prompt, 20, 10);
            ranges.into_iter().map(|range| (range.until, range.text)).collect::<Vec<_>>()
        };
        assert_eq!(of("[a:b:25]"), [(5, "a".into()), (10, "b".into())]);
        assert_eq!(of("[a:b:1.5]"), [(5, "a".into()), (10, "b".into())]);
        for over in ["[a:b:0.5]", "[a:b:7]", "[a:b:20]", "[a:b:1.0]"] {
            assert_eq!(of(over), [(10, "b".into())], "{over}");
        }
        assert_eq!(of("[a:b:2.5]"), [(10, "a".into())]);
        assert_eq!(of("[a|b]").len(), 10);
    }

    #[test]
    fn constructs_nest_and_emphasis_stays() {
        check("a[b:[c:d:2]:1]e", &[(1, "abe"), (2, "ace"), (10, "ade")]);
        check("[(a:2):3]", &[(3, ""), (10, "(a:2)")]);
        check("a [[[b]]:2]", &[(2, "a "), (10, "a [[b]]")]);
        check(r"\[a:b:3] [c\]:d:3]", &[(3, r"\[a:b:3] c\]"), (10, r"\[a:b:3] d")]);
    }

    #[test]
    fn alternation_is_another_text_each_step() {
        let texts: Vec<String> = schedule("[fe|||]male").into_iter().map(|(_, text)| text).collect();
        assert_eq!(texts[..6], ["female", "male", "male", "male", "female", "male"]);
        assert_eq!(texts.len(), 10);
    }

    #[test]
    fn malformed_texts_are_unchanged() {
        for text in ["a|b", "a [b|c:.5]", "[a:b:3] |", "[a:b:3]\\", "[a:b:3]\\\nc", "[unbalanced", "][)(:"] {
            check(text, &[(10, text)]);
        }
    }

    #[test]
    fn steps_are_counted_from_0_against_ends_from_1() {
        let schedule = PromptSchedule::new("[a|b]", 4);
        let texts: Vec<&str> = (0..4).map(|step| &*schedule.ranges()[schedule.index_at(step)].text).collect();
        assert_eq!(texts, ["a", "a", "b", "a"]);
    }

    #[test]
    fn deep_nesting_takes_neither_stack_nor_time() {
        let deep = format!("{}a{}", "[".repeat(100_000), ":1]".repeat(100_000));
        assert_eq!(schedule(&deep), [(1, "".into()), (10, "a".into())]);
        for text in ["[", "(", "[a|", "[a:", "(a:", "[:", "|", "]", "\\"] {
            schedule(&text.repeat(100_000));
        }
    }
}
