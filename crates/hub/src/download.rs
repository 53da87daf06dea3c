//! Download of one file, resumed after the bytes that an earlier attempt left, and checked against its checksum.
//!
//! Bytes come over plain HTTP, or from the Xet storage in parallel chunks where the endpoint says that the file is there. Both
//! arrive here in order, so that size, checksum and resumption have the same rules. If the Xet storage fails, the rest of the
//! file comes over plain HTTP.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::Duration;

use crate::api::{Api, RemoteFile};
use crate::cache::{Cache, make_parent_folder};
use crate::digest::{Checksum, Hasher};
use crate::error::{Error, Result};
use crate::event::{Event, Monitor};
use crate::files::open_own;
use crate::http::{Head, Reply, Request};
use crate::min_speed::MIN_BYTES;
use crate::official;
use crate::retry::{RetryPolicy, is_transient};
use crate::xet::Xet;

/// Bytes of an earlier attempt that are read at once.
const BUFFER: usize = 1 << 20;

/// A file with known size and checksum.
pub(crate) struct Download<'a> {
    pub(crate) file: &'a RemoteFile,
    pub(crate) checksum: &'a Checksum,
    pub(crate) size: u64,
}

/// Where files come from and where they go.
pub(crate) struct Source<'a> {
    pub(crate) api: &'a Api<'a>,
    pub(crate) cache: &'a Cache,
    pub(crate) commit: &'a str,
    pub(crate) xet: &'a Xet,
}

impl Download<'_> {
    /// Whether the content is in the cache.
    pub(crate) fn is_cached(&self, cache: &Cache) -> bool {
        // Content of another size was left by a crash of the system. Content of the right size is not hashed again, as in
        // other tools: it was hashed when it was downloaded, and users with write access may change it at any time.
        cache.blob(self.checksum).metadata().is_ok_and(|metadata| metadata.len() == self.size)
    }

    /// Bytes that the cache does not have yet.
    pub(crate) fn missing(&self, cache: &Cache) -> u64 {
        if self.is_cached(cache) {
            return 0;
        }
        let have = cache.incomplete(self.checksum).metadata().map_or(0, |metadata| metadata.len());
        self.size.saturating_sub(have)
    }
}

/// The end of one attempt.
enum Attempt {
    /// All bytes are there.
    Complete,
    /// Another attempt may succeed.
    Failed {
        problem: String,
        /// The pause that the server asks for.
        retry_after: Option<Duration>,
    },
}

/// A file that is being written.
struct PartialFile {
    file: File,
    hasher: Hasher,
    have: u64,
}

/// Downloads a file into the cache. Returns `false` if the cache had it already.
pub(crate) fn download(source: &Source<'_>, download: &Download<'_>, monitor: &mut Monitor<'_>) -> Result<bool> {
    let (cache, name) = (source.cache, download.file.name.as_str());
    if download.is_cached(cache) {
        return Ok(false);
    }
    let mut reported = false;
    let lock = cache.lock(download.checksum, &mut || {
        if !std::mem::replace(&mut reported, true) {
            monitor.send(Event::Waiting { name })?;
        }
        monitor.pause(Duration::from_millis(50))
    })?;
    if download.is_cached(cache) {
        monitor.done += download.size; // another process downloaded it
        return Ok(false);
    }
    let path = cache.incomplete(download.checksum);
    make_parent_folder(&path)?;
    let base = monitor.done;
    // The bytes of an earlier attempt may be of another file, and the Xet storage may send wrong ones. If the checksum is wrong,
    // the file is downloaded once more, over plain HTTP.
    let resumed = path.metadata().is_ok_and(|metadata| metadata.len() > 0);
    let (mut found, used_xet) = download_bytes(source, download, &path, source.xet.is_enabled(), monitor)?;
    if found != download.checksum.text() && (resumed || used_xet) {
        remove(&path)?;
        monitor.done = base;
        let problem = match resumed {
            true => "the bytes of an earlier attempt are not of this file",
            false => "the Xet storage sent other bytes than those of this file",
        };
        monitor.send(Event::Retry { name, problem, pause: Duration::ZERO })?;
        found = download_bytes(source, download, &path, false, monitor)?.0;
    }
    if found != download.checksum.text() {
        remove(&path)?;
        return Err(Error::Checksum { file: name.into(), expected: download.checksum.text().into(), found });
    }
    let blob = cache.blob(download.checksum);
    std::fs::rename(&path, &blob).map_err(Error::io(&blob))?;
    drop(lock);
    monitor.send(Event::Done { name, official: official::title(download.checksum.text()) })?;
    Ok(true)
}

/// Downloads all bytes to `path`. Returns their checksum, and whether some may be from the Xet storage.
fn download_bytes(
    source: &Source<'_>,
    download: &Download<'_>,
    path: &Path,
    use_xet: bool,
    monitor: &mut Monitor<'_>,
) -> Result<(String, bool)> {
    let name = download.file.name.as_str();
    let mut transfer = Transfer {
        source,
        download,
        path,
        address: source.api.client.address(&source.api.content(source.commit, name)),
        base: monitor.done,
        use_xet,
        used_xet: false,
        partial: PartialFile::open(path, download, monitor)?,
    };
    let mut retry = RetryPolicy::new(source.api.settings.pause);
    while transfer.partial.have < download.size {
        let before = transfer.partial.have;
        monitor.send(Event::File { name, size: download.size, from: before })?;
        let Attempt::Failed { problem, retry_after } = transfer.attempt(monitor)? else { break };
        // A few bytes for each connection are no progress: the attempts would never end.
        if transfer.partial.have.saturating_sub(before) >= MIN_BYTES {
            retry.reset();
        }
        if !retry.wait(name, &problem, retry_after, monitor)? {
            return Err(Error::Network { address: transfer.address, problem, kept: monitor.done > 0 });
        }
    }
    transfer.partial.file.sync_all().map_err(Error::io(path))?;
    Ok((transfer.partial.hasher.finish(), transfer.used_xet))
}

/// The bytes of one file on their way.
struct Transfer<'a> {
    source: &'a Source<'a>,
    download: &'a Download<'a>,
    path: &'a Path,
    /// For messages.
    address: String,
    /// Bytes of all files before this one.
    base: u64,
    /// Whether the Xet storage may be asked; not after it failed.
    use_xet: bool,
    /// Whether bytes may be from the Xet storage.
    used_xet: bool,
    partial: PartialFile,
}

impl Transfer<'_> {
    /// One request for the missing bytes.
    fn attempt(&mut self, monitor: &mut Monitor<'_>) -> Result<Attempt> {
        let api = self.source.api;
        let path = api.content(self.source.commit, &self.download.file.name);
        let request = Request { path, from: self.partial.have, xet: self.use_xet, ..Request::default() };
        let replies = api.client.send(request)?;
        let mut has_begun = false;
        let problem = loop {
            match monitor.next(&replies)? {
                Reply::Head(head) => {
                    api.check(self.source.commit, self.download.file, &head, &self.address)?;
                    if let Some(hash) = &head.xet_hash {
                        return self.attempt_xet(hash, monitor);
                    }
                    if let Some(failed) = self.begin(&head, monitor)? {
                        return Ok(failed);
                    }
                    has_begun = true;
                }
                Reply::Bytes(bytes) if has_begun => self.write(&bytes, monitor)?,
                Reply::Bytes(_) => {}
                Reply::End if self.partial.have == self.download.size => return Ok(Attempt::Complete),
                Reply::End => break "the connection was cut".into(),
                Reply::Failed(problem) | Reply::Offline(problem) => break problem,
                Reply::Refused(problem) => return Err(Error::refused(&self.address, problem)),
            }
        };
        Ok(Attempt::Failed { problem, retry_after: None })
    }

    /// One transfer of the missing bytes from the Xet storage. Whatever fails there, the file may still come over plain HTTP.
    fn attempt_xet(&mut self, hash: &str, monitor: &mut Monitor<'_>) -> Result<Attempt> {
        let before = self.partial.have;
        let problem = match self.source.api.xet_access(self.source.commit, monitor) {
            Err(Error::Interrupted) => return Err(Error::Interrupted),
            Err(error) => error.to_string(),
            Ok(access) => match self.source.xet.start(&access, hash, before..self.download.size)? {
                Err(problem) => problem,
                Ok((_transfer, replies)) => {
                    self.used_xet = true;
                    loop {
                        match monitor.next(&replies)? {
                            Reply::Bytes(bytes) => self.write(&bytes, monitor)?,
                            Reply::End if self.partial.have == self.download.size => return Ok(Attempt::Complete),
                            Reply::End => break "the file ends early".into(),
                            Reply::Failed(problem) | Reply::Offline(problem) | Reply::Refused(problem) => {
                                break problem;
                            }
                            Reply::Head(_) => {}
                        }
                    }
                }
            },
        };
        // A token may expire during a long transfer, after which another transfer succeeds.
        self.use_xet = self.partial.have.saturating_sub(before) >= MIN_BYTES;
        Ok(Attempt::Failed { problem: format!("the Xet storage: {problem}"), retry_after: None })
    }

    /// Checks the headers of a response with bytes. Returns how the attempt ended if no bytes can be used.
    fn begin(&mut self, head: &Head, monitor: &mut Monitor<'_>) -> Result<Option<Attempt>> {
        let (have, size) = (self.partial.have, self.download.size);
        let refused = |problem: String| Err(Error::refused(&self.address, problem));
        let first = match head.status {
            // A server without support for ranges sends the file from its first byte.
            200 => 0,
            206 => match head.range {
                Some((first, total)) if first == have && total == size => first,
                Some((first, total)) => {
                    return refused(format!("sends bytes from {first} of {total}, expected from {have} of {size}"));
                }
                None => return refused("a part of a file, but not which".into()),
            },
            416 if have > 0 => {
                self.restart(monitor)?;
                let problem = "the server knows no such part of the file".into();
                return Ok(Some(Attempt::Failed { problem, retry_after: None }));
            }
            status if is_transient(status) => {
                let problem = format!("the server says {status}");
                return Ok(Some(Attempt::Failed { problem, retry_after: head.retry_after }));
            }
            _ => return Err(self.source.api.status_error(head, &self.address, Some(&self.download.file.name))),
        };
        if let Some(length) = head.length.filter(|length| *length != size - first) {
            return refused(format!("sends {length} bytes, expected {}", size - first));
        }
        if first != have {
            self.restart(monitor)?;
        }
        Ok(None)
    }

    /// Appends bytes to the file.
    fn write(&mut self, bytes: &[u8], monitor: &mut Monitor<'_>) -> Result<()> {
        let (partial, size) = (&mut self.partial, self.download.size);
        if bytes.len() as u64 > size - partial.have {
            return Err(Error::refused(&self.address, format!("sends more than the {size} bytes of the file")));
        }
        partial.file.write_all(bytes).map_err(Error::io(self.path))?;
        partial.hasher.update(bytes);
        partial.have += bytes.len() as u64;
        monitor.done = self.base + partial.have;
        monitor.send_progress()
    }

    fn restart(&mut self, monitor: &mut Monitor<'_>) -> Result<()> {
        self.partial.restart(self.path, self.download)?;
        monitor.done = self.base;
        Ok(())
    }
}

impl PartialFile {
    /// Opens the file of an earlier attempt, hashes it, and seeks to its end.
    fn open(path: &Path, download: &Download<'_>, monitor: &mut Monitor<'_>) -> Result<Self> {
        let mut file = open_own(path).map_err(Error::io(path))?;
        let mut hasher = download.checksum.hasher(download.size);
        let (base, mut have) = (monitor.done, 0);
        let mut buffer = vec![0; BUFFER];
        loop {
            let count = file.read(&mut buffer).map_err(Error::io(path))?;
            if count == 0 {
                break;
            }
            hasher.update(&buffer[..count]);
            have += count as u64;
            monitor.done = base + have.min(download.size);
            monitor.send_progress()?;
        }
        let mut partial = Self { file, hasher, have };
        if have > download.size {
            partial.restart(path, download)?;
            monitor.done = base;
        }
        Ok(partial)
    }

    /// Discards all bytes.
    fn restart(&mut self, path: &Path, download: &Download<'_>) -> Result<()> {
        self.file.set_len(0).map_err(Error::io(path))?;
        self.file.seek(SeekFrom::Start(0)).map_err(Error::io(path))?;
        self.hasher = download.checksum.hasher(download.size);
        self.have = 0;
        Ok(())
    }
}

fn remove(path: &Path) -> Result<()> {
    std::fs::remove_file(path).map_err(Error::io(path))
}
