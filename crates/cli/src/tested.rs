//! `kiln pull` without a name: the models that Kiln is tested with.

use kiln_engine::{Here, Mode, Result, TestedNeeds, tested_models};
use serde_json::{Value, json};

use crate::output::{print, print_json};
use crate::table::{size, table};

/// Prints the list.
pub fn list(is_json: bool) -> Result<()> {
    let (here, all) = tested_models()?;
    if is_json {
        print_json(&json(&here, &all))
    } else {
        print(&text(&here, &all))
    }
    Ok(())
}

fn text(here: &Here, all: &[TestedNeeds]) -> String {
    let heads = ["", "license", "here", "download", "VRAM", "least VRAM"].map(String::from).to_vec();
    let rows: Vec<Vec<String>> = all.iter().map(|needs| row(needs, here)).collect();
    let lines = table(&[vec![heads], rows].concat(), 3);
    let mut lines = lines.lines();
    let mut text = format!("{}\n", lines.next().unwrap_or_default());
    let mut family = "";
    for (line, needs) in lines.zip(all) {
        if needs.model.family != family {
            family = needs.model.family;
            text += &format!("{family}\n");
        }
        text += &format!("{line}\n");
    }
    text + &notes(here)
}

/// A model in the table.
fn row(needs: &TestedNeeds, here: &Here) -> Vec<String> {
    let model = needs.model;
    let gated = if model.gated { " (gated)" } else { "" };
    vec![
        format!("  hf:{}", model.repository),
        format!("{}{gated}", model.license),
        words(needs.mode, here).into(),
        format!("~{:.1} GB", model.download as f64 / 1e9),
        size(needs.gpu_all as u64),
        size(needs.gpu_least as u64),
    ]
}

/// How a model runs on this machine.
fn words(mode: Option<Mode>, here: &Here) -> &'static str {
    match mode {
        _ if here.memory.is_none() => "unknown",
        None => "too large",
        Some(Mode::Full) => "fits",
        Some(Mode::Medvram) => "fits in turns",
        Some(Mode::Lowvram { .. }) => "streams",
    }
}

fn notes(here: &Here) -> String {
    let device = match (&here.name, here.memory) {
        (Some(name), Some(bytes)) => format!("{name} with {}", size(bytes as u64)),
        (None, Some(bytes)) => format!("the CPU with {}", size(bytes as u64)),
        (_, None) => "a device whose memory is not known".into(),
    };
    format!(
        "\nDownloads are approximate. VRAM is for one image with all networks in memory; with the least, weights are copied in every \
         step.\n\"here\" is {device}: a model fits, fits in turns (one network at a time), streams its weights, or is too large.\n\
         Gated: accept the license on the Hub, and set HF_TOKEN. kiln plan shows every mode of a model.\nA first choice: kiln pull stabilityai/sd-turbo, then kiln txt2img \"a fox\" -m hf:stabilityai/sd-turbo --steps 1 \
         --cfg-scale 1 --scheduler trailing\n"
    )
}

fn json(here: &Here, all: &[TestedNeeds]) -> Value {
    let model = |needs: &TestedNeeds| {
        let model = needs.model;
        json!({
            "family": model.family, "model": format!("hf:{}", model.repository), "download_bytes": model.download,
            "license": model.license, "gated": model.gated, "width": model.side, "height": model.side,
            "gpu_bytes": needs.gpu_all, "gpu_bytes_least": needs.gpu_least, "mode_here": needs.mode.map(Mode::id),
        })
    };
    json!({ "here": here, "models": all.iter().map(model).collect::<Vec<_>>() })
}
