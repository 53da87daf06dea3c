//! ControlNets of SD3 and SD3.5 (diffusers' `SD3ControlNetModel`): blocks as the transformer's, with a control image added to their
//! first tokens, and a linear layer after each block for a residual.

mod config;
mod input;
mod net;

pub use config::Sd3ControlConfig;
pub(super) use input::CONTROL_POSITIONS;
pub use input::Sd3ControlInput;
pub(super) use net::Running;
pub use net::Sd3ControlNet;

/// The name of the network in messages.
const NETWORK: &str = "SD3 ControlNet";
