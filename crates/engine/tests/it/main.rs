//! The engine over real sockets with scripted workers: tokens, shapes, losses, refusals, aborts.

mod admin;
mod ahead;
mod fleet;
mod losses;
mod masks;
mod random;
mod shapes;
mod support;
mod tensor;
mod tokens;
