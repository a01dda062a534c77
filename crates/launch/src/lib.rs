//! The last look at the arrays of a pass, just before it is launched.
//!
//! The plan has been checked and the arrays were made from it. This crate holds the arrays against the plan's numbers and the
//! backend's contract once more, from the rules' text alone: it uses no other crate and shares no constant with the code that
//! fills arrays, so a mistake there does not hide itself. It repairs nothing: the first rule that does not hold is named, with
//! both numbers.

mod check;
mod values;

pub use check::check;
pub use values::{Arrays, Contract, Fault, Launch, Limits, Mode};
