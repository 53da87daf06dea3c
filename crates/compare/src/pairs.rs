//! Pairs of images: of two files, or of the images of two folders.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use kiln_files::read_error;
use kiln_media::ImageTexts;

use crate::error::{Error, Result};
use crate::settings::ImageSettings;

/// How the images of two folders are paired.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PairBy {
    /// By the names of their files, and those that remain by their names without endings.
    #[default]
    Name,
    /// By prompt, seed and size in their settings.
    Settings,
}

impl PairBy {
    /// Both ways.
    pub const ALL: [Self; 2] = [Self::Name, Self::Settings];

    /// The name of the way.
    pub fn id(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Settings => "settings",
        }
    }
}

impl FromStr for PairBy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|way| way.id() == text).ok_or_else(|| "expected name or settings".into())
    }
}

/// Two images, or one of a set whose images have no pairs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pair {
    /// The name of the first file, and of the second one if it has another.
    pub name: String,
    /// The first image.
    pub a: PathBuf,
    /// The second image, if images are compared in pairs.
    pub b: Option<PathBuf>,
}

/// Pairs, and why images have none.
#[derive(Debug, Default)]
pub(crate) struct Pairing {
    pub(crate) pairs: Vec<Pair>,
    pub(crate) problems: Vec<String>,
}

impl Pair {
    fn new(a: &Path, b: &Path) -> Self {
        let (first, second) = (name(a), name(b));
        let name = if first == second { first } else { format!("{first}, {second}") };
        Self { name, a: a.into(), b: Some(b.into()) }
    }

    /// An image without another one.
    fn alone(a: &Path) -> Self {
        Self { name: name(a), a: a.into(), b: None }
    }
}

impl Pairing {
    /// The images of a folder, each by itself.
    ///
    /// # Errors
    /// [`Error::Files`] if the folder cannot be read.
    pub(crate) fn alone(folder: &Path) -> Result<Self> {
        Ok(Self { pairs: images(folder)?.iter().map(|path| Pair::alone(path)).collect(), problems: Vec::new() })
    }

    /// Pairs two images, or the images of two folders. Both paths exist.
    ///
    /// # Errors
    /// [`Error::Files`] for what cannot be read, [`Error::Kinds`] for an image and a folder.
    pub(crate) fn of(a: &Path, b: &Path, by: PairBy) -> Result<Self> {
        let (folder, other) = if a.is_dir() { (a, b) } else { (b, a) };
        if a.is_dir() != b.is_dir() {
            return Err(Error::Kinds { folder: folder.into(), other: other.into() });
        }
        let is_files = !a.is_dir();
        if is_files && by == PairBy::Name {
            return Ok(Self { pairs: vec![Pair::new(a, b)], problems: Vec::new() });
        }
        let mut this = Self::default();
        let [of_a, of_b] = [a, b].map(|path| if is_files { Ok(vec![path.to_path_buf()]) } else { images(path) });
        let (of_a, of_b) = (of_a?, of_b?);
        for (path, images) in [(a, &of_a), (b, &of_b)] {
            if images.is_empty() {
                this.problems.push(format!("{}: has no images", path.display()));
            }
        }
        match by {
            PairBy::Name => this.by_name((a, of_a), (b, of_b)),
            PairBy::Settings => this.by_settings((a, &of_a), (b, &of_b)),
        }
        this.pairs.sort_by(|x, y| x.a.cmp(&y.a));
        Ok(this)
    }

    fn by_name(&mut self, (a, mut of_a): (&Path, Vec<PathBuf>), (b, mut of_b): (&Path, Vec<PathBuf>)) {
        let whole = |path: &Path| path.file_name().unwrap_or_default().to_os_string();
        let stem = |path: &Path| path.file_stem().unwrap_or_default().to_os_string();
        self.matching(&mut of_a, &mut of_b, &whole);
        self.matching(&mut of_a, &mut of_b, &stem);
        for (rest, other) in [(of_a, b), (of_b, a)] {
            let missing = |path: PathBuf| format!("{}: {} has no image of this name", path.display(), other.display());
            self.problems.extend(rest.into_iter().map(missing));
        }
    }

    /// Pairs images of the same key, if each side has one of it.
    fn matching(&mut self, a: &mut Vec<PathBuf>, b: &mut Vec<PathBuf>, key: &dyn Fn(&Path) -> OsString) {
        let counted = |side: &[PathBuf]| {
            let mut counts: HashMap<OsString, Vec<PathBuf>> = HashMap::new();
            side.iter().for_each(|path| counts.entry(key(path)).or_default().push(path.clone()));
            counts
        };
        let (of_a, of_b) = (counted(a), counted(b));
        let mut paired = Vec::new();
        for (name, first) in &of_a {
            if let ([first], Some([second])) = (first.as_slice(), of_b.get(name).map(Vec::as_slice)) {
                self.pairs.push(Pair::new(first, second));
                paired.push(name);
            }
        }
        for side in [a, b] {
            side.retain(|path| !paired.contains(&&key(path)));
        }
    }

    fn by_settings(&mut self, (a, of_a): (&Path, &[PathBuf]), (b, of_b): (&Path, &[PathBuf])) {
        let mut sides: [BTreeMap<ImageSettings, Vec<PathBuf>>; 2] = Default::default();
        for (side, images) in sides.iter_mut().zip([of_a, of_b]) {
            for path in images {
                match ImageSettings::read(path) {
                    Ok(settings) => side.entry(settings).or_default().push(path.clone()),
                    Err(error) => self.problems.push(error.to_string()),
                }
            }
        }
        let [of_a, of_b] = &sides;
        for (side, others, other) in [(of_a, of_b, b), (of_b, of_a, a)] {
            for (settings, images) in side {
                if let [_, _, ..] = images.as_slice() {
                    let names: Vec<String> = images.iter().map(|path| path.display().to_string()).collect();
                    self.problems.push(format!("the same prompt, seed and size have {}", names.join(", ")));
                } else if !others.contains_key(settings) {
                    let paths = images.iter().map(|path| path.display().to_string());
                    let other = other.display();
                    self.problems
                        .extend(paths.map(|path| format!("{path}: {other} has no image of its prompt, seed and size")));
                }
            }
        }
        for (settings, first) in of_a {
            if let ([first], Some([second])) = (first.as_slice(), of_b.get(settings).map(Vec::as_slice)) {
                self.pairs.push(Pair::new(first, second));
            }
        }
    }
}

/// Fails if one of two paths does not exist.
///
/// # Errors
/// [`Error::Files`] with the path.
pub(crate) fn check_found(a: &Path, b: &Path) -> Result<()> {
    let Some(path) = [a, b].into_iter().find(|path| !path.exists()) else { return Ok(()) };
    let looked_for = "an image, or a folder of images".into();
    Err(kiln_files::Error::NotFound { path: path.into(), looked_for }.into())
}

/// The name of a file.
fn name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

/// The endings of formats that [`ImageTexts`] has no texts of.
const MORE_ENDINGS: [&str; 4] = ["bmp", "gif", "tif", "tiff"];

/// Whether a file is an image, or is named like one.
fn is_image(path: &Path) -> bool {
    let is_one = |known: &&str| path.extension().is_some_and(|found| found.eq_ignore_ascii_case(known));
    ImageTexts::is_image(path) || (MORE_ENDINGS.iter().any(is_one) && path.is_file())
}

/// The images in a folder, sorted; not those in its folders, and no hidden files.
pub(crate) fn images(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut images = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(read_error(folder))? {
        let path = entry.map_err(read_error(folder))?.path();
        let is_hidden = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
        if !is_hidden && is_image(&path) {
            images.push(path);
        }
    }
    images.sort();
    Ok(images)
}
