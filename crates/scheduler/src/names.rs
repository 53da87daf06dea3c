//! Names as people write them.

/// Whether two names are the same but for case, spaces and signs: "DPM++ 2S a", `dpmpp_2s_a` and
/// `k_dpmpp_2s_ancestral` are.
pub(crate) fn same(a: &str, b: &str) -> bool {
    plain(a) == plain(b)
}

/// The bare letters and digits of a name, as every front end has them.
fn plain(name: &str) -> String {
    let lower = name.to_lowercase();
    // k-diffusion's own samplers once had a prefix.
    let bare = lower.strip_prefix("k_").unwrap_or(&lower).replace("++", "pp").replace("ancestral", "a");
    bare.chars().filter(|c| c.is_alphanumeric()).collect()
}

/// A number as text: with an exponent where it would have dozens of zeros.
pub fn number_text(value: f64) -> String {
    if value == 0.0 || (1e-5..1e16).contains(&value.abs()) { value.to_string() } else { format!("{value:?}") }
}

/// The three names nearest to `name`, for a message. Each known name comes with the one that the message shows.
pub fn closest(name: &str, known: impl Iterator<Item = (&'static str, &'static str)>) -> String {
    let wanted = plain(name);
    let mut by_distance: Vec<_> =
        known.map(|(spelled, told)| (edit_distance(&wanted, &plain(spelled)), told)).collect();
    by_distance.sort_by_key(|&(distance, _)| distance);
    let mut nearest: Vec<&str> = Vec::new();
    for (_, told) in by_distance {
        if !nearest.contains(&told) {
            nearest.push(told);
        }
    }
    match nearest[..] {
        [a, b, c, ..] => format!("{a}, {b} or {c}"),
        _ => nearest.join(" or "),
    }
}

/// Levenshtein's distance, one row at a time.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, &cb) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(ca != cb);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let found = [7.0, 0.5, 0.0, 1e-320, 1e308, 1e-5, 123_456_789.5].map(number_text);
        assert_eq!(found, ["7", "0.5", "0", "1e-320", "1e308", "0.00001", "123456789.5"]);
    }

    #[test]
    fn spelling_does_not_matter() {
        assert!(same("DPM++ 2S a", "k_dpmpp_2s_ancestral"));
        assert!(!same("euler", "euler_a"));
        assert_eq!(closest("sampel", [("simple", "simple"), ("gits", "gits")].into_iter()), "simple or gits");
    }
}
