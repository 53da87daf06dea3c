//! The classes of ComfyUI's nodes that graphs may have: their inputs, with ranges and defaults, and their outputs. What a node
//! means is in `kiln_request::comfy`; here is what clients build forms from, and what values are checked against.

use serde_json::{Map, Value, json};

use super::lists::{List, Lists};
use super::nodes::classes;

/// A class of nodes.
pub(crate) struct Class {
    pub(crate) name: &'static str,
    /// Its name for people.
    pub(crate) title: &'static str,
    /// Its place in menus.
    pub(crate) category: &'static str,
    pub(crate) inputs: &'static [Input],
    /// Types and names.
    pub(crate) outputs: &'static [(&'static str, &'static str)],
    /// Whether it saves images.
    pub(crate) saves: bool,
}

/// An input of a class.
pub(crate) struct Input {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) is_required: bool,
}

/// The type of an input.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    /// A link to an output of this type.
    Link(&'static str),
    /// A text.
    Text {
        default: &'static str,
        /// Whether it has several lines, as prompts do.
        multiline: bool,
    },
    /// A whole number.
    Whole { default: i64, min: i64, max: u64, step: u64 },
    /// A number.
    Number { default: f64, min: f64, max: f64, step: f64 },
    /// A switch.
    Flag(bool),
    /// One of these.
    Choice(&'static [&'static str]),
    /// One of what the server has.
    List(List),
}

impl Kind {
    /// The name of the type.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Link(kind) => kind,
            Self::Text { .. } => "STRING",
            Self::Whole { .. } => "INT",
            Self::Number { .. } => "FLOAT",
            Self::Flag(_) => "BOOLEAN",
            Self::Choice(_) | Self::List(_) => "COMBO",
        }
    }

    /// The type and the options as clients read them.
    pub(crate) fn view(self, input: &str, lists: &Lists<'_>) -> Value {
        match self {
            Self::Link(kind) => json!([kind]),
            Self::Text { default, multiline: false } => json!(["STRING", { "default": default }]),
            Self::Text { .. } => json!(["STRING", { "multiline": true, "dynamicPrompts": true }]),
            Self::Whole { default, min, max, step } => {
                let mut options = json!({ "default": default, "min": min, "max": max, "step": step });
                if input.ends_with("seed") {
                    options["control_after_generate"] = true.into();
                }
                json!(["INT", options])
            }
            Self::Number { default, min, max, step } => {
                json!(["FLOAT", { "default": default, "min": min, "max": max, "step": step }])
            }
            Self::Flag(default) => json!(["BOOLEAN", { "default": default }]),
            Self::Choice(names) => json!([names, {}]),
            Self::List(List::Images) => json!([lists.names(List::Images), { "image_upload": true }]),
            Self::List(list) => json!([lists.names(list), {}]),
        }
    }
}

/// The class of this name.
pub(crate) fn class(name: &str) -> Option<&'static Class> {
    classes().find(|class| class.name == name)
}

/// All classes as clients read them.
pub(crate) fn all(lists: &Lists<'_>) -> Map<String, Value> {
    classes().map(|class| (class.name.to_string(), class.view(lists))).collect()
}

impl Class {
    /// The class as clients read it.
    pub(crate) fn view(&self, lists: &Lists<'_>) -> Value {
        let part = |is_required: bool| {
            let inputs = self.inputs.iter().filter(move |input| input.is_required == is_required);
            inputs.map(|input| (input.name.to_string(), input.kind.view(input.name, lists))).collect::<Map<_, _>>()
        };
        let order = |is_required: bool| {
            let inputs = self.inputs.iter().filter(move |input| input.is_required == is_required);
            inputs.map(|input| input.name).collect::<Vec<_>>()
        };
        let (mut inputs, mut orders) = (json!({ "required": part(true) }), json!({ "required": order(true) }));
        if self.inputs.iter().any(|input| !input.is_required) {
            (inputs["optional"], orders["optional"]) = (part(false).into(), order(false).into());
        }
        json!({
            "input": inputs,
            "input_order": orders,
            "output": self.outputs.iter().map(|(kind, _)| kind).collect::<Vec<_>>(),
            "output_is_list": vec![false; self.outputs.len()],
            "output_name": self.outputs.iter().map(|(_, name)| name).collect::<Vec<_>>(),
            "name": self.name,
            "display_name": self.title,
            "description": "",
            "python_module": "nodes",
            "category": self.category,
            "output_node": self.saves,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_have_names_of_their_own_and_types_that_another_class_gives() {
        for class in classes() {
            assert_eq!(classes().filter(|other| other.name == class.name).count(), 1, "{}", class.name);
            for input in class.inputs {
                if let Kind::Link(kind) = input.kind {
                    let is_given = classes().flat_map(|class| class.outputs).any(|(given, _)| *given == kind);
                    assert!(is_given, "{} of {}", input.name, class.name);
                }
            }
        }
    }
}
