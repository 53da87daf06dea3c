//! Tests of ComfyUI's routes: prompts, web socket messages, and errors.

use std::time::{Duration, Instant};

use kiln_media::ImageText;
use kiln_request::settings::formats;
use kiln_serve::{Access, Limits, ServeOptions};
use serde_json::{Value, json};

use crate::comfy_graphs::{Heard, Socket, address, done, graph, graph_with, image, kinds, node, refused, send, taken};
use crate::support::{Served, alone, options, pixels};

/// The request that `--like` takes from an image with this graph.
fn like(graph: &Value) -> Value {
    let text = ImageText { place: "tEXt".into(), key: "prompt".into(), text: graph.to_string() };
    let (program, found) = formats::find(&[text]).unwrap();
    assert_eq!(program, "ComfyUI");
    serde_json::to_value(found.unwrap().request).unwrap()
}

#[test]
fn a_graph_makes_the_image_that_like_makes_of_it() {
    let served = Served::start(options());
    let lcm = [("3.sampler_name", json!("dpmpp_2m")), ("3.scheduler", json!("karras")), ("3.cfg", json!(7))];
    let advanced = json!({
        "add_noise": "enable", "noise_seed": 9, "steps": 3, "cfg": 4.0, "sampler_name": "heun", "scheduler": "simple",
        "start_at_step": 0, "end_at_step": 10000, "return_with_leftover_noise": "disable", "model": ["4", 0],
        "positive": ["6", 0], "negative": ["7", 0], "latent_image": ["5", 0],
    });
    for graph in [graph(), graph_with(&lcm), graph_with(&[("3", node("KSamplerAdvanced", advanced))])] {
        let id = taken(&served, &graph);
        let history = done(&served, &id);
        assert_eq!(history["status"]["status_str"], "success", "{history}");
        let expected = alone(&[like(&graph)]).remove(0).remove(0);
        assert_eq!(pixels(&image(&served, &history, "9")), expected.rgb, "{graph}");
    }
}

/// The noise of a batch is one draw: the first image of a sampler without noise of its own is the image alone.
#[test]
fn images_of_a_batch_share_a_generator() {
    let served = Served::start(options());
    let made = |graph: &Value| {
        let history = done(&served, &taken(&served, graph));
        let files = history["outputs"]["9"]["images"].as_array().unwrap().clone();
        let names: Vec<&str> = files.iter().filter_map(|file| file["filename"].as_str()).collect();
        let image = |name: &&str| {
            pixels(&served.get(&format!("/view?filename={}&subfolder=pears", name.replace(' ', "%20"))).bytes())
        };
        names.iter().map(image).collect::<Vec<_>>()
    };
    let batch = made(&graph_with(&[("5.batch_size", json!(2))]));
    assert_eq!((batch.len(), &batch[0]), (2, &made(&graph())[0]));
    for sampler in ["euler", "euler_ancestral", "dpmpp_sde"] {
        let graph = graph_with(&[("5.batch_size", json!(2)), ("3.sampler_name", json!(sampler))]);
        let part = |part: &str| {
            let mut request = like(&graph);
            (request["noise_part"], request["batch_size"]) = (json!(part), json!(1));
            alone(&[request]).remove(0).remove(0).rgb
        };
        assert_eq!(made(&graph), [part("1/2"), part("2/2")], "{sampler}");
    }
}

/// Samplers made of nodes are those of `KSampler`, apart from levels that only that one leaves out.
#[test]
fn samplers_of_nodes_are_those_of_one_node() {
    let served = Served::start(options());
    let made = |graph: &Value| pixels(&image(&served, &done(&served, &taken(&served, graph)), "9"));
    let custom = |sampler: &str, guider: Value| {
        let links = json!({ "noise": ["20", 0], "guider": ["21", 0], "sampler": ["22", 0], "sigmas": ["23", 0], "latent_image": ["5", 0] });
        graph_with(&[
            ("3", node("SamplerCustomAdvanced", links)),
            ("20", node("RandomNoise", json!({ "noise_seed": 7 }))),
            ("21", guider),
            ("22", node("KSamplerSelect", json!({ "sampler_name": sampler }))),
            (
                "23",
                node("BasicScheduler", json!({ "scheduler": "normal", "steps": 4, "denoise": 1.0, "model": ["4", 0] })),
            ),
        ])
    };
    let guider =
        node("CFGGuider", json!({ "model": ["4", 0], "positive": ["6", 0], "negative": ["7", 0], "cfg": 5.5 }));
    assert_eq!(made(&custom("euler", guider.clone())), made(&graph()));
    let dpm = graph_with(&[("3.sampler_name", json!("dpm_2"))]);
    assert_ne!(made(&custom("dpm_2", guider)), made(&dpm), "that program leaves a level out in one node");
    let basic = node("BasicGuider", json!({ "model": ["4", 0], "conditioning": ["6", 0] }));
    assert_eq!(made(&custom("euler", basic)), made(&graph_with(&[("3.cfg", json!(1.0))])));
    let plain = json!({
        "add_noise": true, "noise_seed": 7, "cfg": 5.5, "model": ["4", 0], "positive": ["6", 0], "negative": ["7", 0],
        "sampler": ["22", 0], "sigmas": ["23", 0], "latent_image": ["5", 0],
    });
    let levels = json!({ "steps": 4, "sigma_max": 14.614642, "sigma_min": 0.0291675, "rho": 7.0 });
    let karras = graph_with(&[
        ("3", node("SamplerCustom", plain)),
        ("22", node("KSamplerSelect", json!({ "sampler_name": "euler" }))),
        ("23", node("KarrasScheduler", levels)),
    ]);
    let mut request = like(&graph_with(&[("3.scheduler", json!("karras"))]));
    (request["sigma_max"], request["sigma_min"], request["rho"]) = (json!(14.614642), json!(0.0291675), json!(7.0));
    assert_eq!(made(&karras), alone(&[request]).remove(0).remove(0).rgb);
}

#[test]
fn a_client_hears_of_its_prompt_and_of_no_other() {
    let served = Served::start(options());
    let mut socket = Socket::open(&served, "/ws?clientId=tests");
    let Heard::Event(kind, data) = socket.next() else { panic!("no event") };
    assert_eq!((&*kind, &data["sid"]), ("status", &json!("tests")));
    assert_eq!(data["status"]["exec_info"]["queue_remaining"], 0);
    let mut other = Socket::open(&served, "/api/ws?clientId=other");
    let id = taken(&served, &graph_with(&[("3.steps", json!(60))]));
    let all = socket.until_end(&id);
    let order = kinds(&all);
    let place =
        |kind: &str| order.iter().position(|found| *found == kind).unwrap_or_else(|| panic!("{kind}: {order:?}"));
    for pair in ["execution_start", "execution_cached", "progress", "executed", "execution_success"].windows(2) {
        assert!(place(pair[0]) < place(pair[1]), "{order:?}");
    }
    let events = |kind: &str| -> Vec<&Value> {
        let all = all.iter().filter_map(|heard| match heard {
            Heard::Event(found, data) if found == kind => Some(data),
            _ => None,
        });
        all.collect()
    };
    let nodes: Vec<&str> = events("executing").iter().filter_map(|data| data["node"].as_str()).collect();
    for id in ["6", "3", "8", "9"] {
        assert!(nodes.contains(&id), "{nodes:?}");
    }
    let last = events("progress").last().copied().unwrap();
    assert_eq!(
        (&last["value"], &last["max"], &last["node"], &last["prompt_id"]),
        (&json!(60), &json!(60), &json!("3"), &json!(id))
    );
    let executed = events("executed")[0];
    assert_eq!((&executed["node"], &executed["output"]["images"][0]["type"]), (&json!("9"), &json!("output")));
    // A preview: 1, the kind 2 of PNG, and the file.
    let preview = all.iter().find_map(|heard| if let Heard::Bytes(bytes) = heard { Some(bytes) } else { None });
    let preview = preview.expect("a preview");
    assert_eq!(preview[..8], [0, 0, 0, 1, 0, 0, 0, 2]);
    assert_eq!(pixels(&preview[8..]).len(), 8 * 8 * 3);
    let name = &executed["output"]["images"][0]["filename"];
    assert_eq!(name, "a pear_00001_.png");
    assert_eq!(done(&served, &id)["outputs"]["9"], executed["output"]);
    // The other one heard of the queue alone.
    served.post("/queue", b"{}");
    let Heard::Event(kind, _) = other.next() else { panic!("no event") };
    assert_eq!(kind, "status");
    // A client that says so gets previews with their node.
    other.send(&json!({ "type": "feature_flags", "data": { "supports_preview_metadata": true } }));
    let body = json!({ "prompt": graph_with(&[("3.steps", json!(60))]), "client_id": "other", "prompt_id": "mine" });
    assert_eq!(served.post("/api/prompt", body.to_string().as_bytes()).json()["prompt_id"], "mine");
    let all = other.until_end("mine");
    let with: Vec<&Vec<u8>> =
        all.iter().filter_map(|heard| if let Heard::Bytes(bytes) = heard { Some(bytes) } else { None }).collect();
    assert_eq!(with[0][..4], [0, 0, 0, 4]);
    let length = u32::from_be_bytes(with[0][4..8].try_into().unwrap()) as usize;
    let metadata: Value = serde_json::from_slice(&with[0][8..8 + length]).unwrap();
    assert_eq!((&metadata["prompt_id"], &metadata["node_id"]), (&json!("mine"), &json!("3")));
    assert_eq!(send(&served, &graph()).status, 200);
}

#[test]
fn what_is_wrong_is_named_by_its_node() {
    let served = Served::start(options());
    let loop_of = json!({ "lora_name": "x", "strength_model": 1.0, "model": ["30", 0] });
    for (changes, id, kind, words) in [
        (
            vec![("6.class", json!("CLIPTextEncodeOther"))],
            "6",
            "missing_node_type",
            "CLIPTextEncodeOther does not exist",
        ),
        (vec![("3.steps", json!(0))], "3", "value_smaller_than_min", "smaller than min of 1"),
        (vec![("3.steps", json!("many"))], "3", "invalid_input_type", "INT"),
        (vec![("3.seed", json!(-1))], "3", "value_smaller_than_min", "smaller"),
        (vec![("3.cfg", json!(1e9))], "3", "value_bigger_than_max", "bigger than max of 100"),
        (vec![("3.sampler_name", json!("dpm_adaptive"))], "3", "value_not_in_list", "list of length"),
        (vec![("4.ckpt_name", json!("other.safetensors"))], "4", "value_not_in_list", "['sd1'"),
        (vec![("3.positive", json!(["99", 0]))], "3", "bad_linked_input", "node 99 does not exist"),
        (vec![("3.positive", json!(["4", 9]))], "3", "bad_linked_input", "no output 9"),
        (vec![("3.positive", json!(["4", 0]))], "3", "return_type_mismatch", "MODEL"),
        (vec![("3.positive", json!("a pear"))], "3", "bad_linked_input", "no link"),
        (vec![("3.positive", json!([1, 2, 3]))], "3", "bad_linked_input", "positive"),
        (vec![("5.batch_size", json!(65))], "5", "custom_validation_failed", "expected at most 64"),
        (vec![("3.denoise", json!(0.5))], "3", "custom_validation_failed", "denoise of node 3"),
        (vec![("5.width", json!(60))], "5", "custom_validation_failed", "multiple of 8"),
        (vec![("9.filename_prefix", json!("../up"))], "9", "custom_validation_failed", "no name"),
        (vec![("9.filename_prefix", json!("/etc/x"))], "9", "custom_validation_failed", "no name"),
        (
            vec![
                ("30", node("ModelSamplingSD3", json!({ "shift": 3.0, "model": ["31", 0] }))),
                ("31", node("ModelSamplingSD3", json!({ "shift": 3.0, "model": ["30", 0] }))),
                ("3.model", json!(["30", 0])),
            ],
            "30",
            "dependency_cycle",
            "cycle",
        ),
        (
            vec![("30", node("LoraLoaderModelOnly", loop_of)), ("3.model", json!(["30", 0]))],
            "30",
            "value_not_in_list",
            "lora_name",
        ),
        (
            vec![
                ("3.model", json!(["30", 0])),
                ("30", node("ModelSamplingSD3", json!({ "shift": 3.0, "model": ["4", 0] }))),
            ],
            "30",
            "custom_validation_failed",
            "shift",
        ),
    ] {
        let graph = graph_with(&changes);
        let errors = refused(&served, &graph);
        let found = errors.get(id).unwrap_or_else(|| panic!("{changes:?}: {errors:?}"));
        let text = found.to_string();
        assert!(found["errors"].as_array().unwrap().iter().any(|error| error["type"] == kind), "{changes:?}: {text}");
        assert!(text.contains(words), "{changes:?}: {text}");
        assert_eq!(found["class_type"], graph[id]["class_type"], "{text}");
    }
    let mut without = graph();
    without["3"]["inputs"].as_object_mut().unwrap().remove("steps");
    let errors = refused(&served, &without);
    assert_eq!(errors["3"]["errors"][0]["type"], "required_input_missing");
    assert_eq!((&errors["3"]["dependent_outputs"], errors.len()), (&json!(["9"]), 1));
    let error = |body: &str| {
        let answer = served.post("/prompt", body.as_bytes());
        (answer.status, answer.json()["error"]["type"].as_str().unwrap().to_string())
    };
    assert_eq!(error("{}"), (400, "no_prompt".into()));
    assert_eq!(error(r#"{"prompt": {}}"#), (400, "prompt_no_outputs".into()));
    for body in [
        r#"{"prompt": []}"#,
        r#"{"prompt": {"1": 2}}"#,
        r#"{"prompt": {"1": {"class_type": "KSampler", "inputs": 3}}}"#,
    ] {
        assert_eq!(error(body), (400, "invalid_prompt".into()), "{body}");
    }
    // Nothing of this has waited or run.
    assert_eq!(served.get("/prompt").json()["exec_info"]["queue_remaining"], 0);
    assert_eq!(served.get("/v1/jobs").json(), json!({ "jobs": [] }));
}

#[test]
fn large_and_deep_graphs_are_refused_soon() {
    let served = Served::start(options());
    let begin = Instant::now();
    let mut deep = graph();
    for i in 0..1500 {
        let from = if i == 0 { json!(["4", 0]) } else { json!([format!("m{}", i - 1), 0]) };
        deep[format!("m{i}")] = node("ModelSamplingSD3", json!({ "shift": 3.0, "model": from }));
    }
    deep["3"]["inputs"]["model"] = json!(["m1499", 0]);
    assert!(!refused(&served, &deep).is_empty());
    let many: Value =
        (0..3000).map(|i| (i.to_string(), graph()["4"].clone())).collect::<serde_json::Map<_, _>>().into();
    assert!(refused(&served, &many).is_empty());
    // Texts that are combined again and again are as many as there are ways.
    let mut wide = graph();
    for i in 0..40 {
        let from = if i == 0 { json!(["6", 0]) } else { json!([format!("c{}", i - 1), 0]) };
        wide[format!("c{i}")] = node("ConditioningCombine", json!({ "conditioning_1": from, "conditioning_2": from }));
    }
    wide["3"]["inputs"]["positive"] = json!(["c39", 0]);
    assert!(!refused(&served, &wide).is_empty());
    let long = graph_with(&[("6.text", json!("a".repeat(3 << 20)))]);
    assert!(refused(&served, &long).is_empty());
    let nested = format!(r#"{{"prompt": {}{}}}"#, "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(served.post("/prompt", nested.as_bytes()).status, 400);
    assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
    let small = Served::start(ServeOptions { limits: Limits { body: 1000, ..Limits::default() }, ..options() });
    assert_eq!(small.post("/prompt", &vec![b' '; 2000]).status, 413);
}

#[test]
fn prompts_wait_are_interrupted_and_forgotten() {
    let served = Served::start(ServeOptions { max_per_client: 1, ..options() });
    let long = |seed: u64| graph_with(&[("3.steps", json!(900)), ("3.seed", json!(seed))]);
    let mut socket = Socket::open(&served, "/ws?clientId=tests");
    let running = taken(&served, &long(1));
    while served.get("/queue").json()["queue_running"].as_array().unwrap().is_empty() {
        std::thread::sleep(Duration::from_millis(5));
    }
    let waiting: Vec<String> = (2..5).map(|seed| taken(&served, &long(seed))).collect();
    let queue = served.get("/api/queue").json();
    assert_eq!(queue["queue_running"][0][1], json!(running));
    assert_eq!(queue["queue_running"][0][2], long(1));
    assert_eq!(served.get("/prompt").json()["exec_info"]["queue_remaining"], 4);
    // A prompt that does not run is not interrupted.
    assert_eq!(served.post("/interrupt", format!(r#"{{"prompt_id": "{}"}}"#, waiting[0]).as_bytes()).status, 200);
    served.post("/queue", format!(r#"{{"delete": ["{}"]}}"#, waiting[0]).as_bytes());
    assert_eq!(served.get("/prompt").json()["exec_info"]["queue_remaining"], 3);
    served.post("/queue", br#"{"clear": true}"#);
    assert_eq!(served.get("/prompt").json()["exec_info"]["queue_remaining"], 1);
    served.post("/interrupt", b"");
    let heard = socket.until_end(&running);
    assert!(kinds(&heard).contains(&"execution_interrupted"), "{heard:?}");
    let history = served.get("/history").json();
    assert_eq!(history.as_object().unwrap().keys().collect::<Vec<_>>(), [&running], "others never ran");
    assert_eq!(history[&running]["status"]["status_str"], "error");
    let made = taken(&served, &graph());
    let page = address(&done(&served, &made), "9");
    assert_eq!(served.get(&page).status, 200);
    assert_eq!(served.get("/history?max_items=1").json().as_object().unwrap().len(), 1);
    served.post("/history", format!(r#"{{"delete": ["{made}"]}}"#).as_bytes());
    assert_eq!((served.get(&page).status, served.get(&format!("/history/{made}")).json()), (404, json!({})));
    served.post("/history", br#"{"clear": true}"#);
    assert_eq!(served.get("/history").json(), json!({}));
    assert_eq!(
        served.get("/v1/jobs").json()["jobs"].as_array().unwrap().iter().filter(|job| job["status"] == "done").count(),
        0
    );
}

#[test]
fn clients_with_keys_have_prompts_and_images_of_their_own() {
    let keys = vec!["ann".into(), "bob".into()];
    let served = Served::start(ServeOptions { access: Access { keys, ..Access::default() }, ..options() });
    let get = |key: &str, path: &str| {
        let request = served.agent.get(format!("{}{path}", served.address));
        crate::support::Answer::from(request.header("authorization", format!("Bearer {key}")).call().unwrap())
    };
    let post = |key: &str, path: &str, body: &Value| {
        let request = served.agent.post(format!("{}{path}", served.address));
        let request = request.header("authorization", format!("Bearer {key}"));
        crate::support::Answer::from(request.send(body.to_string().as_bytes()).unwrap())
    };
    for path in ["/prompt", "/history", "/object_info", "/ws", "/api/queue", "/system_stats"] {
        assert_eq!(served.get(path).status, 401, "{path}");
    }
    let id = post("ann", "/prompt", &json!({ "prompt": graph() })).json()["prompt_id"].as_str().unwrap().to_string();
    let history = loop {
        let history = get("ann", &format!("/history/{id}")).json();
        if let Some(found) = history.get(&id) {
            break found.clone();
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let page = address(&history, "9");
    assert_eq!((get("ann", &page).status, get("bob", &page).status), (200, 404));
    assert_eq!((get("bob", "/history").json(), get("bob", &format!("/history/{id}")).json()), (json!({}), json!({})));
    post("bob", "/history", &json!({ "clear": true }));
    assert_eq!(get("ann", &page).status, 200);
}

#[test]
fn lists_are_those_of_the_server() {
    let served = Served::start(options());
    let all = served.get("/object_info").json();
    let required = &all["CheckpointLoaderSimple"]["input"]["required"];
    assert_eq!(required["ckpt_name"][0], json!(["sd1"]));
    let sampler = &all["KSampler"]["input"]["required"];
    let has = |list: &Value, name: &str| list.as_array().unwrap().contains(&json!(name));
    assert!(has(&sampler["sampler_name"][0], "dpmpp_2m") && !has(&sampler["sampler_name"][0], "dpm_adaptive"));
    assert!(has(&sampler["scheduler"][0], "karras") && has(&sampler["scheduler"][0], "simple"));
    assert_eq!(sampler["seed"][1]["max"], json!(u64::MAX));
    assert_eq!((&all["SaveImage"]["output_node"], &all["KSampler"]["output"]), (&json!(true), &json!(["LATENT"])));
    assert_eq!(served.get("/object_info/KSampler").json()["KSampler"], all["KSampler"]);
    assert_eq!(served.get("/api/object_info/Nothing").json(), json!({}));
    assert!(has(&served.get("/models").json(), "checkpoints"));
    assert_eq!(served.get("/models/checkpoints").json(), json!(["sd1"]));
    assert_eq!(served.get("/models/..%2Fetc").status, 404);
    assert_eq!(served.get("/embeddings").json(), json!([]));
    let system = served.get("/api/system_stats").json();
    assert!(system["devices"][0]["name"].is_string() && system["system"]["ram_total"].as_u64() > Some(0), "{system}");
    assert_eq!(served.post("/free", br#"{"unload_models": true}"#).status, 200);
    assert_eq!(served.get("/features").json()["supports_preview_metadata"], true);
}
