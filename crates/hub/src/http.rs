//! One request and what comes back, over redirects, on a thread of its own so that nobody waits for a slow server
//! without hearing of it.
//!
//! The token goes to the endpoint's origin (scheme, host and port) alone, and only as long as nobody else had a say:
//! where another server sends us back to the endpoint, that is asked without it. Redirects are followed to `http` and
//! `https` only, and never from `https` to `http`. What an answer says of a file (checksum, size, commit) counts where the
//! endpoint says it: other servers give bytes and nothing else, and no listing.

use std::io::Read;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use ureq::http::{HeaderMap, Uri};
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};

use crate::digest::Checksum;
use crate::error::{Error, Result};
use crate::settings::{Settings, shown};
use crate::trickle::Trickle;

const MOST_REDIRECTS: usize = 8;
const CONNECT: Duration = Duration::from_secs(15);
/// The longest silence of a server.
const SILENCE: Duration = Duration::from_secs(30);
/// Bytes that are handed on at once, and how many of such wait at the most. Fewer are handed on where they come slowly.
const PIECE: usize = 256 << 10;
const HAND_ON: Duration = Duration::from_secs(1);
const WAITING: usize = 8;
/// The longest message of a server that is shown.
const LONGEST_MESSAGE: usize = 200;

/// What an answer's headers say.
#[derive(Debug, Clone, Default)]
pub(crate) struct Head {
    /// The HTTP status.
    pub(crate) status: u16,
    /// The commit that the file is of.
    pub(crate) commit: Option<String>,
    /// The whole file's checksum.
    pub(crate) checksum: Option<Checksum>,
    /// The whole file's size.
    pub(crate) size: Option<u64>,
    /// The bytes that follow.
    pub(crate) length: Option<u64>,
    /// For a part of a file: where it begins, and the whole file's size.
    pub(crate) range: Option<(u64, u64)>,
    /// The Hub's code for what is wrong, such as `GatedRepo`.
    pub(crate) code: String,
    /// The server's own words on it.
    pub(crate) message: String,
    /// How long the server asks us to wait.
    pub(crate) retry_after: Option<Duration>,
}

/// What comes of a request, in this order; after `End` or `Failed` nothing.
pub(crate) enum Piece {
    Head(Box<Head>),
    Bytes(Vec<u8>),
    End,
    /// Another try may go better.
    Failed(String),
    /// Another try would go the same way.
    Refused(String),
}

/// A request.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ask {
    /// The path and query below the endpoint, escaped, with its first slash.
    pub(crate) path: String,
    /// The headers alone, and of the endpoint's own servers.
    pub(crate) head_only: bool,
    /// The answer has to be the endpoint's own.
    pub(crate) own_only: bool,
    /// The first byte that is wanted.
    pub(crate) from: u64,
}

/// Connections to the endpoint and to where it sends us.
#[derive(Clone)]
pub(crate) struct Client {
    agent: ureq::Agent,
    endpoint: String,
    bearer: Option<String>,
}

impl Client {
    /// No connection is made.
    pub(crate) fn new(settings: &Settings) -> Result<Self> {
        if origin(&settings.endpoint).is_none() {
            let problem = format!("is `{}`, which is no address of a server", shown(&settings.endpoint));
            return Err(Error::Setting { name: "HF_ENDPOINT".into(), problem });
        }
        let mut config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .user_agent(concat!("kiln/", env!("CARGO_PKG_VERSION")))
            // Sizes and checksums are of the file, not of what an encoding makes of it.
            .accept_encoding("identity")
            .timeout_connect(Some(CONNECT))
            .timeout_recv_response(Some(SILENCE))
            .timeout_per_read(Some(SILENCE));
        if is_loopback(&settings.endpoint) {
            config = config.proxy(None); // nobody else could reach this machine under that name
        }
        if let Some(path) = &settings.certificates {
            let pem = std::fs::read(path).map_err(Error::io(path))?;
            let found = parse_pem(&pem).filter_map(|item| match item {
                Ok(PemItem::Certificate(certificate)) => Some(certificate),
                _ => None,
            });
            let tls = TlsConfig::builder().root_certs(RootCerts::new_with_certs(&found.collect::<Vec<_>>()));
            config = config.tls_config(tls.build());
        }
        Ok(Self {
            agent: config.build().new_agent(),
            endpoint: settings.endpoint.clone(),
            bearer: settings.token.as_ref().map(|token| token.bearer()),
        })
    }

    /// Whether requests carry a token.
    pub(crate) fn has_token(&self) -> bool {
        self.bearer.is_some()
    }

    /// The address of a path as it is shown: without the name and the password that the endpoint may have.
    pub(crate) fn address(&self, path: &str) -> String {
        format!("{}{path}", shown(&self.endpoint))
    }

    /// Sends a request. Whoever drops the receiver ends it.
    ///
    /// # Errors
    /// [`Error::Thread`].
    pub(crate) fn ask(&self, ask: Ask) -> Result<Receiver<Piece>> {
        let (sender, receiver) = sync_channel(WAITING);
        let client = self.clone();
        let request = move || {
            let last = client.follow(&ask, &sender).err().map_or(Piece::End, |last| client.hidden(last));
            let _ = sender.send(last); // nobody may be listening any more
        };
        std::thread::Builder::new().name("kiln-http".into()).spawn(request).map_err(Error::Thread)?;
        Ok(receiver)
    }

    /// A piece without the name and the password of the endpoint: libraries may have quoted them.
    fn hidden(&self, piece: Piece) -> Piece {
        let hide = |text: String| match user_of(&self.endpoint) {
            Some(user) => text.replace(&format!("{user}@"), ""),
            None => text,
        };
        match piece {
            Piece::Failed(problem) => Piece::Failed(hide(problem)),
            Piece::Refused(problem) => Piece::Refused(hide(problem)),
            other => other,
        }
    }

    /// Follows redirects to an answer and hands it on. The error is the last piece.
    fn follow(&self, ask: &Ask, sender: &SyncSender<Piece>) -> Result<(), Piece> {
        let mut address = format!("{}{}", self.endpoint, ask.path);
        let mut head = Head::default();
        let mut left = false; // the endpoint's origin, once
        for _ in 0..=MOST_REDIRECTS {
            let mut request = match ask.head_only {
                true => self.agent.head(&address),
                false => self.agent.get(&address),
            };
            let own = !left && origin(&address) == origin(&self.endpoint);
            if let Some(bearer) = self.bearer.as_ref().filter(|_| own) {
                request = request.header("Authorization", bearer);
            }
            if ask.from > 0 {
                request = request.header("Range", format!("bytes={}-", ask.from));
            }
            let response = request.call().map_err(|error| failed(&error))?;
            let (status, headers) = (response.status().as_u16(), response.headers());
            if own {
                head.learn(headers);
            }
            let location = text(headers, "location").filter(|_| matches!(status, 301 | 302 | 303 | 307 | 308));
            let Some(location) = location else {
                head.end(status, headers, own);
                let _ = sender.send(Piece::Head(Box::new(head)));
                return if ask.head_only { Ok(()) } else { hand_on(response.into_body(), sender) };
            };
            let next = join(&address, location).map_err(Piece::Refused)?;
            left |= origin(&next) != origin(&self.endpoint);
            if ask.own_only && left {
                let problem = "a redirect to another server, which may not answer this; HF_ENDPOINT may name it";
                return Err(Piece::Refused(format!("{problem}: {:?}", plain(location))));
            }
            // The headers of a file are the Hub's; where it sends us there is nothing more to learn.
            if ask.head_only && left {
                head.status = 200;
                let _ = sender.send(Piece::Head(Box::new(head)));
                return Ok(());
            }
            address = next;
        }
        Err(Piece::Refused(format!("more than {MOST_REDIRECTS} redirects")))
    }
}

impl Head {
    /// What the endpoint says of a file; the first answer that says it counts.
    fn learn(&mut self, headers: &HeaderMap) {
        let number = |name| text(headers, name).and_then(|text| text.parse().ok());
        self.commit = self.commit.take().or_else(|| text(headers, "x-repo-commit").map(String::from));
        self.size = self.size.or_else(|| number("x-linked-size"));
        let checksum = || text(headers, "x-linked-etag").or(text(headers, "etag")).and_then(Checksum::of);
        self.checksum = self.checksum.take().or_else(checksum);
    }

    /// The last answer.
    fn end(&mut self, status: u16, headers: &HeaderMap, own: bool) {
        let short = |name| text(headers, name).map(plain).unwrap_or_default();
        self.status = status;
        self.length = text(headers, "content-length").and_then(|text| text.parse().ok());
        self.range = text(headers, "content-range").and_then(content_range);
        if own && status == 200 {
            self.size = self.size.or(self.length);
        }
        (self.code, self.message) = (short("x-error-code"), short("x-error-message"));
        self.retry_after = text(headers, "retry-after").and_then(|text| text.parse().ok()).map(Duration::from_secs);
    }
}

/// Hands on a body in pieces, however long it is: who listens knows how much is wanted.
fn hand_on(body: ureq::Body, sender: &SyncSender<Piece>) -> Result<(), Piece> {
    let mut reader = body.into_with_config().limit(u64::MAX).reader();
    let mut trickle = Trickle::default();
    loop {
        let (mut bytes, mut have, begin) = (vec![0; PIECE], 0, Instant::now());
        let last = loop {
            let start = Instant::now();
            let result = reader.read(&mut bytes[have..]);
            let count = *result.as_ref().unwrap_or(&0);
            have += count;
            match result {
                Ok(0) => break Some(Ok(())),
                Ok(_) if trickle.is_too_slow(count, start.elapsed()) => {
                    break Some(Err(Piece::Failed("the server sends less than a kilobyte a second".into())));
                }
                Ok(_) if have == PIECE || begin.elapsed() >= HAND_ON => break None,
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => break Some(Err(Piece::Failed(format!("the connection was cut: {error}")))),
            }
        };
        bytes.truncate(have);
        if !bytes.is_empty() && sender.send(Piece::Bytes(bytes)).is_err() {
            return Ok(());
        }
        if let Some(last) = last {
            return last;
        }
    }
}

/// Whether another try may go better.
fn failed(error: &ureq::Error) -> Piece {
    match error {
        ureq::Error::HostNotFound => Piece::Failed("there is no such host, or no connection to the network".into()),
        ureq::Error::BadUri(_) | ureq::Error::Http(_) | ureq::Error::RequireHttpsOnly(_) => {
            Piece::Refused(format!("no address that can be asked: {error}"))
        }
        ureq::Error::Rustls(_) | ureq::Error::Tls(_) | ureq::Error::Pem(_) => Piece::Refused(format!(
            "{error}; where a proxy or a company has certificates of its own, SSL_CERT_FILE names their file"
        )),
        // The bytes that came are no answer. A connection that ended early is another error.
        ureq::Error::Protocol(error) => Piece::Refused(format!("an answer that is no HTTP: {error}")),
        ureq::Error::Io(error) => Piece::Failed(error.to_string()),
        error => Piece::Failed(error.to_string()),
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// A stranger's words: no control characters, and not many.
pub(crate) fn plain(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(LONGEST_MESSAGE).collect()
}

/// `bytes FIRST-LAST/SIZE`.
fn content_range(text: &str) -> Option<(u64, u64)> {
    let (range, size) = text.strip_prefix("bytes ")?.split_once('/')?;
    Some((range.split_once('-')?.0.parse().ok()?, size.parse().ok()?))
}

/// Scheme, host and port.
fn origin(address: &str) -> Option<(String, String, u16)> {
    let uri: Uri = address.parse().ok()?;
    let scheme = uri.scheme_str()?.to_ascii_lowercase();
    let authority = uri.authority()?.as_str();
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    // What follows the host is nothing or a port; `port_u16` has none for 99999, which must not become 80.
    let port = match host.strip_prefix(uri.host()?)?.strip_prefix(':') {
        None => {
            if scheme == "https" {
                443
            } else {
                80
            }
        }
        Some(port) => port.parse().ok().filter(|port| *port != 0)?,
    };
    Some((scheme, uri.host()?.to_ascii_lowercase(), port))
}

/// Name and password in an address.
fn user_of(address: &str) -> Option<&str> {
    let (_, rest) = address.split_once("://")?;
    Some(rest.split(['/', '?', '#']).next()?.rsplit_once('@')?.0)
}

fn is_loopback(address: &str) -> bool {
    origin(address).is_some_and(|(_, host, _)| {
        host == "localhost"
            || host.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
    })
}

/// Where a redirect from `address` leads.
fn join(address: &str, location: &str) -> Result<String, String> {
    let shown = plain(location);
    let (scheme, rest) = address.split_once("://").unwrap_or(("https", address));
    let host = rest.split(['/', '?', '#']).next().unwrap_or(rest);
    let next = if location.starts_with("//") {
        format!("{scheme}:{location}")
    } else if location.starts_with('/') {
        format!("{scheme}://{host}{location}")
    } else if location.contains("://") {
        location.to_string()
    } else {
        return Err(format!("a redirect to {shown:?}, expected an address or a path from the root"));
    };
    let next = next.split('#').next().unwrap_or_default().to_string();
    match origin(&next) {
        Some((new, ..)) if new == "https" || (new == "http" && scheme.eq_ignore_ascii_case("http")) => Ok(next),
        Some((new, ..)) => Err(format!("a redirect from {scheme} to {new}, {shown:?}")),
        None => Err(format!("a redirect to {shown:?}, which is no address of a server")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_lead_to_servers_that_are_as_safe() {
        let from = "https://hub.example/owner/name/resolve/main/a.json";
        for (location, expected) in [
            ("/api/x?y=1", Some("https://hub.example/api/x?y=1")),
            ("https://cdn.example/x#part", Some("https://cdn.example/x")),
            ("//cdn.example/x", Some("https://cdn.example/x")),
            ("http://hub.example/x", None),
            ("file:///etc/passwd", None),
            ("ftp://hub.example/x", None),
            ("x.json", None),
            ("", None),
        ] {
            assert_eq!(join(from, location).ok().as_deref(), expected, "{location}");
        }
        assert_eq!(join("http://localhost:80/a", "http://localhost:81/b").as_deref(), Ok("http://localhost:81/b"));
    }

    #[test]
    fn an_origin_has_a_scheme_a_host_and_a_port() {
        assert_eq!(origin("https://Hub.example/x"), origin("https://hub.example:443"));
        assert_ne!(origin("https://hub.example"), origin("http://hub.example"));
        assert_ne!(origin("https://hub.example"), origin("https://hub.example.org"));
        assert_ne!(origin("http://127.0.0.1:80"), origin("http://127.0.0.1:81"));
        assert_eq!(origin("http://user:pass@hub.example"), origin("http://hub.example:80"));
        assert_eq!(origin("http://[::1]:8000").unwrap().2, 8000);
        for address in ["http://hub.example:99999", "http://hub.example:0", "http://hub.example:x", "hub.example", "/a"]
        {
            assert_eq!(origin(address), None, "{address}");
        }
        assert!(
            is_loopback("http://127.0.0.1:8000")
                && is_loopback("http://[::1]:1")
                && !is_loopback("https://hub.example")
        );
    }

    #[test]
    fn a_part_tells_where_it_begins() {
        assert_eq!(content_range("bytes 10-19/20"), Some((10, 20)));
        for text in ["bytes */20", "10-19/20", "bytes 10/20", "bytes 10-19/*"] {
            assert_eq!(content_range(text), None, "{text}");
        }
    }
}
