//! Writing files whole or not at all, and stopping in between.

use std::io::{BufWriter, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use kiln_files::{persist, temporary_beside, temporary_folder_beside};

use crate::error::{Error, Result};

/// Bytes that are written between two looks at whether to go on.
const PIECE: usize = 4 << 20;

/// Whether to go on.
pub(super) type Proceed<'a> = &'a dyn Fn() -> ControlFlow<()>;

/// A writer that ends when it is told to.
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

/// Writes a file under another name beside its place and puts it there at the end, so that none is ever half written.
///
/// # Errors
/// [`Error::Interrupted`] where `proceed` said so; then nothing is left.
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

/// A folder that is made beside its place and put there at the end.
pub(super) struct NewFolder {
    made: tempfile::TempDir,
    place: PathBuf,
}

impl NewFolder {
    /// Makes it, empty.
    pub(super) fn beside(place: &Path) -> Result<Self> {
        let made = temporary_folder_beside(place)?;
        Ok(Self { made, place: place.to_path_buf() })
    }

    pub(super) fn path(&self) -> &Path {
        self.made.path()
    }

    /// Puts it in its place, where nothing is.
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
    fn what_is_stopped_leaves_nothing() {
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
        drop(NewFolder::beside(&folder.path().join("new")).unwrap());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
