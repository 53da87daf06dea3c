//! A table of the largest errors, with a row for each kind of comparison and a column for each model.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::records::Record;

/// Rows with a natural order are listed in it. All others are sorted by name, and those that are not a step of a
/// network come last.
const ORDER: [&str; 9] = ["time_emb", "conv_in", "down", "mid", "up", "out", "hidden", "last", "the folder's own"];

/// A table under construction.
pub struct Table {
    /// What the rows are.
    title: &'static str,
    rows: BTreeMap<Key, Row>,
}

/// A row has one bound. Bounds are sorted by their bits, which for positive numbers is their numeric order.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    place: usize,
    label: String,
    bound: u64,
}

#[derive(Default)]
struct Row {
    worst: BTreeMap<String, f64>,
    count: usize,
}

impl Table {
    /// An empty table with the row header `title`.
    pub fn new(title: &'static str) -> Self {
        Self { title, rows: BTreeMap::new() }
    }

    /// Whether nothing was added.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Adds a comparison to the row `label`.
    pub fn add(&mut self, label: &str, record: &Record) {
        let place = match label {
            "image" => ORDER.len() + 1,
            _ => ORDER.iter().position(|known| *known == label).unwrap_or(ORDER.len()),
        };
        let row = self.rows.entry(Key { place, label: label.into(), bound: record.bound.to_bits() }).or_default();
        row.count += 1;
        let worst = row.worst.entry(record.model.clone()).or_insert(0.0);
        *worst = worst.max(record.error);
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let models: BTreeSet<&String> = self.rows.values().flat_map(|row| row.worst.keys()).collect();
        let names: Vec<&str> = models.iter().map(|model| model.as_str()).collect();
        writeln!(f, "| {} | {} | bound | comparisons |", self.title, names.join(" | "))?;
        writeln!(f, "| --- |{} ---: | ---: |", " ---: |".repeat(models.len()))?;
        for (key, row) in &self.rows {
            write!(f, "| {} |", key.label)?;
            for model in &models {
                match row.worst.get(*model) {
                    Some(0.0) => write!(f, " 0 |")?,
                    Some(error) => write!(f, " {error:.1e} |")?,
                    None => write!(f, " |")?,
                }
            }
            writeln!(f, " {:e} | {} |", f64::from_bits(key.bound), row.count)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_hold_the_worst_of_each_model() {
        let mut table = Table::new("stage");
        for (model, stage, error) in [("b", "up", 2e-6), ("a", "mid", 1e-6), ("b", "up", 1e-6), ("b", "alone", 0.0)] {
            let record = Record { part: "unet".into(), model: model.into(), stage: stage.into(), error, bound: 1e-4 };
            table.add(stage, &record);
        }
        let expected = "\
            | stage | a | b | bound | comparisons |\n\
            | --- | ---: | ---: | ---: | ---: |\n\
            | mid | 1.0e-6 | | 1e-4 | 1 |\n\
            | up | | 2.0e-6 | 1e-4 | 2 |\n\
            | alone | | 0 | 1e-4 | 1 |\n";
        assert_eq!(table.to_string(), expected);
    }
}
