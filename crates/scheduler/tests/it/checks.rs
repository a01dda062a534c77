//! The numbers that must hold on every plan, counted here without the scheduler's help.

use paceline_plan::{LogitsWanted, Mode, PassKind, RankLoad, StepPlan};
use paceline_scheduler::{Drafter, HeldReason, Scheduler};

/// Panics when a number of the step rules does not hold.
pub(crate) fn check_plan(plan: &StepPlan, scheduler: &Scheduler) {
    let config = scheduler.config();
    let limits = &config.limits;
    let group = plan.group();
    let query_len = 1 + group.k_verify();
    let ranks = group.dp_ranks().len();
    assert!(plan.ranks().iter().any(|rank| !rank.is_dummy()), "a step has a row");
    assert_eq!(plan.ranks().len(), ranks);
    let expected_passes = if config.drafter == Drafter::Model { 2 + group.k_draft().saturating_sub(1) } else { 1 };
    assert_eq!(group.passes().len() as u32, expected_passes);
    for pass in group.passes() {
        let is_single = matches!(pass.kind(), PassKind::Single { .. });
        let width = if is_single { 1 } else { query_len };
        assert_eq!(pass.loads().len(), ranks);
        assert!(pass.rows_padded().get() <= limits.row_capacity);
        assert!(pass.tokens_padded().get() <= limits.token_capacity);
        if pass.mode() == Mode::Full {
            assert_eq!(pass.tokens_padded().get(), pass.rows_padded().get() * width);
            let ladder = config.shapes.rows(width);
            assert!(ladder.contains(&pass.rows_padded().get()), "{} is in {ladder:?}", pass.rows_padded());
        }
        if pass.mode() == Mode::Piecewise {
            assert_eq!(pass.tokens_padded().get() % width, 0);
        }
        for load in pass.loads() {
            assert!(load.rows_run() <= pass.rows_padded().get() && load.tokens_run() <= pass.tokens_padded().get());
            match load {
                RankLoad::Real { rows, tokens } => {
                    assert!(rows.get() >= 1 && tokens.get() >= rows.get());
                    if pass.mode() == Mode::Full {
                        assert_eq!(tokens.get(), rows.get() * width);
                    }
                }
                RankLoad::Dummy { query_len: dummy } => {
                    assert_eq!(dummy.get(), width);
                    assert!(ranks > 1, "a group of one runs no dummy");
                }
            }
        }
    }
    for rank in plan.ranks() {
        assert!(rank.tokens_real().get() <= limits.max_num_batched_tokens);
        assert!(rank.rows_real().get() <= limits.max_num_seqs);
        if rank.is_dummy() {
            let deltas = rank.admissions().len() + rank.feeds().len() + rank.block_appends().len();
            assert_eq!((deltas, rank.releases().len()), (0, 0), "a dummy touches no seat and no block");
        }
        let full = group.target().mode() == Mode::Full;
        assert!(!full || rank.decode_rows() == rank.rows_real().get(), "FULL has decode rows only");
    }
    check_ledger(scheduler, plan);
    check_use_of_budget(scheduler, plan);
}

/// No row waits for a budget that would do, no chunk is shorter than budget and blocks allow, and nothing starts on a
/// rank that holds a running request back.
fn check_use_of_budget(scheduler: &Scheduler, plan: &StepPlan) {
    let config = scheduler.config();
    let query_len = 1 + scheduler.k_by_load(plan.group().group()).expect("the group exists");
    let policies = &config.policies;
    let paced = policies.alignment.is_some() || policies.gap_tokens > 0 || policies.long_prefill_tokens > 0;
    let explanation = scheduler.explanation(plan.group().group()).expect("a planned step is explained");
    for (rank, part) in explanation.ranks.iter().zip(plan.ranks()) {
        // A higher priority may start where another row is held, and what it frees comes after the chunks were cut.
        let makes_room = policies.priority_preempts && !rank.preempted.is_empty();
        let of_ladder = rank.held.iter().filter(|(_, reason)| *reason == HeldReason::Ladder).count() as u32;
        let (decodes, prompts) = part.rows().split_at(part.decode_rows() as usize);
        let prompt_tokens: u32 = prompts.iter().map(|row| row.query_len.get()).sum();
        let used = (decodes.len() as u32 + of_ladder) * query_len + prompt_tokens;
        let left = config.limits.max_num_batched_tokens.checked_sub(used).expect("the budget is kept");
        if !paced && !makes_room && rank.held.iter().any(|(_, reason)| *reason == HeldReason::Budget) {
            assert!(left < query_len, "{left} tokens are left while a row waits for them");
        }
        assert!(rank.held.len() == of_ladder as usize || rank.started.is_empty() || makes_room, "{rank:?}");
        let is_cut = !makes_room && prompts.iter().any(|row| row.logits == LogitsWanted::None);
        let stats = &scheduler.stats().ranks[rank.dp_rank.index()];
        if is_cut && !paced && stats.blocks_used < stats.blocks_total {
            assert_eq!(left, 0, "a chunk is cut although budget and blocks are left");
        }
    }
}

/// The explanation's padding adds up to what the plan gives to kernels.
fn check_ledger(scheduler: &Scheduler, plan: &StepPlan) {
    let explanation = scheduler.explanation(plan.group().group()).expect("a planned step is explained");
    assert_eq!(explanation.step, plan.group().step());
    let padded = u64::from(plan.group().target().tokens_padded().get());
    for (rank, part) in explanation.ranks.iter().zip(plan.ranks()) {
        let drafts: u32 = part.rows().iter().map(|row| row.drafts).sum();
        let prompt: u32 = part.rows()[part.decode_rows() as usize..].iter().map(|row| row.query_len.get()).sum();
        assert_eq!(rank.real_tokens, part.decode_rows() + drafts + prompt);
        assert_eq!(u64::from(rank.real_tokens) + rank.padding.total(), padded);
    }
}
