//! Checksums of the files of official models as they were published.
//!
//! They are from the Git LFS pointers of the repositories. A server that sends other files under these names sends another model.

/// A file's name in its repository, and its SHA-256.
type Known = (&'static str, &'static str);

/// An official model: the repositories in which it was published, including copies by the same publisher.
struct Official {
    title: &'static str,
    repositories: &'static [&'static str],
    files: &'static [Known],
}

const OFFICIAL: &[Official] = &[
    Official {
        title: "Stable Diffusion 1.5",
        repositories: &["runwayml/stable-diffusion-v1-5", "stable-diffusion-v1-5/stable-diffusion-v1-5"],
        files: SD15_FILES,
    },
    Official { title: "Stable Diffusion 2.1", repositories: &["stabilityai/stable-diffusion-2-1"], files: SD21_FILES },
    Official {
        title: "Stable Diffusion XL base 1.0",
        repositories: &["stabilityai/stable-diffusion-xl-base-1.0"],
        files: SDXL_FILES,
    },
];

/// The published SHA-256 of a file in an official repository, if it is known.
pub(crate) fn expected(repository: &str, file: &str) -> Option<&'static str> {
    let known = |name: &&str| name.eq_ignore_ascii_case(repository);
    let official = OFFICIAL.iter().find(|official| official.repositories.iter().any(known))?;
    official.files.iter().find(|(name, _)| *name == file).map(|(_, sha256)| *sha256)
}

/// The official model and file with this SHA-256, in whichever repository the content was found: title and name.
pub(crate) fn title(sha256: &str) -> Option<(&'static str, &'static str)> {
    let found = |official: &'static Official| {
        official.files.iter().find(|(_, known)| *known == sha256).map(|(name, _)| (official.title, *name))
    };
    OFFICIAL.iter().find_map(found)
}

const SD15_FILES: &[Known] = &[
    ("text_encoder/model.fp16.safetensors", "77795e2023adcf39bc29a884661950380bd093cf0750a966d473d1718dc9ef4e"),
    ("text_encoder/model.safetensors", "d008943c017f0092921106440254dbbe00b6a285f7883ec8ba160c3faad88334"),
    ("text_encoder/pytorch_model.bin", "770a47a9ffdcfda0b05506a7888ed714d06131d60267e6cf52765d61cf59fd67"),
    ("text_encoder/pytorch_model.fp16.bin", "05eee911f195625deeab86f0b22b115d7d8bc3adbfc1404f03557f7e4e6a8fd7"),
    ("unet/diffusion_pytorch_model.bin", "c7da0e21ba7ea50637bee26e81c220844defdf01aafca02b2c42ecdadb813de4"),
    ("unet/diffusion_pytorch_model.fp16.bin", "30eb3dc47c90e4a55476332b284b2331774c530edbbb83b70cacdd9e7b91af92"),
    (
        "unet/diffusion_pytorch_model.fp16.safetensors",
        "c83908253f9a64d08c25fc90874c9c8aef9a329ce1ca5fb909d73b0c83d1ea21",
    ),
    ("unet/diffusion_pytorch_model.non_ema.bin", "42bc8b8f3af32866db3c7bb5bcf591ab04438296c2712246d7a640bde5a5ddc1"),
    (
        "unet/diffusion_pytorch_model.non_ema.safetensors",
        "cd1b6db09a81cb1d39fbd245a89c1e3db9da9fe8eba5e8f9098ea6c4994221d3",
    ),
    ("unet/diffusion_pytorch_model.safetensors", "19da7aaa4b880e59d56843f1fcb4dd9b599c28a1d9d9af7c1143057c8ffae9f1"),
    ("v1-5-pruned-emaonly.ckpt", "cc6cb27103417325ff94f52b7a5d2dde45a7515b25c255d8e396c90014281516"),
    ("v1-5-pruned-emaonly.safetensors", "6ce0161689b3853acaa03779ec93eafe75a02f4ced659bee03f50797806fa2fa"),
    ("v1-5-pruned.ckpt", "e1441589a6f3c5a53f5f54d0975a18a7feb7cdf0b0dee276dfc3331ae376a053"),
    ("v1-5-pruned.safetensors", "1a189f0be69d6106a48548e7626207dddd7042a418dbf372cefd05e0cdba61b6"),
    ("vae/diffusion_pytorch_model.bin", "1b134cded8eb78b184aefb8805b6b572f36fa77b255c483665dda931fa0130c5"),
    ("vae/diffusion_pytorch_model.fp16.bin", "b7643b3e40b9f128eda5fe174fea73c3ef3903562651fb344a79439709c2e503"),
    (
        "vae/diffusion_pytorch_model.fp16.safetensors",
        "4fbcf0ebe55a0984f5a5e00d8c4521d52359af7229bb4d81890039d2aa16dd7c",
    ),
    ("vae/diffusion_pytorch_model.safetensors", "a2b5134f4dbc140d9c11f11cba3233099e00af40f262f136c691fb7d38d2194c"),
];
const SD21_FILES: &[Known] = &[
    ("text_encoder/model.safetensors", "cce6febb0b6d876ee5eb24af35e27e764eb4f9b1d0b7c026c8c3333d4cfc916c"),
    ("text_encoder/pytorch_model.bin", "e9c787e9388134c1a25dc69934a51a32a2683b38b8a9b017e1f3a692b8ed6b98"),
    ("unet/diffusion_pytorch_model.bin", "33898360ff5abe5e3c51667a5a7d2fd41238de486cd797d2f70fbe45e1a1c310"),
    ("unet/diffusion_pytorch_model.safetensors", "1238522277c48923ff2751e238f2742c562e45643f3d50cc93d163cb30638b0c"),
    ("v2-1_768-ema-pruned.ckpt", "ad2a33c361c1f593c4a1fb32ea81afce2b5bb7d1983c6b94793a26a3b54b08a0"),
    ("v2-1_768-ema-pruned.safetensors", "dcd690123cfc64383981a31d955694f6acf2072a80537fdb612c8e58ec87a8ac"),
    ("v2-1_768-nonema-pruned.ckpt", "4711ff4dd270067f71d5ea0725e83e4dc7c41f586a588531ee1c3bd549e9119d"),
    ("v2-1_768-nonema-pruned.safetensors", "ff144a49841cf383adbc68841272ce639e1032b0a1f0f6586347feb953c244f4"),
    ("vae/diffusion_pytorch_model.bin", "a4302e1efa25f3a47ceb7536bc335715ad9d1f203e90c2d25507600d74006e89"),
    ("vae/diffusion_pytorch_model.safetensors", "a1d993488569e928462932c8c38a0760b874d166399b14414135bd9c42df5815"),
];
const SDXL_FILES: &[Known] = &[
    ("sd_xl_base_1.0.safetensors", "31e35c80fc4829d14f90153f4c74cd59c90b779f6afe05a74cd6120b893f7e5b"),
    ("sd_xl_base_1.0_0.9vae.safetensors", "e6bb9ea85bbf7bf6478a7c6d18b71246f22e95d41bcdd80ed40aa212c33cfeff"),
    ("text_encoder/model.fp16.safetensors", "660c6f5b1abae9dc498ac2d21e1347d2abdb0cf6c0c0c8576cd796491d9a6cdd"),
    ("text_encoder/model.safetensors", "5c3d6454dd2d23414b56aa1b5858a72487a656937847b6fea8d0606d7a42cdbc"),
    ("text_encoder_2/model.fp16.safetensors", "ec310df2af79c318e24d20511b601a591ca8cd4f1fce1d8dff822a356bcdb1f4"),
    ("text_encoder_2/model.safetensors", "3a6032f63d37ae02bbc74ccd6a27440578cd71701f96532229d0154f55a8d3ff"),
    (
        "unet/diffusion_pytorch_model.fp16.safetensors",
        "83e012a805b84c7ca28e5646747c90a243c65c8ba4f070e2d7ddc9d74661e139",
    ),
    ("unet/diffusion_pytorch_model.safetensors", "357650fbfb3c7b4d94c1f5fd7664da819ad1ff5a839430484b4ec422d03f710a"),
    (
        "vae/diffusion_pytorch_model.fp16.safetensors",
        "bcb60880a46b63dea58e9bc591abe15f8350bde47b405f9c38f4be70c6161e68",
    ),
    ("vae/diffusion_pytorch_model.safetensors", "1598f3d24932bcfe6634e8b618ea1e30ab1d57f5aad13a6d2de446d2199f2341"),
    (
        "vae_1_0/diffusion_pytorch_model.fp16.safetensors",
        "eb6516ab7e1104d5d1a174a4d65c57835ae38061531d0a2192103aecfb790cc1",
    ),
    ("vae_1_0/diffusion_pytorch_model.safetensors", "27ed3b02e09638568e99d4398c67bc654dde04e6c0db61fb2d21dba630e7058a"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::Checksum;
    use crate::reference::Reference;

    #[test]
    fn the_table_is_of_checksums_that_differ_and_names_that_can_be() {
        let mut all: Vec<&str> = Vec::new();
        for official in OFFICIAL {
            assert!(official.repositories.iter().all(|name| name.parse::<Reference>().is_ok()), "{}", official.title);
            for (name, sha256) in official.files {
                assert!(matches!(Checksum::parse(sha256), Some(Checksum::Sha256(_))), "{name}");
                assert!(crate::reference::path_problem(name).is_none(), "{name}");
                all.push(sha256);
            }
        }
        let count = all.len();
        all.sort();
        all.dedup();
        assert_eq!((all.len(), count), (40, 40));
    }

    #[test]
    fn official_files_are_known_by_name_and_by_content() {
        let sha256 = expected("stabilityai/stable-diffusion-xl-base-1.0", "vae/diffusion_pytorch_model.safetensors");
        assert_eq!(sha256.map(|sha256| &sha256[..8]), Some("1598f3d2"));
        assert_eq!(
            title(sha256.unwrap()),
            Some(("Stable Diffusion XL base 1.0", "vae/diffusion_pytorch_model.safetensors"))
        );
        assert_eq!(expected("stabilityai/stable-diffusion-xl-base-1.0", "README.md"), None);
        assert_eq!(expected("somebody/else", "vae/diffusion_pytorch_model.safetensors"), None);
    }

    /// The table is what the reference data says.
    #[test]
    #[ignore = "needs ../shared/data"]
    fn shared_data_has_the_hashes_of_the_table() {
        let path = kiln_testkit::shared_data("official_checkpoint_hashes.json");
        let rows: Vec<serde_json::Value> = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let mut seen = 0;
        for row in &rows {
            let [model, file, sha256] = ["model", "path", "sha256"].map(|key| row[key].as_str().unwrap());
            if let Some(known) = expected(model, file) {
                assert_eq!(known, sha256, "{model} {file}");
                seen += 1;
            }
        }
        assert_eq!(seen, OFFICIAL.iter().map(|official| official.files.len()).sum::<usize>());
    }
}
