//! The virtual clock: arrivals, steps and heartbeats in order of time, played to the production fleet.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use paceline_fleet::{Action, Fleet, Input, Join, Loaded, StepAnswer, StoreAddress, WorkerId};
use paceline_plan::{DpRank, GroupId, Mode, StepPlan};
use paceline_scheduler::Stats;

use crate::options::VOCAB_SIZE;
use crate::report::Tally;
use crate::requests::{self, Times};
use crate::workers::Worker;
use crate::{Error, Options, Report, TimelinePoint, Trace};

/// Between two ticks of the clock, and two heartbeats of every worker.
const BEAT_US: u64 = 1_000_000;

/// How far a simulation has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Requests of the trace.
    pub requests: u64,
    /// Those of them that ended or were refused.
    pub ended: u64,
    /// Virtual time.
    pub clock_us: u64,
}

/// Plays a trace to its end. `watch` is told of the progress with every step.
///
/// # Errors
/// When the options make no fleet; [`Error::Stuck`] when requests are left that nobody runs.
pub fn simulate(trace: &Trace, options: &Options, watch: impl FnMut(Progress)) -> Result<Report, Error> {
    options.check()?;
    let mut simulation = Simulation::new(trace, options)?;
    simulation.assemble()?;
    simulation.play(watch)?;
    let stats = simulation.stats();
    Ok(Report::new(&simulation.times, &stats, &simulation.tally))
}

/// What happens at a moment. The order of the variants is the order within a moment: workers are heard before time is
/// told, and requests that arrive while a step ends are in the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Beat,
    Arrival(u32),
    /// Index into the steps under way.
    Done(usize),
}

struct Simulation<'a> {
    trace: &'a Trace,
    options: &'a Options,
    fleet: Fleet,
    /// By `dp_rank`; the worker's id is its rank.
    workers: Vec<Worker>,
    clock_us: u64,
    events: BinaryHeap<Reverse<(u64, Event)>>,
    /// Answers of steps under way; an empty place is free.
    under_way: Vec<Vec<(WorkerId, StepAnswer)>>,
    /// When a group's workers have ended all that was sent to them.
    busy_until_us: BTreeMap<GroupId, u64>,
    times: Vec<Times>,
    ended: u64,
    tally: Tally,
    last_step_us: u64,
}

impl<'a> Simulation<'a> {
    fn new(trace: &'a Trace, options: &'a Options) -> Result<Self, Error> {
        let worker = |dp_rank: u32| {
            let (acceptance, seed) = (options.acceptance_permille, options.seed);
            Worker::new(DpRank::new(dp_rank), options.max_num_seqs, acceptance, seed)
        };
        let arrival = |request: &crate::TraceRequest| Times { arrival_us: request.arrival_us, ..Times::default() };
        Ok(Self {
            trace,
            options,
            fleet: Fleet::new(options.fleet())?,
            workers: (0..options.dp_size).map(worker).collect(),
            clock_us: 0,
            events: BinaryHeap::new(),
            under_way: Vec::new(),
            busy_until_us: BTreeMap::new(),
            times: trace.requests.iter().map(arrival).collect(),
            ended: 0,
            tally: Tally::default(),
            last_step_us: 0,
        })
    }

    /// Takes every worker into service.
    fn assemble(&mut self) -> Result<(), Error> {
        for dp_rank in 0..self.options.dp_size {
            let worker = WorkerId::new(dp_rank.into());
            self.feed(Input::Join(worker, Join { dp_rank, process_id: dp_rank + 1, ..Join::default() }));
            self.feed(Input::Attached(worker));
            let (num_blocks, row_capacity) = (self.options.num_blocks, self.options.max_num_seqs);
            self.feed(Input::Loaded(
                worker,
                Loaded { num_blocks, row_capacity, vocab_size: VOCAB_SIZE, ..Loaded::default() },
            ));
        }
        if self.fleet.is_ready() { Ok(()) } else { Err(Error::NotReady(format!("{:?}", self.fleet.ranks()))) }
    }

    fn play(&mut self, mut watch: impl FnMut(Progress)) -> Result<(), Error> {
        for (index, request) in self.trace.requests.iter().enumerate() {
            self.events.push(Reverse((request.arrival_us, Event::Arrival(index as u32))));
        }
        self.events.push(Reverse((0, Event::Beat)));
        let requests = self.times.len() as u64;
        while self.ended < requests {
            let Some(Reverse((clock_us, event))) = self.events.pop() else { break };
            self.clock_us = clock_us;
            let only_beats_left = self.events.is_empty();
            if event == Event::Beat && only_beats_left && clock_us > 0 {
                return Err(Error::Stuck { left: requests - self.ended, clock_us });
            }
            self.happen(event);
            // What happens at the same moment is known before anything is planned.
            if self.events.peek().is_none_or(|Reverse((next_us, _))| *next_us > clock_us) {
                self.launch();
            }
            watch(Progress { requests, ended: self.ended, clock_us });
        }
        Ok(())
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Beat => {
                for worker in 0..u64::from(self.options.dp_size) {
                    self.feed(Input::Heartbeat(WorkerId::new(worker)));
                }
                self.feed(Input::Tick(self.clock_us / 1_000));
                self.events.push(Reverse((self.clock_us + BEAT_US, Event::Beat)));
            }
            Event::Arrival(index) => {
                let spec = requests::spec(index, &self.trace.requests[index as usize], self.options);
                self.feed(Input::Submit(Box::new(spec)));
            }
            Event::Done(place) => {
                for (worker, answer) in std::mem::take(&mut self.under_way[place]) {
                    self.feed(Input::Reply(worker, answer));
                }
            }
        }
    }

    /// Gives an input to the fleet, and plays the workers' part of membership.
    fn feed(&mut self, input: Input) {
        let mut inputs = vec![input];
        while let Some(input) = inputs.pop() {
            for action in self.fleet.handle(input) {
                match action {
                    Action::BindStore { worker, epoch } => {
                        let address = StoreAddress { host: String::new(), port: 1 };
                        inputs.push(Input::StoreBound(worker, epoch, address));
                    }
                    Action::Form { worker, epoch, .. } => inputs.push(Input::Formed(worker, epoch)),
                    Action::Tokens { request, tokens, finish, .. } => {
                        let times = &mut self.times[request.0 as usize];
                        times.took(self.clock_us, tokens.len());
                        times.ended |= finish.is_some();
                        self.ended += u64::from(finish.is_some());
                    }
                    Action::Answer { answer: Err(_), .. } => {
                        self.tally.refused += 1;
                        self.ended += 1;
                    }
                    Action::Fail { .. } => self.ended += 1,
                    _ => {}
                }
            }
        }
    }

    /// Starts every step that can start now.
    fn launch(&mut self) {
        while let Some(dispatch) = self.fleet.next_dispatch() {
            let encoded = dispatch.encode();
            self.fleet.sent(&dispatch, &encoded);
            let plan = dispatch.plan();
            let answers = plan.ranks().iter().map(|part| {
                let dp_rank = part.dp_rank();
                let answer = self.workers[dp_rank.index()].run(plan.group(), part, encoded.digest);
                (WorkerId::new(dp_rank.get().into()), answer)
            });
            let answers: Vec<_> = answers.collect();
            let step_us = self.options.costs.plan_us(plan);
            self.count(plan);
            self.last_step_us = step_us;
            let place = self.under_way.iter().position(Vec::is_empty).unwrap_or(self.under_way.len());
            if place == self.under_way.len() {
                self.under_way.push(Vec::new());
            }
            self.under_way[place] = answers;
            // A step that was sent ahead starts when its group's workers have ended the one before it.
            let busy_until_us = self.busy_until_us.entry(plan.group().group()).or_default();
            *busy_until_us = (self.clock_us + self.options.costs.host_us).max(*busy_until_us) + step_us;
            self.events.push(Reverse((*busy_until_us, Event::Done(place))));
            self.fleet.recycle(dispatch);
        }
    }

    fn count(&mut self, plan: &StepPlan) {
        let steps = &mut self.tally.steps;
        steps.count += 1;
        steps.mixed += u64::from(plan.ranks().iter().any(|part| part.rows().len() > part.decode_rows() as usize));
        match plan.group().target().mode() {
            Mode::Full => steps.full += 1,
            Mode::Piecewise => steps.piecewise += 1,
            Mode::Eager => steps.eager += 1,
        }
        let (fleet, clock_us, step_us) = (&self.fleet, self.clock_us, self.last_step_us);
        self.tally.timeline.offer(|| {
            let Some(stats) = fleet.scheduler().map(paceline_scheduler::Scheduler::stats) else {
                return TimelinePoint::default();
            };
            let used: u64 = stats.ranks.iter().map(|rank| u64::from(rank.blocks_used)).sum();
            let total: u64 = stats.ranks.iter().map(|rank| u64::from(rank.blocks_total)).sum();
            TimelinePoint {
                clock_ms: clock_us / 1_000,
                waiting: stats.waiting,
                running: stats.ranks.iter().map(|rank| rank.running).sum(),
                kv_used_permille: (used * 1_000 / total.max(1)) as u32,
                step_ms: step_us / 1_000,
            }
        });
    }

    fn stats(&self) -> Stats {
        self.fleet.scheduler().expect("the fleet is in service").stats()
    }
}
