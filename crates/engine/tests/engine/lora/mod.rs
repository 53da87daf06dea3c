//! LoRA files against the packages that define them, and against real files; images with LoRAs and embeddings.

mod dialects;
mod images;
mod names;
mod networks;
mod real;
