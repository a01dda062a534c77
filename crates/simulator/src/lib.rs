//! What a fleet would do with a load, without a GPU: the production fleet and scheduler on a virtual clock, with
//! pretended workers whose steps take as long as a cost model says.
//!
//! A [`Trace`] says what arrives when, [`simulate`] plays it and gives a [`Report`]: throughput, percentiles of the
//! time to the first token and of the gaps between tokens, padding by cause, balance. The same trace, options and seed
//! give the same report to the last digit.
//!
//! What it does not do: it runs no model and predicts no machine. Its costs are constants that a user may replace by
//! measured ones; what it is good for is comparing settings.

mod cost;
mod error;
mod generate;
mod options;
mod plot;
mod random;
mod report;
mod requests;
mod simulation;
mod timeline;
mod trace;
mod workers;

pub use cost::Costs;
pub use error::Error;
pub use generate::{TraceOptions, saturation_per_second};
pub use options::{Options, Placing};
pub use plot::{svg, text};
pub use random::Random;
pub use report::{Balance, Padding, Percentiles, Report, Steps, Throughput};
pub use simulation::{Progress, simulate};
pub use timeline::{Timeline, TimelinePoint};
pub use trace::{Trace, TraceRequest};
