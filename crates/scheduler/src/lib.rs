//! A pure state machine that decides every step: requests, replies and losses in, plans out, and the reason for
//! each shape.
//!
//! One scheduler sees every rank: one waiting queue, a request is bound to a rank only when it starts, and the shape
//! of a step is decided for all ranks of a lockstep group at once. After every event, call [`Scheduler::plan`] for
//! every group that may step, until none has a step: a request whose best rank is in another group is left to that
//! group's plan, and what one group preempts, another may start.
//!
//! What it does not do: it knows no clock, thread, socket, randomness, environment, log, float or hash order, so the
//! same events give the same plans; membership, deadlines and recovery are `fleet`'s. Padded numbers are computed in
//! [`shape`] and nowhere else. A step is planned when the one before it was answered by every rank (depth
//! 0), or while that one is in flight (depth 1).

mod blocks;
mod cache;
mod check;
mod choice;
mod commit;
mod config;
mod emit;
mod error;
mod explain;
mod keys;
mod ladders;
mod pace;
mod placement;
mod planner;
mod policies;
mod queue;
mod rank;
mod recent;
mod request;
mod runs;
mod scheduler;
mod seated;
mod seats;
mod select;
mod selection;
mod sent;
pub mod shape;
mod spare;
mod started;
mod stats;
mod table;

pub use cache::CacheChange;
pub use commit::{Finish, Output};
pub use config::{Config, Drafter, KByRows, QueueLimits};
pub use emit::MaskedRow;
pub use error::{Error, Refusal};
pub use explain::{Explanation, HeldReason, RankExplanation, ShapeReason};
pub use keys::{BlockKey, CacheSecret};
pub use ladders::{ShapeConfig, WithoutGraph};
pub use pace::{LevelReason, Pace};
pub use policies::{Alignment, Policies};
pub use request::{RequestId, RequestSpec};
pub use scheduler::Scheduler;
pub use started::{PlacementReason, Started};
pub use stats::{DraftCounters, ModeTokens, PaddingCounters, RankCounters, RankStats, Stats};
