//! Many jobs: short ones among long ones, cancels, a full queue, and the end of the server.

use std::time::{Duration, Instant};

use kiln_serve::ServeOptions;
use serde_json::Value;

use crate::jobs::job;
use crate::support::{Served, options};

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
fn a_server_is_ready_when_the_weights_are_there() {
    let served = Served::start(options());
    assert_eq!(served.get("/healthz").status, 200);
    let start = Instant::now();
    while served.get("/readyz").status != 200 {
        assert!(start.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(5));
    }
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
}
