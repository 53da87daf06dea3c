//! ComfyUI's graphs: what their nodes mean, as far as a request says it.
//!
//! A graph is nodes by id, whose inputs are values or links `[id, slot]` to other nodes. [`Plan::of`] follows the links from
//! the nodes that save images back to samplers, texts and models. A sampler's result is one [`Run`]: a request, the names of
//! the files that it needs, and the images that it begins with or is guided by. A request cannot express other nodes; the
//! [`Problem`] names them. `--like` reads the graph of an image, the server those that clients send.

mod assemble;
mod conditioning;
mod edit;
mod graph_image;
mod image_prompt;
mod latent;
mod model;
mod placed_text;
mod problem;
mod prompt_weights;
mod reader;
mod sampling;
mod second_pass;
mod stitch;
pub(crate) mod text;

use kiln_media::{Graph, NodeAt};

pub use graph_image::{Change, Channel, GraphImage, ImageFilter, MaskImage, Pixels};
pub use image_prompt::{AdapterName, GraphPrompt};
pub use latent::{Masking, Start, StartMask};
pub use problem::{Problem, Result};
pub use prompt_weights::PromptWeights;
pub use stitch::{Stitch, StitchSide};

pub use crate::settings::formats::stem;

use crate::options::Request;
use crate::settings::formats::Unknown;
use problem::named;
use reader::{MAX_CHAIN, Reader};
use stitch::MAX_STITCHES;

/// The nodes that save images.
const SAVERS: [&str; 4] = ["SaveImage", "PreviewImage", "SaveAnimatedWEBP", "SaveAnimatedPNG"];

/// A name in a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    /// The name as it is written.
    pub name: String,
    /// The node's id.
    pub node: String,
    /// The node's class.
    pub class: String,
    /// The input.
    pub input: &'static str,
}

/// A field of a request, and the node and the input that it comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// The field's name.
    pub field: &'static str,
    /// The node's id.
    pub node: String,
    /// The input.
    pub input: &'static str,
}

/// The nodes that do the stages of a run, by their ids.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stages {
    /// The model is loaded.
    pub load: String,
    /// Texts are encoded.
    pub texts: Vec<String>,
    /// The image is encoded that the run begins with.
    pub start: Option<String>,
    /// The samplers: one, or those of both passes.
    pub samplers: Vec<String>,
    /// The image is decoded.
    pub decode: String,
}

/// The result of one sampler.
#[derive(Debug)]
pub struct Run {
    /// The request without files.
    pub request: Request,
    /// The model.
    pub model: Named,
    /// The text encoders, if they are in files of their own.
    pub texts: Vec<Named>,
    /// The VAE, if it is in a file of its own.
    pub vae: Option<Named>,
    /// The image that it begins with.
    pub start: Option<Start>,
    /// The images of the request's control networks, in their order.
    pub controls: Vec<GraphImage>,
    /// The reference images, in their order.
    pub references: Vec<GraphImage>,
    /// The image prompts, in their order. The request has none of them.
    pub image_prompts: Vec<GraphPrompt>,
    /// The masks of the request's regions, with the numbers of these.
    pub masks: Vec<(usize, MaskImage)>,
    /// The number of images that share their noise, and the node that says it.
    pub batch: (u64, String),
    /// A sampler or a schedule that Kiln does not have.
    pub unknown: Option<Unknown>,
    /// Differences to ComfyUI, one sentence each.
    pub warnings: Vec<String>,
    /// Where the fields of the request come from.
    pub origins: Vec<Origin>,
    /// The nodes that do its stages.
    pub stages: Stages,
}

/// A node that saves images.
#[derive(Debug)]
pub struct Output {
    /// The node's id.
    pub node: String,
    /// The number of the run that makes its image.
    pub run: usize,
    /// Changes of the image's pixels before it is saved.
    pub changes: Vec<Change>,
    /// The begin of the file's name; `None` for a preview.
    pub prefix: Option<String>,
}

/// The images that a graph asks for, and how they are made.
#[derive(Debug, Default)]
pub struct Plan {
    /// The runs that are needed.
    pub runs: Vec<Run>,
    /// The nodes that save images.
    pub outputs: Vec<Output>,
    /// Why nodes that save images cannot be had, by their ids.
    pub problems: Vec<(String, Problem)>,
}

impl Plan {
    /// The plan of a graph for the nodes `outputs`. Links must not form circles.
    pub fn of(graph: &Graph, outputs: &[&str]) -> Self {
        let reader = Reader { graph, has_images: true };
        let (mut plan, mut known) = (Self::default(), Vec::<(String, usize)>::new());
        for id in outputs {
            let output = reader.node(id).and_then(|at| reader.output(at)).and_then(|found| {
                let run = match known.iter().find(|(sampler, _)| sampler == found.sampler.0) {
                    Some((_, run)) => *run,
                    None => {
                        plan.runs.push(reader.run(found.sampler, found.decoder)?);
                        known.push((found.sampler.0.into(), plan.runs.len() - 1));
                        plan.runs.len() - 1
                    }
                };
                Ok(Output { node: (*id).into(), run, changes: found.changes, prefix: found.prefix })
            });
            match output {
                Ok(output) => plan.outputs.push(output),
                Err(problem) => plan.problems.push(((*id).into(), problem)),
            }
        }
        plan
    }
}

/// The run of the one image that a graph saves, without images that it loads.
///
/// # Errors
/// [`Problem`] with the node or the value that is not supported.
pub(crate) fn run_of_image(graph: &Graph) -> Result<Run> {
    let reader = Reader { graph, has_images: false };
    let savers = graph.iter().filter(|(_, node)| SAVERS.contains(&node.class_type.as_str()));
    let mut images: Vec<NodeAt<'_>> = savers.map(|saver| reader.link(saver, "images")).collect::<Result<_>>()?;
    images.sort_by_key(|(id, _)| *id);
    images.dedup_by_key(|(id, _)| *id);
    let decoder = match images[..] {
        [decoder] => decoder,
        [] => return Err(Problem::of_graph("no node saves an image")),
        _ => return Err(Problem::of_graph("it saves several images, and does not say which one this is")),
    };
    if !decodes(decoder) {
        return Err(Problem::not_understood(decoder));
    }
    reader.run(reader.link(decoder, "samples")?, decoder)
}

/// The image behind an input of a node, if the graph loads it.
///
/// # Errors
/// [`Problem`] with the node that is in between.
pub fn loaded_image(graph: &Graph, id: &str, input: &str) -> Result<GraphImage> {
    let reader = Reader { graph, has_images: true };
    reader.graph_image(reader.node(id)?, input)
}

/// Whether a node decodes an image.
fn decodes((_, node): NodeAt<'_>) -> bool {
    ["VAEDecode", "VAEDecodeTiled"].contains(&node.class_type.as_str())
}

/// The way from a node that saves an image to the sampler that makes it.
struct Way<'a> {
    sampler: NodeAt<'a>,
    decoder: NodeAt<'a>,
    changes: Vec<Change>,
    prefix: Option<String>,
}

impl<'a> Reader<'a> {
    fn output(&self, saver: NodeAt<'a>) -> Result<Way<'a>> {
        let prefix = match saver.1.class_type.as_str() {
            "SaveImage" => Some(self.name(saver, "filename_prefix")?.to_string()),
            "PreviewImage" => None,
            _ => return Err(Problem::not_understood(saver)),
        };
        let (mut changes, mut at, mut stitches) = (Vec::new(), self.link(saver, "images")?, MAX_STITCHES);
        for _ in 0..MAX_CHAIN {
            if decodes(at) {
                changes.reverse();
                return Ok(Way { sampler: self.link(at, "samples")?, decoder: at, changes, prefix });
            }
            let (change, input) = self.change(at, &mut stitches, true)?.ok_or_else(|| Problem::not_understood(at))?;
            changes.extend(change);
            at = self.link(at, input)?;
        }
        Err(Problem::of_node(saver, format!("the nodes after {} do not end", named(saver))))
    }
}
