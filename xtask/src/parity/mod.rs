//! Runs the tests that compare Kiln with its references, and writes their results to docs/parity.md.
//!
//! The page contains nothing that changes from run to run: no date, no commit, no order of threads.

mod cases;
mod records;
mod table;

use crate::Result;
use crate::workspace::{cargo, read, root, run};
use cases::Cases;
use records::Record;
use table::Table;

/// The test targets that compare with the references. Every package uses these names.
const TESTS: [&str; 5] = ["parity", "engine", "scheduler", "unet", "vae"];
/// The reference packages whose versions the page lists.
const REFERENCE: [&str; 3] = ["torch", "diffusers", "transformers"];
const REQUIREMENTS: &str = "tests/reference/requirements.txt";
const PAGE: &str = "docs/parity.md";

/// The sections of the page in order, with their introductions.
const PARTS: [(&str, &str, &str); 19] = [
    (
        "text",
        "Text encoders",
        "`hidden`: the embeddings and every layer. `last`: the last layer after its norm. `pooled`: at the end token, \
         projected\nwhere the model has a projection. `f16` and `bf16`: weights and activations in this type. \
         The token\nids of every prompt are equal.",
    ),
    (
        "unet",
        "U-Net",
        "At latents of 8x8, 8x12, 9x13 and 7x5, two images; every block's output. `time_emb`: the blocks' input from\n\
         timestep and sizes.",
    ),
    (
        "control",
        "ControlNet",
        "`down` and `mid`: residuals, in the guess mode with weight 0.7; in the other rows final latents of diffusers' \
         pipelines.\n`part` acts in a part of the steps, `two` are two networks, `inpaint` and `img2img` begin with an image.",
    ),
    (
        "adapters",
        "T2I-Adapter and ControlNet Union",
        "`features`: an adapter's maps, at odd sizes; in the other rows final latents of diffusers' pipelines. `multi`: two \
         adapters,\n`factor`: one for half of the steps, `pool`: a ControlNet of means, `union_two`: a Union network with two images.",
    ),
    (
        "ip_adapter",
        "IP-Adapter",
        "`embedding` and `penultimate`: the image encoder. In the other rows final latents of diffusers' pipelines, `two` with two \
         adapters,\n`part` in a part of the steps, `masks` in parts of the image.",
    ),
    (
        "guidance",
        "Guidance by the network itself",
        "Final latents of diffusers' pipelines (`pag`, `sag`, `freeu`), of its scheduler around its own functions (`apg`, \
         `cfg_schedule`), of the\npackage DeepCache (`deepcache`), and of ComfyUI's formulas (`deep_shrink`).",
    ),
    (
        "image_to_image",
        "Image to image and inpainting",
        "Final latents of diffusers' pipelines from an image of their own size: `whole` with strength 1, `masked` with a mask.",
    ),
    (
        "inpaint",
        "Input images from files",
        "Final latents of diffusers' pipelines after its own resizing: `channels` are models with nine channels.",
    ),
    (
        "rules",
        "AUTOMATIC1111's and ComfyUI's rules for input images",
        "Final latents of a transcription of their formulas (`tests/reference/{webui,comfyui,rules}.py`).",
    ),
    (
        "hires",
        "Hires fix",
        "Final latents of the second pass, of diffusers' pipelines and of transcribed formulas. `lanczos` has a wider bound: a \
         byte of the\nenlarged image may have another level than Pillow's, and the tiny autoencoders' latents follow each level.",
    ),
    ("refiner", "Refiner", "Final latents of diffusers' two pipelines in turn, and of AUTOMATIC1111's rule."),
    (
        "lora",
        "LoRA",
        "Final latents with a LoRA that has biases; single layers of every form have tests with bounds of 1e-5.",
    ),
    ("lengths", "Texts of unequal length", "Final latents where each row of a batch has its own text length."),
    (
        "regions",
        "Areas, masks and blends of prompts",
        "Final latents by ComfyUI's rules (`tests/reference/{comfyui,regions}.py`), each row and area by itself.",
    ),
    ("upscale", "Upscaling networks", "Against spandrel's networks, over whole images and in strips."),
    ("vae", "Autoencoder", "`decode`: the image. `mean` and `log variance`: the output of the encoder."),
    ("taesd", "Tiny autoencoder", "TAESD's image and latents."),
    (
        "program",
        "AUTOMATIC1111 and ComfyUI",
        "Schedules and samplers with `--convention a1111` and `comfyui` with a function instead of the network, on the\n\
         configurations of Stable Diffusion 1.5 and XL: `levels`, the noise levels, each also within 5e-6 of itself, and\n\
         `latents`, the final latents. The references are k-diffusion's and ComfyUI's functions\n\
         (`crates/scheduler/tests/fixtures/programs.py`).",
    ),
    (
        "steps",
        "Single steps",
        "The U-Net's output after guidance, from prompt and latents of the reference: first, middle and last call of a \
         case.",
    ),
];

/// Runs the tests and writes the page.
pub fn write() -> Result {
    let records = measure()?;
    let page = page(&records, &Cases::read(&root().join("tests/fixtures"))?)?;
    std::fs::write(root().join(PAGE), page)?;
    println!("{PAGE}: {} comparisons", records.len());
    Ok(())
}

/// Runs the tests and returns their comparisons.
fn measure() -> Result<Vec<Record>> {
    let folder = tempfile::tempdir()?;
    // The whole workspace, not single packages: the features are then those of the test command, so nothing is rebuilt.
    let mut args = vec!["test", "--workspace", "--release", "--quiet"];
    TESTS.iter().for_each(|test| args.extend(["--test", test]));
    let env = [
        ("KILN_PARITY_RECORDS", folder.path().as_os_str()),
        ("KILN_TEST_DEVICE", "cpu".as_ref()),
        ("KILN_TEST_DTYPE", "f32".as_ref()),
    ];
    run(&cargo(), &args, &env)?;
    records::read_folder(folder.path())
}

fn page(records: &[Record], cases: &Cases) -> Result<String> {
    let versions = versions(&read(&root().join(REQUIREMENTS))?)?;
    let mut page = format!(
        "# Parity\n\n\
         How far Kiln is from {versions},\nmeasured on the CPU in f32 over the tiny random models of \
         `tests/fixtures` (`tests/reference` has the scripts that make\nthem), and over `models/emoji` as a whole. \
         This page is written by\n\n    cargo xtask parity\n\n\
         An error is the largest absolute difference, divided by the standard deviation of the expected values. A cell \
         is the\nlargest error of all comparisons of that kind; a test fails if one passes the bound. Matrix \
         kernels \
         differ between\nCPUs, so another machine may write other last digits.\n"
    );
    for (part, title, about) in PARTS {
        let mut table = Table::new("stage");
        for record in records.iter().filter(|record| record.part == part) {
            table.add(&record.kind(), record);
        }
        page += &format!("\n## {title}\n\n{about}\n\n{table}");
    }

    let (mut samplers, mut requests, mut own) = (Table::new("sampler"), Table::new("request"), Table::new("stage"));
    for record in records.iter().filter(|record| record.part == "pipeline") {
        match cases.labels(record) {
            Some(labels) => {
                samplers.add(&labels.sampler, record);
                labels.requests.iter().for_each(|label| requests.add(label, record));
            }
            None => own.add(&record.stage, record),
        }
    }
    page += &format!(
        "\n## Pipelines\n\nFinal latents after all steps, from prompt and seed; `image`: the decoded image of 0 to \
         255.\n\n{samplers}\nThe same comparisons by option:\n\n{requests}"
    );
    if !own.is_empty() {
        page += &format!("\nKiln with itself:\n\n{own}");
    }
    let known = |part: &str| part == "pipeline" || PARTS.iter().any(|(name, ..)| *name == part);
    let mut others = Table::new("part");
    for record in records.iter().filter(|record| !known(&record.part)) {
        others.add(&format!("{} {}", record.part, record.kind()), record);
    }
    if !others.is_empty() {
        page += &format!("\n## Other parts\n\n{others}");
    }
    page += "\n## Flow models\n\n[parity-flow.md](parity-flow.md) has Stable Diffusion 3 and FLUX.1, from the request to the latents.\n";
    page += "\n## On a GPU\n\n[parity-cuda.md](parity-cuda.md) has the same comparisons on a CUDA GPU.\n";
    page += "\n## Samplers and random numbers\n\n\
             Each sampler is compared with diffusers after every step, with a function instead of the network \
             (`crates/scheduler/tests/scheduler/steps.rs`);\nso are the sums in diffusers' own scheduler tests \
             (`diffusers_sums.rs`), and the output of PyTorch's CPU generator\n(`rng.rs`). These results are \
             printed by\n\n    cargo test --release -p kiln-scheduler --test scheduler steps -- --nocapture\n";
    Ok(page)
}

/// The reference's versions, as a list for a sentence.
fn versions(requirements: &str) -> Result<String> {
    let version = |name: &&str| {
        let pinned = |line: &str| Some(line.trim().strip_prefix(name)?.strip_prefix("==")?.to_string());
        let version = requirements.lines().find_map(pinned);
        version.map(|version| format!("{name} {version}")).ok_or_else(|| format!("{REQUIREMENTS} does not pin {name}"))
    };
    let all: Vec<String> = REFERENCE.iter().map(version).collect::<std::result::Result<_, _>>()?;
    Ok(all.join(", "))
}

#[cfg(test)]
mod tests {
    #[test]
    fn versions_are_pinned() {
        let text = "# made with\nnumpy==1\ntorch==2.11.0\ndiffusers==0.42.1\ntransformers==5.23.0\n";
        assert_eq!(super::versions(text).unwrap(), "torch 2.11.0, diffusers 0.42.1, transformers 5.23.0");
        assert!(super::versions("torch>=2").unwrap_err().to_string().contains("does not pin torch"));
    }
}
