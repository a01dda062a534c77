//! The scheduler from outside: worlds of scripted workers that check every plan like real ones.

mod accounting;
mod ahead;
mod ahead_worlds;
mod arrays;
mod balance;
mod blocks;
mod checks;
mod drafting;
mod exhaustive;
mod kernels;
mod life;
mod model_drafter;
mod mutations;
mod padding;
mod pauses;
mod permutations;
mod policies;
mod prefix;
mod pressure;
mod random;
mod refusals;
mod rotation;
mod shapes;
mod small;
mod world;
mod worlds;
