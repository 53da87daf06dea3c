//! Model folders and files, and what they contain.

mod common;
mod control;
mod families;
mod qwen_image;
mod tiny_dit;
