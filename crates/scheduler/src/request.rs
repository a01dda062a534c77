//! Requests and where they are in their life.

use std::collections::BTreeMap;

use paceline_plan::{DpRank, Seat};

use crate::keys::KeyChain;

/// A request, chosen by the caller; never used again while the request lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

impl std::fmt::Display for RequestId {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}", self.0)
    }
}

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestSpec {
    /// Who asks.
    pub id: RequestId,
    /// Token ids, at least one.
    pub prompt: Vec<u32>,
    /// Tokens to generate at most, at least 1.
    pub max_new_tokens: u32,
    /// Token ids that end the request; the one that did is part of the output.
    pub stop_token_ids: Vec<u32>,
    /// Sampling parameters, opaque here.
    pub sampling: Vec<u8>,
    /// The only rank that may run it.
    pub pinned: Option<DpRank>,
    /// Lower goes first.
    pub priority: i32,
    /// Whether the worker must know every token even without n-gram drafts (penalties).
    pub history: bool,
    /// Whether the log-probabilities of the prompt's tokens are wanted. Then every position is computed anew, and what
    /// it computes may be read by others.
    pub prompt_logprobs: bool,
    /// Requests share cached prefixes only with requests of the same salt.
    pub cache_salt: Vec<u8>,
    /// Whether masks say which of its tokens may be chosen (rule 19).
    pub constrained: bool,
    /// A request with the same prompt (choices of one call): this one waits until that one's prompt is computed, to
    /// read it from the prefix cache.
    pub shares_prompt_with: Option<RequestId>,
}

/// Index into the table of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Slot(u32);

impl Slot {
    /// No request.
    pub(crate) const NONE: Self = Self(u32::MAX);
}

/// Where a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In the queue; `resumes` when it ran before.
    Waiting { resumes: bool },
    /// On a rank.
    Running { dp_rank: DpRank, seat: Seat },
    /// Its group's epoch ended; the caller says what becomes of it.
    Void,
}

/// Order in the queue and, backwards, in preemption: the largest goes last and is evicted first.
pub(crate) type Standing = (i32, u64);

#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) id: RequestId,
    /// Known tokens: prompt, then output; while it runs, without the newest ones, which its rank has.
    pub(crate) tokens: Vec<u32>,
    pub(crate) prompt_len: u32,
    pub(crate) max_new_tokens: u32,
    /// Sorted.
    pub(crate) stop_token_ids: Vec<u32>,
    pub(crate) sampling: Vec<u8>,
    pub(crate) pinned: Option<DpRank>,
    pub(crate) priority: i32,
    pub(crate) history: bool,
    /// The prompt token whose log-probabilities are reported next; nothing when none are wanted or all are reported.
    /// The first token has none.
    pub(crate) report_next: Option<u32>,
    pub(crate) constrained: bool,
    pub(crate) shares_prompt_with: Option<RequestId>,
    /// Names of its full blocks; none when the prefix cache is off.
    pub(crate) chain: KeyChain,
    /// Tokens that it read from the prefix cache when it first started.
    pub(crate) cached_tokens: Option<u32>,
    /// How often it was sent back to the queue.
    pub(crate) preemptions: u32,
    /// Requests that started before it although it came first.
    pub(crate) skips: u32,
    /// The rank where it runs or ran last.
    pub(crate) ran_on: Option<DpRank>,
    /// Number of the submission.
    pub(crate) arrival: u64,
    pub(crate) place: Place,
}

impl Request {
    /// n: known tokens, of a request that does not run.
    pub(crate) fn known(&self) -> u32 {
        self.tokens.len() as u32
    }

    /// Whether a token ends it.
    #[inline(never)]
    pub(crate) fn stops_at(&self, token: u32) -> bool {
        self.stop_token_ids.binary_search(&token).is_ok()
    }

    /// Whether a prompt row from `start` to `end` gives logits at all its positions: it holds a prompt token that is not
    /// reported yet, or comes right before one.
    pub(crate) fn reports(&self, start: u32, end: u32) -> bool {
        start < self.prompt_len && self.report_next.is_some_and(|next| end >= next)
    }

    /// Tokens whose KV it needs at its longest: the last one is never computed.
    pub(crate) const fn longest_computed(&self) -> u32 {
        self.prompt_len + self.max_new_tokens - 1
    }

    pub(crate) const fn standing(&self) -> Standing {
        (self.priority, self.arrival)
    }
}

/// All live requests.
#[derive(Clone, Debug, Default)]
pub(crate) struct Requests {
    slots: Vec<Option<Request>>,
    free: Vec<Slot>,
    index: BTreeMap<RequestId, Slot>,
}

impl Requests {
    pub(crate) fn insert(&mut self, request: Request) -> Slot {
        let id = request.id;
        let slot = self.free.pop().unwrap_or(Slot(self.slots.len() as u32));
        if slot.0 as usize == self.slots.len() {
            self.slots.push(None);
        }
        self.slots[slot.0 as usize] = Some(request);
        self.index.insert(id, slot);
        slot
    }

    pub(crate) fn remove(&mut self, slot: Slot) -> Request {
        let request = self.slots[slot.0 as usize].take().expect("a slot is removed once");
        self.index.remove(&request.id);
        self.free.push(slot);
        request
    }

    pub(crate) fn find(&self, id: RequestId) -> Option<Slot> {
        self.index.get(&id).copied()
    }

    pub(crate) fn len(&self) -> usize {
        self.index.len()
    }
}

impl std::ops::Index<Slot> for Requests {
    type Output = Request;

    fn index(&self, slot: Slot) -> &Request {
        self.slots[slot.0 as usize].as_ref().expect("slots in lists are live")
    }
}

impl std::ops::IndexMut<Slot> for Requests {
    fn index_mut(&mut self, slot: Slot) -> &mut Request {
        self.slots[slot.0 as usize].as_mut().expect("slots in lists are live")
    }
}
