//! Who may come in: keys, users, and pages of other origins.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, Version, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::digest::{SHA256, digest};
use subtle::ConstantTimeEq;

use super::page::is_of_page;
use crate::app::App;
use crate::error::{Refused, RefusedKind};
use crate::options::Access;

/// Who sent a request: a user, a key, or an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Client(pub(crate) String);

/// Routes that probes ask without a key.
const OPEN: [&str; 2] = ["/healthz", "/readyz"];

/// Lets a request pass, with its [`Client`], or answers 401 or 403.
pub(super) async fn check(
    State(app): State<Arc<App>>,
    ConnectInfo(address): ConnectInfo<SocketAddr>,
    mut request: Request,
    next: Next,
) -> Response {
    let access = &app.options.access;
    let headers = request.headers();
    if let Err(refused) = check_host(headers, request.version()) {
        return refused.into_response();
    }
    if !is_same_origin(headers, access, app.scheme()) || !is_known_host(headers, &app) {
        let message = "pages of other origins may not use this server; name them with `cors`";
        return Refused::new(RefusedKind::Forbidden, message).into_response();
    }
    let path = request.uri().path();
    let needs_none = OPEN.contains(&path) || is_of_page(path) || request.method() == Method::OPTIONS;
    let is_free = access.is_open() || needs_none;
    let client = match known(headers, access) {
        Some(client) => client,
        None if is_free => Client(address.ip().to_string()),
        None => return refused(access),
    };
    request.extensions_mut().insert(client.clone());
    let mut response = next.run(request).await;
    response.extensions_mut().insert(client); // for the log
    response
}

fn refused(access: &Access) -> Response {
    let message = "expected a key, as `Authorization: Bearer KEY`, or a user with a password";
    let mut response = Refused::new(RefusedKind::Unauthorized, message).into_response();
    let scheme = if access.users.is_empty() { "Bearer" } else { "Basic realm=\"kiln\"" };
    response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static(scheme));
    response
}

/// The client with a right key or password. All keys are compared, in a time that does not depend on them.
fn known(headers: &HeaderMap, access: &Access) -> Option<Client> {
    let text = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, value) = text.split_once(' ')?;
    let value = value.trim();
    if scheme.eq_ignore_ascii_case("bearer") {
        let all = access.keys.iter().enumerate().map(|(i, key)| (is_same(key, value), format!("key {}", i + 1)));
        return first_of(all);
    }
    if scheme.eq_ignore_ascii_case("basic") {
        let pair = String::from_utf8(STANDARD.decode(value).ok()?).ok()?;
        let all = access
            .users
            .iter()
            .map(|(user, password)| (is_same(&format!("{user}:{password}"), &pair), format!("user {user}")));
        return first_of(all);
    }
    None
}

fn first_of(all: impl Iterator<Item = (bool, String)>) -> Option<Client> {
    all.fold(None, |found, (is_same, name)| found.or(is_same.then_some(Client(name))))
}

/// Compares digests, so that neither the length nor the content of a secret changes the time.
fn is_same(secret: &str, text: &str) -> bool {
    let hash = |text: &str| digest(&SHA256, text.as_bytes());
    hash(secret).as_ref().ct_eq(hash(text).as_ref()).into()
}

/// Refuses a request without one `Host` of plain text, as RFC 9112 (3.2) does. Requests of HTTP/1.0 need none; no browser sends them.
fn check_host(headers: &HeaderMap, version: Version) -> Result<(), Refused> {
    let mut all = headers.get_all(header::HOST).iter();
    let is_right = match (all.next(), all.next()) {
        (None, _) => version < Version::HTTP_11,
        (Some(host), None) => host.to_str().is_ok(),
        (Some(_), Some(_)) => false,
    };
    if is_right { Ok(()) } else { Err(Refused::invalid("expected one header `Host` of ASCII characters")) }
}

/// Whether a request does not come from the page of another origin. Browsers say where a page is from; other programs say
/// nothing. `scheme` is the server's own: the pages of one with TLS are encrypted, those of one without TLS may be so by a proxy
/// in front of it.
fn is_same_origin(headers: &HeaderMap, access: &Access, scheme: &str) -> bool {
    let Some(origin) = headers.get(header::ORIGIN) else { return true };
    let Ok(origin) = origin.to_str() else { return false };
    if access.origins.iter().any(|known| known == "*" || known == origin) {
        return true;
    }
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let Some((of_origin, name)) = origin.split_once("://") else { return false };
    let has_scheme = of_origin == "https" || (of_origin == "http" && scheme == "http");
    has_scheme && host == Some(name)
}

/// Whether the address that was asked for is this machine's, where only this machine is served and no key is needed: a page
/// whose name was moved to 127.0.0.1 has another one.
fn is_known_host(headers: &HeaderMap, app: &App) -> bool {
    if !app.options.listen.ip().is_loopback() || !app.options.access.is_open() {
        return true;
    }
    // Without one the request is not a browser's: see `check_host`.
    let Some(host) = headers.get(header::HOST) else { return true };
    let Ok(host) = host.to_str() else { return false };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
    name.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(header::HeaderName, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.clone(), HeaderValue::from_str(value).unwrap())).collect()
    }

    #[test]
    fn keys_and_passwords_are_known() {
        let access = Access {
            keys: vec!["one".into(), "two".into()],
            users: vec![("ann".into(), "secret".into())],
            ..Access::default()
        };
        let client = |value: &str| known(&headers(&[(header::AUTHORIZATION, value)]), &access).map(|client| client.0);
        assert_eq!(client("Bearer two").as_deref(), Some("key 2"));
        let basic = |pair: &str| format!("Basic {}", STANDARD.encode(pair));
        assert_eq!(client(&basic("ann:secret")).as_deref(), Some("user ann"));
        for wrong in ["Bearer three", "Bearer ", "Bearer", "", "Basic ann:secret", "Digest one"] {
            assert_eq!(client(wrong), None, "{wrong}");
        }
        for wrong in ["ann:", "ann:secret2", ":secret", "bob:secret"] {
            assert_eq!(client(&basic(wrong)), None, "{wrong}");
        }
        assert_eq!(known(&HeaderMap::new(), &access), None);
    }

    #[test]
    fn pages_of_other_origins_are_known_by_what_browsers_say() {
        let access = Access { origins: vec!["https://example.org".into()], ..Access::default() };
        let passes = |origin: &str, host: &str, scheme: &str| {
            is_same_origin(&headers(&[(header::ORIGIN, origin), (header::HOST, host)]), &access, scheme)
        };
        assert!(passes("http://127.0.0.1:7860", "127.0.0.1:7860", "http"));
        assert!(passes("https://kiln.example", "kiln.example", "http"), "a proxy encrypts");
        assert!(passes("https://kiln.example", "kiln.example", "https"));
        assert!(!passes("http://kiln.example", "kiln.example", "https"), "a page that is not encrypted");
        assert!(passes("https://example.org", "127.0.0.1:7860", "http"));
        assert!(is_same_origin(&HeaderMap::new(), &access, "http"));
        for origin in
            ["http://evil.example", "null", "http://127.0.0.1:1", "ftp://127.0.0.1:7860", "127.0.0.1:7860", ""]
        {
            assert!(!passes(origin, "127.0.0.1:7860", "http"), "{origin}");
        }
    }

    #[test]
    fn a_request_has_one_host_of_plain_text() {
        let check = |hosts: &[&[u8]], version| {
            let mut headers = HeaderMap::new();
            for host in hosts {
                headers.append(header::HOST, HeaderValue::from_bytes(host).unwrap());
            }
            check_host(&headers, version).is_ok()
        };
        assert!(check(&[b"127.0.0.1"], Version::HTTP_11) && check(&[], Version::HTTP_10));
        let (plain, umlaut): (&[u8], &[u8]) = (b"127.0.0.1", "ö.example".as_bytes());
        for wrong in [&[][..], &[plain, plain], &[b"\xff"], &[umlaut]] {
            assert!(!check(wrong, Version::HTTP_11), "{wrong:?}");
        }
        assert!(!check(&[b"\xff"], Version::HTTP_10));
    }
}
