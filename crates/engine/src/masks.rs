//! Masks of constrained rows (rule 19): made on threads of their own while the forward runs, sent when they are ready.
//!
//! The step loop only notes what was accepted and what was drafted; everything a grammar costs is paid in the pool. A
//! request's rows come one step after another, and a step is answered only after its masks were sent: nobody waits for a
//! lock.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use paceline_fleet::{Input, WorkerId};
use paceline_grammar::{Constraint, Error, TokenMask};
use paceline_plan::{Epoch, GroupId, RowMasks, StepId, StepMasks, Words, to_bytes};
use paceline_proto::v1::{Masks as MasksMessage, StepToWorker, step_to_worker};
use paceline_scheduler::{MaskedRow, RequestId};
use tokio::sync::mpsc;

use crate::event::{Event, StepsSender};

/// Threads of the pool at most.
const THREADS_MAX: usize = 8;

/// What holds for the tokens of one live request.
struct Live {
    /// Gone once no token could follow.
    constraint: Mutex<Option<Constraint>>,
    id: RequestId,
}

struct Entry {
    live: Arc<Live>,
    /// Tokens that the constraint has not seen yet.
    accepted: Vec<u32>,
    /// Drafts of the next row.
    drafts: Words,
}

/// The step whose rows wait for masks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepName {
    pub(crate) group: GroupId,
    pub(crate) epoch: Epoch,
    pub(crate) step: StepId,
}

/// One rank's rows of a step that was sent, and who waits for their masks.
pub(crate) struct Due {
    pub(crate) name: StepName,
    pub(crate) rows: Vec<MaskedRow>,
    pub(crate) workers: Vec<(WorkerId, StepsSender)>,
}

/// The constraints of all live requests that have one.
pub(crate) struct Masks {
    entries: BTreeMap<RequestId, Entry>,
    /// Weak: the loop ends when nobody else can send.
    events: mpsc::WeakSender<Event>,
    /// Made for the first request that needs it.
    pool: Option<Pool>,
}

impl Masks {
    pub(crate) const fn new(events: mpsc::WeakSender<Event>) -> Self {
        Self { entries: BTreeMap::new(), events, pool: None }
    }

    /// Whether no live request is constrained.
    pub(crate) fn is_idle(&self) -> bool {
        self.entries.is_empty()
    }

    pub(crate) fn add(&mut self, id: RequestId, constraint: Constraint) {
        let live = Arc::new(Live { constraint: Mutex::new(Some(constraint)), id });
        self.entries.insert(id, Entry { live, accepted: Vec::new(), drafts: Words::EMPTY });
    }

    pub(crate) fn remove(&mut self, id: RequestId) {
        self.entries.remove(&id);
    }

    /// Tokens that are part of the request's output now.
    pub(crate) fn accept(&mut self, id: RequestId, tokens: impl Iterator<Item = u32>) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.accepted.extend(tokens);
        }
    }

    /// Drafts of the request's next row.
    pub(crate) fn draft(&mut self, id: RequestId, drafts: Words) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.drafts = drafts;
        }
    }

    /// Makes the masks of one rank's rows and sends them to its workers. The step before is committed.
    pub(crate) fn order(&mut self, due: Due, vocab_size: u32) {
        let Due { name, rows, workers } = due;
        let Some(events) = self.events.upgrade() else { return };
        let mut tasks = Vec::with_capacity(rows.len());
        for row in &rows {
            tasks.push(self.entries.get_mut(&row.id).map(|entry| {
                let mut drafts = std::mem::take(&mut entry.drafts);
                drafts.truncate(row.drafts as usize);
                RowOrder { live: Arc::clone(&entry.live), accepted: std::mem::take(&mut entry.accepted), drafts }
            }));
        }
        let order = Arc::new(Order {
            name,
            vocab_size,
            workers,
            made: Mutex::new(vec![Vec::new(); rows.len()]),
            left: AtomicUsize::new(rows.len()),
            rows,
            events,
        });
        let pool = self.pool.get_or_insert_with(Pool::start);
        for (index, row) in tasks.into_iter().enumerate() {
            pool.push(Task { order: Arc::clone(&order), index, row });
        }
    }
}

/// What one row's masks are made of.
struct RowOrder {
    live: Arc<Live>,
    accepted: Vec<u32>,
    drafts: Words,
}

impl RowOrder {
    /// The row's masks; the first failure ends the constraint.
    fn make(&self, vocab_size: u32) -> Result<Vec<Option<Words>>, Error> {
        let mut held = self.live.constraint.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(constraint) = held.as_mut() else { return Ok(Vec::new()) };
        let made = constraint.accept(&self.accepted).and_then(|()| constraint.masks(&self.drafts));
        let made = made.and_then(|masks| masks.into_iter().map(|mask| words(mask, vocab_size)).collect());
        if made.is_err() {
            *held = None;
        }
        made
    }
}

/// A mask as long as the model's vocabulary, which may be longer or shorter than the tokenizer's.
fn words(mask: TokenMask, vocab_size: u32) -> Result<Option<Words>, Error> {
    let TokenMask::Only(mut words) = mask else { return Ok(None) };
    words.resize(vocab_size.div_ceil(32) as usize, 0);
    let rest = vocab_size % 32;
    if let (1.., Some(last)) = (rest, words.last_mut()) {
        *last &= (1 << rest) - 1;
    }
    if words.iter().all(|word| *word == 0) {
        let message = format!("what may come is past the {vocab_size} tokens of the model");
        return Err(Error::Stuck { message });
    }
    Ok(Some(words.into()))
}

/// The masks of one rank's rows in one step, on their way.
struct Order {
    name: StepName,
    vocab_size: u32,
    workers: Vec<(WorkerId, StepsSender)>,
    rows: Vec<MaskedRow>,
    made: Mutex<Vec<Vec<Option<Words>>>>,
    /// Rows without masks.
    left: AtomicUsize,
    events: mpsc::Sender<Event>,
}

impl Order {
    fn finish(&self) {
        let made = std::mem::take(&mut *self.made.lock().unwrap_or_else(PoisonError::into_inner));
        let rows = self.rows.iter().zip(made);
        let rows =
            rows.map(|(row, positions)| RowMasks { seat: row.seat, generation: row.generation, positions }).collect();
        let body = bytes::Bytes::from(to_bytes(&StepMasks { rows }));
        let StepName { group, epoch, step } = self.name;
        for (worker, sender) in &self.workers {
            let masks = MasksMessage { group: group.get(), epoch: epoch.get(), step: step.get(), body: body.clone() };
            let message = StepToWorker { message: Some(step_to_worker::Message::Masks(masks)) };
            if sender.try_send(Ok(message)).is_err() {
                let reason = "it does not read its steps stream".to_owned();
                tell(&self.events, Input::Lost(*worker, reason));
            }
        }
    }
}

/// One row to make masks of.
struct Task {
    order: Arc<Order>,
    index: usize,
    /// Nothing for a request that has ended: its row does not count.
    row: Option<RowOrder>,
}

impl Task {
    fn run(self) {
        let positions = self.order.rows[self.index].drafts as usize + 1;
        let mut made = match &self.row {
            None => Vec::new(),
            Some(row) => row.make(self.order.vocab_size).unwrap_or_else(|error| {
                // Told before the masks are sent, so that it is known before the step is answered.
                tell(&self.order.events, Input::Stuck(row.live.id, error.to_string()));
                Vec::new()
            }),
        };
        // Drafts that were planned and not proposed are placeholders (rule 16): any mask does.
        made.resize(positions, None);
        self.order.made.lock().unwrap_or_else(PoisonError::into_inner)[self.index] = made;
        if self.order.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.order.finish();
        }
    }
}

/// Tells the step loop, which may be this very thread where the system gave none for masks.
fn tell(events: &mpsc::Sender<Event>, input: Input) {
    // A closed channel means that the step loop has ended.
    if let Err(mpsc::error::TrySendError::Full(event)) = events.try_send(Event::Fleet(input)) {
        let events = events.clone();
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(async move { events.send(event).await })),
            Err(_) => drop(events.blocking_send(event)),
        }
    }
}

/// Tasks that wait: at most one per row of the steps in flight.
#[derive(Default)]
struct Waiting {
    tasks: VecDeque<Task>,
    closed: bool,
}

#[derive(Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    filled: Condvar,
}

/// Threads that make masks. They end with it.
struct Pool {
    shared: Arc<Shared>,
    threads: usize,
}

impl Pool {
    fn start() -> Self {
        let shared = Arc::new(Shared::default());
        let wanted = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
        let start = |index: &usize| {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new().name(format!("masks-{index}")).spawn(move || work(&shared)).is_ok()
        };
        let threads = (0..wanted).filter(start).count();
        if threads < wanted {
            tracing::warn!("{threads} threads make masks: the system gives no more");
        }
        Self { shared, threads }
    }

    fn push(&self, task: Task) {
        if self.threads == 0 {
            return task.run();
        }
        self.shared.waiting.lock().unwrap_or_else(PoisonError::into_inner).tasks.push_back(task);
        self.shared.filled.notify_one();
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.waiting.lock().unwrap_or_else(PoisonError::into_inner).closed = true;
        self.shared.filled.notify_all();
    }
}

fn work(shared: &Shared) {
    loop {
        let mut waiting = shared.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let task = loop {
            if waiting.closed {
                return;
            }
            if let Some(task) = waiting.tasks.pop_front() {
                break task;
            }
            waiting = shared.filled.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        };
        drop(waiting);
        task.run();
    }
}
