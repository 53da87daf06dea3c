//! What ComfyUI's page asks for beyond prompts: its own files, settings and workflows, and lists of jobs.

use kiln_serve::{Access, ServeOptions};
use serde_json::{Value, json};
use tempfile::tempdir;

use crate::comfy_graphs::{done, graph, graph_with, taken};
use crate::support::{Answer, Served, options};

fn header(answer: &Answer, name: &str) -> String {
    answer.response.headers().get(name).unwrap().to_str().unwrap().to_string()
}

#[test]
fn the_page_is_a_folder_of_the_operator() {
    let folder = tempdir().unwrap();
    std::fs::create_dir(folder.path().join("assets")).unwrap();
    std::fs::write(folder.path().join("index.html"), "<p>the page").unwrap();
    std::fs::write(folder.path().join("assets/a.js"), "1").unwrap();
    let served = Served::start(ServeOptions { front_end: Some(folder.path().into()), ..options() });
    let index = served.get("/comfy/");
    assert_eq!(index.status, 200);
    let policy = header(&index, "content-security-policy");
    assert!(policy.contains("default-src 'self'") && policy.contains("connect-src 'self'"), "{policy}");
    assert!(header(&index, "content-type").starts_with("text/html"));
    assert_eq!(index.text(), "<p>the page");
    assert_eq!(served.get("/comfy").text(), "<p>the page", "by a redirect: its links are relative");
    let script = served.get("/comfy/assets/a.js");
    assert!(header(&script, "content-type").contains("javascript"));
    assert_eq!(script.text(), "1");
    for missing in
        ["/comfy/b.js", "/comfy/%2e%2e/Cargo.toml", "/comfy/assets/..%2f..%2fa", "/comfy/assets/%2e%2e%2findex.html"]
    {
        assert_eq!(served.get(missing).status, 404, "{missing}");
    }
    // Each route of the API is there a third time.
    assert!(served.get("/comfy/api/object_info").json()["KSampler"].is_object());
    assert_eq!(served.get("/comfy/prompt").json()["exec_info"]["queue_remaining"], 0);
}

#[test]
fn without_a_folder_there_is_no_page_and_a_wrong_one_is_refused() {
    let served = Served::start(options());
    assert!(served.get("/comfy/").refused(404, "not_found").contains("front_end"));
    let folder = tempdir().unwrap();
    let wrong = ServeOptions { front_end: Some(folder.path().into()), ..options() };
    let message = kiln_serve::Server::start(wrong).err().unwrap().to_string();
    assert!(message.contains("front_end") && message.contains("index.html"), "{message}");
}

#[test]
fn settings_and_workflows_are_kept_in_the_user_s_folder() {
    let folder = tempdir().unwrap();
    let start = || Served::start(ServeOptions { user_dir: Some(folder.path().into()), ..options() });
    let served = start();
    let api = |path: &str| format!("/comfy/api{path}");
    assert_eq!(served.get(&api("/users")).json()["storage"], "server");
    assert_eq!(served.get(&api("/settings/Comfy.a")).json(), Value::Null);
    assert_eq!(served.post(&api("/settings"), br#"{"Comfy.a": 1, "Comfy.b": [2]}"#).status, 200);
    assert_eq!(served.post(&api("/settings/Comfy.a"), b"\"x\"").status, 200);
    assert_eq!(served.get(&api("/settings/Comfy.a")).json(), "x");
    assert_eq!(served.get(&api("/settings")).json()["Comfy.b"], json!([2]));
    assert!(served.post(&api("/settings/Comfy.a"), b"{").refused(400, "invalid_request").contains("body"));

    let workflows = || served.get(&api("/userdata?dir=workflows&recurse=true&full_info=true"));
    assert_eq!(workflows().status, 404);
    let flow = api("/userdata/workflows%2Fmy%20flow.json");
    let written = served.post(&format!("{flow}?overwrite=false&full_info=true"), b"{\"nodes\": []}").json();
    assert_eq!((&written["path"], &written["size"]), (&json!("workflows/my flow.json"), &json!(13)));
    assert!(written["modified"].as_u64().unwrap() > 1_600_000_000_000, "milliseconds");
    assert_eq!(served.post(&format!("{flow}?overwrite=false"), b"{}").status, 409);
    assert_eq!(served.get(&flow).text(), "{\"nodes\": []}");
    assert_eq!(workflows().json()[0]["path"], "my flow.json");
    assert_eq!(
        served.get(&api("/userdata?dir=workflows&split=true")).json(),
        json!([["my flow.json", "my flow.json"]])
    );
    assert_eq!(served.post(&format!("{flow}/move/workflows%2Fb.json"), b"").json(), "workflows/b.json");
    assert!(folder.path().join("default/workflows/b.json").is_file(), "as ComfyUI's folder has it");
    for wrong in ["..%2Fa", "%2e%2e%2f%2e%2e%2fa", "a%5Cb", ".hidden", "c%3Aa", "a%00b"] {
        let path = api(&format!("/userdata/{wrong}"));
        assert_eq!((served.get(&path).status, served.post(&path, b"x").status), (400, 400), "{wrong}");
    }
    assert_eq!(served.get(&api("/userdata?dir=")).status, 400);
    drop(served);
    let served = start();
    assert_eq!(served.get(&api("/settings/Comfy.a")).json(), "x", "after a restart");
    assert_eq!(served.delete(&api("/userdata/workflows%2Fb.json")).status, 204);
    assert_eq!(served.delete(&api("/userdata/workflows%2Fb.json")).status, 404);
    assert!(std::fs::read_dir(folder.path()).unwrap().count() == 1, "nothing is written next to it");
}

#[test]
fn users_with_keys_have_files_of_their_own() {
    let access = Access { keys: vec!["one".into(), "two".into()], ..Access::default() };
    let served = Served::start(ServeOptions { access, ..options() });
    let path = "/comfy/api/userdata/workflows%2Fa.json";
    assert_eq!(served.get(path).status, 401);
    let url = format!("{}{path}", served.address);
    let read = |key: &str| {
        let request = served.agent.get(&url).header("authorization", format!("Bearer {key}"));
        request.call().unwrap().status().as_u16()
    };
    let written = served.agent.post(&url).header("authorization", "Bearer one").send("{}").unwrap();
    assert_eq!((written.status().as_u16(), read("one"), read("two")), (200, 200, 404));
}

#[test]
fn prompts_are_listed_as_jobs() {
    let served = Served::start(options());
    let first = taken(&served, &graph());
    done(&served, &first);
    let with_workflow = json!({
        "prompt": graph_with(&[("3.seed", json!(7))]), "extra_data": { "extra_pnginfo": { "workflow": { "id": "flow" } } },
    });
    let sent = served.post("/prompt", with_workflow.to_string().as_bytes()).json();
    let second = sent["prompt_id"].as_str().unwrap().to_string();
    done(&served, &second);
    let list = |query: &str| served.get(&format!("/api/jobs?{query}")).json();
    let ids = |list: &Value| -> Vec<String> {
        list["jobs"].as_array().unwrap().iter().map(|job| job["id"].as_str().unwrap().to_string()).collect()
    };
    let all = list("status=completed,failed");
    assert_eq!(ids(&all), [second.clone(), first.clone()], "the newest first");
    assert_eq!(ids(&list("sort_order=asc")), [first.clone(), second.clone()]);
    assert_eq!(ids(&list("workflow_id=flow")), [second.as_str()]);
    assert_eq!(
        list("limit=1&offset=1")["pagination"],
        json!({ "offset": 1, "limit": 1, "total": 2, "has_more": false })
    );
    assert_eq!(list("limit=1")["pagination"]["has_more"], true);
    assert!(ids(&list("status=pending,in_progress")).is_empty());
    let job = &all["jobs"][1];
    assert_eq!((&job["status"], &job["outputs_count"]), (&json!("completed"), &json!(1)));
    let preview = &job["preview_output"];
    assert_eq!(
        (&preview["nodeId"], &preview["mediaType"], &preview["type"]),
        (&json!("9"), &json!("images"), &json!("output"))
    );
    let [created, start, end] =
        ["create_time", "execution_start_time", "execution_end_time"].map(|name| job[name].as_u64().unwrap());
    assert!(created <= start && start <= end, "{job}");
    let one = served.get(&format!("/api/jobs/{first}")).json();
    assert_eq!(one["workflow"]["prompt"], graph());
    assert_eq!(one["outputs"]["9"]["images"].as_array().unwrap().len(), 1);
    assert_eq!(served.get("/api/jobs/none").status, 404);
    for wrong in ["status=lost", "sort_by=size", "sort_order=up"] {
        assert_eq!(served.get(&format!("/api/jobs?{wrong}")).status, 400, "{wrong}");
    }
}

#[test]
fn jobs_are_canceled_by_their_ids() {
    let served = Served::start(options());
    let long = graph_with(&[("3.steps", json!(900))]);
    let ids: Vec<String> = (0..3).map(|_| taken(&served, &long)).collect();
    assert_eq!(served.post(&format!("/api/jobs/{}/cancel", ids[0]), b"").status, 200);
    let body = json!({ "job_ids": [ids[1], ids[2], "none"] }).to_string();
    let canceled = served.post("/api/jobs/cancel", body.as_bytes()).json();
    assert_eq!(canceled["cancelled"].as_array().unwrap().len(), 2, "{canceled}");
    for _ in 0..600 {
        if served.get("/prompt").json()["exec_info"]["queue_remaining"] == 0 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let left = served.get("/api/jobs?status=completed,in_progress,pending").json();
    assert_eq!(left["pagination"]["total"], 0, "{left}");
    assert_eq!(served.post("/api/jobs/none/cancel", b"").status, 404);
    assert_eq!(served.post("/api/jobs/cancel", b"{}").status, 400);
}
