//! Files of the server that requests name: control networks, IP-Adapters and upscalers. A name is compared with those that the folder has, and is
//! never part of a path.

use std::path::{Path, PathBuf};

use kiln_request::{file_stem, weight_files};

/// The endings of weights.
const ENDINGS: [&str; 5] = ["safetensors", "pth", "pt", "ckpt", "bin"];
/// The file that makes a folder one network, in the layout of diffusers.
const CONFIG: &str = "config.json";

/// The control networks of a folder by their names, sorted: files, and folders in the layout of diffusers. The folder itself may be
/// one.
pub(crate) fn control_networks(folder: Option<&Path>) -> Vec<(String, PathBuf)> {
    let Some(folder) = folder else { return Vec::new() };
    let network = |file: PathBuf| match file.parent() {
        Some(parent) if parent.join(CONFIG).is_file() => {
            (parent.file_name().unwrap_or_default().to_string_lossy().into_owned(), parent.to_path_buf())
        }
        _ => (file_stem(&file), file),
    };
    listed(weight_files(folder, &ENDINGS).unwrap_or_default().into_iter().map(network))
}

/// The IP-Adapters of a folder by their names, sorted: files, but none of folders with a configuration, which are image encoders.
pub(crate) fn ip_adapters(folder: Option<&Path>) -> Vec<(String, PathBuf)> {
    control_networks(folder).into_iter().filter(|(_, path)| !path.is_dir()).collect()
}

/// The image encoders of a folder by their names, sorted: folders in the layout of transformers, and files.
pub(crate) fn image_encoders(folder: Option<&Path>) -> Vec<(String, PathBuf)> {
    control_networks(folder)
}

/// The upscalers of a folder by their names, sorted.
pub(crate) fn upscalers(folder: Option<&Path>) -> Vec<(String, PathBuf)> {
    let files = folder.and_then(|folder| weight_files(folder, &ENDINGS).ok()).unwrap_or_default();
    listed(files.into_iter().map(|file| (file_stem(&file), file)))
}

fn listed(all: impl Iterator<Item = (String, PathBuf)>) -> Vec<(String, PathBuf)> {
    let mut all: Vec<(String, PathBuf)> = all.collect();
    all.sort();
    all.dedup_by(|one, other| one.0 == other.0);
    all
}

/// The file of a name: as it is listed, with a known ending, or with a hash behind it as in `canny [d14c016b]`. If no name is
/// spelled so, the case is ignored.
pub(crate) fn find<'a>(all: &'a [(String, PathBuf)], name: &str) -> Option<&'a Path> {
    let name = name.split_once(" [").map_or(name, |(name, _)| name).trim();
    let without_ending = name.rsplit_once('.').filter(|(_, ending)| ENDINGS.contains(ending)).map(|(stem, _)| stem);
    let names = [Some(name), without_ending];
    let by = |is_same: &dyn Fn(&str, &str) -> bool| {
        names.into_iter().flatten().find_map(|name| all.iter().find(|(known, _)| is_same(known, name)))
    };
    let found = by(&|known, name| known == name).or_else(|| by(&|known, name| known.eq_ignore_ascii_case(name)));
    found.map(|(_, path)| path.as_path())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_folder_and_no_paths() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(path("depth/fp16")).unwrap();
        for name in [
            "canny.safetensors",
            "Tile.v2.pth",
            "depth/config.json",
            "depth/diffusion_pytorch_model.safetensors",
            "a.txt",
        ] {
            std::fs::write(path(name), "").unwrap();
        }
        let all = control_networks(Some(folder.path()));
        let names: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["Tile.v2", "canny", "depth"]);
        for name in ["canny", "canny.safetensors", "canny [d14c016b]", "Canny"] {
            assert_eq!(find(&all, name), Some(&*path("canny.safetensors")), "{name}");
        }
        assert_eq!(find(&all, "Tile.v2"), Some(&*path("Tile.v2.pth")));
        assert_eq!(find(&all, "depth"), Some(&*path("depth")));
        for wrong in ["../canny", "./canny", "/etc/passwd", "a", "a.txt", "", "depth/config.json"] {
            assert_eq!(find(&all, wrong), None, "{wrong}");
        }
        assert_eq!(control_networks(Some(&path("depth"))), [("depth".to_string(), path("depth"))]);
        let adapters: Vec<String> = ip_adapters(Some(folder.path())).into_iter().map(|(name, _)| name).collect();
        assert_eq!(adapters, ["Tile.v2", "canny"], "a folder with a configuration is an image encoder");
        assert_eq!(find(&image_encoders(Some(folder.path())), "depth"), Some(&*path("depth")));
        assert!(control_networks(None).is_empty() && upscalers(Some(&path("nothing"))).is_empty());
    }
}
