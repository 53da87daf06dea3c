//! Several engines over one queue.

use kiln_engine::{ByteSize, MemoryOptions, Setup};
use kiln_serve::ServeOptions;
use kiln_testkit::fixtures;
use serde_json::Value;

use crate::jobs::job;
use crate::support::{Served, cpu, options};

/// An engine with one thread.
fn one_thread() -> Setup {
    Setup { threads: Some(1), ..cpu() }
}

/// The pixels of all images of these jobs, and the jobs when they are done.
fn made(served: &Served, ids: &[String]) -> Vec<Vec<u8>> {
    let of_job = |id: &String| {
        let job = served.finished(id);
        assert_eq!(job["status"], "done", "{job}");
        let images = job["images"].as_array().unwrap().len();
        (0..images).map(|i| served.image(&job, i)).collect::<Vec<_>>()
    };
    ids.iter().flat_map(of_job).collect()
}

fn submit_all(served: &Served, jobs: &[Value]) -> Vec<String> {
    jobs.iter().map(|job| served.submit(job)).collect()
}

/// Jobs of two models, several sizes and several images.
fn jobs(second: &str) -> Vec<Value> {
    (0..10)
        .map(|i| {
            let mut job = job("a cat", 3 + i % 4, i as u64);
            job["batch_count"] = (1 + i % 2).into();
            if i % 4 == 3 {
                job["model"] = second.into();
            }
            job
        })
        .collect()
}

#[test]
fn images_have_the_bits_of_one_engine() {
    let models = vec![fixtures("models/sd1"), fixtures("models/sdxl")];
    let of = |setups| Served::start(ServeOptions { setups, models: models.clone(), ..options() });
    let (one, three) = (of(vec![cpu()]), of(vec![one_thread(); 3]));
    let jobs = jobs("sdxl");
    let expected = made(&one, &submit_all(&one, &jobs));
    assert!(made(&three, &submit_all(&three, &jobs)) == expected);
    let text = String::from_utf8(three.get("/metrics").bytes()).unwrap();
    assert!(text.contains("kiln_jobs_total{outcome=\"done\"} 10"), "{text}");
}

#[test]
fn jobs_without_room_on_one_device_go_to_another() {
    let memory = MemoryOptions { budget: Some(ByteSize(64 << 10)), ..MemoryOptions::default() };
    let small = Setup { memory, ..one_thread() };
    let served = Served::start(ServeOptions { setups: vec![small.clone(), one_thread()], ..options() });
    let jobs: Vec<Value> = (0..4).map(|i| job("a dog", 3, i)).collect();
    assert_eq!(made(&served, &submit_all(&served, &jobs)).len(), 4);
    let served = Served::start(ServeOptions { setups: vec![small; 2], ..options() });
    let job = served.finished(&served.submit(&jobs[0]));
    assert_eq!(job["status"], "failed", "no device has room: {job}");
}

#[test]
fn accepted_jobs_are_finished_by_all_engines_when_the_server_stops() {
    let served = Served::start(ServeOptions { setups: vec![one_thread(); 2], ..options() });
    let ids: Vec<String> = (0..6).map(|i| served.submit(&job("a fox", 60, i))).collect();
    std::thread::scope(|scope| {
        let events: Vec<_> = ids.iter().map(|id| scope.spawn(|| served.events(id))).collect();
        served.wait(&ids[0], |job| job["status"] == "running");
        std::thread::sleep(std::time::Duration::from_millis(50));
        served.server.drain();
        for events in events {
            let (name, job) = events.join().unwrap().pop().unwrap();
            assert_eq!((name.as_str(), job["status"].as_str()), ("done", Some("done")));
        }
    });
    served.server.wait().unwrap();
}

#[test]
fn canceling_ends_the_jobs_of_all_engines() {
    let served = Served::start(ServeOptions { setups: vec![one_thread(); 2], ..options() });
    let ids: Vec<String> = (0..6).map(|i| served.submit(&job("a fox", 1000, i))).collect();
    served.server.stop();
    served.server.wait().unwrap();
    assert_eq!(ids.len(), 6);
}
