//! Log-probabilities of the tokens of a prompt, chunk by chunk.

use paceline_plan::seats::SeatState;
use paceline_plan::{Row, TokenLogprobs};
use paceline_sampling::{Error, Sampler, Scratch, TokenLogprobs as Found, token_logprobs};

/// The last row of logits of each seat's chunk: the next chunk's first token is judged by it.
#[derive(Debug, Default)]
pub(crate) struct LastLogits {
    seats: Vec<Option<Vec<f32>>>,
}

impl LastLogits {
    /// Nothing kept, for this many seats.
    pub(crate) fn new(seats: u32) -> Self {
        Self { seats: (0..seats).map(|_| None).collect() }
    }

    /// Forgets what belongs to one seat.
    pub(crate) fn clear(&mut self, seat: usize) {
        self.seats[seat] = None;
    }

    /// Forgets everything.
    pub(crate) fn clear_all(&mut self) {
        self.seats.fill(None);
    }

    /// The entries of a row that gives logits at all its positions: one for each of its own tokens that belongs to the
    /// prompt and follows another one. The first of them is missing when the chunk before gave no logits.
    pub(crate) fn entries(
        &mut self,
        state: &SeatState,
        sampler: &Sampler,
        row: &Row,
        logits: &[&[f32]],
        scratch: &mut Scratch,
    ) -> Result<Vec<TokenLogprobs>, Error> {
        let kept = &mut self.seats[row.seat.index()];
        let before = kept.take();
        let Some(top_count) = sampler.params().prompt_logprobs else { return Ok(Vec::new()) };
        let start = state.computed();
        let end = start + row.query_len.get();
        let mut entries = Vec::with_capacity(logits.len());
        for index in start.max(1)..end.min(state.prompt_len()) {
            let row_before =
                if index == start { before.as_deref() } else { Some(logits[(index - start - 1) as usize]) };
            let Some(row_before) = row_before else { continue };
            let token_id = state.token(index);
            entries.push(entry(token_id, &token_logprobs(row_before, token_id, top_count, scratch)?));
        }
        if end < state.prompt_len() {
            *kept = logits.last().map(|row| row.to_vec());
        }
        Ok(entries)
    }
}

/// A token's log-probabilities as they travel: its own first.
pub(crate) fn entry(token_id: u32, found: &Found) -> TokenLogprobs {
    TokenLogprobs {
        token_ids: std::iter::once(token_id).chain(found.top.iter().map(|(id, _)| *id)).collect(),
        logprob_bits: std::iter::once(found.sampled)
            .chain(found.top.iter().map(|(_, logprob)| *logprob))
            .map(f32::to_bits)
            .collect(),
    }
}
