//! Integration tests of the plan vocabulary: shapes that cannot be built, plans that a worker refuses, arrays.

mod arrays;
mod codec;
mod corpus;
mod mutations;
mod passes;
mod support;
mod vectors;
mod wire;
