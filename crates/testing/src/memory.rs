//! What the KV cache of a real worker is: which token lies at which place of which block.
//!
//! The scripted model reads its past from here and not from what it was told. So a prefix that another request computed
//! counts, and a block that was given away too early, or written twice, is found at once.

use paceline_plan::seats::SeatState;
use paceline_plan::{Error, RankPart, WorkerLimits};

/// No token was written here.
const UNWRITTEN: u32 = u32::MAX;

/// The tokens of all blocks of one worker.
pub(crate) struct Memory {
    /// By write slot: `block * block_size + offset`, `[(num_blocks + 1) * block_size]`.
    tokens: Vec<u32>,
    block_size: usize,
}

impl Memory {
    /// Blocks that hold nothing.
    pub(crate) fn new(limits: &WorkerLimits) -> Self {
        let block_size = limits.block_size as usize;
        Self { tokens: vec![UNWRITTEN; (limits.num_blocks as usize + 1) * block_size], block_size }
    }

    /// Copies and clears whole blocks, as a plan says.
    pub(crate) fn prepare(&mut self, rank: &RankPart) {
        for (source, destination) in rank.block_copies() {
            let source = source.index() * self.block_size;
            self.tokens.copy_within(source..source + self.block_size, destination.index() * self.block_size);
        }
        for block in rank.block_zeroings() {
            self.tokens[block.index() * self.block_size..][..self.block_size].fill(UNWRITTEN);
        }
    }

    /// Writes what a pass is given: the token of each place that has a write slot.
    pub(crate) fn write(&mut self, input_ids: &[i64], slots: &[i64]) {
        for (token_id, slot) in input_ids.iter().zip(slots).filter(|(_, slot)| **slot >= 0) {
            self.tokens[*slot as usize] = *token_id as u32;
        }
    }

    /// All known tokens of a request: those whose KV is written from its blocks, the others from what was told.
    ///
    /// # Errors
    /// Rule 11 when a block does not hold what the request wrote, or nothing: the token that is known, or -1, and what is
    /// there, or -1.
    pub(crate) fn history(&self, state: &SeatState) -> Result<Vec<u32>, Error> {
        let first = state.known() - state.tokens().len() as u32;
        let mut tokens = Vec::with_capacity(state.known() as usize + 1);
        for position in 0..state.computed() {
            let there = self.token(state, position as usize);
            let known = if position < first { there } else { Some(state.token(position)) };
            match there {
                Some(token) if there == known => tokens.push(token),
                _ => return Err(Error::rule(11, "token in the KV cache", or_none(known), or_none(there))),
            }
        }
        tokens.extend_from_slice(&state.tokens()[(state.computed() - first) as usize..]);
        Ok(tokens)
    }

    fn token(&self, state: &SeatState, position: usize) -> Option<u32> {
        let block = state.blocks().get(position / self.block_size)?;
        let token = self.tokens[block.index() * self.block_size + position % self.block_size];
        (token != UNWRITTEN).then_some(token)
    }
}

fn or_none(token: Option<u32>) -> i64 {
    token.map_or(-1, i64::from)
}

#[cfg(test)]
mod tests {
    use paceline_plan::seats::{SeatTable, StepHeader};
    use paceline_plan::{
        Admission, BlockAppend, DpRank, Epoch, Feed, GroupDraft, GroupId, GroupPart, KvGroup, LogitsWanted, Mask, Pass,
        PassKind, QueryLen, RankDraft, RankLoad, Row, Rows, Seat, SeatGeneration, Shape, StepId, Tokens, digest,
        to_bytes,
    };

    use super::*;

    const TOKENS: [u32; 6] = [10, 11, 12, 13, 14, 15];

    fn limits() -> WorkerLimits {
        WorkerLimits {
            seats: 1,
            max_num_seqs: 1,
            max_num_batched_tokens: 8,
            max_model_len: 16,
            block_size: 4,
            num_blocks: 3,
            k_max: 0,
            row_capacity: 1,
            token_capacity: 8,
            table_width: 4,
            vocab_size: 100,
        }
    }

    /// A request of six tokens in blocks 2 and 1. The first four are a prefix hit, told where it needs its history.
    fn seated(history: bool) -> SeatTable {
        let (seat, generation, dp_rank) = (Seat::new(0), SeatGeneration::new(1), DpRank::new(0));
        let start = if history { 0 } else { 4 };
        let mut rank = RankDraft { dp_rank, ..RankDraft::default() };
        let sampling = vec![1];
        rank.admissions.push(Admission { seat, generation, prompt_len: 6, computed: 4, adapter: 0, sampling, history });
        rank.feeds.push(Feed { seat, start, tokens: TOKENS[start as usize..].to_vec().into() });
        rank.block_appends.push(BlockAppend { seat, kv_group: KvGroup::new(0), blocks: vec![2, 1].into() });
        rank.rows.push(Row {
            seat,
            generation,
            start_max: 4,
            query_len: QueryLen::new(2).expect("not zero"),
            drafts: 0,
            blocks: 2,
            logits: LogitsWanted::Last,
            mask: Mask::None,
        });
        let load = RankLoad::Real { rows: Rows::new(1), tokens: Tokens::new(2) };
        let passes = vec![Pass::new(PassKind::Target, Shape::Eager, vec![load]).expect("legal")];
        let (group, epoch, step) = (GroupId::new(0), Epoch::new(1), StepId::new(1));
        let dp_ranks = vec![dp_rank];
        let draft = GroupDraft { group, epoch, step, depth: 0, k_verify: 0, k_draft: 0, dp_ranks, passes };
        let part = to_bytes(&GroupPart::new(draft).expect("legal"));
        let header = StepHeader { group, epoch, step, digest: digest(&part) };
        let mut table = SeatTable::new(limits(), dp_rank, vec![dp_rank]).expect("in the group");
        table.reset(epoch);
        table.begin(header, &part, &to_bytes(&RankPart::new(rank).expect("legal"))).expect("legal");
        table
    }

    fn history(memory: &Memory, table: &SeatTable) -> Result<Vec<u32>, Error> {
        memory.history(table.seat(Seat::new(0)).expect("it is taken"))
    }

    #[test]
    fn what_was_not_told_is_read_from_the_blocks_and_what_was_told_is_compared() {
        let (untold, told) = (seated(false), seated(true));
        let mut memory = Memory::new(&limits());
        assert_eq!(history(&memory, &untold), Err(Error::rule(11, "token in the KV cache", -1, -1)));
        assert_eq!(history(&memory, &told), Err(Error::rule(11, "token in the KV cache", 10, -1)));
        memory.write(&[10, 11, 12, 13, 0], &[8, 9, 10, 11, -1]);
        assert_eq!(history(&memory, &untold), Ok(TOKENS.to_vec()));
        assert_eq!(history(&memory, &told), Ok(TOKENS.to_vec()));
        memory.write(&[77], &[9]);
        assert_eq!(history(&memory, &untold), Ok(vec![10, 77, 12, 13, 14, 15]), "the text will be another");
        assert_eq!(history(&memory, &told), Err(Error::rule(11, "token in the KV cache", 11, 77)));
    }
}
