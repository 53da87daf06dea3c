//! Names as users write them.

/// The longest name in bytes. A longer one is unknown without a comparison, and messages have its beginning.
pub const MAX_NAME: usize = 64;

/// Whether two names are equal up to case, spaces and signs: "DPM++ 2S a", `dpmpp_2s_a` and `k_dpmpp_2s_ancestral` are.
pub(crate) fn same(a: &str, b: &str) -> bool {
    a.len() <= MAX_NAME && b.len() <= MAX_NAME && plain(a) == plain(b)
}

/// A name for a message: at most [`MAX_NAME`] bytes of it, with dots behind one that is longer.
pub fn short_name(name: &str) -> String {
    let end = name.floor_char_boundary(MAX_NAME);
    if end == name.len() { name.into() } else { format!("{}...", &name[..end]) }
}

/// The letters and digits of a name, in the form that all front ends share.
fn plain(name: &str) -> String {
    let lower = name.to_lowercase();
    // Older names of k-diffusion's own samplers have this prefix.
    let bare = lower.strip_prefix("k_").unwrap_or(&lower).replace("++", "pp").replace("ancestral", "a");
    bare.chars().filter(|c| c.is_alphanumeric()).collect()
}

/// A number as text, with an exponent if it would otherwise have dozens of zeros.
pub fn number_text(value: f64) -> String {
    if value == 0.0 || (1e-5..1e16).contains(&value.abs()) { value.to_string() } else { format!("{value:?}") }
}

/// The end of a sentence about an unknown name: `, did you mean euler or euler_a?` with up to three known names that are near
/// to `name`, or a full stop if none is. Each known name comes with the name to show. The distance is the number of
/// letters that are changed, added, left out or exchanged with the next one; a name is near if there is one such letter for
/// three. No distance of a name over [`MAX_NAME`] bytes is computed: the time grows with its length.
pub fn closest(name: &str, known: impl Iterator<Item = (&'static str, &'static str)>) -> String {
    if name.len() > MAX_NAME {
        return ".".into();
    }
    let wanted = plain(name);
    let most = wanted.chars().count().div_ceil(3);
    let distance = |spelled: &str| strsim::osa_distance(&wanted, &plain(spelled));
    let mut by_distance: Vec<_> =
        known.map(|(spelled, shown)| (distance(spelled), shown)).filter(|(distance, _)| *distance <= most).collect();
    by_distance.sort_by_key(|&(distance, _)| distance);
    let mut nearest: Vec<&str> = Vec::new();
    for (_, shown) in by_distance {
        if !nearest.contains(&shown) {
            nearest.push(shown);
        }
    }
    match nearest[..] {
        [] => ".".into(),
        [a, b, c, ..] => format!(", did you mean {a}, {b} or {c}?"),
        _ => format!(", did you mean {}?", nearest.join(" or ")),
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
        let near =
            |name: &str| closest(name, [("simple", "simple"), ("sampler", "sampler"), ("gits", "gits")].into_iter());
        assert_eq!(near("sampel"), ", did you mean simple or sampler?");
        assert_eq!(near("foo"), ".");
    }

    /// Comparing a name of 6 MB with all known ones took 45 seconds.
    #[test]
    fn long_names_are_cut_and_compared_with_nothing() {
        let long = "ä".repeat(3_000_000);
        assert_eq!(closest(&long, [("euler", "euler")].into_iter()), ".");
        assert!(!same(&long, &long));
        assert_eq!(short_name(&long), format!("{}...", "ä".repeat(32)));
        assert_eq!(short_name("euler"), "euler");
    }
}
