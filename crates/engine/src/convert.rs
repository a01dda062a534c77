//! Between the fleet's words and the handle's.

use paceline_fleet::{Declined, FailureKind as FleetFailure, Fleet, RankState as FleetRankState};
use paceline_plan::{DpRank, TokenLogprobs as PlanLogprobs};
use paceline_sampling::TokenLogprobs;
use paceline_scheduler::{Finish, Refusal, RequestId, RequestSpec, Stats};

use crate::handle::{FailureKind, FinishReason, GenerateRequest, SubmitError, TokenOutput};
use crate::status::{FleetCounters, FleetStatus, ModelLimits, RankCounters, RankState, RankStatus, WorkerStatus};

pub(crate) fn spec(id: u64, request: GenerateRequest) -> RequestSpec {
    RequestSpec {
        id: RequestId(id),
        sampling: request.sampling.to_bytes(),
        prompt: request.prompt_token_ids,
        max_new_tokens: request.max_new_tokens,
        stop_token_ids: request.stop_token_ids,
        pinned: request.dp_rank.map(DpRank::new),
        priority: request.priority,
        history: request.sampling.adjust.needs_history(),
        prompt_logprobs: request.sampling.prompt_logprobs.is_some(),
        cache_salt: request.cache_salt,
        constrained: false,
        shares_prompt_with: request.shares_prompt_with.map(|key| RequestId(key.0)),
    }
}

pub(crate) fn declined(declined: Declined) -> SubmitError {
    let refusal = match declined {
        Declined::Unavailable(message) => return SubmitError::Unavailable { message },
        Declined::Refused(refusal) => refusal,
    };
    match refusal {
        Refusal::QueueFullRequests { most, waiting } => {
            SubmitError::QueueFull { waiting, limit: most, unit: "requests" }
        }
        Refusal::QueueFullTokens { most, waiting, .. } => {
            SubmitError::QueueFull { waiting, limit: most, unit: "tokens" }
        }
        refusal => {
            let field = match refusal.field() {
                "max_new_tokens" => "max_tokens",
                field => field,
            };
            SubmitError::Invalid { field, message: refusal.to_string() }
        }
    }
}

pub(crate) const fn failure(kind: FleetFailure) -> FailureKind {
    match kind {
        FleetFailure::WorkerLost => FailureKind::WorkerLost,
        FleetFailure::Internal => FailureKind::Internal,
        FleetFailure::Stuck => FailureKind::Stuck,
    }
}

pub(crate) const fn finish(finish: Finish) -> FinishReason {
    match finish {
        Finish::Stop(token) => FinishReason::Stop(Some(token)),
        Finish::Length => FinishReason::Length,
    }
}

pub(crate) fn outputs(tokens: &[u32], entries: Vec<PlanLogprobs>) -> Vec<TokenOutput> {
    let wanted = entries.into_iter().map(|entry| (!entry.token_ids.is_empty()).then(|| logprobs(entry)));
    let wanted = wanted.chain(std::iter::repeat_with(|| None));
    tokens.iter().zip(wanted).map(|(token_id, logprobs)| TokenOutput { token_id: *token_id, logprobs }).collect()
}

/// The first entry is the token's own, the rest are the most likely ones.
pub(crate) fn logprobs(logprobs: PlanLogprobs) -> TokenLogprobs {
    let mut values = logprobs.logprob_bits.into_iter().map(f32::from_bits);
    let sampled = values.next().unwrap_or(f32::NEG_INFINITY);
    TokenLogprobs { sampled, top: logprobs.token_ids.into_iter().skip(1).zip(values).collect() }
}

pub(crate) fn limits(fleet: &Fleet, dp_size: u32) -> ModelLimits {
    let limits = fleet.limits();
    limits.map_or_else(ModelLimits::default, |limits| ModelLimits {
        max_model_len: limits.max_model_len,
        vocab_size: limits.vocab_size,
        max_num_seqs: limits.max_num_seqs,
        max_num_batched_tokens: limits.max_num_batched_tokens,
        block_size: limits.block_size,
        kv_blocks: limits.num_blocks,
        dp_size,
    })
}

pub(crate) fn status(fleet: &Fleet) -> FleetStatus {
    let stats = fleet.scheduler().map(paceline_scheduler::Scheduler::stats);
    let counters = fleet.counters();
    let balance = stats.as_ref().map_or((0, 0), |stats| (stats.balance_real_tokens, stats.balance_largest_tokens));
    FleetStatus {
        ready: fleet.is_ready() && !fleet.is_draining(),
        draining: fleet.is_draining(),
        ranks: fleet.ranks().iter().map(|rank| rank_status(fleet, rank, stats.as_ref())).collect(),
        waiting: stats.as_ref().map_or(0, |stats| stats.waiting as usize),
        waiting_tokens: stats.as_ref().map_or(0, |stats| stats.waiting_tokens),
        counters: FleetCounters {
            steps: counters.steps,
            accepted: counters.accepted,
            refused: counters.refused,
            finished: counters.finished,
            aborted: counters.aborted,
            failed: counters.failed,
            tokens: counters.tokens,
            refused_plans: counters.refused_plans,
            balance_real_tokens: balance.0,
            balance_largest_tokens: balance.1,
        },
        ..FleetStatus::default()
    }
}

const fn rank_state(state: FleetRankState) -> RankState {
    match state {
        FleetRankState::Absent => RankState::Absent,
        FleetRankState::Loading => RankState::Loading,
        FleetRankState::Loaded => RankState::Loaded,
        FleetRankState::Ready => RankState::Ready,
        FleetRankState::Recovering => RankState::Recovering,
        FleetRankState::Stopped => RankState::Stopped,
    }
}

fn rank_status(fleet: &Fleet, rank: &paceline_fleet::RankStatus, stats: Option<&Stats>) -> RankStatus {
    let (dp_rank, state, restarts) = (rank.dp_rank.get(), rank_state(rank.state), rank.restarts);
    let gate = fleet.gate(rank.dp_rank);
    let workers = rank.workers.iter();
    let workers = workers.map(|worker| WorkerStatus { tp_rank: worker.tp_rank, state: rank_state(worker.state) });
    let workers = workers.collect();
    let found = stats.and_then(|stats| stats.ranks.iter().find(|stats| stats.dp_rank == rank.dp_rank));
    let Some(stats) = found else {
        return RankStatus { dp_rank, state, gate, restarts, workers, ..RankStatus::default() };
    };
    let counters = &stats.counters;
    RankStatus {
        dp_rank,
        state,
        gate,
        restarts,
        workers,
        running: stats.running as usize,
        kv_blocks_used: stats.blocks_used,
        kv_blocks_cached: stats.blocks_cached,
        kv_blocks_total: stats.blocks_total,
        load_tokens: stats.load_tokens,
        counters: RankCounters {
            steps_by_mode: counters.steps_by_mode,
            tokens_by_mode: counters.tokens_by_mode,
            dummy_steps: counters.dummy_steps,
            dummy_tokens: counters.dummy_tokens,
            downgrades: vec![
                ("prompt_row", counters.downgrades_prompt_row),
                ("row_ladder", counters.downgrades_ladder),
            ],
            preemptions: counters.preemptions,
            drafts: counters.drafts.drafts,
            draft_tokens: counters.drafts.draft_tokens,
            accepted_tokens: counters.drafts.accepted_tokens,
            accepted_per_position: counters.drafts.accepted_per_position.clone(),
            verified_per_position: counters.drafts.verified_per_position.clone(),
            wanted_blocks_missing: counters.wanted_blocks_missing,
            prompt_tokens: counters.prompt_tokens,
            prefix_queried_tokens: counters.prefix_queried_tokens,
            prefix_hit_requests: counters.prefix_hit_requests,
            prefix_hit_tokens: counters.prefix_hit_tokens,
            blocks_evicted: counters.blocks_evicted,
        },
    }
}
