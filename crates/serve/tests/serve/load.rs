//! Many jobs: short ones among long ones, cancels, a full queue, and the end of the server.

use std::time::{Duration, Instant};

use kiln_engine::{
    ByteSize, ExecutionTarget, MemoryOptions, Mode, ModeChoice, ModelFolder, Overlap, Planner, Request, Setup, Workload,
};
use kiln_serve::ServeOptions;
use kiln_testkit::fixtures;
use serde_json::Value;

use crate::jobs::job;
use crate::support::{Served, alone, cpu, options};

/// Steps that take long enough for what happens meanwhile.
const LONG: usize = 900;

fn is_running(job: &Value) -> bool {
    job["status"] == "running" && job["step"].as_u64() > Some(0)
}

#[test]
fn a_short_job_does_not_wait_for_long_ones() {
    let served = Served::start(ServeOptions { max_batch: Some(1), ..options() });
    let long: Vec<String> = (0..20).map(|seed| served.submit(&job("a pear", 50, seed))).collect();
    served.wait(&long[0], is_running);
    let done = || long.iter().filter(|id| !served.job(id)["finished"].is_null()).count();
    let before = done();
    served.finished(&served.submit(&job("a fig", 4, 1)));
    let (before, after) = (before, done());
    assert!(after - before <= 3 && after < long.len(), "{before} long jobs were done before, {after} after");
    for id in &long {
        assert_eq!(served.finished(id)["status"], "done");
    }
}

#[test]
fn a_job_is_canceled_at_any_step() {
    let served = Served::start(options());
    let (running, waiting) = (served.submit(&job("a pear", LONG, 1)), served.submit(&job("a pear", LONG, 2)));
    served.wait(&running, is_running);
    for id in [&waiting, &running] {
        assert_eq!(served.delete(&format!("/v1/jobs/{id}")).status, 200);
        let ended = served.finished(id);
        assert_eq!((ended["status"].as_str(), ended["images"].as_array().unwrap().len()), (Some("canceled"), 0));
        assert!(ended["step"].as_u64().unwrap() < LONG as u64);
    }
    let next = served.finished(&served.submit(&job("a pear", 2, 1)));
    assert_eq!(next["status"], "done", "the server goes on");
}

#[test]
fn a_job_is_finished_as_it_is() {
    let served = Served::start(options());
    let mut long = job("a pear", LONG, 1);
    long["batch_count"] = 3.into();
    let id = served.submit(&long);
    served.wait(&id, is_running);
    served.post(&format!("/v1/jobs/{id}/finish"), b"");
    let ended = served.finished(&id);
    let images = ended["images"].as_array().unwrap().len();
    assert!(ended["status"] == "done" && (1..=3).contains(&images), "{ended}");
    assert_eq!(served.image(&ended, 0).len(), 64 * 64 * 3);
}

#[test]
fn a_full_queue_says_when_to_come_back() {
    let mut small = options();
    small.limits.queue = 2;
    let served = Served::start(ServeOptions { max_batch: Some(1), ..small });
    let first = served.submit(&job("a pear", LONG, 0));
    served.wait(&first, is_running);
    let more: Vec<String> = (1..=2).map(|seed| served.submit(&job("a pear", LONG, seed))).collect();
    assert_eq!(served.job(&more[1])["position"], 1);
    let full = served.post("/v1/jobs", job("a pear", 2, 9).to_string().as_bytes());
    let after: u64 = full.response.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=60).contains(&after));
    full.refused(429, "queue_full");
    served.delete(&format!("/v1/jobs/{}", more[0]));
    served.wait(&more[1], |job| job["position"] == 0);
    assert_eq!(served.post("/v1/jobs", job("a pear", 2, 9).to_string().as_bytes()).status, 202, "there is room");
}

/// Memory for the next images is a part of readiness and of the metrics.
#[test]
fn a_server_with_memory_is_ready_and_says_how_much_there_is() {
    let served = Served::start(options());
    served.finished(&served.submit(&job("a pear", 2, 1)));
    assert_eq!(served.get("/readyz").status, 200);
    let text = served.get("/metrics").text();
    let value = |name: &str| -> f64 {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {text}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    assert_eq!(value("kiln_memory_low "), 0.0);
    let (available, needed) =
        (value("kiln_memory_available_bytes{of=\"host\"}"), value("kiln_memory_needed_bytes{of=\"host\"}"));
    assert!(needed >= f64::from(32 << 20) && available > needed, "{available} of {needed}");
}

#[test]
fn accepted_jobs_are_finished_when_the_server_stops() {
    let served = Served::start(options());
    let ids = [served.submit(&job("a pear", 60, 1)), served.submit(&job("a fig", 60, 2))];
    served.wait(&ids[0], is_running);
    let events = std::thread::scope(|scope| {
        let events = scope.spawn(|| served.events(&ids[1]));
        std::thread::sleep(Duration::from_millis(50));
        served.server.drain();
        served.post("/v1/jobs", job("a pear", 2, 3).to_string().as_bytes()).refused(503, "stopping");
        assert_eq!(served.get("/readyz").status, 503);
        events.join().unwrap()
    });
    let (name, job) = events.last().unwrap();
    assert_eq!((name.as_str(), job["status"].as_str()), ("done", Some("done")));
    served.server.wait().unwrap();
    assert!(served.agent.get(format!("{}/healthz", served.address)).call().is_err(), "no one listens any more");
}

#[test]
fn a_second_signal_cancels_all_jobs() {
    let served = Served::start(options());
    let id = served.submit(&job("a pear", LONG, 1));
    served.wait(&id, is_running);
    let start = Instant::now();
    served.server.drain();
    served.server.stop();
    served.server.wait().unwrap();
    assert!(start.elapsed() < Duration::from_secs(60));
}

#[test]
fn a_job_fails_by_name_when_its_time_is_over() {
    let served = Served::start(options());
    let mut limited = job("a pear", LONG, 1);
    limited["timeout"] = 0.05.into();
    let ended = served.finished(&served.submit(&limited));
    assert_eq!((&ended["status"], &ended["error"]["code"]), (&"failed".into(), &"deadline_exceeded".into()));
    assert!(ended["images"].as_array().unwrap().is_empty());
    limited["timeout"] = 0.into();
    served.post("/v1/jobs", limited.to_string().as_bytes()).refused(400, "invalid_request");
    let mut strict = options();
    strict.limits.time = Some(Duration::from_millis(50));
    let served = Served::start(strict);
    assert_eq!(served.finished(&served.submit(&job("a pear", LONG, 1)))["error"]["param"], "timeout");
    assert!(served.get("/metrics").text().contains("kiln_jobs_total{outcome=\"expired\"} 1"));
}

#[test]
fn a_higher_priority_comes_first() {
    let served = Served::start(ServeOptions { max_batch: Some(1), ..options() });
    let first = served.submit(&job("a pear", 300, 0));
    served.wait(&first, is_running);
    let usual: Vec<String> = (1..4).map(|seed| served.submit(&job("a pear", 30, seed))).collect();
    let mut urgent = job("a pear", 30, 9);
    urgent["priority"] = 1.into();
    let urgent = served.finished(&served.submit(&urgent));
    let end = |job: &Value| job["finished"].as_f64().unwrap();
    // Three of four steps are the urgent job's, so that those of one length end after it.
    assert!(usual.iter().all(|id| end(&served.finished(id)) > end(&urgent)));
    urgent_is_in_range(&served);
}

fn urgent_is_in_range(served: &Served) {
    let mut wrong = job("a pear", 2, 1);
    wrong["priority"] = 101.into();
    served.post("/v1/jobs", wrong.to_string().as_bytes()).refused(400, "invalid_request");
}

#[test]
fn a_step_waits_for_company() {
    let served =
        Served::start(ServeOptions { max_batch: Some(4), max_delay: Duration::from_millis(1500), ..options() });
    served.wait_ready();
    let ids: Vec<String> = (0..3).map(|seed| served.submit(&job("a pear", 3, seed))).collect();
    ids.iter().for_each(|id| assert_eq!(served.finished(id)["status"], "done"));
    // Each of the three steps had all three images.
    let metrics = served.get("/metrics").text();
    assert!(metrics.contains("kiln_step_images_sum 9.0\nkiln_step_images_count 3"), "{metrics}");
}

#[test]
fn a_server_makes_images_of_chosen_sizes_before_it_is_ready() {
    let served = Served::start(ServeOptions { warm: vec![(64, 64), (96, 64)], ..options() });
    served.wait_ready();
    let expected = alone(&[job("a pear", 3, 5)]);
    let done = served.finished(&served.submit(&job("a pear", 3, 5)));
    assert_eq!(served.image(&done, 0), expected[0][0].rgb, "what was made before changes nothing");
    let metrics = served.get("/metrics").text();
    assert!(metrics.contains("kiln_step_images_sum 3.0"), "they are no requests: {metrics}");
    for (size, expected) in [((60, 64), "a size of the model"), ((4096, 4096), "at most 4194304 pixels")] {
        let error = kiln_serve::Server::start(ServeOptions { warm: vec![size], ..options() }).err().unwrap();
        assert!(error.is_usage() && error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn images_are_decoded_while_steps_run() {
    let jobs: Vec<Value> = (0..4).map(|seed| job("a pear", 6 + 4 * seed, seed as u64)).collect();
    let expected = alone(&jobs);
    let setup = Setup { overlap: Overlap::Always, ..cpu() };
    let served = Served::start(ServeOptions { max_batch: Some(4), setups: vec![setup], ..options() });
    let mut many = job("a fig", 5, 7);
    (many["batch_size"], many["batch_count"]) = (2.into(), 2.into());
    let ids: Vec<String> = jobs.iter().chain([&many]).map(|job| served.submit(job)).collect();
    for (id, expected) in ids.iter().zip(expected.iter().chain(&alone(&[many.clone()]))) {
        let done = served.finished(id);
        assert_eq!(done["status"], "done", "{done}");
        for (index, image) in expected.iter().enumerate() {
            assert_eq!(served.image(&done, index), image.rgb);
            assert_eq!(done["images"][index]["parameters"], image.parameters);
        }
    }
    let long = served.submit(&job("a pear", LONG, 1));
    served.wait(&long, is_running);
    served.post(&format!("/v1/jobs/{long}/finish"), b"");
    let ended = served.finished(&long);
    assert_eq!((&ended["status"], ended["images"].as_array().unwrap().len()), (&"done".into(), 1));
}

#[test]
fn a_job_joins_while_another_runs_its_second_pass() {
    let served = Served::start(ServeOptions { max_batch: Some(1), ..options() });
    let mut hires = job("a pear", 2, 0);
    (hires["hires_scale"], hires["hires_steps"], hires["hires_strength"]) = (1.5.into(), 600.into(), 1.0.into());
    let long = served.submit(&hires);
    served.wait(&long, |job| job["step"].as_u64() > Some(10));
    let short = served.finished(&served.submit(&job("a fig", 4, 1)));
    assert_eq!((&short["status"], &served.job(&long)["status"]), (&"done".into(), &"running".into()));
    served.post(&format!("/v1/jobs/{long}/finish"), b"");
    let ended = served.finished(&long);
    assert_eq!((&ended["status"], &ended["images"][0]["width"]), (&"done".into(), &96.into()));
}

#[test]
fn memory_for_one_image_at_a_time_is_enough() {
    let expected = alone(&(0..8).map(|seed| job("a pear", 5, seed)).collect::<Vec<_>>());
    let served = Served::start(ServeOptions { max_batch: Some(8), setups: vec![small_memory()], ..options() });
    let ids: Vec<String> = (0..8).map(|seed| served.submit(&job("a pear", 5, seed))).collect();
    for (id, expected) in ids.iter().zip(&expected) {
        let done = served.finished(id);
        assert_eq!(done["status"], "done", "{done}");
        assert_eq!(served.image(&done, 0), expected[0].rgb);
    }
    assert!(!served.get("/metrics").text().contains("kiln_out_of_memory_total 0"), "memory was out");
}

/// Memory for one image of [`job`] in a step, and not for eight.
fn small_memory() -> Setup {
    let model = ModelFolder::open(&fixtures("models/sd1")).unwrap();
    let planner = Planner::new(&model, None).unwrap();
    let setup = cpu();
    let peak = |n: usize| {
        let request = Request { width: Some(64), height: Some(64), batch_size: Some(n), ..Request::default() };
        let work = Workload::of(&request.resolve(&model).unwrap());
        planner.plan(Mode::Full, &work, ExecutionTarget::of(&setup).0, None).unwrap().peak()
    };
    let (one, eight) = (peak(1), peak(8));
    assert!(eight > one + one / 8, "{one} bytes for one image, {eight} for eight");
    let memory =
        MemoryOptions { mode: ModeChoice::Full, budget: Some(ByteSize(one + one / 16)), ..MemoryOptions::default() };
    Setup { memory, ..cpu() }
}

#[test]
fn images_are_written_into_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(ServeOptions { output: Some(folder.path().into()), ..options() });
    let done = served.finished(&served.submit(&job("a pear", 2, 1)));
    let file = folder.path().join(format!("{}.png", done["images"][0]["id"].as_str().unwrap()));
    let bytes = std::fs::read(file).unwrap();
    assert_eq!(bytes, served.get(done["images"][0]["url"].as_str().unwrap()).bytes());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_server_is_ready_when_the_weights_are_there() {
    let served = Served::start(options());
    assert_eq!(served.get("/healthz").status, 200);
    served.wait_ready();
    assert_eq!(served.get("/v1/capabilities").json()["models"][0]["loaded"], true);
}

#[test]
fn models_take_turns() {
    let mut two = options();
    two.models.push(kiln_testkit::fixtures("models/sd2v"));
    let served = Served::start(two);
    let ids: Vec<String> = (0..6)
        .map(|seed| {
            let mut job = job("a pear", 6, seed);
            job["model"] = ["sd1", "sd2v"][seed as usize % 2].into();
            served.submit(&job)
        })
        .collect();
    for id in &ids {
        assert_eq!(served.finished(id)["status"], "done");
    }
    assert_eq!(loaded(&served), [true, true], "the weights of both stay");
}

/// Which models the server has in memory.
fn loaded(served: &Served) -> Vec<bool> {
    let lists = served.get("/v1/capabilities").json();
    lists["models"].as_array().unwrap().iter().map(|model| model["loaded"].as_bool().unwrap()).collect()
}

#[test]
fn a_model_leaves_if_one_alone_may_stay() {
    let mut two = ServeOptions { max_loaded: Some(1), ..options() };
    two.models.push(kiln_testkit::fixtures("models/sd2v"));
    let served = Served::start(two);
    for (model, expected) in [("sd1", [true, false]), ("sd2v", [false, true])] {
        let mut job = job("a pear", 2, 1);
        job["model"] = model.into();
        let id = served.submit(&job);
        assert_eq!(served.finished(&id)["status"], "done");
        assert_eq!(loaded(&served), expected);
    }
}
