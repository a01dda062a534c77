//! The fleet without sockets and clocks: every input by hand, every action looked at.

mod ahead;
mod assembly;
mod faults;
mod orders;
mod requests;
mod tensor;
mod world;
