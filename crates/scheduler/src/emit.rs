//! From chosen rows to a rank's part of the plan: the deltas that the worker has not been told of, then the rows.

use paceline_plan::{
    Admission, BlockAppend, DpRank, Feed, KvGroup, LogitsWanted, Mask, QueryLen, RankDraft, RankPart, Row, Seat,
    SeatGeneration,
};

use crate::RequestId;
use crate::rank::Rank;
use crate::request::{Request, Requests, Slot};
use crate::seated::Seated;
use crate::select::Selected;

/// A row that was sent, kept until its reply is in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SentRow {
    pub(crate) slot: Slot,
    pub(crate) seat: Seat,
    pub(crate) generation: SeatGeneration,
    pub(crate) is_decode: bool,
    /// Tokens of a prompt row; 1 in a decode row.
    pub(crate) tokens: u32,
    pub(crate) drafts: u32,
    /// What the worker knows of the request once the plan's deltas are applied, at most.
    pub(crate) known_max: u32,
    /// Whether the row gives a token.
    pub(crate) samples: bool,
    /// Whether its masks follow.
    pub(crate) is_masked: bool,
    /// Where the row's tokens end in the prompt, when they are reported with log-probabilities.
    pub(crate) reported_end: Option<u32>,
}

/// A row that was sent without its masks (rule 19).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaskedRow {
    /// The rank that runs it.
    pub dp_rank: DpRank,
    /// Whose it is.
    pub id: RequestId,
    /// Where it sits.
    pub seat: Seat,
    /// Which life of the seat.
    pub generation: SeatGeneration,
    /// Drafts that it verifies at most: it has one mask more.
    pub drafts: u32,
}

/// What workers are told beyond what every drafter needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Told {
    /// Every token, a prefix hit's included.
    pub(crate) keep_history: bool,
    /// Tokens past the end of a chunk.
    pub(crate) lookahead: u32,
    /// Drafts to propose in the step.
    pub(crate) k_draft: u32,
}

/// Makes a rank's part of the plan and marks its requests as in flight. `rows` are the rows that run, in the order in
/// which they are sent; decode rows are `query_len` long when it is given (FULL), else as long as they need to be. `draft`
/// and `sent` are empty and lend their memory; rows that were sent are added to `sent`.
pub(crate) fn rank_part(
    rank: &mut Rank,
    requests: &Requests,
    rows: &[Selected],
    query_len: Option<QueryLen>,
    told: Told,
    tick: u64,
    (mut draft, sent): (RankDraft, &mut Vec<SentRow>),
) -> RankPart {
    draft.dp_rank = rank.dp_rank;
    if rows.is_empty() {
        return checked(draft);
    }
    draft.releases.append(&mut rank.releases);
    draft.rows.reserve(rows.len());
    sent.reserve(rows.len());
    let (seats, tables) = rank.parts_mut();
    for selected in rows {
        let seated = &mut seats[selected.seat.index()];
        let knows_all = seated.blocks_told > 0 && seated.blocks_told == seated.blocks;
        if !knows_all || !selected.is_decode {
            tell(seated, &tables[selected.seat.index()], &requests[seated.slot], selected, told, &mut draft);
        }
        let (row, sent_row) = if selected.is_decode {
            decode_row(seated, selected, query_len)
        } else {
            prompt_row(seated, &requests[seated.slot], selected, query_len)
        };
        draft.rows.push(row);
        sent.push(sent_row);
        launch(seated, &sent_row, told.k_draft);
        seated.last_run = tick;
    }
    draft.decode_rows = rows.iter().map(|row| u32::from(row.is_decode)).sum();
    if rank.constrained > 0 {
        mask_rows(requests, &mut draft.rows, sent);
    }
    rank.ran(rows.len(), tick);
    checked(draft)
}

/// Rule 19: the rows that sample for a constrained request wait for masks.
fn mask_rows(requests: &Requests, rows: &mut [Row], sent: &mut [SentRow]) {
    let added = sent.len() - rows.len();
    for (row, sent) in rows.iter_mut().zip(&mut sent[added..]) {
        if sent.samples && requests[sent.slot].constrained {
            row.mask = Mask::Follows;
            sent.is_masked = true;
        }
    }
}

/// Rule 16: where the request is once this row is answered, at most.
#[inline]
const fn launch(seated: &mut Seated, sent: &SentRow, k_draft: u32) {
    seated.in_flight += 1;
    seated.start_max += sent.tokens + sent.drafts;
    if sent.samples {
        seated.giving += 1;
        seated.proposing = k_draft;
    }
}

fn checked(draft: RankDraft) -> RankPart {
    let dp_rank: DpRank = draft.dp_rank;
    RankPart::new(draft).unwrap_or_else(|error| panic!("the scheduler's own plan, dp_rank {dp_rank}: {error}"))
}

/// Adds what the worker does not know yet: the request itself, this chunk's tokens and those that the drafter needs
/// after it, new blocks.
fn tell(seated: &mut Seated, table: &[u32], request: &Request, selected: &Selected, told: Told, draft: &mut RankDraft) {
    let seat = selected.seat;
    let (prompt_len, history) = (request.prompt_len, request.history || told.keep_history);
    let Seated { generation, computed, blocks_told, .. } = *seated;
    if blocks_told == 0 {
        let sampling = request.sampling.clone();
        draft.admissions.push(Admission { seat, generation, prompt_len, computed, adapter: 0, sampling, history });
    }
    if !selected.is_decode {
        let start = if blocks_told > 0 || history { seated.fed } else { computed };
        let end = seated.start_max + selected.tokens;
        // One token past a chunk that is reported tells the worker that the chunk ends nothing.
        let lookahead = told.lookahead.max(u32::from(request.reports(seated.start_max, end)));
        let end = (end + lookahead).min(seated.prompt_end);
        if end > start {
            let tokens = request.tokens[start as usize..end as usize].into();
            draft.feeds.push(Feed { seat, start, tokens });
            seated.fed = end;
        }
    }
    if blocks_told < seated.blocks {
        let blocks = table[blocks_told as usize..].into();
        draft.block_appends.push(BlockAppend { seat, kv_group: KvGroup::new(0), blocks });
        seated.blocks_told = seated.blocks;
    }
}

#[inline]
fn decode_row(seated: &Seated, selected: &Selected, query_len: Option<QueryLen>) -> (Row, SentRow) {
    let Selected { seat, drafts, .. } = *selected;
    let Seated { slot, generation, start_max, blocks, .. } = *seated;
    let query_len = query_len.unwrap_or(QueryLen::verifying(drafts));
    let (logits, mask) = (LogitsWanted::Verify, Mask::None);
    let row = Row { seat, generation, start_max, query_len, drafts, blocks, logits, mask };
    let (known_max, reported_end) = (start_max + 1, None);
    let (is_decode, tokens, samples, is_masked) = (true, 1, true, false);
    (row, SentRow { slot, seat, generation, is_decode, tokens, drafts, known_max, samples, is_masked, reported_end })
}

fn prompt_row(seated: &Seated, request: &Request, selected: &Selected, query_len: Option<QueryLen>) -> (Row, SentRow) {
    let Selected { seat, is_decode, tokens, drafts, .. } = *selected;
    let Seated { slot, generation, start_max, blocks, .. } = *seated;
    let end = start_max + tokens;
    let samples = end == seated.prompt_end;
    let reports = request.reports(start_max, end);
    let logits = match (reports, samples) {
        (true, _) => LogitsWanted::All,
        (false, true) => LogitsWanted::Last,
        (false, false) => LogitsWanted::None,
    };
    let query_len = query_len.unwrap_or(QueryLen::verifying(tokens - 1));
    let row = Row { seat, generation, start_max, query_len, drafts, blocks, logits, mask: Mask::None };
    let (known_max, reported_end) = (seated.fed, reports.then_some(request.prompt_len.min(end)));
    let is_masked = false;
    (row, SentRow { slot, seat, generation, is_decode, tokens, drafts, known_max, samples, is_masked, reported_end })
}
