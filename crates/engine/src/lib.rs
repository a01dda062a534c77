//! Tokio shell around the fleet: sockets, threads, clock.
//!
//! The engine decides nothing. It carries bytes between the workers and the pure state machine in `paceline-fleet`,
//! which runs on a thread of its own, and hands tokens to whoever holds a [`Handle`].

mod event;
mod handle;
mod slot;
mod status;

pub use handle::{
    FailureKind, FinishReason, GenerateRequest, Handle, SamplingParams, StreamEvent, SubmitError, TokenLogprobs,
    TokenOutput, TokenStream,
};
pub use slot::TokenSink;
pub use status::{
    FleetCounters, FleetStatus, ModelLimits, Publisher, RankCounters, RankState, RankStatus, Spread, StepTimings,
};
