//! `GetImageSize`: the sizes of images that a graph loads, in the places of links to them.

use kiln_media::Graph;
use kiln_request::comfy::{Problem, loaded_image};
use serde_json::Value;

use super::pixels::Reader;
use crate::error::Refused;

/// The class.
const CLASS: &str = "GetImageSize";
/// The most nodes of this class: each has its image read.
const MOST: usize = 64;

/// Puts width, height and number of images in the places of links to them. Returns why that was not possible for some: the image
/// is a result, whose size is not known before it is made.
///
/// # Errors
/// [`Refused`] for an image that cannot be read.
pub(super) fn inline_sizes(graph: &mut Graph, reader: &Reader<'_>) -> Result<Vec<Problem>, Refused> {
    let links = graph.nodes.values().flat_map(|node| node.inputs.values().filter_map(link));
    let mut open: Vec<String> = links.filter(|(id, _)| is_size(graph, id)).map(|(id, _)| id).collect();
    open.sort();
    open.dedup();
    if open.len() > MOST {
        return Err(Refused::invalid(format!("{} nodes {CLASS}, expected at most {MOST}", open.len())));
    }
    // The size of an image may depend on that of another one.
    loop {
        let (mut problems, mut left) = (Vec::new(), Vec::new());
        let before = open.len();
        for id in open {
            match loaded_image(graph, &id, "image") {
                Ok(image) => {
                    let (width, height) = reader.size_of(&image)?;
                    replace(graph, &id, [width, height, 1]);
                }
                Err(problem) => {
                    problems.push(problem);
                    left.push(id);
                }
            }
        }
        if left.is_empty() || left.len() == before {
            return Ok(problems);
        }
        open = left;
    }
}

fn is_size(graph: &Graph, id: &str) -> bool {
    graph.node(id).is_some_and(|(_, node)| node.class_type == CLASS)
}

/// The node and the slot of a link.
fn link(value: &Value) -> Option<(String, usize)> {
    let [id, slot] = value.as_array()?.as_slice() else { return None };
    let id = id.as_str().map_or_else(|| id.to_string(), String::from);
    Some((id, usize::try_from(slot.as_u64()?).ok()?))
}

fn replace(graph: &mut Graph, id: &str, values: [usize; 3]) {
    for value in graph.nodes.values_mut().flat_map(|node| node.inputs.values_mut()) {
        let found = link(value).filter(|(of, _)| of == id).and_then(|(_, slot)| values.get(slot));
        if let Some(found) = found {
            *value = (*found).into();
        }
    }
}
