//! Readers of a round's tokens are woken together, by a task of their own runtime.
//!
//! To wake a task of another runtime takes a system call each time, and usually a change of threads: the readers of eight
//! rows had the step loop's core for longer than the next plan needs. This way it is one, however many rows there are.

use tokio::sync::mpsc;

use crate::slot::Filled;

/// Rounds that may wait to be told.
const ROUNDS_WAITING_MOST: usize = 64;

/// Readers of the round that goes on.
pub(crate) struct Readers {
    filled: Vec<Filled>,
    rounds: mpsc::Sender<Vec<Filled>>,
}

impl Readers {
    /// For one step loop. [`tell`] gets the other end.
    pub(crate) fn new() -> (Self, mpsc::Receiver<Vec<Filled>>) {
        let (rounds, told) = mpsc::channel(ROUNDS_WAITING_MOST);
        (Self { filled: Vec::new(), rounds }, told)
    }

    /// Has a reader woken when the round is over.
    pub(crate) fn add(&mut self, filled: Option<Filled>) {
        self.filled.extend(filled);
    }

    /// Wakes the readers of the round.
    pub(crate) fn end_round(&mut self) {
        let filled = std::mem::take(&mut self.filled);
        if let [only] = &filled[..] {
            only.tell();
        } else if !filled.is_empty()
            && let Err(error) = self.rounds.try_send(filled)
        {
            error.into_inner().iter().for_each(Filled::tell);
        }
    }
}

/// Wakes readers until the step loop has ended. To run where they run.
pub(crate) async fn tell(mut rounds: mpsc::Receiver<Vec<Filled>>) {
    while let Some(filled) = rounds.recv().await {
        filled.iter().for_each(Filled::tell);
    }
}
