//! The encoder of text and images, and its tokenizer.

mod encoder;
mod tokenizer;
mod vision_language;
mod vision_tower;
