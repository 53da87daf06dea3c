//! Rust source without its comments and literals, so that words can be counted in it.

/// Counts `word` in the code of `source`, outside of comments, strings and character literals.
pub fn count_word(source: &str, word: &str) -> usize {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    code(source).split(|c| !is_name(c)).filter(|&found| found == word).count()
}

/// The source with every comment and literal replaced by a space.
fn code(source: &str) -> String {
    let mut code = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(c) = rest.chars().next() {
        let skipped = comment(rest).or_else(|| raw_string(rest, &code)).or_else(|| literal(rest));
        match skipped {
            Some(_) => code.push(' '),
            None => code.push(c),
        }
        rest = &rest[skipped.unwrap_or(c.len_utf8())..];
    }
    code
}

/// The length of the comment at the start of `rest`. Block comments nest.
fn comment(rest: &str) -> Option<usize> {
    if rest.starts_with("//") {
        return Some(rest.find('\n').unwrap_or(rest.len()));
    }
    if !rest.starts_with("/*") {
        return None;
    }
    let (mut at, mut depth) = (2, 1);
    while depth > 0 {
        let next = at + rest[at..].find(['/', '*']).unwrap_or(rest.len() - at);
        let pair = rest.get(next..next + 2).unwrap_or_default();
        (at, depth) = match pair {
            "/*" => (next + 2, depth + 1),
            "*/" => (next + 2, depth - 1),
            _ if next + 1 >= rest.len() => return Some(rest.len()),
            _ => (next + 1, depth),
        };
    }
    Some(at)
}

/// The length of the raw string at the start of `rest`: `r"..."`, `br#"..."#`, ...
fn raw_string(rest: &str, before: &str) -> Option<usize> {
    if before.ends_with(|c: char| c.is_alphanumeric() || c == '_') {
        return None; // the end of a name
    }
    let prefix = ["r", "br", "cr"]
        .into_iter()
        .find(|prefix| rest.strip_prefix(prefix).is_some_and(|after| after.trim_start_matches('#').starts_with('"')))?;
    let hashes = rest[prefix.len()..].bytes().take_while(|&byte| byte == b'#').count();
    let start = prefix.len() + hashes + 1;
    let end = format!("\"{}", "#".repeat(hashes));
    Some(rest[start..].find(&end).map_or(rest.len(), |at| start + at + end.len()))
}

/// The length of the string or character literal at the start of `rest`. A lifetime is neither.
fn literal(rest: &str) -> Option<usize> {
    let quote = rest.chars().next().filter(|c| ['"', '\''].contains(c))?;
    if quote == '\'' && !rest[1..].starts_with('\\') {
        let c = rest[1..].chars().next()?;
        return rest[1 + c.len_utf8()..].starts_with('\'').then_some(2 + c.len_utf8());
    }
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        if !escaped && c == quote {
            return Some(at + 1);
        }
        escaped = !escaped && c == '\\';
    }
    Some(rest.len())
}

#[cfg(test)]
mod tests {
    use super::count_word;

    fn count(source: &str) -> usize {
        count_word(source, "unsafe")
    }

    #[test]
    fn code_is_counted() {
        assert_eq!(count("unsafe { a() } unsafe fn b() {}"), 2);
        assert_eq!(count("fn f<'a>(x: &'a str) { unsafe { g('\"', '\\'', x) } }"), 1);
        assert_eq!(count("let a = \"x\\\"\"; unsafe {}"), 1);
    }

    #[test]
    fn names_comments_and_literals_are_not() {
        assert_eq!(count("#![forbid(unsafe_code)] // unsafe\n/* unsafe /* unsafe */ unsafe */"), 0);
        assert_eq!(count("\"unsafe \\\" unsafe\" r\"unsafe\\\" br#\"unsafe \" unsafe\"# b\"unsafe\""), 0);
        assert_eq!(count("/* unsafe"), 0);
        assert_eq!(count("\"unsafe"), 0);
    }
}
