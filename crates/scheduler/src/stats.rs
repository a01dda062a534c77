//! Counters, and a snapshot of them. Tokens are counted once, for the target pass; dummies and padding never count as
//! real.

use paceline_plan::{DpRank, Mode, Pass};

use crate::shape::Demand;
use crate::{HeldReason, RequestId, ShapeReason};

/// Tokens that kernels were given beyond real ones, by cause. Real tokens plus all causes is what was given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PaddingCounters {
    /// The one row of a rank without rows.
    pub idle_dummy: u64,
    /// From the rank's own rows up to the ladder entry that covers them.
    pub row_ladder: u64,
    /// From the rank's own tokens up to the token ladder's entry.
    pub token_ladder: u64,
    /// Drafts that were not proposed.
    pub placeholders: u64,
    /// From the rank's own size up to that of the largest rank of its group.
    pub group_alignment: u64,
    /// No cause of its own: what of all these attention was given too. In FULL that is everything, outside FULL the
    /// dummy only (rule 6).
    pub attention: u64,
}

impl PaddingCounters {
    /// All causes.
    pub const fn total(&self) -> u64 {
        self.idle_dummy + self.row_ladder + self.token_ladder + self.placeholders + self.group_alignment
    }

    /// Each cause by its name in metrics. Together they are the total.
    pub const fn by_cause(&self) -> [(&'static str, u64); 5] {
        [
            ("idle_dummy", self.idle_dummy),
            ("row_ladder", self.row_ladder),
            ("token_ladder", self.token_ladder),
            ("placeholder", self.placeholders),
            ("group_alignment", self.group_alignment),
        ]
    }

    #[inline]
    pub(crate) fn add(&mut self, other: &Self) {
        self.idle_dummy += other.idle_dummy;
        self.row_ladder += other.row_ladder;
        self.token_ladder += other.token_ladder;
        self.placeholders += other.placeholders;
        self.group_alignment += other.group_alignment;
        self.attention += other.attention;
    }
}

/// Tokens of target passes of one mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModeTokens {
    /// Tokens that requests needed.
    pub real: u64,
    /// What kernels were given beyond them.
    pub padding: PaddingCounters,
}

/// How speculation went. The token that the target gives by itself is no draft.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DraftCounters {
    /// Rows that had a draft to verify.
    pub drafts: u64,
    /// Drafts verified.
    pub draft_tokens: u64,
    /// Drafts accepted, those after a stop token too.
    pub accepted_tokens: u64,
    /// Of them, by their place in the row, from the first draft.
    pub accepted_per_position: Vec<u64>,
    /// Drafts verified, by their place in the row.
    pub verified_per_position: Vec<u64>,
}

impl DraftCounters {
    /// Counts a row that had `verified` drafts to verify.
    #[inline]
    pub(crate) fn count(&mut self, verified: u32, accepted: u32) {
        if verified > 0 {
            self.count_drafts(verified, accepted);
        }
    }

    #[inline(never)]
    fn count_drafts(&mut self, verified: u32, accepted: u32) {
        self.drafts += 1;
        self.draft_tokens += u64::from(verified);
        self.accepted_tokens += u64::from(accepted);
        self.accepted_per_position[..accepted as usize].iter_mut().for_each(|count| *count += 1);
        self.verified_per_position[..verified as usize].iter_mut().for_each(|count| *count += 1);
    }
}

/// What one rank did since the scheduler was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankCounters {
    /// Steps with a row.
    pub steps: u64,
    /// Steps as a dummy.
    pub dummy_steps: u64,
    /// All steps by the mode of their target pass: full, piecewise, eager.
    pub steps_by_mode: [u64; 3],
    /// Tokens of dummies.
    pub dummy_tokens: u64,
    /// Tokens of prompt rows, recomputed ones too.
    pub prompt_tokens: u64,
    /// Tokens of decode rows: the newest of each row, and its drafts.
    pub decode_tokens: u64,
    /// Tokens given to requests.
    pub emitted_tokens: u64,
    /// Tokens that kernels were given.
    pub padded_tokens: u64,
    /// Real tokens and padding by the mode of the target pass: full, piecewise, eager.
    pub tokens_by_mode: [ModeTokens; 3],
    /// Steps of the group that were not FULL because this rank had a prompt row.
    pub downgrades_prompt_row: u64,
    /// Steps of the group that were not FULL because this rank's rows passed the ladder.
    pub downgrades_ladder: u64,
    /// Row turns that waited: for the token budget, for blocks, for the ladder.
    pub held_by_budget: u64,
    /// See `held_by_budget`.
    pub held_by_blocks: u64,
    /// See `held_by_budget`.
    pub held_by_ladder: u64,
    /// See `held_by_budget`: for the prompts of other ranks.
    pub held_by_alignment: u64,
    /// See `held_by_budget`: for the end of a pause.
    pub held_by_pause: u64,
    /// Requests sent back to the queue for their blocks.
    pub preemptions: u64,
    /// Drafts that were left out because no block was left for them.
    pub drafts_trimmed: u64,
    /// Blocks that single passes of a model drafter would have written to and that were not free.
    pub wanted_blocks_missing: u64,
    /// Tokens of requests that started, looked up in the prefix cache.
    pub prefix_queried_tokens: u64,
    /// Requests that found something there.
    pub prefix_hit_requests: u64,
    /// Blocks that they found.
    pub prefix_hit_blocks: u64,
    /// Tokens of those blocks.
    pub prefix_hit_tokens: u64,
    /// Cached blocks whose room was needed.
    pub blocks_evicted: u64,
    /// Speculation.
    pub drafts: DraftCounters,
    /// Replies of an earlier step or epoch, dropped.
    pub stale_replies: u64,
}

impl RankCounters {
    pub(crate) fn new(k: u32) -> Self {
        let drafts = DraftCounters {
            accepted_per_position: vec![0; k as usize],
            verified_per_position: vec![0; k as usize],
            ..DraftCounters::default()
        };
        Self { drafts, ..Self::default() }
    }

    /// Tokens that requests needed: prompt and decode rows.
    pub const fn real_tokens(&self) -> u64 {
        self.prompt_tokens + self.decode_tokens
    }

    /// Padding of all modes.
    pub fn padding(&self) -> PaddingCounters {
        let mut all = PaddingCounters::default();
        for tokens in &self.tokens_by_mode {
            all.add(&tokens.padding);
        }
        all
    }

    /// Counts a step of the rank at `index` of its group.
    pub(crate) fn count_step(&mut self, target: &Pass, index: usize, demand: &Demand, padding: &PaddingCounters) {
        let load = target.loads()[index];
        if load.is_dummy() {
            self.dummy_steps += 1;
            self.dummy_tokens += u64::from(load.tokens_run());
        } else {
            self.steps += 1;
        }
        self.prompt_tokens += u64::from(demand.prompt_tokens);
        self.decode_tokens += u64::from(demand.decode_rows + demand.drafts);
        self.padded_tokens += u64::from(target.tokens_padded().get());
        let mode = match target.mode() {
            Mode::Full => 0,
            Mode::Piecewise => 1,
            Mode::Eager => 2,
        };
        self.steps_by_mode[mode] += 1;
        self.tokens_by_mode[mode].real += u64::from(demand.tokens());
        self.tokens_by_mode[mode].padding.add(padding);
    }

    pub(crate) fn count_held(&mut self, held: &[(RequestId, HeldReason)]) {
        for (_, reason) in held {
            match reason {
                HeldReason::Budget => self.held_by_budget += 1,
                HeldReason::Blocks => self.held_by_blocks += 1,
                HeldReason::Ladder => self.held_by_ladder += 1,
                HeldReason::Alignment => self.held_by_alignment += 1,
                HeldReason::Paused => self.held_by_pause += 1,
            }
        }
    }

    pub(crate) const fn count_downgrade(&mut self, reason: ShapeReason) {
        match reason {
            ShapeReason::PromptRow { .. } => self.downgrades_prompt_row += 1,
            ShapeReason::PastLadder { .. } => self.downgrades_ladder += 1,
            ShapeReason::Covered { .. }
            | ShapeReason::Held { .. }
            | ShapeReason::NoLadder { .. }
            | ShapeReason::EagerOnly => {}
        }
    }
}

/// One rank now, and what it did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankStats {
    /// Which rank.
    pub dp_rank: DpRank,
    /// Requests on seats.
    pub running: u32,
    /// KV blocks that running requests hold.
    pub blocks_used: u32,
    /// KV blocks that are in the prefix cache and that no request holds: they are given up when their room is needed.
    pub blocks_cached: u32,
    /// Usable KV blocks.
    pub blocks_total: u32,
    /// Known tokens of running requests plus what of their prompts is not computed: what placement balances.
    pub load_tokens: u64,
    /// Since the start.
    pub counters: RankCounters,
}

/// A snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stats {
    /// By `dp_rank`.
    pub ranks: Vec<RankStats>,
    /// Requests in the queue.
    pub waiting: u32,
    /// Their known tokens.
    pub waiting_tokens: u64,
    /// Requests that lost their rank and were neither requeued nor aborted yet.
    pub void: u32,
    /// Requests taken.
    pub submitted: u64,
    /// Requests refused.
    pub refused: u64,
    /// Requests aborted.
    pub aborted: u64,
    /// Requests that ended by a stop token or by length.
    pub finished: u64,
    /// Real tokens of all ranks over all steps.
    pub balance_real_tokens: u64,
    /// Real tokens of the largest rank of each step, times the ranks of its group. The balance ratio is
    /// `balance_real_tokens / balance_largest_tokens`; 1 is even.
    pub balance_largest_tokens: u64,
}
