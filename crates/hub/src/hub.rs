//! Downloads models into the cache, and finds them there.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::api::{Api, Listing, RemoteFile};
use crate::cache::{Cache, make_parent_folder};
use crate::choose::{self, Choice, Folders, INDEX, Precision};
use crate::digest::Checksum;
use crate::download::{Download, Source, download};
use crate::error::{Error, Result};
use crate::event::{Event, Listener, Monitor};
use crate::files::read_small;
use crate::http::Client;
use crate::official;
use crate::reference::{MAIN, Reference};
use crate::settings::Settings;
use crate::xet::Xet;

/// The most bytes of a `model_index.json` that are read.
const MAX_INDEX: u64 = 1 << 20;

/// Which files of a repository to get.
#[derive(Debug, Clone, Default)]
pub struct Wants {
    /// Files and folders by name. If empty: the file that the reference names, else the files that a model needs.
    pub files: Vec<String>,
    /// Which weights to prefer if a component has several.
    pub precision: Precision,
    /// The classes of diffusers' pipelines that the caller can run. If empty: any.
    pub pipelines: Vec<&'static str>,
    /// The folders that a pipeline of a class needs. If missing: all of diffusers and transformers with weights.
    pub folders: Option<Folders>,
}

/// Files in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pulled {
    /// The model: a folder in the layout of diffusers, or a file. The folder of the commit if files were named one by one.
    pub path: PathBuf,
    /// The commit of the revision.
    pub commit: String,
    /// The files of the model, or those that were named.
    pub files: Vec<PathBuf>,
    /// Bytes of all of them.
    pub bytes: u64,
    /// How many of the files were downloaded by this call.
    pub fetched: usize,
}

/// The Hub, or a mirror, and the cache.
pub struct Hub {
    settings: Settings,
    client: Client,
    xet: Xet,
}

impl Hub {
    /// Makes no connection. Reads nothing but the certificates that the settings name.
    ///
    /// # Errors
    /// [`Error::Io`] if these cannot be read, [`Error::Setting`] for an endpoint that is no address.
    pub fn new(settings: Settings) -> Result<Self> {
        Ok(Self { client: Client::new(&settings)?, xet: Xet::new(settings.xet), settings })
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Finds files in the cache. Makes no connection.
    ///
    /// # Errors
    /// [`Error::NotCached`] if a file is missing.
    pub fn find(&self, reference: &Reference, wants: &Wants) -> Result<Pulled> {
        Ok(self.found(reference, wants)?.0)
    }

    /// Finds files in the cache, or downloads them if the cache does not have them in the wanted precision. If the Hub cannot be
    /// reached, the cache's weights in 16 bits are returned instead of full ones.
    ///
    /// # Errors
    /// See [`Self::pull`].
    pub fn find_or_pull(&self, reference: &Reference, wants: &Wants, listener: &mut Listener<'_>) -> Result<Pulled> {
        let found = self.found(reference, wants);
        let is_enough = |is_half: bool| !is_half || wants.precision == Precision::Half;
        match found {
            Ok((pulled, is_half)) if self.settings.offline || is_enough(is_half) => Ok(pulled),
            Err(error) if self.settings.offline => Err(error),
            found => match (self.pull(reference, wants, listener), found) {
                (Err(error), Ok((pulled, _))) if error.is_unreachable() => {
                    tracing::warn!("{error}; using the weights in 16 bits, which the cache has");
                    Ok(pulled)
                }
                (result, _) => result,
            },
        }
    }

    /// Downloads files in their current version on the Hub into the cache. Files in the cache are not downloaded again, and
    /// incomplete ones are resumed.
    ///
    /// # Errors
    /// Errors of the request, of the server, the network and the disk. Bytes that were downloaded before are kept.
    pub fn pull<'a>(&self, reference: &Reference, wants: &Wants, listener: &'a mut Listener<'a>) -> Result<Pulled> {
        if self.settings.offline {
            return self.find(reference, wants);
        }
        let monitor = &mut Monitor::new(listener);
        let cache = Cache::new(&self.settings.cache, reference);
        let api = Api { client: &self.client, settings: &self.settings, reference };
        let mut listing = api.listing(monitor)?;
        let names = self.choose(&api, &cache, &mut listing, wants, monitor)?;
        let mut files = Vec::with_capacity(names.len());
        for name in &names {
            let file = listing.files.iter_mut().find(|file| file.name == *name);
            let file = file.ok_or_else(|| no_file(reference, name))?;
            complete(&api, &listing.commit, file, monitor)?;
            files.push(file.clone());
        }
        check_official(reference, &listing.commit, &files)?;
        // Small files first: their errors are reported before the large files are downloaded.
        files.sort_by_key(|file| file.size);
        let downloads = files.iter().map(to_download).collect::<Result<Vec<_>>>()?;
        let source = Source { api: &api, cache: &cache, commit: &listing.commit, xet: &self.xet };
        let fetched = self.download_all(&source, &downloads, monitor)?;
        cache.set_commit(reference.revision(), &listing.commit)?;
        let snapshot = cache.snapshot(&listing.commit);
        let bytes = downloads.iter().map(|download| download.size).sum();
        Ok(pulled(snapshot, listing.commit, &names, wants, bytes, fetched))
    }

    /// Downloads and links all files. Returns how many were not in the cache.
    fn download_all(
        &self,
        source: &Source<'_>,
        downloads: &[Download<'_>],
        monitor: &mut Monitor<'_>,
    ) -> Result<usize> {
        let (cache, mut seen) = (source.cache, BTreeSet::new());
        let once: Vec<&Download<'_>> = downloads.iter().filter(|file| seen.insert(file.checksum.text())).collect();
        let sum = |sizes: &mut dyn Iterator<Item = u64>| sizes.fold(0u64, u64::saturating_add);
        self.check_space(sum(&mut once.iter().map(|file| file.missing(cache))))?;
        monitor.total = sum(&mut once.iter().map(|file| file.size));
        monitor.done = sum(&mut once.iter().filter(|file| file.is_cached(cache)).map(|file| file.size));
        monitor.send(Event::Begin { files: downloads.len(), total: monitor.total, there: monitor.done })?;
        let mut fetched = 0;
        for file in downloads {
            fetched += usize::from(download(source, file, monitor)?);
            cache.link(source.commit, &file.file.name, file.checksum)?;
        }
        Ok(fetched)
    }

    /// Refuses downloads for which the disk has no space.
    fn check_space(&self, needed: u64) -> Result<()> {
        let folder = &self.settings.cache;
        if needed == 0 {
            return Ok(());
        }
        make_parent_folder(&folder.join("x"))?;
        match fs4::available_space(folder) {
            Ok(free) if free < needed => Err(Error::Space { folder: folder.clone(), needed, free }),
            _ => Ok(()), // unknown free space is no reason to refuse
        }
    }

    /// The names of the files to download.
    fn choose(
        &self,
        api: &Api<'_>,
        cache: &Cache,
        listing: &mut Listing,
        wants: &Wants,
        monitor: &mut Monitor<'_>,
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
        complete(api, &listing.commit, index, monitor)?;
        let page = api.page();
        if index.size.is_some_and(|size| size > MAX_INDEX) {
            return Err(Error::refused(&page, format!("{INDEX} has more than {MAX_INDEX} bytes")));
        }
        let file = to_download(index)?;
        let source = Source { api, cache, commit: &listing.commit, xet: &self.xet };
        download(&source, &file, monitor)?;
        let index = read_index(&cache.blob(file.checksum))?;
        let choice = choose::folder(&names, &index, wants.precision, &wants.pipelines, wants.folders);
        choice.map(|choice| choice.names).map_err(|problem| Error::Choice { what: what(), problem })
    }

    /// Files in the cache, and whether their names say that the weights have 16 bits.
    fn found(&self, reference: &Reference, wants: &Wants) -> Result<(Pulled, bool)> {
        let cache = Cache::new(&self.settings.cache, reference);
        let missing = |problem: String| Error::NotCached {
            what: reference.to_string(),
            problem,
            cache: self.settings.cache.clone(),
        };
        let Some(commit) = cache.commit(reference.revision()) else {
            return Err(missing(format!("revision {} was never downloaded", reference.revision())));
        };
        let (snapshot, names) = (cache.snapshot(&commit), cache.files(&commit));
        let asked: Vec<String> = reference.file().map(String::from).into_iter().chain(wants.files.clone()).collect();
        let choice = if !asked.is_empty() {
            let names =
                choose::named(&names, &asked).map_err(|(file, _)| missing(format!("the cache has no {file}")))?;
            Choice { names, is_half: false }
        } else if names.iter().any(|name| name == INDEX) {
            let index = read_index(&snapshot.join(INDEX))?;
            choose::folder(&names, &index, wants.precision, &wants.pipelines, wants.folders)
                .map_err(|problem| missing(format!("the cached part {problem}")))?
        } else {
            choose::single(&names).map_err(|problem| missing(format!("the cached part {problem}")))?
        };
        let size = |name: &String| snapshot.join(name).metadata().map_or(0, |metadata| metadata.len());
        let bytes = choice.names.iter().map(size).sum();
        Ok((pulled(snapshot, commit, &choice.names, wants, bytes, 0), choice.is_half))
    }
}

/// The result. Its path is the one to open as a model.
fn pulled(snapshot: PathBuf, commit: String, names: &[String], wants: &Wants, bytes: u64, fetched: usize) -> Pulled {
    let files: Vec<PathBuf> = names.iter().map(|name| snapshot.join(name)).collect();
    let path = match &files[..] {
        [file] if wants.files.is_empty() => file.clone(),
        _ => snapshot,
    };
    Pulled { path, commit, files, bytes, fetched }
}

/// Asks for size and checksum if the listing does not have them.
fn complete(api: &Api<'_>, commit: &str, file: &mut RemoteFile, monitor: &mut Monitor<'_>) -> Result<()> {
    match (file.size, &file.checksum) {
        (Some(_), Some(_)) => Ok(()),
        _ => api.probe(commit, file, monitor),
    }
}

/// A file with known size and checksum.
fn to_download(file: &RemoteFile) -> Result<Download<'_>> {
    match (&file.checksum, file.size) {
        (Some(checksum), Some(size)) => Ok(Download { file, checksum, size }),
        _ => Err(Error::refused(&file.name, "there is neither a listing nor a header with its checksum and size")),
    }
}

/// Refuses other files under the names of official ones, unless the user named the commit.
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
    let text = read_small(path, MAX_INDEX).map_err(Error::io(path))?;
    serde_json::from_str(&text)
        .map_err(|error| Error::refused(&path.display().to_string(), format!("is not JSON: {error}")))
}
