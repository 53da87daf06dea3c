//! The text stages of Stable Diffusion 3 and FLUX.1 compared with diffusers' `encode_prompt`.

use std::path::Path;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use kiln_clip::{ClipEncoder, TextEncoder, TextEncoderConfig};
use kiln_families::text::{ClipT5Text, T5Part};
use kiln_network::TextWidths;
use kiln_network::text::{CONTEXT, NoWords, POOLED, PromptText, Result, Runs, TextDevice, TextStage, TextTensors};
use kiln_prompt::{ChunkCut, Emphasis, TextOptions};
use kiln_t5::{T5Config, T5Encoder, Tokenizer};
use kiln_testkit::{Fixture, Parity, shared_data, shared_models};
use kiln_weights::{KeyRule, Placement, Renamed, load, open_component};
use serde_json::Value;

/// In standard deviations, f32 on both sides.
const BOUND: f64 = 1e-4;

/// Runs everything on the calling thread.
struct OnCpu;

impl Runs for OnCpu {
    fn enter(&mut self, _network: usize) -> Result<TextDevice> {
        Ok(Device::Cpu.into())
    }

    fn proceed(&mut self, _text: usize, _texts: usize) -> Result<()> {
        Ok(())
    }

    fn run(&mut self, _network: usize, work: &mut (dyn FnMut() + Send)) {
        work();
    }

    fn leave(&mut self, _network: usize) {}
}

fn placement() -> Placement {
    Placement::new(Device::Cpu, DType::F32)
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn clip(model: &Path, number: &str) -> ClipEncoder {
    let folder = model.join(format!("text_encoder{number}"));
    let encoder = TextEncoder::new(TextEncoderConfig::open(&folder).unwrap()).unwrap();
    let source = Renamed::new(open_component(&folder).unwrap(), KeyRule::TEXT_MODEL);
    load(encoder.segments(), &source, &placement()).unwrap();
    let tokenizer = kiln_clip::Tokenizer::open(&model.join(format!("tokenizer{number}"))).unwrap();
    ClipEncoder { encoder, tokenizer: Some(tokenizer), network: None }
}

fn t5(model: &Path, number: &str) -> T5Part {
    let folder = model.join(format!("text_encoder{number}"));
    let config = std::fs::read_to_string(folder.join("config.json")).unwrap();
    let encoder = T5Encoder::new(T5Config::from_json(&config).unwrap()).unwrap();
    let source = Renamed::new(open_component(&folder).unwrap(), KeyRule::T5_TABLE);
    load(encoder.segments(), &source, &placement()).unwrap();
    let tokenizer = Tokenizer::open(&model.join(format!("tokenizer{number}"))).unwrap();
    T5Part { encoder, tokenizer: Some(tokenizer), network: None }
}

fn widths(model: &Path) -> TextWidths {
    let config = json(&model.join("transformer/config.json"));
    let width = |key: &str| config[key].as_u64().map(|width| width as usize);
    TextWidths { context: width("joint_attention_dim"), pooled: width("pooled_projection_dim") }
}

fn sd3(model: &Path, has_t5: bool) -> ClipT5Text {
    let clip = [Some(clip(model, "")), Some(clip(model, "_2"))];
    ClipT5Text::sd3(clip, has_t5.then(|| t5(model, "_3")), widths(model), 256)
}

fn flux(model: &Path, max_length: usize) -> ClipT5Text {
    ClipT5Text::flux(Some(clip(model, "")), Some(t5(model, "_2")), widths(model), max_length)
}

/// Texts without weights of words, cut as diffusers does.
fn encode(stage: &ClipT5Text, texts: &[&str], max_length: Option<usize>) -> Vec<TextTensors> {
    let is_cut = !stage.ignores().contains(&"chunk_cut");
    let chunk_cut = if is_cut { ChunkCut::Truncate } else { ChunkCut::default() };
    let options = TextOptions { emphasis: Emphasis::None, chunk_cut, max_length, ..TextOptions::default() };
    let tokenize = |text: &&str| {
        let text = PromptText::plain(*text, stage.effective(options));
        let tokens = stage.tokenize(&text, &NoWords).unwrap();
        (text, Arc::new(tokens))
    };
    let texts: Vec<_> = texts.iter().map(tokenize).collect();
    let encoded = stage.encode(&texts, &mut OnCpu).unwrap();
    for ((_, tokens), encoded) in texts.iter().zip(&encoded) {
        let found: Vec<(&str, Vec<usize>)> = encoded.iter().map(|(name, x)| (name, x.dims().to_vec())).collect();
        assert_eq!(found, stage.shapes(tokens.length()));
    }
    encoded
}

/// Compares all cases of a model that have embeddings.
fn check(stage: &ClipT5Text, model: &str, number: usize) {
    let cases = json(&shared_data("families/cases.json"));
    let cases = cases.as_array().unwrap().iter().filter(|case| case["model"] == model && case["embeds"] == true);
    let mut seen = 0;
    for case in cases {
        let name = case["name"].as_str().unwrap();
        let fixture = Fixture::read(name, &shared_data(&format!("families/{name}.safetensors")));
        let parity = Parity::new("text", name);
        let texts = [case["prompt"].as_str().unwrap(), case["negative"].as_str().unwrap_or_default()];
        let max_length = case["max_length"].as_u64().map(|length| length as usize);
        let encoded = encode(stage, &texts, max_length);
        let names = [["prompt_embeds", "pooled"], ["negative_embeds", "negative_pooled"]];
        for (encoded, [rows, pooled]) in encoded.iter().zip(names) {
            for (name, slot) in [(rows, CONTEXT), (pooled, POOLED)] {
                if let Some(expected) = fixture.get(name) {
                    parity.check(name, encoded.get(slot).unwrap(), &expected, BOUND);
                }
            }
        }
        assert!(fixture.get("prompt_embeds").is_some());
        seen += 1;
    }
    assert_eq!(seen, number);
}

#[test]
#[ignore = "needs ../shared/data"]
fn shared_data_texts_of_stable_diffusion_3() {
    for (model, number) in [("sd3", 2), ("sd35_medium", 1)] {
        check(&sd3(&shared_data(&format!("families/models/{model}")), true), model, number);
    }
}

#[test]
#[ignore = "needs ../shared/data"]
fn shared_data_texts_of_flux() {
    for (model, max_length) in [("flux_schnell", 256), ("flux_dev", 512)] {
        check(&flux(&shared_data(&format!("families/models/{model}")), max_length), model, 1);
    }
}

/// The first rows of CLIP and of T5.
fn first_rows(encoded: &TextTensors) -> [Tensor; 2] {
    let context = encoded.get(CONTEXT).unwrap();
    [0, 77].map(|first| context.narrow(1, first, 16).unwrap().contiguous().unwrap())
}

#[test]
#[ignore = "needs ../shared/data"]
fn shared_data_texts_of_a_trained_model() {
    let model = shared_models("emoji-sd3");
    for (name, has_t5) in [("rocket", true), ("waving-hand-77", true), ("sunflower-no-t5", false)] {
        let fixture = Fixture::read(name, &model.join(format!("expected/{name}.safetensors")));
        let case = json(&model.join(format!("expected/{name}.json")));
        let texts = [case["negative_prompt"].as_str().unwrap(), case["prompt"].as_str().unwrap()];
        let max_length = case["max_sequence_length"].as_u64().map(|length| length as usize);
        let parity = Parity::new("text", name);
        for (row, encoded) in encode(&sd3(&model, has_t5), &texts, max_length).iter().enumerate() {
            let expected = |key: &str| fixture.tensor(key).narrow(0, row, 1).unwrap();
            let [clip, t5] = first_rows(encoded);
            parity.check(&format!("{row} clip"), &clip, &expected("embeds_clip"), BOUND);
            parity.check(&format!("{row} t5"), &t5, &expected("embeds_t5"), BOUND);
            parity.check(&format!("{row} pooled"), encoded.get(POOLED).unwrap(), &expected("pooled"), BOUND);
            let length = 77 + max_length.unwrap();
            assert_eq!(encoded.get(CONTEXT).unwrap().dims(), [1, length, 288]);
        }
    }
}
