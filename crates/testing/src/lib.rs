//! Scripted worker over real gRPC, no torch.
//!
//! It checks every plan with the same code as a real worker and fills the same arrays, but its KV cache holds tokens and its
//! model is a hash of them: see [`model::next_token`]. It runs as the binary `paceline-scripted-worker` or inside a Rust
//! test as [`run`]. It knows neither the engine nor the scheduler.
//!
//! Beside it lies [`load`], a client that asks for as little as possible of the cores it shares with a server: what
//! tests and benches send many requests with.

pub mod batch;
mod behaviour;
mod contract;
pub mod load;
mod memory;
pub mod model;
mod steps;
mod worker;

pub use behaviour::Behaviour;
pub use worker::{Ended, Records, StepRecord, run};
