//! The engine through its public interface. Separate programs are the tests that count the memory of the process or
//! replace its allocator, and `parity`, which runs with every type.

mod convert;
mod half;
mod image_to_image;
mod inpaint;
mod lengths;
mod lora;
mod modes;
mod prompts;
mod refiner;
mod running;
mod sampling;
mod single_file;
#[path = "../support/mod.rs"]
mod support;
mod taesd;
mod threads;
mod weight_types;
