//! A server on a free port, and real connections to it.

mod a1111;
mod access;
mod comfy;
mod comfy_graphs;
mod comfy_images;
mod comfy_nodes;
mod comfy_page;
mod comfy_regions;
mod connections;
mod control;
mod costs;
mod devices;
mod edit_models;
mod edits;
mod flow_models;
mod gallery;
mod job_moves;
mod jobs;
mod load;
mod openai;
mod page;
/// The tiny model of the engine's tests.
#[path = "../../../engine/tests/support/qwen_edit.rs"]
mod qwen_edit;
mod silent;
mod support;
mod texts;
mod traces;
mod users;
