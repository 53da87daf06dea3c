//! LoRA files: small changes of a model's weights, added when the weights are read.
//!
//! A file is read into [`Patch`]es, each the change of one declared parameter, whatever dialect the file speaks:
//! names of kohya's scripts, of diffusers, of PEFT, of cloneofsimo's and of LyCORIS; and whatever form the change has
//! (`change.rs`). [`Patched`] is a source of parameters that merges them in f32, before anything is rounded or packed:
//! loading, streaming and dropping of segments know nothing of it, and without patches the bytes are the checkpoint's.
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
mod factor;
mod file;
mod ldm;
mod merge;
mod numbered;
mod patched;
mod peft;
mod role;
mod targets;

#[cfg(test)]
mod tests;

pub use file::{Lora, Unused, UnusedReason};
pub use merge::Patch;
pub use patched::Patched;
pub use targets::{Network, Targets};
