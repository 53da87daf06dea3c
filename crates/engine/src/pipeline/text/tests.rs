//! Texts of batches: their work, their cache and their order.

use candle_core::Tensor;
use kiln_request::Request;

use super::*;
use crate::pipeline::conditioning::StepRows;
use crate::residency::StreamBudget;

fn open(model: &ModelFolder) -> TextEncoders {
    let place = Placement::new(Device::Cpu, DType::F32);
    let words = Embeddings::open(None).unwrap();
    TextEncoders::open(model, [&place, &place], &ComponentOptions::default(), words, 8).unwrap()
}

fn model(name: &str) -> ModelFolder {
    ModelFolder::open(&kiln_testkit::fixtures("models").join(name)).unwrap()
}

#[test]
fn foreseen_texts_are_encoded_one_by_one_beside_the_steps() {
    let model = model("sd1");
    let request = |prompt: &str| Request { prompt: prompt.into(), ..Request::default() };
    let jobs = ["a pear", "a fig"].map(|prompt| request(prompt).resolve(&model).unwrap());
    let mut text = open(&model);
    text.foresee(jobs.iter(), true);
    let encoded: Vec<usize> = (0..4).map(|_| text.encode_next(9).unwrap()).collect();
    assert_eq!(encoded, [1, 1, 1, 0], "two prompts, and the empty one once");
    let conditions = |text: &mut TextEncoders, job: &Job| {
        let plan = text.plan(&Batch::of_jobs([job])).unwrap();
        let known = text.knows(&plan);
        let mut conditions = text.conditions(job, plan, &WeightResidency::Whole, true, &mut |_, _| Ok(())).unwrap();
        let inputs = conditions.at(0, StepRows { guided: true, ..StepRows::default() }).unwrap();
        let context = inputs.get(kiln_network::slots::CONTEXT).unwrap();
        (known, context.flatten_all().unwrap().to_vec1::<f32>().unwrap())
    };
    for job in &jobs {
        let (known, values) = conditions(&mut text, job);
        assert!(known && (false, values) == conditions(&mut open(&model), job));
    }
}

/// A store for one process.
#[derive(Default)]
struct Values(std::sync::Mutex<std::collections::HashMap<String, Vec<u8>>>);

impl crate::TextStore for Values {
    fn get(&self, key: &str, most: usize) -> Option<Vec<u8>> {
        self.0.lock().unwrap().get(key).filter(|value| value.len() <= most).cloned()
    }

    fn put(&self, key: &str, value: &[u8]) {
        self.0.lock().unwrap().insert(key.into(), value.into());
    }
}

#[test]
fn a_text_comes_back_from_a_store_in_every_family_and_type() {
    for (name, dtype) in [("sd1", DType::F32), ("sd1", DType::BF16), ("sdxl", DType::F32), ("sdxl", DType::BF16)] {
        let (model, store) = (model(name), Arc::new(Values::default()));
        let prompt = format!("a (pear:1.2), {}", "a fig, ".repeat(30));
        let job = Request { prompt, ..Request::default() }.resolve(&model).unwrap();
        let open = || {
            let place = Placement::new(Device::Cpu, dtype);
            let words = Embeddings::open(None).unwrap();
            let options = ComponentOptions::default();
            let mut text = TextEncoders::open(&model, [&place, &place], &options, words, 8).unwrap();
            text.share(SharedTexts::new(store.clone(), name.into()));
            text
        };
        let mut first = open();
        let plan = first.plan(&Batch::of_job(&job, 0)).unwrap();
        first.conditions(&job, plan.clone(), &WeightResidency::Whole, true, &mut |_, _| Ok(())).unwrap();
        assert_eq!(store.0.lock().unwrap().len(), plan.texts());
        let mut second = open();
        let plan = second.plan(&Batch::of_job(&job, 0)).unwrap();
        second.fetch(&plan);
        assert!(second.knows(&plan) && second.counts().shared == plan.texts(), "{name} in {dtype:?}");
    }
}

#[test]
fn a_text_is_tokenized_once() {
    let model = model("sdxl");
    let mut text = open(&model);
    let long = "a pear, ".repeat(30);
    let request = Request { prompt: format!("{long} [pear:fig:1]"), batch_size: Some(2), ..Request::default() };
    let request = Request { negative_prompt: Some("blurry".into()), batch_count: Some(2), ..request };
    let job = request.resolve(&model).unwrap();
    let (work, plans) = text.work(&job).unwrap();
    let plan = text.plan(&Batch::of_job(&job, 2)).unwrap();
    assert!(plan.shape() == plans[0].shape() && plan.texts() == work.text.texts);
    text.foresee([&job].into_iter(), false);
    for plan in plans.into_iter().chain([plan]) {
        text.conditions(&job, plan, &WeightResidency::Whole, true, &mut |_, _| Ok(())).unwrap();
    }
    assert_eq!(text.tokenized.count(), 4, "two prompts, the negative one, and the empty one that fills it up");
}

#[test]
fn a_run_can_be_stopped_between_texts() {
    let model = model("sdxl");
    let mut text = open(&model);
    let prompt: String = (1..40).map(|i| format!("[x{i}:{i}]")).collect();
    let job = Request { prompt, steps: Some(40), ..Request::default() }.resolve(&model).unwrap();
    let plan = text.plan(&Batch::of_job(&job, 0)).unwrap();
    assert!(plan.texts() >= 40 && text.work(&job).unwrap().0.text.texts == plan.texts());
    let mut asked = 0;
    let mut stop = |i: usize, of: usize| {
        assert!(i < of);
        asked += 1;
        if asked == 5 { Err(crate::Error::Interrupted) } else { Ok(()) }
    };
    let stopped = text.conditions(&job, plan.clone(), &WeightResidency::Whole, true, &mut stop);
    assert!(matches!(stopped.err(), Some(crate::Error::Interrupted)) && asked == 5);
    // A long text is encoded in portions, between which it can be stopped, too.
    let job = Request { prompt: "a BREAK ".repeat(60), ..Request::default() }.resolve(&model).unwrap();
    let long = text.plan(&Batch::of_job(&job, 0)).unwrap();
    let (texts, mut asked) = (long.texts(), 0);
    let mut stop = |_, _| {
        asked += 1;
        if asked == texts + 1 { Err(crate::Error::Interrupted) } else { Ok(()) }
    };
    let stopped = text.conditions(&job, long, &WeightResidency::Whole, true, &mut stop);
    assert!(matches!(stopped.err(), Some(crate::Error::Interrupted)) && asked == texts + 1);
    // More texts than the cache has room for are not kept besides those that the run holds.
    text.conditions(&job, plan.clone(), &WeightResidency::Whole, true, &mut |_, _| Ok(())).unwrap();
    assert!(text.counts().encoded >= plan.texts());
    let kept = |(key, _): &(PromptText, Arc<Tokens>)| !key.text.is_empty() && text.cache.peek(key).is_some();
    assert!(!plan.texts.iter().any(kept));
}

/// The rows of a text with placements on the CPU and on a GPU, whole and streamed.
#[test]
#[ignore = "needs a GPU with Vulkan, Metal or DirectX 12, or Mesa's lavapipe"]
fn vulkan_hidden_states_are_those_of_the_cpu() {
    let backend = "gpu".parse::<kiln_setup::PortableDevice>().unwrap().open(None).unwrap().backend();
    for (name, dtype, bound) in
        [("sd1", DType::F32, 1e-5), ("sd1", DType::F16, 5e-3), ("sdxl", DType::F32, 1e-5), ("sdxl", DType::F16, 5e-3)]
    {
        let model = model(name);
        let prompt = format!("a (pear:1.2), {}", "a fig, ".repeat(30));
        let job = Request { prompt, ..Request::default() }.resolve(&model).unwrap();
        let rows = |place: Placement, keep: &WeightResidency| {
            let (words, host) = (Embeddings::open(None).unwrap(), Placement::new(Device::Cpu, dtype));
            let options = ComponentOptions::default();
            let mut text = TextEncoders::open(&model, [&place, &host], &options, words, 8).unwrap();
            let plan = text.plan(&Batch::of_job(&job, 0)).unwrap();
            let mut conditions = text.conditions(&job, plan, keep, true, &mut |_, _| Ok(())).unwrap();
            let inputs = conditions.at(0, StepRows { guided: true, ..StepRows::default() }).unwrap();
            inputs.get(kiln_network::slots::CONTEXT).unwrap().to_dtype(DType::F32).unwrap()
        };
        let on_gpu =
            |keep: &WeightResidency| rows(Placement::new(Device::Cpu, dtype).with_backend(Some(backend.clone())), keep);
        let copies = kiln_weights::CopyTimes {
            bytes_per_second: 1e9,
            seconds_per_copy: 0.0,
            seconds_per_wait: 0.0,
            by_engine: false,
        };
        let estimate = kiln_weights::Estimate { seconds: Vec::new(), copies };
        let streamed = WeightResidency::Streamed { share: StreamBudget::LEAST, estimate, pins: false };
        let (expected, found) =
            (rows(Placement::new(Device::Cpu, DType::F32), &WeightResidency::Whole), on_gpu(&WeightResidency::Whole));
        let error = kiln_testkit::deviation(&found, &expected).error;
        println!("{name} {dtype:?}: {error:.1e}");
        assert!(error < bound, "{name} in {dtype:?}: {error:e} standard deviations");
        let values = |rows: &Tensor| rows.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        assert!(values(&on_gpu(&streamed)) == values(&found), "{name} in {dtype:?}: streamed weights give other bits");
    }
}
