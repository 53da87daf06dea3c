//! Atomic writes that can be interrupted.

use std::io::{BufWriter, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use kiln_files::{persist, temporary_beside, temporary_folder_beside};

use crate::error::{Error, Result};

/// Bytes between two calls of `proceed`.
const PIECE: usize = 4 << 20;

/// Returns `false` to stop.
pub(super) type Proceed<'a> = &'a dyn Fn() -> ControlFlow<()>;

/// A writer that fails when it is asked to stop.
struct Watched<'a, W> {
    inner: W,
    proceed: Proceed<'a>,
}

impl<W: Write> Write for Watched<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if (self.proceed)().is_break() {
            return Err(std::io::Error::other("interrupted"));
        }
        self.inner.write(&bytes[..bytes.len().min(PIECE)])
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.inner.flush()
    }
}

/// Writes a file under a temporary name in the same folder and renames it at the end, so that no incomplete file
/// appears.
///
/// # Errors
/// [`Error::Interrupted`] if `proceed` returned `false`; then nothing is left.
pub(super) fn replace(
    path: &Path,
    proceed: Proceed<'_>,
    write: impl FnOnce(&mut dyn Write) -> kiln_weights::Result<()>,
) -> Result<()> {
    let file = Watched { inner: temporary_beside(path)?, proceed };
    let mut file = BufWriter::with_capacity(1 << 20, file);
    let written = write(&mut file).and_then(|()| file.flush().map_err(kiln_weights::Error::Write));
    if proceed().is_break() {
        return Err(Error::Interrupted);
    }
    written.map_err(|error| match error {
        kiln_weights::Error::Write(source) => Error::write(path)(source),
        other => other.into(),
    })?;
    let file = file.into_inner().map_err(|error| Error::write(path)(error.into_error()))?; // flushed above
    Ok(persist(file.inner, path)?)
}

/// A folder that is created under a temporary name and renamed at the end.
pub(super) struct NewFolder {
    made: tempfile::TempDir,
    place: PathBuf,
}

impl NewFolder {
    /// Creates the empty folder.
    pub(super) fn new_for(place: &Path) -> Result<Self> {
        let made = temporary_folder_beside(place)?;
        Ok(Self { made, place: place.to_path_buf() })
    }

    pub(super) fn path(&self) -> &Path {
        self.made.path()
    }

    /// Renames it to its final path, which must not exist.
    pub(super) fn finish(self) -> Result<()> {
        std::fs::rename(self.made.path(), &self.place).map_err(Error::write(&self.place))?;
        let _moved = self.made.keep(); // under its new name
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn an_interrupted_write_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let (path, calls) = (folder.path().join("a.safetensors"), Cell::new(0));
        let proceed = || {
            calls.set(calls.get() + 1);
            if calls.get() < 4 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        let bytes = vec![7; 10 * PIECE];
        let write = |out: &mut dyn Write| out.write_all(&bytes).map_err(kiln_weights::Error::Write);
        assert!(matches!(replace(&path, &proceed, write), Err(Error::Interrupted)));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        replace(&path, &|| ControlFlow::Continue(()), write).unwrap();
        assert!(std::fs::read(&path).unwrap() == bytes);
        drop(NewFolder::new_for(&folder.path().join("new")).unwrap());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
