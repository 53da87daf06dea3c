//! The gallery of the server's folder, and the tokens of a prompt.

use std::io::{Cursor, Read};
use std::path::Path;

use kiln_media::{DecodeOptions, decode, encode_png};
use kiln_serve::{Access, GalleryAccess, ServeOptions};
use serde_json::{Value, json};
use zip::ZipArchive;

use crate::jobs::job;
use crate::support::{Served, options};

/// A server whose images are in this folder.
fn served(folder: &Path, gallery: GalleryAccess) -> Served {
    Served::start(ServeOptions { output: Some(folder.into()), gallery, ..options() })
}

fn names(list: &Value) -> Vec<&str> {
    list["images"].as_array().unwrap().iter().map(|image| image["name"].as_str().unwrap()).collect()
}

#[test]
fn images_of_all_jobs_are_listed_searched_and_sent() {
    let folder = tempfile::tempdir().unwrap();
    let served = served(folder.path(), GalleryAccess::Full);
    assert_eq!(served.get("/v1/capabilities").json()["gallery"], "full");
    let empty = served.get("/v1/gallery").json();
    assert_eq!((empty["total"].as_u64(), &empty["next"]), (Some(0), &Value::Null));
    let ids = [job("a pear", 1, 1), job("a fig", 1, 2)].map(|job| {
        let id = served.submit(&job);
        assert_eq!(served.finished(&id)["status"], "done");
        id
    });
    let list = served.get("/v1/gallery").json();
    assert_eq!(names(&list), [format!("{}-0.png", ids[1]), format!("{}-0.png", ids[0])], "the newest first");
    let newest = &list["images"][0];
    assert_eq!((&newest["prompt"], &newest["seed"], &newest["model"]), (&json!("a fig"), &json!(2), &json!("sd1")));
    let file = served.get(newest["url"].as_str().unwrap());
    assert_eq!(file.response.headers()["content-type"], "image/png");
    let bytes = file.bytes();
    assert_eq!(bytes, served.get(&format!("/v1/images/{}-0", ids[1])).bytes());
    assert_eq!(served.post("/v1/settings", &bytes).json()["request"]["prompt"], "a fig");
    let small = served.get(&format!("{}?side=16", newest["url"].as_str().unwrap()));
    assert_eq!(small.response.headers()["content-type"], "image/jpeg");
    let small = decode(&small.bytes(), "a thumbnail", &DecodeOptions::default()).unwrap();
    assert_eq!(small.width().max(small.height()), 16);

    let part = served.get("/v1/gallery?limit=1").json();
    let next = part["next"].as_str().unwrap();
    let rest = served.get(&format!("/v1/gallery?limit=1&before={next}")).json();
    assert_eq!((names(&rest), &rest["next"]), (vec![&*format!("{}-0.png", ids[0])], &Value::Null));
    assert_eq!(names(&served.get("/v1/gallery?search=PEAR").json()), [format!("{}-0.png", ids[0])]);
    assert!(names(&served.get("/v1/gallery?search=plum").json()).is_empty());
    for wrong in ["limit=0", "limit=201", "limit=x", "before=x", "folder=/"] {
        served.get(&format!("/v1/gallery?{wrong}")).refused(400, "invalid_request");
    }
    served.get(&format!("{}?side=1", newest["url"].as_str().unwrap())).refused(400, "invalid_request");
}

#[test]
fn selected_images_are_one_zip_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = |side: usize| encode_png((side, side), &vec![7; 3 * side * side], &[]).unwrap();
    let files = [("a-0.png", file(3)), ("b-0.png", file(200)), ("c-0.png", file(5))];
    for (name, bytes) in &files {
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    let served = served(folder.path(), GalleryAccess::Read);
    let zip = |names: &[&str]| served.post("/v1/gallery/zip", json!({ "names": names }).to_string().as_bytes());
    let answer = zip(&["b-0.png", "a-0.png", "b-0.png"]);
    assert_eq!(answer.response.headers()["content-type"], "application/zip");
    let mut archive = ZipArchive::new(Cursor::new(answer.bytes())).unwrap();
    assert_eq!(archive.len(), 2, "a name that is given twice is one file");
    for (name, bytes) in &files[..2] {
        let mut found = Vec::new();
        archive.by_name(name).unwrap().read_to_end(&mut found).unwrap();
        assert_eq!(&found, bytes, "{name}");
    }
    zip(&["a-0.png", "d-0.png"]).refused(404, "not_found");
    zip(&["../a-0.png"]).refused(404, "not_found");
    zip(&[]).refused(400, "invalid_request");
    zip(&vec!["a-0.png"; 1001]).refused(400, "invalid_request");
    served.post("/v1/gallery/zip", b"{}").refused(400, "invalid_request");
}

#[test]
fn names_of_the_gallery_reach_no_other_file() {
    let outside = tempfile::tempdir().unwrap();
    let folder = outside.path().join("images");
    std::fs::create_dir(&folder).unwrap();
    let image = encode_png((1, 1), &[0; 3], &[]).unwrap();
    std::fs::write(outside.path().join("secret-0.png"), &image).unwrap();
    std::fs::write(folder.join("a-0.png"), &image).unwrap();
    std::fs::write(folder.join("notes.txt"), "notes").unwrap();
    #[cfg(unix)]
    std::os::unix::fs::symlink(outside.path().join("secret-0.png"), folder.join("link-0.png")).unwrap();
    let served = served(&folder, GalleryAccess::Full);
    assert_eq!(names(&served.get("/v1/gallery").json()), ["a-0.png"]);
    let wrong = [
        "link-0.png",
        "notes.txt",
        "..%2fsecret-0.png",
        "%2e%2e%2fsecret-0.png",
        "%2fetc%2fpasswd",
        "a-0.png%00",
        "b-0.png",
    ];
    for name in wrong {
        served.get(&format!("/v1/gallery/{name}")).refused(404, "not_found");
        served.delete(&format!("/v1/gallery/{name}")).refused(404, "not_found");
    }
    assert!(outside.path().join("secret-0.png").is_file() && folder.join("notes.txt").is_file());
    assert_eq!(served.delete("/v1/gallery/a-0.png").status, 200);
    assert!(!folder.join("a-0.png").exists());
    served.get("/v1/gallery/a-0.png").refused(404, "not_found");
}

#[test]
fn the_gallery_is_for_clients_who_may_see_all_images() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a-0.png"), encode_png((1, 1), &[0; 3], &[]).unwrap()).unwrap();
    let routes = |served: &Served, status, kind: &str| {
        served.get("/v1/gallery").refused(status, kind);
        served.get("/v1/gallery/a-0.png").refused(status, kind);
        served.delete("/v1/gallery/a-0.png").refused(status, kind);
        served.post("/v1/gallery/zip", br#"{"names": ["a-0.png"]}"#).refused(status, kind);
    };
    let plain = Served::start(options());
    routes(&plain, 404, "not_found");
    assert_eq!(plain.get("/v1/capabilities").json()["gallery"], "off");
    routes(&served(folder.path(), GalleryAccess::Off), 403, "forbidden");
    let read = served(folder.path(), GalleryAccess::Read);
    assert_eq!(names(&read.get("/v1/gallery").json()), ["a-0.png"]);
    read.delete("/v1/gallery/a-0.png").refused(403, "forbidden");
    let users = vec![("ann".into(), "one".into()), ("bob".into(), "two".into())];
    let access = Access { users, ..Access::default() };
    let several = Served::start(ServeOptions { output: Some(folder.path().into()), access, ..options() });
    several.get("/v1/gallery").refused(401, "unauthorized");
    let basic =
        several.agent.get(format!("{}/v1/gallery", several.address)).header("authorization", "Basic YW5uOm9uZQ==");
    assert_eq!(basic.call().unwrap().status(), 403, "images of all users are in one folder");
    assert!(folder.path().join("a-0.png").is_file());
}

#[test]
fn tokens_are_counted_as_the_model_cuts_them() {
    let served = Served::start(options());
    let count = |body: Value| served.post("/v1/tokens", body.to_string().as_bytes());
    let counts = count(json!({ "prompt": "a b, c", "negative_prompt": "" })).json();
    assert!(counts["prompt"]["tokens"].as_u64().unwrap() >= 4, "{counts}");
    assert_eq!(counts["negative_prompt"]["tokens"], 0);
    assert_eq!(counts["prompt"]["room"], counts["negative_prompt"]["room"]);
    let long = count(json!({ "prompt": "a, ".repeat(100), "model": "sd1" })).json();
    assert!(long["prompt"]["tokens"].as_u64().unwrap() > counts["prompt"]["room"].as_u64().unwrap(), "{long}");
    assert_eq!(long["prompt"]["room"].as_u64().unwrap() % counts["prompt"]["room"].as_u64().unwrap(), 0);
    let tagged = count(json!({ "prompt": "a b, c <lora:ink:0.8> # a comment" })).json();
    assert_eq!(tagged["prompt"]["tokens"], counts["prompt"]["tokens"], "tags and comments are no tokens");
    count(json!({ "prompt": "a", "model": "nothing" })).refused(404, "not_found");
    count(json!({ "text": "a" })).refused(400, "invalid_request");
    count(json!({ "prompt": "a".repeat(40_000) })).refused(413, "too_large");
}
