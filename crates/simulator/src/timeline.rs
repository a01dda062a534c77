//! What happened over time, thinned to a number of points that can be plotted.

use serde::Serialize;

/// Points kept; when there are more, every second one goes.
const POINTS_MAX: usize = 1_024;

/// The fleet at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct TimelinePoint {
    /// Virtual time.
    pub clock_ms: u64,
    /// Requests in the queue.
    pub waiting: u32,
    /// Requests on ranks.
    pub running: u32,
    /// Part of the KV blocks that requests hold, in 1/1000.
    pub kv_used_permille: u32,
    /// Milliseconds of the newest step.
    pub step_ms: u64,
}

/// Evenly thinned points.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    points: Vec<TimelinePoint>,
    /// Every so many offers one point is kept.
    every: u64,
    offered: u64,
}

impl Timeline {
    pub(crate) fn offer(&mut self, point: impl FnOnce() -> TimelinePoint) {
        self.every = self.every.max(1);
        self.offered += 1;
        if !(self.offered - 1).is_multiple_of(self.every) {
            return;
        }
        self.points.push(point());
        if self.points.len() > POINTS_MAX {
            let mut index = 0;
            self.points.retain(|_| {
                index += 1;
                index % 2 == 1
            });
            self.every *= 2;
        }
    }

    /// In order of time.
    pub fn points(&self) -> &[TimelinePoint] {
        &self.points
    }
}
