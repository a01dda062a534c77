//! A trace's requests: what they are made of, and when their tokens came.

use paceline_plan::DpRank;
use paceline_scheduler::{RequestId, RequestSpec};

use crate::options::VOCAB_SIZE;
use crate::random::mix;
use crate::{Options, Placing, TraceRequest};

/// When a request's tokens came, in microseconds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Times {
    pub(crate) arrival_us: u64,
    pub(crate) first_us: Option<u64>,
    pub(crate) last_us: u64,
    pub(crate) gaps_us: Vec<u32>,
    pub(crate) tokens: u32,
    pub(crate) ended: bool,
}

impl Times {
    pub(crate) fn took(&mut self, clock_us: u64, tokens: usize) {
        if self.first_us.is_none() {
            self.first_us = Some(clock_us);
        } else {
            self.gaps_us.push(u32::try_from(clock_us - self.last_us).unwrap_or(u32::MAX));
        }
        self.last_us = clock_us;
        self.tokens += tokens as u32;
    }

    /// The gaps before tokens that came until `until_us`.
    pub(crate) fn gaps_until(&self, until_us: u64) -> impl Iterator<Item = u64> {
        let mut clock_us = self.first_us.unwrap_or(u64::MAX);
        self.gaps_us.iter().map(|gap| u64::from(*gap)).take_while(move |gap| {
            clock_us = clock_us.saturating_add(*gap);
            clock_us <= until_us
        })
    }
}

/// The request number `index` of a trace. Prompts are equal exactly where they share a prefix.
pub(crate) fn spec(index: u32, request: &TraceRequest, options: &Options) -> RequestSpec {
    let shared = request.prefix_tokens.min(request.prompt_tokens);
    let token = |position: u32| {
        let source = match request.prefix_group {
            Some(group) if position < shared => (1 << 40) | u64::from(group),
            _ => index.into(),
        };
        (mix(mix(source) ^ u64::from(position)) % u64::from(VOCAB_SIZE)) as u32
    };
    let pinned = match options.placing {
        Placing::Scheduler => None,
        Placing::RoundRobin => Some(DpRank::new(index % options.dp_size)),
    };
    RequestSpec {
        id: RequestId(index.into()),
        prompt: (0..request.prompt_tokens).map(token).collect(),
        max_new_tokens: request.output_tokens,
        stop_token_ids: Vec::new(),
        sampling: Vec::new(),
        pinned,
        priority: request.priority,
        history: false,
        prompt_logprobs: false,
        cache_salt: Vec::new(),
        constrained: false,
        shares_prompt_with: None,
    }
}
