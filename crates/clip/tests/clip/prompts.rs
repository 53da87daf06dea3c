//! Chunks of prompts, and weights compared with PyTorch and compel.

use candle_core::{DType, Device, Tensor};
use kiln_clip::{
    Chunk, Error, HiddenLayer, RunPortion, TextEncoder, TextEncoderConfig, TokenEmbeddings, Tokenizer, WeightedText,
    chunks,
};
use kiln_prompt::{ChunkCut, Emphasis, Span, spans};
use kiln_testkit::{Fixture, Parity, fixtures};
use kiln_weights::{KeyRule, Placement, Renamed, load, open_component};

/// In standard deviations. Both sides compute in f32, with another order of the sums.
const BOUND: f64 = 1e-4;

fn encoder(folder: &std::path::Path) -> TextEncoder {
    encoder_in(folder, DType::F32)
}

fn encoder_in(folder: &std::path::Path, dtype: DType) -> TextEncoder {
    let encoder = TextEncoder::new(TextEncoderConfig::open(folder).unwrap()).unwrap();
    let source = Renamed::new(open_component(folder).unwrap(), KeyRule::TEXT_MODEL);
    load(encoder.segments(), &source, &Placement::new(Device::Cpu, dtype)).unwrap();
    encoder
}

#[test]
fn weights_are_applied_as_in_pytorch() {
    let fixture = Fixture::open("prompts.safetensors");
    let prompts: Vec<Vec<(String, f64)>> = fixture.note("prompts");
    for (model, suffix, layer) in [("sd1", "", HiddenLayer::LAST), ("sdxl", "_2", HiddenLayer::PENULTIMATE)] {
        let tokenizer = Tokenizer::open(&fixtures(&format!("models/{model}/tokenizer{suffix}"))).unwrap();
        let encoder = encoder(&fixtures(&format!("models/{model}/text_encoder{suffix}")));
        let parity = Parity::new("emphasis", model.to_string());
        for (k, prompt) in prompts.iter().enumerate() {
            let spans: Vec<Span> =
                prompt.iter().map(|(text, weight)| Span { text: text.clone(), weight: *weight }).collect();
            let chunks = chunks(&tokenizer, &spans, ChunkCut::Comma, 0, &TokenEmbeddings::default()).unwrap();
            let ids: Vec<Vec<i64>> = fixture.tensor(&format!("{model}.p{k}.ids")).to_vec2().unwrap();
            let found: Vec<Vec<i64>> =
                chunks.iter().map(|chunk| chunk.ids.iter().map(|&id| i64::from(id)).collect()).collect();
            assert_eq!(found, ids, "{model} {k}");
            for emphasis in [Emphasis::Original, Emphasis::NoNorm, Emphasis::Comfy, Emphasis::Compel] {
                let key = format!("{model}.p{k}.{}", emphasis.id());
                let empty = tokenizer.empty_chunk();
                let found = encoder
                    .encode_weighted(&chunks, &empty, emphasis, layer, &Device::Cpu, &TokenEmbeddings::default())
                    .unwrap();
                parity.check(&key, &found.hidden, &fixture.tensor(&key), BOUND);
            }
        }
    }
}

/// Runs portions until there are so many.
struct AtMost(usize);

impl RunPortion for AtMost {
    type Error = Error;

    fn run<T: Send>(&mut self, work: impl FnOnce() -> T + Send) -> Result<T, Error> {
        self.0 = self.0.checked_sub(1).ok_or_else(|| Error::Tokenize("stopped".into()))?;
        Ok(work())
    }
}

#[test]
fn portions_of_a_text_have_its_bits_and_can_be_stopped() {
    for (model, suffix, layer) in [("sd1", "", HiddenLayer::LAST), ("sdxl", "_2", HiddenLayer::PENULTIMATE)] {
        let tokenizer = Tokenizer::open(&fixtures(&format!("models/{model}/tokenizer{suffix}"))).unwrap();
        let folder = fixtures(&format!("models/{model}/text_encoder{suffix}"));
        let words = TokenEmbeddings::default();
        let text = spans(&"a (red:0.5) fox, (cat:1.3) BREAK ".repeat(7));
        let chunks = chunks(&tokenizer, &text, ChunkCut::Comma, 20, &words).unwrap();
        let empty = tokenizer.empty_chunk();
        for dtype in [DType::F32, DType::BF16] {
            let encoder = encoder_in(&folder, dtype);
            for emphasis in [Emphasis::Original, Emphasis::Comfy, Emphasis::Compel] {
                let text = WeightedText { chunks: &chunks, empty: &empty, emphasis, layer, words: &words };
                let run = |portion: usize, most: usize| {
                    encoder.encode_in_portions(&text, &Device::Cpu.into(), portion, &mut AtMost(most)).map(|output| {
                        let values = |of: &Tensor| {
                            of.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap()
                        };
                        [values(&output.hidden), values(&output.pooled)]
                    })
                };
                let whole = run(usize::MAX, usize::MAX).unwrap();
                for portion in [1, 3] {
                    assert!(run(portion, usize::MAX).unwrap() == whole, "{model} {dtype:?} {emphasis:?} {portion}");
                }
                assert!(run(1, 3).unwrap_err().to_string().contains("stopped"), "{model} {emphasis:?}");
            }
        }
    }
}

#[test]
fn texts_that_share_portions_have_the_bits_that_they_have_alone() {
    let (words, layer) = (TokenEmbeddings::default(), HiddenLayer::LAST);
    let tokenizer = Tokenizer::open(&fixtures("models/sd1/tokenizer")).unwrap();
    let encoder = encoder_in(&fixtures("models/sd1/text_encoder"), DType::F32);
    let empty = tokenizer.empty_chunk();
    let of = |text: &str| chunks(&tokenizer, &spans(text), ChunkCut::Comma, 20, &words).unwrap();
    let texts = ["a (red:0.5) fox, (cat:1.3) BREAK ".repeat(4), String::new(), "a (pear:1.4)".into(), "a fig".into()];
    let chunks = texts.each_ref().map(|text| of(text));
    let emphases = [Emphasis::Compel, Emphasis::Original, Emphasis::Comfy, Emphasis::Original];
    let text = |(chunks, emphasis)| WeightedText { chunks, empty: &empty, emphasis, layer, words: &words };
    let texts: Vec<WeightedText<'_>> = chunks.iter().map(|chunks| &chunks[..]).zip(emphases).map(text).collect();
    let values = |output: &kiln_clip::TextOutput| {
        [&output.hidden, &output.pooled].map(|of| of.flatten_all().unwrap().to_vec1::<f32>().unwrap())
    };
    let device = Device::Cpu.into();
    let alone = texts
        .iter()
        .map(|text| values(&encoder.encode_in_portions(text, &device, usize::MAX, &mut AtMost(usize::MAX)).unwrap()));
    let alone: Vec<_> = alone.collect();
    for portion in [(1, false), (3, false), (usize::MAX, false), (1, true), (4, true), (16, true)] {
        let together = encoder.encode_together(&texts, &device, portion, &mut AtMost(usize::MAX)).unwrap();
        assert!(together.iter().map(values).eq(alone.iter().cloned()), "portions of {portion:?}");
    }
    assert!(encoder.encode_together(&[], &device, (1, true), &mut AtMost(0)).unwrap().is_empty());
}

/// A full chunk is cut after its last comma if that is near, and an end token and padding follow.
#[test]
fn chunks_end_behind_commas() {
    let tokenizer = Tokenizer::open(&fixtures("models/sd1/tokenizer")).unwrap();
    let text = |words: usize| vec!["a"; words].join(" ");
    let of = |text: &str, backtrack| {
        chunks(&tokenizer, &spans(text), ChunkCut::Comma, backtrack, &TokenEmbeddings::default()).unwrap()
    };
    // The number of text tokens in each chunk.
    let lengths = |text: &str, backtrack| -> Vec<usize> {
        of(text, backtrack).iter().map(|chunk| chunk.spans.iter().filter(|span| span.is_some()).count()).collect()
    };
    let near = format!("{}, {}", text(60), text(30));
    assert_eq!(lengths(&near, 20), [61, 30]);
    assert_eq!(lengths(&near, 0), [75, 16]);
    assert_eq!(lengths(&format!("{}, {}", text(50), text(30)), 20), [75, 6]);
    assert_eq!(lengths(&format!("{}, {}", text(75), text(5)), 20), [75, 6]);
    assert_eq!(lengths(&format!("{} BREAK {}", text(5), text(6)), 20), [5, 6]);
    assert_eq!(lengths("", 20), [0]);
    let chunk = &of("a (b:1.5)", 20)[0];
    assert_eq!((chunk.weights[1], chunk.weights[2], chunk.weights[3]), (1.0, 1.5, 1.0));
    assert_eq!(chunk.ids[3], tokenizer.eos());
}

/// A word with several vectors counts as many tokens, has the weight of its brackets, and is never split.
#[test]
fn words_with_vectors_lie_in_one_chunk() {
    let tokenizer = Tokenizer::open(&fixtures("models/sd1/tokenizer")).unwrap();
    let encoder = encoder(&fixtures("models/sd1/text_encoder"));
    let (d, first) = (encoder.config().hidden_size, encoder.config().vocab_size as u32);
    let mut words = encoder.token_embeddings();
    words.add("cat-toy", &Tensor::ones((4, d), DType::F32, &Device::Cpu).unwrap()).unwrap();
    words.add("long", &Tensor::ones((80, d), DType::F32, &Device::Cpu).unwrap()).unwrap();
    let of = |text: &str, backtrack| chunks(&tokenizer, &spans(text), ChunkCut::Comma, backtrack, &words).unwrap();
    let places = |chunk: &Chunk| {
        let is_word = |&(_, &id): &(usize, &u32)| id >= first;
        chunk.ids.iter().enumerate().filter(is_word).map(|(place, &id)| (place, id - first)).collect::<Vec<_>>()
    };
    let text = |words: usize| vec!["a"; words].join(" ");

    let short = &of("a (cat-toy:1.5), b", 20)[0];
    assert_eq!(places(short), [(2, 0), (3, 1), (4, 2), (5, 3)]);
    assert_eq!(short.weights[1..8], [1.0, 1.5, 1.5, 1.5, 1.5, 1.0, 1.0]);
    assert!(short.spans[2..6].iter().all(|&span| span == Some(1)));
    // 71 tokens and the word fill a chunk. After 72 the word begins the next one, with or without a comma before.
    assert_eq!(of(&format!("{} cat-toy", text(71)), 20).len(), 1);
    for backtrack in [0, 20] {
        let cut = of(&format!("{}, {} cat-toy b", text(60), text(11)), backtrack);
        assert_eq!((cut.len(), places(&cut[0]), places(&cut[1]).len()), (2, vec![], 4));
        assert_eq!(places(&cut[1])[0].0, 1);
    }
    // A full chunk is cut at its comma, and the tokens after it come before the word.
    let moved = of(&format!("{}, {} cat-toy", text(60), text(14)), 20);
    assert_eq!((moved.len(), places(&moved[1])[0]), (2, (15, 0)));
    // Of a word that is longer than a chunk, only as much as fits into a chunk is used.
    assert_eq!(of("a long b", 20).iter().map(|chunk| places(chunk).len()).collect::<Vec<_>>(), [0, 75, 0]);

    let empty = tokenizer.empty_chunk();
    for emphasis in Emphasis::ALL {
        let run = |text: &str, words: &TokenEmbeddings| {
            let chunks = chunks(&tokenizer, &spans(text), ChunkCut::Comma, 20, words).unwrap();
            let layer = HiddenLayer::LAST;
            let output = encoder.encode_weighted(&chunks, &empty, emphasis, layer, &Device::Cpu, words).unwrap();
            output.hidden.flatten_all().unwrap().to_vec1::<f32>().unwrap()
        };
        let (weak, plain) = (run("a (cat-toy:0.5) b", &words), run("a cat-toy b", &words));
        assert_eq!(weak == plain, matches!(emphasis, Emphasis::Ignore | Emphasis::None), "{emphasis:?}");
        assert_ne!(plain, run("a cat-toy b", &TokenEmbeddings::default()), "{emphasis:?}");
    }
}

/// The batches that ComfyUI makes of words of these numbers of tokens: the loop of `SDTokenizer.tokenize_with_weights`
/// in comfy/sd1_clip.py, without begin and end tokens. A batch contains the indices of words.
fn batches_of_comfyui(words: &[usize]) -> Vec<Vec<usize>> {
    const MAX_WORD_LENGTH: usize = 8;
    let mut batches = vec![Vec::new()];
    for (number, &length) in words.iter().enumerate() {
        let is_large = length >= MAX_WORD_LENGTH;
        let mut left = length;
        while left > 0 {
            let last = batches.last_mut().unwrap();
            // Its batch already contains the begin token: len(t_group) + len(batch) > max_length - 1.
            if left + last.len() + 1 > 77 - 1 {
                if is_large {
                    let remaining = 77 - (last.len() + 1) - 1;
                    last.extend(vec![number; remaining]);
                    left -= remaining;
                }
                batches.push(Vec::new());
            } else {
                last.extend(vec![number; left]);
                left = 0;
            }
        }
    }
    batches
}

#[test]
fn words_are_not_cut_as_in_comfyui() {
    let tokenizer = Tokenizer::open(&fixtures("models/sd1/tokenizer")).unwrap();
    let of = |word: &str| tokenizer.encode_with(word, &TokenEmbeddings::default()).unwrap().len();
    let chars = |length: usize| "0123456789".chars().cycle().take(length).collect::<String>();
    for lengths in [&[1, 3, 2][..], &[7], &[5, 1], &[9, 2, 30], &[200, 1], &[8, 8, 3], &[75], &[76], &[]] {
        let words: Vec<String> = lengths.iter().cycle().take(lengths.len() * 40).map(|&length| chars(length)).collect();
        let counts: Vec<usize> = words.iter().map(|word| of(word)).collect();
        let expected = batches_of_comfyui(&counts);
        // Two weights, so that the words belong to two spans.
        let (first, second) = words.split_at(words.len() / 2);
        let span = |words: &[String], weight| Span { text: words.join(" "), weight };
        let spans = [span(first, 1.0), span(second, 1.5)];
        let found = chunks(&tokenizer, &spans, ChunkCut::Word, 20, &TokenEmbeddings::default()).unwrap();
        let tokens = |chunk: &Chunk| chunk.spans.iter().flatten().count();
        let found: Vec<usize> = found.iter().map(tokens).collect();
        let expected: Vec<usize> = expected.iter().map(Vec::len).collect();
        assert_eq!(found, expected, "{lengths:?}");
    }
}

#[test]
fn a_truncated_text_has_the_first_tokens_alone() {
    let tokenizer = Tokenizer::clip(kiln_clip::ClipPadding::End).unwrap();
    let span = |text: String, weight| Span { text, weight };
    let spans = [
        span("apple ".repeat(40), 1.0),
        span("BREAK".into(), -1.0),
        span("pear, ".repeat(10), 1.5),
        span("fig ".repeat(30), 1.0),
    ];
    let found = chunks(&tokenizer, &spans, ChunkCut::Truncate, 20, &TokenEmbeddings::default()).unwrap();
    let [chunk] = found.as_slice() else { panic!("{} chunks", found.len()) };
    let of = |span: usize| chunk.spans.iter().filter(|found| **found == Some(span)).count();
    assert_eq!([of(0), of(1), of(2), of(3)], [40, 0, 20, 15]);
    assert_eq!((chunk.ids[76], chunk.weights[41], chunk.weights[76]), (tokenizer.eos(), 1.5, 1.0));
}
