//! Several models in memory: they take turns, and leave if the plan of another one needs their memory.

use std::ops::ControlFlow;
use std::sync::Arc;

use kiln_engine::{
    ByteSize, Engines, ExecutionTarget, MemoryOptions, Mode, ModelFolder, Plan, Planner, RunningBatch, Setup, Workload,
};
use kiln_testkit::{fixtures, repository};

use super::support::{bits, from_env, images, request, tiny};

fn model(kind: &str) -> Arc<ModelFolder> {
    Arc::new(ModelFolder::open(&fixtures(&format!("models/{kind}"))).unwrap())
}

/// Whether the weights of `model` were read.
fn switch(engines: &mut Engines, model: &Arc<ModelFolder>) -> bool {
    engines.switch(model, &mut |_| ControlFlow::Continue(())).unwrap()
}

fn names(engines: &Engines) -> Vec<String> {
    engines.models().map(|model| model.name()).collect()
}

#[test]
fn models_that_take_turns_are_read_once_and_give_the_images_that_they_give_alone() {
    let (all, setup) = ([model("sd1"), model("sdxl"), model("sd2v")], from_env());
    let request = |seed| request("a pear", (64, 64), 2, seed);
    let mut engines = Engines::new(setup.clone(), None);
    for (turn, seed) in [5, 6].into_iter().enumerate() {
        for one in &all {
            assert_eq!(switch(&mut engines, one), turn == 0, "{}", one.name());
            let drawn = images(engines.current_mut().unwrap(), &request(seed));
            assert_eq!(bits(&drawn), bits(&images(&mut tiny(&one.name(), &setup), &request(seed))), "{}", one.name());
        }
    }
    assert!(!switch(&mut engines, &all[2]), "it runs already");
    assert_eq!(names(&engines), ["sd1", "sdxl", "sd2v"], "the one that runs is the last");
    engines.clear();
    assert!(engines.current().is_none() && names(&engines).is_empty());
}

#[test]
fn no_more_models_stay_than_are_allowed() {
    let all = [model("sd1"), model("sdxl"), model("sd2v")];
    let mut one = Engines::new(from_env(), Some(1));
    assert!(switch(&mut one, &all[0]) && switch(&mut one, &all[1]) && switch(&mut one, &all[0]));
    assert_eq!(names(&one), ["sd1"]);
    let mut two = Engines::new(from_env(), Some(2));
    all.iter().for_each(|model| assert!(switch(&mut two, model)));
    assert_eq!(names(&two), ["sdxl", "sd2v"], "the least recently used one left");
    assert!(!switch(&mut two, &all[1]) && switch(&mut two, &all[0]));
    assert_eq!(names(&two), ["sdxl", "sd1"]);
}

/// The plan that keeps all networks in memory, for an image of this side: with as few bytes as `limit` asks for.
fn whole_plan(model: &ModelFolder, side: usize, setup: &Setup, limit: Option<usize>) -> Plan {
    let request = request("a pear", (side, side), 2, 1);
    let job = request.resolve(model).unwrap();
    let (on, _) = ExecutionTarget::of(setup);
    Planner::of_job(model, &job, setup).unwrap().plan(Mode::Full, &Workload::of(&job), on, limit).unwrap()
}

#[test]
fn a_model_leaves_if_another_one_needs_its_memory() {
    let (first, second) = (model("sd1"), model("sd2v"));
    let setup = super::support::cpu();
    let side = |model: &ModelFolder| model.defaults().width;
    let weights = |plan: &Plan| plan.stages.iter().map(|stage| stage.weights + stage.conditions).max().unwrap();
    let [of_first, of_second] = [&first, &second].map(|model| whole_plan(model, side(model), &setup, None));
    let both = (of_first.peak() + weights(&of_second)).max(of_second.peak() + weights(&of_first));
    let within = |bytes: usize| {
        let memory = MemoryOptions { budget: Some(ByteSize(bytes + bytes / 16)), ..MemoryOptions::default() };
        Engines::new(Setup { memory, ..setup.clone() }, None)
    };
    let mut engines = within(both);
    assert!(switch(&mut engines, &first) && switch(&mut engines, &second) && !switch(&mut engines, &first));
    assert_eq!(names(&engines), ["sd2v", "sd1"]);

    // A larger image of the first has no room next to the second, but has it alone.
    let large = (side(&first)..).step_by(64).find(|&side| {
        let plan = whole_plan(&first, side, &setup, Some(0)); // decoded in the smallest strips
        plan.peak() + weights(&of_second) > both + both / 8
    });
    let large = large.unwrap();
    let job = request("a pear", (large, large), 2, 1).resolve(&first).unwrap();
    let small = request("a pear", (side(&first), side(&first)), 2, 1).resolve(&first).unwrap();
    engines.make_room(&RunningBatch::new(), &small).unwrap();
    assert_eq!(names(&engines), ["sd2v", "sd1"]);
    engines.make_room(&RunningBatch::new(), &job).unwrap();
    assert_eq!(names(&engines), ["sd1"]);
    assert!(switch(&mut engines, &second));

    // Another one with the same weights, which are most of what it needs.
    let twins = [(); 2].map(|()| Arc::new(ModelFolder::open(&repository().join("models/emoji")).unwrap()));
    let mut narrow = within(whole_plan(&twins[0], 64, &setup, Some(0)).peak());
    twins.iter().for_each(|twin| assert!(switch(&mut narrow, twin)));
    assert_eq!(narrow.models().count(), 1, "there is no room for two");
}
