//! `--trace`: the operators of a step, in a format that other programs read.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::sandbox::Sandbox;

/// The events of a trace that a run wrote.
#[track_caller]
fn events(sandbox: &Sandbox, name: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(sandbox.path(name)).unwrap();
    let trace: Value = serde_json::from_str(&text).unwrap();
    trace["traceEvents"].as_array().unwrap().clone()
}

/// The events of one category.
fn of<'a>(events: &'a [Value], category: &str) -> Vec<&'a Value> {
    events.iter().filter(|event| event["cat"] == category).collect()
}

fn number(event: &Value, key: &str) -> f64 {
    event[key].as_f64().unwrap_or_else(|| panic!("{key}: {event}"))
}

/// Checks the properties of every trace of one step, and returns its operator names in order.
#[track_caller]
fn check(events: &[Value]) -> Vec<&str> {
    let (steps, operators) = (of(events, "step"), of(events, "operator"));
    let [step] = steps[..] else { panic!("{} steps", steps.len()) };
    let (mut end, mut sum) = (0.0, 0.0);
    for operator in &operators {
        let (start, duration) = (number(operator, "ts"), number(operator, "dur"));
        assert!(duration >= 0.0 && start >= end - 1e-3, "begins before {end}: {operator}");
        (end, sum) = (start + duration, sum + duration);
        let args = &operator["args"];
        let result = args["shapes"]["result"].as_array().unwrap();
        assert!(result.iter().all(|extent| extent.as_u64().unwrap() > 0), "{operator}");
        assert!(args["dtype"] == "f32" && args["GB"].as_f64().unwrap() > 0.0, "{operator}");
        assert_eq!((&operator["ph"], &operator["pid"]), (&"X".into(), &step["pid"]));
        if ["conv2d", "linear", "attention"].iter().any(|name| operator["name"] == *name) {
            assert!(args["GFLOP"].as_f64().unwrap() > 0.0, "{operator}");
        }
    }
    let whole = number(step, "dur");
    assert!(end <= whole + 1e-3, "the last operator ends at {end}, the step at {whole}");
    assert!(0.0 < sum && sum <= whole + 1e-3, "operators are {sum} of {whole} microseconds");
    operators.iter().map(|operator| operator["name"].as_str().unwrap()).collect()
}

#[test]
fn a_bench_traces_a_step_by_operator() {
    let sandbox = Sandbox::new();
    let line = "bench --device cpu --dtype f32 --stages step,text --runs 1 --json report.json --trace step.json -v";
    let run = sandbox.kiln(&line.split(' ').collect::<Vec<_>>()).succeeds();
    assert!(run.stderr.contains("emoji: guided step, 1 of 256x256: the traced step took"), "{run}");
    assert!(run.stderr.contains(" calls ") && run.stderr.contains(" %"), "{run}");
    assert_eq!(sandbox.names(), ["report.json", "step.json"]);

    let events = events(&sandbox, "step.json");
    let names = check(&events);
    // A U-Net starts with the timestep and ends with its last convolution, the output layout and the guidance.
    let first: Vec<_> = names.iter().position(|name| *name == "timestep_embedding").into_iter().collect();
    assert!(first.first().is_some_and(|&i| i < 3), "{names:?}");
    assert_eq!(names[names.len() - 4..], ["group_norm", "conv2d", "to_channels_first", "guidance"]);
    let kinds: BTreeSet<_> = names.iter().copied().collect();
    for kind in ["activation", "attention", "concat_channels", "geglu", "layer_norm", "linear", "upsample_nearest"] {
        assert!(kinds.contains(kind), "{kinds:?}");
    }
    let metadata: Vec<_> = events.iter().filter(|event| event["ph"] == "M").collect();
    let named = |what: &str| metadata.iter().filter(|event| event["name"] == what).count();
    assert_eq!((named("process_name"), named("thread_name")), (1, 2));

    // The same FLOPs as in the table, and once for all images the timestep embedding.
    let report: Value = serde_json::from_str(&std::fs::read_to_string(sandbox.path("report.json")).unwrap()).unwrap();
    let expected = report["models"][0]["stages"][0]["flop"].as_f64().unwrap() * 1e-9;
    let gflop: f64 = of(&events, "operator").iter().filter_map(|event| event["args"]["GFLOP"].as_f64()).sum();
    assert!((gflop / expected - 1.0).abs() < 0.01, "{gflop} GFLOP, expected {expected}");
}

#[test]
fn a_trace_does_not_change_the_image() {
    let sandbox = Sandbox::new();
    let common = ["an apple", "--seed", "1", "--device", "cpu", "--dtype", "f32", "--steps", "3"];
    sandbox.txt2img(&[&common[..], &["--output", "plain.png"]].concat()).succeeds();
    sandbox.txt2img(&[&common[..], &["--output", "traced.png", "--trace", "step.json"]].concat()).succeeds();
    check(&events(&sandbox, "step.json"));
    let [plain, traced] = ["plain.png", "traced.png"].map(|name| std::fs::read(sandbox.path(name)).unwrap());
    assert!(plain == traced);
}

#[test]
fn the_second_step_is_traced_where_there_is_one() {
    let sandbox = Sandbox::new();
    for (steps, how) in [("1", "the first step"), ("2", "a warm step")] {
        let args = ["an apple", "--device", "cpu", "--dtype", "f32", "--steps", steps, "--trace", "step.json"];
        sandbox.txt2img(&args).succeeds();
        let events = events(&sandbox, "step.json");
        check(&events);
        let how_it_ran = of(&events, "step")[0]["args"]["how"].as_str().unwrap().to_string();
        assert!(how_it_ran.starts_with(how), "{how_it_ran}");
    }
}

#[cfg_attr(not(unix), ignore = "needs a shell and signals of Unix")]
#[test]
fn a_memory_trace_is_written_replayed_and_plotted() {
    let sandbox = Sandbox::new();
    let line =
        "txt2img apple --device cpu --dtype f32 --steps 2 --width 64 --height 64 -s 1 -o a.png --memory-trace a.jsonl";
    sandbox.kiln(&line.split(' ').collect::<Vec<_>>()).succeeds();
    let text = std::fs::read_to_string(sandbox.path("a.jsonl")).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0]["kiln"], "memory trace");
    let stages: Vec<&str> = lines.iter().filter_map(|line| line["stage"].as_str()).collect();
    for stage in ["load", "encode", "denoise", "decode", "save"] {
        assert!(stages.contains(&stage), "{stages:?}");
    }
    let count = |key: &str, value: &str| lines.iter().filter(|line| line[key] == value).count();
    assert!(count("for", "weights") > 10 && count("for", "activations") > 10, "{}", lines.len());

    let run = sandbox.kiln(&["memory", "replay", "a.jsonl"]).succeeds();
    for policy in ["kiln", "planned", "first fit", "PyTorch, max_split_size_mb:128", "plain"] {
        assert!(run.stdout.contains(policy), "{run}");
    }
    let run = sandbox.kiln(&["memory", "replay", "a.jsonl", "--json"]).succeeds();
    let rows: Value = serde_json::from_str(&run.stdout).unwrap();
    assert!(rows[0]["ratio"].as_f64().unwrap() >= 1.0 && rows[0]["pool"] == "host", "{rows}");
    sandbox.kiln(&["memory", "plot", "a.jsonl", "-o", "a.svg"]).succeeds();
    assert!(std::fs::read_to_string(sandbox.path("a.svg")).unwrap().contains("host memory, peak"));
    sandbox.kiln(&["memory", "replay", "a.png"]).fails(1, &["a.png"]);
    sandbox.kiln(&["memory", "plot", "a.jsonl", "-o", "a.jsonl"]).refused(&["--output", "a name that ends in .svg"]);
    std::fs::copy(sandbox.path("a.jsonl"), sandbox.path("trace.svg")).unwrap();
    sandbox.kiln(&["memory", "plot", "trace.svg", "-o", "./trace.svg"]).refused(&["another file than the trace"]);
    assert_eq!(std::fs::read_to_string(sandbox.path("trace.svg")).unwrap(), text);
    std::process::Command::new("mkfifo").arg(sandbox.path("fifo")).status().unwrap();
    let run = sandbox.shell_kiln("cat fifo & \"$@\" && wait", &["memory", "plot", "a.jsonl", "-o", "fifo"]).succeeds();
    assert!(run.stdout.contains("host memory, peak") && !sandbox.path("fifo").is_file(), "{run}");
}
