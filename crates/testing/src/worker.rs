//! A scripted worker on real sockets: joins, loads nothing, executes plans, and misbehaves where it is told to.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use paceline_plan::seats::{SeatTable, WorkerStep};
use paceline_plan::{DpRank, Epoch, Error as PlanError, Mode, StepMasks, StepReply, WorkerLimits};
use paceline_proto::v1::control_from_worker::Message as ToDaemon;
use paceline_proto::v1::control_to_worker::Message as FromDaemon;
use paceline_proto::v1::workers_client::WorkersClient;
use paceline_proto::v1::{
    ControlFromWorker, ControlToWorker, Failure, Formed, Heartbeat, Hello, Join, Loaded, Reply, StepEnvelope,
    StepFromWorker, StoreBound, Welcome, WorkerSettings, step_from_worker,
};
use paceline_proto::{PROTOCOL_HASH, wire};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint};

use crate::batch::Batch;
use crate::behaviour::Behaviour;
use crate::contract::declared;
use crate::steps::Steps;

/// Why a scripted worker ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Ended {
    /// The daemon refused the join.
    Rejected {
        /// What differs.
        field: String,
        /// What the daemon has.
        expected: String,
        /// What the worker said.
        got: String,
    },
    /// The daemon said so.
    Stopped(String),
    /// A stream broke: the daemon is gone or has let go of this worker.
    Lost(String),
    /// The behaviour said to die at this step.
    Died,
    /// The behaviour said to fail while loading.
    Failed,
}

/// One executed step, as tests look at it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepRecord {
    /// The life of the group.
    pub epoch: u32,
    /// The step.
    pub step: u64,
    /// Mode of the target pass.
    pub mode: Mode,
    /// Verify width: 1 + `k_verify`.
    pub query_len: u32,
    /// Rows that the target pass gives to kernels.
    pub rows_padded: u32,
    /// Tokens that the target pass gives to kernels.
    pub tokens_padded: u32,
    /// Rows of requests on this rank.
    pub rows: u32,
    /// Tokens of requests on this rank.
    pub tokens: u32,
    /// Tokens of the dummy row, 0 on a rank with rows.
    pub dummy_tokens: u32,
    /// Passes of the step.
    pub passes: u32,
    /// Seats held after the step's deltas.
    pub seats: usize,
    /// Bytes of masks that came since the step before.
    pub mask_bytes: usize,
}

/// The steps that a worker has executed, shared with whoever watches it.
#[derive(Clone, Debug)]
pub struct Records(Option<Arc<Mutex<Vec<StepRecord>>>>);

impl Default for Records {
    fn default() -> Self {
        Self(Some(Arc::default()))
    }
}

impl Records {
    /// For a worker that nobody watches: it keeps nothing, however long it runs.
    pub const fn none() -> Self {
        Self(None)
    }

    /// All steps so far.
    pub fn all(&self) -> Vec<StepRecord> {
        self.0.as_ref().map(|kept| kept.lock().unwrap_or_else(PoisonError::into_inner).clone()).unwrap_or_default()
    }

    fn push(&self, record: StepRecord) {
        if let Some(kept) = &self.0 {
            kept.lock().unwrap_or_else(PoisonError::into_inner).push(record);
        }
    }
}

/// Progress that heartbeats report, and whether they go on.
#[derive(Default)]
struct Pulse {
    step: AtomicU64,
    muted: AtomicBool,
}

/// Runs a worker until it ends. Dropping the future breaks its streams, which is what a crash looks like.
///
/// # Errors
/// When the daemon cannot be reached.
pub async fn run(behaviour: Behaviour, records: Records) -> Result<Ended, tonic::transport::Error> {
    let endpoint = || Endpoint::from_shared(format!("http://{}", behaviour.daemon_address)).map(wire::client);
    let control_channel = endpoint()?.connect().await?;
    let steps_channel = endpoint()?.connect().await?;
    let worker = Worker {
        incarnation: format!("{:016x}", rand::random::<u64>()),
        behaviour,
        records,
        pulse: Arc::new(Pulse::default()),
    };
    Ok(match worker.live(control_channel, steps_channel).await {
        Ok(ended) | Err(ended) => ended,
    })
}

fn client(channel: Channel) -> WorkersClient<Channel> {
    WorkersClient::new(channel)
        .max_decoding_message_size(wire::MESSAGE_LIMIT)
        .max_encoding_message_size(wire::MESSAGE_LIMIT)
}

pub(crate) fn lost(status: impl std::fmt::Display) -> Ended {
    Ended::Lost(status.to_string())
}

/// The control stream of a worker that is in.
struct Control {
    sender: mpsc::Sender<ControlFromWorker>,
    receiver: Streaming<ControlToWorker>,
}

impl Control {
    async fn send(&self, message: ToDaemon) -> Result<(), Ended> {
        self.sender.send(ControlFromWorker { message: Some(message) }).await.map_err(lost)
    }

    async fn receive(&mut self) -> Result<FromDaemon, Ended> {
        match self.receiver.message().await {
            Ok(Some(ControlToWorker { message: Some(FromDaemon::Stop(stop)) })) => Err(Ended::Stopped(stop.reason)),
            Ok(Some(ControlToWorker { message: Some(message) })) => Ok(message),
            Ok(Some(_)) => Err(lost("the daemon sent a message of an unknown kind")),
            Ok(None) => Err(lost("the daemon closed the control stream")),
            Err(status) => Err(lost(status)),
        }
    }
}

struct Worker {
    behaviour: Behaviour,
    incarnation: String,
    records: Records,
    pulse: Arc<Pulse>,
}

impl Worker {
    async fn live(&self, control_channel: Channel, steps_channel: Channel) -> Result<Ended, Ended> {
        let (mut control, welcome) = self.join(control_channel).await?;
        let settings = welcome.settings.clone().unwrap_or_default();
        let _heartbeat = AbortOnDrop(tokio::spawn(heartbeat(control.sender.clone(), Arc::clone(&self.pulse))));
        if self.behaviour.fail_loading {
            let message = "the scripted worker was told to fail while loading".to_owned();
            control.send(ToDaemon::Failure(Failure { message })).await?;
            // The daemon's answer shows that the message has left this process.
            self.last_word(&mut control).await;
            return Ok(Ended::Failed);
        }
        tokio::time::sleep(Duration::from_millis(self.behaviour.load_ms)).await;
        let mut batch = self.load(&control, &welcome, &settings).await?;
        let (steps_sender, steps_receiver) = mpsc::channel(16);
        let hello = step_from_worker::Message::Hello(Hello {
            join_token: self.behaviour.join_token.clone(),
            dp_rank: self.behaviour.dp_rank,
            tp_rank: self.behaviour.tp_rank,
            incarnation: self.incarnation.clone(),
        });
        steps_sender.send(StepFromWorker { message: Some(hello) }).await.map_err(lost)?;
        let stream = ReceiverStream::new(steps_receiver);
        let mut steps = Steps::new(client(steps_channel).steps(stream).await.map_err(lost)?.into_inner());
        loop {
            tokio::select! {
                message = control.receive() => self.obey(&control, message?, &mut batch).await?,
                plan = steps.next_plan() => match plan? {
                    Some(envelope) => self.step(envelope, &mut batch, &mut steps, &steps_sender).await?,
                    None => return Err(self.last_word(&mut control).await),
                },
            }
        }
    }

    /// Both streams end together when the daemon says stop: the reason may still be on its way.
    async fn last_word(&self, control: &mut Control) -> Ended {
        match tokio::time::timeout(Duration::from_secs(1), control.receive()).await {
            Ok(Err(ended)) => ended,
            Ok(Ok(_)) | Err(_) => lost("the daemon closed the steps stream"),
        }
    }

    async fn join(&self, channel: Channel) -> Result<(Control, Welcome), Ended> {
        let (sender, receiver) = mpsc::channel(16);
        let protocol_hash = self.behaviour.protocol_hash.clone().unwrap_or_else(|| PROTOCOL_HASH.to_owned());
        let join = ToDaemon::Join(Join {
            join_token: self.behaviour.join_token.clone(),
            dp_rank: self.behaviour.dp_rank,
            tp_rank: self.behaviour.tp_rank,
            incarnation: self.incarnation.clone(),
            protocol_hash,
            checkpoint_digest: self.behaviour.checkpoint_digest.clone(),
            tokenizer_digest: "scripted".to_owned(),
            process_id: std::process::id(),
        });
        sender.send(ControlFromWorker { message: Some(join) }).await.map_err(lost)?;
        let receiver = client(channel).control(ReceiverStream::new(receiver)).await.map_err(lost)?.into_inner();
        let mut control = Control { sender, receiver };
        match control.receive().await? {
            FromDaemon::Welcome(welcome) => Ok((control, welcome)),
            FromDaemon::Rejected(no) => Err(Ended::Rejected { field: no.field, expected: no.expected, got: no.got }),
            other => Err(lost(format_args!("{other:?} came before the welcome"))),
        }
    }

    async fn load(&self, control: &Control, welcome: &Welcome, settings: &WorkerSettings) -> Result<Batch, Ended> {
        let limits = self.limits(settings);
        let ranks = welcome.group_dp_ranks.iter().map(|dp_rank| DpRank::new(*dp_rank)).collect();
        let table = SeatTable::new(limits, DpRank::new(self.behaviour.dp_rank), ranks).map_err(lost)?;
        let table = table.with_drafter_layers(settings.drafter_layers).with_depth(settings.scheduling_depth);
        let ladders = settings.row_ladders.iter().map(|ladder| (ladder.query_len, ladder.rows.clone())).collect();
        let contract = declared(&settings.attention_contract, limits.row_capacity);
        let loaded = ToDaemon::Loaded(Loaded {
            num_blocks: limits.num_blocks,
            row_capacity: limits.row_capacity,
            vocab_size: limits.vocab_size,
            attention_contract: Some(contract.clone()),
        });
        control.send(loaded).await?;
        Ok(Batch::new(table, ladders, contract, self.behaviour.accept_percent))
    }

    fn limits(&self, settings: &WorkerSettings) -> WorkerLimits {
        let or = |given: u32, otherwise: u32| if given == 0 { otherwise } else { given };
        WorkerLimits {
            seats: settings.seats,
            max_num_seqs: settings.max_num_seqs,
            max_num_batched_tokens: settings.max_num_batched_tokens,
            max_model_len: settings.max_model_len,
            block_size: settings.block_size,
            num_blocks: or(settings.num_blocks_override, self.behaviour.num_blocks),
            k_max: settings.k_max,
            row_capacity: or(self.behaviour.row_capacity, settings.row_capacity),
            token_capacity: settings.token_capacity,
            table_width: settings.table_width,
            vocab_size: self.behaviour.vocab_size,
        }
    }

    /// Does what the daemon says on the control stream.
    async fn obey(&self, control: &Control, message: FromDaemon, batch: &mut Batch) -> Result<(), Ended> {
        match message {
            FromDaemon::BindStore(bind) => {
                let (epoch, host) = (bind.epoch, "127.0.0.1".to_owned());
                control.send(ToDaemon::StoreBound(StoreBound { epoch, host, port: 1 })).await
            }
            FromDaemon::Form(form) => {
                batch.table().reset(Epoch::new(form.epoch));
                control.send(ToDaemon::Formed(Formed { epoch: form.epoch })).await
            }
            FromDaemon::AbortEpoch(_) => Ok(()),
            other => Err(lost(format_args!("{other:?} came out of turn"))),
        }
    }

    async fn step(
        &self,
        envelope: StepEnvelope,
        batch: &mut Batch,
        steps: &mut Steps,
        replies: &mpsc::Sender<StepFromWorker>,
    ) -> Result<(), Ended> {
        let behaviour = &self.behaviour;
        let is_now = |at: Option<u64>| behaviour.is_due(at, envelope.epoch, envelope.step);
        self.pulse.step.store(envelope.step, Ordering::Relaxed);
        if is_now(behaviour.die_at_step) {
            return Err(Ended::Died);
        }
        if is_now(behaviour.hang_at_step) {
            return Ok(());
        }
        if is_now(behaviour.mute_at_step) {
            self.pulse.muted.store(true, Ordering::Relaxed);
            return Ok(());
        }
        let asked_to_refuse = PlanError::rule(13, "a refusal that the test asked for", 0, 1);
        let result = if is_now(behaviour.refuse_at_step) {
            Err(asked_to_refuse)
        } else {
            self.execute(&envelope, batch, steps).await?
        };
        if behaviour.delay_ms > 0 {
            tokio::time::sleep(Duration::from_millis(behaviour.delay_ms)).await;
        }
        let message = match result {
            Ok(mut reply) => {
                reply.timings_us[2] = micros(Duration::from_millis(behaviour.delay_ms));
                if is_now(behaviour.lie_passes_at_step) {
                    reply.passes += 1;
                }
                // The first worker of a rank speaks for all; the others show that they did the same.
                let body = if behaviour.tp_rank == 0 { paceline_plan::to_bytes(&reply) } else { Vec::new() };
                step_from_worker::Message::Reply(Reply {
                    group: envelope.group,
                    epoch: envelope.epoch,
                    step: envelope.step,
                    digest: envelope.digest ^ u64::from(is_now(behaviour.lie_digest_at_step)),
                    body: body.into(),
                    tokens_digest: reply.tokens_digest() ^ u64::from(is_now(behaviour.lie_tokens_at_step)),
                    passes: reply.passes,
                    collectives: reply.collectives,
                })
            }
            Err(error) => step_from_worker::Message::Refused(envelope.refused(&error)),
        };
        replies.send(StepFromWorker { message: Some(message) }).await.map_err(lost)
    }

    /// Executes a plan, with its masks where they follow; the refusal of either, or the end of the worker.
    async fn execute(
        &self,
        envelope: &StepEnvelope,
        batch: &mut Batch,
        steps: &mut Steps,
    ) -> Result<Result<StepReply, PlanError>, Ended> {
        let began = Instant::now();
        let step = match batch.begin(envelope.header(), &envelope.group_part, &envelope.rank_part) {
            Ok(step) => step,
            Err(error) => return Ok(Err(error)),
        };
        let decoded = Instant::now();
        let masks = if step.rank.rows().iter().any(|row| row.masks_count() > 0) {
            match steps.masks_of(envelope).await? {
                Ok(masks) => masks,
                Err(error) => return Ok(Err(error)),
            }
        } else {
            StepMasks::default()
        };
        let record = record(&step, batch.table().occupied(), steps.take_mask_bytes());
        Ok(self.run(&step, &masks, batch, record, (began, decoded)))
    }

    fn run(
        &self,
        step: &WorkerStep,
        masks: &StepMasks,
        batch: &mut Batch,
        record: StepRecord,
        (began, decoded): (Instant, Instant),
    ) -> Result<StepReply, PlanError> {
        if self.behaviour.log_steps {
            eprintln!("dp{}: {record:?}", self.behaviour.dp_rank);
        }
        let mut reply = batch.run(step, masks)?;
        self.records.push(record);
        reply.timings_us[0] = micros(decoded - began);
        reply.timings_us[3] = micros(decoded.elapsed());
        Ok(reply)
    }
}

fn micros(duration: Duration) -> u32 {
    u32::try_from(duration.as_micros()).unwrap_or(u32::MAX)
}

fn record(step: &WorkerStep, seats: usize, mask_bytes: usize) -> StepRecord {
    let target = step.group.target();
    let load = target.loads()[step.rank_index];
    StepRecord {
        epoch: step.header.epoch.get(),
        step: step.header.step.get(),
        mode: target.mode(),
        query_len: step.group.query_len().get(),
        rows_padded: target.rows_padded().get(),
        tokens_padded: target.tokens_padded().get(),
        rows: load.rows().get(),
        tokens: load.tokens().get(),
        dummy_tokens: if load.is_dummy() { load.tokens_run() } else { 0 },
        passes: step.group.passes().len() as u32,
        seats,
        mask_bytes,
    }
}

async fn heartbeat(sender: mpsc::Sender<ControlFromWorker>, pulse: Arc<Pulse>) {
    let mut interval = tokio::time::interval(wire::HEARTBEAT_INTERVAL);
    loop {
        interval.tick().await;
        if pulse.muted.load(Ordering::Relaxed) {
            continue;
        }
        let heartbeat =
            Heartbeat { step: pulse.step.load(Ordering::Relaxed), phase: "idle".to_owned(), ..Heartbeat::default() };
        if sender.send(ControlFromWorker { message: Some(ToDaemon::Heartbeat(heartbeat)) }).await.is_err() {
            return;
        }
    }
}

struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
