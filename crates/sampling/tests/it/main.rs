//! Properties of the sampling crate against slow, plain implementations, and the golden vectors.

mod naive;
mod properties;
mod vectors;
