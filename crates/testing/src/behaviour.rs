//! What a scripted worker is told to do, and what it is told to do wrong.

/// How one scripted worker behaves.
#[derive(Clone, Debug, clap::Args)]
pub struct Behaviour {
    /// Address of the daemon's control port, HOST:PORT.
    #[arg(long)]
    pub daemon_address: String,
    /// The data-parallel rank to join as.
    #[arg(long)]
    pub dp_rank: u32,
    /// Which of the rank's workers to join as.
    #[arg(long, default_value_t = 0)]
    pub tp_rank: u32,
    /// The token that the daemon asks for.
    #[arg(long, env = "PACELINE_JOIN_TOKEN", default_value = "", hide_env_values = true)]
    pub join_token: String,
    /// Accepted and ignored: a real worker loads it.
    #[arg(long)]
    pub model: Option<String>,
    /// Token ids are below this.
    #[arg(long, default_value_t = 256)]
    pub vocab_size: u32,
    /// KV blocks to report where the daemon does not say how many.
    #[arg(long, default_value_t = 512)]
    pub num_blocks: u32,
    /// Rows that step buffers hold; 0 is what the daemon asks for.
    #[arg(long, default_value_t = 0)]
    pub row_capacity: u32,
    /// How many of 100 proposed drafts are right.
    #[arg(long, default_value_t = 70)]
    pub accept_percent: u32,
    /// Digest of the checkpoint that it claims to have.
    #[arg(long, default_value = "scripted")]
    pub checkpoint_digest: String,
    /// Protocol hash that it claims to speak; the true one unless given.
    #[arg(long)]
    pub protocol_hash: Option<String>,
    /// Milliseconds that every step takes.
    #[arg(long, default_value_t = 0)]
    pub delay_ms: u64,
    /// Milliseconds that loading takes.
    #[arg(long, default_value_t = 0)]
    pub load_ms: u64,
    /// Die without a word when this step comes.
    #[arg(long)]
    pub die_at_step: Option<u64>,
    /// Refuse the plan of this step.
    #[arg(long)]
    pub refuse_at_step: Option<u64>,
    /// Answer this step with a false digest.
    #[arg(long)]
    pub lie_digest_at_step: Option<u64>,
    /// Claim one pass too many in the answer to this step.
    #[arg(long)]
    pub lie_passes_at_step: Option<u64>,
    /// Claim other tokens than the rank's first worker in the answer to this step.
    #[arg(long)]
    pub lie_tokens_at_step: Option<u64>,
    /// Never answer this step; heartbeats go on.
    #[arg(long)]
    pub hang_at_step: Option<u64>,
    /// Never answer this step nor send another heartbeat.
    #[arg(long)]
    pub mute_at_step: Option<u64>,
    /// Misbehave only as this rank.
    #[arg(long)]
    pub only_dp_rank: Option<u32>,
    /// Misbehave only as this worker of a rank.
    #[arg(long)]
    pub only_tp_rank: Option<u32>,
    /// Misbehave only in this epoch and the ones before it.
    #[arg(long, default_value_t = u32::MAX)]
    pub until_epoch: u32,
    /// Fail while loading, with a message.
    #[arg(long)]
    pub fail_loading: bool,
    /// Print a line for every step.
    #[arg(long)]
    pub log_steps: bool,
}

impl Behaviour {
    /// Whether a misbehaviour that was asked for at `at` is due at `step` of `epoch`.
    pub fn is_due(&self, at: Option<u64>, epoch: u32, step: u64) -> bool {
        let here = self.only_dp_rank.is_none_or(|dp_rank| dp_rank == self.dp_rank);
        let this = self.only_tp_rank.is_none_or(|tp_rank| tp_rank == self.tp_rank);
        at == Some(step) && epoch <= self.until_epoch && here && this
    }

    /// A worker that does everything right.
    pub fn good(daemon_address: impl Into<String>, dp_rank: u32, join_token: impl Into<String>) -> Self {
        Self {
            daemon_address: daemon_address.into(),
            dp_rank,
            tp_rank: 0,
            join_token: join_token.into(),
            model: None,
            vocab_size: 256,
            num_blocks: 512,
            row_capacity: 0,
            accept_percent: 70,
            checkpoint_digest: "scripted".to_owned(),
            protocol_hash: None,
            delay_ms: 0,
            load_ms: 0,
            die_at_step: None,
            refuse_at_step: None,
            lie_digest_at_step: None,
            lie_passes_at_step: None,
            lie_tokens_at_step: None,
            hang_at_step: None,
            mute_at_step: None,
            only_dp_rank: None,
            only_tp_rank: None,
            until_epoch: u32::MAX,
            fail_loading: false,
            log_steps: false,
        }
    }
}
