//! HTTP requests with redirects. Each runs on a thread of its own, so that the caller can react to an interruption while a
//! server is slow.
//!
//! The token is sent to the endpoint's origin (scheme, host and port) only, and only until the first redirect to another
//! origin: if another server redirects back to the endpoint, the endpoint is asked without the token. Redirects lead to
//! `http` and `https` only, and never from `https` to `http`. Metadata of a file (checksum, size, commit) is read from answers
//! of the endpoint; other servers provide bytes only, and no listing.

use std::io::Read;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use ureq::http::HeaderMap;
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use url::{Position, Url};

use crate::address::{self, is_loopback};
use crate::digest::Checksum;
use crate::error::{Error, Result};
use crate::min_speed::MinSpeed;
use crate::settings::{Settings, without_credentials};

const MAX_REDIRECTS: usize = 8;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// The longest time in which a server may send nothing.
pub(crate) const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes that are passed on at once. Fewer are passed on if they arrive slowly.
const BUFFER: usize = 256 << 10;
const MAX_DELAY: Duration = Duration::from_secs(1);
/// Buffers that may wait for the caller.
pub(crate) const QUEUE: usize = 8;
/// The longest message of a server that is shown.
const MAX_MESSAGE: usize = 200;

/// Headers of the answers.
#[derive(Debug, Clone, Default)]
pub(crate) struct Head {
    /// The HTTP status of the last answer.
    pub(crate) status: u16,
    /// The file's commit (`X-Repo-Commit`).
    pub(crate) commit: Option<String>,
    /// The whole file's checksum (`X-Linked-ETag` or `ETag`).
    pub(crate) checksum: Option<Checksum>,
    /// The whole file's size (`X-Linked-Size`, or the length of the endpoint's own answer).
    pub(crate) size: Option<u64>,
    /// The file's identifier in the Xet storage (`X-Xet-Hash`), if the request asked for it. No bytes follow then.
    pub(crate) xet_hash: Option<String>,
    /// Bytes that follow (`Content-Length`).
    pub(crate) length: Option<u64>,
    /// For a part of a file: its first byte, and the whole file's size (`Content-Range`).
    pub(crate) range: Option<(u64, u64)>,
    /// The Hub's error code, such as `GatedRepo` (`X-Error-Code`).
    pub(crate) code: String,
    /// The Hub's error message (`X-Error-Message`).
    pub(crate) message: String,
    /// The pause that the server asks for (`Retry-After`).
    pub(crate) retry_after: Option<Duration>,
}

/// A part of a response, in this order. Nothing follows `End`, `Failed` and `Refused`.
pub(crate) enum Reply {
    Head(Box<Head>),
    Bytes(Vec<u8>),
    End,
    /// The request may succeed when it is repeated.
    Failed(String),
    /// There is no connection to the network, or no such server.
    Offline(String),
    /// The request would fail in the same way again.
    Refused(String),
}

/// A request to the endpoint.
#[derive(Debug, Clone, Default)]
pub(crate) struct Request {
    /// Escaped path and query below the endpoint, beginning with a slash.
    pub(crate) path: String,
    /// `HEAD`: only headers, and only those of the endpoint's own answers.
    pub(crate) head_only: bool,
    /// Only the endpoint itself may answer.
    pub(crate) own_only: bool,
    /// The first byte of the file to send.
    pub(crate) from: u64,
    /// If the endpoint says that the file is in the Xet storage, return [`Head::xet_hash`] and follow no redirect to bytes.
    pub(crate) xet: bool,
}

/// An HTTP client for the endpoint and the servers that it redirects to.
#[derive(Clone)]
pub(crate) struct Client {
    agent: ureq::Agent,
    endpoint: String,
    origin: Url,
    bearer: Option<String>,
}

impl Client {
    /// Makes no connection.
    ///
    /// # Errors
    /// [`Error::Setting`] if the endpoint is not the address of a server, [`Error::Io`] if the file with certificates cannot be
    /// read.
    pub(crate) fn new(settings: &Settings) -> Result<Self> {
        let origin = address::parse(&settings.endpoint).map_err(|_| {
            let problem = format!("is `{}`, which is no address of a server", without_credentials(&settings.endpoint));
            Error::Setting { name: "HF_ENDPOINT".into(), problem }
        })?;
        let mut config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .user_agent(concat!("kiln/", env!("CARGO_PKG_VERSION")))
            // Sizes and checksums are those of the file, not of a compressed transfer.
            .accept_encoding("identity")
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_recv_response(Some(READ_TIMEOUT))
            .timeout_per_read(Some(READ_TIMEOUT));
        if is_loopback(&origin) {
            config = config.proxy(None); // a proxy would look for the server on its own machine
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
            endpoint: settings.endpoint.trim_end_matches('/').into(),
            origin,
            bearer: settings.token.as_ref().map(|token| token.bearer()),
        })
    }

    /// Whether requests carry a token.
    pub(crate) fn has_token(&self) -> bool {
        self.bearer.is_some()
    }

    /// The endpoint's address, for its scheme, host and port.
    pub(crate) fn origin(&self) -> &Url {
        &self.origin
    }

    /// The address of a path as it is shown: without the user name and password that the endpoint may contain.
    pub(crate) fn address(&self, path: &str) -> String {
        format!("{}{path}", without_credentials(&self.endpoint))
    }

    /// Sends a request. Dropping the receiver ends it.
    ///
    /// # Errors
    /// [`Error::Thread`].
    pub(crate) fn send(&self, request: Request) -> Result<Receiver<Reply>> {
        let (sender, receiver) = sync_channel(QUEUE);
        let client = self.clone();
        let run = move || {
            let last = client.follow(&request, &sender).err().map_or(Reply::End, |last| client.redact(last));
            let _ = sender.send(last); // the receiver may be gone
        };
        std::thread::Builder::new().name("kiln-http".into()).spawn(run).map_err(Error::Thread)?;
        Ok(receiver)
    }

    /// Removes the endpoint's user name and password from a message: libraries may quote the address.
    fn redact(&self, reply: Reply) -> Reply {
        let user = format!("{}@", &self.origin[Position::BeforeUsername..Position::AfterPassword]);
        let clean = |text: String| if user.len() > 1 { text.replace(&user, "") } else { text };
        match reply {
            Reply::Failed(problem) => Reply::Failed(clean(problem)),
            Reply::Refused(problem) => Reply::Refused(clean(problem)),
            Reply::Offline(problem) => Reply::Offline(clean(problem)),
            other => other,
        }
    }

    /// Follows redirects to an answer and sends it. The error is the last reply.
    fn follow(&self, request: &Request, sender: &SyncSender<Reply>) -> Result<(), Reply> {
        let mut url = address::parse(&format!("{}{}", self.endpoint, request.path)).map_err(Reply::Refused)?;
        let mut head = Head::default();
        let mut left = false; // another origin was asked
        for _ in 0..=MAX_REDIRECTS {
            let mut call = match request.head_only {
                true => self.agent.head(url.as_str()),
                false => self.agent.get(url.as_str()),
            };
            let own = !left && url.origin() == self.origin.origin();
            if let Some(bearer) = self.bearer.as_ref().filter(|_| own) {
                call = call.header("Authorization", bearer);
            }
            if request.from > 0 {
                call = call.header("Range", format!("bytes={}-", request.from));
            }
            let response = call.call().map_err(|error| failure(&error))?;
            let (status, headers) = (response.status().as_u16(), response.headers());
            if own {
                head.read_metadata(headers);
            }
            let location = text(headers, "location").filter(|_| matches!(status, 301 | 302 | 303 | 307 | 308));
            if request.xet && own && (location.is_some() || status == 200 || status == 206) {
                head.xet_hash = text(headers, "x-xet-hash").and_then(Checksum::sha256_digits).map(String::from);
                if head.xet_hash.is_some() {
                    head.status = 200;
                    let _ = sender.send(Reply::Head(Box::new(head)));
                    return Ok(());
                }
            }
            let Some(location) = location else {
                head.finish(status, headers, own);
                let _ = sender.send(Reply::Head(Box::new(head)));
                return if request.head_only { Ok(()) } else { send_body(response.into_body(), sender) };
            };
            let next = address::redirect(&url, location).map_err(Reply::Refused)?;
            left |= next.origin() != self.origin.origin();
            if request.own_only && left {
                let problem = "a redirect to another server, which may not answer this; HF_ENDPOINT may name it";
                return Err(Reply::Refused(format!("{problem}: {:?}", plain(location))));
            }
            // Only the endpoint's headers describe the file, so the next server has nothing to add.
            if request.head_only && left {
                head.status = 200;
                let _ = sender.send(Reply::Head(Box::new(head)));
                return Ok(());
            }
            url = next;
        }
        Err(Reply::Refused(format!("more than {MAX_REDIRECTS} redirects")))
    }
}

impl Head {
    /// Reads the file's metadata from an answer of the endpoint. The first answer that has a value counts.
    fn read_metadata(&mut self, headers: &HeaderMap) {
        let number = |name| text(headers, name).and_then(|text| text.parse().ok());
        self.commit = self.commit.take().or_else(|| text(headers, "x-repo-commit").map(String::from));
        self.size = self.size.or_else(|| number("x-linked-size"));
        let checksum = || text(headers, "x-linked-etag").or(text(headers, "etag")).and_then(Checksum::parse);
        self.checksum = self.checksum.take().or_else(checksum);
    }

    /// Reads the headers of the last answer.
    fn finish(&mut self, status: u16, headers: &HeaderMap, own: bool) {
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

/// Sends a body in buffers, whatever its length: the caller knows how many bytes it expects.
fn send_body(body: ureq::Body, sender: &SyncSender<Reply>) -> Result<(), Reply> {
    let mut reader = body.into_with_config().limit(u64::MAX).reader();
    let mut speed = MinSpeed::default();
    loop {
        let (mut bytes, mut have, begin) = (vec![0; BUFFER], 0, Instant::now());
        let last = loop {
            let start = Instant::now();
            let result = reader.read(&mut bytes[have..]);
            let count = *result.as_ref().unwrap_or(&0);
            have += count;
            match result {
                Ok(0) => break Some(Ok(())),
                Ok(_) if speed.is_too_slow(count, start.elapsed()) => break Some(Err(too_slow())),
                Ok(_) if have == BUFFER || begin.elapsed() >= MAX_DELAY => break None,
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => break Some(Err(Reply::Failed(format!("the connection was cut: {error}")))),
            }
        };
        bytes.truncate(have);
        if !bytes.is_empty() && sender.send(Reply::Bytes(bytes)).is_err() {
            return Ok(());
        }
        if let Some(last) = last {
            return last;
        }
    }
}

/// The reply for a server below [`MinSpeed`].
pub(crate) fn too_slow() -> Reply {
    Reply::Failed("the server sends less than a kilobyte a second".into())
}

/// The problem of [`Reply::Offline`].
const NO_HOST: &str = "there is no connection to the network, or no such host";

/// Whether no server could be reached at all. The standard library has no kind for a name that cannot be resolved, but one text.
fn is_offline(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{HostUnreachable, NetworkDown, NetworkUnreachable};
    matches!(error.kind(), HostUnreachable | NetworkDown | NetworkUnreachable)
        || error.to_string().contains("failed to lookup address information")
}

/// Whether a request that failed with this error may succeed when it is repeated.
fn failure(error: &ureq::Error) -> Reply {
    match error {
        ureq::Error::HostNotFound => Reply::Offline(NO_HOST.into()),
        ureq::Error::BadUri(_) | ureq::Error::Http(_) | ureq::Error::RequireHttpsOnly(_) => {
            Reply::Refused(format!("this address cannot be requested: {error}"))
        }
        ureq::Error::Rustls(_) | ureq::Error::Tls(_) | ureq::Error::Pem(_) => Reply::Refused(format!(
            "{error}; if a proxy or a company uses its own certificates, set SSL_CERT_FILE to their file"
        )),
        // The bytes are not HTTP. A connection that ended early is another error.
        ureq::Error::Protocol(error) => Reply::Refused(format!("an answer that is no HTTP: {error}")),
        ureq::Error::Io(error) if is_offline(error) => Reply::Offline(format!("{NO_HOST} ({error})")),
        ureq::Error::Io(error) => Reply::Failed(error.to_string()),
        error => Reply::Failed(error.to_string()),
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// A server's text without control characters, shortened.
pub(crate) fn plain(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(MAX_MESSAGE).collect()
}

/// Parses `bytes FIRST-LAST/SIZE` into `FIRST` and `SIZE`.
fn content_range(text: &str) -> Option<(u64, u64)> {
    let (range, size) = text.strip_prefix("bytes ")?.split_once('/')?;
    Some((range.split_once('-')?.0.parse().ok()?, size.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_without_a_server_is_not_asked_again() {
        use std::io::{Error as IoError, ErrorKind};
        let unknown = IoError::other("failed to lookup address information: Temporary failure in name resolution");
        for error in [unknown, ErrorKind::NetworkUnreachable.into(), ErrorKind::HostUnreachable.into()] {
            assert!(matches!(failure(&ureq::Error::Io(error)), Reply::Offline(text) if text.starts_with(NO_HOST)));
        }
        assert!(matches!(failure(&ureq::Error::HostNotFound), Reply::Offline(_)));
        for kind in [ErrorKind::ConnectionRefused, ErrorKind::ConnectionReset, ErrorKind::TimedOut] {
            assert!(matches!(failure(&ureq::Error::Io(kind.into())), Reply::Failed(_)), "{kind}");
        }
    }

    #[test]
    fn a_content_range_has_a_first_byte_and_a_size() {
        assert_eq!(content_range("bytes 10-19/20"), Some((10, 20)));
        for text in ["bytes */20", "10-19/20", "bytes 10/20", "bytes 10-19/*"] {
            assert_eq!(content_range(text), None, "{text}");
        }
    }
}
