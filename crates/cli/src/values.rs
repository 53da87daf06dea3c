//! Parsers of flag values: numbers, seeds, sizes.

/// A count; the request, which knows the model, checks its bounds.
pub(crate) fn parse_count(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| "expected a whole number of at least 0".into())
}

/// A whole number that may be negative.
pub(crate) fn parse_offset(text: &str) -> Result<i64, String> {
    text.parse().map_err(|_| "expected a whole number".into())
}

pub(crate) fn parse_number(text: &str) -> Result<f64, String> {
    text.parse().map_err(|_| "expected a number".into())
}

/// A seed, or `None` for a random one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seed(pub(crate) Option<u64>);

pub(crate) fn parse_seed(text: &str) -> Result<Seed, String> {
    match text.parse::<i128>() {
        Ok(seed) if seed < 0 => Ok(Seed(None)),
        Ok(seed) if seed <= i128::from(u64::MAX) => Ok(Seed(Some(seed as u64))),
        _ => Err(format!("expected a number from 0 to {}, or -1 for a random seed", u64::MAX)),
    }
}

pub(crate) fn parse_size(text: &str) -> Result<(usize, usize), String> {
    let size = text.split_once('x').and_then(|(width, height)| Some((width.parse().ok()?, height.parse().ok()?)));
    size.ok_or_else(|| "expected width and height in pixels, as in 512x768".into())
}

/// `on` or `off`.
pub(crate) fn parse_switch(text: &str) -> Result<bool, String> {
    match text {
        "on" | "true" => Ok(true),
        "off" | "false" => Ok(false),
        _ => Err("expected on or off".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_whole_numbers() {
        assert_eq!(parse_seed("42"), Ok(Seed(Some(42))));
        assert_eq!(parse_seed("-1"), Ok(Seed(None)));
        assert_eq!(parse_seed("18446744073709551615"), Ok(Seed(Some(u64::MAX))));
        assert!(parse_seed("18446744073709551616").is_err());
        assert!(parse_seed("1.5").is_err());
    }
}
