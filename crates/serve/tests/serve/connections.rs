//! Connections: shares of addresses, clients that do not read or end their side, and heads that name no host.

use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use kiln_serve::ServeOptions;
use tokio::net::TcpSocket;

use crate::jobs::job;
use crate::support::{Served, options};

/// A server whose addresses may have so many connections.
fn with_share(connections: usize) -> Served {
    let mut few = options();
    few.limits.connections_per_address = connections;
    Served::start(few)
}

/// A connection from another address of this machine.
fn connect_from(served: &Served, last: u8) -> TcpStream {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let stream = runtime.block_on(async {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::new(IpAddr::from([127, 0, 0, last]), 0)).unwrap();
        socket.connect(served.server.address()).await.unwrap().into_std().unwrap()
    });
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream
}

fn get(stream: &mut TcpStream, path: &str) {
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").as_bytes()).unwrap();
}

/// The first bytes of an answer; none where the connection was closed.
fn answer(stream: &mut TcpStream) -> String {
    let mut bytes = [0; 4096];
    let length = stream.read(&mut bytes).unwrap_or_default();
    String::from_utf8_lossy(&bytes[..length]).into_owned()
}

/// What comes until the server closes the connection.
fn whole(mut stream: TcpStream) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn a_connection_without_a_request_is_closed_for_another_one_of_its_address() {
    let served = with_share(4);
    let mut idle: Vec<TcpStream> = (0..12).map(|_| connect_from(&served, 1)).collect();
    for _ in 0..8 {
        let mut next = connect_from(&served, 1);
        get(&mut next, "/healthz");
        assert!(answer(&mut next).starts_with("HTTP/1.1 200"));
        idle.push(next);
    }
    assert_eq!(answer(&mut idle[0]), "", "it was closed");
}

#[test]
#[cfg(target_os = "linux")] // other systems have one address of their own
fn an_address_with_its_share_of_requests_keeps_no_other_from_an_answer() {
    let served = with_share(2);
    let id = served.submit(&job("a pear", 900, 1));
    let follow = |last: u8| {
        let mut stream = connect_from(&served, last);
        get(&mut stream, &format!("/v1/jobs/{id}/events"));
        assert!(answer(&mut stream).starts_with("HTTP/1.1 200"));
        stream
    };
    let _busy = [follow(2), follow(2)];
    for _ in 0..20 {
        let mut more = connect_from(&served, 2);
        assert!(answer(&mut more).starts_with("HTTP/1.1 503"));
        let mut other = connect_from(&served, 3);
        get(&mut other, "/healthz");
        assert!(answer(&mut other).starts_with("HTTP/1.1 200"));
    }
    served.delete(&format!("/v1/jobs/{id}"));
}

#[test]
fn a_client_that_ends_its_side_gets_its_answer() {
    let served = Served::start(options());
    let body = job("a pear", 2, 1).to_string();
    let head = format!("POST /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    for (request, status) in [("GET /v1/capabilities HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 200), (&head, 202)] {
        let mut stream = connect_from(&served, 1);
        stream.write_all(request.as_bytes()).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let answer = whole(stream);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")) && answer.ends_with('}'), "{answer}");
    }
}

#[test]
fn a_body_that_no_route_reads_leaves_its_connection_usable() {
    let served = Served::start(options());
    let mut stream = connect_from(&served, 1);
    let head = |length: usize| {
        format!("POST /v1/jobs/none/finish HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {length}\r\n\r\n")
    };
    for _ in 0..3 {
        stream.write_all(head(4).as_bytes()).unwrap();
        std::thread::sleep(Duration::from_millis(50)); // the route has answered
        stream.write_all(b"null").unwrap();
        let refused = answer(&mut stream);
        assert!(refused.starts_with("HTTP/1.1 404") && !refused.contains("connection: close"), "{refused}");
    }
    get(&mut stream, "/healthz");
    assert!(answer(&mut stream).starts_with("HTTP/1.1 200"));
    // A body that is long, one that does not come, and one that its client sends on demand.
    let on_demand = head(4).replace("\r\nContent", "\r\nExpect: 100-continue\r\nContent");
    for head in [head(1 << 20), head(4), on_demand] {
        let mut stream = connect_from(&served, 1);
        stream.write_all(head.as_bytes()).unwrap();
        let refused = whole(stream);
        assert!(refused.starts_with("HTTP/1.1 404") && refused.contains("connection: close"), "{refused}");
    }
}

#[test]
fn a_head_names_one_host_in_plain_text() {
    let served = Served::start(options());
    let status = |head: &[u8]| {
        let mut stream = connect_from(&served, 1);
        stream.write_all(&[b"GET /v1/models ", head, b"\r\n\r\n"].concat()).unwrap();
        answer(&mut stream).split(' ').nth(1).map(String::from)
    };
    assert_eq!(status(b"HTTP/1.1\r\nHost: localhost").as_deref(), Some("200"));
    assert_eq!(status(b"HTTP/1.0").as_deref(), Some("200"), "no browser");
    assert_eq!(status(b"HTTP/1.1").as_deref(), Some("400"));
    assert_eq!(status(b"HTTP/1.1\r\nHost: \xe9vil").as_deref(), Some("400"));
    assert_eq!(status(b"HTTP/1.0\r\nHost: \xe9vil").as_deref(), Some("400"));
    assert_eq!(status(b"HTTP/1.1\r\nHost: localhost\r\nHost: evil.example").as_deref(), Some("400"));
    assert_eq!(status(b"HTTP/1.1\r\nHost: evil.example").as_deref(), Some("403"));
    assert_eq!(status(b"HTTP/1.0\r\nHost: evil.example").as_deref(), Some("403"));
}

#[test]
fn images_are_written_into_a_folder_that_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("images/of today");
    let served = Served::start(ServeOptions { output: Some(output.clone()), ..options() });
    let done = served.finished(&served.submit(&job("a pear", 2, 1)));
    assert!(output.join(format!("{}.png", done["images"][0]["id"].as_str().unwrap())).is_file());
}
