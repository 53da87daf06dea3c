//! The page's files, and what only the page needs of the API.

use kiln_media::encode_png;
use kiln_serve::{Access, ServeOptions};

use crate::support::{Served, options, pixels};

#[test]
fn files_have_their_types_and_are_sent_once() {
    let served = Served::start(options());
    for (path, media_type) in [
        ("/", "text/html; charset=utf-8"),
        ("/page/css/base.css", "text/css; charset=utf-8"),
        ("/page/js/main.js", "text/javascript; charset=utf-8"),
        ("/page/icon.svg", "image/svg+xml"),
    ] {
        let answer = served.get(path);
        let headers = answer.response.headers();
        assert_eq!((answer.status, headers["content-type"].to_str().unwrap()), (200, media_type), "{path}");
        let policy = headers["content-security-policy"].to_str().unwrap();
        assert!(policy.starts_with("default-src 'none'; script-src 'self';"), "{policy}");
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(headers["x-content-type-options"], "nosniff");
        assert_eq!(headers["cache-control"], "no-cache");
        let tag = headers["etag"].to_str().unwrap().to_string();
        assert!(!answer.bytes().is_empty());
        let again = |tags: &str| {
            served.agent.get(format!("{}{path}", served.address)).header("if-none-match", tags).call().unwrap()
        };
        let mut unchanged = again(&format!("\"other\", {tag}"));
        assert_eq!((unchanged.status().as_u16(), unchanged.body_mut().read_to_vec().unwrap().len()), (304, 0));
        assert_eq!(again("\"other\"").status(), 200);
    }
    for path in ["/page/", "/page/js/", "/page/js/nothing.js", "/page/../src/lib.rs", "/page/%2e%2e/Cargo.toml"] {
        assert_eq!(served.get(path).status, 404, "{path}");
    }
}

#[test]
fn the_page_comes_without_a_key_and_asks_for_it() {
    let closed = ServeOptions { access: Access { keys: vec!["a key".into()], ..Access::default() }, ..options() };
    let served = Served::start(closed);
    assert_eq!(served.get("/").status, 200);
    assert_eq!(served.get("/page/js/main.js").status, 200);
    for path in ["/v1/capabilities", "/pages", "/page"] {
        assert_eq!(served.get(path).status, 401, "{path}");
    }
    assert_eq!(served.post("/v1/upscale", b"").status, 401);
}

#[test]
fn an_image_is_enlarged_with_its_settings() {
    let mut small = options();
    small.limits.pixels = 64 * 64;
    let served = Served::start(small);
    let file = encode_png(
        (16, 8),
        &[200, 100, 50].repeat(16 * 8),
        &[("parameters", "an apple\nSteps: 4, Sampler: Euler a, CFG scale: 5, Seed: 42, Size: 16x8")],
    )
    .unwrap();
    let answer = served.post("/v1/upscale?scale=2.5&upscaler=nearest", &file);
    assert_eq!((answer.status, &answer.response.headers()["content-type"]), (200, &"image/png".parse().unwrap()));
    let larger = answer.bytes();
    assert_eq!(pixels(&larger), [200, 100, 50].repeat(40 * 20));
    let settings = served.post("/v1/settings", &larger).json();
    assert_eq!((&settings["request"]["seed"], &settings["request"]["prompt"]), (&42.into(), &"an apple".into()));
    assert_eq!(pixels(&served.post("/v1/upscale", &file).bytes()).len(), 3 * 32 * 16);

    let refused = |query: &str, body: &[u8], status, kind| served.post(query, body).refused(status, kind);
    assert!(refused("/v1/upscale?scale=8", &file, 400, "invalid_request").contains("`scale` is 128x64"));
    assert!(refused("/v1/upscale?scale=big", &file, 400, "invalid_request").contains("scale"));
    refused("/v1/upscale?scale=0", &file, 400, "invalid_request");
    assert!(refused("/v1/upscale?upscaler=/etc/passwd", &file, 400, "invalid_request").contains("lanczos"));
    refused("/v1/upscale?size=2", &file, 400, "invalid_request");
    refused("/v1/upscale", b"no image", 422, "unprocessable");
}
