//! The workers' streams, seen from the step loop.

use std::collections::BTreeMap;

use paceline_fleet::{Place, WorkerId};
use paceline_proto::v1::control_to_worker::Message as ToWorker;
use paceline_proto::v1::{ControlToWorker, StepEnvelope, StepToWorker, step_to_worker};

use crate::event::{ControlSender, StepsSender};

struct Peer {
    place: Place,
    incarnation: String,
    control: ControlSender,
    steps: Option<StepsSender>,
}

/// All workers with an open control stream that were not told to go.
#[derive(Default)]
pub(crate) struct Peers {
    peers: BTreeMap<WorkerId, Peer>,
}

impl Peers {
    pub(crate) fn add(&mut self, worker: WorkerId, place: Place, incarnation: String, control: ControlSender) {
        self.peers.insert(worker, Peer { place, incarnation, control, steps: None });
    }

    /// Gives a steps stream to the worker that it belongs to, once.
    pub(crate) fn attach(&mut self, place: Place, incarnation: &str, steps: StepsSender) -> Option<WorkerId> {
        let mut peers = self.peers.iter_mut();
        let is_it = |peer: &Peer| peer.place == place && peer.incarnation == incarnation && peer.steps.is_none();
        let (worker, peer) = peers.find(|(_, peer)| is_it(peer))?;
        peer.steps = Some(steps);
        Some(*worker)
    }

    /// Sends a control message; false when the worker cannot take it.
    pub(crate) fn control(&self, worker: WorkerId, message: ToWorker) -> bool {
        let message = ControlToWorker { message: Some(message) };
        self.peers.get(&worker).is_some_and(|peer| peer.control.try_send(Ok(message)).is_ok())
    }

    /// Sends a plan; false when the worker cannot take it.
    pub(crate) fn step(&self, worker: WorkerId, envelope: StepEnvelope) -> bool {
        let message = StepToWorker { message: Some(step_to_worker::Message::Step(envelope)) };
        let steps = self.peers.get(&worker).and_then(|peer| peer.steps.as_ref());
        steps.is_some_and(|steps| steps.try_send(Ok(message)).is_ok())
    }

    /// Where messages of the steps stream of a worker go.
    pub(crate) fn steps(&self, worker: WorkerId) -> Option<StepsSender> {
        self.peers.get(&worker)?.steps.clone()
    }

    /// Closes a worker's streams once what was sent before has gone out.
    pub(crate) fn remove(&mut self, worker: WorkerId) {
        self.peers.remove(&worker);
    }
}
