//! Text for terminal output: tables, numbers, sizes.

use kiln_files::ByteSize;

/// Rows of cells, each column as wide as its widest cell; all columns except the first `left` are right-aligned.
pub fn table(rows: &[Vec<String>], left: usize) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| Some(row.get(column)?.chars().count())).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cell = |(column, word): (usize, &String)| match (widths[column], column < left) {
            (width, true) => format!("{word:width$}"),
            (width, false) => format!("{word:>width$}"),
        };
        let cells: Vec<String> = row.iter().enumerate().map(cell).collect();
        text += cells.join("  ").trim_end();
        text.push('\n');
    }
    text
}

/// A number with thousands separators: `859,520,964`.
pub fn thousands(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number of things with their name: `1 image`, `2 images`.
pub fn counted(number: usize, name: &str) -> String {
    format!("{number} {name}{}", if number == 1 { "" } else { "s" })
}

/// A size in a suitable unit.
pub fn size(bytes: u64) -> String {
    ByteSize(usize::try_from(bytes).unwrap_or(usize::MAX)).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let rows = [["name", "bytes"], ["a", "1"]].map(|row| row.map(String::from).to_vec());
        assert_eq!(table(&rows, 1), "name  bytes\na         1\n");
    }

    #[test]
    fn numbers_and_sizes_are_readable() {
        assert_eq!([0, 999, 1000, 859_520_964].map(thousands), ["0", "999", "1,000", "859,520,964"]);
        assert_eq!([0, 1, 2].map(|number| counted(number, "image")), ["0 images", "1 image", "2 images"]);
        let sizes = [512, 1 << 10, 94 << 20, 5 << 30].map(size);
        assert_eq!(sizes, ["512 B", "1.0 KiB", "94.0 MiB", "5.00 GiB"]);
    }
}
