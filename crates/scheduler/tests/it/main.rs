//! The scheduler from outside: worlds of scripted workers that check every plan like real ones.

mod accounting;
mod arrays;
mod balance;
mod blocks;
mod checks;
mod exhaustive;
mod life;
mod padding;
mod permutations;
mod random;
mod refusals;
mod rotation;
mod shapes;
mod small;
mod world;
mod worlds;
