//! Checkpoint files of all formats, behind one source type.

pub(crate) mod bytes;
mod factor_rows;
mod four_bits;
mod gguf;
mod layer_formats;
mod packed;
mod torch;
mod write;

use std::collections::BTreeMap;
use std::io::Read;
use std::ops::Range;
use std::path::Path;

pub use gguf::GgufFile;
pub(crate) use packed::unpacked;
pub use torch::TorchFile;
pub use write::{NewTensor, encode, gguf_has, write_gguf, write_safetensors};

use kiln_files::open_regular;

use crate::error::{Error, Result};
use crate::safetensors_file::SafetensorsFile;
use crate::source::{ParamData, ParamInfo, ParamSource};

/// A checkpoint's format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileFormat {
    /// `.safetensors`.
    Safetensors,
    /// `.gguf`.
    Gguf,
    /// A `torch.save` file.
    Torch,
}

impl FileFormat {
    /// The name of the format.
    pub fn label(self) -> &'static str {
        match self {
            Self::Safetensors => "safetensors",
            Self::Gguf => "GGUF",
            Self::Torch => "PyTorch (pickle)",
        }
    }

    /// Detects the format of a file from its first bytes, because file names are unreliable.
    fn of(path: &Path) -> Result<Self> {
        let io_error = |source| Error::Io { path: path.to_path_buf(), source };
        let mut start = Vec::new();
        let file = open_regular(path).map_err(io_error)?;
        file.take(4).read_to_end(&mut start).map_err(io_error)?;
        Ok(match start.as_slice() {
            gguf::MAGIC => Self::Gguf,
            torch::zip::MAGIC => Self::Torch,
            // A safetensors file begins with a length. Its first byte is 0x80 where the header has, for example, 128
            // bytes, but a zero follows. In a pickle the protocol follows.
            [torch::PICKLE_MAGIC, 2..=5, ..] if !is_small_safetensors(path) => Self::Torch,
            _ => Self::Safetensors,
        })
    }
}

/// Whether a file that begins like a pickle is a safetensors file: a brace follows the length.
fn is_small_safetensors(path: &Path) -> bool {
    let mut start = [0; 9];
    open_regular(path)
        .is_ok_and(|mut file| file.read_exact(&mut start).is_ok() && start[8] == b'{' && start[4..8] == [0; 4])
}

/// A checkpoint file of any format, mapped into memory.
pub struct Checkpoint {
    source: Box<dyn ParamSource>,
    format: FileFormat,
    metadata: BTreeMap<String, String>,
}

impl Checkpoint {
    /// Opens a file, and detects its format from its first bytes. Elements are read from the mapping. Weights that are
    /// stored as several tensors are one tensor each: 8-bit numbers with their scales, and bitsandbytes' 4-bit weights.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be mapped, [`Error::Format`] if it is not a valid checkpoint, or has layers in a
    /// format of another program that Kiln does not read.
    pub fn open(path: &Path) -> Result<Self> {
        let format = FileFormat::of(path)?;
        let (source, metadata): (Box<dyn ParamSource>, _) = match format {
            FileFormat::Safetensors => {
                let file = SafetensorsFile::open(path)?;
                let metadata = file.metadata().clone().into_iter().collect();
                (Box::new(file), metadata)
            }
            FileFormat::Gguf => {
                let file = GgufFile::open(path)?;
                let metadata = file.metadata().clone();
                (Box::new(file), metadata)
            }
            FileFormat::Torch => {
                let file = TorchFile::open(path)?;
                let metadata = file.metadata().clone();
                (Box::new(file), metadata)
            }
        };
        let source = unpacked(source, &metadata, path)?;
        Ok(Self { source, format, metadata })
    }

    /// The format.
    pub fn format(&self) -> FileFormat {
        self.format
    }

    /// The file's metadata.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }
}

impl ParamSource for Checkpoint {
    fn info(&self, key: &str) -> Option<ParamInfo> {
        self.source.info(key)
    }

    fn data(&self, key: &str) -> Result<Option<ParamData<'_>>> {
        self.source.data(key)
    }

    fn rows(&self, key: &str, rows: Range<usize>) -> Result<Option<ParamData<'_>>> {
        self.source.rows(key, rows)
    }

    fn release(&self, key: &str) {
        self.source.release(key);
    }

    fn origin(&self, key: &str) -> String {
        self.source.origin(key)
    }

    fn keys(&self) -> Vec<String> {
        self.source.keys()
    }
}
