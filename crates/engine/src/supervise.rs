//! Between the engine and whoever starts worker processes.

use paceline_fleet::{Input, Place};
use tokio::sync::mpsc;

use crate::event::Event;

/// A place needs a new worker process; the old one, if it still runs, is to be killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchOrder {
    /// Which place.
    pub place: Place,
}

/// The launcher's end: orders in, ended processes out. Dropping it says that nobody starts workers.
#[derive(Debug)]
pub struct Supervisor {
    pub(crate) orders: mpsc::Receiver<LaunchOrder>,
    pub(crate) events: mpsc::Sender<Event>,
}

impl Supervisor {
    /// The next order; nothing once the engine has ended.
    pub async fn order(&mut self) -> Option<LaunchOrder> {
        self.orders.recv().await
    }

    /// A way to report ended processes from other tasks.
    pub fn reporter(&self) -> ExitReporter {
        ExitReporter { events: self.events.clone() }
    }
}

/// Reports ended worker processes.
#[derive(Clone, Debug)]
pub struct ExitReporter {
    events: mpsc::Sender<Event>,
}

impl ExitReporter {
    /// A worker process ended that nobody had told to; `how` is for people, such as `exit status 1`.
    pub async fn exited(&self, place: Place, process_id: u32, how: &str) {
        let input = Input::Exited(place, process_id, format!("its process ended ({how})"));
        // An engine that has ended needs no report.
        let _ = self.events.send(Event::Fleet(input)).await;
    }
}
