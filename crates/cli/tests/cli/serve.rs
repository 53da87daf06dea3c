//! `kiln serve`: its start, a job, and its end by a signal.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use crate::sandbox::Sandbox;

/// A server that runs, and its address.
fn start(args: &[&str]) -> (Child, String) {
    let model = kiln_testkit::fixtures("models/sd1");
    let mut command = Command::new(env!("CARGO_BIN_EXE_kiln"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--device", "cpu", "-m"]).arg(model).args(args);
    let mut server = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("http://").unwrap_or_else(|| panic!("{line}")).to_string();
    (server, address)
}

/// The answer to a request, with its head.
fn ask(address: &str, request: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    let length = body.len();
    let text =
        format!("{request} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}");
    stream.write_all(text.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn signal(server: &Child, name: &str) {
    let status = Command::new("kill").args([&format!("-{name}"), &server.id().to_string()]).status().unwrap();
    assert!(status.success());
}

#[test]
fn a_signal_ends_the_server_when_its_jobs_are_done() {
    for name in ["TERM", "INT"] {
        let (server, address) = start(&["--log-format", "json"]);
        let job = r#"{"prompt": "a pear", "steps": 200, "width": 64, "height": 64}"#;
        assert!(ask(&address, "POST /v1/jobs", job).starts_with("HTTP/1.1 202"));
        signal(&server, name);
        let output = server.wait_with_output().unwrap();
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{log}");
        let is_request = |line: &&str| line.contains("\"message\":\"request\"") && line.contains("\"status\":202");
        assert_eq!(log.lines().filter(is_request).count(), 1, "{log}");
        assert!(!log.contains("a pear"), "prompts are not logged: {log}");
        let is_signal = |line: &&str| line.starts_with('{') && line.contains("a second signal cancels them");
        assert!(log.lines().any(|line| is_signal(&line)) && !log.contains("press"), "{log}");
    }
}

#[test]
fn a_second_signal_cancels_jobs() {
    let (server, address) = start(&[]);
    let job = r#"{"prompt": "a pear", "steps": 900, "batch_count": 64, "width": 64, "height": 64}"#;
    assert!(ask(&address, "POST /v1/jobs", job).starts_with("HTTP/1.1 202"));
    signal(&server, "TERM");
    signal(&server, "INT"); // two signals of one kind may become one
    let output = server.wait_with_output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && log.contains("canceling 1 job\n"), "{log}");
}

#[test]
fn secrets_are_asked_for() {
    let (server, address) = start(&["--api-key", "secret"]);
    assert!(ask(&address, "GET /v1/jobs", "").starts_with("HTTP/1.1 401"));
    assert!(ask(&address, "GET /healthz", "").starts_with("HTTP/1.1 200"));
    signal(&server, "TERM");
    assert!(server.wait_with_output().unwrap().status.success());
}

#[test]
fn options_that_cannot_be_name_their_flags() {
    let sandbox = Sandbox::new();
    for (args, found) in [
        (vec!["--max-batch", "0"], "--max-batch is 0, expected at least 1"),
        (vec!["--api-auth", "ann"], "expected USER:PASSWORD"),
        (vec!["--listen", "nowhere"], "--listen"),
        (vec!["--max-priority", "101"], "--max-priority is 101, expected -100 to 100"),
        (vec!["--prompt-cache", "redis://127.0.0.1:1", "--prompt-cache-key", "short"], "--prompt-cache-key is"),
        (vec!["-m", "models/missing"], "models/missing"),
    ] {
        let run = sandbox.kiln(&[&["serve"], &args[..]].concat());
        assert!(!run.status.success() && run.stderr.contains(found), "{run}");
    }
}
