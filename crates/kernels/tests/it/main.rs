//! Kernels against plain loops in fp64.

mod attention;
mod layers;
mod threads;
