//! The order of jobs that wait.

use kiln_serve::{Access, ServeOptions};
use serde_json::{Value, json};

use crate::jobs::job;
use crate::support::{Answer, Served, options};

/// More steps than a test waits for.
const STEPS: usize = 900;

/// A job that keeps others waiting until it is canceled.
fn blocker() -> Value {
    let mut long = job("a wall", STEPS, 1);
    long["priority"] = json!(1);
    long
}

fn ask(served: &Served, id: &str, body: &Value) -> Answer {
    served.post(&format!("/v1/jobs/{id}/move"), body.to_string().as_bytes())
}

#[test]
fn a_job_that_waits_comes_before_others() {
    let served = Served::start(options());
    let wall = served.submit(&blocker());
    served.wait(&wall, |job| job["status"] == "running");
    let [a, b, c] = [("a", 6), ("b", 6), ("c", 40)].map(|(prompt, steps)| served.submit(&job(prompt, steps, 2)));
    // The longest one would be the last.
    let answer = ask(&served, &c, &json!({ "before": a }));
    assert_eq!((answer.status, answer.json()["id"].clone()), (200, json!(c)));
    assert_eq!(ask(&served, &a, &json!({ "position": 9 })).status, 200);
    served.wait(&c, |job| job["position"] == 0);
    served.wait(&b, |job| job["position"] == 1);
    served.wait(&a, |job| job["position"] == 2);
    for (id, body, status, words) in [
        ("nothing", json!({ "position": 0 }), 404, "no job nothing"),
        (wall.as_str(), json!({ "position": 0 }), 400, "does not wait"),
        (a.as_str(), json!({ "before": wall }), 400, "another job of the same client that waits"),
        (a.as_str(), json!({}), 400, "expected one of"),
        (a.as_str(), json!({ "after": b }), 400, "after"),
    ] {
        let answer = ask(&served, id, &body);
        assert_eq!(answer.status, status, "{body}");
        let message = answer.json()["error"]["message"].to_string();
        assert!(message.contains(words), "{message}");
    }
    assert_eq!(served.delete(&format!("/v1/jobs/{wall}")).status, 200);
    let [a, b, c] = [a, b, c].map(|id| served.finished(&id));
    let time = |job: &Value, name: &str| job[name].as_f64().unwrap();
    assert!(time(&c, "finished") <= time(&b, "finished") && time(&b, "finished") <= time(&a, "finished"));
    assert!(time(&c, "started") <= time(&b, "started") && time(&b, "started") <= time(&a, "started"));
}

#[test]
fn a_client_moves_its_own_jobs_alone() {
    let access = Access { keys: vec!["ann".into(), "bob".into()], ..Access::default() };
    let served = Served::start(ServeOptions { access, ..options() });
    let send = |path: &str, key: &str, body: &Value| -> Answer {
        let request = served.agent.post(format!("{}{path}", served.address));
        request.header("authorization", format!("Bearer {key}")).send(body.to_string().as_bytes()).unwrap().into()
    };
    let submit = |key: &str| {
        let answer = send("/v1/jobs", key, &job("a", STEPS, 1));
        assert_eq!(answer.status, 202);
        answer.json()["id"].as_str().unwrap().to_string()
    };
    let (_, second, other) = (submit("ann"), submit("ann"), submit("bob"));
    let to = |id: &str, key: &str, body: Value| send(&format!("/v1/jobs/{id}/move"), key, &body).status;
    assert_eq!(to(&second, "bob", json!({ "position": 0 })), 404);
    assert_eq!(to(&second, "ann", json!({ "before": other })), 400);
    assert_eq!(to(&second, "eve", json!({ "position": 0 })), 401);
    assert_eq!(to(&second, "ann", json!({ "position": 0 })), 200);
}
