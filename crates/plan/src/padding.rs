//! Rule 7: the values that padding has. The worker's tensor checks hold the same table on their own.

/// Token id of a padding or dummy token.
pub const TOKEN: i64 = 0;
/// Position of a padding or dummy token.
pub const POSITION: i64 = 0;
/// Write slot of a token whose KV is not written.
pub const SLOT: i64 = -1;
/// Request index of a token that belongs to no request.
pub const REQUEST_INDEX: i32 = -1;
/// Block table entry of a padding row and of columns past a row's blocks: the null block.
pub const BLOCK: i32 = 0;
/// Index into the batch for logits that nobody asked for.
pub const LOGITS_INDEX: i64 = -1;
