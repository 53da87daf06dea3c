//! Texts, configurations and LoRAs of the families.

mod candle_transformers;
mod configs;
mod lora;
mod text;
