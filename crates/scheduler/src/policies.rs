//! What may be chosen about who runs when. Every policy can be switched off.

/// How prompts of a lockstep group are brought together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alignment {
    /// Steps that prompts wait at most for others, while requests decode.
    pub delay_steps: u32,
    /// Prompts run together when the ranks' prompt tokens of the step are this even: the mean as a percentage of the
    /// largest.
    pub even_percent: u32,
}

/// Policies of a scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policies {
    /// Whether `priority` counts. False: first come, first served.
    pub priority: bool,
    /// Whether a request may take the seat or the blocks of one of lower priority. Needs `priority`.
    pub priority_preempts: bool,
    /// Times that a request is sent back for its blocks before it starts again only where it can run to its end beside
    /// all that runs there. Bounds how often a request is preempted.
    pub preemptions_free: u32,
    /// Blocks of a rank that no request may start with while others run there, so that those can grow.
    pub watermark_blocks: u32,
    /// Requests that may start before one that came earlier and fits nowhere yet; 0: none.
    pub skips_max: u32,
    /// Whether a rank that has a request's prefix is as good as one with so many fewer tokens to run.
    pub prefix_affinity: bool,
    /// Whether ranks are compared by the tokens of their requests. False: by the number of requests.
    pub load_in_tokens: bool,
    /// Prompt tokens of one request in a step while others run on its rank or wait, but no less than an even share of the
    /// budget among all these; 0: as many as the budget leaves.
    pub long_prefill_tokens: u32,
    /// Prompt tokens of a rank in a step in which another rank of its group decodes, so that nobody's gap between two
    /// tokens is longer than they take; 0: as many as the budget leaves.
    pub gap_tokens: u32,
    /// Whether prompts of a lockstep group start together.
    pub alignment: Option<Alignment>,
}

impl Default for Policies {
    /// Priorities without preemption, nobody is overtaken, prefixes attract, load in tokens, no alignment.
    fn default() -> Self {
        Self {
            priority: true,
            priority_preempts: false,
            preemptions_free: 1,
            watermark_blocks: 0,
            skips_max: 0,
            prefix_affinity: true,
            load_in_tokens: true,
            long_prefill_tokens: 0,
            gap_tokens: 0,
            alignment: None,
        }
    }
}

impl Policies {
    /// Prompt tokens of one request in a step of `budget` tokens, where so many requests run on its rank or wait: the
    /// threshold for long prompts, but no less than an even share of the budget, and no limit for one that is alone.
    pub(crate) fn longest_chunk(&self, budget: u32, requests: usize) -> u32 {
        if self.long_prefill_tokens == 0 || requests <= 1 {
            return u32::MAX;
        }
        self.long_prefill_tokens.max(budget / requests as u32)
    }
}
