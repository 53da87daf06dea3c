//! Why a graph is no request.

use std::fmt;

use kiln_media::{NodeAt, shortened};

/// A node that a request cannot express, or a value of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The node's id and its class; `None` if the graph as a whole is at fault.
    pub node: Option<(String, String)>,
    /// The input at fault.
    pub input: Option<String>,
    /// The problem in words, with the node.
    pub message: String,
}

/// A result of reading a graph.
pub type Result<T> = std::result::Result<T, Problem>;

impl Problem {
    /// A problem of the graph as a whole.
    pub(super) fn of_graph(message: impl Into<String>) -> Self {
        Self { node: None, input: None, message: message.into() }
    }

    /// A problem of a node.
    pub(super) fn of_node((id, node): NodeAt<'_>, message: impl Into<String>) -> Self {
        let node = Some((id.to_string(), node.class_type.clone()));
        Self { node, input: None, message: message.into() }
    }

    /// A problem of an input of a node.
    pub(super) fn of_input(at: NodeAt<'_>, input: &str, message: impl Into<String>) -> Self {
        Self { input: Some(input.into()), ..Self::of_node(at, message) }
    }

    /// A node that no request expresses in its place.
    pub(super) fn not_understood(at: NodeAt<'_>) -> Self {
        Self::of_node(at, format!("node {} is not supported", named(at)))
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// A node as in messages.
pub(super) fn named((id, node): NodeAt<'_>) -> String {
    format!("{} ({})", shortened(id), shortened(&node.class_type))
}
