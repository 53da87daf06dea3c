//! CLIP scores against transformers; tests/reference/compare.py makes the model and the values.

use std::path::Path;

use kiln_compare::ClipScore;
use kiln_testkit::fixtures;

use crate::images::{pattern, values};

#[test]
fn scores_are_those_of_transformers() {
    let clip = ClipScore::open(&fixtures("compare/clip")).unwrap();
    let cases = values("clip");
    assert_eq!(cases.len(), 3);
    for case in cases {
        let found = clip.score(&pattern(case.size[0], case.size[1]), &case.prompt).unwrap();
        println!("{:?}: {found}, expected {}", case.prompt, case.value);
        assert!((found - case.value).abs() < 1e-3);
    }
    // Of a long prompt the first tokens count.
    let long = "apple ".repeat(200);
    assert_eq!(clip.score(&pattern(40, 32), &long).unwrap(), clip.score(&pattern(40, 32), &long[..600]).unwrap());
}

#[test]
fn other_folders_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let message = |folder: &Path| ClipScore::open(folder).err().unwrap().to_string();
    assert!(message(folder.path()).contains("config.json: not found; looked for `clip`"));
    let text = std::fs::read_to_string(fixtures("models/sd1/text_encoder/config.json")).unwrap();
    std::fs::write(folder.path().join("config.json"), text).unwrap();
    assert!(message(folder.path()).contains("has no object `text_config`"));
    std::fs::write(folder.path().join("config.json"), "{").unwrap();
    assert!(message(folder.path()).contains("is not valid"));
}
