//! File names of a job's images.

use std::path::{Path, PathBuf};

use kiln_files::{FileRules, PlannedFile, check_writable};
use kiln_request::Job;

use crate::generated_image::GeneratedImage;
use kiln_setup::error::{Error, Result};

/// The default pattern of file names.
const DEFAULT_PATTERN: &str = "kiln-{index}-{seed}.png";
const INDEX: &str = "{index}";
const SEED: &str = "{seed}";

/// File names of a job's images, checked before anything is generated.
#[derive(Debug)]
pub struct Output {
    folder: PathBuf,
    /// The file name with placeholders.
    pattern: String,
    rules: FileRules,
    /// The `{index}` of the job's first image.
    first_index: usize,
    /// The device, FIFO or standard stream for a single image.
    stream: Option<PlannedFile>,
}

impl Output {
    /// Plans the files of `job`. `pattern` is a path whose last part may contain `{index}` and `{seed}`; for a folder the default
    /// pattern is used in it. `{index}` continues after existing files, and with `overwrite` begins at 1, so that the same call
    /// replaces its files. If several images would have the
    /// same name, `-{index}` is added. A character device, a FIFO and `/dev/stdout` accept one image.
    ///
    /// # Errors
    /// [`Error::Files`] if a file would be overwritten without `overwrite`, or the folder is missing or not writable,
    /// [`Error::Request`] if the pattern is impossible.
    pub fn plan(pattern: Option<&str>, overwrite: bool, job: &Job) -> Result<Self> {
        let rules = FileRules { field: "output", what: "the images", extensions: &["png"], overwrite };
        let pattern = pattern.unwrap_or(DEFAULT_PATTERN);
        let value = |expected: &str| Error::from(rules.refused(pattern.as_ref(), expected));
        let path = if Path::new(pattern).is_dir() { Path::new(pattern).join(DEFAULT_PATTERN) } else { pattern.into() };
        let folder = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
            _ => PathBuf::from("."),
        };
        let mut name = path.file_name().and_then(|name| name.to_str()).ok_or_else(|| value("a file name"))?.to_string();
        if let Ok(file) = PlannedFile::named(&path, FileRules { overwrite: true, ..rules })
            && file.is_stream()
        {
            if job.images() > 1 {
                return Err(value("a name in a folder; this output accepts one image and there are several"));
            }
            return Ok(Self { folder, pattern: name, rules, first_index: 1, stream: Some(file) });
        }
        if !name.to_ascii_lowercase().ends_with(".png") {
            return Err(value("a name that ends in .png, the only format that is written, or an existing folder"));
        }
        let rest = name.replace(INDEX, "").replace(SEED, "");
        if rest.contains(['{', '}']) {
            return Err(value("only the placeholders {index} and {seed}"));
        }
        if job.images() > 1 && !name.contains(INDEX) && !name.contains(SEED) {
            name.insert_str(name.len() - ".png".len(), "-{index}");
        }
        let mut output = Self { folder, pattern: name, rules, first_index: 1, stream: None };
        // The folder is checked first: without it, names cannot be checked.
        check_writable(&output.path(0, job.seed), rules.what)?;
        if output.pattern.contains(INDEX) && !overwrite {
            output.first_index = output.next_free_index()?;
        }
        for path in (0..job.images()).map(|i| output.path(i, job.seed_of(i))) {
            if path.is_dir() {
                return Err(value(&format!("a file name; {} is a folder", path.display())));
            }
            if PlannedFile::named(&path, rules)?.is_stream() {
                return Err(value(&format!("names of regular files; {} is not a regular file", path.display())));
            }
        }
        Ok(output)
    }

    /// Whether the image is written to a device, a FIFO or a standard stream ([`PlannedFile::is_stream`]).
    pub fn is_stream(&self) -> bool {
        self.stream.is_some()
    }

    /// Whether the image is written to the standard output, which then cannot carry anything else.
    pub fn is_standard_output(&self) -> bool {
        self.stream.as_ref().is_some_and(PlannedFile::is_standard_output)
    }

    /// Writes an image as PNG atomically and returns its path.
    ///
    /// # Errors
    /// [`Error::Files`] where somebody else made the file in the meantime.
    pub fn save(&mut self, image: &GeneratedImage) -> Result<PathBuf> {
        let first = self.path(image.index, image.seed);
        let bytes = image.png().map_err(|error| Error::write(&first)(std::io::Error::other(error)))?;
        loop {
            let planned = match &self.stream {
                Some(stream) => Ok(stream.clone()),
                None => PlannedFile::named(&self.path(image.index, image.seed), self.rules),
            };
            match planned.and_then(|file| file.write(|to| to.write_all(&bytes)).map(|()| file.path().to_path_buf())) {
                Ok(path) => return Ok(path),
                // Another run uses indices in the same folder: continue after them.
                Err(kiln_files::Error::Exists(_)) if self.pattern.contains(INDEX) => self.first_index += 1,
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn path(&self, index: usize, seed: u64) -> PathBuf {
        let index = format!("{:04}", self.first_index + index);
        self.folder.join(self.pattern.replace(INDEX, &index).replace(SEED, &seed.to_string()))
    }

    /// One more than the largest index among the existing files that match the pattern.
    fn next_free_index(&self) -> Result<usize> {
        let entries = std::fs::read_dir(&self.folder).map_err(Error::read(&self.folder))?;
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        Ok(names.filter_map(|name| index_in(&self.pattern, &name)).max().map_or(1, |index| index.saturating_add(1)))
    }
}

/// The index in a file name, if it matches `pattern`.
fn index_in(pattern: &str, mut name: &str) -> Option<usize> {
    let mut found = None;
    let mut rest = pattern;
    while !rest.is_empty() {
        let placeholder = [INDEX, SEED].into_iter().find(|placeholder| rest.starts_with(placeholder));
        if let Some(placeholder) = placeholder {
            let digits = name.bytes().take_while(u8::is_ascii_digit).count();
            let (number, after) = name.split_at(digits);
            if placeholder == INDEX {
                found = number.parse().ok().filter(|_| found.is_none_or(|index| Some(index) == number.parse().ok()));
                found?;
            } else if digits == 0 {
                return None;
            }
            name = after;
            rest = &rest[placeholder.len()..];
        } else {
            let next = rest.chars().next()?;
            name = name.strip_prefix(next)?;
            rest = &rest[next.len_utf8()..];
        }
    }
    found.filter(|_| name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_are_read_back_from_names() {
        assert_eq!(index_in(DEFAULT_PATTERN, "kiln-0012-42.png"), Some(12));
        assert_eq!(index_in(DEFAULT_PATTERN, "kiln-12-.png"), None);
        assert_eq!(index_in(DEFAULT_PATTERN, "kiln-0012-42.png.bak"), None);
        assert_eq!(index_in("{index}-{index}.png", "3-3.png"), Some(3));
        assert_eq!(index_in("{index}-{index}.png", "3-4.png"), None);
        assert_eq!(index_in("apple.png", "apple.png"), None);
    }
}
