//! A text stage of another kind than CLIP's goes through plans, the cache, the shared store and conditions.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use candle_core::{DType, Device, Tensor};
use kiln_models::{Architecture, ModelFolder, Preset};
use kiln_network::text::{CONTEXT, Fill, PromptText, Result, Runs, TextNetwork, TextStage, TextTensors, Tokens, Words};
use kiln_nn::{MetaDevice, MetaTensor};
use kiln_ops::Target;
use kiln_prompt::TextOptions;
use kiln_request::Request;

use crate::component::WeightResidency;
use crate::mode::Mode;
use crate::pipeline::batch::Batch;
use crate::pipeline::conditioning::StepRows;
use crate::pipeline::event::Stage;
use crate::pipeline::shared_texts::{SharedTexts, TextStore};
use crate::pipeline::text::TextEncoders;
use crate::plan::{ExecutionTarget, Planner, TextWork, Workload};
use crate::words::Embeddings;
use crate::{Error, pipeline::conditioning::Conditions};

/// Every text has 16 tokens, its bytes, and a mask of those that are not padding.
#[derive(Clone, Default)]
struct FixedText {
    /// The number of texts that were encoded.
    encoded: Arc<AtomicUsize>,
}

const LENGTH: usize = 16;
const MASK: &str = "mask";

impl TextStage for FixedText {
    fn networks(&self) -> Vec<TextNetwork<'_>> {
        Vec::new()
    }

    fn ignores(&self) -> &'static [&'static str] {
        &TextOptions::NAMES
    }

    fn effective(&self, _options: TextOptions) -> TextOptions {
        TextOptions::default()
    }

    fn tokenize(&self, text: &PromptText, _words: &dyn Words) -> Result<Tokens> {
        let ids: Vec<u8> = text.text.bytes().take(LENGTH).collect();
        let used = ids.len();
        Ok(Tokens::new(LENGTH, ids).with_room(used, LENGTH))
    }

    fn sample(&self, number: usize) -> Tokens {
        Tokens::new(LENGTH, vec![number as u8; LENGTH])
    }

    fn least(&self) -> usize {
        LENGTH
    }

    fn fit(&self, _rows: &[usize], _padded: bool) -> Result<usize> {
        Ok(LENGTH)
    }

    fn needs_empty(&self, _length: usize, _fill: &Fill) -> bool {
        false
    }

    fn fill(&self, text: &TextTensors, _fill: &Fill, _empty: Option<&TextTensors>) -> Result<TextTensors> {
        Ok(text.clone())
    }

    fn encode(&self, texts: &[(PromptText, Arc<Tokens>)], on: &mut dyn Runs) -> Result<Vec<TextTensors>> {
        let mut all = Vec::new();
        for (i, (_, tokens)) in texts.iter().enumerate() {
            on.proceed(i, texts.len())?;
            let ids = tokens.own::<Vec<u8>>().unwrap();
            let value = |i: usize| ids.get(i).map_or(0.0, |&id| f32::from(id));
            let values: Vec<f32> = (0..LENGTH).flat_map(|i| [value(i); 4]).collect();
            let mask: Vec<f32> = (0..LENGTH).map(|i| if i < ids.len() { 1.0 } else { 0.0 }).collect();
            let context = Tensor::from_vec(values, (1, LENGTH, 4), &Device::Cpu)?;
            all.push(
                TextTensors::default()
                    .with(CONTEXT, context)
                    .with(MASK, Tensor::from_vec(mask, (1, LENGTH), &Device::Cpu)?),
            );
            self.encoded.fetch_add(1, Ordering::Relaxed);
        }
        Ok(all)
    }

    fn shapes(&self, length: usize) -> Vec<(&'static str, Vec<usize>)> {
        vec![(CONTEXT, vec![1, length, 4]), (MASK, vec![1, length])]
    }

    fn dry_run(&self, device: &MetaDevice, dtype: DType, length: usize, texts: usize) -> Result<Vec<MetaTensor>> {
        Ok((0..texts).map(|_| device.tensor(&[1, length, 4], dtype)).collect())
    }
}

fn model() -> ModelFolder {
    ModelFolder::open(&kiln_testkit::fixtures("models/sd1")).unwrap()
}

fn open(model: &ModelFolder, stage: &FixedText) -> TextEncoders {
    let words = Embeddings::open(None).unwrap();
    let stage = (Box::new(stage.clone()) as Box<dyn TextStage>, Vec::new());
    TextEncoders::of_stage(model, stage, (DType::F32, Device::Cpu), words, 8)
}

fn conditions(text: &mut TextEncoders, model: &ModelFolder, prompt: &str) -> crate::Result<Conditions> {
    let request = Request { prompt: prompt.into(), negative_prompt: Some("blurry".into()), ..Request::default() };
    let job = request.resolve(model).unwrap();
    let plan = text.plan(&Batch::of_job(&job, 0))?;
    text.fetch(&plan);
    text.conditions(&job, plan, &WeightResidency::Whole, true, &mut |_, _| Ok(()))
}

/// A store for one process.
#[derive(Default)]
struct Values(Mutex<HashMap<String, Vec<u8>>>);

impl TextStore for Values {
    fn get(&self, key: &str, most: usize) -> Option<Vec<u8>> {
        self.0.lock().unwrap().get(key).filter(|value| value.len() <= most).cloned()
    }

    fn put(&self, key: &str, value: &[u8]) {
        self.0.lock().unwrap().insert(key.into(), value.into());
    }
}

#[test]
fn texts_are_planned_encoded_and_cached() {
    let (model, stage) = (model(), FixedText::default());
    let mut text = open(&model, &stage);
    // A schedule of two texts, and a part.
    let prompt = "a [cat:dog:1] on a very long wall AND snow";
    let rows = StepRows { guided: true, ..StepRows::default() };
    let mut first = conditions(&mut text, &model, prompt).unwrap();
    let inputs = first.at(0, rows).unwrap();
    let context = inputs.get(kiln_network::slots::CONTEXT).unwrap();
    assert_eq!(context.dims(), [3, LENGTH, 4]);
    let token = |row: usize, i: usize| context.get(row).unwrap().get(i).unwrap().to_vec1::<f32>().unwrap()[0];
    assert_eq!([token(0, 0), token(1, 2), token(2, 15)], [98.0, 99.0, 0.0], "b of blurry, c of cat, padding");
    assert_eq!(stage.encoded.load(Ordering::Relaxed), 4);
    conditions(&mut text, &model, prompt).unwrap();
    assert_eq!((text.counts().encoded, text.counts().known), (4, 4));
}

#[test]
fn all_tensors_come_back_from_a_store() {
    let (model, stage, store) = (model(), FixedText::default(), Arc::new(Values::default()));
    for encoded in [2, 2] {
        let mut text = open(&model, &stage);
        text.share(SharedTexts::new(store.clone(), "fixed".into()));
        conditions(&mut text, &model, "a cat").unwrap();
        assert_eq!(stage.encoded.load(Ordering::Relaxed), encoded, "the second process encodes nothing");
    }
    assert!(
        store.0.lock().unwrap().values().all(|value| value.windows(MASK.len()).any(|part| part == MASK.as_bytes()))
    );
}

#[test]
fn a_run_can_be_stopped_and_options_without_effect_are_refused() {
    let (model, stage) = (model(), FixedText::default());
    let mut text = open(&model, &stage);
    let job = Request::default().resolve(&model).unwrap();
    let plan = text.plan(&Batch::of_job(&job, 0)).unwrap();
    let mut stop = |_, _| Err(Error::Interrupted);
    let stopped = text.conditions(&job, plan, &WeightResidency::Whole, true, &mut stop);
    assert!(matches!(stopped.err(), Some(Error::Interrupted)));
    let job = Request { clip_skip: Some(2), ..Request::default() }.resolve(&model).unwrap();
    let message = text.plan(&Batch::of_job(&job, 0)).err().unwrap().to_string();
    assert!(message.starts_with("`clip_skip` is 2, expected no value"), "{message}");
}

#[test]
fn plans_count_its_tokens() {
    let architecture = Architecture::preset(Preset::Emoji).unwrap();
    let on = ExecutionTarget::new(Target::Cpu { threads: 2 }, DType::F32);
    let planner = Planner::of_configurations(&architecture).unwrap();
    let encode = |planner: &Planner, work: &Workload| {
        let plan = planner.plan(Mode::Medvram, work, on, None).unwrap();
        *plan.stage(Stage::Encode).unwrap()
    };
    // Enough images that the pool counts the conditions.
    let clip = encode(&planner, &planner.work([None; 2], None, 32).unwrap());
    let planner = planner.with_text(Box::new(FixedText::default()));
    let work = planner.work([None; 2], None, 32).unwrap();
    assert_eq!((work.text.tokens, work.text.context), (LENGTH, LENGTH));
    let fixed = encode(&planner, &work);
    assert!(fixed.weights == 0 && clip.weights > 0);
    let ratio = fixed.conditions as f64 / clip.conditions as f64; // sizes are rounded to classes of the pool
    assert!((ratio * 77.0 / LENGTH as f64 - 1.0).abs() < 0.15, "{fixed:?} {clip:?}");
    // Work without texts has the shortest ones.
    assert_eq!(encode(&planner, &Workload { text: TextWork::short(true), ..work }), fixed);
}
