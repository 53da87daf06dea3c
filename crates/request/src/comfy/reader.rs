//! Links and values of nodes.

use kiln_media::{Graph, NodeAt, short, shortened};
use serde_json::Value;

use super::problem::{Problem, Result, named};
use crate::settings::formats::whole;

/// The maximum length of a chain of nodes; a longer one is not simple, or is a loop.
pub(super) const MAX_CHAIN: usize = 200;

/// Reads a graph.
pub(super) struct Reader<'a> {
    pub(super) graph: &'a Graph,
    /// Whether the images that the graph loads can be had. Those of a graph in an image cannot.
    pub(super) has_images: bool,
}

impl<'a> Reader<'a> {
    pub(super) fn node(&self, id: &str) -> Result<NodeAt<'a>> {
        let missing = || Problem::of_graph(format!("node {} does not exist", shortened(id)));
        self.graph.node(id).ok_or_else(missing)
    }

    pub(super) fn link(&self, at: NodeAt<'a>, name: &str) -> Result<NodeAt<'a>> {
        self.slot(at, name).map(|(node, _)| node)
    }

    /// The node behind an input, and the number of its output.
    pub(super) fn slot(&self, at: NodeAt<'a>, name: &str) -> Result<(NodeAt<'a>, u64)> {
        let slot = at.1.inputs.get(name).and_then(|link| link.get(1)?.as_u64()).unwrap_or_default();
        let none = || Problem::of_input(at, name, format!("{name} of node {} comes from no node", named(at)));
        self.graph.linked(at, name).map(|node| (node, slot)).ok_or_else(none)
    }

    /// A literal value of the node.
    pub(super) fn value(&self, at: NodeAt<'a>, name: &str) -> Result<&'a Value> {
        if let Some(from) = self.graph.linked(at, name) {
            let message = format!("{name} of node {} comes from node {}", named(at), named(from));
            return Err(Problem::of_input(at, name, message));
        }
        let value = at.1.inputs.get(name).filter(|value| !value.is_null());
        value.ok_or_else(|| Problem::of_input(at, name, format!("node {} has no {name}", named(at))))
    }

    pub(super) fn wrong(at: NodeAt<'_>, name: &str, value: &Value, expected: &str) -> Problem {
        Problem::of_input(at, name, format!("{name} of node {} is {}, expected {expected}", named(at), short(value)))
    }

    pub(super) fn name(&self, at: NodeAt<'a>, name: &str) -> Result<&'a str> {
        let value = self.value(at, name)?;
        value.as_str().ok_or_else(|| Self::wrong(at, name, value, "a text"))
    }

    pub(super) fn number(&self, at: NodeAt<'a>, name: &str) -> Result<f64> {
        let value = self.value(at, name)?;
        value.as_f64().ok_or_else(|| Self::wrong(at, name, value, "a number"))
    }

    /// A number, or what the node takes without one.
    pub(super) fn number_or(&self, at: NodeAt<'a>, name: &str, usual: f64) -> Result<f64> {
        if at.1.inputs.contains_key(name) { self.number(at, name) } else { Ok(usual) }
    }

    pub(super) fn whole(&self, at: NodeAt<'a>, name: &str) -> Result<u64> {
        let value = self.value(at, name)?;
        whole(value).ok_or_else(|| Self::wrong(at, name, value, "a whole number"))
    }

    pub(super) fn count(&self, at: NodeAt<'a>, name: &str) -> Result<usize> {
        Ok(usize::try_from(self.whole(at, name)?).unwrap_or(usize::MAX))
    }

    /// A whole number, or what the node takes without one.
    pub(super) fn count_or(&self, at: NodeAt<'a>, name: &str, usual: usize) -> Result<usize> {
        if at.1.inputs.contains_key(name) { self.count(at, name) } else { Ok(usual) }
    }

    /// Refuses a value other than the one that a request can express.
    pub(super) fn only(&self, at: NodeAt<'a>, name: &str, expected: &Value, why: &str) -> Result<()> {
        match self.value(at, name)? {
            found if found == expected => Ok(()),
            found => {
                let message = format!("{name} of node {} is {}, {why}", named(at), short(found));
                Err(Problem::of_input(at, name, message))
            }
        }
    }
}
