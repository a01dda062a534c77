//! Tokio shell around the fleet: sockets, threads, clock.
//!
//! The engine decides nothing. It carries bytes between the workers and the pure state machine in `paceline-fleet`,
//! which runs on one thread with the workers' connections, and hands tokens to whoever holds a [`Handle`]. It starts no process: see
//! [`Supervisor`].

mod admin;
mod cache_events;
mod convert;
mod engine;
mod error;
mod event;
mod handle;
pub mod ledger;
mod masks;
mod meter;
mod peers;
mod readers;
mod service;
mod slot;
mod status;
mod step_loop;
mod supervise;

pub use cache_events::{CacheEvents, CacheSubscription};
pub use engine::{Engine, ExpertParallel, ModelSettings, Options};
pub use error::Error;
pub use handle::{
    FailureKind, FinishReason, GenerateRequest, Handle, RequestKey, SamplingParams, StreamEvent, SubmitError,
    TokenLogprobs, TokenOutput, TokenStream,
};
pub use paceline_fleet::Gate;
pub use paceline_scheduler::{BlockKey, CacheChange, ModeTokens, PaddingCounters};
pub use slot::{Life, TokenSink};
pub use status::{
    FleetCounters, FleetStatus, MODES, ModelLimits, Publisher, RankCounters, RankState, RankStatus, STEP_TOKENS_BOUNDS,
    Spread, StepTimings, StepTokens, WorkerStatus,
};
pub use supervise::{ExitReporter, LaunchOrder, Supervisor};
