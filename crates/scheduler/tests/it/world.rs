//! A scheduler, a worker per rank, and a model whose every next token is known: each plan is checked against the step
//! rules, decoded and applied by `plan::seats` as a worker would, and each finished request against the model.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use paceline_plan::seats::{RowOutcome, SeatState, SeatTable, StepHeader, WorkerStep};
use paceline_plan::{DpRank, GroupId, LogitsWanted, Row, StepPlan, StepReply, WorkerLimits, digest, to_bytes};
use paceline_scheduler::{Config, Drafter, Finish, Output, Refusal, RequestId, RequestSpec, Scheduler, ShapeConfig};

use crate::arrays::Arrays;
use crate::checks::check_plan;
use crate::drafting::{Drafting, Known};

/// splitmix64: small, seeded, the same everywhere.
#[derive(Clone, Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Below `end`.
    pub(crate) fn below(&mut self, end: u32) -> u32 {
        (self.next() % u64::from(end.max(1))) as u32
    }

    pub(crate) fn chance(&mut self, permille: u32) -> bool {
        self.below(1000) < permille
    }
}

const fn mix(mut value: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// What the model says after these tokens.
pub(crate) fn next_token(history: &[u32], vocab_size: u32) -> u32 {
    let tail = history.iter().rev().take(4).fold(history.len() as u64, |hash, token| mix(hash ^ u64::from(*token)));
    (tail % u64::from(vocab_size)) as u32
}

/// Sizes that let everything fit, to be narrowed by a test.
pub(crate) fn limits(max_num_seqs: u32, k: u32) -> WorkerLimits {
    WorkerLimits {
        seats: max_num_seqs,
        max_num_seqs,
        max_num_batched_tokens: 8192,
        max_model_len: 4096,
        block_size: 16,
        num_blocks: 4096,
        k_max: k,
        row_capacity: max_num_seqs,
        token_capacity: 8192,
        table_width: (4096 + k).div_ceil(16),
        vocab_size: 1000,
    }
}

/// One lockstep group of `ranks` ranks with ladder 1..=S, n-gram drafts when k > 0.
pub(crate) fn lockstep(ranks: u32, max_num_seqs: u32, k: u32) -> Config {
    let shapes = ShapeConfig::cpu_default(max_num_seqs, &[k], max_num_seqs);
    let mut config = Config::new(Config::lockstep_groups(ranks), limits(max_num_seqs, k), shapes);
    config.k = k;
    config.drafter = if k > 0 { Drafter::Ngram } else { Drafter::None };
    config
}

#[derive(Clone, Debug)]
pub(crate) struct Live {
    pub(crate) spec: RequestSpec,
    pub(crate) emitted: Vec<u32>,
    pub(crate) finished: Option<Finish>,
    pub(crate) aborted: bool,
}

pub(crate) struct World {
    pub(crate) scheduler: Scheduler,
    pub(crate) workers: Vec<SeatTable>,
    /// What each worker's kernels would be given, by rank.
    pub(crate) arrays: Vec<Arrays>,
    /// Each worker's drafter, by rank, where it has KV of its own.
    pub(crate) drafting: Vec<Drafting>,
    /// Each worker's newest step, by rank.
    pub(crate) latest: Vec<Option<WorkerStep>>,
    pub(crate) random: Random,
    pub(crate) requests: BTreeMap<RequestId, Live>,
    /// How often a proposed draft is what the model says, in 1/1000.
    pub(crate) accept_permille: u32,
    /// How often a row gets all the drafts it may, in 1/1000; else a random number of them. 0: no row gets any.
    pub(crate) propose_permille: u32,
    pub(crate) steps: u64,
    /// Requests in each plan since the world began, by step: only kept when a test asks.
    pub(crate) trace: Option<Vec<BTreeSet<RequestId>>>,
    next_id: u64,
    /// Steps of groups whose replies [`Self::step`] and [`Self::round`] have not delivered yet, the oldest first.
    late: VecDeque<(u32, Vec<Pending>)>,
}

/// A worker's step whose reply is not delivered yet.
pub(crate) struct Pending {
    pub(crate) dp_rank: DpRank,
    pub(crate) header: StepHeader,
    pub(crate) reply: StepReply,
}

impl World {
    pub(crate) fn new(config: Config) -> Self {
        let limits = config.limits;
        let mut workers: Vec<(DpRank, SeatTable)> = Vec::new();
        for group in &config.groups {
            for dp_rank in group {
                let worker = SeatTable::new(limits, *dp_rank, group.clone()).expect("the rank is in its group");
                let mut worker = worker.with_drafter_layers(config.lookahead()).with_depth(config.depth);
                worker.reset(paceline_plan::Epoch::new(1));
                workers.push((*dp_rank, worker));
            }
        }
        workers.sort_by_key(|(dp_rank, _)| *dp_rank);
        Self {
            arrays: workers.iter().map(|_| Arrays::new(&limits)).collect(),
            drafting: workers.iter().map(|(_, worker)| Drafting::new(worker)).collect(),
            latest: vec![None; workers.len()],
            scheduler: Scheduler::new(config).expect("a correct configuration"),
            workers: workers.into_iter().map(|(_, worker)| worker).collect(),
            random: Random(7),
            requests: BTreeMap::new(),
            accept_permille: 1000,
            propose_permille: 1000,
            steps: 0,
            trace: None,
            next_id: 0,
            late: VecDeque::new(),
        }
    }

    pub(crate) fn spec(&mut self, prompt_len: u32, max_new_tokens: u32) -> RequestSpec {
        self.next_id += 1;
        let vocab_size = self.scheduler.config().limits.vocab_size;
        let mut random = Random(self.next_id * 1_000_003);
        RequestSpec {
            id: RequestId(self.next_id),
            prompt: (0..prompt_len).map(|_| random.below(vocab_size)).collect(),
            max_new_tokens,
            stop_token_ids: Vec::new(),
            sampling: self.next_id.to_le_bytes().to_vec(),
            pinned: None,
            priority: 0,
            history: true,
            prompt_logprobs: false,
            cache_salt: Vec::new(),
            constrained: false,
            shares_prompt_with: None,
        }
    }

    pub(crate) fn submit_spec(&mut self, spec: RequestSpec) -> Result<RequestId, Refusal> {
        let id = spec.id;
        self.scheduler.submit(spec.clone())?;
        self.requests.insert(id, Live { spec, emitted: Vec::new(), finished: None, aborted: false });
        Ok(id)
    }

    pub(crate) fn submit(&mut self, prompt_len: u32, max_new_tokens: u32) -> RequestId {
        let spec = self.spec(prompt_len, max_new_tokens);
        self.submit_spec(spec).expect("the request fits")
    }

    pub(crate) fn submit_to(&mut self, dp_rank: u32, prompt_len: u32, max_new_tokens: u32) -> RequestId {
        let mut spec = self.spec(prompt_len, max_new_tokens);
        spec.pinned = Some(DpRank::new(dp_rank));
        self.submit_spec(spec).expect("the request fits")
    }

    pub(crate) fn abort(&mut self, id: RequestId) -> bool {
        let done = self.scheduler.abort(id);
        if done {
            self.requests.get_mut(&id).expect("a known request").aborted = true;
        }
        done
    }

    /// Plans a step and runs it on every rank's worker; the replies are not delivered.
    pub(crate) fn launch(&mut self, group: GroupId) -> Option<(StepPlan, Vec<Pending>)> {
        let plan = self.scheduler.plan(group)?;
        self.steps += 1;
        check_plan(&plan, &self.scheduler);
        let part = to_bytes(plan.group());
        let header =
            StepHeader { group, epoch: plan.group().epoch(), step: plan.group().step(), digest: digest(&part) };
        let mut pending = Vec::new();
        let mut traced = BTreeSet::new();
        for rank in plan.ranks() {
            let dp_rank = rank.dp_rank();
            let step = self.workers[dp_rank.index()]
                .begin(header, &part, &to_bytes(rank))
                .unwrap_or_else(|error| panic!("worker {dp_rank} refuses: {error}"));
            assert_eq!(step.group, *plan.group(), "every rank has the same passes");
            self.arrays[dp_rank.index()].fill_and_check(&self.workers[dp_rank.index()], &step);
            let mut outcomes = self.execute(dp_rank, &step, &mut traced);
            if self.scheduler.config().drafter == Drafter::Model {
                self.draft(dp_rank, &step, &mut outcomes);
            } else {
                self.look_up_drafts(dp_rank, &step, &mut outcomes);
            }
            let reply = self.workers[dp_rank.index()].commit(&step, outcomes).expect("outcomes fit their rows");
            assert_eq!(reply.passes as usize, plan.group().passes().len());
            self.latest[dp_rank.index()] = Some(step);
            pending.push(Pending { dp_rank, header, reply });
        }
        if let Some(trace) = &mut self.trace {
            trace.push(traced);
        }
        Some((plan, pending))
    }

    fn execute(&mut self, dp_rank: DpRank, step: &WorkerStep, traced: &mut BTreeSet<RequestId>) -> Vec<RowOutcome> {
        let mut outcomes = Vec::new();
        for (index, row) in step.rank.rows().iter().enumerate() {
            let state = self.workers[dp_rank.index()].seat(row.seat).expect("the row's seat is taken").clone();
            let id = RequestId(u64::from_le_bytes(state.sampling().try_into().expect("eight bytes")));
            traced.insert(id);
            let live = &self.requests[&id];
            let known = self.known_to_worker(live, &state);
            assert_eq!(state.tokens(), &known[..state.known() as usize], "request {id}: what the worker was told");
            assert!(live.spec.pinned.is_none_or(|pinned| pinned == dp_rank), "request {id} runs where it is pinned");
            assert!(!live.aborted, "request {id} is in a plan after its abort");
            let is_decode = index < step.rank.decode_rows() as usize;
            let is_last = is_decode || (state.computed() + row.query_len.get()) as usize == known.len();
            let samples = if row.logits == LogitsWanted::All { is_last } else { row.logits != LogitsWanted::None };
            assert_eq!(samples, is_last, "request {id}: logits where all is known");
            outcomes.push(if is_last { self.outcome(&state, row) } else { RowOutcome::default() });
        }
        outcomes
    }

    /// The tokens of a request, and further ones that its worker has made in steps whose replies are not delivered: what
    /// the model says, even past the request's end.
    fn known_to_worker(&self, live: &Live, state: &SeatState) -> Vec<u32> {
        let vocab_size = self.scheduler.config().limits.vocab_size;
        let mut known = [&live.spec.prompt[..], &live.emitted].concat();
        while known.len() < state.known() as usize {
            assert!(self.scheduler.config().depth > 0, "at depth 0 every reply is delivered before the next step");
            known.push(next_token(&known, vocab_size));
        }
        known
    }

    /// Drafts without a pass, as an n-gram drafter makes them: not always as many as it may.
    fn look_up_drafts(&mut self, dp_rank: DpRank, step: &WorkerStep, outcomes: &mut [RowOutcome]) {
        for (row, outcome) in step.rank.rows().iter().zip(outcomes) {
            if outcome.emitted.is_empty() {
                continue;
            }
            let mut history = self.workers[dp_rank.index()].seat(row.seat).expect("a taken seat").tokens().to_vec();
            history.extend_from_slice(&outcome.emitted);
            for _ in 0..self.drafts_found(step.group.k_draft()) {
                outcome.proposed.push(self.one_draft(&mut history));
            }
        }
    }

    /// Drafts by a drafter with KV, pass by pass. It gives all that are asked for; a worker may still report fewer.
    fn draft(&mut self, dp_rank: DpRank, step: &WorkerStep, outcomes: &mut [RowOutcome]) {
        let table = self.workers[dp_rank.index()].clone();
        let rows = step.rank.rows().iter().enumerate().zip(outcomes.iter());
        let known = rows.map(|((index, row), outcome)| {
            let state = table.seat(row.seat).expect("the row's seat is taken");
            let live = &self.requests[&RequestId(u64::from_le_bytes(state.sampling().try_into().expect("8 bytes")))];
            let tokens = [&self.known_to_worker(live, state)[..], &outcome.emitted].concat();
            Known { row, state, is_decode: index < step.rank.decode_rows() as usize, tokens }
        });
        let known: Vec<Known<'_>> = known.collect();
        let (drafting, k_draft) = (dp_rank.index(), step.group.k_draft());
        self.drafting[drafting].extend(&table, step, outcomes, &known, &self.arrays[drafting]);
        let mut histories: Vec<Vec<u32>> = known.iter().map(|known| known.tokens.clone()).collect();
        for index in 1..=k_draft {
            if index > 1 {
                self.drafting[drafting].single(&table, step, index, outcomes, &known);
            }
            for (outcome, history) in outcomes.iter_mut().zip(&mut histories) {
                if !outcome.emitted.is_empty() {
                    outcome.proposed.push(self.one_draft(history));
                }
            }
        }
        for outcome in outcomes.iter_mut().filter(|outcome| !outcome.emitted.is_empty()) {
            outcome.proposed.truncate(self.drafts_found(k_draft) as usize);
        }
    }

    fn drafts_found(&mut self, k_draft: u32) -> u32 {
        match self.propose_permille {
            0 => 0,
            permille if self.random.chance(permille) => k_draft,
            _ => self.random.below(k_draft + 1),
        }
    }

    fn one_draft(&mut self, history: &mut Vec<u32>) -> u32 {
        let vocab_size = self.scheduler.config().limits.vocab_size;
        let token = next_token(history, vocab_size);
        let is_right = self.random.chance(self.accept_permille);
        let draft = if is_right { token } else { (token + 1) % vocab_size };
        history.push(draft);
        draft
    }

    fn outcome(&self, state: &SeatState, row: &Row) -> RowOutcome {
        let vocab_size = self.scheduler.config().limits.vocab_size;
        let mut outcome = RowOutcome::default();
        let mut history = state.tokens().to_vec();
        loop {
            let token = next_token(&history, vocab_size);
            history.push(token);
            outcome.emitted.push(token);
            let verified = outcome.emitted.len();
            let agrees = state.drafts_of(row).get(verified - 1) == Some(&token);
            if !agrees {
                break;
            }
            outcome.accepted += 1;
        }
        outcome
    }

    pub(crate) fn deliver(&mut self, pending: Pending) -> Vec<Output> {
        let Pending { dp_rank, header, reply } = pending;
        let outputs = self.scheduler.commit(dp_rank, header.epoch, header.step, reply).expect("a true reply");
        for output in &outputs {
            self.take(output);
        }
        outputs
    }

    fn take(&mut self, output: &Output) {
        let vocab_size = self.scheduler.config().limits.vocab_size;
        let live = self.requests.get_mut(&output.id).expect("a known request");
        assert!(live.finished.is_none() && !live.aborted, "request {} gets tokens after its end", output.id);
        assert!(!output.tokens.is_empty());
        let mut history = live.spec.prompt.clone();
        history.extend_from_slice(&live.emitted);
        for (index, token) in output.tokens.iter().copied().enumerate() {
            assert_eq!(token, next_token(&history, vocab_size), "request {}: text", output.id);
            history.push(token);
            live.emitted.push(token);
            let is_stop = live.spec.stop_token_ids.contains(&token);
            let is_length = live.emitted.len() as u32 == live.spec.max_new_tokens;
            let is_last = index + 1 == output.tokens.len();
            let expected = if is_stop {
                Some(Finish::Stop(token))
            } else if is_length {
                Some(Finish::Length)
            } else {
                None
            };
            assert_eq!(if is_last { output.finished } else { None }, expected, "request {}: end", output.id);
        }
        live.finished = output.finished;
    }

    /// Plans and runs one step, and commits the oldest when more are in flight than are planned ahead. Nothing when nothing is
    /// left to run.
    pub(crate) fn step(&mut self, group: u32) -> Option<StepPlan> {
        loop {
            let launched = self.launch(GroupId::new(group));
            let depth = if launched.is_some() { self.scheduler.config().depth as usize } else { 0 };
            let plan = launched.map(|(plan, replies)| {
                self.late.push_back((group, replies));
                plan
            });
            let answered = self.deliver_late(group, depth);
            if plan.is_some() || !answered {
                return plan;
            }
        }
    }

    /// One step of every group, like [`Self::step`]; false when nothing was run and nothing answered.
    pub(crate) fn round(&mut self) -> bool {
        let groups = self.scheduler.config().groups.len() as u32;
        let depth = self.scheduler.config().depth as usize;
        let launched: Vec<_> = (0..groups).map(|group| self.launch(GroupId::new(group))).collect();
        let mut any = false;
        for (group, launched) in (0..groups).zip(launched) {
            let keep = if launched.is_some() { depth } else { 0 };
            any |= launched.is_some();
            self.late.extend(launched.map(|(_, replies)| (group, replies)));
            any |= self.deliver_late(group, keep);
        }
        any
    }

    /// Delivers the oldest replies of a group until so many of its steps are left; whether there were any.
    fn deliver_late(&mut self, group: u32, keep: usize) -> bool {
        let mut any = false;
        while self.late.iter().filter(|(other, _)| *other == group).count() > keep {
            let oldest = self.late.iter().position(|(other, _)| *other == group).expect("one was counted");
            let (_, replies) = self.late.remove(oldest).expect("it has a place");
            for reply in replies {
                self.deliver(reply);
            }
            any = true;
        }
        any
    }

    /// Keeps as many steps in flight as may be, and delivers the oldest reply, until nothing is left to run.
    pub(crate) fn drain_ahead(&mut self, pending: Vec<Pending>) {
        let groups = self.scheduler.config().groups.len() as u32;
        let mut pending = VecDeque::from(pending);
        for _ in 0..1_000_000 {
            for group in 0..groups {
                while let Some((_, more)) = self.launch(GroupId::new(group)) {
                    pending.extend(more);
                }
            }
            match pending.pop_front() {
                Some(reply) => drop(self.deliver(reply)),
                None => return,
            }
        }
        panic!("no end in sight");
    }

    /// Steps until nothing is left to run; how many rounds that took.
    pub(crate) fn drain(&mut self) -> u64 {
        let mut rounds = 0;
        while self.round() {
            rounds += 1;
            assert!(rounds < 100_000, "no end in sight");
        }
        rounds
    }

    /// Everything that was submitted ended, and nothing is held for it.
    pub(crate) fn assert_drained(&self) {
        for (id, live) in &self.requests {
            assert!(live.aborted || live.finished.is_some(), "request {id} never ended");
        }
        let stats = self.scheduler.stats();
        assert_eq!((stats.waiting, stats.waiting_tokens, stats.void), (0, 0, 0));
        for rank in &stats.ranks {
            assert_eq!((rank.running, rank.blocks_used, rank.load_tokens), (0, 0, 0), "dp_rank {}", rank.dp_rank);
        }
        self.scheduler.assert_consistent();
    }
}
