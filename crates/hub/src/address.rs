//! Addresses of servers, parsed by the crate `url`: requests are sent to the normalized form, so that the checks and the HTTP
//! client cannot disagree about an address.

use url::{Host, Url};

use crate::http::plain;

/// Parses the address of an HTTP server.
///
/// # Errors
/// A sentence about the problem.
pub(crate) fn parse(text: &str) -> Result<Url, String> {
    let wrong = |problem: &str| format!("{:?}, which is no address of a server: {problem}", plain(text));
    let url = Url::parse(text).map_err(|error| wrong(&error.to_string()))?;
    match url.scheme() {
        // A URL of these schemes always has a host.
        "http" | "https" if url.port() != Some(0) => Ok(url),
        "http" | "https" => Err(wrong("there is no port 0")),
        _ => Err(wrong("expected http or https")),
    }
}

/// The target of a redirect, without its fragment.
///
/// # Errors
/// If it is no address, has another scheme than `http` and `https`, or leads from `https` to `http`.
pub(crate) fn redirect(from: &Url, location: &str) -> Result<Url, String> {
    let shown = plain(location);
    let next = from
        .join(location)
        .map_err(|error| format!("a redirect to {shown:?}, which is no address of a server: {error}"));
    let mut next = next?;
    next.set_fragment(None);
    match (from.scheme(), next.scheme()) {
        _ if location.is_empty() => Err("a redirect without an address".into()),
        (_, "https") | ("http", "http") => parse(next.as_str()).map_err(|problem| format!("a redirect to {problem}")),
        (old, new) => Err(format!("a redirect from {old} to {new}, {shown:?}")),
    }
}

/// Whether the server is this machine.
pub(crate) fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(ip)) => ip.is_loopback(),
        Some(Host::Ipv6(ip)) => ip.is_loopback(),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_lead_to_servers_that_are_as_safe() {
        let from = parse("https://hub.example/owner/name/resolve/main/a.json").unwrap();
        for (location, expected) in [
            ("/api/x?y=1", Some("https://hub.example/api/x?y=1")),
            ("https://cdn.example/x#part", Some("https://cdn.example/x")),
            ("//cdn.example/x", Some("https://cdn.example/x")),
            ("b.json", Some("https://hub.example/owner/name/resolve/main/b.json")),
            // Browsers read a backslash as a slash, and skip line ends: so does the check.
            ("\\\\cdn.example\\x", Some("https://cdn.example/x")),
            ("ht\ntp://hub.example/x", None),
            ("http://hub.example/x", None),
            ("file:///etc/passwd", None),
            ("ftp://hub.example/x", None),
            ("data:text/plain,x", None),
            ("https://", None),
            ("https://hub.example:99999/x", None),
            ("", None),
        ] {
            assert_eq!(redirect(&from, location).ok().as_ref().map(Url::as_str), expected, "{location}");
        }
        let local = parse("http://localhost:80/a").unwrap();
        assert_eq!(redirect(&local, "http://localhost:81/b").unwrap().as_str(), "http://localhost:81/b");
    }

    #[test]
    fn an_origin_has_a_scheme_a_host_and_a_port() {
        let origin = |address: &str| parse(address).map(|url| url.origin()).ok();
        assert_eq!(origin("https://Hub.example/x"), origin("https://hub.example:443"));
        assert_ne!(origin("https://hub.example"), origin("http://hub.example"));
        assert_ne!(origin("https://hub.example"), origin("https://hub.example.org"));
        assert_ne!(origin("http://127.0.0.1:80"), origin("http://127.0.0.1:81"));
        assert_eq!(origin("http://user:pass@hub.example"), origin("http://hub.example:80"));
        assert_eq!(parse("http://[::1]:8000").unwrap().port(), Some(8000));
        for address in ["http://hub.example:99999", "http://hub.example:0", "http://hub.example:x", "hub.example", "/a"]
        {
            assert_eq!(origin(address), None, "{address}");
        }
    }

    #[test]
    fn only_this_machine_is_loopback() {
        for (address, expected) in [
            ("http://127.0.0.1:8000", true),
            ("http://[::1]:1", true),
            ("http://localhost", true),
            // Another notation of 127.0.0.1, which a comparison of texts would miss.
            ("http://2130706433", true),
            ("https://hub.example", false),
            ("https://127.0.0.1.hub.example", false),
            ("http://localhost@hub.example", false),
        ] {
            assert_eq!(is_loopback(&parse(address).unwrap()), expected, "{address}");
        }
    }
}
