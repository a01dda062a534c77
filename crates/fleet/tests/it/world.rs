//! A fleet and pretended workers that answer plans with the same token again and again.

use std::collections::BTreeMap;

use paceline_fleet::{
    Action, AnswerBody, Config, Contract, Deadlines, Dispatch, Encoded, Fleet, Input, Join, Loaded, Place, StepAnswer,
    StoreAddress, TpEcho, WorkerId,
};
use paceline_plan::seats::{RowOutcome, SeatTable, StepHeader};
use paceline_plan::{DpRank, Epoch, LogitsWanted, StepReply, WorkerLimits};
use paceline_scheduler::{Drafter, Policies, QueueLimits, RequestId, RequestSpec, ShapeConfig};

pub(crate) const LIMITS: WorkerLimits = WorkerLimits {
    seats: 4,
    max_num_seqs: 4,
    max_num_batched_tokens: 64,
    max_model_len: 128,
    block_size: 16,
    num_blocks: 0,
    k_max: 0,
    row_capacity: 4,
    token_capacity: 64,
    table_width: 8,
    vocab_size: 0,
};

pub(crate) fn loaded() -> Loaded {
    let contract = Contract { name: "reference".to_owned(), ..Contract::default() };
    Loaded { num_blocks: 32, row_capacity: 4, vocab_size: 50, contract }
}

pub(crate) fn config(dp_size: u32, lockstep: bool) -> Config {
    Config {
        dp_size,
        tp_size: 1,
        lockstep,
        join_token: "secret".to_owned(),
        protocol_hash: "hash".to_owned(),
        limits: LIMITS,
        shapes: ShapeConfig::cpu_default(4, &[0], 4),
        k: 0,
        k_by_rows: Vec::new(),
        depth: 0,
        drafter: Drafter::None,
        drafter_layers: 0,
        queue: QueueLimits::default(),
        prefix_cache: None,
        policies: Policies::default(),
        fatal_start: false,
        deadlines: Deadlines::default(),
    }
}

pub(crate) fn join(dp_rank: u32) -> Join {
    Join {
        dp_rank,
        tp_rank: 0,
        incarnation: format!("incarnation of {dp_rank}"),
        join_token: "secret".to_owned(),
        protocol_hash: "hash".to_owned(),
        checkpoint_digest: "weights".to_owned(),
        tokenizer_digest: "words".to_owned(),
        process_id: 1_000 + dp_rank,
    }
}

/// The join of worker `tp_rank` of a rank.
pub(crate) fn join_tp(dp_rank: u32, tp_rank: u32) -> Join {
    Join { tp_rank, process_id: 1_000 + 100 * tp_rank + dp_rank, ..join(dp_rank) }
}

pub(crate) fn spec(id: u64, pinned: Option<u32>) -> Input {
    Input::Submit(Box::new(RequestSpec {
        id: RequestId(id),
        prompt: vec![1, 2, 3],
        max_new_tokens: 20,
        stop_token_ids: Vec::new(),
        sampling: Vec::new(),
        pinned: pinned.map(DpRank::new),
        priority: 0,
        history: false,
        prompt_logprobs: false,
        cache_salt: Vec::new(),
        constrained: false,
        shares_prompt_with: None,
    }))
}

/// A fleet with its workers' mirrors.
pub(crate) struct World {
    pub(crate) fleet: Fleet,
    pub(crate) tables: BTreeMap<WorkerId, SeatTable>,
    /// Who is where, of all that ever joined.
    pub(crate) places: BTreeMap<WorkerId, Place>,
    next_worker: u64,
}

impl World {
    pub(crate) fn new(config: Config) -> Self {
        let fleet = Fleet::new(config).expect("a valid configuration");
        Self { fleet, tables: BTreeMap::new(), places: BTreeMap::new(), next_worker: 1 }
    }

    /// A fleet with all its ranks in service.
    pub(crate) fn ready(config: Config) -> Self {
        let (dp_size, tp_size) = (config.dp_size, config.tp_size);
        let mut world = Self::new(config);
        for dp_rank in 0..dp_size {
            for tp_rank in 0..tp_size {
                world.load_tp(dp_rank, tp_rank);
            }
        }
        assert!(world.fleet.is_ready());
        world
    }

    pub(crate) fn worker_id(&mut self) -> WorkerId {
        self.next_worker += 1;
        WorkerId::new(self.next_worker - 1)
    }

    /// Lets a worker join and load; answers whatever it is asked. What happened, for a closer look.
    pub(crate) fn load(&mut self, dp_rank: u32) -> (WorkerId, Vec<Action>) {
        self.load_tp(dp_rank, 0)
    }

    /// The same for worker `tp_rank` of the rank.
    pub(crate) fn load_tp(&mut self, dp_rank: u32, tp_rank: u32) -> (WorkerId, Vec<Action>) {
        let worker = self.worker_id();
        let mut actions = self.feed(Input::Join(worker, join_tp(dp_rank, tp_rank)));
        actions.extend(self.feed(Input::Attached(worker)));
        actions.extend(self.feed(Input::Loaded(worker, loaded())));
        (worker, actions)
    }

    /// Gives an input to the fleet and plays the workers' part of membership. All actions, in order.
    pub(crate) fn feed(&mut self, input: Input) -> Vec<Action> {
        if let Input::Join(worker, join) = &input {
            self.places.insert(*worker, join.place());
        }
        let mut inputs = vec![input];
        let mut all = Vec::new();
        while let Some(input) = inputs.pop() {
            let actions = self.fleet.handle(input);
            for action in &actions {
                match action {
                    Action::Welcome { worker, dp_ranks, .. } => {
                        let limits = WorkerLimits { num_blocks: 32, vocab_size: 50, ..LIMITS };
                        let dp_rank = self.places[worker].dp_rank;
                        let table = SeatTable::new(limits, dp_rank, dp_ranks.clone()).expect("in the group");
                        self.tables.insert(*worker, table.with_depth(1));
                    }
                    Action::BindStore { worker, epoch } => {
                        let address = StoreAddress { host: "here".to_owned(), port: 7 };
                        inputs.push(Input::StoreBound(*worker, *epoch, address));
                    }
                    Action::Form { worker, epoch, .. } => {
                        self.form(*worker, *epoch);
                        inputs.push(Input::Formed(*worker, *epoch));
                    }
                    Action::StopWorker { worker, .. } => drop(self.tables.remove(worker)),
                    _ => {}
                }
            }
            all.extend(actions);
        }
        all
    }

    fn form(&mut self, worker: WorkerId, epoch: Epoch) {
        self.tables.get_mut(&worker).expect("a welcomed worker").reset(epoch);
    }

    /// Sends the next plan, if there is one.
    pub(crate) fn dispatch(&mut self) -> Option<(Dispatch, Encoded)> {
        let dispatch = self.fleet.next_dispatch()?;
        let encoded = dispatch.encode();
        self.fleet.sent(&dispatch, &encoded);
        Some((dispatch, encoded))
    }

    /// What a worker answers to its part of a plan.
    pub(crate) fn answer(&mut self, dispatch: &Dispatch, encoded: &Encoded, worker: WorkerId) -> StepAnswer {
        let group = dispatch.plan().group();
        let table = self.tables.get_mut(&worker).expect("a live worker");
        let (_, part) = encoded.rank_parts.iter().find(|(other, _)| *other == worker).expect("in the plan");
        let (group, epoch, step, digest) = (group.group(), group.epoch(), group.step(), encoded.digest);
        let header = StepHeader { group, epoch, step, digest };
        let step_now = table.begin(header, &encoded.group_part, part).expect("a plan that keeps the rules");
        let outcome = |wanted: LogitsWanted| match wanted {
            LogitsWanted::None => RowOutcome::default(),
            _ => RowOutcome { emitted: vec![9], ..RowOutcome::default() },
        };
        let outcomes = step_now.rank.rows().iter().map(|row| outcome(row.logits)).collect();
        let reply = table.commit(&step_now, outcomes);
        let body = reply.map(|reply| match self.places[&worker].tp_rank {
            0 => AnswerBody::Rows(reply),
            _ => AnswerBody::Echo(TpEcho::from(&reply)),
        });
        StepAnswer { group, epoch, step, digest, body }
    }

    /// Runs a whole step of every group that has work.
    pub(crate) fn step(&mut self) -> Option<Vec<Action>> {
        let mut sent = Vec::new();
        while let Some(dispatched) = self.dispatch() {
            sent.push(dispatched);
        }
        let mut all = Vec::new();
        for (dispatch, encoded) in &sent {
            for (worker, _) in &encoded.rank_parts {
                let answer = self.answer(dispatch, encoded, *worker);
                all.extend(self.feed(Input::Reply(*worker, answer)));
            }
        }
        (!sent.is_empty()).then_some(all)
    }
}

/// The requests that end with an error among `actions`.
pub(crate) fn failed(actions: &[Action]) -> Vec<u64> {
    let id = |action: &Action| if let Action::Fail { request, .. } = action { Some(request.0) } else { None };
    actions.iter().filter_map(id).collect()
}

/// The ranks that need a new worker among `actions`, once for each worker.
pub(crate) fn respawned(actions: &[Action]) -> Vec<u32> {
    respawned_places(actions).into_iter().map(|(dp_rank, _)| dp_rank).collect()
}

/// The places, by rank and tp rank, that need a new worker among `actions`.
pub(crate) fn respawned_places(actions: &[Action]) -> Vec<(u32, u32)> {
    let place = |action: &Action| match action {
        Action::Respawn { place } => Some((place.dp_rank.get(), place.tp_rank)),
        _ => None,
    };
    actions.iter().filter_map(place).collect()
}

/// What tp worker 0 says of its rows.
pub(crate) fn reply_of(answer: &mut StepAnswer) -> &mut StepReply {
    match answer.body.as_mut().expect("valid") {
        AnswerBody::Rows(reply) => reply,
        AnswerBody::Echo(echo) => panic!("{echo:?}"),
    }
}
