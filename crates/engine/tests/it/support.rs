//! An engine on a free port with scripted workers, and the little that all tests ask of it.

use std::time::Duration;

use paceline_engine::{
    Engine, FailureKind, FinishReason, FleetStatus, GenerateRequest, Handle, ModelSettings, Options, SamplingParams,
    StreamEvent, SubmitError, TokenOutput, TokenStream,
};
use paceline_fleet::{Config, Deadlines};
use paceline_plan::WorkerLimits;
use paceline_scheduler::{CacheSecret, Drafter, QueueLimits, ShapeConfig};
use paceline_testing::{Behaviour, Ended, Records, model};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Longer than anything takes that is not stuck.
const LIMIT: Duration = Duration::from_secs(30);

pub(crate) const VOCAB_SIZE: u32 = 256;

/// What a test may choose.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) dp_size: u32,
    pub(crate) tp_size: u32,
    pub(crate) lockstep: bool,
    pub(crate) k: u32,
    /// Draft layers of the model; 0: drafts are n-grams.
    pub(crate) drafter_layers: u32,
    pub(crate) depth: u32,
    pub(crate) prefix_cache: bool,
    pub(crate) max_num_seqs: u32,
    pub(crate) max_num_batched_tokens: u32,
    pub(crate) max_model_len: u32,
    pub(crate) num_blocks: u32,
    /// The attention contract that workers declare; empty is the reference's.
    pub(crate) attention_contract: &'static str,
    pub(crate) queue: QueueLimits,
    pub(crate) deadlines: Deadlines,
    /// Row ladder in rows; nothing is 1..=S.
    pub(crate) tokens_ladder: Option<Vec<u32>>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            dp_size: 2,
            tp_size: 1,
            lockstep: false,
            k: 0,
            drafter_layers: 0,
            depth: 0,
            prefix_cache: false,
            max_num_seqs: 8,
            max_num_batched_tokens: 256,
            max_model_len: 1024,
            num_blocks: 512,
            attention_contract: "",
            queue: QueueLimits::default(),
            deadlines: Deadlines::default(),
            tokens_ladder: None,
        }
    }
}

pub(crate) struct Fleet {
    pub(crate) handle: Handle,
    pub(crate) address: String,
    pub(crate) workers: Vec<Worker>,
    shutdown: CancellationToken,
    engine: JoinHandle<Result<(), paceline_engine::Error>>,
}

pub(crate) struct Worker {
    pub(crate) records: Records,
    pub(crate) task: JoinHandle<Ended>,
}

pub(crate) const TOKEN: &str = "test token";

impl Setup {
    fn config(&self) -> Config {
        let limits = WorkerLimits {
            seats: self.max_num_seqs,
            max_num_seqs: self.max_num_seqs,
            max_num_batched_tokens: self.max_num_batched_tokens,
            max_model_len: self.max_model_len,
            block_size: 16,
            num_blocks: 0,
            k_max: self.k,
            row_capacity: self.max_num_seqs,
            token_capacity: self.max_num_batched_tokens.max(self.max_num_seqs * (self.k + 1)),
            table_width: (self.max_model_len + self.k).div_ceil(16),
            vocab_size: 0,
        };
        let drafter = match (self.k, self.drafter_layers) {
            (0, _) => Drafter::None,
            (_, 0) => Drafter::Ngram,
            _ => Drafter::Model,
        };
        // Single passes have rows of one token.
        let widths = if drafter == Drafter::Model { vec![0, self.k] } else { vec![self.k] };
        let shapes = match &self.tokens_ladder {
            Some(tokens) => ShapeConfig::from_tokens(tokens, self.max_num_seqs, &widths),
            None => ShapeConfig::cpu_default(self.max_num_seqs, &widths, self.max_num_seqs),
        };
        Config {
            dp_size: self.dp_size,
            tp_size: self.tp_size,
            lockstep: self.lockstep,
            join_token: TOKEN.to_owned(),
            protocol_hash: paceline_proto::PROTOCOL_HASH.to_owned(),
            limits,
            shapes,
            k: self.k,
            k_by_rows: Vec::new(),
            depth: self.depth,
            drafter,
            drafter_layers: self.drafter_layers,
            queue: self.queue,
            prefix_cache: self.prefix_cache.then(|| CacheSecret::new(1, 2)),
            policies: paceline_scheduler::Policies::default(),
            fatal_start: false,
            deadlines: self.deadlines,
        }
    }

    /// Starts the engine alone.
    pub(crate) async fn engine(&self) -> Fleet {
        let control_listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = control_listener.local_addr().expect("it is bound").to_string();
        let attention_contract = self.attention_contract.to_owned();
        let model =
            ModelSettings { num_blocks_override: self.num_blocks, attention_contract, ..ModelSettings::default() };
        let engine = Engine::build(Options { fleet: self.config(), model, control_listener, unread: None })
            .expect("valid options");
        let handle = engine.handle();
        let shutdown = CancellationToken::new();
        let engine = tokio::spawn(engine.run(shutdown.clone()));
        Fleet { handle, address, workers: Vec::new(), shutdown, engine }
    }

    /// Starts the engine and every good worker of every rank, and waits until the fleet is ready.
    pub(crate) async fn start(&self) -> Fleet {
        self.start_with(|_| {}).await
    }

    /// The same with workers changed by `change`.
    pub(crate) async fn start_with(&self, change: impl Fn(&mut Behaviour)) -> Fleet {
        let mut fleet = self.engine().await;
        for dp_rank in 0..self.dp_size {
            for tp_rank in 0..self.tp_size {
                fleet.add_tp(dp_rank, tp_rank, &change);
            }
        }
        fleet.until("ready", |status| status.ready).await;
        fleet
    }
}

impl Fleet {
    pub(crate) fn add(&mut self, dp_rank: u32, change: impl Fn(&mut Behaviour)) {
        self.add_tp(dp_rank, 0, change);
    }

    pub(crate) fn add_tp(&mut self, dp_rank: u32, tp_rank: u32, change: impl Fn(&mut Behaviour)) {
        let mut behaviour = Behaviour::good(&self.address, dp_rank, TOKEN);
        behaviour.tp_rank = tp_rank;
        change(&mut behaviour);
        let records = Records::default();
        let shared = records.clone();
        let task =
            tokio::spawn(
                async move { paceline_testing::run(behaviour, shared).await.expect("the engine can be reached") },
            );
        self.workers.push(Worker { records, task });
    }

    /// Waits until the status is as wanted.
    pub(crate) async fn until(&self, what: &str, is_it: impl Fn(&FleetStatus) -> bool) -> FleetStatus {
        let wait = async {
            loop {
                let status = self.handle.status();
                if is_it(&status) {
                    return status;
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        match tokio::time::timeout(LIMIT, wait).await {
            Ok(status) => status,
            Err(_) => panic!("never {what}: {:?}", self.handle.status()),
        }
    }

    /// Waits until every worker of a lockstep fleet has executed every step.
    pub(crate) async fn until_all_answered(&self) -> FleetStatus {
        let executed = |steps| self.workers.iter().all(|worker| worker.records.all().len() as u64 == steps);
        self.until("all answered", |status| executed(status.counters.steps)).await
    }

    pub(crate) async fn submit(&self, prompt: &[u32], max_new_tokens: u32) -> TokenStream {
        self.handle.submit(request(prompt, max_new_tokens)).await.expect("the request is taken")
    }

    /// Stops the engine; every worker is told so.
    pub(crate) async fn stop(self) {
        self.shutdown.cancel();
        let result = limit(self.engine).await.expect("the engine does not panic");
        result.expect("the engine ends well");
    }
}

pub(crate) async fn limit<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, future).await.expect("within the limit")
}

pub(crate) fn request(prompt: &[u32], max_new_tokens: u32) -> GenerateRequest {
    GenerateRequest {
        request_id: "test".to_owned(),
        prompt_token_ids: prompt.to_vec(),
        max_new_tokens,
        stop_token_ids: Vec::new(),
        sampling: SamplingParams::greedy(),
        constraint: None,
        dp_rank: None,
        priority: 0,
        cache_salt: Vec::new(),
        shares_prompt_with: None,
    }
}

/// A prompt that no other number gives.
pub(crate) fn prompt(number: u32, length: u32) -> Vec<u32> {
    (0..length).map(|index| (number * 31 + index * 7 + 1) % VOCAB_SIZE).collect()
}

/// How a stream ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum End {
    Finished(FinishReason),
    Failed(FailureKind, String),
}

/// Reads a stream to its end.
pub(crate) async fn read(mut stream: TokenStream) -> (Vec<TokenOutput>, End) {
    let mut all = Vec::new();
    loop {
        match limit(stream.next()).await.expect("a stream ends with an event") {
            StreamEvent::PromptLogprobs { .. } => {}
            StreamEvent::Tokens { mut tokens } => all.append(&mut tokens),
            StreamEvent::Finished { mut tokens, reason } => {
                all.append(&mut tokens);
                return (all, End::Finished(reason));
            }
            StreamEvent::Failed { kind, message } => return (all, End::Failed(kind, message)),
        }
    }
}

/// Asserts that a stream gives what the scripted model says.
pub(crate) async fn expect_text(stream: TokenStream, prompt: &[u32], count: u32) {
    let (tokens, end) = read(stream).await;
    let ids: Vec<u32> = tokens.iter().map(|token| token.token_id).collect();
    assert_eq!(ids, model::continuation(prompt, count as usize, VOCAB_SIZE));
    assert_eq!(end, End::Finished(FinishReason::Length));
}

pub(crate) async fn refusal(fleet: &Fleet, request: GenerateRequest) -> SubmitError {
    fleet.handle.submit(request).await.expect_err("the request is refused")
}
