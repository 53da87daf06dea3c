//! The engine through its public interface. Programs of their own are the tests that count the process's memory or replace its
//! allocator, and `parity`, which runs in every type.

mod convert;
mod half;
mod image_to_image;
mod inpaint;
mod lengths;
mod lora;
mod modes;
mod prompts;
mod running;
mod sampling;
mod single_file;
#[path = "../support/mod.rs"]
mod support;
mod taesd;
mod weight_types;
