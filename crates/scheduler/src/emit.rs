//! From chosen rows to a rank's part of the plan: the deltas that the worker has not been told of, then the rows.

use paceline_plan::{
    Admission, BlockAppend, DpRank, Feed, KvGroup, LogitsWanted, Mask, QueryLen, RankDraft, RankPart, Row, Seat,
    SeatGeneration,
};

use crate::RequestId;
use crate::rank::Rank;
use crate::request::{Request, Requests};
use crate::seated::Seated;
use crate::selection::Selected;
use crate::sent::{SentPrompt, SentRows};

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

/// What a rank's part is made with, the same for every rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Told {
    /// Whether workers know every token, a prefix hit's included.
    pub(crate) keep_history: bool,
    /// Tokens past the end of a chunk.
    pub(crate) lookahead: u32,
    /// Drafts to propose in the step.
    pub(crate) k_draft: u32,
    /// Length of every row in FULL; elsewhere rows are as long as they need to be.
    pub(crate) query_len: Option<QueryLen>,
    /// Number of the group's step over all epochs.
    pub(crate) tick: u64,
}

/// Makes a rank's part of the plan in the memory of an older one, and marks its requests as in flight. `rows` are the rows
/// that run, in the order in which they are sent. `sent` is empty, and is given what the reply is checked against.
///
/// # Panics
/// When the part breaks a rule: a fault of the scheduler.
pub(crate) fn rank_part(
    rank: &mut Rank,
    requests: &Requests,
    rows: &[Selected],
    told: Told,
    (part, sent): (&mut RankPart, &mut SentRows),
) {
    let dp_rank = rank.dp_rank;
    let made = part.remake(|draft| {
        draft.dp_rank = dp_rank;
        if rows.is_empty() {
            return;
        }
        if !rank.releases.is_empty() {
            draft.releases.append(&mut rank.releases);
        }
        let (decode_rows, prompt_rows) = rows.split_at(rows.partition_point(|row| row.is_decode));
        add_decode_rows(rank, requests, decode_rows, told, draft);
        add_prompt_rows(rank, requests, prompt_rows, told, draft, &mut sent.prompts);
        draft.decode_rows = decode_rows.len() as u32;
        if rank.constrained > 0 {
            mask_rows(rank, requests, draft, &sent.prompts);
        }
        rank.ran(rows.len(), told.tick);
        sent.rows.extend_from_slice(&draft.rows);
    });
    made.unwrap_or_else(|error| panic!("the scheduler's own plan, dp_rank {dp_rank}: {error}"));
}

fn add_decode_rows(rank: &mut Rank, requests: &Requests, rows: &[Selected], told: Told, draft: &mut RankDraft) {
    let (seats, tables) = rank.parts_mut();
    let mut made = std::mem::take(&mut draft.rows);
    made.extend(rows.iter().map(|selected| {
        let Selected { seat, drafts, .. } = *selected;
        let seated = &mut seats[seat.index()];
        // It holds a block at least, so that this holds for one of whom the worker was told nothing too.
        if seated.blocks_told != seated.blocks {
            tell(seated, &tables[seat.index()], &requests[seated.slot], selected, told, draft);
        }
        let Seated { generation, start_max, blocks, .. } = *seated;
        seated.launch(1 + drafts, told.tick);
        seated.gives(told.k_draft);
        let query_len = told.query_len.unwrap_or(QueryLen::verifying(drafts));
        let (logits, mask) = (LogitsWanted::Verify, Mask::None);
        Row { seat, generation, start_max, query_len, drafts, blocks, logits, mask }
    }));
    draft.rows = made;
}

fn add_prompt_rows(
    rank: &mut Rank,
    requests: &Requests,
    rows: &[Selected],
    told: Told,
    draft: &mut RankDraft,
    prompts: &mut Vec<SentPrompt>,
) {
    let (seats, tables) = rank.parts_mut();
    for selected in rows {
        let Selected { seat, tokens, drafts, .. } = *selected;
        let seated = &mut seats[seat.index()];
        let request = &requests[seated.slot];
        tell(seated, &tables[seat.index()], request, selected, told, draft);
        let Seated { generation, start_max, blocks, .. } = *seated;
        let end = start_max + tokens;
        let (samples, reports) = (end == seated.prompt_end, request.reports(start_max, end));
        let logits = match (reports, samples) {
            (true, _) => LogitsWanted::All,
            (false, true) => LogitsWanted::Last,
            (false, false) => LogitsWanted::None,
        };
        seated.launch(tokens, told.tick);
        if samples {
            seated.gives(told.k_draft);
        }
        let (query_len, mask) = (QueryLen::verifying(tokens - 1), Mask::None);
        draft.rows.push(Row { seat, generation, start_max, query_len, drafts, blocks, logits, mask });
        let reported_end = reports.then_some(request.prompt_len.min(end));
        prompts.push(SentPrompt { known: seated.fed, samples, reported_end });
    }
}

/// Rule 19: the rows that sample for a constrained request wait for masks.
fn mask_rows(rank: &Rank, requests: &Requests, draft: &mut RankDraft, prompts: &[SentPrompt]) {
    let (decode_rows, prompt_rows) = draft.rows.split_at_mut(draft.decode_rows as usize);
    let sampling = prompt_rows.iter_mut().zip(prompts).filter(|(_, prompt)| prompt.samples).map(|(row, _)| row);
    for row in decode_rows.iter_mut().chain(sampling) {
        if requests[rank.slot(row.seat)].constrained {
            row.mask = Mask::Follows;
        }
    }
}

/// Adds what the worker does not know yet: the request itself, this chunk's tokens and those that the drafter needs
/// after it, new blocks.
#[inline(never)]
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
