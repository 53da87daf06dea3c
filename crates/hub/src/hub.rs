//! Pulling what a name means into the cache, and finding it there.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::api::{Api, Listing, RemoteFile};
use crate::cache::{Cache, make_folder_of};
use crate::choose::{self, Choice, INDEX, Precision};
use crate::digest::Checksum;
use crate::error::{Error, Result};
use crate::event::{Event, Listener, Watch};
use crate::fetch::{Wanted, fetch};
use crate::files::read_small;
use crate::http::Client;
use crate::official;
use crate::reference::{MAIN, Reference};
use crate::settings::Settings;

/// The most bytes of a `model_index.json` that are read.
const LONGEST_INDEX: u64 = 1 << 20;

/// What is wanted of a repository.
#[derive(Debug, Clone, Default)]
pub struct Wants {
    /// Files and folders by name. None: what the reference names, else what a model needs.
    pub files: Vec<String>,
    /// Which weights, where there are several of a part.
    pub precision: Precision,
    /// The classes of diffusers' pipelines that can be run; any where it is empty.
    pub pipelines: Vec<&'static str>,
}

/// What is in the cache now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pulled {
    /// The model: a folder in the layout of diffusers, or a file. The commit's folder where files were named one by
    /// one.
    pub path: PathBuf,
    /// The commit that the revision is.
    pub commit: String,
    /// Files of which the model is made, or those that were named.
    pub files: Vec<PathBuf>,
    /// Bytes of all of them.
    pub bytes: u64,
    /// How many of the files came just now.
    pub fetched: usize,
}

/// The Hub, or a mirror, and the cache.
pub struct Hub {
    settings: Settings,
    client: Client,
}

impl Hub {
    /// No connection is made, and nothing is read but the certificates that the settings name.
    ///
    /// # Errors
    /// [`Error::Io`] for these.
    pub fn new(settings: Settings) -> Result<Self> {
        Ok(Self { client: Client::new(&settings)?, settings })
    }

    /// What it was made with.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Finds in the cache what `reference` and `wants` mean, and asks nobody.
    ///
    /// # Errors
    /// [`Error::NotCached`] with what is missing.
    pub fn find(&self, reference: &Reference, wants: &Wants) -> Result<Pulled> {
        Ok(self.found(reference, wants)?.0)
    }

    /// The same, without asking anybody where the cache has it in the precision that is wanted, else by
    /// [`Self::pull`]; where nobody can be reached, what the cache has.
    ///
    /// # Errors
    /// As [`Self::pull`].
    pub fn find_or_pull(&self, reference: &Reference, wants: &Wants, listener: &mut Listener<'_>) -> Result<Pulled> {
        let found = self.found(reference, wants);
        let is_enough = |is_half: bool| !is_half || wants.precision == Precision::Half;
        match found {
            Ok((pulled, is_half)) if self.settings.offline || is_enough(is_half) => Ok(pulled),
            Err(error) if self.settings.offline => Err(error),
            found => match (self.pull(reference, wants, listener), found) {
                (Err(error), Ok((pulled, _))) if error.is_unreachable() => {
                    tracing::warn!("{error}; going on with 16 bits, which the cache has");
                    Ok(pulled)
                }
                (result, _) => result,
            },
        }
    }

    /// Brings what `reference` and `wants` mean into the cache, as it is on the Hub now. What is there is not fetched
    /// again, what was begun goes on where it ended.
    ///
    /// # Errors
    /// [`Error::Name`] and others of the user's, those of the server, the network and the disk; what came until then
    /// stays.
    pub fn pull<'a>(&self, reference: &Reference, wants: &Wants, listener: &'a mut Listener<'a>) -> Result<Pulled> {
        if self.settings.offline {
            return self.find(reference, wants);
        }
        let watch = &mut Watch::new(listener);
        let cache = Cache::new(&self.settings.cache, reference);
        let api = Api { client: &self.client, settings: &self.settings, reference };
        let mut listing = api.listing(watch)?;
        let names = self.choose(&api, &cache, &mut listing, wants, watch)?;
        let mut files = Vec::with_capacity(names.len());
        for name in &names {
            let file = listing.files.iter_mut().find(|file| file.name == *name);
            let file = file.ok_or_else(|| no_file(reference, name))?;
            complete(&api, &listing.commit, file, watch)?;
            files.push(file.clone());
        }
        check_official(reference, &listing.commit, &files)?;
        // Small ones first: what is wrong with them is told before the large ones are fetched.
        files.sort_by_key(|file| file.size);
        let wanted = files.iter().map(wanted).collect::<Result<Vec<_>>>()?;
        let fetched = self.fetch_all(&api, &cache, &listing.commit, &wanted, watch)?;
        cache.set_commit(reference.revision(), &listing.commit)?;
        let snapshot = cache.snapshot(&listing.commit);
        let bytes = wanted.iter().map(|wanted| wanted.size).sum();
        Ok(pulled(snapshot, listing.commit, &names, wants, bytes, fetched))
    }

    /// Fetches and links all files; returns how many were not there.
    fn fetch_all(
        &self,
        api: &Api<'_>,
        cache: &Cache,
        commit: &str,
        wanted: &[Wanted<'_>],
        watch: &mut Watch<'_>,
    ) -> Result<usize> {
        let mut seen = BTreeSet::new();
        let once: Vec<&Wanted<'_>> = wanted.iter().filter(|wanted| seen.insert(wanted.checksum.text())).collect();
        let sum = |sizes: &mut dyn Iterator<Item = u64>| sizes.fold(0u64, u64::saturating_add);
        self.check_space(sum(&mut once.iter().map(|wanted| wanted.missing(cache))))?;
        watch.total = sum(&mut once.iter().map(|wanted| wanted.size));
        watch.done = sum(&mut once.iter().filter(|wanted| wanted.is_there(cache)).map(|wanted| wanted.size));
        watch.tell(Event::Begin { files: wanted.len(), total: watch.total, there: watch.done })?;
        let mut fetched = 0;
        for wanted in wanted {
            fetched += usize::from(fetch(api, cache, commit, wanted, watch)?);
            cache.link(commit, &wanted.file.name, wanted.checksum)?;
        }
        Ok(fetched)
    }

    /// Refuses what the disk has no room for.
    fn check_space(&self, needed: u64) -> Result<()> {
        let folder = &self.settings.cache;
        if needed == 0 {
            return Ok(());
        }
        make_folder_of(&folder.join("x"))?;
        match fs4::available_space(folder) {
            Ok(free) if free < needed => Err(Error::Space { folder: folder.clone(), needed, free }),
            _ => Ok(()), // a disk that does not tell is tried
        }
    }

    /// The names of the files that are wanted.
    fn choose(
        &self,
        api: &Api<'_>,
        cache: &Cache,
        listing: &mut Listing,
        wants: &Wants,
        watch: &mut Watch<'_>,
    ) -> Result<Vec<String>> {
        let reference = api.reference;
        let names: Vec<String> = listing.files.iter().map(|file| file.name.clone()).collect();
        let what = || reference.repository();
        let asked: Vec<String> = reference.file().map(String::from).into_iter().chain(wants.files.clone()).collect();
        if !asked.is_empty() {
            return choose::named(&names, &asked).map_err(|(file, nearest)| Error::NoFile {
                what: what(),
                file,
                nearest,
            });
        }
        let Some(index) = listing.files.iter_mut().find(|file| file.name == INDEX) else {
            let choice = choose::single(&names);
            return choice.map(|choice| choice.names).map_err(|problem| Error::Choice { what: what(), problem });
        };
        complete(api, &listing.commit, index, watch)?;
        let page = api.page();
        if index.size.is_some_and(|size| size > LONGEST_INDEX) {
            return Err(Error::refused(&page, format!("{INDEX} has more than {LONGEST_INDEX} bytes")));
        }
        let wanted = wanted(index)?;
        fetch(api, cache, &listing.commit, &wanted, watch)?;
        let index = read_index(&cache.blob(wanted.checksum))?;
        let choice = choose::folder(&names, &index, wants.precision, &wants.pipelines);
        choice.map(|choice| choice.names).map_err(|problem| Error::Choice { what: what(), problem })
    }

    /// What the cache has, and whether its weights have 16 bits for their names' sake.
    fn found(&self, reference: &Reference, wants: &Wants) -> Result<(Pulled, bool)> {
        let cache = Cache::new(&self.settings.cache, reference);
        let missing = |problem: String| Error::NotCached {
            what: reference.to_string(),
            problem,
            cache: self.settings.cache.clone(),
        };
        let Some(commit) = cache.commit(reference.revision()) else {
            return Err(missing(format!("revision {} was never fetched", reference.revision())));
        };
        let (snapshot, names) = (cache.snapshot(&commit), cache.files(&commit));
        let asked: Vec<String> = reference.file().map(String::from).into_iter().chain(wants.files.clone()).collect();
        let choice = if !asked.is_empty() {
            let names = choose::named(&names, &asked).map_err(|(file, _)| missing(format!("{file} is not there")))?;
            Choice { names, is_half: false }
        } else if names.iter().any(|name| name == INDEX) {
            let index = read_index(&snapshot.join(INDEX))?;
            choose::folder(&names, &index, wants.precision, &wants.pipelines)
                .map_err(|problem| missing(format!("what is there {problem}")))?
        } else {
            choose::single(&names).map_err(|problem| missing(format!("what is there {problem}")))?
        };
        let size = |name: &String| snapshot.join(name).metadata().map_or(0, |metadata| metadata.len());
        let bytes = choice.names.iter().map(size).sum();
        Ok((pulled(snapshot, commit, &choice.names, wants, bytes, 0), choice.is_half))
    }
}

/// The result, whose path is what a model is opened by.
fn pulled(snapshot: PathBuf, commit: String, names: &[String], wants: &Wants, bytes: u64, fetched: usize) -> Pulled {
    let files: Vec<PathBuf> = names.iter().map(|name| snapshot.join(name)).collect();
    let path = match &files[..] {
        [file] if wants.files.is_empty() => file.clone(),
        _ => snapshot,
    };
    Pulled { path, commit, files, bytes, fetched }
}

/// Learns what the listing did not tell.
fn complete(api: &Api<'_>, commit: &str, file: &mut RemoteFile, watch: &mut Watch<'_>) -> Result<()> {
    match (file.size, &file.checksum) {
        (Some(_), Some(_)) => Ok(()),
        _ => api.probe(commit, file, watch),
    }
}

/// A file whose size and checksum are known.
fn wanted(file: &RemoteFile) -> Result<Wanted<'_>> {
    match (&file.checksum, file.size) {
        (Some(checksum), Some(size)) => Ok(Wanted { file, checksum, size }),
        _ => Err(Error::refused(&file.name, "there is neither a listing nor a header with its checksum and size")),
    }
}

/// Refuses other files under the names of known ones, unless their commit was named.
fn check_official(reference: &Reference, commit: &str, files: &[RemoteFile]) -> Result<()> {
    let repository = reference.repository();
    for file in files {
        let known = official::expected(&repository, &file.name);
        let (Some(expected), Some(Checksum::Sha256(found))) = (known, &file.checksum) else { continue };
        if expected == found {
            continue;
        }
        let error = Error::NotOfficial {
            what: repository.clone(),
            file: file.name.clone(),
            expected,
            found: found.clone(),
            commit: commit.into(),
        };
        if reference.revision() == MAIN {
            return Err(error);
        }
        tracing::warn!("{error}");
    }
    Ok(())
}

fn no_file(reference: &Reference, name: &str) -> Error {
    Error::NoFile { what: reference.repository(), file: name.into(), nearest: Vec::new() }
}

fn read_index(path: &Path) -> Result<Value> {
    let text = read_small(path, LONGEST_INDEX).map_err(Error::io(path))?;
    serde_json::from_str(&text)
        .map_err(|error| Error::refused(&path.display().to_string(), format!("is no JSON: {error}")))
}
