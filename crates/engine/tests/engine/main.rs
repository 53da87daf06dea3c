//! The engine through its public interface. Separate programs are the tests that count the memory of the process or
//! replace its allocator, and `parity`, which runs with every type.

mod block_cache;
mod calibration;
mod control;
mod convert;
mod engines;
mod extra_channels;
mod families;
mod guidance;
mod half;
mod hires;
mod image_to_image;
mod inpaint;
mod int8;
mod ip_adapter;
mod lengths;
mod lora;
mod modes;
mod parallel;
mod prompt_steps;
mod prompts;
mod qwen_edit;
mod refiner;
mod regions;
mod rules;
mod running;
mod sampling;
mod single_file;
mod size_conditions;
mod steering;
mod stop;
mod stored_types;
#[path = "../support/mod.rs"]
mod support;
mod taesd;
mod threads;
mod trained_flow;
mod vulkan;
mod vulkan_texts;
mod weight_types;
