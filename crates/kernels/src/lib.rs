//! What a decoder layer does on a CPU: norms, rotation, activation, attention over the paged cache, and its products: in
//! bfloat16 with matrix instructions where there are any, and where rows are few and reading the weights is all that counts;
//! and where weights are bytes.
//!
//! The two halves of a layer can be had in one call each (`block.rs`).
//!
//! On a small model a call into a framework costs as much as the work, and attention one row at a time costs more than
//! the products. Each kernel here is one pass over flat slices, in fp32 inside, rounded once at the end. A row's result
//! depends on that row only, never on what else is in the batch.
//!
//! Vector instructions are chosen at run time by `pulp`, matrix instructions are asked of `tiles`; both keep this crate free
//! of unchecked code. Nothing here knows of Python or plans.

mod activation;
mod attention;
mod block;
mod compressed;
mod crew;
mod element;
mod exponential;
mod int8;
mod linear;
mod matrix;
mod norm;
mod rotary;

pub use activation::gate;
pub use attention::{Attention, Error, Heads, PassRows, Shape, takes_long_rows};
pub use block::{Cache, GatedMlp, Norm, Scratch, SelfAttention, Spent, Weight};
pub use compressed::Compressed;
pub use crew::set_threads;
pub use element::Element;
pub use int8::{Int8Error, Int8Matrix, quantise_rows};
pub use linear::{Part, linear};
pub use matrix::has_matrix_instructions;
pub use norm::rms_norm;
pub use rotary::{HeadNorm, Rotation, rotate};
