//! The shape of a step: how many drafts are verified, which passes run, in which mode, and how large they are padded.
//! The only place where a padded number is computed.
//!
//! It sees what the ranks want to run, decides once for all of them, and knows neither requests nor blocks.

use paceline_plan::{Pass, PassKind, QueryLen, RankLoad, Rows, RowsPadded, Shape, Tokens, TokensPadded};

use crate::spare::Spare;
use crate::{Config, Drafter, KByRows, PaddingCounters, ShapeConfig, ShapeReason, spare};

/// What shapes are decided by, fixed for the life of a scheduler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShapeRules {
    shapes: ShapeConfig,
    k: u32,
    k_by_rows: Vec<KByRows>,
    /// Going up; the last is `k`.
    k_verify_values: Vec<u32>,
    /// The ladders in rows and in tokens by Q.
    row_ladders: Vec<Vec<u32>>,
    token_ladders: Vec<Vec<u32>>,
    drafter: Drafter,
    drafter_layers: u32,
}

/// What one rank wants to run in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Requests that run on the rank, with a row in this step or without: what k is chosen by.
    pub running: u32,
    /// Decode rows.
    pub decode_rows: u32,
    /// Real drafts of all decode rows together.
    pub drafts: u32,
    /// Real drafts of the row that has most.
    pub drafts_max: u32,
    /// Prompt rows, recomputed ones too.
    pub prompt_rows: u32,
    /// Their tokens.
    pub prompt_tokens: u32,
    /// Those of them that end what is known, so that they give a token and decode next.
    pub sampled_prompt_rows: u32,
}

impl Demand {
    /// All rows.
    pub const fn rows(&self) -> u32 {
        self.decode_rows + self.prompt_rows
    }

    /// All tokens outside FULL: no placeholders.
    pub const fn tokens(&self) -> u32 {
        self.decode_rows + self.drafts + self.prompt_tokens
    }
}

/// The decisions of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Drafts verified; `Q = 1 + k_verify`.
    pub k_verify: u32,
    /// Drafts proposed for the next step.
    pub k_draft: u32,
    /// The forwards, in order.
    pub passes: Vec<Pass>,
    /// Decode rows that each rank runs; its others are held (rule 5).
    pub decode_rows_run: Vec<u32>,
    /// Why the target pass has its mode and size.
    pub reason: ShapeReason,
}

impl Decision {
    /// True when every row of the target pass is exactly Q long.
    pub fn is_full(&self) -> bool {
        matches!(self.passes[0].shape(), Shape::Full { .. })
    }

    /// Verify width: Q.
    pub const fn query_len(&self) -> QueryLen {
        QueryLen::verifying(self.k_verify)
    }
}

impl ShapeRules {
    /// The shape rules of a configuration.
    pub fn new(config: &Config) -> Self {
        let shapes = &config.shapes;
        let by_query_len = |ladder: fn(&ShapeConfig, u32) -> &[u32]| {
            (0..=config.k + 1).map(|query_len| ladder(shapes, query_len).to_vec()).collect()
        };
        Self {
            row_ladders: by_query_len(ShapeConfig::rows),
            token_ladders: by_query_len(ShapeConfig::tokens),
            shapes: shapes.clone(),
            k: config.k,
            k_by_rows: config.k_by_rows.clone(),
            k_verify_values: config.k_verify_sorted(),
            drafter: config.drafter,
            drafter_layers: config.drafter_layers,
        }
    }

    /// Rows of FULL passes of a verify width; none when it has no ladder.
    fn rows(&self, query_len: u32) -> &[u32] {
        self.row_ladders.get(query_len as usize).map_or(&[], Vec::as_slice)
    }

    /// Tokens of its PIECEWISE passes.
    fn tokens(&self, query_len: u32) -> &[u32] {
        self.token_ladders.get(query_len as usize).map_or(&[], Vec::as_slice)
    }

    /// Largest verify width: what a decode row costs of the token budget.
    pub const fn query_len_max(&self) -> u32 {
        self.k + 1
    }

    /// Whether k is the same under every load.
    pub(crate) const fn k_is_fixed(&self) -> bool {
        self.k_by_rows.is_empty()
    }

    /// k while the group's largest rank has `running` requests: the most drafts of a row that a step verifies.
    pub fn k_by_load(&self, running: u32) -> u32 {
        let covering = self.k_by_rows.iter().find(|entry| running <= entry.rows_most);
        covering.or(self.k_by_rows.last()).map_or(self.k, |entry| entry.k)
    }

    /// Drafts proposed for each row that gives a token. A drafter of several layers proposes at least one for each,
    /// since a layer's KV at the last position comes from the single pass that runs it there (rule 18).
    pub fn k_draft(&self, running: u32) -> u32 {
        let k = self.k_by_load(running);
        match self.drafter {
            Drafter::None => 0,
            Drafter::Model if self.drafter_layers > 1 => k.max(self.drafter_layers.min(self.k)),
            Drafter::Ngram | Drafter::Model => k,
        }
    }

    /// The least allowed `k_verify` that covers the step's drafts.
    fn k_verify(&self, drafts_max: u32) -> u32 {
        *self.k_verify_values.iter().find(|value| **value >= drafts_max).expect("no row has more than k drafts")
    }

    /// Mode and size of the target pass, why, and the most decode rows of a rank.
    fn target(&self, query_len: u32, demands: &[Demand]) -> (Shape, ShapeReason, u32) {
        let ladder = self.rows(query_len);
        let (largest, rows_max) = largest_by(demands, |demand| demand.decode_rows);
        let reason = if !self.shapes.full {
            ShapeReason::EagerOnly
        } else if let Some(index) = demands.iter().position(|demand| demand.prompt_rows > 0) {
            ShapeReason::PromptRow { index }
        } else if let Some(top) = ladder.last().copied() {
            if let Some(entry) = covering(ladder, rows_max) {
                return (full(query_len, entry), ShapeReason::Covered { rows: rows_max, entry }, rows_max);
            }
            // EAGER slows the rows of every rank; holding delays the rows that are too many. The fewer decide.
            let held: u32 = demands.iter().map(|demand| demand.decode_rows.saturating_sub(top)).sum();
            let fitting: u32 = demands.iter().map(|demand| demand.decode_rows).filter(|rows| *rows <= top).sum();
            if held < fitting {
                return (full(query_len, top), ShapeReason::Held { rows: held, fitting, entry: top }, top);
            }
            ShapeReason::PastLadder { index: largest, rows: rows_max, entry: top }
        } else {
            ShapeReason::NoLadder { query_len }
        };
        let tokens = |demand: &Demand| if demand.rows() == 0 { query_len } else { demand.tokens() };
        let (_, tokens_max) = largest_by(demands, tokens);
        (self.not_full(query_len, tokens_max), reason, u32::MAX)
    }

    fn not_full(&self, query_len: u32, tokens_max: u32) -> Shape {
        let entry = if self.shapes.full { covering(self.tokens(query_len), tokens_max) } else { None };
        entry.map_or(Shape::Eager, |tokens| Shape::Piecewise { tokens_padded: TokensPadded::new(tokens) })
    }

    /// Mode and size of a single pass, whose rows are one token each.
    fn single(&self, loads: &[RankLoad]) -> Shape {
        let rows_max = loads.iter().map(|load| load.rows_run()).max().unwrap_or(0);
        let entry = if self.shapes.full { covering(self.rows(1), rows_max) } else { None };
        entry.map_or_else(|| self.not_full(1, rows_max), |entry| full(1, entry))
    }
}

/// Decides the shape of a step; nothing when no rank has a row (rule 1).
///
/// # Panics
/// When the decision breaks a rule: a fault of this module.
pub fn decide(rules: &ShapeRules, demands: &[Demand]) -> Option<Decision> {
    decide_in(rules, demands, &mut Spare::default())
}

/// The same in the memory of earlier decisions.
pub(crate) fn decide_in(rules: &ShapeRules, demands: &[Demand], spare: &mut Spare) -> Option<Decision> {
    let (mut rows, mut sampled, mut drafts_max, mut running) = (0, 0, 0, 0);
    for demand in demands {
        rows |= demand.rows();
        sampled |= demand.decode_rows | demand.sampled_prompt_rows;
        drafts_max = drafts_max.max(demand.drafts_max);
        running = running.max(demand.running);
    }
    if rows == 0 {
        return None;
    }
    let k_verify = rules.k_verify(drafts_max);
    let query_len = QueryLen::verifying(k_verify);
    let (shape, reason, rows_most) = rules.target(query_len.get(), demands);
    let is_full = matches!(shape, Shape::Full { .. });
    let mut decode_rows_run = spare::empty(&mut spare.counts);
    decode_rows_run.extend(demands.iter().map(|demand| demand.decode_rows.min(rows_most)));
    let (mut passes, mut loads) = spare.passes_and_loads();
    loads.extend(demands.iter().zip(&decode_rows_run).map(|(demand, decode_rows)| {
        let rows = Rows::new(decode_rows + demand.prompt_rows);
        let tokens = if is_full { rows.uniform_tokens(query_len) } else { Tokens::new(demand.tokens()) };
        if rows == Rows::ZERO { RankLoad::Dummy { query_len } } else { RankLoad::Real { rows, tokens } }
    }));
    let k_draft = if sampled > 0 { rules.k_draft(running) } else { 0 };
    if rules.drafter == Drafter::Model {
        let sampled = demands.iter().zip(&decode_rows_run).map(|(demand, rows)| rows + demand.sampled_prompt_rows);
        add_passes(rules, shape, loads, sampled, k_draft, (&mut passes, spare));
    } else {
        passes.push(pass(PassKind::Target, shape, loads));
    }
    Some(Decision { k_verify, k_draft, passes, decode_rows_run, reason })
}

#[inline]
fn pass(kind: PassKind, shape: Shape, loads: Vec<RankLoad>) -> Pass {
    Pass::new(kind, shape, loads).unwrap_or_else(|error| panic!("a pass of the scheduler's own: {error}"))
}

/// With a draft model: the target, the extend pass over the same rows, then one single pass for each further draft over
/// the rows of each rank that are `sampled`.
fn add_passes(
    rules: &ShapeRules,
    shape: Shape,
    loads: Vec<RankLoad>,
    sampled: impl Iterator<Item = u32>,
    k_draft: u32,
    (passes, spare): (&mut Vec<Pass>, &mut Spare),
) {
    passes.push(pass(PassKind::Target, shape, spare.copy_of(&loads)));
    passes.push(pass(PassKind::Extend, shape, loads));
    let mut single_loads = spare::empty(&mut spare.loads);
    single_loads.extend(sampled.map(|rows| match rows {
        0 => RankLoad::Dummy { query_len: QueryLen::ONE },
        rows => RankLoad::Real { rows: Rows::new(rows), tokens: Tokens::new(rows) },
    }));
    let shape = rules.single(&single_loads);
    for index in 2..=k_draft {
        passes.push(pass(PassKind::Single { index }, shape, spare.copy_of(&single_loads)));
    }
    spare::keep(&mut spare.loads, single_loads);
}

/// What a rank's kernels were given in the target pass beyond `real_tokens`, by cause.
///
/// # Panics
/// When the causes do not add up: a fault of this module.
pub fn padding(rules: &ShapeRules, decision: &Decision, index: usize, real_tokens: u32) -> PaddingCounters {
    Padder::new(rules, decision).of(index, real_tokens)
}

/// What ranks' kernels were given in the target pass beyond real tokens, by cause.
pub(crate) struct Padder<'a> {
    pass: &'a Pass,
    query_len: QueryLen,
    is_full: bool,
    /// Sizes that the pass was padded to one of: rows in FULL, tokens in PIECEWISE.
    ladder: &'a [u32],
    tokens_padded: u32,
    /// What the last rank ran, and the entry that covers it: ranks are often alike.
    covered: Option<(u32, u32)>,
}

impl<'a> Padder<'a> {
    #[inline]
    pub(crate) fn new(rules: &'a ShapeRules, decision: &'a Decision) -> Self {
        let (pass, query_len) = (&decision.passes[0], decision.query_len());
        let ladder = match pass.shape() {
            Shape::Full { .. } => rules.rows(query_len.get()),
            Shape::Piecewise { .. } => rules.tokens(query_len.get()),
            Shape::Eager => &[],
        };
        let tokens_padded = pass.tokens_padded().get();
        Self { pass, query_len, is_full: decision.is_full(), ladder, tokens_padded, covered: None }
    }

    /// That of the rank at `index` of the group.
    ///
    /// # Panics
    /// When the causes do not add up: a fault of this module.
    #[inline]
    pub(crate) fn of(&mut self, index: usize, real_tokens: u32) -> PaddingCounters {
        let load = self.pass.loads()[index];
        let (padded, run) = (self.tokens_padded, load.tokens_run());
        let mut causes = PaddingCounters::default();
        match load {
            RankLoad::Dummy { .. } => causes.idle_dummy = run.into(),
            RankLoad::Real { .. } => causes.placeholders = u64::from(run - real_tokens),
        }
        // What the rank would have been padded to alone; the rest is for the sake of the largest rank.
        let alone = match self.pass.shape() {
            Shape::Full { .. } => {
                let rows = self.covering(load.rows_run());
                let alone = rows.map_or(padded, |rows| RowsPadded::new(rows).uniform_tokens(self.query_len).get());
                causes.row_ladder = u64::from(alone - run);
                alone
            }
            Shape::Piecewise { .. } => {
                let alone = self.covering(run).unwrap_or(padded);
                causes.token_ladder = u64::from(alone - run);
                alone
            }
            Shape::Eager => run,
        };
        causes.group_alignment = u64::from(padded - alone);
        let attention = if self.is_full { padded } else { run };
        causes.attention = u64::from(attention - real_tokens);
        assert_eq!(u64::from(real_tokens) + causes.total(), u64::from(padded), "padding by cause adds up");
        causes
    }

    fn covering(&mut self, count: u32) -> Option<u32> {
        if let Some((of, entry)) = self.covered
            && of == count
        {
            return Some(entry);
        }
        let entry = covering(self.ladder, count)?;
        self.covered = Some((count, entry));
        Some(entry)
    }
}

fn full(query_len: u32, rows: u32) -> Shape {
    Shape::Full { query_len: QueryLen::verifying(query_len - 1), rows_padded: RowsPadded::new(rows) }
}

/// The smallest entry that covers `count`.
fn covering(ladder: &[u32], count: u32) -> Option<u32> {
    ladder.get(ladder.partition_point(|entry| *entry < count)).copied()
}

/// The first rank with the largest value, and the value.
fn largest_by(demands: &[Demand], value: impl Fn(&Demand) -> u32) -> (usize, u32) {
    demands.iter().map(value).enumerate().fold(
        (0, 0),
        |best, (index, value)| {
            if value > best.1 { (index, value) } else { best }
        },
    )
}
