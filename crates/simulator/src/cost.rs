//! How long a step takes.

use paceline_plan::{Mode, StepPlan};

/// Constants of a rank's step in microseconds. A lockstep group's step takes as long as its slowest rank's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// Any step, whatever runs in it.
    pub step_us: u64,
    /// Each decode row, in nanoseconds; in FULL each padded row.
    pub row_ns: u64,
    /// Each prompt token, in nanoseconds.
    pub prompt_token_ns: u64,
    /// Each draft that is verified, in nanoseconds.
    pub draft_ns: u64,
    /// Each drafter pass.
    pub draft_pass_us: u64,
    /// From a plan's decision to its start in the workers, unless they are still at the step before.
    pub host_us: u64,
}

impl Default for Costs {
    /// Decode 20 ms and 0.02 ms a row, prefill 0.06 ms a token; a draft costs as much as a row, a drafter pass 1 ms.
    /// Planning and sending cost nothing.
    fn default() -> Self {
        Self {
            step_us: 20_000,
            row_ns: 20_000,
            prompt_token_ns: 60_000,
            draft_ns: 20_000,
            draft_pass_us: 1_000,
            host_us: 0,
        }
    }
}

impl Costs {
    /// Microseconds of a step of a lockstep group.
    pub fn plan_us(&self, plan: &StepPlan) -> u64 {
        let target = plan.group().target();
        let drafter_passes = plan.group().passes().len() as u64 - 1;
        let rank_ns = |rank: &paceline_plan::RankPart| {
            let (decode, prompt) = rank.rows().split_at(rank.decode_rows() as usize);
            let drafts: u64 = decode.iter().map(|row| u64::from(row.query_len.get() - 1)).sum();
            let prompt_tokens: u64 = prompt.iter().map(|row| u64::from(row.query_len.get())).sum();
            let rows = match target.mode() {
                Mode::Full => target.rows_padded().get().into(),
                Mode::Piecewise | Mode::Eager => decode.len() as u64,
            };
            rows * self.row_ns + drafts * self.draft_ns + prompt_tokens * self.prompt_token_ns
        };
        let slowest_ns = plan.ranks().iter().map(rank_ns).max().unwrap_or(0);
        self.step_us + drafter_passes * self.draft_pass_us + slowest_ns / 1_000
    }
}
