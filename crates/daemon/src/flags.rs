//! Every setting of `paceline serve`, once: the flag, its environment variable and its key in a configuration file.
//!
//! All fields are optional here, so that a flag can go before the environment, the environment before the file, and the
//! file before the default, which [`crate::settings`] knows.

use std::path::PathBuf;

use clap::ValueEnum;
use paceline_text::{ReasoningFormat, ToolFormat};
use serde::{Deserialize, Serialize};

use crate::surface::Names;

/// The type that weights and KV cache have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Dtype {
    /// What the checkpoint is stored in.
    #[default]
    Auto,
    /// 32-bit floats: the reference.
    Float32,
    /// 16-bit floats with the range of 32-bit ones.
    Bfloat16,
}

/// What weights are turned into at load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Quantization {
    /// They stay what --dtype says.
    #[default]
    None,
    /// Bytes with a factor for each output of a layer; what comes in is quantised row by row.
    Int8,
}

impl Quantization {
    /// Its name for workers, flags and people.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Int8 => "int8",
        }
    }
}

/// On or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Switch {
    /// Yes.
    On,
    /// No.
    Off,
}

/// A model to try things with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Demo {
    /// SmolLM2-135M-Instruct, fetched once.
    #[value(name = "smollm2")]
    SmolLm2,
    /// A small mixture of experts with a draft layer, which comes with the package.
    Moe,
}

impl Demo {
    /// What the preparation of models calls it.
    pub(crate) const fn model(self) -> &'static str {
        match self {
            Self::SmolLm2 => "demo:smollm2",
            Self::Moe => "demo:moe",
        }
    }
}

/// How the experts of a mixture and their tokens come together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum All2AllBackend {
    /// All tokens to all workers, and back the sums.
    #[value(name = "allgather_reducescatter")]
    AllgatherReducescatter,
    /// Each token to the workers of its experts, in messages of fixed size.
    #[value(name = "all_to_all")]
    AllToAll,
}

/// Who goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum SchedulingPolicy {
    /// First come, first served.
    Fcfs,
    /// Lower priorities first; they may take the seat or the blocks of a higher one.
    Priority,
}

/// What ranks are compared by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum PlacementLoad {
    /// The tokens of their requests.
    Tokens,
    /// How many requests they have.
    Requests,
}

/// How much is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogLevel {
    /// Only what failed.
    Error,
    /// And what is worse than it should be.
    Warn,
    /// And what an operator wants to know.
    Info,
    /// And every step: its shape, and why it has it.
    Debug,
    /// And where the time of every step went.
    Trace,
}

/// How a line of the log looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// An object, for what gathers logs.
    Json,
}

impl LogLevel {
    /// Name of the level in log filters.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

/// Settings of `paceline serve`. A flag goes before PACELINE_<NAME> in the environment, that before --config, that
/// before the default.
#[derive(Clone, Debug, Default, PartialEq, clap::Args, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct Flags {
    /// Model to serve: a Hugging Face folder or a name on the hub [default: the demo smollm2]
    pub(crate) model: Option<String>,
    /// Serve a demo on two ranks: SmolLM2-135M-Instruct, fetched once; or a mixture of experts that comes along, with
    /// expert parallelism and one draft [default: smollm2 where no model is given]
    #[arg(long, help_heading = "Model")]
    pub(crate) demo: Option<Demo>,

    /// Address that HTTP and gRPC listen on [default: 127.0.0.1]
    #[arg(long, help_heading = "Network")]
    pub(crate) host: Option<String>,
    /// Port of the OpenAI-compatible HTTP server; 0 takes a free one [default: 8000]
    #[arg(long, help_heading = "Network")]
    pub(crate) port: Option<u16>,
    /// Port of the gRPC server; 0 takes a free one [default: the HTTP port + 1]
    #[arg(long, help_heading = "Network")]
    pub(crate) grpc_port: Option<u16>,
    /// Address that workers dial [default: 127.0.0.1]
    #[arg(long, help_heading = "Network")]
    pub(crate) control_host: Option<String>,
    /// Port that workers dial; 0 takes a free one [default: 0]
    #[arg(long, help_heading = "Network")]
    pub(crate) control_port: Option<u16>,
    /// Key that clients must send as a bearer token on every route but /health [default: none]
    #[arg(long, help_heading = "Network", hide_env_values = true)]
    pub(crate) api_key: Option<String>,
    /// Let operators pause, drain, abort and follow the prefix cache over the same ports: see proto/README.md. Anyone
    /// who may call the server may then stop other people's requests [default: off]
    #[arg(long, help_heading = "Network", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) enable_admin: Option<bool>,
    /// Name that clients call the model by [default: the model as given]
    #[arg(long, help_heading = "Network")]
    pub(crate) served_model_name: Option<String>,

    /// Data-parallel ranks, each with its own requests and KV cache; also -dp N [default: 2 for a demo, else 1]
    #[arg(long, help_heading = "Ranks")]
    pub(crate) data_parallel_size: Option<u32>,
    /// Workers of one rank, which share its model; also -tp N [default: 1]
    #[arg(long, help_heading = "Ranks")]
    pub(crate) tensor_parallel_size: Option<u32>,
    /// Share the experts of a mixture among all workers of all ranks, which then step together [default: on for the
    /// demo moe, else off]
    #[arg(long, help_heading = "Ranks", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) enable_expert_parallel: Option<bool>,
    /// How tokens get to their experts and back [default: allgather_reducescatter]
    #[arg(long, help_heading = "Ranks")]
    pub(crate) all2all_backend: Option<All2AllBackend>,
    /// Step all ranks together and let them compare every pass: a test aid [default: off]
    #[arg(long, help_heading = "Ranks")]
    pub(crate) lockstep: Option<Switch>,

    /// Type of weights and KV cache [default: auto, what the checkpoint is stored in]
    #[arg(long, help_heading = "Model")]
    pub(crate) dtype: Option<Dtype>,
    /// What weights of linear layers are turned into at load: int8 is faster where few rows run, at a small loss [default:
    /// none]
    #[arg(long, help_heading = "Model")]
    pub(crate) quantization: Option<Quantization>,
    /// L: tokens of one request, prompt and output [default: what the model was made for]
    #[arg(long, help_heading = "Model")]
    pub(crate) max_model_len: Option<u32>,
    /// Attention backend of the workers, cpu or reference [default: cpu]
    #[arg(long, help_heading = "Model")]
    pub(crate) attention_backend: Option<String>,
    /// Keep to the contract of another backend, such as trtllm or flashinfer [default: the backend's own]
    #[arg(long, help_heading = "Model")]
    pub(crate) attention_contract: Option<String>,
    /// Folder for prepared models [default: ~/.cache/paceline]
    #[arg(long, help_heading = "Model")]
    pub(crate) cache_dir: Option<String>,

    /// S: requests that run at once, per rank [default: 64]
    #[arg(long, help_heading = "Batches (limits per rank)")]
    pub(crate) max_num_seqs: Option<u32>,
    /// B: tokens in one step before padding, per rank [default: 2048]
    #[arg(long, help_heading = "Batches (limits per rank)")]
    pub(crate) max_num_batched_tokens: Option<u32>,
    /// Drafts, as JSON: {"method": "ngram" or "mtp", "num_speculative_tokens": K}, for mtp also
    /// "num_speculative_tokens_per_batch_size": [[1, 8, K], [9, 64, 0]] (from, to, K; by running requests of the
    /// largest rank); or none [default: one by the draft layer of the demo moe, else none]
    #[arg(long, help_heading = "Batches (limits per rank)")]
    pub(crate) speculative_config: Option<String>,
    /// No fixed-shape steps at all
    #[arg(long, help_heading = "Batches (limits per rank)", num_args = 0..=1, require_equals = true,
          default_missing_value = "true")]
    pub(crate) enforce_eager: Option<bool>,
    /// Sizes of fixed-shape steps in tokens, as 1,2,4,8 [default: on a CPU every number of rows up to S]
    #[arg(long, help_heading = "Batches (limits per rank)", value_delimiter = ',')]
    pub(crate) cudagraph_capture_sizes: Option<Vec<u32>>,

    /// Tokens of one KV block [default: 16]
    #[arg(long, help_heading = "KV cache (limits per rank)")]
    pub(crate) block_size: Option<u32>,
    /// KV blocks, per rank [default: what --kv-cache-memory-bytes holds]
    #[arg(long, help_heading = "KV cache (limits per rank)")]
    pub(crate) num_gpu_blocks_override: Option<u32>,
    /// Bytes of KV cache, per rank [default: 1 GiB]
    #[arg(long, help_heading = "KV cache (limits per rank)")]
    pub(crate) kv_cache_memory_bytes: Option<u64>,

    /// Requests that may wait beyond those that run; more get 429 [default: no limit]
    #[arg(long, help_heading = "Queue (limits of the whole fleet)")]
    pub(crate) max_num_queued_reqs: Option<u32>,
    /// Prompt tokens that may wait beyond those that run; more get 429 [default: no limit]
    #[arg(long, help_heading = "Queue (limits of the whole fleet)")]
    pub(crate) max_num_queued_tokens: Option<u64>,

    /// How the model writes tool calls [default: as its chat template teaches]
    #[arg(long, help_heading = "Clients", value_parser = ToolFormat::NAMES)]
    pub(crate) tool_call_parser: Option<String>,
    /// How the model marks its reasoning, which then has a field of its own [default: none]
    #[arg(long, help_heading = "Clients", value_parser = ReasoningFormat::NAMES)]
    pub(crate) reasoning_parser: Option<String>,
    /// Bytes of one request; more get 413 [default: 33554432]
    #[arg(long, help_heading = "Clients")]
    pub(crate) max_body_bytes: Option<usize>,
    /// Tokens of one prompt; more get 400 [default: what the model's context leaves]
    #[arg(long, help_heading = "Clients")]
    pub(crate) max_prompt_tokens: Option<u32>,
    /// Stop strings of one call; more get 400 [default: 64]
    #[arg(long, help_heading = "Clients")]
    pub(crate) max_stop_strings: Option<usize>,
    /// Calls that run or wait at once, streams among them; more get 429 [default: 16384]
    #[arg(long, help_heading = "Clients")]
    pub(crate) max_open_calls: Option<usize>,
    /// Bytes of a request's line and headers together; more get 431 [default: 65536]
    #[arg(long, help_heading = "Clients")]
    pub(crate) max_header_bytes: Option<usize>,
    /// Headers of one request; more get 431 [default: 100]
    #[arg(long, help_heading = "Clients")]
    pub(crate) max_header_count: Option<usize>,
    /// Seconds that a client may leave its answer unread before the request is ended, and 3 s later the connection
    /// closed; 0 waits for ever [default: 60]
    #[arg(long, help_heading = "Clients")]
    pub(crate) slow_reader_timeout: Option<u64>,
    /// Origins whose pages may call from a browser, as ["http://a.example"] or http://a.example,https://b.example; * for
    /// all [default: none]
    #[arg(long, help_heading = "Clients", value_name = "LIST")]
    pub(crate) allowed_origins: Option<Names>,
    /// Methods that such pages may use [default: all]
    #[arg(long, help_heading = "Clients", value_name = "LIST")]
    pub(crate) allowed_methods: Option<Names>,
    /// Headers that such pages may send [default: all]
    #[arg(long, help_heading = "Clients", value_name = "LIST")]
    pub(crate) allowed_headers: Option<Names>,
    /// Let browsers send cookies and the like from such pages [default: off]
    #[arg(long, help_heading = "Clients", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) allow_credentials: Option<bool>,
    /// Certificate of this server and those above it, in PEM: HTTP and gRPC are then encrypted [default: none]
    #[arg(long, help_heading = "Network", value_name = "FILE")]
    pub(crate) ssl_certfile: Option<PathBuf>,
    /// Key of the certificate, in PEM
    #[arg(long, help_heading = "Network", value_name = "FILE")]
    pub(crate) ssl_keyfile: Option<PathBuf>,
    /// Keep the KV of earlier prompts, and compute only what is new of a later one [default: on]
    #[arg(long, help_heading = "Scheduling", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) enable_prefix_caching: Option<bool>,
    /// Compute every prompt anew: another name for --enable-prefix-caching=false
    #[arg(long, help_heading = "Scheduling", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) no_enable_prefix_caching: Option<bool>,
    /// Who goes first: fcfs, or by priority, which may then take the seat or the blocks of a lower one [default: by
    /// priority in the queue, and nobody loses a seat]
    #[arg(long, help_heading = "Scheduling")]
    pub(crate) scheduling_policy: Option<SchedulingPolicy>,
    /// Requests that may start before an earlier one that fits nowhere yet [default: 0]
    #[arg(long, help_heading = "Scheduling")]
    pub(crate) max_skips: Option<u32>,
    /// Prompt tokens of one request in a step while others run or wait [default: what the budget leaves]
    #[arg(long, help_heading = "Scheduling")]
    pub(crate) long_prefill_token_threshold: Option<u32>,
    /// Prompt tokens of a rank in a step in which another rank of its group decodes [default: what the budget leaves]
    #[arg(long, help_heading = "Scheduling")]
    pub(crate) max_prefill_tokens_beside_decodes: Option<u32>,
    /// Steps that are planned ahead: 0 plans a step when the one before is answered, 1 while that one runs, which hides
    /// the daemon's work [default: 0]
    #[arg(long, help_heading = "Scheduling")]
    pub(crate) scheduling_depth: Option<u32>,
    /// Another name: true is --scheduling-depth 1, false is --scheduling-depth 0
    #[arg(long, help_heading = "Scheduling", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) async_scheduling: Option<bool>,
    /// What ranks are compared by when a request is placed: the tokens of their requests, or how many these are
    /// [default: tokens]
    #[arg(long, help_heading = "Scheduling")]
    pub(crate) placement_load: Option<PlacementLoad>,
    /// Whether a rank that has a request's prefix cached is as good as one with so many fewer tokens to run [default: on]
    #[arg(long, help_heading = "Scheduling")]
    pub(crate) prefix_affinity: Option<Switch>,
    /// KV blocks of a rank that no request may start with while others run there, so that those can grow [default: 0]
    #[arg(long, help_heading = "Scheduling")]
    pub(crate) watermark_blocks: Option<u32>,
    /// Times that a request is sent back for its blocks before it starts again only where it can end [default: 1]
    #[arg(long, help_heading = "Scheduling")]
    pub(crate) max_free_preemptions: Option<u32>,
    /// Steps that prompts wait for those of other ranks of a group that steps together [default: 0, they do not wait]
    #[arg(long, help_heading = "Scheduling")]
    pub(crate) prefill_alignment_steps: Option<u32>,

    /// Interpreter that prepares models and runs workers [default: this one, or python3]
    #[arg(long, help_heading = "Processes")]
    pub(crate) python: Option<String>,
    /// Start no workers: wait for ones that dial in
    #[arg(long, help_heading = "Processes", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) no_spawn: Option<bool>,
    /// What workers must present to join [default: drawn at start-up]
    #[arg(long, help_heading = "Processes", hide_env_values = true)]
    pub(crate) join_token: Option<String>,
    /// CPU threads of one worker [default: the cores divided among the workers]
    #[arg(long, help_heading = "Processes")]
    pub(crate) threads_per_rank: Option<u32>,
    /// Seconds until every rank must be in service [default: 1800]
    #[arg(long, help_heading = "Processes")]
    pub(crate) startup_timeout: Option<u64>,
    /// Seconds that a step may take before its worker is given up, and 20 ms more for each token [default: 300]
    #[arg(long, help_heading = "Processes")]
    pub(crate) step_timeout: Option<u64>,
    /// Seconds that running requests may go on after SIGTERM or SIGINT [default: 0]
    #[arg(long, help_heading = "Processes")]
    pub(crate) shutdown_timeout: Option<u64>,
    /// OpenTelemetry collector that is told of every call, as http://HOST:4317 (OTLP over gRPC) [default: none]
    #[arg(long, help_heading = "Processes", value_name = "URL")]
    pub(crate) otlp_traces_endpoint: Option<String>,
    /// How lines look, on stdout too: for people, or as one JSON object each [default: text]
    #[arg(long, help_heading = "Processes")]
    pub(crate) log_format: Option<LogFormat>,
    /// How much is logged [default: info]
    #[arg(long, help_heading = "Processes")]
    pub(crate) log_level: Option<LogLevel>,

    /// Command to start as a worker instead of the Python one, for tests.
    #[arg(long, hide = true)]
    pub(crate) worker_command: Option<String>,
    /// Take MODEL as a folder that is prepared already, for tests without Python.
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) skip_prepare: Option<bool>,
}

impl Flags {
    /// These settings, and where they say nothing those of `below`.
    pub(crate) fn over(self, below: Self) -> Self {
        let mut merged = as_map(below);
        merged.extend(as_map(self).into_iter().filter(|(_, value)| !value.is_null()));
        serde_json::from_value(merged.into()).expect("invariant: both halves are settings of the same type")
    }
}

fn as_map(flags: Flags) -> serde_json::Map<String, serde_json::Value> {
    match serde_json::to_value(flags) {
        Ok(serde_json::Value::Object(map)) => map,
        other => unreachable!("settings are a map of plain values, not {other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_above_goes_before_what_is_said_below() {
        let above = Flags { port: Some(1), lockstep: Some(Switch::On), ..Flags::default() };
        let below = Flags { port: Some(2), host: Some("::1".to_owned()), ..Flags::default() };
        let merged = above.over(below);
        assert_eq!((merged.port, merged.host.as_deref(), merged.lockstep), (Some(1), Some("::1"), Some(Switch::On)));
    }

    #[test]
    fn files_are_read_by_the_flags_names_and_unknown_keys_are_errors() {
        let flags: Flags = toml::from_str("max-num-seqs = 4\nlockstep = \"on\"\nenforce-eager = true").expect("valid");
        assert_eq!((flags.max_num_seqs, flags.lockstep, flags.enforce_eager), (Some(4), Some(Switch::On), Some(true)));
        let error = toml::from_str::<Flags>("max-num-sequences = 4").expect_err("no such key");
        assert!(error.message().contains("max-num-sequences"), "{error}");
    }
}
