//! From chosen rows to a rank's part of the plan: the deltas that the worker has not been told of, then the rows.

use paceline_plan::{
    Admission, BlockAppend, DpRank, Feed, KvGroup, LogitsWanted, Mask, QueryLen, RankDraft, RankPart, Row, Seat,
    SeatGeneration,
};

use crate::rank::Rank;
use crate::request::{Request, Requests, Seated, Slot};
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
    /// Where the row's tokens end in the prompt, when they are reported with log-probabilities.
    pub(crate) reported_end: Option<u32>,
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

/// Makes a rank's part of the plan and marks its requests as in flight. `rows` are the rows that run; decode rows
/// are `query_len` long when it is given (FULL), else as long as they need to be.
pub(crate) fn rank_part(
    rank: &mut Rank,
    requests: &mut Requests,
    rows: &[Selected],
    query_len: Option<QueryLen>,
    told: Told,
    tick: u64,
) -> (RankPart, Vec<SentRow>) {
    let mut draft = RankDraft { dp_rank: rank.dp_rank, ..RankDraft::default() };
    let mut sent = Vec::with_capacity(rows.len());
    if rows.is_empty() {
        return (checked(draft), sent);
    }
    draft.releases = std::mem::take(&mut rank.releases);
    let mut rows = rows.to_vec();
    // Decode rows first; within a kind by seat, so that steady rows keep their places in the worker's buffers.
    rows.sort_by_key(|row| (!row.is_decode, requests[row.slot].on_seat().seat));
    for selected in &rows {
        let request = &mut requests[selected.slot];
        tell(request, selected, told, &mut draft);
        let (row, sent_row) = row(request, selected, query_len);
        draft.rows.push(row);
        draft.decode_rows += u32::from(selected.is_decode);
        sent.push(sent_row);
        launch(request.on_seat_mut(), &sent_row, told.k_draft);
        request.on_seat_mut().last_run = tick;
    }
    (checked(draft), sent)
}

/// Rule 16: where the request is once this row is answered, at most.
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
fn tell(request: &mut Request, selected: &Selected, told: Told, draft: &mut RankDraft) {
    let (prompt_len, history) = (request.prompt_len, request.history || told.keep_history);
    let seated = request.on_seat();
    let (seat, generation) = (seated.seat, seated.generation);
    if !seated.told {
        let sampling = request.sampling.clone();
        let computed = seated.computed;
        draft.admissions.push(Admission { seat, generation, prompt_len, computed, adapter: 0, sampling, history });
    }
    if !selected.is_decode {
        let start = if seated.told || history { seated.fed } else { seated.computed };
        let end = seated.start_max + selected.tokens;
        // One token past a chunk that is reported tells the worker that the chunk ends nothing.
        let lookahead = told.lookahead.max(u32::from(request.reports(seated.start_max, end)));
        let end = (end + lookahead).min(seated.prompt_end);
        if end > start {
            let tokens = request.tokens[start as usize..end as usize].to_vec().into();
            draft.feeds.push(Feed { seat, start, tokens });
            request.on_seat_mut().fed = end;
        }
    }
    let seated = request.on_seat_mut();
    if seated.blocks_told < seated.blocks.len() {
        let blocks = seated.blocks[seated.blocks_told..].to_vec().into();
        draft.block_appends.push(BlockAppend { seat, kv_group: KvGroup::new(0), blocks });
    }
    seated.told = true;
    seated.blocks_told = seated.blocks.len();
}

fn row(request: &Request, selected: &Selected, query_len: Option<QueryLen>) -> (Row, SentRow) {
    let seated = request.on_seat();
    let start = seated.start_max;
    let Selected { slot, is_decode, tokens, drafts, .. } = *selected;
    let shortest = if is_decode { QueryLen::verifying(drafts) } else { QueryLen::verifying(tokens - 1) };
    let ends_prompt = start + tokens == seated.prompt_end;
    let reports = !is_decode && request.reports(start, start + tokens);
    let logits = match (is_decode, ends_prompt) {
        (true, _) => LogitsWanted::Verify,
        (false, _) if reports => LogitsWanted::All,
        (false, true) => LogitsWanted::Last,
        (false, false) => LogitsWanted::None,
    };
    let (seat, generation) = (seated.seat, seated.generation);
    let row = Row {
        seat,
        generation,
        start_max: start,
        query_len: query_len.unwrap_or(shortest),
        drafts,
        blocks: seated.blocks.len() as u32,
        logits,
        mask: Mask::None,
    };
    let samples = is_decode || ends_prompt;
    let known_max = if is_decode { start + 1 } else { seated.fed };
    let reported_end = reports.then_some(request.prompt_len.min(start + tokens));
    (row, SentRow { slot, seat, generation, is_decode, tokens, drafts, known_max, samples, reported_end })
}
