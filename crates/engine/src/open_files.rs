//! Files that jobs name: opened by the first job that names one, and closed by the first that does not.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::error::Result;

/// The state of a file when it was opened: a file that was replaced is another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileState {
    pub(crate) path: PathBuf,
    modified: Option<SystemTime>,
}

impl FileState {
    /// The state of a file now.
    pub(crate) fn of(path: &Path) -> Self {
        let modified = path.metadata().and_then(|metadata| metadata.modified()).ok();
        Self { path: path.to_path_buf(), modified }
    }
}

/// The values that are open for their keys, in the order in which the current job names the keys.
pub(crate) struct OpenFiles<K, T> {
    all: Vec<(K, T)>,
}

impl<K, T> Default for OpenFiles<K, T> {
    fn default() -> Self {
        Self { all: Vec::new() }
    }
}

impl<K: PartialEq + Clone, T> OpenFiles<K, T> {
    /// Makes the keys of `wanted` the open ones: those that are open stay, others are opened, and what is not named is dropped. All
    /// are checked. Returns whether any came, went or changed its place.
    ///
    /// # Errors
    /// Errors of `open` and `check`: nothing has changed then.
    pub(crate) fn set(
        &mut self,
        wanted: impl IntoIterator<Item = K>,
        mut open: impl FnMut(&K) -> Result<T>,
        check: impl Fn(&K, &T) -> Result<()>,
    ) -> Result<bool> {
        let mut keys: Vec<K> = Vec::new();
        for key in wanted {
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        let mut opened = Vec::new();
        for key in &keys {
            match self.get(key) {
                Some(known) => check(key, known)?,
                None => {
                    let new = open(key)?;
                    check(key, &new)?;
                    opened.push((key.clone(), new));
                }
            }
        }
        if keys.iter().eq(self.all.iter().map(|(key, _)| key)) {
            return Ok(false);
        }
        let mut known: Vec<(K, T)> = self.all.drain(..).chain(opened).collect();
        for key in &keys {
            if let Some(place) = known.iter().position(|(known, _)| known == key) {
                self.all.push(known.swap_remove(place));
            }
        }
        Ok(true)
    }

    /// The value that is open for a key.
    pub(crate) fn get(&self, key: &K) -> Option<&T> {
        self.all.iter().find(|(known, _)| known == key).map(|(_, open)| open)
    }

    /// All that is open, with the keys.
    pub(crate) fn all(&self) -> &[(K, T)] {
        &self.all
    }

    /// All that is open.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.all.iter().map(|(_, open)| open)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn what_is_named_again_stays_open() {
        let mut files = OpenFiles::default();
        let mut opened = Vec::new();
        let mut set = |files: &mut OpenFiles<u32, u32>, wanted: &[u32]| {
            let open = |key: &u32| {
                opened.push(*key);
                Ok(10 * key)
            };
            let check = |key: &u32, _: &u32| match key {
                9 => Err(Error::Interrupted),
                _ => Ok(()),
            };
            files.set(wanted.iter().copied(), open, check)
        };
        assert!(set(&mut files, &[1, 2, 1]).unwrap() && !set(&mut files, &[1, 2]).unwrap());
        assert!(set(&mut files, &[3, 1]).unwrap() && set(&mut files, &[1, 3]).unwrap());
        assert!(set(&mut files, &[4, 9]).is_err(), "4 is opened in vain");
        assert_eq!(files.iter().copied().collect::<Vec<_>>(), [10, 30]);
        assert!(set(&mut files, &[]).unwrap() && files.get(&1).is_none());
        assert_eq!(opened, [1, 2, 3, 4, 9]);
    }
}
