//! The step loop, on a thread that it shares with the workers' connections: gather events, let the fleet decide, send what it says.
//!
//! What operators ask lies in [`orders`], what is sent to workers and comes back in [`flights`], masks in [`masked`].

mod flights;
mod masked;
mod orders;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use paceline_fleet::{Action, Fleet, Input, Level, Place, WorkerId};
use paceline_plan::{DpRank, GroupId, StepId};
use paceline_proto::v1::control_to_worker::Message as ToWorker;
use paceline_proto::v1::{BindStore, Form, Rejected, Stop, Welcome, WorkerSettings};
use paceline_scheduler::{RequestId, RequestSpec};
use tokio::sync::{mpsc, oneshot};

use crate::admin::Resting;
use crate::convert;
use crate::event::{Event, Hello, Submission};
use crate::handle::{FailureKind, SubmitError};
use crate::masks::{Due, Masks};
use crate::meter::Running;
use crate::peers::Peers;
use crate::readers::Readers;
use crate::slot::{Abandoned, TokenSink};
use crate::status::{FleetStatus, Publisher, StepTokens};
use crate::supervise::LaunchOrder;

/// Events that are taken before the fleet is asked for plans again.
const EVENTS_PER_ROUND: usize = 1_024;

/// What the loop is made of.
pub(crate) struct Parts {
    pub(crate) fleet: Fleet,
    pub(crate) dp_size: u32,
    pub(crate) join_token: String,
    pub(crate) settings: WorkerSettings,
    pub(crate) events: mpsc::Receiver<Event>,
    /// Its own end of the same channel, for threads that work for the loop.
    pub(crate) loopback: mpsc::WeakSender<Event>,
    pub(crate) abandoned: Arc<Abandoned>,
    pub(crate) publisher: Publisher,
    pub(crate) orders: mpsc::Sender<LaunchOrder>,
    pub(crate) readers: Readers,
    /// How long tokens may wait for a reader.
    pub(crate) unread: Option<Duration>,
}

pub(crate) struct StepLoop {
    parts: Parts,
    peers: Peers,
    sinks: BTreeMap<RequestId, TokenSink>,
    /// What callers call their requests, of the same requests.
    names: BTreeMap<RequestId, Arc<str>>,
    answers: BTreeMap<RequestId, oneshot::Sender<Result<(), SubmitError>>>,
    /// What constrained requests may go on with.
    masks: Masks,
    /// Ranks whose rows wait for masks until the step before is committed.
    masks_due: Vec<Due>,
    /// Steps in flight.
    running: BTreeMap<(GroupId, StepId), Running>,
    /// Tokens of the steps of each rank.
    step_tokens: BTreeMap<u32, StepTokens>,
    slow_readers: u64,
    resting: Resting,
    /// Whether somebody followed the prefix caches when it was looked at last.
    follows_cache: bool,
    /// What requests are to be told in this round.
    outbox: Vec<Action>,
    started: Instant,
    end: Option<Result<(), String>>,
}

impl StepLoop {
    pub(crate) fn new(parts: Parts) -> Self {
        let masks = Masks::new(parts.loopback.clone());
        Self {
            parts,
            peers: Peers::default(),
            sinks: BTreeMap::new(),
            names: BTreeMap::new(),
            answers: BTreeMap::new(),
            masks,
            masks_due: Vec::new(),
            running: BTreeMap::new(),
            step_tokens: BTreeMap::new(),
            slow_readers: 0,
            resting: Resting::default(),
            follows_cache: false,
            outbox: Vec::new(),
            started: Instant::now(),
            end: None,
        }
    }

    /// Runs until it is told to stop or cannot go on; the reason in the latter case.
    pub(crate) async fn run(mut self) -> Result<(), String> {
        loop {
            let Some(event) = self.parts.events.recv().await else {
                return Ok(());
            };
            self.take(event);
            for _ in 0..EVENTS_PER_ROUND {
                match self.parts.events.try_recv() {
                    Ok(event) => self.take(event),
                    Err(_) => break,
                }
            }
            for id in self.parts.abandoned.take() {
                self.feed(Input::Abort(RequestId(id)));
            }
            self.send_plans().await;
            self.follow_cache();
            // Workers first, then whoever looks at the status, then readers: who sees an end sees its status too.
            self.publish();
            for action in std::mem::take(&mut self.outbox) {
                self.act_on_request(action);
            }
            self.parts.readers.end_round();
            self.resting.answer(&self.parts.fleet);
            if let Some(end) = self.end {
                self.parts.publisher.cache().close();
                return end;
            }
        }
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Wake => {}
            Event::Admin(admin) => self.admin(admin),
            Event::Submit(submission) => self.submit(*submission),
            Event::Join(worker, join, control) => {
                self.peers.add(worker, join.place(), join.incarnation.clone(), control);
                self.feed(Input::Join(worker, *join));
            }
            Event::Hello(hello) => self.hello(*hello),
            Event::Reply(worker, answer, received) => self.reply(worker, *answer, received),
            Event::Fleet(input) => {
                let gone = if let Input::Lost(worker, _) = &input { Some(*worker) } else { None };
                self.feed(input);
                if let Some(worker) = gone {
                    self.peers.remove(worker);
                }
            }
            Event::Tick => {
                let now_ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
                self.feed(Input::Tick(now_ms));
                self.end_slow_readers();
            }
            Event::Stop(reason) => {
                self.feed(Input::Stop(reason));
                self.end.get_or_insert(Ok(()));
            }
        }
    }

    fn submit(&mut self, submission: Submission) {
        let Submission { id, mut request, sink, answer } = submission;
        // Whoever leaves from now on is found in the list of the abandoned.
        if sink.is_abandoned() {
            return;
        }
        self.sinks.insert(RequestId(id), sink);
        self.names.insert(RequestId(id), request.request_id.as_str().into());
        self.answers.insert(RequestId(id), answer);
        let constraint = request.constraint.take();
        let spec = RequestSpec { constrained: constraint.is_some(), ..convert::spec(id, request) };
        if let Some(constraint) = constraint {
            self.masks.add(spec.id, constraint);
        }
        self.feed(Input::Submit(Box::new(spec)));
    }

    fn hello(&mut self, hello: Hello) {
        let worker = if hello.join_token == self.parts.join_token {
            let place = Place::new(DpRank::new(hello.dp_rank), hello.tp_rank);
            self.peers.attach(place, &hello.incarnation, hello.sender)
        } else {
            None
        };
        if let Some(worker) = worker {
            self.feed(Input::Attached(worker));
        }
        if hello.answer.send(worker).is_err()
            && let Some(worker) = worker
        {
            self.feed(Input::Lost(worker, "the steps stream was closed at once".to_owned()));
        }
    }

    /// Gives an input to the fleet and does what it says, and what that leads to.
    fn feed(&mut self, input: Input) {
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            for action in self.parts.fleet.handle(input) {
                if let Some(more) = self.act(action) {
                    inputs.push_back(more);
                }
            }
        }
    }

    fn act(&mut self, action: Action) -> Option<Input> {
        match action {
            Action::Welcome { worker, group, epoch, dp_ranks } => {
                let welcome = Welcome {
                    group: group.get(),
                    epoch: epoch.get(),
                    group_dp_ranks: dp_ranks.iter().map(|dp_rank| dp_rank.get()).collect(),
                    settings: Some(self.parts.settings.clone()),
                };
                return self.tell(worker, ToWorker::Welcome(welcome));
            }
            Action::RejectJoin { worker, field, expected, got } => {
                let rejected = Rejected { field: field.to_owned(), expected, got };
                self.peers.control(worker, ToWorker::Rejected(rejected));
                self.peers.remove(worker);
            }
            Action::BindStore { worker, epoch } => {
                return self.tell(worker, ToWorker::BindStore(BindStore { epoch: epoch.get() }));
            }
            Action::Form { worker, epoch, store, world_size, world_rank } => {
                let (host, port) = store.map_or_else(Default::default, |store| (store.host, store.port));
                let form = Form { epoch: epoch.get(), host, port, world_size, world_rank };
                return self.tell(worker, ToWorker::Form(form));
            }
            Action::StopWorker { worker, reason } => {
                self.peers.control(worker, ToWorker::Stop(Stop { reason }));
                self.peers.remove(worker);
            }
            Action::Drafts { request, drafts } => self.masks.draft(request, drafts),
            Action::Tokens { request, ref tokens, .. } => {
                self.masks.accept(request, tokens.iter().copied());
                self.outbox.push(action);
            }
            Action::Answer { .. } | Action::PromptLogprobs { .. } | Action::Fail { .. } | Action::Aborted { .. } => {
                self.outbox.push(action);
            }
            Action::Respawn { place } => {
                if self.parts.orders.try_send(LaunchOrder { place }).is_err() {
                    let name = place.name(self.parts.settings.tp_size);
                    tracing::warn!("{name}: nobody starts workers; waiting for one that dials in");
                }
            }
            Action::Sized => {
                let limits = convert::limits(&self.parts.fleet, self.parts.dp_size);
                self.parts.publisher.set_limits(limits);
            }
            Action::Fatal { message } => self.end = Some(Err(message)),
            Action::Log { level: Level::Info, message } => tracing::info!("{message}"),
            Action::Log { level: Level::Warn, message } => tracing::warn!("{message}"),
            Action::Log { level: Level::Error, message } => tracing::error!("{message}"),
        }
        None
    }

    fn act_on_request(&mut self, action: Action) {
        match action {
            Action::Answer { request, answer } => {
                if answer.is_err() {
                    self.forget(request);
                }
                if let Some(sender) = self.answers.remove(&request) {
                    // A caller that left is in the list of the abandoned.
                    let _ = sender.send(answer.map_err(convert::declined));
                }
            }
            Action::Tokens { request, cached_tokens, tokens, logprobs, finish: None } => {
                if let Some(sink) = self.sinks.get(&request) {
                    sink.cached_tokens(cached_tokens);
                    let filled = sink.fill(convert::outputs(&tokens, logprobs.into_vec()), None);
                    self.parts.readers.add(filled);
                }
            }
            Action::Tokens { request, cached_tokens, tokens, logprobs, finish: Some(finish) } => {
                if let Some(sink) = self.forget(request) {
                    sink.cached_tokens(cached_tokens);
                    let end = Some(convert::finish(finish));
                    self.parts.readers.add(sink.fill(convert::outputs(&tokens, logprobs.into_vec()), end));
                }
            }
            Action::PromptLogprobs { request, logprobs } => {
                if let Some(sink) = self.sinks.get(&request) {
                    sink.prompt_logprobs(logprobs.into_iter().map(convert::logprobs).collect());
                }
            }
            Action::Fail { request, kind, message } => {
                if let Some(sink) = self.forget(request) {
                    sink.fail(convert::failure(kind), message);
                }
            }
            Action::Aborted { request } => drop(self.forget(request)),
            _ => {}
        }
    }

    /// Ends requests whose readers leave tokens waiting: seats and blocks are for those who read.
    fn end_slow_readers(&mut self) {
        let Some(limit) = self.parts.unread else { return };
        let slow = self.sinks.iter().filter(|(_, sink)| sink.unread_for() > limit);
        for request in slow.map(|(request, _)| *request).collect::<Vec<_>>() {
            if let Some(sink) = self.sinks.get(&request) {
                let message = format!("nothing of the answer was read for {} s", limit.as_secs());
                sink.fail(FailureKind::SlowReader, message);
            }
            self.slow_readers += 1;
            self.feed(Input::Abort(request));
        }
    }

    fn forget(&mut self, request: RequestId) -> Option<TokenSink> {
        self.names.remove(&request);
        self.masks.remove(request);
        self.sinks.remove(&request)
    }

    fn tell(&self, worker: WorkerId, message: ToWorker) -> Option<Input> {
        let told = self.peers.control(worker, message);
        (!told).then(|| Input::Lost(worker, "it does not read its control stream".to_owned()))
    }

    fn publish(&self) {
        let known = self.sinks.len().max(self.names.len()).max(self.answers.len());
        let step_tokens = self.step_tokens.values().copied().collect();
        let slow_readers = self.slow_readers;
        let status = convert::status(&self.parts.fleet);
        self.parts.publisher.publish(FleetStatus { known, slow_readers, step_tokens, ..status });
    }
}
