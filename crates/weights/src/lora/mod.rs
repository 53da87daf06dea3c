//! LoRA files: small changes of a model's weights, merged when the weights are read.
//!
//! A file is read into [`Patch`]es. Each is the change of one declared parameter. All dialects are supported (the names
//! of kohya's scripts, of diffusers, of PEFT, of OneTrainer, of XLabs, of cloneofsimo and of LyCORIS), and all forms of a change (`change.rs`).
//! A change of a fused matrix of the authors' code is one patch for each declared matrix, of the rows that it has there.
//! [`Patched`] is a source of parameters that merges the patches in f32, before rounding and packing. Loading,
//! streaming and dropping of segments do not depend on it, and without patches the bytes are the checkpoint's.
//!
//! | Form | New weight for strength `s` |
//! | --- | --- |
//! | low rank (LoRA, LoCon) | `W + s (alpha / rank) up mid down` |
//! | Hadamard (LoHa) | `W + s (alpha / rank) (a1 b1 * a2 b2)` |
//! | Kronecker (LoKr) | `W + s (alpha / rank) kron(w1, w2)` |
//! | rotation (OFT) | `(I + s (R - I))^T W`, block by block |
//! | butterfly (BOFT) | the same, several times with the rows in other orders |
//! | full | `W + s diff` |
//! | any of the additive ones with a magnitude (DoRA) | `W + s (m (W + D) / norm(W + D) - W)` |

mod change;
mod face;
mod factor;
mod file;
mod merge;
mod numbered;
mod original;
mod patched;
mod peft;
mod role;
mod targets;

#[cfg(test)]
mod tests;

pub use file::{Lora, Unused};
pub use merge::Patch;
pub use original::{flux_names, flux2_names, qwen_image_names, sd3_names, unet_names, z_image_names};
pub use patched::Patched;
pub use role::UnusedReason;
pub(crate) use targets::{FIRST_TEXT, SECOND_TEXT};
pub use targets::{Network, NetworkKind, OriginalNames, Targets};
