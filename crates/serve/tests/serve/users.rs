//! Clients with keys: jobs, images, settings and priorities of their own.

use kiln_serve::{Access, ServeOptions};
use serde_json::{Value, json};

use crate::jobs::job;
use crate::support::{Answer, Served, options};

const ANN: &str = "Basic YW5uOmEx";
const BOB: &str = "Basic Ym9iOmIx";

/// Two users, who share their jobs or do not.
fn access(shared_jobs: bool) -> Access {
    let users = vec![("ann".into(), "a1".into()), ("bob".into(), "b1".into())];
    Access { users, shared_jobs, ..Access::default() }
}

/// A server with them.
fn start(shared_jobs: bool) -> Served {
    Served::start(ServeOptions { access: access(shared_jobs), ..options() })
}

fn get(served: &Served, user: &str, path: &str) -> Answer {
    served.agent.get(format!("{}{path}", served.address)).header("authorization", user).call().unwrap().into()
}

fn post(served: &Served, user: &str, path: &str, body: &Value) -> Answer {
    let request = served.agent.post(format!("{}{path}", served.address)).header("authorization", user);
    request.send(body.to_string().as_bytes()).unwrap().into()
}

fn delete(served: &Served, user: &str, path: &str) -> Answer {
    served.agent.delete(format!("{}{path}", served.address)).header("authorization", user).call().unwrap().into()
}

fn submit(served: &Served, user: &str, job: &Value) -> String {
    let answer = post(served, user, "/v1/jobs", job);
    assert_eq!(answer.status, 202);
    answer.json()["id"].as_str().unwrap().into()
}

/// The job when it is finished.
fn finished(served: &Served, user: &str, id: &str) -> Value {
    // The events end with the job.
    get(served, user, &format!("/v1/jobs/{id}/events")).bytes();
    get(served, user, &format!("/v1/jobs/{id}")).json()
}

#[test]
fn a_user_sees_and_ends_own_jobs_alone() {
    let served = start(false);
    let secret = submit(&served, ANN, &job("a secret pear", 900, 1));
    let done = submit(&served, ANN, &job("a fig", 2, 1));
    let done = finished(&served, ANN, &done);
    let image = done["images"][0]["url"].as_str().unwrap();
    assert_eq!(get(&served, BOB, "/v1/jobs").json(), json!({ "jobs": [] }));
    let own = format!("/v1/jobs/{secret}");
    for path in [own.clone(), format!("{own}/events"), image.to_string()] {
        get(&served, BOB, &path).refused(404, "not_found");
    }
    delete(&served, BOB, &own).refused(404, "not_found");
    post(&served, BOB, &format!("{own}/finish"), &json!(null)).refused(404, "not_found");
    assert_eq!(get(&served, ANN, image).status, 200);
    let listed = get(&served, ANN, "/v1/jobs").json();
    assert_eq!(listed["jobs"].as_array().unwrap().len(), 2, "{listed}");
    assert_ne!(get(&served, ANN, &own).json()["status"], "canceled");
    assert_eq!(delete(&served, ANN, &own).status, 200);
    assert_eq!(finished(&served, ANN, &secret)["status"], "canceled");
}

#[test]
fn a_user_has_own_settings_and_progress_of_the_web_ui() {
    let served = start(false);
    let options = |user: &str| get(&served, user, "/sdapi/v1/options").json();
    let wanted = json!({ "samples_format": "webp", "CLIP_stop_at_last_layers": 2 });
    assert_eq!(post(&served, BOB, "/sdapi/v1/options", &wanted).status, 200);
    assert_eq!((&options(BOB)["samples_format"], &options(ANN)["samples_format"]), (&json!("webp"), &json!("png")));
    assert_eq!(options(ANN)["CLIP_stop_at_last_layers"], 1);
    let body =
        json!({ "prompt": "a pear", "steps": 900, "n_iter": 40, "width": 64, "height": 64, "sampler_name": "Euler" });
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| post(&served, ANN, "/sdapi/v1/txt2img", &body).status);
        let progress = |user: &str| get(&served, user, "/sdapi/v1/progress").json()["state"].clone();
        // A job that has not begun has no image when it is interrupted.
        while progress(ANN)["sampling_step"] == 0 {
            assert!(!waiting.is_finished(), "the job has ended");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert_eq!(progress(BOB)["job_count"], 0);
        post(&served, BOB, "/sdapi/v1/interrupt", &json!({}));
        post(&served, BOB, "/sdapi/v1/skip", &json!({}));
        assert_eq!(get(&served, ANN, "/sdapi/v1/progress").json()["state"]["interrupted"], false);
        post(&served, ANN, "/sdapi/v1/interrupt", &json!({}));
        assert_eq!(waiting.join().unwrap(), 200);
    });
}

#[test]
fn a_user_who_fills_the_queue_keeps_no_other_out() {
    let mut small = options();
    small.limits.queue = 2;
    let served = Served::start(ServeOptions { access: access(false), max_batch: Some(1), ..small });
    let long = job("a pear", 900, 1);
    while post(&served, ANN, "/v1/jobs", &long).status == 202 {}
    let id = submit(&served, BOB, &job("a fig", 2, 1));
    post(&served, ANN, "/v1/jobs", &long).refused(429, "queue_full");
    assert_eq!(finished(&served, BOB, &id)["status"], "done");
}

#[test]
fn a_priority_is_one_that_the_server_allows() {
    let with = |priority: i32| {
        let mut job = job("a pear", 2, 1);
        job["priority"] = priority.into();
        job
    };
    let served = start(false);
    let message = post(&served, ANN, "/v1/jobs", &with(1)).refused(400, "invalid_request");
    assert_eq!(message, "`priority` is 1, expected -100 to 0, the limit of this server");
    submit(&served, ANN, &with(-100));
    let mut few = options();
    few.limits.priority = Some(-5);
    let served = Served::start(few);
    served.post("/v1/jobs", with(0).to_string().as_bytes()).refused(400, "invalid_request");
    served.submit(&with(-5));
}

#[test]
fn users_share_their_jobs_where_the_server_says_so() {
    let served = start(true);
    let mut urgent = job("a pear", 900, 1);
    urgent["priority"] = 100.into();
    let id = submit(&served, ANN, &urgent);
    assert_eq!(get(&served, BOB, "/v1/jobs").json()["jobs"][0]["id"], id);
    assert_eq!(delete(&served, BOB, &format!("/v1/jobs/{id}")).status, 200);
    assert_eq!(finished(&served, BOB, &id)["status"], "canceled");
    post(&served, BOB, "/sdapi/v1/options", &json!({ "samples_format": "webp" }));
    assert_eq!(get(&served, ANN, "/sdapi/v1/options").json()["samples_format"], "webp");
}
