//! The names of tensors in single-file checkpoints: those of CompVis' latent-diffusion, of OpenCLIP, and of programs
//! that follow them.
//!
//! Networks declare the names of diffusers and transformers. A [`Names`] is a table of a few dozen rows that is built
//! in loops from a network's dimensions (the number of levels, the layers of each). It is read in both directions: from
//! a declared name to the stored tensor and the piece of it, and back.

mod adapter;
mod clip;
mod control;
mod flux;
mod flux2;
mod frames;
#[cfg(test)]
mod frames_tests;
#[cfg(test)]
mod language_tests;
mod piece;
mod qwen;
mod sd3;
mod t5;
#[cfg(test)]
mod tests;
mod unet;
mod vae;
mod view;
mod z_image;

use std::collections::BTreeMap;

pub use adapter::adapter_names;
pub use clip::{ClipDialect, ClipShape};
pub use control::{FluxControlShape, Sd3ControlShape};
pub use flux::{Approximator, FluxDialect, FluxShape};
pub use flux2::{Flux2Dialect, Flux2Shape};
pub use piece::Piece;
pub use qwen::{QwenDialect, QwenShape};
pub use sd3::{Sd3Dialect, Sd3Shape};
pub use t5::{T5Dialect, T5Shape};
pub use unet::{UnetLevel, UnetShape};
pub use vae::{VaeDialect, VaeShape};
pub use view::{Named, Subset};
pub use z_image::{ZImageDialect, ZImageShape};

use crate::source::{ParamInfo, ParamSource};

/// The stored tensor, and the piece of it, that a declared tensor corresponds to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The stored tensor's name.
    pub name: String,
    /// The piece of it.
    pub piece: Piece,
}

/// A part of a module: `(declared, stored, piece)`.
type Part = (&'static str, &'static str, Piece);

struct Row {
    declared: String,
    stored: String,
    /// The parts below the two names. An empty list means the same names on both sides.
    parts: &'static [Part],
}

/// A table with equal names on both sides.
pub fn same_names() -> Names {
    let mut names = Names::default();
    names.add("", "", &[]);
    names
}

/// A table of names, read in both directions.
#[derive(Default)]
pub struct Names {
    rows: Vec<Row>,
}

impl Names {
    fn add(&mut self, declared: impl Into<String>, stored: impl Into<String>, parts: &'static [Part]) {
        self.rows.push(Row { declared: declared.into(), stored: stored.into(), parts });
    }

    /// The place of the declared tensor `key`. `None` if the table has no such tensor.
    pub fn place(&self, key: &str) -> Option<Place> {
        let found = self.rows.iter().filter_map(|row| Some((row, below(key, &row.declared)?)));
        // The longest name is the most specific one.
        let (row, rest) = found.max_by_key(|(row, _)| row.declared.len())?;
        if row.parts.is_empty() {
            return Some(Place { name: join(&row.stored, rest), piece: Piece::Whole });
        }
        let (stored, rest, piece) =
            row.parts.iter().find_map(|&(declared, stored, piece)| Some((stored, below(rest, declared)?, piece)))?;
        Some(Place { name: join(&join(&row.stored, stored), rest), piece: piece_of(piece, rest) })
    }

    /// The shape and type of the declared tensor `key` in `source`. `None` if it has no such tensor.
    pub fn info(&self, source: &dyn ParamSource, key: &str) -> Option<ParamInfo> {
        let place = self.place(key)?;
        place.piece.info(source.info(&place.name)?)
    }

    /// The stored tensors that the declared tensors `keys` make, each with its pieces in the order of rows. A tensor that
    /// the table does not contain keeps its name.
    pub fn stored<'a>(&self, keys: impl IntoIterator<Item = &'a str>) -> BTreeMap<String, Vec<(Piece, &'a str)>> {
        let mut stored: BTreeMap<String, Vec<(Piece, &'a str)>> = BTreeMap::new();
        for key in keys {
            let Place { name, piece } = self.place(key).unwrap_or(Place { name: key.into(), piece: Piece::Whole });
            stored.entry(name).or_default().push((piece, key));
        }
        stored.values_mut().for_each(|pieces| pieces.sort_by_key(|(piece, _)| piece.order()));
        stored
    }

    /// The declared tensors that the stored tensor `name` contains: one, several for a fused projection, or none if the
    /// table has no such tensor.
    pub fn declared(&self, name: &str) -> Vec<(String, Piece)> {
        let found = self.rows.iter().filter_map(|row| Some((row, below(name, &row.stored)?)));
        let Some((row, rest)) = found.max_by_key(|(row, _)| row.stored.len()) else { return Vec::new() };
        if row.parts.is_empty() {
            return vec![(join(&row.declared, rest), Piece::Whole)];
        }
        let parts = row.parts.iter().filter_map(|&(declared, stored, piece)| {
            let rest = below(rest, stored)?;
            Some((join(&join(&row.declared, declared), rest), piece_of(piece, rest)))
        });
        parts.collect()
    }
}

/// Biases have one dimension, for any layout of the weight.
fn piece_of(piece: Piece, rest: &str) -> Piece {
    if rest == "bias" && matches!(piece, Piece::Transposed | Piece::Pointwise) { Piece::Whole } else { piece }
}

/// The part of `name` after `prefix` and a dot; empty if they are equal.
fn below<'a>(name: &'a str, prefix: &str) -> Option<&'a str> {
    match name.strip_prefix(prefix)? {
        "" => Some(""),
        rest if prefix.is_empty() => Some(rest),
        rest => rest.strip_prefix('.'),
    }
}

fn join(a: &str, b: &str) -> String {
    match (a, b) {
        ("", name) | (name, "") => name.to_string(),
        _ => format!("{a}.{b}"),
    }
}
