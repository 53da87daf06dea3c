//! One file's content, from its first or its last byte that is here, to its checksum.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

use crate::api::{Api, RemoteFile};
use crate::cache::{Cache, make_folder_of};
use crate::digest::{Checksum, Sum};
use crate::error::{Error, Result};
use crate::event::{Event, Watch};
use crate::files::open_own;
use crate::http::{Ask, Piece};
use crate::official;
use crate::patience::{Patience, is_passing};
use crate::trickle::LEAST;

/// How much of an earlier try is read at once.
const PIECE: usize = 1 << 20;

/// A file whose size and checksum are known.
pub(crate) struct Wanted<'a> {
    pub(crate) file: &'a RemoteFile,
    pub(crate) checksum: &'a Checksum,
    pub(crate) size: u64,
}

impl Wanted<'_> {
    /// Whether the content is in the cache.
    pub(crate) fn is_there(&self, cache: &Cache) -> bool {
        // Another size is what an earlier end of the system left. Content of the right size is not summed again, as in
        // other tools: it was when it came, and who may write into the cache may change it at any time.
        cache.blob(self.checksum).metadata().is_ok_and(|metadata| metadata.len() == self.size)
    }

    /// Bytes that are missing in the cache.
    pub(crate) fn missing(&self, cache: &Cache) -> u64 {
        if self.is_there(cache) {
            return 0;
        }
        let here = cache.incomplete(self.checksum).metadata().map_or(0, |metadata| metadata.len());
        self.size.saturating_sub(here)
    }
}

/// What came of one request.
enum Try {
    /// All bytes are there.
    Whole,
    /// Another try may go better; the server asks for a pause.
    Again(String, Option<std::time::Duration>),
}

/// Content that is being written.
struct Partial {
    file: File,
    sum: Sum,
    have: u64,
}

/// Brings a file's content into the cache. Returns whether it was fetched, rather than there.
pub(crate) fn fetch(
    api: &Api<'_>,
    cache: &Cache,
    commit: &str,
    wanted: &Wanted<'_>,
    watch: &mut Watch<'_>,
) -> Result<bool> {
    let name = wanted.file.name.as_str();
    if wanted.is_there(cache) {
        return Ok(false);
    }
    let mut told = false;
    let lock = cache.lock(wanted.checksum, &mut || {
        if !std::mem::replace(&mut told, true) {
            watch.tell(Event::Waiting { name })?;
        }
        watch.pause(std::time::Duration::from_millis(50))
    })?;
    if wanted.is_there(cache) {
        watch.done += wanted.size; // another process fetched it
        return Ok(false);
    }
    let path = cache.incomplete(wanted.checksum);
    make_folder_of(&path)?;
    let base = watch.done;
    // What an earlier try left may be of anybody; where it does not fit the end, all is fetched once more.
    let resumed = path.metadata().is_ok_and(|metadata| metadata.len() > 0);
    let mut found = bring(api, commit, wanted, &path, watch)?;
    if found != wanted.checksum.text() && resumed {
        remove(&path)?;
        watch.done = base;
        let problem = "what an earlier try left was not a part of it";
        watch.tell(Event::Retry { name, problem, pause: std::time::Duration::ZERO })?;
        found = bring(api, commit, wanted, &path, watch)?;
    }
    if found != wanted.checksum.text() {
        remove(&path)?;
        return Err(Error::Checksum { file: name.into(), expected: wanted.checksum.text().into(), found });
    }
    let blob = cache.blob(wanted.checksum);
    std::fs::rename(&path, &blob).map_err(Error::io(&blob))?;
    drop(lock);
    watch.tell(Event::Done { name, official: official::title(wanted.checksum.text()) })?;
    Ok(true)
}

/// Brings all bytes into `path` and gives their checksum.
fn bring(api: &Api<'_>, commit: &str, wanted: &Wanted<'_>, path: &Path, watch: &mut Watch<'_>) -> Result<String> {
    let name = wanted.file.name.as_str();
    let base = watch.done;
    let mut partial = Partial::open(path, wanted, watch)?;
    let mut patience = Patience::new(api.settings.pause);
    while partial.have < wanted.size {
        let before = partial.have;
        watch.tell(Event::File { name, size: wanted.size, from: partial.have })?;
        let (problem, asked) = match once(api, commit, wanted, path, &mut partial, (base, &mut *watch))? {
            Try::Whole => break,
            Try::Again(problem, asked) => (problem, asked),
        };
        // A few bytes a connection are no progress: the tries would never end.
        if partial.have.saturating_sub(before) >= LEAST {
            patience.renew();
        }
        if !patience.wait(name, &problem, asked, watch)? {
            let address = api.client.address(&api.content(commit, name));
            return Err(Error::Network { address, problem });
        }
    }
    partial.file.sync_all().map_err(Error::io(path))?;
    Ok(partial.sum.end())
}

/// One request for what is missing.
fn once(
    api: &Api<'_>,
    commit: &str,
    wanted: &Wanted<'_>,
    path: &Path,
    partial: &mut Partial,
    (base, watch): (u64, &mut Watch<'_>),
) -> Result<Try> {
    let ask = Ask { path: api.content(commit, &wanted.file.name), from: partial.have, ..Ask::default() };
    let address = api.client.address(&ask.path);
    let pieces = api.client.ask(ask)?;
    let mut begun = false;
    loop {
        match watch.next(&pieces)? {
            Piece::Head(head) => {
                api.check(commit, wanted.file, &head, &address)?;
                let begins = match head.status {
                    // Without a part the file comes from its begin, whatever was asked for.
                    200 => 0,
                    206 => {
                        let (begins, size) =
                            head.range.ok_or_else(|| Error::refused(&address, "a part of a file, but not which"))?;
                        if begins != partial.have || size != wanted.size {
                            let found = format!("bytes from {begins} of {size}");
                            let expected = format!("from {} of {}", partial.have, wanted.size);
                            return Err(Error::refused(&address, format!("sends {found}, expected {expected}")));
                        }
                        begins
                    }
                    416 if partial.have > 0 => {
                        partial.restart(path, wanted)?;
                        return Ok(Try::Again("the server knows no such part of the file".into(), None));
                    }
                    status if is_passing(status) => {
                        return Ok(Try::Again(format!("the server says {status}"), head.retry_after));
                    }
                    _ => return Err(api.denied(&head, &address, Some(&wanted.file.name))),
                };
                if head.length.is_some_and(|length| length != wanted.size - begins) {
                    let (found, expected) = (head.length.unwrap_or_default(), wanted.size - begins);
                    return Err(Error::refused(&address, format!("sends {found} bytes, expected {expected}")));
                }
                if begins != partial.have {
                    partial.restart(path, wanted)?;
                    watch.done = base;
                }
                begun = true;
            }
            Piece::Bytes(bytes) if begun => {
                if bytes.len() as u64 > wanted.size - partial.have {
                    return Err(Error::refused(
                        &address,
                        format!("sends more than the {} bytes of the file", wanted.size),
                    ));
                }
                partial.file.write_all(&bytes).map_err(Error::io(path))?;
                partial.sum.add(&bytes);
                partial.have += bytes.len() as u64;
                watch.done = base + partial.have;
                watch.progress()?;
            }
            Piece::Bytes(_) => {}
            Piece::End if partial.have == wanted.size => return Ok(Try::Whole),
            Piece::End => return Ok(Try::Again("the connection was cut".into(), None)),
            Piece::Failed(problem) => return Ok(Try::Again(problem, None)),
            Piece::Refused(problem) => return Err(Error::refused(&address, problem)),
        }
    }
}

impl Partial {
    /// Opens what an earlier try left, sums it, and stands at its end.
    fn open(path: &Path, wanted: &Wanted<'_>, watch: &mut Watch<'_>) -> Result<Self> {
        let mut file = open_own(path).map_err(Error::io(path))?;
        let mut sum = wanted.checksum.begin(wanted.size);
        let (base, mut have) = (watch.done, 0);
        let mut buffer = vec![0; PIECE];
        loop {
            let count = file.read(&mut buffer).map_err(Error::io(path))?;
            if count == 0 {
                break;
            }
            sum.add(&buffer[..count]);
            have += count as u64;
            watch.done = base + have.min(wanted.size);
            watch.progress()?;
        }
        let mut partial = Self { file, sum, have };
        if have > wanted.size {
            partial.restart(path, wanted)?;
            watch.done = base;
        }
        Ok(partial)
    }

    /// Begins anew.
    fn restart(&mut self, path: &Path, wanted: &Wanted<'_>) -> Result<()> {
        self.file.set_len(0).map_err(Error::io(path))?;
        self.file.seek(SeekFrom::Start(0)).map_err(Error::io(path))?;
        self.sum = wanted.checksum.begin(wanted.size);
        self.have = 0;
        Ok(())
    }
}

fn remove(path: &Path) -> Result<()> {
    std::fs::remove_file(path).map_err(Error::io(path))
}
