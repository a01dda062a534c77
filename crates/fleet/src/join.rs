//! Rule 14: who may join.

use crate::config::Config;
use crate::group::Group;
use crate::message::{Contract, Join, Loaded};
use paceline_plan::WorkerLimits;

/// What every worker must have in common; the first one settles it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reference {
    digests: Option<(String, String)>,
}

/// A field that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Difference {
    pub(crate) field: &'static str,
    pub(crate) expected: String,
    pub(crate) got: String,
}

fn same(field: &'static str, expected: &str, got: &str) -> Result<(), Difference> {
    if expected == got {
        return Ok(());
    }
    Err(Difference { field, expected: expected.to_owned(), got: got.to_owned() })
}

impl Reference {
    /// Checks a join and takes its digests as the fleet's when it is the first.
    pub(crate) fn check(&mut self, config: &Config, groups: &[Group], join: &Join) -> Result<(), Difference> {
        // The token itself is never repeated.
        if join.join_token != config.join_token {
            return same("join_token", "the daemon's token", "another one");
        }
        same("protocol_hash", &config.protocol_hash, &join.protocol_hash)?;
        if join.dp_rank >= config.dp_size {
            return same("dp_rank", &format!("below {}", config.dp_size), &join.dp_rank.to_string());
        }
        if join.tp_rank >= config.tp_size {
            return same("tp_rank", &format!("below {}", config.tp_size), &join.tp_rank.to_string());
        }
        let held = groups.iter().flat_map(Group::workers).find(|(place, _)| *place == join.place());
        if let Some((place, worker)) = held {
            let taken = format!("{}, taken by process {}", place.name(config.tp_size), worker.process_id);
            let field = if config.tp_size == 1 { "dp_rank" } else { "tp_rank" };
            return same(field, "a rank without a worker", &taken);
        }
        if let Some((checkpoint, tokenizer)) = &self.digests {
            same("checkpoint_digest", checkpoint, &join.checkpoint_digest)?;
            same("tokenizer_digest", tokenizer, &join.tokenizer_digest)?;
        }
        self.digests = Some((join.checkpoint_digest.clone(), join.tokenizer_digest.clone()));
        Ok(())
    }
}

/// The sizes that all workers can serve: the configured ones with the least of what the workers have.
///
/// # Errors
/// When the workers' vocabularies differ.
pub(crate) fn least(config: &Config, loaded: &[Loaded]) -> Result<WorkerLimits, Difference> {
    let mut limits = config.limits;
    let first = loaded.first().cloned().unwrap_or_default();
    limits.num_blocks = first.num_blocks;
    limits.vocab_size = first.vocab_size;
    for worker in loaded {
        same("vocab_size", &first.vocab_size.to_string(), &worker.vocab_size.to_string())?;
        same("attention contract", &first.contract.name, &worker.contract.name)?;
        limits.num_blocks = limits.num_blocks.min(worker.num_blocks);
        limits.row_capacity = limits.row_capacity.min(worker.row_capacity);
    }
    Ok(limits)
}

/// Whether every plan of this configuration is within what an attention backend takes.
pub(crate) fn within(config: &Config, contract: &Contract) -> Result<(), Difference> {
    let limits = &config.limits;
    if !contract.block_sizes.is_empty() && !contract.block_sizes.contains(&limits.block_size) {
        let expected = format!("one of {:?}", contract.block_sizes);
        return Err(Difference { field: "block_size", expected, got: limits.block_size.to_string() });
    }
    let query_len = config.k + 1;
    if contract.uniform_query_len_max != 0 && query_len > contract.uniform_query_len_max {
        let expected = format!("at most {}", contract.uniform_query_len_max);
        return Err(Difference { field: "query_len", expected, got: query_len.to_string() });
    }
    let rest = limits.table_width % contract.table_alignment.max(1);
    if rest != 0 {
        let expected = format!("a multiple of {}", contract.table_alignment);
        return Err(Difference { field: "table_width", expected, got: limits.table_width.to_string() });
    }
    Ok(())
}

/// Whether a worker that comes later serves the sizes that are settled.
pub(crate) fn serves(limits: &WorkerLimits, loaded: &Loaded) -> Result<(), Difference> {
    same("vocab_size", &limits.vocab_size.to_string(), &loaded.vocab_size.to_string())?;
    for (field, least, got) in [
        ("num_blocks", limits.num_blocks, loaded.num_blocks),
        ("row_capacity", limits.row_capacity, loaded.row_capacity),
    ] {
        if got < least {
            return same(field, &format!("at least {least}"), &got.to_string());
        }
    }
    Ok(())
}
