//! A local server that behaves like the Hugging Face Hub, with configurable faults.
//!
//! It listens on two ports: the Hub's, and that of the content network to which the Hub redirects clients for large
//! files. Files of [`LARGE`] bytes and more are large. With [`HubServer::xet`] they are in the Xet storage too, which is at
//! the second port.

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, SHA256, digest};

use crate::xet_store;

/// From this size on, git stores a pointer instead of a file's content.
const LARGE: usize = 2048;

/// A fault, which occurs once.
#[derive(Debug, Clone)]
pub enum Fault {
    /// Responds with a status and these headers.
    Status(u16, Vec<(&'static str, String)>),
    /// Closes the connection after this number of bytes of the content.
    Cut(usize),
    /// Stops sending after this number of bytes of the content, and keeps the connection open.
    Stall(usize),
    /// Sends the content with one byte changed.
    Wrong,
    /// Sends the whole content and ignores the requested range.
    Whole,
    /// Sends another range than the requested one.
    OtherPart,
    /// Sends this number of bytes more than the file has, without a length.
    Long(usize),
    /// Reports this content length.
    Length(u64),
    /// Redirects the client.
    Redirect(String),
    /// Closes the connection without a response.
    Silence,
}

/// A request.
#[derive(Debug, Clone)]
pub struct Asked {
    /// `GET` or `HEAD`.
    pub method: String,
    /// Path and query.
    pub path: String,
    /// Names are in lower case.
    pub headers: BTreeMap<String, String>,
    /// Whether it was sent to the second port.
    pub elsewhere: bool,
}

#[derive(Default)]
struct State {
    files: BTreeMap<String, Vec<u8>>,
    /// Listed files without content, by name, with the listing's entry.
    ghosts: Vec<String>,
    faults: Vec<(String, VecDeque<Fault>)>,
    asked: Vec<Asked>,
    token: Option<String>,
    plain_listing: bool,
    xet: Option<String>,
}

/// The server of one repository, at `main` and at its only commit. It stops on drop.
pub struct HubServer {
    repository: String,
    ports: [u16; 2],
    state: Arc<Mutex<State>>,
    stop: Arc<AtomicBool>,
}

impl HubServer {
    /// The commit of the repository.
    pub const COMMIT: &'static str = "0123456789abcdef0123456789abcdef01234567";

    /// Serves an empty repository `OWNER/NAME`.
    pub fn start(repository: &str) -> Self {
        let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let ports = [0, 1].map(|i: usize| listeners[i].local_addr().unwrap().port());
        let (state, stop) = (Arc::new(Mutex::new(State::default())), Arc::new(AtomicBool::new(false)));
        for (elsewhere, listener) in [false, true].into_iter().zip(listeners) {
            let (state, stop, repository) = (state.clone(), stop.clone(), repository.to_string());
            std::thread::spawn(move || {
                for stream in listener.incoming().take_while(|_| !stop.load(Ordering::SeqCst)) {
                    let (state, repository) = (state.clone(), repository.clone());
                    let serve = move |stream| {
                        Exchange { state: &state, repository: &repository, ports, elsewhere }.serve(stream)
                    };
                    std::thread::spawn(move || stream.map(serve));
                }
            });
        }
        Self { repository: repository.into(), ports, state, stop }
    }

    /// The Hub's address.
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports[0])
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Adds a file.
    pub fn add(&self, name: &str, content: impl Into<Vec<u8>>) -> &Self {
        self.state().files.insert(name.into(), content.into());
        self
    }

    /// Adds all files of a folder.
    pub fn add_folder(&self, folder: &Path) -> &Self {
        self.add_below(folder, "");
        self
    }

    fn add_below(&self, folder: &Path, prefix: &str) {
        for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let name = format!("{prefix}{}", entry.file_name().into_string().unwrap());
            match entry.path().is_dir() {
                true => self.add_below(&entry.path(), &format!("{name}/")),
                false => drop(self.add(&name, std::fs::read(entry.path()).unwrap())),
            }
        }
    }

    /// Lists a file that does not exist: a JSON object in the Hub's format.
    pub fn list(&self, entry: &str) -> &Self {
        self.state().ghosts.push(entry.into());
        self
    }

    /// Lists names only, without sizes and checksums, as mirrors do.
    pub fn plain_listing(&self) -> &Self {
        self.state().plain_listing = true;
        self
    }

    /// Stores large files in the Xet storage too.
    pub fn xet(&self) -> &Self {
        self.xet_at(&self.elsewhere("/cas"))
    }

    /// The same, at an address that need not be this server's.
    pub fn xet_at(&self, address: &str) -> &Self {
        self.state().xet = Some(address.into());
        self
    }

    /// Requires this token; other requests get the Hub's response.
    pub fn private(&self, token: &str) -> &Self {
        self.state().token = Some(token.into());
        self
    }

    /// Applies these faults, one after the other, to requests whose paths end in `end` (without the query).
    pub fn fault(&self, end: &str, faults: &[Fault]) -> &Self {
        self.state().faults.push((end.into(), faults.iter().cloned().collect()));
        self
    }

    /// Redirects requests for a file: the address of the second port for this path.
    pub fn elsewhere(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.ports[1])
    }

    /// The requests since the last call.
    pub fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut self.state().asked)
    }

    /// The names of files whose content was requested since the last call.
    pub fn fetched(&self) -> Vec<String> {
        let start = format!("/{}/resolve/{}/", self.repository, Self::COMMIT);
        let gets = self.asked().into_iter().filter(|asked| asked.method == "GET");
        gets.filter_map(|asked| asked.path.strip_prefix(&start).map(String::from)).collect()
    }
}

impl Drop for HubServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        for port in self.ports {
            let _ = TcpStream::connect(("127.0.0.1", port)); // unblocks the listener, which then ends
        }
    }
}

/// The content's SHA-256 in hexadecimal.
pub fn sha256(content: &[u8]) -> String {
    hex(digest(&SHA256, content).as_ref())
}

/// git's hash of the content.
pub fn git_blob(content: &[u8]) -> String {
    let object = [format!("blob {}\0", content.len()).as_bytes(), content].concat();
    hex(digest(&SHA1_FOR_LEGACY_USE_ONLY, &object).as_ref())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A response.
#[derive(Default)]
struct Response {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
    /// The `Content-Length`; `None` for no such header.
    length: Option<u64>,
    /// The number of bytes after which the connection is closed.
    cut: Option<usize>,
    /// Whether the connection stays open without further data.
    stalls: bool,
}

impl Response {
    fn new(status: u16, headers: Vec<(&'static str, String)>, body: Vec<u8>) -> Self {
        Self { status, headers, length: Some(body.len() as u64), body, cut: None, stalls: false }
    }

    fn error(status: u16, code: &str) -> Self {
        let message = format!("a message about {code}");
        Self::new(status, vec![("X-Error-Code", code.into()), ("X-Error-Message", message)], Vec::new())
    }

    fn redirect(status: u16, to: String, more: Vec<(&'static str, String)>) -> Self {
        Self::new(status, [vec![("Location", to)], more].concat(), Vec::new())
    }
}

/// One connection, which carries one request.
struct Exchange<'a> {
    state: &'a Mutex<State>,
    repository: &'a str,
    ports: [u16; 2],
    elsewhere: bool,
}

impl Exchange<'_> {
    fn serve(&self, mut stream: TcpStream) -> Option<()> {
        let mut lines = BufReader::new(stream.try_clone().ok()?).lines().map_while(Result::ok);
        let first = lines.next()?;
        let (method, path) =
            first.split_once(' ').and_then(|(method, rest)| Some((method, rest.split(' ').next()?)))?;
        let header =
            |line: String| line.split_once(':').map(|(name, value)| (name.to_lowercase(), value.trim().to_string()));
        let headers: BTreeMap<String, String> = lines.take_while(|line| !line.is_empty()).filter_map(header).collect();
        let asked = Asked { method: method.into(), path: path.into(), headers, elsewhere: self.elsewhere };
        self.state.lock().unwrap().asked.push(asked.clone());
        let response = self.response(&asked)?;
        let mut head = format!("HTTP/1.1 {} Status\r\nConnection: close\r\n", response.status);
        response.headers.iter().for_each(|(name, value)| head += &format!("{name}: {value}\r\n"));
        response.length.iter().for_each(|length| head += &format!("Content-Length: {length}\r\n"));
        stream.write_all(format!("{head}\r\n").as_bytes()).ok()?;
        if method == "GET" {
            let end = response.cut.map_or(response.body.len(), |cut| cut.min(response.body.len()));
            stream.write_all(&response.body[..end]).ok()?;
        }
        stream.flush().ok()?;
        if response.stalls {
            let _ = stream.read(&mut [0]); // until the client disconnects
        }
        Some(())
    }

    /// Whether the path is that of an existing file.
    fn has(&self, path: &str) -> bool {
        self.content_name(path).is_some_and(|name| self.state.lock().unwrap().files.contains_key(name))
    }

    /// The next fault for this path.
    fn fault(&self, path: &str) -> Option<Fault> {
        let mut state = self.state.lock().unwrap();
        let found = state.faults.iter_mut().find(|(end, faults)| path.ends_with(end.as_str()) && !faults.is_empty());
        found.and_then(|(_, faults)| faults.pop_front())
    }

    fn response(&self, asked: &Asked) -> Option<Response> {
        let path = asked.path.split('?').next()?;
        // Faults of content apply where the content is, not to redirects.
        let sends_on = asked.method == "GET" && path.contains("/resolve/") && self.has(path);
        let fault = if sends_on { None } else { self.fault(path) };
        match &fault {
            Some(Fault::Silence) => return None,
            Some(Fault::Status(status, headers)) => return Some(Response::new(*status, headers.clone(), Vec::new())),
            Some(Fault::Redirect(to)) => return Some(Response::redirect(302, to.clone(), Vec::new())),
            _ => {}
        }
        let token = self.state.lock().unwrap().token.clone();
        if let Some(token) = token.filter(|_| !self.elsewhere)
            && asked.headers.get("authorization") != Some(&format!("Bearer {token}"))
        {
            return Some(Response::error(401, "RepoNotFound"));
        }
        if path == format!("/api/models/{}/xet-read-token/{}", self.repository, HubServer::COMMIT) {
            let Some(address) = self.state.lock().unwrap().xet.clone() else { return Some(Response::error(404, "")) };
            let body = format!(r#"{{"casUrl":"{address}","accessToken":"xet-token","exp":4102444800}}"#);
            return Some(Response::new(200, Vec::new(), body.into_bytes()));
        }
        if path.starts_with("/api/models/") {
            return Some(self.listing(path));
        }
        if let Some(path) = path.strip_prefix("/cas/").filter(|_| self.elsewhere) {
            return Some(self.storage(asked, path, fault));
        }
        let Some(name) = self.content_name(path) else { return Some(Response::error(404, "RepoNotFound")) };
        let content = self.state.lock().unwrap().files.get(name).cloned();
        let Some(content) = content else { return Some(Response::error(404, "EntryNotFound")) };
        Some(self.content(asked, name, content, fault))
    }

    /// The Xet storage: how a file is made of chunks, and the chunks. A file's hash is its SHA-256 here.
    fn storage(&self, asked: &Asked, path: &str, fault: Option<Fault>) -> Response {
        let Some((kind, hash)) = path.rsplit_once('/') else { return Response::error(404, "") };
        let state = self.state.lock().unwrap();
        let content = state.files.values().find(|content| sha256(content) == hash);
        let (Some(content), range) = (content, xet_store::range(asked.headers.get("range"))) else {
            return Response::error(404, "");
        };
        if kind == "v1/reconstructions" {
            let (first, last) = range.unwrap_or((0, content.len() - 1));
            let url = format!("http://127.0.0.1:{}/cas/container/{hash}", self.ports[1]);
            return match xet_store::reconstruction(content.len(), first, last, hash, &url) {
                Some(body) => Response::new(200, vec![("Content-Type", "application/json".into())], body.into_bytes()),
                None => Response::new(416, Vec::new(), Vec::new()),
            };
        }
        let ("container", Some((first, last))) = (kind, range) else { return Response::error(404, "") };
        let bytes = xet_store::container(content);
        let Some(part) = bytes.get(first..=last) else { return Response::new(416, Vec::new(), Vec::new()) };
        let headers = vec![("Content-Range", format!("bytes {first}-{last}/{}", bytes.len()))];
        let mut answer = Response::new(206, headers, part.to_vec());
        match (fault, answer.body.last_mut()) {
            (Some(Fault::Wrong), Some(byte)) => *byte ^= 1,
            (Some(Fault::Cut(after)), _) => answer.cut = Some(after),
            _ => {}
        }
        answer
    }

    /// The file of a path: the Hub's own, or a redirect target.
    fn content_name<'a>(&self, path: &'a str) -> Option<&'a str> {
        let commit = HubServer::COMMIT;
        let starts = match self.elsewhere {
            true => vec!["/large/".to_string()],
            false => vec![format!("/{}/resolve/{commit}/", self.repository), "/api/resolve-cache/".into()],
        };
        starts.iter().find_map(|start| path.strip_prefix(start.as_str()))
    }

    fn listing(&self, path: &str) -> Response {
        let Some(revision) = path.strip_prefix(&format!("/api/models/{}/revision/", self.repository)) else {
            return Response::error(404, "RepoNotFound");
        };
        if !["main", "refs%2Fpr%2F1", HubServer::COMMIT].contains(&revision) {
            return Response::error(404, "RevisionNotFound");
        }
        let state = self.state.lock().unwrap();
        let entry = |(name, content): (&String, &Vec<u8>)| {
            let (size, blob) = (content.len(), git_blob(content));
            if state.plain_listing {
                return format!("{{\"rfilename\":{name:?}}}");
            }
            let lfs = match size {
                ..LARGE => String::new(),
                _ => format!(",\"lfs\":{{\"sha256\":\"{}\",\"size\":{size},\"pointerSize\":134}}", sha256(content)),
            };
            format!("{{\"rfilename\":{name:?},\"size\":{size},\"blobId\":\"{blob}\"{lfs}}}")
        };
        let entries: Vec<String> = state.files.iter().map(entry).chain(state.ghosts.clone()).collect();
        let body = format!("{{\"sha\":\"{}\",\"siblings\":[{}]}}", HubServer::COMMIT, entries.join(","));
        Response::new(200, vec![("Content-Type", "application/json".into())], body.into_bytes())
    }

    fn content(&self, asked: &Asked, name: &str, mut content: Vec<u8>, fault: Option<Fault>) -> Response {
        let commit = ("X-Repo-Commit", HubServer::COMMIT.to_string());
        let is_large = content.len() >= LARGE;
        let tag = |content: &[u8]| format!("\"{}\"", if is_large { sha256(content) } else { git_blob(content) });
        if asked.path.contains("/resolve/") && is_large {
            let size = content.len().to_string();
            let mut headers =
                vec![commit, ("X-Linked-Size", size), ("X-Linked-ETag", tag(&content)), ("ETag", "\"xet-1\"".into())];
            if self.state.lock().unwrap().xet.is_some() {
                headers.push(("X-Xet-Hash", sha256(&content)));
            }
            return Response::redirect(302, format!("http://127.0.0.1:{}/large/{name}", self.ports[1]), headers);
        }
        if asked.path.contains("/resolve/") {
            let headers = vec![commit, ("ETag", tag(&content))];
            return Response::redirect(307, format!("/api/resolve-cache/{name}"), headers);
        }
        let mut headers = match self.elsewhere {
            true => vec![("ETag", "\"of-the-network\"".into())],
            false => vec![commit, ("ETag", tag(&content))],
        };
        let size = content.len();
        if let (Some(Fault::Wrong), Some(byte)) = (&fault, content.last_mut()) {
            *byte ^= 1;
        }
        let from =
            asked.headers.get("range").and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok());
        let mut response = match from {
            Some(from) if !matches!(fault, Some(Fault::Whole)) => {
                if from >= size {
                    return Response::new(416, vec![("Content-Range", format!("bytes */{size}"))], Vec::new());
                }
                let from: usize = if matches!(fault, Some(Fault::OtherPart)) { from - 1 } else { from };
                headers.push(("Content-Range", format!("bytes {from}-{}/{size}", size - 1)));
                Response::new(206, headers, content.split_off(from))
            }
            _ => Response::new(200, headers, content),
        };
        match fault {
            Some(Fault::Cut(after)) => response.cut = Some(after),
            Some(Fault::Stall(after)) => (response.cut, response.stalls) = (Some(after), true),
            Some(Fault::Length(length)) => response.length = Some(length),
            Some(Fault::Long(more)) => {
                response.body.resize(response.body.len() + more, b'x');
                response.length = None;
            }
            _ => {}
        }
        response
    }
}
