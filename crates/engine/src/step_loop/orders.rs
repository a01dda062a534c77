//! What operators ask of the loop: gates, aborts, the prefix caches.

use paceline_fleet::{Input, Order};
use paceline_plan::DpRank;
use paceline_scheduler::RequestId;

use super::StepLoop;
use crate::admin::{Admin, Which};
use crate::handle::{FinishReason, SubmitError};

impl StepLoop {
    pub(super) fn admin(&mut self, admin: Admin) {
        // The status that a caller reads next tells of what it did. Whoever left needs no answer.
        match admin {
            Admin::Gate { dp_rank, gate, waits, answer } => {
                if let Some(dp_rank) = dp_rank.filter(|dp_rank| *dp_rank >= self.parts.dp_size) {
                    let message = format!("there is no rank {dp_rank}, there are {}", self.parts.dp_size);
                    let _ = answer.send(Err(SubmitError::Invalid { field: "dp_rank", message }));
                    return;
                }
                self.feed(Input::Order(Order::Gate(dp_rank.map(DpRank::new), gate)));
                if waits {
                    self.resting.push(dp_rank, gate, answer);
                } else {
                    self.publish();
                    let _ = answer.send(Ok(()));
                }
            }
            Admin::Abort { which, answer } => {
                let count = self.abort(&which);
                self.publish();
                let _ = answer.send(count);
            }
            Admin::ResetPrefixCache { answer } => {
                self.feed(Input::Order(Order::ResetPrefixCache));
                self.publish();
                let _ = answer.send(());
            }
            Admin::FollowCache { answer } => {
                self.follow_cache();
                let _ = answer.send(());
            }
        }
    }

    /// Ends requests from inside; how many there were.
    fn abort(&mut self, which: &Which) -> u32 {
        let scheduler = self.parts.fleet.scheduler();
        let meant = |request: &RequestId, name: &str| match which {
            Which::Named(names) => names.iter().any(|other| other == name),
            Which::Rank(None) => true,
            Which::Rank(Some(dp_rank)) => {
                scheduler.and_then(|scheduler| scheduler.dp_rank_of(*request)) == Some(DpRank::new(*dp_rank))
            }
        };
        let meant = self.names.iter().filter(|(request, name)| meant(request, name));
        let meant: Vec<RequestId> = meant.map(|(request, _)| *request).collect();
        for request in &meant {
            if let Some(sink) = self.forget(*request) {
                sink.finish(Vec::new(), FinishReason::Aborted);
            }
            self.feed(Input::Abort(*request));
        }
        meant.len() as u32
    }

    /// Hands on what happened to the prefix caches, as long as somebody follows them.
    pub(super) fn follow_cache(&mut self) {
        let follows = self.parts.publisher.cache().is_followed();
        if follows != self.follows_cache {
            self.follows_cache = follows;
            self.feed(Input::Order(Order::FollowCache(follows)));
        }
        if follows {
            for changes in self.parts.fleet.take_cache_changes() {
                self.parts.publisher.cache().send(changes);
            }
        }
    }
}
