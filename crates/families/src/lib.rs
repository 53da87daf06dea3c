//! The model families, one file each, and the list of all.
//!
//! A [`Family`] says what its models are made of ([`Component`]), how files name the parts, by which tensors and classes
//! its networks are recognized, and the defaults of a request. Every other crate reads [`FAMILIES`] instead of naming a
//! family. Families that Kiln does not run have names and marks only, so that their files are named in messages.
//!
//! ```
//! use kiln_families::{FAMILIES, of_class};
//!
//! assert_eq!(of_class("StableDiffusionXLPipeline").unwrap().id(), "sdxl");
//! assert_eq!(FAMILIES.iter().filter(|family| family.runs()).count(), 2);
//! ```
#![forbid(unsafe_code)]

mod component;
mod family;
mod flux;
mod flux2;
mod held;
mod known;
mod list;
mod lora;
mod mark;
mod sd;
mod sd3;
mod sdxl;
mod shared;
pub mod text;
mod variant;
mod z_image;

pub use component::{Component, ComponentKind};
pub use family::{DerivedConfig, Family, FamilyDefaults, FamilyRef, LatentColors, TextLayer};
pub use held::held_networks;
pub use list::{
    Detected, FAMILIES, class_label, detect, known_lora, of_class, of_unet, pipeline_classes, prefixes,
    runnable_labels, text_components,
};
pub use lora::{TEXT_ENCODER, TEXT_ENCODER_2, UNET};
pub use mark::Mark;
pub use sd::{LCM_GUIDANCE, SD, SD2};
pub use sdxl::{SDXL, SDXL_REFINER};
pub use variant::Variant;
