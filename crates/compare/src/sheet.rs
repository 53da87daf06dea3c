//! The sheet: the images of each pair side by side, and how they differ.

use std::path::Path;

use kiln_files::{FileRules, PlannedFile, folder_of, write_error};
use kiln_media::{Canvas, LETTER, LINE, Rgb8Image, Thumbnail};

use crate::bounds::Metric;
use crate::comparison::read;
use crate::error::{Error, Result};
use crate::report::{PairReport, Report};
use crate::ssim::check_sizes;

/// The largest height of a sheet in pixels.
const MAX_HEIGHT: usize = 8192;
/// The longest side of an image on the sheet, and the least one before pairs are left out.
const LARGEST: usize = 256;
const SMALLEST: usize = 96;
/// Pixels between images.
const GAP: usize = 6;
/// How much differences are enlarged.
const FACTOR: u8 = 8;
/// The least letters of a column.
const LETTERS: usize = 24;

/// Plans the file.
///
/// # Errors
/// [`Error::Files`] for a path that cannot be written, and for one that is compared or lies in a folder that is.
pub(crate) fn plan(path: &Path, compared: [&Path; 2]) -> Result<PlannedFile> {
    let rules = FileRules { field: "sheet", what: "the sheet", extensions: &["png"], overwrite: true };
    let file = PlannedFile::plan(path, rules)?;
    if file.is_standard_output() {
        return Err(rules.refused(path, "a file; the standard output gets the values").into());
    }
    let is_same = |a: &Path, b: &Path| a.canonicalize().is_ok_and(|a| b.canonicalize().is_ok_and(|b| a == b));
    if compared.iter().any(|images| is_same(path, images) || is_same(folder_of(path), images)) {
        return Err(rules.refused(path, "another place: this one is compared").into());
    }
    Ok(file)
}

/// Writes the sheet: a row for each pair, or for those with the lowest PSNR if there is no room for all.
///
/// # Errors
/// [`Error::Files`] if it cannot be written.
pub(crate) fn write(file: &PlannedFile, report: &Report) -> Result<()> {
    let room = MAX_HEIGHT - (GAP + 2 * LINE);
    let texts = 2 * LINE + 2 * GAP;
    let chosen = chosen(&report.pairs, room / (SMALLEST + texts));
    let largest = report.pairs.iter().filter_map(|pair| pair.size).flatten().max().unwrap_or(LARGEST);
    let side = (room / chosen.len().max(1) - texts).min(LARGEST).min(largest.max(SMALLEST));
    let cell = side.max(LETTERS * LETTER);
    let mut canvas = Canvas::new(GAP + 3 * (cell + GAP), GAP + 2 * LINE + chosen.len() * (side + texts));
    let count = match chosen.len() == report.pairs.len() {
        true => format!("{} pairs", chosen.len()),
        false => format!("the {} of {} pairs with the lowest PSNR", chosen.len(), report.pairs.len()),
    };
    canvas.text(&count, GAP, GAP);
    for (column, title) in ["A".to_string(), "B".to_string(), format!("difference x {FACTOR}")].iter().enumerate() {
        canvas.text(title, GAP + column * (cell + GAP), GAP + LINE);
    }
    for (row, pair) in chosen.into_iter().enumerate() {
        let y = GAP + 2 * LINE + row * (side + texts);
        let letters = 3 * (cell + GAP) / LETTER;
        canvas.text(&cut(&pair.pair.name, letters), GAP, y);
        canvas.text(&cut(&values(report, pair), letters), GAP, y + LINE);
        let images = [Some(&pair.pair.a), pair.pair.b.as_ref()].map(|path| path.and_then(|path| read(path).ok()));
        let difference = match &images {
            [Some(a), Some(b)] => difference(a, b),
            _ => None,
        };
        for (column, image) in images.iter().chain([&difference]).enumerate() {
            if let Some(image) = image {
                canvas.draw(&Thumbnail::of(image, side), GAP + column * (cell + GAP), y + 2 * LINE);
            }
        }
    }
    let png = canvas.png().map_err(|error| Error::from(write_error(file.path())(std::io::Error::other(error))))?;
    Ok(file.write(|to| to.write_all(&png))?)
}

/// The pairs on the sheet in their order: all, or `most` of them with the lowest PSNR. Pairs without one come first.
fn chosen(pairs: &[PairReport], most: usize) -> Vec<&PairReport> {
    let psnr = |pair: &PairReport| pair.values.get(&Metric::Psnr).copied().unwrap_or(f64::NEG_INFINITY);
    let mut order: Vec<usize> = (0..pairs.len()).collect();
    order.sort_by(|&a, &b| psnr(&pairs[a]).total_cmp(&psnr(&pairs[b])));
    order.truncate(most);
    order.sort_unstable();
    order.into_iter().map(|i| &pairs[i]).collect()
}

/// The values of a pair in a line, and its first problem.
fn values(report: &Report, pair: &PairReport) -> String {
    let of = |metric: &Metric| Some(format!("{} {}", metric.label(), metric.shown(*pair.values.get(metric)?)));
    report.metrics.iter().filter_map(of).chain(pair.problems.first().cloned()).collect::<Vec<_>>().join("  ")
}

/// A text of one line with so many letters.
fn cut(text: &str, letters: usize) -> String {
    let clean = |c: char| if c.is_control() { ' ' } else { c };
    text.chars().take(letters).map(clean).collect()
}

/// The absolute differences, enlarged; none of images with different sizes.
fn difference(a: &Rgb8Image, b: &Rgb8Image) -> Option<Rgb8Image> {
    check_sizes(a, b).ok()?;
    let values = a.data().iter().zip(b.data()).map(|(&a, &b)| a.abs_diff(b).saturating_mul(FACTOR)).collect();
    Rgb8Image::new(a.width(), a.height(), values).ok()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::pairs::Pair;

    fn pair(name: &str, psnr: Option<f64>) -> PairReport {
        let pair = Pair { name: name.into(), a: name.into(), b: Some(name.into()) };
        let values = psnr.map(|psnr| (Metric::Psnr, psnr)).into_iter().collect::<BTreeMap<_, _>>();
        PairReport { pair, size: None, values, problems: Vec::new() }
    }

    #[test]
    fn the_worst_pairs_have_room_first() {
        let pairs = [pair("a", Some(50.0)), pair("b", Some(20.0)), pair("c", Some(f64::INFINITY)), pair("d", None)];
        let names = |most| chosen(&pairs, most).iter().map(|pair| pair.pair.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(9), ["a", "b", "c", "d"]);
        assert_eq!(names(2), ["b", "d"]);
    }

    #[test]
    fn differences_are_enlarged() {
        let image = |values: &[u8]| Rgb8Image::new(1, 1, values.to_vec()).unwrap();
        let found = difference(&image(&[10, 0, 9]), &image(&[8, 255, 9])).unwrap();
        assert_eq!(found.data(), [16, 255, 0]);
        assert!(difference(&image(&[0; 3]), &Rgb8Image::filled(2, 1, [0; 3]).unwrap()).is_none());
    }

    #[test]
    fn names_are_one_line() {
        assert_eq!(cut("a\nb\u{1b}c", 9), "a b c");
        assert_eq!(cut("abcdef", 3), "abc");
    }
}
