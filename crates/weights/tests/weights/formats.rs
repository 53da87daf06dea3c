//! Files from other programs, and files that are not checkpoints.

use kiln_testkit::{Fixture, fixtures};
use kiln_weights::{Checkpoint, FileFormat, ParamSource};

fn open(name: &str) -> Checkpoint {
    Checkpoint::open(&fixtures("single").join(name)).unwrap_or_else(|error| panic!("{error}"))
}

fn refused(name: &str) -> String {
    let error = Checkpoint::open(&fixtures("single").join(name)).err().unwrap_or_else(|| panic!("{name} was accepted"));
    error.to_string()
}

/// Checks that every tensor of `name` equals the one in the fixture `expected`.
fn check(name: &str, expected: &str) {
    let (file, expected) = (open(name), Fixture::open(&format!("single/{expected}")));
    let keys = file.keys();
    assert!(!keys.is_empty());
    for key in keys {
        let expected = expected.tensor(&key);
        assert_eq!(file.info(&key).unwrap().shape, expected.dims(), "{key}");
        let found = file.data(&key).unwrap().unwrap().to_f32().unwrap();
        assert_eq!(found, expected.flatten_all().unwrap().to_vec1::<f32>().unwrap(), "{key}");
    }
}

#[test]
fn block_layouts_match_the_gguf_library() {
    check("blocks.gguf", "blocks.safetensors");
    assert_eq!(open("blocks.gguf").keys().len(), 10);
}

#[test]
fn scaled_floats_are_multiplied() {
    check("fp8.safetensors", "fp8_expected.safetensors");
}

#[test]
fn old_and_new_pickles_hold_the_same_views() {
    for name in ["views.pt", "views_legacy.pt"] {
        let file = open(name);
        assert_eq!(file.format(), FileFormat::Torch);
        assert_eq!(file.metadata()["word"], "not a tensor");
        let mut keys = file.keys();
        keys.sort();
        assert_eq!(keys, ["cut", "half", "plain", "turned"]);
        let values = |key: &str| file.data(key).unwrap().unwrap().to_f32().unwrap();
        let plain: Vec<f32> = (0..24).map(|i| i as f32).collect();
        assert_eq!((values("plain"), values("half")), (plain.clone(), plain));
        assert_eq!(file.info("turned").unwrap().shape, [6, 4]);
        assert_eq!(values("turned")[..6], [0., 6., 12., 18., 1., 7.]);
        assert_eq!(values("cut"), [8., 9., 10., 14., 15., 16.]);
    }
}

#[test]
fn comfyuis_shapes_are_restored() {
    let file = open("comfy.gguf");
    assert_eq!(file.info("input_blocks.0.0.weight").unwrap().shape, [4, 4, 3, 3]);
    assert_eq!(file.info("input_blocks.1.0.in_layers.2.weight").unwrap().shape, [4, 4, 3, 3]);
    assert_eq!(file.metadata()["general.architecture"], "sd1");
}

#[test]
fn malicious_files_are_refused_by_name() {
    let message = refused("system.ckpt");
    assert!(message.contains("asks for `posix.system`") && message.contains("no code was run"), "{message}");
    let message = refused("bomb.ckpt");
    assert!(message.contains("`archive/data.pkl`, 20000000 bytes from"), "{message}");
}

/// Every possible truncation of a file, and thousands of ways to damage it, result in an error that names the file, or
/// a source whose tensors can be read. There is no panic, and nothing larger than the file is allocated.
#[test]
fn damaged_files_are_refused_or_read() {
    // In memory if the system has such a folder, because the test writes thousands of files.
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    let (mut opened, mut refused) = (0, 0);
    for name in ["views.pt", "views_legacy.pt", "comfy.gguf", "blocks.gguf", "fp8.safetensors", "system.ckpt"] {
        let original = std::fs::read(fixtures("single").join(name)).unwrap();
        let path = folder.path().join(name);
        let mut try_bytes = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            match Checkpoint::open(&path) {
                Err(error) => {
                    assert!(error.to_string().contains(name), "{error}");
                    refused += 1;
                }
                Ok(file) => {
                    opened += 1;
                    for key in file.keys() {
                        let info = file.info(&key).unwrap();
                        if let Ok(Some(data)) = file.data(&key) {
                            assert_eq!(data.info, info);
                            assert!(data.bytes.len() <= 8 * bytes.len(), "{key}: {info:?}");
                            let _ = data.to_f32();
                        }
                    }
                }
            }
        };
        for length in (0..original.len()).step_by(1 + original.len() / 300) {
            try_bytes(&original[..length]);
        }
        for _ in 0..700 {
            let mut bytes = original.clone();
            for _ in 0..=random(4) {
                let at = random(bytes.len().min(1500));
                bytes[at] = match random(4) {
                    0 => 0xff,
                    1 => 0,
                    2 => bytes[random(original.len())],
                    _ => random(256) as u8,
                };
            }
            try_bytes(&bytes);
        }
    }
    println!("{opened} opened, {refused} refused");
    assert!(opened > 500 && refused > 1000, "{opened} opened, {refused} refused");
}
