//! Where the time of steps goes: the latest samples of each part, in microseconds.

use std::time::{Duration, Instant};

use crate::status::{Spread, StepTimings};

/// Steps that are remembered.
const WINDOW: usize = 1_024;

/// The latest samples of one part.
#[derive(Clone, Debug, Default)]
struct Window {
    samples: Vec<u32>,
    next: usize,
}

impl Window {
    fn push(&mut self, sample: u32) {
        if self.samples.len() < WINDOW {
            self.samples.push(sample);
        } else {
            self.samples[self.next] = sample;
        }
        self.next = (self.next + 1) % WINDOW;
    }

    fn spread(&self) -> Spread {
        let mut sorted = self.samples.clone();
        sorted.sort_unstable();
        let at = |percent: usize| sorted.get(sorted.len().saturating_sub(1) * percent / 100).copied().unwrap_or(0);
        Spread { median_us: at(50), p99_us: at(99) }
    }
}

/// The time of one step, part by part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StepTimes {
    pub(crate) plan_us: u32,
    pub(crate) encode_us: u32,
    pub(crate) wire_us: u32,
    pub(crate) worker_us: [u32; 4],
    pub(crate) commit_us: u32,
}

/// The latest steps of all groups.
#[derive(Clone, Debug, Default)]
pub(crate) struct Meter {
    steps: u64,
    parts: [Window; 8],
}

impl Meter {
    pub(crate) fn record(&mut self, times: &StepTimes) {
        let [decode, fill, forward, sample] = times.worker_us;
        let values = [times.plan_us, times.encode_us, times.wire_us, decode, fill, forward, sample, times.commit_us];
        for (window, value) in self.parts.iter_mut().zip(values) {
            window.push(value);
        }
        self.steps += 1;
    }

    pub(crate) fn timings(&self) -> StepTimings {
        let [plan, encode, wire, decode, fill, forward, sample, commit] = &self.parts;
        StepTimings {
            steps: self.steps,
            plan: plan.spread(),
            encode: encode.spread(),
            wire: wire.spread(),
            worker_decode: decode.spread(),
            worker_fill: fill.spread(),
            worker_forward: forward.spread(),
            worker_sample: sample.spread(),
            commit: commit.spread(),
        }
    }
}

/// Whole microseconds, as far as they fit.
pub(crate) fn micros(duration: Duration) -> u32 {
    u32::try_from(duration.as_micros()).unwrap_or(u32::MAX)
}

/// A step that is being timed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Running {
    pub(crate) times: StepTimes,
    pub(crate) sent: Instant,
    /// Ranks that have not answered.
    pub(crate) waiting: usize,
}

impl Running {
    /// Notes a rank's answer; the step's times once all have answered. The slowest rank's own parts count.
    pub(crate) fn answered(&mut self, worker_us: [u32; 4], received: Instant, commit: Duration) -> Option<StepTimes> {
        if worker_us.iter().map(|us| u64::from(*us)).sum::<u64>()
            >= self.times.worker_us.iter().map(|us| u64::from(*us)).sum()
        {
            self.times.worker_us = worker_us;
        }
        self.times.commit_us = self.times.commit_us.saturating_add(micros(commit));
        self.waiting = self.waiting.saturating_sub(1);
        if self.waiting > 0 {
            return None;
        }
        let round_trip = micros(received.saturating_duration_since(self.sent));
        let worker = self.times.worker_us.iter().fold(0_u32, |sum, us| sum.saturating_add(*us));
        self.times.wire_us = round_trip.saturating_sub(worker);
        Some(self.times)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_holds_the_latest_samples() {
        let mut window = Window::default();
        for sample in 0..3_000 {
            window.push(sample);
        }
        assert_eq!(window.samples.len(), WINDOW);
        let spread = window.spread();
        assert!(spread.median_us > 2_400 && spread.p99_us > 2_950, "{spread:?}");
        assert_eq!(Window::default().spread(), Spread::default());
    }

    #[test]
    fn the_wire_is_what_the_slowest_worker_does_not_explain() {
        let sent = Instant::now();
        let mut running = Running { times: StepTimes::default(), sent, waiting: 2 };
        let later = sent + Duration::from_micros(500);
        assert_eq!(running.answered([10, 10, 300, 30], later, Duration::from_micros(4)), None);
        let times = running.answered([1, 1, 100, 3], later, Duration::from_micros(5)).expect("all answered");
        assert_eq!((times.worker_us, times.wire_us, times.commit_us), ([10, 10, 300, 30], 150, 9));
    }
}
