//! LoRA files against the packages that define them, and against real files.

mod dialects;
mod names;
mod networks;
mod real;
