//! The attention contracts that a scripted worker can declare. It holds every launch to the one it declared.

use paceline_plan::{Error, Pass, WorkerLimits};
use paceline_proto::v1::AttentionContract;

/// The contract called `name`: `trtllm` as the Python worker declares it, anything else is `reference`.
pub(crate) fn declared(name: &str, row_capacity: u32) -> AttentionContract {
    let reference = AttentionContract {
        name: "reference".to_owned(),
        ragged_query_lens: true,
        lengths_known: "device".to_owned(),
        row_capacity,
        table_alignment: 1,
        ..AttentionContract::default()
    };
    match name {
        "trtllm" => AttentionContract {
            name: name.to_owned(),
            ragged_query_lens: false,
            uniform_query_len_max: 32,
            block_sizes: vec![16, 32, 64],
            lengths_known: "host bound".to_owned(),
            ..reference
        },
        _ => reference,
    }
}

/// What a decode kernel of this contract would assert of a FULL launch: uniform rows that divide the tokens.
///
/// # Errors
/// Rule 3 or 4 with both numbers, or the block size that the kernel does not take.
pub(crate) fn check(contract: &AttentionContract, limits: &WorkerLimits, pass: &Pass) -> Result<(), Error> {
    let sizes = &contract.block_sizes;
    if !sizes.is_empty() && !sizes.contains(&limits.block_size) {
        return Err(Error::rule(13, "block_size of the contract", sizes[0], limits.block_size));
    }
    let Some(query_len) = pass.query_len() else { return Ok(()) };
    let (rows, tokens) = (pass.rows_padded().get(), pass.tokens_padded().get());
    if !tokens.is_multiple_of(rows) || tokens / rows != query_len.get() {
        return Err(Error::rule(4, "attention tokens for its rows", rows * query_len.get(), tokens));
    }
    let most = contract.uniform_query_len_max;
    if most > 0 && query_len.get() > most {
        return Err(Error::rule(3, "query_len of the contract", most, query_len.get()));
    }
    Ok(())
}
