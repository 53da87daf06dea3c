//! `kiln self update` against a server on this machine.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::{Cursor, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use kiln_testkit::sha256;
use serde_json::{Value, json};
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

use crate::sandbox::{Run, Sandbox};

const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Files by path, and the paths that were asked for.
#[derive(Default)]
struct Releases {
    files: BTreeMap<String, (Vec<u8>, usize)>,
    asked: Vec<String>,
}

/// A server of releases. It says the whole length of a file and sends a part of it.
struct Server(u16, Arc<Mutex<Releases>>);

impl Server {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (port, shared) = (listener.local_addr().unwrap().port(), Arc::new(Mutex::new(Releases::default())));
        let releases = shared.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let (mut head, mut byte) = (Vec::new(), [0]);
                while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap_or(0) > 0 {
                    head.extend(byte);
                }
                let path = String::from_utf8_lossy(&head).split(' ').nth(1).unwrap_or_default().to_string();
                let mut releases = releases.lock().unwrap();
                releases.asked.push(path.clone());
                let _ = match releases.files.get(&path) {
                    Some((bytes, sent)) => {
                        let head =
                            format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", bytes.len());
                        stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&bytes[..*sent]))
                    }
                    None => {
                        stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                    }
                };
            }
        });
        Self(port, shared)
    }

    fn source(&self) -> String {
        format!("http://127.0.0.1:{}/releases", self.0)
    }

    /// Adds a file of the newest release, of which `sent` bytes are sent.
    fn add(&self, name: &str, bytes: Vec<u8>, sent: usize) {
        self.1.lock().unwrap().files.insert(format!("/releases/latest/download/{name}"), (bytes, sent));
    }

    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.1.lock().unwrap().asked)
    }
}

/// A program that says this version.
fn program(version: &str) -> String {
    format!("#!/bin/sh\necho \"kiln {version}\"\n")
}

/// The name and the bytes of an archive.
fn archive(version: &str, program: &str) -> (String, Vec<u8>) {
    let stem = format!("kiln-{version}-{TARGET}");
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    zip.start_file(format!("{stem}/LICENSE-MIT"), SimpleFileOptions::default()).unwrap();
    zip.start_file(format!("{stem}/kiln"), SimpleFileOptions::default()).unwrap();
    zip.write_all(program.as_bytes()).unwrap();
    (format!("{stem}.zip"), zip.finish().unwrap().into_inner())
}

/// An installed program with its receipt.
struct Installed {
    sandbox: Sandbox,
    server: Server,
    receipt: PathBuf,
}

impl Installed {
    fn new() -> Self {
        let (sandbox, server) = (Sandbox::new(), Server::start());
        let receipt = sandbox.path("home/.local/share/kiln/receipt.json");
        fs::create_dir_all(receipt.parent().unwrap()).unwrap();
        let text = json!({
            "version": env!("CARGO_PKG_VERSION"), "program": sandbox.install(), "source": server.source(),
            "archive": format!("kiln-{}-{TARGET}.tar.xz", env!("CARGO_PKG_VERSION")),
        });
        fs::write(&receipt, text.to_string()).unwrap();
        Self { sandbox, server, receipt }
    }

    fn update(&self, args: &[&str]) -> Run {
        let home = self.sandbox.path("home");
        let variables: [(&str, &OsStr); 2] = [("HOME", home.as_os_str()), ("XDG_DATA_HOME", OsStr::new(""))];
        self.sandbox.start_installed(&variables, &[&["self", "update"], args].concat()).finish()
    }

    /// Whether the program is the one that was installed.
    fn is_unchanged(&self) -> bool {
        let names: Vec<_> =
            fs::read_dir(self.sandbox.path("bin")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names == ["kiln"] && fs::metadata(self.sandbox.path("bin/kiln")).unwrap().len() > 1 << 20
    }

    /// Adds a release whose list of sums has `sum`, or the right one.
    fn release(&self, version: &str, (name, bytes): (String, Vec<u8>), sum: Option<String>) {
        let sum = sum.unwrap_or_else(|| sha256(&bytes));
        let sums = format!("{sum}  {name}\n{sum}  kiln-{version}-other.tar.xz\n").into_bytes();
        let all = sums.len();
        self.server.add("SHA256SUMS", sums, all);
        let all = bytes.len();
        self.server.add(&name, bytes, all);
    }
}

#[test]
fn a_newer_release_replaces_the_program() {
    let installed = Installed::new();
    installed.release("9.9.9", archive("9.9.9", &program("9.9.9")), None);
    fs::set_permissions(installed.sandbox.path("bin/kiln"), fs::Permissions::from_mode(0o755)).unwrap();
    let check = installed.update(&["--check"]).succeeds();
    assert!(check.stdout == "kiln 9.9.9 can be installed: kiln self update\n" && installed.is_unchanged(), "{check}");
    let run = installed.update(&[]).succeeds();
    assert_eq!(run.stdout, "kiln 9.9.9 is installed\n", "{run}");
    let new = installed.sandbox.path("bin/kiln");
    assert_eq!(fs::read_to_string(&new).unwrap(), program("9.9.9"));
    assert_eq!(fs::metadata(&new).unwrap().permissions().mode() & 0o777, 0o755);
    assert_eq!(fs::read_dir(installed.sandbox.path("bin")).unwrap().count(), 1);
    let receipt: Value = serde_json::from_str(&fs::read_to_string(&installed.receipt).unwrap()).unwrap();
    assert_eq!(
        (receipt["version"].as_str(), receipt["archive"].as_str()),
        (Some("9.9.9"), Some(format!("kiln-9.9.9-{TARGET}.zip").as_str()))
    );
    assert_eq!(receipt["source"], installed.server.source());
}

#[test]
fn a_release_that_is_not_newer_is_left_alone() {
    let installed = Installed::new();
    let version = env!("CARGO_PKG_VERSION");
    installed.release(version, archive(version, &program(version)), None);
    let run = installed.update(&[]).succeeds();
    assert_eq!(run.stdout, format!("kiln {version} is the newest release\n"));
    assert_eq!(installed.server.asked(), ["/releases/latest/download/SHA256SUMS"]);
    assert!(installed.is_unchanged());
}

#[test]
fn a_release_with_a_problem_changes_nothing() {
    let installed = Installed::new();
    installed.update(&[]).fails(1, &["SHA256SUMS: there is no such file"]);
    // Another sum, a cut download, an archive without the program, a program that does not run, no archive for the platform.
    let good = || archive("9.9.9", &program("9.9.9"));
    installed.release("9.9.9", good(), Some("0".repeat(64)));
    installed.update(&[]).fails(1, &["its SHA-256 is", "the program was not changed"]);
    assert!(installed.is_unchanged());
    let (name, bytes) = good();
    installed.release("9.9.9", good(), None);
    let half = bytes.len() / 2;
    installed.server.add(&name, bytes, half);
    installed.update(&[]).fails(1, &[&name, "the connection was cut"]);
    let mut empty = ZipWriter::new(Cursor::new(Vec::new()));
    empty.start_file("README.md", SimpleFileOptions::default()).unwrap();
    installed.release("9.9.9", (name.clone(), empty.finish().unwrap().into_inner()), None);
    installed.update(&[]).fails(1, &[&format!("has no kiln-9.9.9-{TARGET}/kiln"), "the program was not changed"]);
    installed.release("9.9.9", archive("9.9.9", &program("1.0.0")), None);
    installed.update(&[]).fails(1, &["its program does not run here", "kiln 1.0.0"]);
    installed.release("9.9.9", ("kiln-9.9.9-another.zip".into(), Vec::new()), None);
    installed.update(&[]).fails(1, &[&format!("names no zip archive for {TARGET}")]);
    assert!(installed.is_unchanged());
}

#[test]
fn a_program_without_a_receipt_asks_nobody() {
    let installed = Installed::new();
    fs::write(&installed.receipt, json!({
        "version": "0.1.0", "program": "/elsewhere/kiln", "source": installed.server.source(), "archive": "kiln-0.1.0-a.zip",
    }).to_string()).unwrap();
    installed.update(&[]).refused(&["no install script put this program here", "archive"]);
    fs::remove_file(&installed.receipt).unwrap();
    installed.update(&["--check"]).refused(&["no install script put this program here"]);
    assert!(installed.server.asked().is_empty() && installed.is_unchanged());
}
