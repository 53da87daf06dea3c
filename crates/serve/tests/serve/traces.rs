//! Traces over OTLP/HTTP, with a collector that keeps what it hears.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use kiln_serve::ServeOptions;
use kiln_testkit::fixtures;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Attribute;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use serde_json::{Value, json};

use crate::support::{Answer, Served, options};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

/// A collector on a free port: its address, and the bodies that it gets.
fn collector(status: &'static str) -> (SocketAddr, Receiver<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (sender, stream) = (sender.clone(), stream.unwrap());
            std::thread::spawn(move || {
                while let Some(body) = answer(&stream, status) {
                    drop(sender.send(body))
                }
            });
        }
    });
    (address, receiver)
}

/// Answers a request; `None` at the end of the connection.
fn answer(mut stream: &TcpStream, status: &str) -> Option<Vec<u8>> {
    let (mut reader, mut length) = (BufReader::new(stream), 0);
    let mut line = String::new();
    while reader.read_line(&mut line).ok()? > 0 && line != "\r\n" {
        let lower = line.to_ascii_lowercase();
        assert!(!lower.starts_with("post") || lower.starts_with("post /v1/traces "), "{line}");
        if let Some(value) = lower.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        line.clear();
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    write!(stream, "HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n").ok()?;
    (length > 0).then_some(body)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The spans that came, with the name of their service.
fn spans(heard: &Receiver<Vec<u8>>) -> (Vec<Span>, Vec<String>) {
    let (mut spans, mut services) = (Vec::new(), Vec::new());
    for body in heard.try_iter() {
        let request = ExportTraceServiceRequest::decode(&body[..]).unwrap();
        for resource in request.resource_spans {
            let attributes = resource.resource.unwrap().attributes;
            let name = attributes.into_iter().find(|attribute| attribute.key == "service.name").unwrap();
            if let Some(Attribute::StringValue(name)) = name.value.unwrap().value {
                services.push(name);
            }
            spans.extend(resource.scope_spans.into_iter().flat_map(|scope| scope.spans));
        }
    }
    (spans, services)
}

fn submit(served: &Served, flags: &str, job: &Value) -> String {
    let request = served.agent.post(format!("{}/v1/jobs", served.address));
    let request = request.header("traceparent", format!("00-{TRACE}-{PARENT}-{flags}"));
    let answer: Answer = request.send(job.to_string().as_bytes()).unwrap().into();
    assert_eq!(answer.status, 202);
    answer.json()["id"].as_str().unwrap().into()
}

/// A job of the second model, which is loaded for it.
fn job() -> Value {
    json!({ "prompt": "a pear", "steps": 3, "seed": 1, "width": 64, "height": 64, "sampler": "euler", "model": "sdxl" })
}

fn with_collector(address: SocketAddr) -> Served {
    let models = vec![fixtures("models/sd1"), fixtures("models/sdxl")];
    Served::start(ServeOptions { otlp: Some(format!("http://{address}")), models, ..options() })
}

#[test]
fn a_job_is_a_tree_of_spans_below_the_span_of_its_client() {
    let (address, heard) = collector("200 OK");
    let served = with_collector(address);
    let id = submit(&served, "01", &job());
    served.finished(&id);
    assert_eq!(served.get("/healthz").status, 200);
    drop(served);
    let (spans, services) = spans(&heard);
    assert!(!services.is_empty() && services.iter().all(|name| name == "kiln"), "{services:?}");
    // A job waits a second time when its model is loaded: the first span of each name.
    let mut named: BTreeMap<&str, &Span> = BTreeMap::new();
    let mut of_trace: Vec<&Span> = spans.iter().filter(|span| hex(&span.trace_id) == TRACE).collect();
    of_trace.sort_by_key(|span| span.start_time_unix_nano);
    for span in of_trace {
        named.entry(&span.name).or_insert(span);
    }
    let request = named["POST /v1/jobs"];
    assert_eq!(hex(&request.parent_span_id), PARENT);
    let of_job = named["job"];
    assert_eq!(of_job.parent_span_id, request.span_id);
    for part in ["queue", "load", "encode", "denoise", "decode", "write"] {
        let span = named.get(part).unwrap_or_else(|| panic!("{part} is missing: {:?}", named.keys()));
        assert_eq!(span.parent_span_id, of_job.span_id, "{part}");
        assert!(of_job.start_time_unix_nano <= span.start_time_unix_nano, "{part}");
        assert!(span.start_time_unix_nano <= span.end_time_unix_nano, "{part}");
        assert!(span.end_time_unix_nano <= of_job.end_time_unix_nano, "{part}");
    }
    let order = ["queue", "load", "encode", "denoise", "decode"].map(|part| named[part].start_time_unix_nano);
    assert!(order.is_sorted(), "{order:?}");
    let attribute = of_job.attributes.iter().find(|attribute| attribute.key == "kiln.job.id").unwrap();
    assert_eq!(attribute.value.clone().unwrap().value, Some(Attribute::StringValue(id)));
    // The requests that looked at the job have traces of their own; those that look at the server have none.
    let others: Vec<&str> =
        spans.iter().filter(|span| hex(&span.trace_id) != TRACE).map(|span| span.name.as_str()).collect();
    assert!(others.contains(&"GET /v1/jobs/{id}") && !others.iter().any(|name| name.contains("healthz")), "{others:?}");
}

#[test]
fn a_client_decides_whether_its_trace_is_kept() {
    let (address, heard) = collector("200 OK");
    let served = with_collector(address);
    served.finished(&submit(&served, "00", &job()));
    drop(served);
    let (spans, _) = spans(&heard);
    assert!(spans.iter().all(|span| hex(&span.trace_id) != TRACE), "{spans:?}");
}

#[test]
fn a_collector_that_is_away_costs_spans_and_no_jobs() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let served = with_collector(closed);
    let done = served.finished(&submit(&served, "01", &job()));
    assert_eq!(done["status"], "done", "{done}");
    let dropped = || {
        let text = served.get("/metrics").text();
        let line = text.lines().find_map(|line| line.strip_prefix("kiln_trace_spans_dropped_total ")).unwrap_or("0");
        line.parse::<u64>().unwrap()
    };
    let start = Instant::now();
    while dropped() < 8 {
        assert!(start.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(50));
    }
    let wrong = ServeOptions { otlp: Some("collector:4318".into()), ..options() };
    let message = kiln_serve::Server::start(wrong).err().unwrap().to_string();
    assert!(message.contains("`otlp` is \"collector:4318\""), "{message}");
}
