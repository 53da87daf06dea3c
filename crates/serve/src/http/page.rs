//! The page for browsers: files that are part of the program.
//!
//! The page (`crates/serve/page`) is part of the program (`http/page.rs`) and a client of `/v1` as any other: its
//! ranges, defaults and lists come from `/v1/capabilities`. `settings.js` has the values of the form, `queue.js`
//! follows the jobs, `store.js` keeps the images in the browser, `stage.js` shows one large. `serve/gallery` lists the
//! images of the server's folder for all browsers.

use std::collections::HashMap;
use std::io::Write;
use std::sync::LazyLock;

use axum::extract::Path;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use flate2::Compression;
use flate2::write::GzEncoder;
use ring::digest::{SHA256, digest};

use crate::error::Refused;

/// Scripts, styles and images come from this server only. Images that were fetched, and previews, are `blob:` and `data:`.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
const INDEX: &str = "index.html";
/// Where files have their addresses.
const FOLDER: &str = "/page/";
/// Bytes of a hash that make a tag.
const TAG: usize = 16;

/// The paths of the files below `crates/serve/page`, with their bytes.
macro_rules! files {
    ($($path:literal)*) => { [$(($path, include_bytes!(concat!("../../page/", $path)).as_slice())),*] };
}

static FILES: &[(&str, &[u8])] = &files![
    "index.html" "icon.svg"
    "css/base.css" "css/inputs.css" "css/layout.css" "css/results.css"
    "js/api.js" "js/compare.js" "js/complete.js" "js/controls.js" "js/dom.js" "js/events.js" "js/files.js" "js/form.js" "js/gallery.js" "js/grid.js"
    "js/gridsettings.js" "js/history.js" "js/input.js" "js/kept.js" "js/labels.js" "js/link.js" "js/login.js" "js/loras.js" "js/main.js" "js/mask.js"
    "js/messages.js" "js/nets.js" "js/options.js" "js/painter.js" "js/prompt.js" "js/queue.js" "js/queueview.js" "js/references.js"
    "js/servergallery.js" "js/settings.js" "js/shortcuts.js" "js/sizes.js" "js/slot.js" "js/stage.js" "js/store.js" "js/styles.js"
    "js/tiles.js" "js/tokens.js" "js/viewer.js"
];

/// A file with its media type and its tag.
struct PageFile {
    bytes: &'static [u8],
    /// The contents compressed by gzip.
    packed: Vec<u8>,
    media_type: &'static str,
    tag: HeaderValue,
}

static BY_PATH: LazyLock<HashMap<&str, PageFile>> = LazyLock::new(|| {
    let file = |bytes: &'static [u8], path: &str| {
        let hash = kiln_files::hex(&digest(&SHA256, bytes).as_ref()[..TAG]);
        let tag = HeaderValue::from_str(&format!("\"{hash}\"")).unwrap_or(HeaderValue::from_static("\"\""));
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        let packed = encoder.write_all(bytes).and_then(|()| encoder.finish()).unwrap_or_default();
        PageFile { bytes, packed, media_type: media_type(path), tag }
    };
    FILES.iter().map(|(path, bytes)| (*path, file(bytes, path))).collect()
});

fn media_type(path: &str) -> &'static str {
    match path.rsplit('.').next() {
        Some("html") => "text/html; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "application/octet-stream",
    }
}

/// Whether a path is the page's, which asks for a key itself.
pub(super) fn is_of_page(path: &str) -> bool {
    path == "/" || path.starts_with(FOLDER)
}

/// The page.
pub(super) async fn index(headers: HeaderMap) -> Result<Response, Refused> {
    answer(INDEX, &headers)
}

/// A file of the page.
pub(super) async fn file(Path(path): Path<String>, headers: HeaderMap) -> Result<Response, Refused> {
    answer(&path, &headers)
}

/// Browsers ask each time whether a file has changed, since a new program may have another page.
fn answer(path: &str, headers: &HeaderMap) -> Result<Response, Refused> {
    let file = BY_PATH.get(path).ok_or_else(|| Refused::not_found(format!("the page has no file {path}")))?;
    let known = headers.get(header::IF_NONE_MATCH).and_then(|tags| tags.to_str().ok());
    let is_known = known.is_some_and(|tags| tags.split(',').any(|tag| tag.trim() == file.tag));
    let caching = [
        (header::ETAG, file.tag.clone()),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (header::VARY, HeaderValue::from_static("accept-encoding")),
    ];
    if is_known {
        return Ok((StatusCode::NOT_MODIFIED, caching).into_response());
    }
    let of_file = [
        (header::CONTENT_TYPE, file.media_type),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    if takes_gzip(headers) && !file.packed.is_empty() {
        return Ok((caching, of_file, [(header::CONTENT_ENCODING, "gzip")], file.packed.as_slice()).into_response());
    }
    Ok((caching, of_file, file.bytes).into_response())
}

/// Whether a browser unpacks gzip.
fn takes_gzip(headers: &HeaderMap) -> bool {
    let codings = headers.get(header::ACCEPT_ENCODING).and_then(|codings| codings.to_str().ok()).unwrap_or_default();
    codings.split(',').map(str::trim).any(|coding| coding == "gzip")
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::http::lists::shown_options;

    fn text(path: &str) -> &'static str {
        let (_, bytes) = FILES.iter().find(|(known, _)| *known == path).unwrap_or_else(|| panic!("{path} is missing"));
        std::str::from_utf8(bytes).unwrap()
    }

    #[test]
    fn every_file_of_the_folder_is_part_of_the_program() {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("page");
        let mut found = Vec::new();
        let mut folders = vec![folder.clone()];
        while let Some(next) = folders.pop() {
            for entry in std::fs::read_dir(next).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else {
                    found.push(path.strip_prefix(&folder).unwrap().to_string_lossy().replace('\\', "/"));
                }
            }
        }
        let mut known: Vec<&str> = FILES.iter().map(|(path, _)| *path).collect();
        found.sort();
        known.sort_unstable();
        assert_eq!(found, known);
        assert!(known.iter().all(|path| media_type(path) != "application/octet-stream"));
    }

    #[test]
    fn no_file_names_another_server() {
        for (path, bytes) in FILES {
            let text = std::str::from_utf8(bytes).unwrap().replace("xmlns=\"http://www.w3.org/2000/svg\"", "");
            for address in ["http://", "https://", "ws://", "wss://", "\"//", "'//", "url(", "@import"] {
                assert!(!text.contains(address), "{path} has {address}");
            }
        }
    }

    /// The policy lets no script and no style run that is written into the page.
    #[test]
    fn the_index_has_files_only() {
        let index = text(INDEX);
        assert_eq!(index.matches("<script").count(), index.matches("<script type=\"module\" src=\"page/").count());
        assert!(!index.contains("<style") && !index.contains(" style=") && !index.contains(" onclick"));
        let named = index.split(['"']).filter_map(|part| part.strip_prefix("page/"));
        assert!(named.inspect(|path| _ = text(path)).count() >= 6);
    }

    /// A new option gets a name for people in `js/labels.js`.
    #[test]
    fn every_option_of_a_request_has_a_label() {
        let labels = text("js/labels.js");
        let is_there = |name: &str| labels.contains(&format!("\n  {name}: \""));
        let missing: Vec<&str> = shown_options().filter(|name| !is_there(name)).collect();
        assert!(missing.is_empty(), "crates/serve/page/js/labels.js has no label of {missing:?}");
        assert!(!is_there("nothing") && shown_options().count() > 80);
    }

    #[test]
    fn browsers_that_unpack_gzip_get_less() {
        let asks = |codings: &str| {
            let headers = HeaderMap::from_iter([(header::ACCEPT_ENCODING, HeaderValue::from_str(codings).unwrap())]);
            answer("js/main.js", &headers).unwrap().headers().get(header::CONTENT_ENCODING).cloned()
        };
        assert_eq!(asks("gzip, deflate, br").unwrap(), "gzip");
        assert!(asks("br").is_none() && asks("gzip;q=0").is_none() && asks("").is_none());
        let main = &BY_PATH["js/main.js"];
        let mut unpacked = Vec::new();
        std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&*main.packed), &mut unpacked).unwrap();
        assert!(unpacked == main.bytes && 2 * main.packed.len() < main.bytes.len());
    }

    #[test]
    fn modules_import_what_is_there() {
        let mut imports = 0;
        for (path, bytes) in FILES.iter().filter(|(path, _)| path.ends_with(".js")) {
            let module = std::str::from_utf8(bytes).unwrap();
            for line in module.lines().filter(|line| line.starts_with("import ")) {
                let name = line.split('"').nth(1).and_then(|name| name.strip_prefix("./"));
                let name = name.unwrap_or_else(|| panic!("{path}: {line}"));
                text(&format!("js/{name}"));
                imports += 1;
            }
            assert!(module.starts_with("/**"), "{path} does not say what it is for");
        }
        assert!(imports > 40);
    }
}
