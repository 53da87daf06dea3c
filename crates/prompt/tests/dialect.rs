//! The prompt dialect compared with AUTOMATIC1111's parser.

use kiln_prompt::{PromptSchedule, expand, spans, subprompts, take_tags};
use kiln_testkit::fixtures;
use serde::Deserialize;

/// The number of steps of the fixture's schedules.
const STEPS: usize = 10;

/// A text, and AUTOMATIC1111's parse of it.
#[derive(Deserialize)]
struct Row {
    text: String,
    parts: Vec<(String, f64)>,
    /// `None` if it depends on Python's hash seed.
    schedule: Option<Vec<(usize, String)>>,
    /// `None` if AUTOMATIC1111 fails, as for the weight `1.2.3`.
    spans: Option<Vec<(String, f64)>>,
}

fn rows() -> Vec<Row> {
    serde_json::from_str(&std::fs::read_to_string(fixtures("prompts.json")).unwrap()).unwrap()
}

/// Whether texts are equal, and weights equal up to the rounding of a number in JSON.
fn same(found: &[(String, f64)], expected: &[(String, f64)]) -> bool {
    let close = |a: f64, b: f64| (a - b).abs() <= 1e-15 * b.abs();
    let pairs = || found.iter().zip(expected);
    found.len() == expected.len() && pairs().all(|((a, x), (b, y))| a == b && close(*x, *y))
}

#[test]
fn prompts_are_parsed_as_in_automatic1111() {
    let (mut schedules, rows) = (0, rows());
    for Row { text, parts, schedule, spans: weighed } in &rows {
        let found: Vec<_> = subprompts(text).into_iter().map(|part| (part.text, part.weight)).collect();
        assert!(same(&found, parts), "{text:?}: {found:?}, expected {parts:?}");
        if let Some(schedule) = schedule {
            schedules += 1;
            let found = PromptSchedule::new(text, STEPS);
            let found: Vec<_> = found.ranges().iter().map(|range| (range.until, range.text.clone())).collect();
            assert_eq!(found, *schedule, "{text:?}");
        }
        if let Some(weighed) = weighed {
            let found: Vec<_> = spans(text).into_iter().map(|span| (span.text, span.weight)).collect();
            assert!(same(&found, weighed), "{text:?}: {found:?}, expected {weighed:?}");
        }
    }
    assert!(schedules > 600, "{schedules} of {} texts were compared", rows.len());
}

/// Random texts of brackets, numbers and words: nothing panics, and every text can be parsed.
#[test]
fn every_text_can_be_parsed() {
    const PIECES: [&str; 30] = [
        "[",
        "]",
        "(",
        ")",
        ":",
        "|",
        "{",
        "}",
        "<",
        ">",
        "\\",
        "__",
        " ",
        ",",
        "a",
        "é",
        "🍎",
        "\n",
        "1",
        ".5",
        "-",
        "e3",
        "AND",
        "BREAK",
        " AND ",
        " BREAK ",
        "lora",
        "\u{0}",
        "\u{301}",
        "99999999999999999999",
    ];
    let mut state = 1u64;
    let mut draw = |below: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % below
    };
    let list = ["{x|__l__}".to_string(), "[y".into()];
    for _ in 0..20_000 {
        let text: String = (0..draw(24)).map(|_| PIECES[draw(PIECES.len())]).collect();
        let text = expand(&text, draw(100) as u64, &|name| (name == "a").then_some(&list[..]));
        let parts = subprompts(&take_tags(&text).0);
        assert!(!parts.is_empty());
        for part in parts {
            let schedule = PromptSchedule::new(&part.text, 7);
            assert_eq!(schedule.ranges().last().map(|range| range.until), Some(7));
            assert!(schedule.ranges().iter().all(|range| !spans(&range.text).is_empty()));
            assert!((0..9).all(|step| schedule.index_at(step) < schedule.ranges().len()));
        }
    }
}
