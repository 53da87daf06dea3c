//! Image files by the names that clients know: those that they have sent, and those that prompts have made.
//!
//! A name is compared with known ones, and is never part of a path.

use std::path::PathBuf;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use parking_lot::Mutex;
use ring::digest::{SHA256, digest};
use tempfile::TempDir;

use crate::error::{Refused, RefusedKind};
use crate::jobs::Entry;
use crate::scratch;

/// The most bytes and files of one client's images, and the most bytes of all. The oldest go first.
const MOST_OF_CLIENT: usize = 128 << 20;
const MOST_FILES: usize = 1000;
const MOST_OF_ALL: usize = 512 << 20;
/// The longest name in bytes.
const LONGEST_NAME: usize = 200;

/// The folder that a file seems to be in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A client has sent it.
    Input,
    /// A prompt has saved it.
    Output,
    /// A prompt has made it for a preview.
    Temp,
}

impl Kind {
    /// Its name in requests.
    pub(crate) fn id(self) -> &'static str {
        match self {
            Self::Input => "input",
            Self::Output => "output",
            Self::Temp => "temp",
        }
    }

    pub(crate) fn find(id: &str) -> Option<Self> {
        [Self::Input, Self::Output, Self::Temp].into_iter().find(|kind| kind.id() == id)
    }
}

/// A file's name: its folder, and what is below.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileName {
    pub(crate) kind: Kind,
    pub(crate) subfolder: String,
    pub(crate) name: String,
}

/// Where a file is.
#[derive(Clone)]
enum Place {
    /// In the server's temporary folder.
    Disk(PathBuf),
    /// An image of a job, as long as that is kept.
    Job(Weak<Entry>, usize),
}

struct Stored {
    owner: String,
    name: FileName,
    place: Place,
    bytes: usize,
    /// The digest of a file that was sent.
    digest: Option<Vec<u8>>,
}

/// All files.
#[derive(Default)]
pub(crate) struct Files(Mutex<State>);

#[derive(Default)]
struct State {
    stored: Vec<Stored>,
    folder: Option<TempDir>,
    /// The numbers of files so far.
    sent: u64,
    made: u64,
}

impl FileName {
    /// A name with its folders, which may end in its kind, as in `a/b.png [output]`; else it is of `kind`.
    pub(crate) fn parse(text: &str, kind: Kind) -> Option<Self> {
        let annotated = [Kind::Input, Kind::Output, Kind::Temp]
            .into_iter()
            .find_map(|kind| Some((text.strip_suffix(&format!("[{}]", kind.id()))?.trim_end(), kind)));
        let (text, kind) = annotated.filter(|(text, _)| !text.is_empty()).unwrap_or((text, kind));
        if text.starts_with(['/', '\\']) {
            return None;
        }
        let (subfolder, name) = text.rsplit_once(['/', '\\']).unwrap_or(("", text));
        Self::new(kind, subfolder, name)
    }

    /// A name, unless a part of it is none.
    pub(crate) fn new(kind: Kind, subfolder: &str, name: &str) -> Option<Self> {
        let is_plain = |part: &str| {
            !part.is_empty()
                && !part.chars().all(|c| c == '.' || c.is_whitespace())
                && !part.chars().any(|c| c.is_control() || "/\\:\"<>|?*".contains(c))
        };
        let parts: Vec<&str> = subfolder.split(['/', '\\']).filter(|part| !part.is_empty()).collect();
        let is_one = is_plain(name) && !subfolder.starts_with(['/', '\\']) && parts.iter().all(|part| is_plain(part));
        let (subfolder, name) = (parts.join("/"), name.to_string());
        (is_one && subfolder.len() + name.len() <= LONGEST_NAME).then_some(Self { kind, subfolder, name })
    }

    /// The name with its folder.
    fn path(&self) -> String {
        if self.subfolder.is_empty() { self.name.clone() } else { format!("{}/{}", self.subfolder, self.name) }
    }
}

impl Files {
    /// The names of a client's files, sorted.
    pub(crate) fn names(&self, owner: &str, kind: Kind) -> Vec<String> {
        let state = self.0.lock();
        let own = state.stored.iter().filter(|file| file.owner == owner && file.name.kind == kind);
        let mut names: Vec<String> = own.map(|file| file.name.path()).collect();
        names.sort();
        names
    }

    /// Whether a client has a file of this name.
    pub(crate) fn has(&self, owner: &str, name: &FileName) -> bool {
        self.place(owner, name).is_some()
    }

    fn place(&self, owner: &str, name: &FileName) -> Option<Place> {
        let state = self.0.lock();
        let mut all = state.stored.iter().rev();
        let place = all.find(|file| file.owner == owner && file.name == *name).map(|file| file.place.clone())?;
        match &place {
            Place::Job(entry, _) if entry.strong_count() == 0 => None,
            _ => Some(place),
        }
    }

    /// The bytes of a client's file, and their media type if it is known. Reads the disk.
    pub(crate) fn read(&self, owner: &str, name: &FileName) -> Option<(Bytes, Option<&'static str>)> {
        match self.place(owner, name)? {
            Place::Disk(path) => Some((std::fs::read(path).ok()?.into(), None)),
            Place::Job(entry, index) => {
                let image = entry.upgrade()?.image(index)?;
                Some((image.file.clone(), Some(image.media_type)))
            }
        }
    }

    /// Keeps a file that a client has sent. A name that is taken by another file gets a number, unless `overwrites`.
    ///
    /// # Errors
    /// [`Refused`] where the system does not let us, and for a file that is larger than a client's share.
    pub(crate) fn send(
        &self,
        owner: &str,
        mut name: FileName,
        file: &[u8],
        overwrites: bool,
    ) -> Result<FileName, Refused> {
        if file.len() > MOST_OF_CLIENT {
            let message = format!("the file is larger than {MOST_OF_CLIENT} bytes, the most of a client");
            return Err(Refused::new(RefusedKind::TooLarge, message));
        }
        let hash = digest(&SHA256, file).as_ref().to_vec();
        let mut state = self.0.lock();
        let known = |state: &State, name: &FileName| {
            state.stored.iter().position(|stored| stored.owner == owner && stored.name == *name)
        };
        let plain = name.name.clone();
        for i in 1.. {
            let Some(place) = known(&state, &name) else { break };
            if state.stored.get(place).is_some_and(|stored| stored.digest.as_ref() == Some(&hash)) {
                return Ok(name); // the same file
            }
            if overwrites {
                state.remove(place);
                break;
            }
            let (stem, ending) = plain
                .rsplit_once('.')
                .map_or((plain.as_str(), String::new()), |(stem, ending)| (stem, format!(".{ending}")));
            name.name = format!("{stem} ({i}){ending}");
        }
        let path = state.write(file)?;
        let (owner, place) = (owner.to_string(), Place::Disk(path));
        state.stored.push(Stored { owner, name: name.clone(), place, bytes: file.len(), digest: Some(hash) });
        state.shrink();
        Ok(name)
    }

    /// Names an image of a job, whose name begins with `prefix`.
    pub(crate) fn name(
        &self,
        owner: &str,
        kind: Kind,
        prefix: &str,
        image: (&Arc<Entry>, usize),
        ending: &str,
    ) -> FileName {
        let mut state = self.0.lock();
        state.stored.retain(|file| !matches!(&file.place, Place::Job(entry, _) if entry.strong_count() == 0));
        state.made += 1;
        let (subfolder, prefix) = prefix.rsplit_once('/').unwrap_or(("", prefix));
        let name = format!("{prefix}_{:05}_.{ending}", state.made);
        let name = FileName { kind, subfolder: subfolder.into(), name };
        let place = Place::Job(Arc::downgrade(image.0), image.1);
        state.stored.push(Stored { owner: owner.into(), name: name.clone(), place, bytes: 0, digest: None });
        name
    }
}

impl State {
    /// Writes a file into the temporary folder.
    fn write(&mut self, file: &[u8]) -> Result<PathBuf, Refused> {
        let failed = |error: std::io::Error| {
            tracing::error!("a temporary file: {error}");
            Refused::new(RefusedKind::Internal, "the server cannot store the image")
        };
        let folder = match &self.folder {
            Some(folder) => folder,
            None => {
                let made = tempfile::Builder::new().prefix("kiln-images-").tempdir_in(scratch::folder());
                self.folder.insert(made.map_err(failed)?)
            }
        };
        self.sent += 1;
        let path = folder.path().join(self.sent.to_string());
        std::fs::write(&path, file).map_err(failed)?;
        Ok(path)
    }

    fn remove(&mut self, place: usize) {
        if let Place::Disk(path) = self.stored.remove(place).place
            && let Err(error) = std::fs::remove_file(path)
        {
            tracing::warn!("a temporary file: {error}");
        }
    }

    /// Removes the oldest files of the client that sent the newest one, and of all, until the rest is within the limits.
    fn shrink(&mut self) {
        let Some(owner) = self.stored.last().map(|file| file.owner.clone()) else { return };
        let sums = |state: &Self, owner: Option<&str>| {
            let sent = state.stored.iter().filter(|file| file.digest.is_some());
            let own = sent.filter(|file| owner.is_none_or(|owner| file.owner == owner));
            own.fold((0, 0), |(files, bytes), file| (files + 1, bytes + file.bytes))
        };
        loop {
            let (files, bytes) = sums(self, Some(&owner));
            let of_client = files > MOST_FILES || bytes > MOST_OF_CLIENT;
            if !of_client && sums(self, None).1 <= MOST_OF_ALL {
                return;
            }
            let is_older = |file: &Stored| file.digest.is_some() && (!of_client || file.owner == owner);
            let Some(place) = self.stored.iter().position(is_older) else { return };
            self.remove(place);
        }
    }
}

/// The begin of a file's name from what a client wrote, with its folders: other characters than those of plain names are replaced.
/// `None` for a name that leaves the folder.
pub(crate) fn prefix_of(text: &str) -> Option<String> {
    let is_plain = |c: char| c.is_alphanumeric() || " -_.,()[]%+=@#".contains(c);
    let mut parts = Vec::new();
    for part in text.split(['/', '\\']).map(str::trim).filter(|part| !part.is_empty()) {
        if part.chars().all(|c| c == '.') {
            return None;
        }
        parts.push(part.chars().map(|c| if is_plain(c) { c } else { '_' }).collect::<String>());
    }
    let prefix = if parts.is_empty() || text.ends_with(['/', '\\']) { None } else { Some(parts.join("/")) };
    prefix.filter(|prefix| prefix.len() + 16 <= LONGEST_NAME && !text.starts_with(['/', '\\']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_no_paths() {
        let parse = |text: &str| FileName::parse(text, Kind::Input);
        let name =
            |kind, subfolder: &str, name: &str| Some(FileName { kind, subfolder: subfolder.into(), name: name.into() });
        assert_eq!(parse("a b.png"), name(Kind::Input, "", "a b.png"));
        assert_eq!(parse("x/y/a.png [output]"), name(Kind::Output, "x/y", "a.png"));
        for wrong in [
            "",
            ".",
            "..",
            "../a.png",
            "/etc/passwd",
            "/a.png",
            "a/../b.png",
            "a/..",
            "/",
            "C:\\a.png",
            "a\0.png",
            "x/ /a.png",
        ] {
            assert_eq!(parse(wrong), None, "{wrong:?}");
        }
        assert_eq!(prefix_of("a/b c:d"), Some("a/b c_d".into()));
        for wrong in ["", "..", "../a", "/a", "a/", "\\a", &"x".repeat(300)] {
            assert_eq!(prefix_of(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_name_that_is_taken_gets_a_number_unless_it_is_the_same_file() {
        let files = Files::default();
        let send = |owner: &str, name: &str, file: &[u8], overwrites| {
            let name = FileName::parse(name, Kind::Input).unwrap();
            files.send(owner, name, file, overwrites).unwrap().name
        };
        assert_eq!(send("ann", "a.png", b"1", false), "a.png");
        assert_eq!(send("ann", "a.png", b"1", false), "a.png");
        assert_eq!(send("ann", "a.png", b"2", false), "a (1).png");
        assert_eq!(send("ann", "a.png", b"3", true), "a.png");
        assert_eq!(files.names("ann", Kind::Input), ["a (1).png", "a.png"]);
        let read = |owner: &str, name: &str| files.read(owner, &FileName::parse(name, Kind::Input).unwrap());
        assert_eq!(read("ann", "a.png").unwrap().0, "3");
        assert!(read("bob", "a.png").is_none() && read("ann", "b.png").is_none());
        for i in 0..MOST_FILES + 5 {
            send("bob", &format!("{i}.png"), &i.to_le_bytes(), false);
        }
        assert_eq!(files.names("bob", Kind::Input).len(), MOST_FILES);
        assert!(read("bob", "4.png").is_none() && read("bob", "5.png").is_some() && read("ann", "a.png").is_some());
    }
}
