//! Grouping of images into batches.

use std::collections::HashMap;
use std::hash::Hash;

use kiln_engine::Job;
use serde_json::json;

/// Images of one model by what a batch has in common, and those with the same LoRAs and control networks next to
/// one another, so that weights change as seldom as they can. Each group has its images in their order, by their place in `jobs`.
pub(crate) fn groups<'a>(jobs: impl Iterator<Item = &'a Job>) -> Vec<Vec<usize>> {
    let mut groups: Vec<(usize, Vec<usize>)> = Vec::new();
    let (mut known, mut loras) = (HashMap::new(), HashMap::new());
    for (i, job) in jobs.enumerate() {
        let next = loras.len();
        let adapters = job.ip_adapters.iter().map(|adapter| &adapter.using.model);
        let nets: Vec<_> = job.controls.iter().map(|control| &control.using.net).chain(adapters).collect();
        let of_loras = *loras.entry(json!([job.loras, nets]).to_string()).or_insert(next);
        let next = groups.len();
        let group = *known.entry(json!(job.shared()).to_string()).or_insert(next);
        if group == next {
            groups.push((of_loras, Vec::new()));
        }
        groups[group].1.push(i);
    }
    groups.sort_by_key(|(of_loras, _)| *of_loras);
    groups.into_iter().map(|(_, images)| images).collect()
}

/// Splits the images of one group into batches of at most `n` with equal shapes: full batches in order, then the rest.
pub(crate) fn batches<S: Eq + Hash>(images: impl IntoIterator<Item = (usize, S)>, n: usize) -> Vec<Vec<usize>> {
    let (mut batches, mut open): (Vec<Vec<usize>>, HashMap<S, Vec<usize>>) = Default::default();
    for (image, shape) in images {
        let batch = open.entry(shape).or_default();
        batch.push(image);
        if batch.len() >= n.max(1) {
            batches.push(std::mem::take(batch));
        }
    }
    let mut rest: Vec<Vec<usize>> = open.into_values().filter(|batch| !batch.is_empty()).collect();
    rest.sort(); // a hash map is unordered
    batches.extend(rest);
    batches
}

#[cfg(test)]
mod tests {
    use super::*;
    use kiln_engine::{LoraUse, ModelFolder, Request};

    #[test]
    fn prompts_seeds_and_generators_may_differ() {
        let model = ModelFolder::open(&kiln_testkit::fixtures("models/sd1")).unwrap();
        let lora = |text: &str| text.parse::<LoraUse>().unwrap();
        let default = Request { width: Some(64), height: Some(64), ..Request::default() };
        let jobs = [
            Request { prompt: "a".into(), seed: Some(1), ..default.clone() },
            Request { loras: vec![lora("a")], ..default.clone() },
            Request { prompt: "b".into(), negative_prompt: Some("c".into()), ensd: Some(3), ..default.clone() },
            Request { steps: Some(7), ..default.clone() },
            Request { loras: vec![lora("a")], cfg_scale: Some(2.0), ..default.clone() },
            Request { subseed_strength: Some(0.5), rng: kiln_engine::Rng::Cuda, ..default.clone() },
        ];
        let jobs = jobs.map(|request| request.resolve(&model).unwrap());
        assert_eq!(groups(jobs.iter()), [vec![0, 2, 5], vec![3], vec![1], vec![4]]);
    }

    #[test]
    fn batches_have_one_shape() {
        let shapes = [1, 1, 2, 1, 2, 1, 3].into_iter().enumerate();
        assert_eq!(batches(shapes.clone(), 2), [vec![0, 1], vec![2, 4], vec![3, 5], vec![6]]);
        assert_eq!(batches(shapes.clone(), 9), [vec![0, 1, 3, 5], vec![2, 4], vec![6]]);
        assert_eq!(batches(shapes, 1).len(), 7);
    }
}
