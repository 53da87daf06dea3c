//! Files on their way to a client: read in small pieces, as fast as the client takes them.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

use axum::body::Body;
use bytes::Bytes;
use futures_util::{Stream, stream};
use parking_lot::Mutex;
use tokio::fs::File;
use tokio::io::AsyncReadExt;
use zip::write::{SimpleFileOptions, StreamWriter};
use zip::{CompressionMethod, ZipWriter};

use crate::gallery::Item;

/// Bytes of a piece.
const PIECE: usize = 64 << 10;

/// The first `length` bytes of a file.
pub(super) fn file(file: File, length: u64) -> Body {
    Body::from_stream(stream::try_unfold(file.take(length), |mut file| async move {
        let mut piece = Vec::with_capacity(PIECE);
        let read = file.read_buf(&mut piece).await?;
        io::Result::Ok((read > 0).then_some((Bytes::from(piece), file)))
    }))
}

/// A ZIP file of these images. They are stored as they are, since they are compressed already. One that is deleted meanwhile is left
/// out.
pub(super) fn zip(files: Vec<(Item, PathBuf)>) -> impl Stream<Item = io::Result<Bytes>> {
    let made = Made::default();
    let packing =
        Packing { zip: Some(ZipWriter::new_stream(made.clone())), made, files: files.into_iter(), open: None };
    stream::try_unfold(packing, |mut packing| async move { Ok(packing.next().await?.map(|piece| (piece, packing))) })
}

/// The bytes of the ZIP file that were not sent yet.
#[derive(Clone, Default)]
struct Made(Arc<Mutex<Vec<u8>>>);

impl Write for Made {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A ZIP file that is being written.
struct Packing {
    /// `None` when its end was written.
    zip: Option<ZipWriter<StreamWriter<Made>>>,
    made: Made,
    files: std::vec::IntoIter<(Item, PathBuf)>,
    open: Option<File>,
}

impl Packing {
    /// The next piece; `None` at the end.
    async fn next(&mut self) -> io::Result<Option<Bytes>> {
        loop {
            let Some(zip) = &mut self.zip else { return Ok(None) };
            if let Some(file) = &mut self.open {
                let mut piece = Vec::with_capacity(PIECE);
                match file.read_buf(&mut piece).await? {
                    0 => self.open = None,
                    _ => zip.write_all(&piece)?,
                }
            } else if let Some((item, path)) = self.files.next() {
                self.open = match File::open(&path).await {
                    Ok(file) => Some(file),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                    Err(error) => return Err(error),
                };
                let options = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
                zip.start_file(item.name, options.large_file(item.bytes >= u64::from(u32::MAX)))?;
            } else if let Some(zip) = self.zip.take() {
                zip.finish()?;
            }
            let made = std::mem::take(&mut *self.made.0.lock());
            if !made.is_empty() {
                return Ok(Some(made.into()));
            }
        }
    }
}
