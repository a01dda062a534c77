//! From flags to checked settings: the file below the flags, defaults below both, ranges, and what follows from them.

use std::path::{Path, PathBuf};

use paceline_engine::{ExpertParallel, ModelSettings};
use paceline_fleet::{Config as FleetConfig, Deadlines};
use paceline_plan::WorkerLimits;
use paceline_scheduler::{Drafter, QueueLimits, ShapeConfig};

use crate::Failure;
use crate::cli::Serve;
use crate::flags::{All2AllBackend, Demo, Dtype, Flags, LogLevel, Quantization, Switch};
use crate::model_config::ModelConfig;
use crate::policies;
use crate::speculation::{Method, Speculation};

/// Ranks of a demo.
const DEMO_RANKS: u32 = 2;

/// Steps that are planned ahead unless the user says otherwise.
const DEPTH: u32 = 0;

/// Settings of `paceline serve`, checked as far as they can be without the model.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) flags: Flags,
    /// The demo that is served in place of a model of the user's.
    pub(crate) demo: Option<Demo>,
    pub(crate) dp_size: u32,
    pub(crate) tp_size: u32,
    pub(crate) expert_parallel: ExpertParallel,
    pub(crate) speculation: Option<Speculation>,
    /// Steps that are planned ahead.
    pub(crate) depth: u32,
    pub(crate) python: String,
    pub(crate) join_token: String,
    pub(crate) join_token_drawn: bool,
    pub(crate) log_level: LogLevel,
}

pub(crate) fn usage(message: impl Into<String>) -> Failure {
    Failure::Usage(message.into())
}

pub(crate) fn within(flag: &str, value: u64, least: u64, most: u64) -> Result<(), Failure> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(usage(format!("{flag} is {value}, must be between {least} and {most}")))
}

impl Settings {
    /// Joins flags, environment, file and defaults.
    ///
    /// # Errors
    /// [`Failure::Usage`] with one line that names the flag and both numbers.
    pub(crate) fn new(serve: Serve, interpreter: Option<String>) -> Result<Self, Failure> {
        let flags = match &serve.config {
            Some(path) => serve.flags.over(read_file(path)?),
            None => serve.flags,
        };
        let demo = match (flags.demo, &flags.model) {
            (Some(demo), Some(model)) => {
                return Err(usage(format!("--demo is {}, and the model to serve is {model}: give one", demo.model())));
            }
            (None, None) => Some(Demo::SmolLm2),
            (demo, _) => demo,
        };
        let dp_size = flags.data_parallel_size.unwrap_or(if demo.is_some() { DEMO_RANKS } else { 1 });
        within("--data-parallel-size", dp_size.into(), 1, 1_024)?;
        let tp_size = flags.tensor_parallel_size.unwrap_or(1);
        within("--tensor-parallel-size", tp_size.into(), 1, 64)?;
        let is_moe_demo = demo == Some(Demo::Moe);
        let expert_parallel = match (flags.enable_expert_parallel.unwrap_or(is_moe_demo), flags.all2all_backend) {
            (false, _) => ExpertParallel::Off,
            (true, Some(All2AllBackend::AllToAll)) => ExpertParallel::AllToAll,
            (true, _) => ExpertParallel::AllgatherReducescatter,
        };
        let speculation = match flags.speculative_config.as_deref() {
            Some(text) => Speculation::read(text)?,
            None => is_moe_demo.then(Speculation::one_by_mtp),
        };
        let python = flags.python.clone().or(interpreter).unwrap_or_else(|| "python3".to_owned());
        let join_token_drawn = flags.join_token.is_none();
        let join_token = flags.join_token.clone().unwrap_or_else(|| format!("{:032x}", rand::random::<u128>()));
        let log_level = flags.log_level.unwrap_or(LogLevel::Info);
        let depth = depth(&flags)?;
        let settings = Self {
            flags,
            demo,
            dp_size,
            tp_size,
            expert_parallel,
            speculation,
            depth,
            python,
            join_token,
            join_token_drawn,
            log_level,
        };
        settings.check()?;
        Ok(settings)
    }

    fn check(&self) -> Result<(), Failure> {
        let flags = &self.flags;
        flags.check_surface()?;
        policies::caches_prefixes(flags)?;
        within("--max-num-seqs", self.max_num_seqs().into(), 1, 65_536)?;
        within("--max-num-batched-tokens", self.max_num_batched_tokens().into(), 1, 1 << 24)?;
        within("--block-size", self.block_size().into(), 1, 4_096)?;
        if let Some(length) = flags.max_model_len {
            within("--max-model-len", length.into(), 2, 1 << 28)?;
        }
        if let Some(blocks) = flags.num_gpu_blocks_override {
            within("--num-gpu-blocks-override", blocks.into(), 1, 1 << 30)?;
        }
        if let Some(sizes) = &flags.cudagraph_capture_sizes {
            for size in sizes {
                within("--cudagraph-capture-sizes", u64::from(*size), 1, 1 << 24)?;
            }
        }
        if self.flags.skip_prepare == Some(true) && flags.model.is_none() {
            return Err(usage("--skip-prepare needs a model folder"));
        }
        if self.lockstep() && flags.lockstep == Some(Switch::Off) {
            return Err(usage("--lockstep is off, and ranks that share experts step together: leave one out"));
        }
        // Everything that does not depend on the model, before it is fetched.
        let config = self.fleet(flags.max_model_len.unwrap_or(1_024), &ModelConfig::default());
        paceline_fleet::Fleet::new(config).map(drop).map_err(|error| usage(error.to_string()))
    }

    /// Whether the flags suit the model.
    ///
    /// # Errors
    /// [`Failure::Usage`] with one line that names the flag and the model's own field.
    pub(crate) fn check_model(&self, model: &ModelConfig) -> Result<(), Failure> {
        model.check_heads(self.tp_size)?;
        if self.expert_parallel != ExpertParallel::Off {
            model.check_experts(self.dp_size * self.tp_size)?;
        }
        let quantization = self.flags.quantization.unwrap_or_default();
        if quantization != Quantization::None {
            model.check_not_quantised(quantization.name())?;
        }
        if self.drafts_by_mtp() && model.draft_layers() == 0 {
            let message = "--speculative-config: method mtp needs num_nextn_predict_layers of at least 1 in config.json \
                           of the model, and there is none";
            return Err(usage(message));
        }
        Ok(())
    }

    /// What the model preparation is asked for: a folder, a name on the hub, or a demo.
    pub(crate) fn model_to_prepare(&self) -> &str {
        let demo = self.demo.map_or("", Demo::model);
        self.flags.model.as_deref().unwrap_or(demo)
    }

    fn drafts_by_mtp(&self) -> bool {
        self.speculation.as_ref().is_some_and(|speculation| speculation.method == Method::Mtp)
    }

    /// Draft layers of the model that are used.
    fn drafter_layers(&self, model: &ModelConfig) -> u32 {
        if self.drafts_by_mtp() { model.draft_layers().max(1).min(self.k()) } else { 0 }
    }

    /// Ranks that share experts step together; others do when they are told to.
    fn lockstep(&self) -> bool {
        let shares = self.expert_parallel != ExpertParallel::Off && self.dp_size > 1;
        shares || self.flags.lockstep == Some(Switch::On)
    }

    /// For people: how the ranks are made of workers, share experts and draft.
    pub(crate) fn parallelism(&self) -> String {
        let mut words = String::new();
        if self.tp_size > 1 {
            words.push_str(&format!(" of {} workers", self.tp_size));
        }
        if self.expert_parallel != ExpertParallel::Off {
            words.push_str(&format!(", experts shared by {}", self.expert_parallel.name()));
        }
        if let Some(Speculation { method, k, .. }) = &self.speculation {
            let method = if *method == Method::Mtp { "draft layers" } else { "n-grams" };
            let noun = if *k == 1 { "draft" } else { "drafts" };
            words.push_str(&format!(", up to {k} {noun} by {method}"));
        }
        words
    }

    fn k(&self) -> u32 {
        self.speculation.as_ref().map_or(0, |speculation| speculation.k)
    }

    fn max_num_seqs(&self) -> u32 {
        self.flags.max_num_seqs.unwrap_or(64)
    }

    fn max_num_batched_tokens(&self) -> u32 {
        self.flags.max_num_batched_tokens.unwrap_or(2_048)
    }

    fn block_size(&self) -> u32 {
        self.flags.block_size.unwrap_or(16)
    }

    pub(crate) fn host(&self) -> &str {
        self.flags.host.as_deref().unwrap_or("127.0.0.1")
    }

    pub(crate) fn control_host(&self) -> &str {
        self.flags.control_host.as_deref().unwrap_or("127.0.0.1")
    }

    pub(crate) fn port(&self) -> u16 {
        self.flags.port.unwrap_or(8_000)
    }

    /// The port after HTTP's, unless that one is any free one.
    pub(crate) fn grpc_port(&self) -> u16 {
        self.flags.grpc_port.unwrap_or(if self.port() == 0 { 0 } else { self.port().saturating_add(1) })
    }

    /// L for a model that was made for `context_len` tokens.
    ///
    /// # Errors
    /// [`Failure::Usage`] when more is asked for, with both numbers.
    pub(crate) fn max_model_len(&self, context_len: Option<u32>) -> Result<u32, Failure> {
        match (self.flags.max_model_len, context_len) {
            (Some(asked), Some(most)) if asked > most => {
                Err(usage(format!("--max-model-len is {asked}, the model was made for at most {most} tokens")))
            }
            (Some(asked), _) => Ok(asked),
            (None, Some(most)) => Ok(most),
            (None, None) => Err(usage("config.json says no length: give --max-model-len")),
        }
    }

    /// What the fleet is made with.
    pub(crate) fn fleet(&self, max_model_len: u32, model: &ModelConfig) -> FleetConfig {
        let k_values = self.speculation.as_ref().map_or_else(|| vec![0], Speculation::k_values);
        let (k, rows, tokens) = (self.k(), self.max_num_seqs(), self.max_num_batched_tokens());
        let shapes = match (&self.flags.cudagraph_capture_sizes, self.flags.enforce_eager) {
            (_, Some(true)) => ShapeConfig::eager(),
            (Some(sizes), _) => ShapeConfig::from_tokens(sizes, rows, &k_values),
            (None, _) => ShapeConfig::cpu_default(rows, &k_values, rows),
        };
        let uniform =
            |(query_len, ladder): (&u32, &Vec<u32>)| ladder.last().map_or(0, |entry| entry.saturating_mul(*query_len));
        let largest_uniform = shapes.row_ladders.iter().map(uniform).max().unwrap_or(0);
        let limits = WorkerLimits {
            seats: rows,
            max_num_seqs: rows,
            max_num_batched_tokens: tokens,
            max_model_len,
            block_size: self.block_size(),
            num_blocks: 0,
            k_max: k,
            row_capacity: rows,
            token_capacity: tokens.max(largest_uniform),
            // A multiple that every known attention contract takes.
            table_width: max_model_len.saturating_add(k).div_ceil(self.block_size()).next_multiple_of(4),
            vocab_size: 0,
        };
        let seconds = |value: Option<u64>, default: u64| value.map_or(default, |seconds| seconds.saturating_mul(1_000));
        let defaults = Deadlines::default();
        FleetConfig {
            dp_size: self.dp_size,
            tp_size: self.tp_size,
            lockstep: self.lockstep(),
            join_token: self.join_token.clone(),
            protocol_hash: paceline_proto::PROTOCOL_HASH.to_owned(),
            limits,
            shapes,
            k,
            k_by_rows: self.speculation.as_ref().map_or_else(Vec::new, |speculation| speculation.k_by_rows.clone()),
            drafter: match self.speculation.as_ref().map(|speculation| speculation.method) {
                None => Drafter::None,
                Some(Method::Ngram) => Drafter::Ngram,
                Some(Method::Mtp) => Drafter::Model,
            },
            drafter_layers: self.drafter_layers(model),
            depth: self.depth,
            queue: QueueLimits { requests: self.flags.max_num_queued_reqs, tokens: self.flags.max_num_queued_tokens },
            prefix_cache: policies::prefix_cache(&self.flags),
            policies: policies::policies(&self.flags),
            fatal_start: self.spawns(),
            deadlines: Deadlines {
                start_ms: seconds(self.flags.startup_timeout, defaults.start_ms),
                step_ms: seconds(self.flags.step_timeout, defaults.step_ms),
                ..defaults
            },
        }
    }

    /// What workers are told besides.
    pub(crate) fn model(&self, folder: &Path) -> ModelSettings {
        let dtype = match self.flags.dtype.unwrap_or_default() {
            Dtype::Auto => "auto",
            Dtype::Float32 => "float32",
            Dtype::Bfloat16 => "bfloat16",
        };
        ModelSettings {
            model_path: folder.display().to_string(),
            dtype: dtype.to_owned(),
            quantization: self.flags.quantization.unwrap_or_default().name().to_owned(),
            device: "cpu".to_owned(),
            attention_backend: self.flags.attention_backend.clone().unwrap_or_else(|| "cpu".to_owned()),
            attention_contract: self.flags.attention_contract.clone().unwrap_or_default(),
            kv_cache_memory_bytes: self.flags.kv_cache_memory_bytes.unwrap_or(1 << 30),
            num_blocks_override: self.flags.num_gpu_blocks_override.unwrap_or(0),
            threads: self.flags.threads_per_rank.unwrap_or(0),
            expert_parallel: self.expert_parallel,
        }
    }

    pub(crate) fn spawns(&self) -> bool {
        self.flags.no_spawn != Some(true)
    }
}

/// Steps that are planned ahead.
fn depth(flags: &Flags) -> Result<u32, Failure> {
    if let Some(depth) = flags.scheduling_depth {
        within("--scheduling-depth", depth.into(), 0, 1)?;
    }
    match (flags.scheduling_depth, flags.async_scheduling.map(u32::from)) {
        (Some(depth), Some(other)) if depth != other => {
            let other = other == 1;
            Err(usage(format!("--scheduling-depth is {depth}, and --async-scheduling is {other}: give one")))
        }
        (depth, other) => Ok(depth.or(other).unwrap_or(DEPTH)),
    }
}

fn read_file(path: &PathBuf) -> Result<Flags, Failure> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| usage(format!("cannot read the configuration {}: {error}", path.display())))?;
    toml::from_str(&text).map_err(|error| {
        let message = error.message().lines().collect::<Vec<_>>().join(" ");
        usage(format!("{}: {message}", path.display()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(flags: Flags) -> Result<Settings, String> {
        let flags = Flags { model: flags.model.or(Some("folder".to_owned())), ..flags };
        Settings::new(Serve { config: None, flags }, None).map_err(|failure| failure.to_string())
    }

    #[test]
    fn the_demo_has_two_ranks_and_a_model_has_one() {
        let demo = Settings::new(Serve { config: None, flags: Flags::default() }, None).expect("valid");
        assert_eq!(demo.dp_size, 2);
        assert_eq!(settings(Flags::default()).map(|settings| settings.dp_size), Ok(1));
    }

    #[test]
    fn values_out_of_range_are_one_line_with_both_numbers() {
        let base = Flags::default;
        let speculative = |json: &str| Flags { speculative_config: Some(json.to_owned()), ..base() };
        let cases = [
            (Flags { data_parallel_size: Some(0), ..base() }, "--data-parallel-size is 0, must be between 1 and"),
            (Flags { tensor_parallel_size: Some(0), ..base() }, "--tensor-parallel-size is 0, must be between 1 and"),
            (Flags { demo: Some(Demo::Moe), ..base() }, "--demo is demo:moe, and the model to serve is folder"),
            (Flags { max_num_seqs: Some(0), ..base() }, "--max-num-seqs is 0"),
            (Flags { block_size: Some(0), ..base() }, "--block-size is 0"),
            (Flags { scheduling_depth: Some(2), ..base() }, "--scheduling-depth is 2, must be between 0 and 1"),
            (
                Flags { scheduling_depth: Some(0), async_scheduling: Some(true), ..base() },
                "--scheduling-depth is 0, and --async-scheduling is true: give one",
            ),
            (speculative("{}"), "--speculative-config"),
            (speculative("{\"method\": \"eagle\", \"num_speculative_tokens\": 2}"), "eagle"),
            (speculative("{\"method\": \"ngram\", \"num_speculative_tokens\": 0}"), "is 0, must be between 1 and 64"),
            (speculative("{\"method\": \"ngram\", \"num_speculative_tokens\": 2, \"x\": 1}"), "unknown field `x`"),
        ];
        for (flags, expected) in cases {
            let line = settings(flags).expect_err(expected);
            assert!(line.contains(expected) && !line.contains('\n'), "{line}");
        }
    }

    #[test]
    fn the_depth_has_two_names() {
        let depth = |scheduling_depth, async_scheduling| {
            settings(Flags { scheduling_depth, async_scheduling, ..Flags::default() }).map(|settings| settings.depth)
        };
        assert_eq!(
            [depth(Some(0), None), depth(None, Some(false)), depth(Some(0), Some(false))],
            [Ok(0), Ok(0), Ok(0)]
        );
        assert_eq!([depth(Some(1), None), depth(None, Some(true)), depth(None, None)], [Ok(1), Ok(1), Ok(DEPTH)]);
    }

    #[test]
    fn b15_a_forced_size_above_the_rows_is_refused_with_both_numbers() {
        let flags = Flags { max_num_seqs: Some(100), cudagraph_capture_sizes: Some(vec![112]), ..Flags::default() };
        let line = settings(flags).expect_err("112 > 100");
        assert!(line.contains("112") && line.contains("100"), "{line}");
    }

    #[test]
    fn a_budget_below_one_decode_row_is_refused_with_both_numbers() {
        let flags = Flags {
            max_num_batched_tokens: Some(3),
            speculative_config: Some("{\"method\": \"ngram\", \"num_speculative_tokens\": 3}".to_owned()),
            ..Flags::default()
        };
        let line = settings(flags).expect_err("3 < 4");
        assert!(line.contains("max_num_batched_tokens is 3, must be at least 4"), "{line}");
    }

    #[test]
    fn the_models_length_bounds_what_is_asked_for() {
        let asked = settings(Flags { max_model_len: Some(4_096), ..Flags::default() }).expect("valid");
        assert_eq!(asked.max_model_len(Some(8_192)).ok(), Some(4_096));
        let line = asked.max_model_len(Some(2_048)).expect_err("too long").to_string();
        assert!(line.contains("4096") && line.contains("2048"), "{line}");
        let silent = settings(Flags::default()).expect("valid");
        assert_eq!(silent.max_model_len(Some(2_048)).ok(), Some(2_048));
        assert!(silent.max_model_len(None).is_err());
    }

    #[test]
    fn the_grpc_port_follows_the_http_port() {
        let at = |port| settings(Flags { port, ..Flags::default() }).expect("valid").grpc_port();
        assert_eq!([at(None), at(Some(9_000)), at(Some(0))], [8_001, 9_001, 0]);
    }
}
