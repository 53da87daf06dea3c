//! Which files of a repository a model needs: one set of weights for each component, and nothing else.

use std::borrow::Cow;

use serde_json::{Value, json};

/// Which weights to prefer if a repository has several types.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Precision {
    /// 16 bits: half of the bytes.
    #[default]
    Half,
    /// The type in which the model was published, usually 32 bits.
    Full,
}

impl Precision {
    /// Variants of weights, in the order of preference.
    fn variants(self) -> [&'static str; 3] {
        match self {
            Self::Half => [".fp16", "", ".bf16"],
            Self::Full => ["", ".fp16", ".bf16"],
        }
    }
}

/// The file that every model in the layout of diffusers has.
pub(crate) const INDEX: &str = "model_index.json";
const TOKENIZER_FILES: [&str; 6] = [
    "tokenizer.json",
    "vocab.json",
    "merges.txt",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
];
const SCHEDULER: &str = "scheduler/scheduler_config.json";
/// The model's own defaults.
const DEFAULTS: &str = "kiln.json";
/// Names of weights before the variant.
const STEMS: [&str; 2] = ["diffusion_pytorch_model", "model"];
const PICKLES: [&str; 2] = ["diffusion_pytorch_model.bin", "pytorch_model.bin"];
/// Endings of models in one file, in the order of preference.
const SINGLE: [&str; 3] = [".safetensors", ".gguf", ".ckpt"];
/// The most names in a message.
const MAX_NAMES: usize = 8;

/// The files of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) names: Vec<String>,
    /// Whether names of files say that weights have 16 bits.
    pub(crate) is_half: bool,
}

/// A folder with weights in the layout of diffusers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Folder {
    /// Its name, which is also the key in `model_index.json`.
    pub name: Cow<'static, str>,
    /// The folder of the tokenizer that goes with it.
    pub tokenizer: Option<Cow<'static, str>>,
    /// Whether every model of this class has it. Others are taken if `model_index.json` names them.
    pub is_needed: bool,
}

/// The folders that a pipeline of a class needs.
pub type Folders = fn(class: &str) -> Vec<Folder>;

/// The folders of all networks of diffusers and transformers that `index` names and that have weights among `names`.
fn all_folders(names: &[String], index: &Value) -> Vec<Folder> {
    let libraries = [json!("diffusers"), json!("transformers")];
    let parts = index.as_object().into_iter().flatten();
    let used = parts.filter(|(_, part)| part.get(0).is_some_and(|library| libraries.contains(library)));
    let is_network = |name: &String| names.iter().any(|known| *known == format!("{name}/config.json"));
    let tokenizer = |name: &String| {
        let tokenizer = name.replace("text_encoder", "tokenizer");
        (tokenizer != *name && index.get(&tokenizer).is_some()).then(|| tokenizer.into())
    };
    used.map(|(name, _)| name)
        .filter(|name| is_network(name))
        .map(|name| Folder { name: name.clone().into(), tokenizer: tokenizer(name), is_needed: true })
        .collect()
}

/// The files of a model in the layout of diffusers. `index` is its `model_index.json`; `pipelines` are the classes that
/// the caller can run, with the folders of each. The error says what is missing.
pub(crate) fn folder(
    names: &[String],
    index: &Value,
    precision: Precision,
    pipelines: &[&str],
    folders: Option<Folders>,
) -> Result<Choice, String> {
    let class = index["_class_name"].as_str().unwrap_or("nothing");
    if !pipelines.is_empty() && !pipelines.contains(&class) {
        return Err(format!(
            "is a model for diffusers' {}, expected one for {}; name files to download them anyway",
            crate::http::plain(class),
            pipelines.join(" or ")
        ));
    }
    let folders = folders.map_or_else(|| all_folders(names, index), |folders| folders(class));
    let has = |name: &str| names.iter().any(|known| known == name);
    let uses = |part: &str| index[part].get(0).is_some_and(|library| !library.is_null());
    let mut choice = Choice { names: vec![INDEX.into()], is_half: false };
    let mut take = |name: String| choice.names.push(name);
    for name in [SCHEDULER, DEFAULTS].into_iter().filter(|name| has(name)) {
        take(name.into());
    }
    if !has(SCHEDULER) {
        return Err(format!("has no {SCHEDULER}"));
    }
    for folder in folders.iter().filter_map(|folder| folder.tokenizer.as_deref()).filter(|folder| uses(folder)) {
        let there = |name: &str| has(&format!("{folder}/{name}"));
        let is_whole = there("tokenizer.json") || (there("vocab.json") && there("merges.txt"));
        if !is_whole {
            return Err(format!("has no {folder}/vocab.json with {folder}/merges.txt, and no {folder}/tokenizer.json"));
        }
        TOKENIZER_FILES.iter().filter(|name| there(name)).for_each(|name| take(format!("{folder}/{name}")));
    }
    for Folder { name: folder, is_needed, .. } in &folders {
        if !uses(folder) {
            match is_needed {
                true => return Err(format!("has no {folder}")),
                false => continue,
            }
        }
        let config = format!("{folder}/config.json");
        if !has(&config) {
            return Err(format!("has no {config}"));
        }
        choice.names.push(config);
        let (weights, is_half) = weights(names, folder, precision)?;
        choice.names.extend(weights);
        choice.is_half |= is_half;
    }
    Ok(choice)
}

/// The weights in a component's folder, and whether they are a variant with 16 bits.
fn weights(names: &[String], folder: &str, precision: Precision) -> Result<(Vec<String>, bool), String> {
    let has = |name: &str| names.iter().any(|known| known == name);
    for variant in precision.variants() {
        for stem in STEMS {
            let whole = format!("{folder}/{stem}{variant}.safetensors");
            if has(&whole) {
                return Ok((vec![whole], !variant.is_empty()));
            }
            let index = format!("{folder}/{stem}.safetensors.index{variant}.json");
            if has(&index) {
                let mut files = shards(names, folder, stem, variant)?;
                files.insert(0, index);
                return Ok((files, !variant.is_empty()));
            }
        }
    }
    let pickle = PICKLES.iter().map(|name| format!("{folder}/{name}")).find(|name| has(name));
    pickle.map(|name| (vec![name], false)).ok_or_else(|| {
        format!(
            "has no weights in {folder}: neither {0}.safetensors nor {1}.safetensors, nor {2}",
            STEMS[0], STEMS[1], PICKLES[0]
        )
    })
}

/// All files of sharded weights.
fn shards(names: &[String], folder: &str, stem: &str, variant: &str) -> Result<Vec<String>, String> {
    let mut found = Vec::new();
    let mut expected = 0;
    for name in names {
        let Some(middle) = name
            .strip_prefix(&format!("{folder}/{stem}"))
            .and_then(|rest| rest.strip_suffix(".safetensors"))
            // Both orders exist: `model.fp16-00001-of-00002` and `model-00001-of-00002.fp16`.
            .and_then(|rest| rest.strip_prefix(variant).or_else(|| rest.strip_suffix(variant)))
        else {
            continue;
        };
        let Some((number, count)) = middle.strip_prefix('-').and_then(|rest| rest.split_once("-of-")) else { continue };
        if let (Ok(_), Ok(count)) = (number.parse::<usize>(), count.parse::<usize>()) {
            found.push(name.clone());
            expected = count;
        }
    }
    match found.len() {
        0 => Err(format!("has an index of the weights in {folder}, but no weights")),
        have if have != expected => Err(format!("has {have} of the {expected} files of the weights in {folder}")),
        _ => Ok(found),
    }
}

/// The one model file of a repository without an index.
pub(crate) fn single(names: &[String]) -> Result<Choice, String> {
    let of = |end: &str, deep: bool| -> Vec<&String> {
        names.iter().filter(|name| name.ends_with(end) && (deep || !name.contains('/'))).collect()
    };
    for deep in [false, true] {
        for end in SINGLE {
            match of(end, deep)[..] {
                [] => {}
                [name] => return Ok(Choice { names: vec![name.clone()], is_half: false }),
                ref several => {
                    let some: Vec<&str> = several.iter().take(MAX_NAMES).map(|name| name.as_str()).collect();
                    let more = if several.len() > some.len() { ", ..." } else { "" };
                    return Err(format!(
                        "is not a model in the layout of diffusers, and has several model files; name one of them, as in \
                         OWNER/NAME/FILE: {}{more}",
                        some.join(", ")
                    ));
                }
            }
        }
    }
    Err(format!("is not a model: it has neither {INDEX} nor a file that ends in {}", SINGLE.join(", ")))
}

/// The files that `asked` names: a file, or all files of a folder. The error is the name that does not exist, with similar
/// names.
pub(crate) fn named(names: &[String], asked: &[String]) -> Result<Vec<String>, (String, Vec<String>)> {
    let mut found: Vec<String> = Vec::new();
    for name in asked {
        let folder = format!("{}/", name.trim_end_matches('/'));
        let matching = names.iter().filter(|known| *known == name || known.starts_with(&folder));
        let before = found.len();
        found.extend(matching.cloned());
        if found.len() == before {
            return Err((name.clone(), nearest(names, name)));
        }
    }
    found.sort();
    found.dedup();
    Ok(found)
}

/// Names that the user may have meant by `name`: the same file in another folder, else names with the same ending.
fn nearest(names: &[String], name: &str) -> Vec<String> {
    let base = |path: &str| path.rsplit('/').next().unwrap_or(path).to_ascii_lowercase();
    let (wanted, end) = (base(name), name.rsplit('.').next().unwrap_or_default());
    let same: Vec<&String> = names.iter().filter(|known| base(known) == wanted).collect();
    let near = || names.iter().filter(|known| known.ends_with(end)).collect::<Vec<_>>();
    let chosen = [same, near(), names.iter().collect()].into_iter().find(|found| !found.is_empty());
    let mut chosen: Vec<String> = chosen.into_iter().flatten().take(MAX_NAMES).cloned().collect();
    chosen.iter_mut().for_each(|name| *name = crate::http::plain(name));
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    const SD: &[&str] = &["StableDiffusionPipeline", "StableDiffusionXLPipeline"];

    /// The folders of Stable Diffusion and of XL.
    fn folders(_class: &str) -> Vec<Folder> {
        [("unet", None), ("vae", None), ("text_encoder", Some("tokenizer")), ("text_encoder_2", Some("tokenizer_2"))]
            .map(|(name, tokenizer)| Folder {
                name: name.into(),
                tokenizer: tokenizer.map(Cow::from),
                is_needed: tokenizer.is_none(),
            })
            .into()
    }

    fn index() -> Value {
        json!({
            "_class_name": "StableDiffusionPipeline",
            "safety_checker": ["stable_diffusion", "StableDiffusionSafetyChecker"],
            "scheduler": ["diffusers", "PNDMScheduler"],
            "text_encoder": ["transformers", "CLIPTextModel"],
            "text_encoder_2": [null, null],
            "tokenizer": ["transformers", "CLIPTokenizer"],
            "unet": ["diffusers", "UNet2DConditionModel"],
            "vae": ["diffusers", "AutoencoderKL"],
        })
    }

    /// The names of a repository: the files that every model has, and `more`.
    fn repository(more: &[&str]) -> Vec<String> {
        let common = [
            "README.md",
            "model_index.json",
            "scheduler/scheduler_config.json",
            "text_encoder/config.json",
            "text_encoder/model.safetensors",
            "tokenizer/merges.txt",
            "tokenizer/tokenizer_config.json",
            "tokenizer/vocab.json",
            "unet/config.json",
            "vae/config.json",
            "vae/diffusion_pytorch_model.safetensors",
        ];
        common.iter().chain(more).map(|name| name.to_string()).collect()
    }

    /// The chosen files of the folder `unet`.
    fn unet(more: &[&str], precision: Precision) -> Vec<String> {
        let choice = folder(&repository(more), &index(), precision, SD, Some(folders)).unwrap();
        choice.names.into_iter().filter(|name| name.starts_with("unet/")).collect()
    }

    #[test]
    fn a_model_has_one_set_of_weights_and_its_configuration() {
        let names = repository(&[
            ".gitattributes",
            "feature_extractor/preprocessor_config.json",
            "safety_checker/config.json",
            "safety_checker/model.fp16.safetensors",
            "safety_checker/model.safetensors",
            "text_encoder/flax_model.msgpack",
            "text_encoder/model.fp16.safetensors",
            "text_encoder/model.onnx",
            "text_encoder/openvino_model.bin",
            "text_encoder/pytorch_model.bin",
            "text_encoder/pytorch_model.fp16.bin",
            "unet/diffusion_pytorch_model.bin",
            "unet/diffusion_pytorch_model.fp16.bin",
            "unet/diffusion_pytorch_model.fp16.safetensors",
            "unet/diffusion_pytorch_model.non_ema.safetensors",
            "unet/diffusion_pytorch_model.safetensors",
            "v1-5-pruned.ckpt",
            "v1-5-pruned.safetensors",
            "vae/diffusion_pytorch_model.bin",
            "vae/diffusion_pytorch_model.fp16.safetensors",
        ]);
        let chosen = |precision| folder(&names, &index(), precision, SD, Some(folders)).unwrap();
        let half = chosen(Precision::Half);
        let expected = [
            "model_index.json",
            "scheduler/scheduler_config.json",
            "tokenizer/vocab.json",
            "tokenizer/merges.txt",
            "tokenizer/tokenizer_config.json",
            "unet/config.json",
            "unet/diffusion_pytorch_model.fp16.safetensors",
            "vae/config.json",
            "vae/diffusion_pytorch_model.fp16.safetensors",
            "text_encoder/config.json",
            "text_encoder/model.fp16.safetensors",
        ];
        assert_eq!(half.names, expected);
        assert!(half.is_half);
        let full = chosen(Precision::Full);
        assert_eq!(full.names, expected.map(|name| name.replace(".fp16", "")));
        assert!(!full.is_half);
    }

    #[test]
    fn sharded_weights_come_with_their_index() {
        let shards = |variant: &str, at_end: bool| -> Vec<String> {
            let (first, last) = if at_end { ("", variant) } else { (variant, "") };
            let one = |i| format!("unet/diffusion_pytorch_model{first}-0000{i}-of-00002{last}.safetensors");
            let index = format!("unet/diffusion_pytorch_model.safetensors.index{variant}.json");
            vec![index, one(1), one(2)]
        };
        for at_end in [false, true] {
            let [plain, half] = ["", ".fp16"].map(|variant| shards(variant, at_end));
            let all: Vec<&str> = plain.iter().chain(&half).map(String::as_str).collect();
            let config = vec!["unet/config.json".to_string()];
            assert_eq!(unet(&all, Precision::Half), [config.clone(), half.clone()].concat());
            assert_eq!(unet(&all, Precision::Full), [config, plain.clone()].concat());
            let cut = folder(&repository(&all[..2]), &index(), Precision::Full, SD, Some(folders)).unwrap_err();
            assert!(cut.contains("1 of the 2 files"), "{cut}");
        }
    }

    #[test]
    fn pickles_are_the_last_choice() {
        let names = ["unet/diffusion_pytorch_model.bin", "unet/diffusion_pytorch_model.fp16.bin"];
        assert_eq!(unet(&names, Precision::Half), ["unet/config.json", names[0]]);
        let none = folder(&repository(&names[1..]), &index(), Precision::Half, SD, Some(folders)).unwrap_err();
        assert!(none.contains("no weights in unet"), "{none}");
    }

    #[test]
    fn other_pipelines_are_refused() {
        let index = json!({ "_class_name": "FluxPipeline", "vae": ["diffusers", "AutoencoderKL"] });
        let message = folder(&repository(&[]), &index, Precision::Half, SD, Some(folders)).unwrap_err();
        assert!(message.contains("FluxPipeline, expected one for StableDiffusionPipeline or"), "{message}");
        assert!(folder(&repository(&[]), &index, Precision::Half, &[], Some(folders)).unwrap_err().contains("no unet"));
    }

    #[test]
    fn a_repository_without_an_index_has_one_model_file() {
        let names = |names: &[&str]| -> Vec<String> { names.iter().map(|name| name.to_string()).collect() };
        let one = |all: &[&str]| single(&names(all)).map(|choice| choice.names.concat());
        assert_eq!(one(&["README.md", "model.ckpt", "model.safetensors"]).as_deref(), Ok("model.safetensors"));
        assert_eq!(one(&["a.gguf", "vae/b.safetensors"]).as_deref(), Ok("a.gguf"));
        assert_eq!(one(&["deep/b.safetensors"]).as_deref(), Ok("deep/b.safetensors"));
        assert!(one(&["a.safetensors", "b.safetensors"]).unwrap_err().contains("a.safetensors, b.safetensors"));
        assert!(one(&["README.md"]).unwrap_err().contains("is not a model"));
    }

    #[test]
    fn names_are_files_or_folders() {
        let all = repository(&["vae/other.bin"]);
        let found = |asked: &[&str]| named(&all, &asked.iter().map(|name| name.to_string()).collect::<Vec<_>>());
        assert_eq!(found(&["README.md"]).unwrap(), ["README.md"]);
        assert_eq!(found(&["vae", "vae/config.json"]).unwrap().len(), 3);
        let (name, nearest) = found(&["config.json"]).unwrap_err();
        assert_eq!(name, "config.json");
        assert!(nearest.contains(&"unet/config.json".to_string()), "{nearest:?}");
    }
}
