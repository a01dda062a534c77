//! Traces, simulations and their reports.

mod runs;
mod traces;
