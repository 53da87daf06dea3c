//! `--preview`: what images are about to become, in a file or in the terminal.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use kiln_engine::GeneratedImage;
use kiln_files::{FileRules, PlannedFile};
use kiln_media::{Rgb8Image, StillFormat, encode};

use crate::failure::Result;
use crate::progress::Progress;
use crate::status::{is_json, is_quiet};
use crate::terminal_image::Protocol;

/// Rows of characters of an image in the terminal.
const ROWS: usize = 16;
/// The most columns.
const COLUMNS: usize = 64;

/// Where previews go.
#[derive(Debug, Clone, PartialEq)]
pub enum PreviewTo {
    /// A PNG file, whose name may have `{index}` and `{step}`.
    File(PathBuf),
    /// The terminal, by the protocol that it seems to have.
    Terminal,
    /// The error stream, whatever it is, by this protocol.
    Protocol(Protocol),
}

impl FromStr for PreviewTo {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        match Protocol::IDS.iter().find(|(id, _)| *id == text) {
            Some((_, protocol)) => Ok(Self::Protocol(*protocol)),
            None if text == "terminal" => Ok(Self::Terminal),
            None => Ok(Self::File(text.into())),
        }
    }
}

/// Previews of a run.
pub struct Previews {
    to: To,
    /// The step and the lowest index of the previews that came together, of which the terminal shows the first.
    first: Option<(usize, usize)>,
}

enum To {
    File(PathBuf),
    Screen {
        protocol: Protocol,
        /// The rows of the image that is above the cursor, which the next one replaces.
        shown: Option<usize>,
    },
    /// Nowhere any more.
    Nothing,
}

impl Previews {
    /// Previews, before anything runs; none where standard error is not a terminal.
    ///
    /// # Errors
    /// See [`PlannedFile::plan`].
    pub fn plan(to: &PreviewTo) -> Result<Option<Self>> {
        let screen = |protocol| To::Screen { protocol, shown: None };
        let to = match to {
            PreviewTo::File(path) => {
                planned(&named(path, 0, 0))?;
                To::File(path.clone())
            }
            PreviewTo::Protocol(protocol) => screen(*protocol),
            PreviewTo::Terminal if std::io::stderr().is_terminal() && !is_json() && !is_quiet() => {
                screen(Protocol::detect(|name| std::env::var(name).ok()))
            }
            PreviewTo::Terminal => {
                caution!("standard error is not a terminal; no previews are shown");
                return Ok(None);
            }
        };
        Ok(Some(Self { to, first: None }))
    }

    /// Shows the preview of an image. Where it cannot be written, there are no more of them, and the run goes on.
    pub fn show(&mut self, index: usize, step: usize, image: &Rgb8Image, progress: &Progress) {
        let is_first = self.first.is_none_or(|(known, lowest)| known != step || index <= lowest);
        if is_first {
            self.first = Some((step, index));
        }
        let written = match &mut self.to {
            // Without its index in the name, a file has one image.
            To::File(path) if is_first || path.to_string_lossy().contains("{index}") => {
                write_file(&named(path, index, step), image)
            }
            To::Screen { protocol, shown } if is_first => write_screen(*protocol, shown, image, progress),
            _ => return,
        };
        if let Err(error) = written {
            progress.warn(&format!("no more previews: {}", error.message()));
            self.to = To::Nothing;
        }
    }

    /// Shows an image that is done over its previews, and begins below it.
    pub fn done(&mut self, image: &GeneratedImage, progress: &Progress) {
        let To::Screen { protocol, shown } = &mut self.to else { return };
        if let Ok(image) = Rgb8Image::new(image.width, image.height, image.rgb.clone()) {
            // An image that cannot be shown is in its file.
            let _ = write_screen(*protocol, shown, &image, progress);
        }
        *shown = None;
    }

    /// Other lines were written, so that the next image comes below them.
    pub fn scrolled(&mut self) {
        if let To::Screen { shown, .. } = &mut self.to {
            *shown = None;
        }
    }
}

fn planned(path: &Path) -> Result<PlannedFile> {
    let rules = FileRules { field: "preview", what: "the preview", extensions: &["png"], overwrite: true };
    Ok(PlannedFile::plan(path, rules)?)
}

fn named(path: &Path, index: usize, step: usize) -> PathBuf {
    let name = path.to_string_lossy();
    if !name.contains(['{', '}']) {
        return path.to_path_buf();
    }
    name.replace("{index}", &index.to_string()).replace("{step}", &step.to_string()).into()
}

fn write_file(path: &Path, image: &Rgb8Image) -> Result<()> {
    let file = encode(image, StillFormat::Png).map_err(kiln_engine::Error::from)?;
    Ok(planned(path)?.write(|to| to.write_all(&file))?)
}

/// Draws an image over the one before.
fn write_screen(protocol: Protocol, shown: &mut Option<usize>, image: &Rgb8Image, progress: &Progress) -> Result<()> {
    let (columns, rows) = cells(image.size());
    let text = protocol.text(image, columns, rows).map_err(kiln_engine::Error::from)?;
    // Lines make room first, so that the terminal does not scroll while the image is drawn.
    let room = if *shown == Some(rows) { String::new() } else { "\n".repeat(rows) };
    *shown = Some(rows);
    // Up to the place, the image between a stored and a restored cursor, and down again.
    let text = format!("{room}\x1b[{rows}A\r\x1b7{text}\x1b8\x1b[{rows}B\r");
    progress.above(|| {
        // A closed reader ends no run.
        let mut stream = std::io::stderr().lock();
        let _ = stream.write_all(text.as_bytes()).and_then(|()| stream.flush());
    });
    Ok(())
}

/// Columns and rows for an image of this size, where a character is twice as high as wide.
fn cells((width, height): (usize, usize)) -> (usize, usize) {
    let columns = 2 * ROWS * width / height.max(1);
    if columns <= COLUMNS {
        return (columns.max(1), ROWS);
    }
    (COLUMNS, (COLUMNS * height / (2 * width.max(1))).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_protocols_are_told_apart() {
        let parse = |text: &str| text.parse::<PreviewTo>().unwrap();
        assert_eq!(parse("terminal"), PreviewTo::Terminal);
        assert_eq!(parse("sixel"), PreviewTo::Protocol(Protocol::Sixel));
        assert_eq!(parse("./sixel"), PreviewTo::File("./sixel".into()));
        assert_eq!(named(Path::new("{index}-{step}.png"), 2, 7), Path::new("2-7.png"));
    }

    #[test]
    fn images_keep_their_shapes() {
        assert_eq!(cells((64, 64)), (32, 16));
        assert_eq!(cells((64, 128)), (16, 16));
        assert_eq!(cells((128, 64)), (64, 16));
        assert_eq!(cells((1000, 10)), (64, 1));
        assert_eq!(cells((1, 1000)), (1, 16));
    }
}
