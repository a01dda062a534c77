//! Scripted worker over real gRPC, no torch.
//!
//! It checks every plan with the same code as a real worker and fills the same arrays, but its model is a hash: see
//! [`model::next_token`]. It runs as the binary `paceline-scripted-worker` or inside a Rust test as [`run`]. It knows
//! neither the engine nor the scheduler.

pub mod batch;
mod behaviour;
mod contract;
pub mod model;
mod worker;

pub use behaviour::Behaviour;
pub use worker::{Ended, Records, StepRecord, run};
