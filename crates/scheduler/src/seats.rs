//! The seats of a rank and the generations of their requests.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use paceline_plan::{Seat, SeatGeneration};

/// Free seats, the lowest first, so that buffers stay dense.
#[derive(Clone, Debug)]
pub(crate) struct SeatPool {
    free: BinaryHeap<Reverse<u32>>,
    /// Per seat, the generation of its next request. Goes on across epochs.
    generations: Vec<SeatGeneration>,
}

impl SeatPool {
    pub(crate) fn new(seats: u32) -> Self {
        Self { free: (0..seats).map(Reverse).collect(), generations: vec![SeatGeneration::new(1); seats as usize] }
    }

    /// The lowest free seat and the generation of its new request.
    pub(crate) fn take(&mut self) -> Option<(Seat, SeatGeneration)> {
        let Reverse(index) = self.free.pop()?;
        let generation = self.generations[index as usize];
        self.generations[index as usize] = generation.next();
        Some((Seat::new(index), generation))
    }

    pub(crate) fn give_back(&mut self, seat: Seat) {
        self.free.push(Reverse(seat.get()));
    }
}
