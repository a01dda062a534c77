//! A whole step: the group part, written once and sent to every rank as the same bytes, and one part per rank.

use serde::Deserialize;

use crate::checks::check_ranks;
use crate::codec::Coded;
use crate::error::{check_at_least, check_at_most, check_equal};
use crate::pack;
use crate::pass::PassWire;
use crate::{
    DpRank, Epoch, Error, GroupId, Mode, Pass, PassKind, QueryLen, RankLoad, RankPart, Shape, StepId, Words,
    WorkerLimits,
};

/// Everything that [`GroupPart`] holds, before it is checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupDraft {
    /// The lockstep group.
    pub group: GroupId,
    /// The life of its process groups.
    pub epoch: Epoch,
    /// The step, counted from 1 in each epoch.
    pub step: StepId,
    /// Steps that may be in flight behind this one (rule 16).
    pub depth: u32,
    /// Drafts verified in this step: `Q = 1 + k_verify`.
    pub k_verify: u32,
    /// Drafts proposed in this step for the next.
    pub k_draft: u32,
    /// The group's ranks; every per-rank vector has this order.
    pub dp_ranks: Vec<DpRank>,
    /// The forwards, in order.
    pub passes: Vec<Pass>,
}

/// The decisions that hold for all ranks of a group in one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupPart {
    draft: GroupDraft,
}

impl GroupPart {
    /// Checks what can be checked of the group's decisions alone.
    ///
    /// # Errors
    /// Rule 1 when a pass lacks a rank, a rank is named twice or a group of one runs a dummy, rule 2 when the list of passes is out of
    /// order, rule 8 when a dummy's length is not Q or the dummies differ between passes, rule 13 for step 0.
    #[inline]
    pub fn new(draft: GroupDraft) -> Result<Self, Error> {
        check_group(&draft)?;
        Ok(Self { draft })
    }

    /// What it was made of, so that its memory can be used again.
    pub fn into_draft(self) -> GroupDraft {
        self.draft
    }

    /// The lockstep group.
    pub const fn group(&self) -> GroupId {
        self.draft.group
    }

    /// The life of its process groups.
    pub const fn epoch(&self) -> Epoch {
        self.draft.epoch
    }

    /// The step.
    pub const fn step(&self) -> StepId {
        self.draft.step
    }

    /// Steps that may be in flight behind this one.
    pub const fn depth(&self) -> u32 {
        self.draft.depth
    }

    /// Drafts verified in this step.
    pub const fn k_verify(&self) -> u32 {
        self.draft.k_verify
    }

    /// Drafts proposed in this step.
    pub const fn k_draft(&self) -> u32 {
        self.draft.k_draft
    }

    /// Verify width: Q.
    pub const fn query_len(&self) -> QueryLen {
        QueryLen::verifying(self.draft.k_verify)
    }

    /// The group's ranks, in the order of every per-rank vector.
    pub fn dp_ranks(&self) -> &[DpRank] {
        &self.draft.dp_ranks
    }

    /// The forwards, in order; the first is the target.
    pub fn passes(&self) -> &[Pass] {
        &self.draft.passes
    }

    /// The target pass.
    pub fn target(&self) -> &Pass {
        &self.draft.passes[0]
    }
}

/// A group part as it travels.
#[derive(Deserialize)]
pub struct GroupWire {
    group: GroupId,
    epoch: Epoch,
    step: StepId,
    depth: u32,
    k_verify: u32,
    k_draft: u32,
    dp_ranks: Words,
    passes: Vec<PassWire>,
}

impl Coded for GroupPart {
    type Wire = GroupWire;

    fn append_to(&self, bytes: &mut Vec<u8>) {
        let draft = &self.draft;
        pack::list(bytes, 8);
        pack::numbers(bytes, [draft.group.get(), draft.epoch.get()]);
        pack::number(bytes, draft.step.get());
        pack::numbers(bytes, [draft.depth, draft.k_verify, draft.k_draft]);
        pack::column(bytes, &draft.dp_ranks, |dp_rank| dp_rank.get());
        pack::list(bytes, draft.passes.len());
        draft.passes.iter().for_each(|pass| pass.append_to(bytes));
    }

    fn from_wire(wire: GroupWire) -> Result<Self, Error> {
        check_at_most(9, "k_verify", K_LIMIT, wire.k_verify.into())?;
        check_at_most(9, "k_draft", K_LIMIT, wire.k_draft.into())?;
        Self::new(GroupDraft {
            group: wire.group,
            epoch: wire.epoch,
            step: wire.step,
            depth: wire.depth,
            k_verify: wire.k_verify,
            k_draft: wire.k_draft,
            dp_ranks: wire.dp_ranks.iter().map(|dp_rank| DpRank::new(*dp_rank)).collect(),
            passes: wire.passes.into_iter().map(Pass::try_from).collect::<Result<_, _>>()?,
        })
    }
}

/// Drafts of a row that any configuration may ask for.
const K_LIMIT: i64 = 1024;

/// All that is checked of the group's decisions alone.
fn check_group(draft: &GroupDraft) -> Result<(), Error> {
    check_at_least(13, "step", 1, draft.step.get().cast_signed())?;
    check_at_least(1, "ranks of the group", 1, draft.dp_ranks.len() as i64)?;
    let query_len = QueryLen::verifying(draft.k_verify);
    let first = draft.passes.first().ok_or_else(|| Error::rule(2, "passes", 1, 0))?;
    check_equal(2, "kind of pass 0 (0 is target)", 0, i64::from(first.kind() != PassKind::Target))?;
    for (index, pass) in draft.passes.iter().enumerate() {
        check_equal(1, "ranks of a pass", draft.dp_ranks.len() as i64, pass.loads().len() as i64)?;
        check_kind(draft, index, pass)?;
        check_dummies(pass, first, query_len)?;
    }
    check_places(&draft.dp_ranks)?;
    if draft.dp_ranks.len() == 1 && first.loads()[0].is_dummy() {
        return Err(Error::rule(1, "dummy rows in a group of one", 0, 1));
    }
    Ok(())
}

/// No rank is named twice. Ranks mostly go up, so one look is mostly enough.
fn check_places(dp_ranks: &[DpRank]) -> Result<(), Error> {
    if dp_ranks.is_sorted_by(|before, after| before < after) {
        return Ok(());
    }
    for (index, dp_rank) in dp_ranks.iter().enumerate() {
        let times = i64::from(dp_ranks[..index].contains(dp_rank)) + 1;
        check_equal(1, "places of a dp_rank in the group", 1, times)?;
    }
    Ok(())
}

/// Pass 0 is the target; then nothing, or extend and single 2..=k_draft.
fn check_kind(draft: &GroupDraft, index: usize, pass: &Pass) -> Result<(), Error> {
    let (expected, name) = match index {
        0 => (PassKind::Target, "kind of pass 0"),
        1 => (PassKind::Extend, "kind of pass 1"),
        _ => (PassKind::Single { index: index as u32 }, "index of a single pass"),
    };
    if pass.kind() != expected {
        return Err(Error::rule(2, name, index as i64, pass_code(pass.kind())));
    }
    if index >= 2 {
        check_at_most(2, "passes", i64::from(draft.k_draft) + 1, index as i64 + 1)?;
    }
    if index == 1 && draft.k_draft > 1 {
        check_equal(2, "passes", i64::from(draft.k_draft) + 1, draft.passes.len() as i64)?;
    }
    Ok(())
}

fn pass_code(kind: PassKind) -> i64 {
    match kind {
        PassKind::Target => 0,
        PassKind::Extend => 1,
        PassKind::Single { index } => index.into(),
    }
}

/// Dummies are Q long in target and extend passes, and an extend pass has the target's rows and lengths.
fn check_dummies(pass: &Pass, target: &Pass, query_len: QueryLen) -> Result<(), Error> {
    if let PassKind::Single { .. } = pass.kind() {
        return Ok(());
    }
    let is_extend = pass.kind() == PassKind::Extend;
    for (load, in_target) in pass.loads().iter().zip(target.loads()) {
        if let RankLoad::Dummy { query_len: got } = load {
            check_equal(8, "tokens of a dummy", query_len.get().into(), got.get().into())?;
        }
        if is_extend {
            check_equal(18, "rows of the extend pass", in_target.rows_run().into(), load.rows_run().into())?;
            check_equal(18, "tokens of the extend pass", in_target.tokens_run().into(), load.tokens_run().into())?;
        }
    }
    if let Shape::Piecewise { tokens_padded } = pass.shape() {
        let rest = tokens_padded.get() % query_len.get();
        check_equal(3, "tokens_padded modulo Q of a PIECEWISE pass", 0, rest.into())?;
    }
    if pass.mode() == Mode::Full {
        let got = pass.query_len().map_or(0, QueryLen::get);
        check_equal(3, "query_len of a FULL pass", query_len.get().into(), got.into())?;
    }
    Ok(())
}

/// One step of one group: nothing on the wire or in a worker is computed from anything else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepPlan {
    group: GroupPart,
    ranks: Vec<RankPart>,
}

impl StepPlan {
    /// Joins the group's decisions and the ranks' parts, checked against each other.
    ///
    /// # Errors
    /// Rule 1 when a rank of the group has no part, and whatever [`crate::check_rank`] finds.
    #[inline]
    pub fn new(group: GroupPart, ranks: Vec<RankPart>, limits: &WorkerLimits) -> Result<Self, Error> {
        check_equal(1, "rank parts", group.dp_ranks().len() as i64, ranks.len() as i64)?;
        check_ranks(&group, &ranks, limits)?;
        Ok(Self { group, ranks })
    }

    /// What it was made of, so that its memory can be used again.
    pub fn into_parts(self) -> (GroupPart, Vec<RankPart>) {
        (self.group, self.ranks)
    }

    /// The decisions that hold for all ranks.
    pub const fn group(&self) -> &GroupPart {
        &self.group
    }

    /// One part per rank, in the order of the group's ranks.
    pub fn ranks(&self) -> &[RankPart] {
        &self.ranks
    }
}
