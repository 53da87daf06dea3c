//! Keys, limits of bodies, pages of other origins, and clients that behave badly.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use kiln_serve::{Access, Error, ServeOptions, Server, Tls};

use crate::jobs::job;
use crate::support::{Served, alone, file, options};

#[test]
fn a_key_or_a_password_is_asked_for() {
    let mut closed = options();
    closed.access.keys = vec!["a key".into()];
    closed.access.users = vec![("ann".into(), "secret".into())];
    let served = Served::start(closed);
    assert_eq!(served.get("/healthz").status, 200, "probes need no key");
    let status = |value: Option<&str>, path: &str| {
        let request = served.agent.get(format!("{}{path}", served.address));
        let request = value.into_iter().fold(request, |request, value| request.header("authorization", value));
        request.call().unwrap().status().as_u16()
    };
    for path in ["/v1/jobs", "/v1/capabilities", "/metrics", "/docs", "/nowhere"] {
        for wrong in [None, Some(""), Some("Bearer"), Some("Bearer wrong"), Some("Basic YW5uOndyb25n")] {
            assert_eq!(status(wrong, path), 401, "{path} with {wrong:?}");
        }
    }
    assert_eq!(status(Some("Bearer a key"), "/v1/jobs"), 200);
    assert_eq!(status(Some("Basic YW5uOnNlY3JldA=="), "/v1/jobs"), 200);
    assert!(served.get("/v1/jobs").response.headers().contains_key("www-authenticate"));
    served.get("/v1/jobs").refused(401, "unauthorized");
}

#[test]
fn pages_of_other_origins_are_refused_unless_they_are_named() {
    let mut named = options();
    named.access.origins = vec!["https://example.org".into()];
    let served = Served::start(named);
    let get =
        |origin: &str| served.agent.get(format!("{}/v1/jobs", served.address)).header("origin", origin).call().unwrap();
    assert_eq!(get("https://evil.example").status(), 403);
    let allowed = get("https://example.org");
    assert_eq!(allowed.headers()["access-control-allow-origin"], "https://example.org");
    assert_eq!(get(&served.address).status(), 200, "its own page");
    let moved = served.agent.get(format!("{}/v1/jobs", served.address)).header("host", "evil.example:7860");
    assert_eq!(moved.call().unwrap().status(), 403, "a name that was moved to this machine");
}

#[test]
fn large_bodies_are_refused() {
    let mut small = options();
    small.limits.body = 1000;
    let served = Served::start(small);
    let body = format!("{{\"prompt\": \"{}\"}}", "a".repeat(2000));
    served.post("/v1/jobs", body.as_bytes()).refused(413, "too_large");
    let address = served.address.strip_prefix("http://").unwrap();
    // Without a length: what was read counts.
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let head = format!("POST /v1/jobs HTTP/1.1\r\nHost: {address}\r\nTransfer-Encoding: chunked\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let chunk = format!("{:x}\r\n{}\r\n", 600, "a".repeat(600));
    stream.write_all(chunk.repeat(2).as_bytes()).unwrap();
    let mut answer = [0; 64];
    let length = stream.read(&mut answer).unwrap();
    assert!(answer[..length].starts_with(b"HTTP/1.1 413"), "{}", String::from_utf8_lossy(&answer[..length]));
}

#[test]
fn clients_that_speak_no_http_are_cut() {
    let served = Served::start(options());
    let address = served.address.strip_prefix("http://").unwrap();
    for text in ["\0\x01\x02\r\n\r\n", "GET\r\n\r\n", "POST /v1/jobs HTTP/1.1\r\ncontent-length: -5\r\n\r\n"] {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.write_all(text.as_bytes()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 400"), "{}", String::from_utf8_lossy(&answer));
    }
    // A body that ends early, and a connection that ends at once.
    let mut stream = TcpStream::connect(address).unwrap();
    stream
        .write_all(format!("POST /v1/jobs HTTP/1.1\r\nHost: {address}\r\nContent-Length: 100\r\n\r\n{{").as_bytes())
        .unwrap();
    drop(stream);
    assert_eq!(served.finished(&served.submit(&job("a pear", 2, 1)))["status"], "done");
}

#[test]
fn options_that_cannot_be_are_refused_before_anything_is_opened() {
    let refused = |change: &dyn Fn(&mut kiln_serve::ServeOptions)| {
        let mut wrong = options();
        change(&mut wrong);
        match Server::start(wrong) {
            Err(error) => error,
            Ok(_) => panic!("the server has started"),
        }
    };
    assert!(refused(&|options| options.limits.queue = 0).to_string().contains("`queue` is 0"));
    assert!(refused(&|options| options.access.keys = vec![String::new()]).is_usage());
    assert!(refused(&|options| options.models.clear()).is_usage());
    assert!(refused(&|options| options.models.push(options.models[0].clone())).to_string().contains("both"));
    let taken = Served::start(options());
    let address = taken.server.address();
    let error = refused(&|options| options.listen = address);
    assert!(matches!(error, Error::Listen { .. }), "{error}");
    assert_eq!(Access::default(), options().access);
}

#[test]
fn connections_are_encrypted() {
    let tls = Tls { certificate: file("certificate.pem"), key: file("key.pem") };
    let served = Served::start(ServeOptions { tls: Some(tls), ..options() });
    assert!(served.address.starts_with("https://127.0.0.1:"));
    let done = served.finished(&served.submit(&job("a pear", 2, 1)));
    assert_eq!(served.image(&done, 0), alone(&[job("a pear", 2, 1)])[0][0].rgb);
    // Clients that speak no TLS, or do not trust the certificate, get nothing.
    let plain = served.address.replace("https", "http");
    assert!(served.agent.get(format!("{plain}/healthz")).call().is_err());
    assert!(ureq::get(format!("{}/healthz", served.address)).call().is_err());
    assert_eq!(served.get("/healthz").status, 200);
}
