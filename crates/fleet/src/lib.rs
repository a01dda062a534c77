//! Pure state machine of membership, epochs, deadlines and recovery.
//!
//! Messages and ticks go in, actions come out; it owns the scheduler. A rank is one worker, or several that share
//! its model (tensor parallelism). Per lockstep group: workers join, load, meet and are in service; a lost, silent,
//! refusing or lying worker ends the group's epoch, its requests end with an error and all its workers are
//! replaced, while other groups go on. The fleet is ready only when every rank is in service.
//!
//! What it does not do: it knows no clock, thread, socket, randomness, environment or log; it starts and kills no
//! process. Whoever runs it does what the actions say.

mod config;
mod dispatch;
mod error;
mod faults;
mod fleet;
mod group;
mod join;
mod message;
mod order;
mod place;
mod requests;
mod status;
mod steps;

pub use config::{Config, Deadlines};
pub use dispatch::{Dispatch, Encoded};
pub use error::Error;
pub use fleet::Fleet;
pub use message::{
    Action, AnswerBody, Contract, Declined, FailureKind, Input, Join, Level, Loaded, PlanRefusal, StepAnswer,
    StoreAddress, TpEcho, WorkerId,
};
pub use order::{CacheChanges, Gate, Order};
pub use place::Place;
pub use status::{Counters, RankState, RankStatus, WorkerStatus};
