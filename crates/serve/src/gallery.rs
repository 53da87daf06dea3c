//! The images of the server's `output` folder, for all browsers.
//!
//! A client never gives a path: a name is compared with those that the folder has, of regular files that this server, or one before it,
//! wrote. Links and subfolders are left out.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use kiln_media::{ImageText, ImageTexts, Infotext};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::Semaphore;

/// The endings of images that the server writes.
const ENDINGS: [&str; 3] = ["png", "jpg", "webp"];
/// The most bytes of a name.
const MAX_NAME: usize = 160;
/// The most bytes of settings that are read, as text.
const MAX_SETTINGS: usize = 1 << 20;
/// The most bytes of a prompt that are kept for searches.
const MAX_PROMPT: usize = 4 << 10;
/// The images whose settings are kept in memory.
const MAX_KNOWN: usize = 10_000;
/// The maximum number of images whose settings one request reads. The next request continues.
const MAX_READ: usize = 2_000;
/// Requests that read the folder at once.
const TURNS: usize = 2;

/// The folder, with the settings of its images that were read already.
pub(crate) struct Gallery {
    folder: Option<PathBuf>,
    known: Mutex<HashMap<String, (u64, Arc<Facts>)>>,
    /// For requests that read the folder or decode images.
    pub(crate) turns: Semaphore,
}

/// An image of the folder.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Item {
    /// Nanoseconds since 1970 at which it was written.
    pub(crate) modified: u64,
    /// The file's name.
    pub(crate) name: String,
    pub(crate) bytes: u64,
}

/// The settings in an image.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    /// Width and height of a PNG in pixels.
    pub(crate) size: Option<(u32, u32)>,
    pub(crate) prompt: String,
    pub(crate) negative_prompt: String,
    pub(crate) seed: Option<u64>,
    pub(crate) model: Option<String>,
}

/// The part of the folder that a request asks for.
#[derive(Debug, Clone, Default)]
pub(crate) struct Asked {
    /// The most images.
    pub(crate) limit: usize,
    /// The place after which it begins: [`Found::next`] of the request before.
    pub(crate) before: Option<(u64, String)>,
    /// Words that the prompts have, in lower case.
    pub(crate) words: Vec<String>,
}

/// A part of the folder.
#[derive(Debug)]
pub(crate) struct Found {
    /// The newest first.
    pub(crate) images: Vec<(Item, Arc<Facts>)>,
    /// Where the next part begins; `None` at the end.
    pub(crate) next: Option<(u64, String)>,
    /// The number of all images of the folder.
    pub(crate) total: usize,
}

impl Gallery {
    /// The gallery of a folder; without one it has no images.
    pub(crate) fn new(folder: Option<PathBuf>) -> Self {
        Self { folder, known: Mutex::default(), turns: Semaphore::new(TURNS) }
    }

    /// Whether there is a folder.
    pub(crate) fn has_folder(&self) -> bool {
        self.folder.is_some()
    }

    /// All images, the newest first.
    fn all(&self) -> io::Result<Vec<Item>> {
        let mut items = Vec::new();
        for entry in self.folder.iter().map(std::fs::read_dir) {
            for entry in entry? {
                items.extend(item(&entry?));
            }
        }
        items.sort_unstable_by(|one, other| other.cmp(one));
        Ok(items)
    }

    /// The images of these names with their paths, in the order of the names. A name that is there twice is one image.
    ///
    /// # Errors
    /// The first name that the folder does not have, or an error of the system.
    pub(crate) fn find(&self, names: &[String]) -> io::Result<Result<Vec<(Item, PathBuf)>, String>> {
        let Some(folder) = &self.folder else { return Ok(Err(names.first().cloned().unwrap_or_default())) };
        let mut there: HashMap<&str, Option<Item>> = names.iter().map(|name| (name.as_str(), None)).collect();
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            if let Some(found) = entry.file_name().to_str().and_then(|name| there.get_mut(name)) {
                *found = item(&entry);
            }
        }
        let mut found = Vec::new();
        for name in names {
            match there.remove(name.as_str()) {
                Some(Some(item)) => found.push((item.clone(), folder.join(&item.name))),
                Some(None) => return Ok(Err(name.clone())),
                None => {} // a name that was there before
            }
        }
        Ok(Ok(found))
    }

    /// A part of the folder, with the settings of its images.
    ///
    /// # Errors
    /// Errors of the system.
    pub(crate) fn part(&self, asked: &Asked) -> io::Result<Found> {
        let all = self.all()?;
        let is_later = |item: &&Item| {
            asked.before.as_ref().is_none_or(|(modified, name)| (item.modified, &item.name) < (*modified, name))
        };
        let total = all.len();
        let (mut images, mut read) = (Vec::new(), 0);
        let mut rest = all.iter().filter(is_later).peekable();
        let mut last = None;
        while images.len() < asked.limit && read < MAX_READ {
            let Some(item) = rest.next() else { break };
            let (facts, is_new) = self.facts(item);
            read += usize::from(is_new);
            last = Some((item.modified, item.name.clone()));
            if facts.has(&asked.words) {
                images.push((item.clone(), facts));
            }
        }
        let next = rest.peek().and(last);
        Ok(Found { images, next, total })
    }

    /// The settings of an image, and whether they were read from the file.
    fn facts(&self, item: &Item) -> (Arc<Facts>, bool) {
        if let Some((_, facts)) = self.known.lock().get(&item.name).filter(|(modified, _)| *modified == item.modified) {
            return (facts.clone(), false);
        }
        let facts =
            Arc::new(self.folder.iter().map(|folder| Facts::read(&folder.join(&item.name))).next().unwrap_or_default());
        let mut known = self.known.lock();
        if known.len() >= MAX_KNOWN {
            known.clear();
        }
        known.insert(item.name.clone(), (item.modified, facts.clone()));
        (facts, true)
    }
}

/// The image of an entry of the folder; `None` for everything else.
fn item(entry: &std::fs::DirEntry) -> Option<Item> {
    let name = entry.file_name().into_string().ok().filter(|name| is_image(name))?;
    // The type of a link is a link.
    let data = entry.metadata().ok().filter(|data| data.file_type().is_file())?;
    let age = data.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
    Some(Item { modified: u64::try_from(age.as_nanos()).ok()?, name, bytes: data.len() })
}

/// Whether a name is one that the server gives to images: a job's number, `-`, the image's number, and an ending.
fn is_image(name: &str) -> bool {
    let parts = name.rsplit_once('.').and_then(|(stem, ending)| Some((stem.rsplit_once('-')?, ending)));
    let Some(((job, index), ending)) = parts else { return false };
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_()".contains(c);
    let is_number = !index.is_empty() && index.bytes().all(|byte| byte.is_ascii_digit());
    name.len() <= MAX_NAME && ENDINGS.contains(&ending) && is_number && !job.is_empty() && job.chars().all(is_plain)
}

impl Facts {
    /// The settings in a file; empty if it has none, or cannot be read.
    fn read(path: &Path) -> Self {
        // Hidden texts in pixels are not looked for: the server writes none, and would have to decode every image.
        let Ok(ImageTexts { size, texts, .. }) = ImageTexts::read(path, |texts| !texts.is_empty()) else {
            return Self::default();
        };
        let facts = of_kiln(&texts).or_else(|| of_parameters(&texts)).unwrap_or_default();
        Self { size, ..facts }
    }

    /// Whether the prompts have all these words.
    fn has(&self, words: &[String]) -> bool {
        if words.is_empty() {
            return true;
        }
        let text = format!("{}\n{}", self.prompt, self.negative_prompt).to_lowercase();
        words.iter().all(|word| text.contains(word))
    }
}

/// From Kiln's own settings.
fn of_kiln(texts: &[ImageText]) -> Option<Facts> {
    let text = texts.iter().find(|text| text.key == "kiln" && text.text.len() <= MAX_SETTINGS)?;
    let settings: Value = serde_json::from_str(&text.text).ok()?;
    let request = settings.get("request")?;
    let text = |name: &str| cut(request.get(name).and_then(Value::as_str).unwrap_or_default());
    let model = settings.get("model").and_then(|model| model.get("name")).and_then(Value::as_str);
    Some(Facts {
        size: None,
        prompt: text("prompt"),
        negative_prompt: text("negative_prompt"),
        seed: request.get("seed").and_then(Value::as_u64),
        model: model.map(cut),
    })
}

/// From the text that AUTOMATIC1111 writes.
fn of_parameters(texts: &[ImageText]) -> Option<Facts> {
    let text =
        texts.iter().filter(|text| text.text.len() <= MAX_SETTINGS).find_map(|text| Infotext::parse(&text.text))?;
    Some(Facts {
        size: None,
        prompt: cut(&text.prompt),
        negative_prompt: cut(&text.negative_prompt),
        seed: text.get("Seed").and_then(|seed| seed.parse().ok()),
        model: text.get("Model").map(cut),
    })
}

/// The beginning of a text.
fn cut(text: &str) -> String {
    text[..text.floor_char_boundary(MAX_PROMPT)].into()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use kiln_media::encode_png;

    use super::*;

    fn write(folder: &Path, name: &str, prompt: &str, age: u64) {
        let text =
            format!("{prompt}\nNegative prompt: blurry\nSteps: 4, Sampler: Euler a, Seed: 42, Size: 1x1, Model: emoji");
        std::fs::write(folder.join(name), encode_png((1, 1), &[0; 3], &[("parameters", &text)]).unwrap()).unwrap();
        let file = std::fs::File::options().write(true).open(folder.join(name)).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 - age)).unwrap();
    }

    fn names(found: &Found) -> Vec<&str> {
        found.images.iter().map(|(item, _)| item.name.as_str()).collect()
    }

    #[test]
    fn images_are_listed_in_parts_and_found_by_their_prompts() {
        let folder = tempfile::tempdir().unwrap();
        for (i, prompt) in ["a red apple", "a green apple", "a boat", "a red boat", "an umbrella"].iter().enumerate() {
            write(folder.path(), &format!("a{i}-0.png"), prompt, i as u64);
        }
        let gallery = Gallery::new(Some(folder.path().into()));
        let asked = |before, text: &str| Asked {
            limit: 2,
            before,
            words: text.split(' ').filter(|word| !word.is_empty()).map(String::from).collect(),
        };
        let first = gallery.part(&asked(None, "")).unwrap();
        assert_eq!((names(&first), first.total), (vec!["a0-0.png", "a1-0.png"], 5));
        write(folder.path(), "newer-0.png", "a new one", 0);
        let second = gallery.part(&asked(first.next, "")).unwrap();
        assert_eq!(names(&second), ["a2-0.png", "a3-0.png"], "a new image moves nothing");
        let third = gallery.part(&asked(second.next, "")).unwrap();
        assert!(names(&third) == ["a4-0.png"] && third.next.is_none());
        assert_eq!(names(&gallery.part(&asked(None, "red")).unwrap()), ["a0-0.png", "a3-0.png"]);
        let both = gallery.part(&asked(None, "boat red")).unwrap();
        assert_eq!(names(&both), ["a3-0.png"]);
        let facts = &both.images[0].1;
        assert_eq!((facts.seed, facts.size, facts.model.as_deref()), (Some(42), Some((1, 1)), Some("emoji")));
        assert_eq!((&*facts.prompt, &*facts.negative_prompt), ("a red boat", "blurry"));
        assert!(names(&gallery.part(&asked(None, "nothing")).unwrap()).is_empty());
        // A file that changed is read again.
        write(folder.path(), "a4-0.png", "a red umbrella", 9);
        assert_eq!(names(&gallery.part(&asked(None, "umbrella red")).unwrap()), ["a4-0.png"]);
    }

    #[cfg(unix)]
    #[test]
    fn only_files_of_the_server_are_images_of_the_gallery() {
        let folder = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        write(folder.path(), "job-0.png", "inside", 0);
        write(outside.path(), "secret-0.png", "outside", 0);
        std::os::unix::fs::symlink(outside.path().join("secret-0.png"), folder.path().join("link-0.png")).unwrap();
        std::os::unix::fs::symlink(outside.path(), folder.path().join("folder-0.png")).unwrap();
        std::fs::create_dir(folder.path().join("sub-0.png")).unwrap();
        write(folder.path(), "holiday.png", "another program's", 0);
        let gallery = Gallery::new(Some(folder.path().into()));
        assert_eq!(names(&gallery.part(&Asked { limit: 10, ..Asked::default() }).unwrap()), ["job-0.png"]);
        let find = |name: &str| gallery.find(&[name.into()]).unwrap();
        assert_eq!(find("job-0.png").unwrap()[0].1, folder.path().join("job-0.png"));
        let secret = outside.path().join("secret-0.png");
        let wrong = [
            "link-0.png",
            "folder-0.png",
            "sub-0.png",
            "holiday.png",
            "../job-0.png",
            "./job-0.png",
            "",
            ".",
            secret.to_str().unwrap(),
        ];
        for name in wrong {
            assert_eq!(find(name).unwrap_err(), name);
        }
        let twice = ["job-0.png".to_string(), "job-0.png".into()];
        assert_eq!(gallery.find(&twice).unwrap().unwrap().len(), 1);
        assert!(Gallery::new(None).part(&Asked { limit: 1, ..Asked::default() }).unwrap().images.is_empty());
    }

    #[test]
    fn names_of_images_are_those_that_the_server_gives() {
        for name in ["9f0c6c6e3f0d4b7a-0.png", "east-9f0c-12.jpg", "task(a_b)-0.webp"] {
            assert!(is_image(name), "{name}");
        }
        for name in
            ["a.png", "-0.png", "a-.png", "a-0.gif", "a-0.png.part", "a/b-0.png", "..-0.png", "a-x.png", "a b-0.png"]
        {
            assert!(!is_image(name), "{name}");
        }
        assert!(!is_image(&format!("{}-0.png", "a".repeat(200))));
    }

    #[test]
    fn files_without_settings_are_listed_without_a_prompt() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a-0.png"), b"no image").unwrap();
        std::fs::write(folder.path().join("b-0.png"), encode_png((2, 1), &[0; 6], &[]).unwrap()).unwrap();
        let gallery = Gallery::new(Some(folder.path().into()));
        let found = gallery.part(&Asked { limit: 10, ..Asked::default() }).unwrap();
        assert!(found.images.len() == 2 && found.images.iter().all(|(_, facts)| facts.prompt.is_empty()));
    }
}
