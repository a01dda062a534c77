//! The sizes that steps are padded to, per verify width (rule 5).

use std::collections::BTreeMap;

use paceline_plan::WorkerLimits;

use crate::Error;
use crate::config::at_most;

/// Tokens of the largest graph by default.
const TOKEN_CEILING: u32 = 512;

/// Batches that no graph covers because a default ladder stops at the token ceiling. Start-up warns once for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WithoutGraph {
    /// Verify width Q of the ladder.
    pub query_len: u32,
    /// Fewest rows without a graph.
    pub rows_min: u32,
    /// Most rows of a step.
    pub rows_max: u32,
    /// The ceiling in tokens.
    pub token_ceiling: u32,
}

impl std::fmt::Display for WithoutGraph {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            formatter,
            "no graph for batches of {} to {} rows x {} tokens: they pass the ceiling of {} tokens",
            self.rows_min, self.rows_max, self.query_len, self.token_ceiling
        )
    }
}

/// The ladders of a fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShapeConfig {
    /// False: no FULL and no PIECEWISE pass at all (`--enforce-eager`).
    pub full: bool,
    /// Rows of FULL passes, going up, by Q. Single passes use Q = 1.
    pub row_ladders: BTreeMap<u32, Vec<u32>>,
    /// Tokens of PIECEWISE passes, going up, multiples of Q, by Q. Empty: no pass is PIECEWISE.
    pub token_ladders: BTreeMap<u32, Vec<u32>>,
    /// What the ceiling cut off.
    pub without_graph: Vec<WithoutGraph>,
}

impl ShapeConfig {
    /// No graphs.
    pub const fn eager() -> Self {
        Self { full: false, row_ladders: BTreeMap::new(), token_ladders: BTreeMap::new(), without_graph: Vec::new() }
    }

    /// Every number of rows from 1 to S: on a CPU a size costs nothing.
    pub fn cpu_default(max_num_seqs: u32, k_values: &[u32], row_capacity: u32) -> Self {
        Self::defaults(max_num_seqs, k_values, row_capacity, |most| (1..=most).collect())
    }

    /// 1, 2, 4, then multiples of 8, from 256 multiples of 16, and S: what is captured on a GPU.
    pub fn graph_default(max_num_seqs: u32, k_values: &[u32], row_capacity: u32) -> Self {
        Self::defaults(max_num_seqs, k_values, row_capacity, |most| {
            let steps = [1, 2, 4].into_iter().chain((8..256).step_by(8)).chain((256..=most.max(256)).step_by(16));
            steps.take_while(|rows| *rows <= most).collect()
        })
    }

    /// 1, 2, 4, 8, ... and S.
    pub fn powers_of_two(max_num_seqs: u32, k_values: &[u32], row_capacity: u32) -> Self {
        Self::defaults(max_num_seqs, k_values, row_capacity, |most| {
            (0..u32::BITS).map(|shift| 1 << shift).take_while(|rows| *rows <= most).collect()
        })
    }

    /// An explicit list in tokens: rounded up to multiples of Q and divided by Q. The ceiling does not apply. An
    /// entry that passes S at the largest Q stays and is refused when the scheduler is made; for the smaller widths,
    /// which the list was not written for, it counts as S.
    pub fn from_tokens(tokens: &[u32], max_num_seqs: u32, k_values: &[u32]) -> Self {
        let widths = query_lens(k_values);
        let largest = widths.last().copied().unwrap_or(1);
        let ladder = |query_len: u32| {
            let rows = tokens.iter().filter(|count| **count > 0).map(|count| count.div_ceil(query_len));
            let rows = rows.map(|rows| if query_len < largest { rows.min(max_num_seqs) } else { rows });
            sorted(rows.collect())
        };
        let row_ladders = widths.iter().map(|query_len| (*query_len, ladder(*query_len))).collect();
        Self { full: true, row_ladders, token_ladders: BTreeMap::new(), without_graph: Vec::new() }
    }

    /// The same with PIECEWISE passes of these sizes, rounded up to multiples of each Q.
    #[must_use]
    pub fn with_token_ladder(mut self, tokens: &[u32], k_values: &[u32]) -> Self {
        for query_len in query_lens(k_values) {
            let counts = tokens.iter().filter(|count| **count > 0);
            let rounded = counts.map(|count| count.next_multiple_of(query_len)).collect();
            self.token_ladders.insert(query_len, sorted(rounded));
        }
        self
    }

    /// Without FULL for rows longer than an attention backend takes at a uniform length; 0 is no limit. Steps of that
    /// width are not FULL.
    #[must_use]
    pub fn limited_to_query_len(mut self, query_len_max: u32) -> Self {
        if query_len_max > 0 {
            self.row_ladders.retain(|query_len, _| *query_len <= query_len_max);
            self.without_graph.retain(|without| without.query_len <= query_len_max);
        }
        self
    }

    /// The row ladder of a verify width; empty when it has none.
    pub fn rows(&self, query_len: u32) -> &[u32] {
        self.row_ladders.get(&query_len).map_or(&[], Vec::as_slice)
    }

    /// The token ladder of a verify width; empty when it has none.
    pub fn tokens(&self, query_len: u32) -> &[u32] {
        self.token_ladders.get(&query_len).map_or(&[], Vec::as_slice)
    }

    fn defaults(max_num_seqs: u32, k_values: &[u32], row_capacity: u32, steps: impl Fn(u32) -> Vec<u32>) -> Self {
        let most = max_num_seqs.min(row_capacity);
        let mut without_graph = Vec::new();
        let mut row_ladders = BTreeMap::new();
        for query_len in query_lens(k_values) {
            let mut ladder = steps(most);
            ladder.push(most);
            let mut ladder = sorted(ladder);
            ladder.retain(|rows| rows.saturating_mul(query_len) <= TOKEN_CEILING);
            let covered = ladder.last().copied().unwrap_or(0);
            if covered < max_num_seqs {
                let (rows_min, rows_max) = (covered + 1, max_num_seqs);
                without_graph.push(WithoutGraph { query_len, rows_min, rows_max, token_ceiling: TOKEN_CEILING });
            }
            row_ladders.insert(query_len, ladder);
        }
        Self { full: true, row_ladders, token_ladders: BTreeMap::new(), without_graph }
    }

    pub(crate) fn check(&self, limits: &WorkerLimits) -> Result<(), Error> {
        for (query_len, ladder) in &self.row_ladders {
            going_up("row ladder", ladder)?;
            for rows in ladder {
                let tokens = u64::from(*rows) * u64::from(*query_len);
                at_most("row ladder entry", limits.max_num_seqs.into(), (*rows).into(), "max_num_seqs")?;
                at_most("row ladder entry", limits.row_capacity.into(), (*rows).into(), "a worker's row capacity")?;
                at_most("row ladder entry in tokens", limits.token_capacity.into(), tokens, "a worker's buffers")?;
            }
        }
        for (query_len, ladder) in &self.token_ladders {
            going_up("token ladder", ladder)?;
            for tokens in ladder {
                let rest = u64::from(tokens % (*query_len).max(1));
                at_most("token ladder entry modulo Q", 0, rest, "entries are multiples of Q")?;
                at_most("token ladder entry", limits.token_capacity.into(), (*tokens).into(), "a worker's buffers")?;
            }
        }
        Ok(())
    }
}

/// The widths that passes of these k values run with: single passes have one token per row.
fn query_lens(k_values: &[u32]) -> Vec<u32> {
    let mut widths: Vec<u32> = k_values.iter().map(|k| k + 1).collect();
    widths.push(1);
    sorted(widths)
}

fn sorted(mut values: Vec<u32>) -> Vec<u32> {
    values.sort_unstable();
    values.dedup();
    values
}

fn going_up(field: &'static str, ladder: &[u32]) -> Result<(), Error> {
    let mut previous = 0;
    for entry in ladder {
        if *entry <= previous {
            return Err(Error::LadderOrder { field, previous, got: *entry });
        }
        previous = *entry;
    }
    Ok(())
}
