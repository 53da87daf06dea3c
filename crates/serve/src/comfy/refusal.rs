//! Refusals in the form of that program: one error of the prompt, and errors by nodes.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use kiln_request::comfy::{Origin, Problem};
use serde_json::{Map, Value, json};

use crate::error::{Refused, RefusedKind};

/// The kind of an error of a node that Kiln does not express, or of a value that it refuses: ComfyUI's page shows the details of this
/// kind.
pub(super) const NOT_SUPPORTED: &str = "custom_validation_failed";

/// Errors by the ids of nodes.
#[derive(Debug, Default)]
pub(crate) struct NodeErrors(Map<String, Value>);

impl NodeErrors {
    /// Adds an error of a node.
    pub(crate) fn add(&mut self, id: &str, class: &str, kind: &str, message: &str, details: &str, extra: Value) {
        let extra = if extra.is_null() { json!({}) } else { extra };
        let error = json!({ "type": kind, "message": message, "details": details, "extra_info": extra });
        let new = || json!({ "errors": [], "dependent_outputs": [], "class_type": class });
        let node = self.0.entry(id).or_insert_with(new);
        if let Some(errors) = node.get_mut("errors").and_then(Value::as_array_mut) {
            errors.push(error);
        }
    }

    /// Adds a problem of a graph that the node `output` depends on.
    pub(crate) fn add_problem(&mut self, problem: &Problem, output: (&str, &str)) {
        let (id, class) = match &problem.node {
            Some((id, class)) => (id.as_str(), class.as_str()),
            None => output,
        };
        let extra = problem.input.as_ref().map_or(Value::Null, |input| json!({ "input_name": input }));
        self.add(id, class, NOT_SUPPORTED, "Kiln cannot do this", &problem.message, extra);
        self.depends(id, output.0);
    }

    /// Says that a node that saves images depends on a node, if that has errors.
    pub(crate) fn depends(&mut self, id: &str, output: &str) {
        let outputs = self.0.get_mut(id).and_then(|node| node.get_mut("dependent_outputs")?.as_array_mut());
        if let Some(outputs) = outputs.filter(|outputs| !outputs.iter().any(|known| known == output)) {
            outputs.push(output.into());
        }
    }

    pub(crate) fn has(&self, id: &str) -> bool {
        self.0.contains_key(id)
    }

    /// The errors as they are answered.
    pub(crate) fn view(self) -> Value {
        self.0.into()
    }

    /// The refusal of a graph without any node that can be run.
    pub(crate) fn refusal(self) -> Refusal {
        let all = self.0.values().flat_map(|node| node["errors"].as_array().into_iter().flatten());
        let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
        let lines: Vec<String> =
            all.map(|error| format!("{}: {}", text(&error["message"]), text(&error["details"]))).collect();
        let details = lines.join("\n");
        self.refusal_with("prompt_outputs_failed_validation", "Prompt outputs failed validation", &details)
    }

    pub(crate) fn refusal_with(self, kind: &str, message: &str, details: &str) -> Refusal {
        Refusal { errors: self, ..Refusal::of_prompt(kind, message, details) }
    }
}

/// Why a prompt is not taken.
#[derive(Debug)]
pub(crate) struct Refusal {
    status: StatusCode,
    headers: axum::http::HeaderMap,
    kind: String,
    message: String,
    details: String,
    errors: NodeErrors,
}

impl Refusal {
    /// A refusal of the prompt as a whole.
    pub(crate) fn of_prompt(kind: &str, message: impl Into<String>, details: impl Into<String>) -> Self {
        Self {
            status: StatusCode::BAD_REQUEST,
            headers: axum::http::HeaderMap::new(),
            kind: kind.into(),
            message: message.into(),
            details: details.into(),
            errors: NodeErrors::default(),
        }
    }

    /// A refusal of a request that was made of a graph: the field at fault leads to its node. `output` is the id and the class
    /// of the node that saves the image.
    pub(crate) fn of_request(
        refused: Refused,
        origins: &[Origin],
        output: (&str, &str),
        class: impl Fn(&str) -> String,
    ) -> Self {
        let of_node = matches!(refused.kind, RefusedKind::Invalid | RefusedKind::NotFound | RefusedKind::Unprocessable);
        if !of_node {
            return refused.into();
        }
        let origin = origins.iter().rev().find(|origin| Some(origin.field) == refused.param.as_deref());
        let (id, extra) = match origin {
            Some(origin) => (origin.node.as_str(), json!({ "input_name": origin.input })),
            None => (output.0, Value::Null),
        };
        let class = if id == output.0 { output.1.to_string() } else { class(id) };
        let mut errors = NodeErrors::default();
        errors.add(id, &class, NOT_SUPPORTED, "Kiln cannot do this", &refused.message, extra);
        errors.depends(id, output.0);
        errors.refusal()
    }
}

/// A refusal that concerns no node, as that of a full queue.
impl From<Refused> for Refusal {
    fn from(refused: Refused) -> Self {
        let ((status, kind), headers) = (refused.kind.status(), refused.headers());
        Self { status, headers, ..Self::of_prompt(kind, refused.message, "") }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let Self { status, headers, kind, message, details, errors } = self;
        let error = json!({ "type": kind, "message": message, "details": details, "extra_info": {} });
        (status, headers, Json(json!({ "error": error, "node_errors": errors.view() }))).into_response()
    }
}
