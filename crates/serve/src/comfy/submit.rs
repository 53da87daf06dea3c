//! From a graph that a client has sent to jobs.

use std::collections::BTreeMap;
use std::sync::Arc;

use kiln_media::{StillFormat, encode, short};
use kiln_request::NoisePart;
use kiln_request::comfy::{Masking, Named, Output, Pixels, Plan, Run};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

use super::check::{Checked, check};
use super::files::prefix_of;
use super::follow::follow;
use super::image_prompts;
use super::image_sizes::inline_sizes;
use super::lists::Lists;
use super::pixels::{self, Reader};
use super::prompts::{About, OutputOf, Prompt, RunOf, now};
use super::refusal::{NOT_SUPPORTED, NodeErrors, Refusal};
use crate::app::{App, Submission, store};
use crate::error::Refused;
use crate::http::Client;
use crate::image_format::ImageFormat;
use crate::jobs::Entry;
use crate::models::Model;
use crate::scheduler::Previews;

/// The most bytes of a graph with its extra data.
const MOST_BYTES: usize = 2 << 20;
/// The longest id of a prompt or a socket in bytes.
const LONGEST_ID: usize = 128;
/// The most runs of a prompt.
const MOST_RUNS: usize = 32;
/// Extra data that is not repeated, as in that program.
const SECRET: [&str; 2] = ["auth_token_comfy_org", "api_key_comfy_org"];

/// A prompt as a client asks for it.
pub(crate) struct Asked {
    graph: Value,
    extra: Map<String, Value>,
    sid: Option<String>,
    id: Option<String>,
    /// Whether it comes before others.
    front: bool,
    /// The nodes that save images, if not all of them are wanted.
    wanted: Option<Vec<String>>,
}

/// A run that is ready to be submitted.
struct Ready {
    run: Run,
    model: Model,
    files: Option<TempDir>,
}

/// A plan whose runs are ready.
struct Prepared {
    ready: Vec<Ready>,
    outputs: Vec<OutputOf>,
    classes: BTreeMap<String, String>,
    errors: NodeErrors,
    asked: Asked,
    graph: Value,
}

impl Asked {
    /// Reads the fields of a body.
    ///
    /// # Errors
    /// [`Refusal`] for a body without a prompt, and for fields of wrong types.
    pub(crate) fn read(mut fields: Map<String, Value>) -> Result<Self, Refusal> {
        let no_prompt = || Refusal::of_prompt("no_prompt", "No prompt provided", "No prompt provided");
        let graph = fields.remove("prompt").filter(|graph| !graph.is_null()).ok_or_else(no_prompt)?;
        let mut id = |name: &str| match fields.remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(id)) if id.is_empty() => Ok(None),
            Some(Value::String(id)) if id.len() <= LONGEST_ID && !id.chars().any(char::is_control) => Ok(Some(id)),
            Some(other) => {
                let details = format!("{name} is {}, expected a text of at most {LONGEST_ID} bytes", short(&other));
                Err(Refusal::of_prompt("invalid_prompt", "The id cannot be", details))
            }
        };
        let (sid, id) = (id("client_id")?, id("prompt_id")?);
        let mut extra = match fields.remove("extra_data") {
            Some(Value::Object(extra)) => extra,
            _ => Map::new(),
        };
        extra.retain(|name, _| !SECRET.contains(&name.as_str()));
        let number = fields.remove("number").and_then(|number| number.as_f64());
        let front = fields.remove("front") == Some(Value::Bool(true)) || number.is_some_and(|number| number < 0.0);
        let wanted = fields.remove("partial_execution_targets").and_then(|wanted| {
            let names = wanted.as_array()?.iter().filter_map(|id| id.as_str().map(String::from));
            Some(names.collect())
        });
        Ok(Self { graph, extra, sid, id, front, wanted })
    }
}

/// Checks a prompt, and submits its jobs. Returns the answer to the client.
///
/// # Errors
/// [`Refusal`] with the nodes at fault.
pub(crate) async fn submit(app: &Arc<App>, client: &Client, asked: Asked) -> Result<Value, Refusal> {
    let owner = app.owner(client).to_string();
    let (state, of) = (app.clone(), owner.clone());
    // Images of the graph are decoded.
    let prepared = app.intake.run_images(move || Ok(prepare(&state, &of, asked))).await??;
    let Prepared { ready, outputs, classes, errors, asked, graph } = prepared;
    let id = asked.id.unwrap_or_else(|| new_id(app));
    if app.comfy.prompts.has(&owner, &id) {
        return Err(Refusal::of_prompt("invalid_prompt", "There is a prompt of this id", id));
    }
    let priority = i32::from(asked.front).min(app.options.most_priority());
    let (mut entries, mut warnings): (Vec<Arc<Entry>>, Vec<String>) = Default::default();
    let mut runs = Vec::new();
    for (i, Ready { run, model, files }) in ready.into_iter().enumerate() {
        let submission = Submission {
            shown: shown(&run),
            request: run.request,
            files,
            model: Some(model.id),
            client: client.0.clone(),
            priority,
            limit: None,
            previews: if asked.sid.is_some() { Previews::every(1) } else { Previews::None },
            format: ImageFormat::Png,
            warnings: run.warnings.clone(),
            id: None,
        };
        let entry = match app.submit(submission).await {
            Ok(entry) => entry,
            Err(refused) => {
                for entry in &entries {
                    entry.control.cancel();
                    app.jobs.remove(&entry.id);
                }
                let output = outputs.iter().find(|output| output.run == i).map_or("", |output| &output.node);
                let class = |id: &str| classes.get(id).cloned().unwrap_or_default();
                return Err(Refusal::of_request(refused, &run.origins, (output, &class(output)), class));
            }
        };
        warnings.extend(run.warnings);
        runs.push(RunOf { entry: Arc::downgrade(&entry), stages: run.stages });
        entries.push(entry);
    }
    let number = app.comfy.prompts.next_number();
    let number = if asked.front { -number } else { number };
    let mut extra = asked.extra;
    if let Some(sid) = &asked.sid {
        extra.insert("client_id".into(), sid.clone().into());
    }
    let workflow = extra.get("extra_pnginfo").and_then(|info| info["workflow"]["id"].as_str());
    let about = About { number, created: now(), workflow: workflow.map(String::from) };
    extra.insert("create_time".into(), about.created.into());
    let nodes: Vec<&str> = outputs.iter().map(|output| output.node.as_str()).collect();
    let text = json!([number, id, graph, extra, nodes]).to_string();
    let prompt =
        Prompt::new(id.clone(), owner.clone(), asked.sid, about, text, runs, outputs, classes, warnings.clone());
    app.comfy.prompts.add(prompt.clone());
    app.comfy.send_status(&owner);
    app.runtime.spawn(follow(app.clone(), prompt, entries));
    Ok(json!({ "prompt_id": id, "number": number, "node_errors": errors.view(), "warnings": warnings }))
}

/// A random number in the form of a UUID of version 4.
fn new_id(app: &App) -> String {
    let hex = format!("{:0>16}{:0>16}", last16(&app.jobs.new_id()), last16(&app.jobs.new_id()));
    let part = |range: std::ops::Range<usize>| hex.get(range).unwrap_or_default().to_string();
    format!("{}-{}-4{}-a{}-{}", part(0..8), part(8..12), part(13..16), part(17..20), part(20..32))
}

fn last16(id: &str) -> &str {
    id.get(id.len().saturating_sub(16)..).unwrap_or_default()
}

/// The request as it is shown in lists of jobs.
fn shown(run: &Run) -> Map<String, Value> {
    let mut all = match serde_json::to_value(&run.request) {
        Ok(Value::Object(all)) => all,
        _ => Map::new(),
    };
    all.retain(|name, value| {
        !value.is_null()
            && !["init", "mask", "controls", "references", "ip_adapters", "regions"].contains(&name.as_str())
    });
    all
}

/// Checks and plans a graph, and prepares the images that it needs.
fn prepare(app: &App, owner: &str, asked: Asked) -> Result<Prepared, Refusal> {
    let bytes = asked.graph.to_string().len() + Value::from(asked.extra.clone()).to_string().len();
    if bytes > MOST_BYTES {
        let details = format!("{bytes} bytes, expected at most {MOST_BYTES}");
        return Err(Refusal::of_prompt("invalid_prompt", "The prompt is too large", details));
    }
    let lists = Lists { app, owner };
    let graph = asked.graph.clone();
    let Checked { graph: mut nodes, outputs, mut errors } =
        check(asked.graph.clone(), asked.wanted.as_deref(), &lists)?;
    let unknown_sizes = inline_sizes(&mut nodes, &Reader { app, owner })?;
    let class_of = |id: &str| nodes.node(id).map(|(_, node)| node.class_type.clone()).unwrap_or_default();
    let ids: Vec<&str> = outputs.iter().map(String::as_str).collect();
    let Plan { runs, outputs, problems } = Plan::of(&nodes, &ids);
    for (output, problem) in &problems {
        errors.add_problem(problem, (output, &class_of(output)));
        unknown_sizes.iter().for_each(|problem| errors.add_problem(problem, (output, &class_of(output))));
    }
    if outputs.is_empty() {
        return Err(errors.refusal());
    }
    if runs.len() > MOST_RUNS {
        let details = format!("{} samplers, expected at most {MOST_RUNS}", runs.len());
        return Err(Refusal::of_prompt("invalid_prompt", "The prompt has too many samplers", details));
    }
    let mut ready = Vec::new();
    for (i, run) in runs.into_iter().enumerate() {
        let Some(output) = outputs.iter().find(|output| output.run == i) else { continue };
        let name = (output.node.as_str(), class_of(&output.node));
        let origins = run.origins.clone();
        let made = make_ready(app, owner, run, &outputs, i);
        let fail = |problem| match problem {
            Fault::Node(id, input, message) => {
                let mut errors = NodeErrors::default();
                let extra = json!({ "input_name": input });
                errors.add(&id, &class_of(&id), NOT_SUPPORTED, "Kiln cannot do this", &message, extra);
                errors.depends(&id, name.0);
                errors.refusal()
            }
            Fault::Request(refused) => Refusal::of_request(refused, &origins, (name.0, &name.1), class_of),
        };
        ready.push(made.map_err(fail)?);
    }
    let mut files = Vec::new();
    for Output { node, run, changes, prefix } in outputs {
        let prefix = match prefix {
            None => None,
            Some(text) => Some(prefix_of(&text).ok_or_else(|| {
                let mut errors = NodeErrors::default();
                let details = format!("filename_prefix: {:?} is no name in the folder of images", text);
                let extra = json!({ "input_name": "filename_prefix" });
                errors.add(&node, "SaveImage", NOT_SUPPORTED, "The name cannot be", &details, extra);
                errors.depends(&node, &node);
                errors.refusal()
            })?),
        };
        files.push(OutputOf { node, run, changes, prefix });
    }
    let classes = nodes.iter().map(|(id, node)| (id.to_string(), node.class_type.clone())).collect();
    Ok(Prepared { ready, outputs: files, classes, errors, asked, graph })
}

/// Why a run is not ready.
enum Fault {
    /// A node's id, its input, and the problem.
    Node(String, String, String),
    Request(Refused),
}

impl From<Refused> for Fault {
    fn from(refused: Refused) -> Self {
        Self::Request(refused)
    }
}

fn of_node(name: &Named, message: String) -> Fault {
    Fault::Node(name.node.clone(), name.input.into(), message)
}

/// Finds the model of a run, and prepares its images.
fn make_ready(app: &App, owner: &str, mut run: Run, outputs: &[Output], number: usize) -> Result<Ready, Fault> {
    let (images, node) = &run.batch;
    if *images > 1 {
        let most = app.options.limits.images.min(NoisePart::MOST);
        let count = usize::try_from(*images).ok().filter(|count| *count <= most);
        let Some(count) = count else {
            let message = format!("batch_size of node {node} is {images}, expected at most {most}");
            return Err(Fault::Node(node.clone(), "batch_size".into(), message));
        };
        // The images of a batch are drawn as one tensor there.
        (run.request.batch_size, run.request.noise_part) = (Some(count), NoisePart::new(0, count));
    }
    if let Some(unknown) = &run.unknown {
        let field = if unknown.is_schedule { "scheduler" } else { "sampler" };
        let origin = run.origins.iter().find(|origin| origin.field == field);
        let node = origin.map_or_else(|| run.stages.samplers[0].clone(), |origin| origin.node.clone());
        let message = format!("{} is {:?}, which Kiln does not have", unknown.field, unknown.name);
        return Err(Fault::Node(node, unknown.field.into(), message));
    }
    let model = app.models.find(Some(&run.model.name))?.clone();
    for part in run.texts.iter().chain(&run.vae) {
        let other = app.models.find(Some(&part.name))?;
        if other.id != model.id {
            let message = format!(
                "{} of node {} ({}) is {:?}, which is a part of the model {}, and node {} loads {}: Kiln runs a model with its own parts; `--model-alias` gives them names",
                part.input, part.node, part.class, part.name, other.id, run.model.node, model.id
            );
            return Err(of_node(part, message));
        }
    }
    run.warnings.extend(run.request.drop_ignored(&model.folder));
    let reader = Reader { app, owner };
    let (mut files, mut size) = (None, run.request.hires_size.or(run.request.width.zip(run.request.height)));
    if let Some(start) = &run.start {
        let masking = start.mask.as_ref().map(|mask| mask.how);
        if masking.is_some_and(|how| how != Masking::Model) && model.folder.takes_mask() {
            let message = format!(
                "node {} gives the inpainting model {} a mask: only InpaintModelConditioning does so as Kiln does",
                start.node, model.id
            );
            return Err(Fault::Node(start.node.clone(), "mask".into(), message));
        }
        let begin = reader.begin(start, model.folder.size_multiple())?;
        size = Some(begin.image.size());
        run.request.init = Some(store(&mut files, "init", &png(&begin.image)?)?);
        if let Some(mask) = &begin.mask {
            run.request.mask = Some(store(&mut files, "mask", &png(mask)?)?);
        }
    }
    if let (Some(graph_image), Some(_)) = (run.controls.first(), run.request.hires_size) {
        let message = "a control network guides one pass, and this prompt has two".into();
        return Err(of_node(&graph_image.file, message));
    }
    let size = size.unwrap_or_default();
    for (i, (control, graph_image)) in run.request.controls.iter_mut().zip(&run.controls).enumerate() {
        let image = reader.control(graph_image, size)?;
        control.image = Some(store(&mut files, &format!("control-{i}"), &png(&image)?)?);
    }
    for (i, graph_image) in run.references.iter().enumerate() {
        let image = reader.reference(graph_image, model.folder.size_multiple())?;
        run.request.references.push(store(&mut files, &format!("reference-{i}"), &png(&image)?)?);
    }
    for (i, prompt) in run.image_prompts.iter().enumerate() {
        let adapter = image_prompts::adapter(app, prompt, &model.folder);
        let adapter = adapter.map_err(|(input, message)| Fault::Node(prompt.node.clone(), input.into(), message))?;
        if let Some(mut adapter) = adapter {
            let image = reader.graph_image(&prompt.image)?;
            adapter.image = Some(store(&mut files, &format!("prompt-{i}"), &png(&image)?)?);
            run.request.ip_adapters.push(adapter);
        }
    }
    for (i, mask) in &run.masks {
        let stored = store(&mut files, &format!("region-{i}"), &png(&reader.mask(mask)?)?)?;
        if let Some(region) = run.request.regions.get_mut(*i) {
            region.mask = Some(stored);
        }
    }
    for output in outputs.iter().filter(|output| output.run == number) {
        check_size(&reader, output, size)?;
    }
    Ok(Ready { run, model, files })
}

/// Refuses images that are larger than the limits when they are saved.
fn check_size(reader: &Reader<'_>, output: &Output, mut size: (usize, usize)) -> Result<(), Fault> {
    for change in &output.changes {
        size = match &change.how {
            Pixels::Network(name) => {
                let of_network = pixels::network_size(reader.app, name, size);
                of_network.map_err(|refused| of_node(name, refused.message))?.1
            }
            how => reader.size_after(size, how)?,
        };
        let most = reader.app.options.limits.pixels;
        if size.0.saturating_mul(size.1) > most {
            let message = format!("node {} makes {}x{}, expected at most {most} pixels", change.node, size.0, size.1);
            return Err(Fault::Node(change.node.clone(), "image".into(), message));
        }
    }
    Ok(())
}

fn png<const C: usize>(image: &kiln_media::Image8<C>) -> Result<Vec<u8>, Refused> {
    encode(image, StillFormat::Png).map_err(Refused::unread)
}
