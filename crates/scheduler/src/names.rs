//! Names as users write them.

/// Whether two names are equal up to case, spaces and signs: "DPM++ 2S a", `dpmpp_2s_a` and `k_dpmpp_2s_ancestral` are.
pub(crate) fn same(a: &str, b: &str) -> bool {
    plain(a) == plain(b)
}

/// The letters and digits of a name, in the form that all front ends share.
fn plain(name: &str) -> String {
    let lower = name.to_lowercase();
    // Older names of k-diffusion's own samplers have this prefix.
    let bare = lower.strip_prefix("k_").unwrap_or(&lower).replace("++", "pp").replace("ancestral", "a");
    bare.chars().filter(|c| c.is_alphanumeric()).collect()
}

/// A number as text, with an exponent where it would otherwise have dozens of zeros.
pub fn number_text(value: f64) -> String {
    if value == 0.0 || (1e-5..1e16).contains(&value.abs()) { value.to_string() } else { format!("{value:?}") }
}

/// The three known names with the smallest edit distance to `name`, for a message. Each comes with the name to show.
pub fn closest(name: &str, known: impl Iterator<Item = (&'static str, &'static str)>) -> String {
    let wanted = plain(name);
    let mut by_distance: Vec<_> =
        known.map(|(spelled, shown)| (strsim::levenshtein(&wanted, &plain(spelled)), shown)).collect();
    by_distance.sort_by_key(|&(distance, _)| distance);
    let mut nearest: Vec<&str> = Vec::new();
    for (_, shown) in by_distance {
        if !nearest.contains(&shown) {
            nearest.push(shown);
        }
    }
    match nearest[..] {
        [a, b, c, ..] => format!("{a}, {b} or {c}"),
        _ => nearest.join(" or "),
    }
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
