//! The input images that the settings of an image name, by their checksums.
//!
//! Settings have an input's name without its folder, and the SHA-256 of its bytes. It is looked for next to the image with the
//! settings and in the current folder. Settings come from strangers: only files are used whose bytes they name.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use kiln_files::{folder_of, read_small, sha256};
use kiln_request::settings::is_hash;
use kiln_request::{InputFile, OwnSettings, Request};

use kiln_setup::error::{Error, Result};

/// Endings of image files.
const ENDINGS: [&str; 9] = ["png", "jpg", "jpeg", "webp", "avif", "gif", "bmp", "tif", "tiff"];
/// Files of a folder that are looked at.
const MAX_FILES: usize = 4096;
/// Bytes of one of them.
const MAX_FILE: u64 = 64 << 20;
/// Bytes of all that are read.
const MAX_READ: u64 = 2 << 30;

/// Replaces the names of input, mask and control images in `request` by the files with the checksums in `own`, the settings in
/// the image at `path`. Files that the request has from elsewhere stay. A file with the right name and other bytes is used
/// where no other is found; the image is then compared with the settings.
///
/// # Errors
/// [`Error::Files`] with the option that gives an image which is not found.
pub fn locate_inputs(own: &OwnSettings, path: &Path, request: &mut Request) -> Result<()> {
    let folders = [folder_of(path).to_path_buf(), PathBuf::from(".")];
    let wanted: Vec<(&InputFile, &str)> = own.inputs.iter().filter_map(|input| Some((input, digest(input)?))).collect();
    let mut open: Vec<(&InputFile, &str)> = Vec::new();
    for (input, digest) in wanted {
        let name = Path::new(&input.file.name);
        let Some(place) = place(request, &input.option).filter(|place| **place == name) else { continue };
        let mut left = MAX_READ;
        match folders.iter().map(|folder| folder.join(name)).find(|file| has_digest(file, digest, &mut left)) {
            Some(file) => *place = file,
            None => open.push((input, digest)),
        }
    }
    if open.is_empty() {
        return Ok(());
    }
    let found = by_digest(&folders, open.iter().map(|(_, digest)| *digest).collect());
    for (input, digest) in open {
        let Some(place) = place(request, &input.option) else { continue };
        if let Some(file) = found.get(digest) {
            *place = file.clone();
        } else if *place != Path::new("-") && !place.exists() {
            let (image, digest) = (path.display(), digest.get(..10).unwrap_or(digest));
            let option = input.option.split(['[', '.']).next().unwrap_or_default();
            let looked_for = format!(
                "it and an image with its SHA-256 ({digest}..), which made {image}, in the folder of {image} and in the current \
                 folder; add `{option}` and say where the image is"
            );
            return Err(Error::not_found(place.clone(), looked_for));
        }
    }
    Ok(())
}

/// The whole SHA-256 of an input that is an image.
fn digest(input: &InputFile) -> Option<&str> {
    let digest = input.file.sha256.as_deref().filter(|digest| digest.len() == 64 && is_hash(digest));
    digest.filter(|_| input.option != "hires_upscaler")
}

/// The place of an input in a request: `init`, `mask`, `controls[0].image`, `ip_adapters[0].mask`, `references[0].image`.
fn place<'a>(request: &'a mut Request, option: &str) -> Option<&'a mut PathBuf> {
    let (list, index, field) = match option.split_once('[') {
        None => (option, 0, ""),
        Some((list, rest)) => {
            let (index, field) = rest.split_once("].")?;
            (list, index.parse().ok()?, field)
        }
    };
    match (list, field) {
        ("init", "") => request.init.as_mut(),
        ("mask", "") => request.mask.as_mut(),
        ("controls", "image") => request.controls.get_mut(index)?.image.as_mut(),
        ("references", "image") => request.references.get_mut(index),
        ("ip_adapters", "image") => request.ip_adapters.get_mut(index)?.image.as_mut(),
        ("ip_adapters", "mask") => request.ip_adapters.get_mut(index)?.mask.as_mut(),
        _ => None,
    }
}

/// The image files in `folders`, not below them, that have one of these checksums.
fn by_digest(folders: &[PathBuf], digests: Vec<&str>) -> BTreeMap<String, PathBuf> {
    let (mut found, mut left) = (BTreeMap::new(), MAX_READ);
    for folder in folders {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().take(MAX_FILES);
        let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|path| is_image(path)).collect();
        files.sort();
        for file in files {
            if digests.iter().all(|digest| found.contains_key(*digest)) {
                return found;
            }
            if let Some(digest) = digest_of(&file, &mut left).filter(|digest| digests.contains(&digest.as_str())) {
                found.entry(digest).or_insert(file);
            }
        }
    }
    found
}

fn is_image(path: &Path) -> bool {
    let ending = path.extension().and_then(|ending| ending.to_str());
    ending.is_some_and(|ending| ENDINGS.iter().any(|known| ending.eq_ignore_ascii_case(known)))
}

fn has_digest(path: &Path, digest: &str, left: &mut u64) -> bool {
    digest_of(path, left).is_some_and(|found| found.eq_ignore_ascii_case(digest))
}

/// The SHA-256 of a regular file that is not too large, while `left` bytes may be read.
fn digest_of(path: &Path, left: &mut u64) -> Option<String> {
    let bytes = path.metadata().ok().filter(|file| file.is_file() && file.len() <= MAX_FILE)?.len();
    *left = left.checked_sub(bytes)?;
    Some(sha256(&read_small(path, MAX_FILE).ok()?))
}

#[cfg(test)]
mod tests {
    use kiln_request::NamedFile;

    use super::*;

    fn own(option: &str, name: &str, bytes: &[u8]) -> OwnSettings {
        let file = NamedFile { name: name.into(), sha256: Some(sha256(bytes)) };
        OwnSettings {
            inputs: vec![InputFile { option: option.into(), file, pixels_md5: None }],
            ..OwnSettings::default()
        }
    }

    #[test]
    fn images_are_found_by_their_bytes_next_to_the_image_that_they_made() {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("result.png");
        let request = || Request { init: Some("in.png".into()), ..Request::default() };
        let located = |own: &OwnSettings, mut request: Request| {
            locate_inputs(own, &image, &mut request).map(|()| request.init.unwrap_or_default())
        };
        let settings = own("init", "in.png", b"pixels");
        // Files with other bytes, endings or types are not used.
        std::fs::write(folder.path().join("in.png"), "others").unwrap();
        std::fs::write(folder.path().join("in.txt"), "pixels").unwrap();
        std::fs::create_dir(folder.path().join("below.png")).unwrap();
        std::fs::write(folder.path().join("below.png/in.png"), "pixels").unwrap();
        let message = located(&settings, request()).unwrap_err().to_string();
        let digest = &sha256(b"pixels")[..10];
        assert!(message.starts_with("in.png: not found; ") && message.contains(digest), "{message}");
        assert!(message.ends_with("add `init` and say where the image is"), "{message}");
        // Under another name, and better under its own.
        std::fs::write(folder.path().join("renamed.JPG"), "pixels").unwrap();
        assert_eq!(located(&settings, request()).unwrap(), folder.path().join("renamed.JPG"));
        std::fs::write(folder.path().join("in.png"), "pixels").unwrap();
        assert_eq!(located(&settings, request()).unwrap(), folder.path().join("in.png"));
        // What the user gives stays, and so do settings without a checksum.
        let given = Request { init: Some("mine.png".into()), ..Request::default() };
        assert_eq!(located(&settings, given).unwrap(), Path::new("mine.png"));
        let mut without = settings.clone();
        without.inputs[0].file.sha256 = None;
        assert_eq!(located(&without, request()).unwrap(), Path::new("in.png"));
    }

    #[test]
    fn control_images_have_a_place_in_the_list() {
        let control = "net=a.safetensors,image=edges.png".parse().unwrap();
        let mut request = Request { controls: vec![control], ..Request::default() };
        assert_eq!(place(&mut request, "controls[0].image").unwrap(), Path::new("edges.png"));
        for option in ["controls[1].image", "controls[0].net", "controls[", "controls[x].image", "init", "steps"] {
            assert!(place(&mut request, option).is_none(), "{option}");
        }
        let folder = tempfile::tempdir().unwrap();
        let settings = own("controls[0].image", "edges.png", b"edges");
        let error = locate_inputs(&settings, &folder.path().join("a.png"), &mut request).unwrap_err().to_string();
        assert!(error.contains("add `controls` and say"), "{error}");
        std::fs::write(folder.path().join("e.webp"), "edges").unwrap();
        locate_inputs(&settings, &folder.path().join("a.png"), &mut request).unwrap();
        assert_eq!(request.controls[0].image.as_deref(), Some(&*folder.path().join("e.webp")));
    }

    /// A FIFO with an image's name has no writer.
    #[cfg(unix)]
    #[test]
    fn only_regular_files_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("in.png");
        assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        std::os::unix::fs::symlink("/dev/zero", folder.path().join("zero.png")).unwrap();
        let mut left = MAX_READ;
        assert!(digest_of(&fifo, &mut left).is_none() && left == MAX_READ);
        assert!(by_digest(&[folder.path().to_path_buf()], vec!["00"]).is_empty());
        let large = std::fs::File::create(folder.path().join("large.png")).unwrap();
        large.set_len(MAX_FILE + 1).unwrap();
        assert!(digest_of(&folder.path().join("large.png"), &mut left).is_none());
    }
}
