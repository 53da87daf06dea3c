//! Checks a graph against the classes of its nodes, as that program's `validate_prompt` (execution.py) does.

use std::collections::{BTreeMap, HashMap};

use kiln_media::{Graph, Node, short, shortened};
use serde_json::{Map, Value, json};

use super::catalog::{Input, Kind, class};
use super::lists::Lists;
use super::refusal::{NodeErrors, Refusal};

/// The most nodes of a graph.
const MOST_NODES: usize = 2000;
/// The longest chain of nodes.
const MOST_DEPTH: usize = 500;
/// The longest id of a node in bytes.
const LONGEST_ID: usize = 128;
/// Lists of more names are not repeated in messages.
const SHOWN_NAMES: usize = 20;

/// A graph whose values fit its classes.
pub(crate) struct Checked {
    pub(crate) graph: Graph,
    /// The nodes that save images and have no errors, by their ids.
    pub(crate) outputs: Vec<String>,
    /// The errors of others.
    pub(crate) errors: NodeErrors,
}

/// Checks a graph. `wanted` are the nodes that save images, if the client names some.
///
/// # Errors
/// [`Refusal`] if no node is left that saves an image.
pub(crate) fn check(prompt: Value, wanted: Option<&[String]>, lists: &Lists<'_>) -> Result<Checked, Refusal> {
    let Value::Object(prompt) = prompt else {
        return Err(Refusal::of_prompt("invalid_prompt", "The prompt is no object of nodes", short(&prompt)));
    };
    let mut nodes = read_nodes(prompt)?;
    inline_values(&mut nodes);
    let savers = nodes.iter().filter(|(_, node)| class(&node.class_type).is_some_and(|class| class.saves));
    let is_wanted = |id: &String| wanted.is_none_or(|wanted| wanted.contains(id));
    let outputs: Vec<String> = savers.map(|(id, _)| id.clone()).filter(is_wanted).collect();
    if outputs.is_empty() {
        return Err(Refusal::of_prompt("prompt_no_outputs", "Prompt has no outputs", ""));
    }
    let mut walk = Walk { nodes: &mut nodes, lists, states: HashMap::new(), errors: NodeErrors::default() };
    let mut good = Vec::new();
    for output in &outputs {
        if walk.is_valid(output, 0) {
            good.push(output.clone());
        }
    }
    let Walk { states, mut errors, .. } = walk;
    let has_errors = |id: &str| states.get(id) == Some(&State::Wrong);
    for output in outputs.iter().filter(|output| has_errors(output)) {
        for id in behind(&nodes, output) {
            errors.depends(&id, output);
        }
    }
    if good.is_empty() {
        return Err(errors.refusal());
    }
    Ok(Checked { graph: Graph { nodes }, outputs: good, errors })
}

/// The nodes of a graph, whose classes are known.
fn read_nodes(prompt: Map<String, Value>) -> Result<BTreeMap<String, Node>, Refusal> {
    if prompt.len() > MOST_NODES {
        let details = format!("{} nodes, expected at most {MOST_NODES}", prompt.len());
        return Err(Refusal::of_prompt("invalid_prompt", "The prompt has too many nodes", details));
    }
    let (mut nodes, mut unknown) = (BTreeMap::new(), NodeErrors::default());
    let mut first = None;
    for (id, node) in prompt {
        if id.len() > LONGEST_ID {
            return Err(Refusal::of_prompt("invalid_prompt", "The id of a node is too long", shortened(&id)));
        }
        let details = format!("Node ID '#{id}'");
        let (class_type, inputs) = match node {
            Value::Object(mut node) => (node.remove("class_type"), node.remove("inputs")),
            _ => (None, None),
        };
        let Some(Value::String(class_type)) = class_type else {
            let message = "Cannot execute because a node is missing the class_type property.";
            return Err(Refusal::of_prompt("invalid_prompt", message, details));
        };
        let inputs = match inputs {
            Some(Value::Object(inputs)) => inputs,
            None | Some(Value::Null) => Map::new(),
            Some(_) => {
                return Err(Refusal::of_prompt("invalid_prompt", "The inputs of a node are no object.", details));
            }
        };
        if class(&class_type).is_none() {
            let message = format!("Cannot execute because node {} does not exist.", shortened(&class_type));
            unknown.add(&id, &class_type, "missing_node_type", &message, &details, json!({ "node_id": id }));
            first.get_or_insert((message, details));
        }
        nodes.insert(id, Node { class_type, inputs });
    }
    match first {
        None => Ok(nodes),
        Some((message, details)) => Err(unknown.refusal_with("invalid_prompt", &message, &details)),
    }
}

/// Puts the values of nodes that are nothing but a value in the places of links to them.
fn inline_values(nodes: &mut BTreeMap<String, Node>) {
    let is_value = |node: &&Node| node.class_type.starts_with("Primitive");
    let values: HashMap<String, Value> = nodes
        .iter()
        .filter(|(_, node)| is_value(node))
        .filter_map(|(id, node)| Some((id.clone(), node.inputs.get("value")?.clone())))
        .filter(|(_, value)| !value.is_array())
        .collect();
    let links = nodes.values_mut().flat_map(|node| node.inputs.values_mut());
    for input in links {
        if let Some(value) = link_of(input).and_then(|(id, _)| values.get(&id)) {
            *input = value.clone();
        }
    }
}

/// The node and the slot of a link.
fn link_of(value: &Value) -> Option<(String, u64)> {
    let [id, slot] = value.as_array()?.as_slice() else { return None };
    let id = match id {
        Value::String(id) => id.clone(),
        Value::Number(id) => id.to_string(),
        _ => return None,
    };
    Some((id, slot.as_u64()?))
}

/// A node and all that it depends on.
fn behind(nodes: &BTreeMap<String, Node>, id: &str) -> Vec<String> {
    let (mut found, mut open) = (Vec::<String>::new(), vec![id.to_string()]);
    while let Some(id) = open.pop() {
        if found.contains(&id) {
            continue;
        }
        if let Some(node) = nodes.get(&id) {
            open.extend(node.inputs.values().filter_map(|value| link_of(value).map(|(id, _)| id)));
            found.push(id);
        }
    }
    found
}

/// Where a node stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Its inputs are being looked at.
    Open,
    Right,
    Wrong,
}

/// The way through a graph, from nodes that save images to those that they need.
struct Walk<'a> {
    nodes: &'a mut BTreeMap<String, Node>,
    lists: &'a Lists<'a>,
    states: HashMap<String, State>,
    errors: NodeErrors,
}

impl Walk<'_> {
    /// Whether a node and all that it needs are right. Values are converted to the types of their inputs.
    fn is_valid(&mut self, id: &str, depth: usize) -> bool {
        match self.states.get(id) {
            Some(State::Right) => return true,
            Some(State::Wrong) => return false,
            Some(State::Open) => {
                self.error(id, "dependency_cycle", "Dependency cycle detected", "", Value::Null);
                return false;
            }
            None => {}
        }
        let Some(class) = self.nodes.get(id).and_then(|node| class(&node.class_type)) else { return false };
        if depth > MOST_DEPTH {
            let details = format!("expected at most {MOST_DEPTH} nodes");
            self.error(id, "invalid_prompt", "The chain of nodes is too long", &details, Value::Null);
            return false;
        }
        self.states.insert(id.into(), State::Open);
        let mut is_right = true;
        for input in class.inputs {
            is_right &= self.is_input_valid(id, input, depth);
        }
        is_right &= !self.errors.has(id);
        self.states.insert(id.into(), if is_right { State::Right } else { State::Wrong });
        is_right
    }

    fn is_input_valid(&mut self, id: &str, input: &Input, depth: usize) -> bool {
        let value = self.nodes.get(id).and_then(|node| node.inputs.get(input.name)).cloned();
        let Some(value) = value else {
            if input.is_required {
                self.error_at(id, input, "required_input_missing", "Required input is missing", input.name, None);
            }
            return !input.is_required;
        };
        if value.is_array() {
            return self.is_link_valid(id, input, &value, depth);
        }
        if let Kind::Link(kind) = input.kind {
            let details = format!("{}, {} is no link to a {kind}", input.name, short(&value));
            let message = "Bad linked input, must be a length-2 list of [node_id, slot_index]";
            self.error_at(id, input, "bad_linked_input", message, &details, Some(&value));
            return false;
        }
        // A list as a value is wrapped, since lists are links.
        let value = value.get("__value__").cloned().unwrap_or(value);
        match self.converted(input, &value) {
            Ok(value) => {
                if let Some(node) = self.nodes.get_mut(id) {
                    node.inputs.insert(input.name.into(), value);
                }
                true
            }
            Err((kind, message, details)) => {
                self.error_at(id, input, kind, &message, &details, Some(&value));
                false
            }
        }
    }

    fn is_link_valid(&mut self, id: &str, input: &Input, value: &Value, depth: usize) -> bool {
        let Some((from, slot)) = link_of(value) else {
            let message = "Bad linked input, must be a length-2 list of [node_id, slot_index]";
            self.error_at(id, input, "bad_linked_input", message, input.name, Some(value));
            return false;
        };
        let Some(source) = self.nodes.get(&from).and_then(|node| class(&node.class_type)) else {
            let details = format!("{}, node {} does not exist", input.name, shortened(&from));
            self.error_at(id, input, "bad_linked_input", "The linked node does not exist", &details, Some(value));
            return false;
        };
        let Some((given, _)) = usize::try_from(slot).ok().and_then(|slot| source.outputs.get(slot)) else {
            let details = format!("{}, node {} ({}) has no output {slot}", input.name, shortened(&from), source.name);
            self.error_at(id, input, "bad_linked_input", "The linked output does not exist", &details, Some(value));
            return false;
        };
        if *given != input.kind.name() {
            let details = format!("{}, received_type({given}) mismatch input_type({})", input.name, input.kind.name());
            let message = "Return type mismatch between linked nodes";
            self.error_at(id, input, "return_type_mismatch", message, &details, Some(value));
            return false;
        }
        self.is_valid(&from, depth + 1)
    }

    /// The value in the type of its input, or the kind, message and details of the error.
    fn converted(&self, input: &Input, value: &Value) -> Result<Value, (&'static str, String, String)> {
        let failed = || {
            let message = format!("Failed to convert an input value to a {} value", input.kind.name());
            ("invalid_input_type", message, format!("{}, {}", input.name, short(value)))
        };
        let bounds = |small: Option<String>, big: Option<String>| match (small, big) {
            (Some(min), _) => {
                let message = format!("Value {} smaller than min of {min}", short(value));
                Err(("value_smaller_than_min", message, input.name.to_string()))
            }
            (_, Some(max)) => {
                let message = format!("Value {} bigger than max of {max}", short(value));
                Err(("value_bigger_than_max", message, input.name.to_string()))
            }
            _ => Ok(()),
        };
        match input.kind {
            Kind::Link(_) => Ok(value.clone()),
            Kind::Text { .. } => match value {
                Value::String(_) => Ok(value.clone()),
                Value::Number(number) => Ok(number.to_string().into()),
                Value::Bool(flag) => Ok(flag.to_string().into()),
                _ => Err(failed()),
            },
            Kind::Whole { min, max, .. } => {
                let number = whole(value).ok_or_else(failed)?;
                let (small, big) = (number < i128::from(min), number > i128::from(max));
                bounds(small.then(|| min.to_string()), big.then(|| max.to_string()))?;
                u64::try_from(number)
                    .map(Value::from)
                    .or_else(|_| i64::try_from(number).map(Value::from))
                    .map_err(|_| failed())
            }
            Kind::Number { min, max, .. } => {
                let number = match value {
                    Value::String(text) => text.trim().parse().ok(),
                    Value::Bool(flag) => Some(f64::from(u8::from(*flag))),
                    value => value.as_f64(),
                };
                let number: f64 = number.filter(|number: &f64| number.is_finite()).ok_or_else(failed)?;
                bounds((number < min).then(|| min.to_string()), (number > max).then(|| max.to_string()))?;
                Ok(number.into())
            }
            Kind::Flag(_) => match value {
                Value::Bool(_) => Ok(value.clone()),
                Value::Number(number) => Ok((number.as_f64() != Some(0.0)).into()),
                Value::String(text) => Ok((!text.is_empty()).into()),
                _ => Err(failed()),
            },
            Kind::Choice(names) => match value.as_str() {
                Some(name) if names.contains(&name) => Ok(value.clone()),
                _ => Err(not_in_list(input, value, names)),
            },
            Kind::List(list) => match value.as_str() {
                Some(name) if self.lists.has(list, name) => Ok(value.clone()),
                _ => Err(not_in_list(input, value, &self.lists.names(list))),
            },
        }
    }

    fn error(&mut self, id: &str, kind: &str, message: &str, details: &str, extra: Value) {
        let class = self.nodes.get(id).map(|node| node.class_type.clone()).unwrap_or_default();
        self.errors.add(id, &class, kind, message, details, extra);
    }

    fn error_at(&mut self, id: &str, input: &Input, kind: &str, message: &str, details: &str, value: Option<&Value>) {
        let mut extra = json!({ "input_name": input.name });
        if let Some(value) = value {
            extra["received_value"] = short(value).into();
        }
        self.error(id, kind, message, details, extra);
    }
}

/// A whole number as Python's `int` takes it.
fn whole(value: &Value) -> Option<i128> {
    match value {
        Value::Bool(flag) => Some(i128::from(*flag)),
        Value::String(text) => text.trim().parse().ok(),
        Value::Number(number) => number
            .as_u64()
            .map(i128::from)
            .or_else(|| number.as_i64().map(i128::from))
            .or_else(|| number.as_f64().filter(|number| number.is_finite()).map(|number| number as i128)),
        _ => None,
    }
}

fn not_in_list(input: &Input, value: &Value, names: &[impl AsRef<str>]) -> (&'static str, String, String) {
    let list = if names.len() > SHOWN_NAMES {
        format!("(list of length {})", names.len())
    } else {
        let names: Vec<String> = names.iter().map(|name| format!("'{}'", name.as_ref())).collect();
        format!("[{}]", names.join(", "))
    };
    let details = format!("{}: '{}' not in {list}", input.name, short(value));
    ("value_not_in_list", "Value not in list".into(), details)
}
