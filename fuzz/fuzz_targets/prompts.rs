//! All steps from a prompt to the text encoder. A first line is the list `a`, which prompts name as `__a__`.
#![no_main]

use std::path::Path;
use std::sync::LazyLock;

use kiln_clip::{TokenEmbeddings, Tokenizer, chunks};
use kiln_prompt::{COMMA_BACKTRACK, ChunkCut, PromptSchedule, expand, spans, subprompts, take_tags, without_comments};
use libfuzzer_sys::fuzz_target;

static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(|| {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/models/sd1/tokenizer");
    Tokenizer::open(Path::new(folder)).expect("a tokenizer")
});
/// What an expanded prompt cannot be longer than by far: names stay names from 1 MiB on, and a line of a list is short.
const LONGEST: usize = 2 << 20;
/// Longer texts are not encoded, for speed.
const ENCODED: usize = 2000;

fuzz_target!(|data: &str| {
    let (list, prompt) = data.split_once('\n').unwrap_or(("cat|{x|__a__}|__a____a__", data));
    let lists = [list.split('|').map(String::from).collect::<Vec<_>>()];
    let expanded = expand(prompt, data.len() as u64, &|name| (name == "a").then_some(&lists[0]));
    assert!(expanded.len() <= LONGEST, "{} bytes", expanded.len());
    for text in [prompt, &expanded[..]].into_iter().filter(|text| text.len() <= 4 * ENCODED) {
        read(text);
    }
});

fn read(prompt: &str) {
    let plain = without_comments(prompt);
    assert!(plain.len() <= prompt.len());
    let (text, tags) = take_tags(&plain);
    assert!(text.len() <= plain.len() && (tags.is_empty() || text.len() < plain.len()));
    for steps in [1, 20, 10_000] {
        let schedule = PromptSchedule::new(&text, steps);
        let ends: Vec<usize> = schedule.ranges().iter().map(|range| range.until).collect();
        assert_eq!(ends.last(), Some(&steps));
        assert!(ends.windows(2).all(|pair| pair[0] < pair[1]), "{ends:?}");
        assert_eq!(schedule.index_at(steps - 1), ends.partition_point(|&end| end < steps - 1));
        if steps == 20 {
            schedule.ranges().iter().take(2).for_each(|range| encode(&range.text));
        }
    }
}

fn encode(text: &str) {
    for part in subprompts(text) {
        assert!(part.weight.is_finite(), "{}", part.weight);
        let spans = spans(&part.text);
        assert!(!spans.is_empty());
        if part.text.len() > ENCODED {
            continue;
        }
        for (cut, backtrack) in [(ChunkCut::Comma, COMMA_BACKTRACK), (ChunkCut::Comma, 0), (ChunkCut::Word, 0)] {
            let chunks =
                chunks(&TOKENIZER, &spans, cut, backtrack, &TokenEmbeddings::default()).expect("every text has tokens");
            assert!(!chunks.is_empty());
            for chunk in chunks {
                let length = TOKENIZER.max_length();
                assert_eq!([chunk.ids.len(), chunk.weights.len(), chunk.spans.len()], [length; 3]);
                assert!(chunk.ids.iter().all(|&id| (id as usize) < TOKENIZER.vocab_size()));
                assert!(chunk.spans.iter().flatten().all(|&span| span < spans.len()));
            }
        }
    }
}
