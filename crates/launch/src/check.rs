//! The checks, a function per subject, in the order in which a fault is named.

use std::borrow::Cow;

use crate::values::{Arrays, Contract, Fault, Launch, Limits, Mode};

// Rule 7: what padding holds.
const PAD_TOKEN: i64 = 0;
const PAD_POSITION: i64 = 0;
const NO_SLOT: i64 = -1;
const NO_REQUEST: i32 = -1;
const NO_LOGITS: i64 = -1;
const NULL_BLOCK: i32 = 0;

/// Entries of an array that are looked at before asking whether one of them was wrong.
const AT_ONCE: usize = 256;

/// Holds a pass's arrays against what the plan says of it.
///
/// # Errors
/// The first rule that does not hold.
pub fn check(launch: &Launch, arrays: &Arrays<'_>, limits: &Limits, contract: &Contract) -> Result<(), Fault> {
    if let Some((field, expected, got)) = arrays.mismatch() {
        return refuse("rule 5", field, whole(expected), whole(got));
    }
    check_shape(launch, arrays)?;
    let pass = Pass::new(launch, arrays, limits);
    pass.check_query_lens()?;
    pass.check_kv_lens()?;
    pass.check_block_table()?;
    pass.check_padding()?;
    pass.check_request_tokens()?;
    pass.check_slots()?;
    pass.check_logits()?;
    pass.check_contract(contract)
}

/// Rows and tokens are padded together, and fit the arrays.
fn check_shape(launch: &Launch, arrays: &Arrays<'_>) -> Result<(), Fault> {
    at_least("rule 1", "rows", 1, launch.rows)?;
    at_least("rule 1", "tokens", 0, launch.tokens)?;
    if launch.is_dummy {
        equal("rule 1", "dummy rows", 1, launch.rows)?;
    }
    at_most("rule 4", "rows", launch.rows_padded, launch.rows)?;
    at_most("rule 4", "tokens", launch.tokens_padded, launch.tokens)?;
    at_most("rule 5", "rows of the pass", whole(arrays.kv_lens.len()), launch.attention_rows())?;
    at_most("rule 5", "tokens of the pass", whole(arrays.input_ids.len()), launch.input_tokens())?;
    if launch.mode == Mode::Full {
        at_least("rule 3", "query_len", 1, launch.query_len)?;
        // Neither product can overflow: rows fit the arrays, and so do tokens.
        let tokens = |rows: i64| rows.saturating_mul(launch.query_len);
        equal("rule 4", "tokens_padded", tokens(launch.rows_padded), launch.tokens_padded)?;
        equal("rule 3", "tokens", tokens(launch.rows), launch.tokens)?;
        equal("rule 4", "attention tokens modulo rows", 0, launch.attention_tokens() % launch.attention_rows())?;
    }
    Ok(())
}

/// One pass whose shape fits its arrays.
struct Pass<'a> {
    launch: &'a Launch,
    arrays: &'a Arrays<'a>,
    limits: &'a Limits,
    /// Rows that attention is handed, and how many of them are requests'.
    rows: usize,
    request_rows: usize,
    request_tokens: usize,
    table_width: usize,
}

impl<'a> Pass<'a> {
    fn new(launch: &'a Launch, arrays: &'a Arrays<'a>, limits: &'a Limits) -> Self {
        let count = |number: i64| usize::try_from(number).expect("invariant: counts of a checked shape fit the arrays");
        let of_requests = |number: i64| if launch.is_dummy { 0 } else { count(number) };
        Self {
            launch,
            arrays,
            limits,
            rows: count(launch.attention_rows()),
            request_rows: of_requests(launch.rows),
            request_tokens: of_requests(launch.tokens),
            table_width: arrays.table_width(),
        }
    }

    /// Query length of a row that attention is handed.
    fn len(&self, row: usize) -> i64 {
        i64::from(self.arrays.query_start_loc[row + 1]) - i64::from(self.arrays.query_start_loc[row])
    }

    fn kv_len(&self, row: usize) -> i64 {
        i64::from(self.arrays.kv_lens[row])
    }

    fn table_row(&self, row: usize) -> &[i32] {
        &self.arrays.block_table[row * self.table_width..(row + 1) * self.table_width]
    }

    /// Rows tile the tokens; in a full launch each is as long as the others, padding rows too.
    fn check_query_lens(&self) -> Result<(), Fault> {
        let starts = self.arrays.query_start_loc;
        let tokens = self.launch.attention_tokens();
        equal("rule 7", "query_start_loc[0]", 0, i64::from(starts[0]))?;
        equal("rule 4", "query_start_loc at the last row", tokens, i64::from(starts[self.rows]))?;
        all_are("rule 7", "query_start_loc past the rows", &starts[self.rows..], tokens)?;
        let lens = (0..self.rows).map(|row| self.len(row));
        if self.launch.mode == Mode::Full {
            all_equal("rule 7", "query length of a row", lens, self.launch.query_len)
        } else {
            at_least("rule 3", "query length of a row", 1, lens.min().unwrap_or(1))
        }
    }

    /// Every row sees its own tokens, and none more than the table can say.
    fn check_kv_lens(&self) -> Result<(), Fault> {
        for row in 0..self.rows {
            if self.kv_len(row) < self.len(row) {
                return refuse("rule 7", format!("kv_len of row {row}"), self.len(row), self.kv_len(row));
            }
        }
        let longest = self.longest();
        at_most("rule 9", "kv_len", self.limits.max_model_len + self.limits.k_max, longest)?;
        at_most("rule 9", "kv_len", whole(self.table_width) * self.limits.block_size, longest)?;
        all_are("rule 7", "kv_len past the rows", &self.arrays.kv_lens[self.rows..], 0)
    }

    fn longest(&self) -> i64 {
        (0..self.rows).map(|row| self.kv_len(row)).max().unwrap_or(0)
    }

    /// Blocks exist, and every computed position of a request lies in a block of its own.
    fn check_block_table(&self) -> Result<(), Fault> {
        let table = &self.arrays.block_table[..self.rows * self.table_width];
        let (least, most) = table.iter().fold((0, 0), |(least, most), &block| (block.min(least), block.max(most)));
        at_least("rule 7", "block id", 0, i64::from(least))?;
        at_most("rule 7", "block id", self.limits.block_count - 1, i64::from(most))?;
        // Drafts may go on past the blocks; the tokens that they follow lie in some.
        let ahead = (self.launch.ahead - 1).max(0);
        for row in 0..self.request_rows {
            let in_blocks = (self.kv_len(row) - self.len(row) - ahead).max(0);
            let blocks = (in_blocks + self.limits.block_size - 1) / self.limits.block_size;
            let wanted = usize::try_from(blocks).unwrap_or(usize::MAX).min(self.table_width);
            if let Some(missing) = self.table_row(row)[..wanted].iter().position(|&block| block == NULL_BLOCK) {
                return refuse("rule 9", format!("blocks of row {row}"), blocks, whole(missing));
            }
        }
        Ok(())
    }

    /// Padding and dummy rows hold the values of rule 7, and so does everything past them.
    fn check_padding(&self) -> Result<(), Fault> {
        let (arrays, begin) = (self.arrays, self.request_tokens);
        all_are("rule 7", "token id of padding", &arrays.input_ids[begin..], PAD_TOKEN)?;
        all_are("rule 7", "position of padding", &arrays.positions[begin..], PAD_POSITION)?;
        all_are("rule 7", "slot of padding", &arrays.slots[begin..], NO_SLOT)?;
        all_are("rule 7", "request index of padding", &arrays.request_index[begin..], NO_REQUEST)?;
        for row in self.request_rows..self.rows {
            equal("rule 7", "kv_len of a padding row", self.len(row), self.kv_len(row))?;
        }
        let blocks = &arrays.block_table[self.request_rows * self.table_width..self.rows * self.table_width];
        all_are("rule 7", "block id of a padding row", blocks, NULL_BLOCK)
    }

    /// Tokens of requests are words of the model, at the positions that their row's length implies.
    fn check_request_tokens(&self) -> Result<(), Fault> {
        let ids = &self.arrays.input_ids[..self.request_tokens];
        at_least("rule 9", "token id", 0, ids.iter().copied().min().unwrap_or(0))?;
        at_most("rule 9", "token id", self.limits.vocab_size - 1, ids.iter().copied().max().unwrap_or(0))?;
        self.for_each_request_token(|row, token, _| {
            let got = i64::from(self.arrays.request_index[token]);
            equal_at("rule 7", "request index of token", token, whole(row), got)
        })?;
        self.for_each_request_token(|row, token, offset| {
            let position = self.kv_len(row) - self.len(row) + whole(offset);
            let expected = position.min(self.limits.max_model_len - 1);
            equal_at("rule 9", "position of token", token, expected, self.arrays.positions[token])
        })
    }

    /// Calls with row, token and the token's place in its row. The rows tile the tokens, as was checked before.
    fn for_each_request_token(
        &self,
        mut call: impl FnMut(usize, usize, usize) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let mut token = 0;
        for row in 0..self.request_rows {
            let len = usize::try_from(self.len(row)).unwrap_or(0).min(self.request_tokens - token);
            for offset in 0..len {
                call(row, token + offset, offset)?;
            }
            token += len;
        }
        Ok(())
    }

    /// Writes go where the block table says, never to the null block, and no two to one place.
    fn check_slots(&self) -> Result<(), Fault> {
        let slots = &self.arrays.slots[..self.request_tokens];
        let mut written: Vec<i64> = slots.iter().copied().filter(|&slot| slot != NO_SLOT).collect();
        let (Some(&least), Some(&most)) = (written.iter().min(), written.iter().max()) else { return Ok(()) };
        let block_size = self.limits.block_size;
        at_least("rule 7", "slot", block_size, least)?;
        at_most("rule 7", "slot", self.limits.block_count * block_size - 1, most)?;
        written.sort_unstable();
        if let Some(twice) = written.windows(2).find(|pair| pair[0] == pair[1]) {
            return refuse("rule 7", format!("writes to slot {}", twice[0]), 1, 2);
        }
        let writes = (0..self.request_tokens).filter(|&token| slots[token] != NO_SLOT);
        for (write, token) in writes.enumerate() {
            let position = self.arrays.positions[token];
            let row = usize::try_from(self.arrays.request_index[token]).expect("invariant: checked before");
            let column = usize::try_from(position / block_size).unwrap_or(usize::MAX);
            let block = self.table_row(row).get(column).copied().unwrap_or(NULL_BLOCK);
            let expected = i64::from(block) * block_size + position % block_size;
            equal_at("rule 16", "slot of write", write, expected, slots[token])?;
        }
        Ok(())
    }

    /// Logits are taken from request tokens only, in order.
    fn check_logits(&self) -> Result<(), Fault> {
        let tokens = whole(self.request_tokens);
        at_most("rule 20", "logits", tokens, self.launch.logits)?;
        let count = usize::try_from(self.launch.logits.max(0)).unwrap_or(usize::MAX);
        let (wanted, past) = self.arrays.logits_index.split_at(count);
        all_are("rule 20", "logits index past the count", past, NO_LOGITS)?;
        let (Some(&first), Some(&last)) = (wanted.first(), wanted.last()) else { return Ok(()) };
        at_least("rule 20", "logits index", 0, first)?;
        at_most("rule 20", "logits index", tokens - 1, last)?;
        let step = wanted.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).min().unwrap_or(1);
        at_least("rule 20", "step between logits indices", 1, step)
    }

    /// The backend's own conditions.
    fn check_contract(&self, contract: &Contract) -> Result<(), Fault> {
        let rule = || format!("attention contract {}", contract.name);
        let remainder = whole(self.table_width) % contract.table_alignment.max(1);
        if remainder != 0 {
            return refuse(rule(), "block table width modulo alignment", 0, remainder);
        }
        let block_size = self.limits.block_size;
        if let Some(&first) = contract.block_sizes.first().filter(|_| !contract.block_sizes.contains(&block_size)) {
            return refuse(rule(), "block size", first, block_size);
        }
        if contract.row_capacity > 0 && whole(self.rows) > contract.row_capacity {
            return refuse(rule(), "rows", contract.row_capacity, whole(self.rows));
        }
        let longest_query = contract.uniform_query_len_max;
        if longest_query > 0 && self.launch.mode == Mode::Full && self.launch.query_len > longest_query {
            return refuse(rule(), "uniform query length", longest_query, self.launch.query_len);
        }
        let kv_limit = self.limits.max_model_len + contract.kv_overhang_max;
        if contract.kv_overhang_max >= 0 && self.longest() > kv_limit {
            return refuse(rule(), "kv_len", kv_limit, self.longest());
        }
        Ok(())
    }
}

fn whole(count: usize) -> i64 {
    i64::try_from(count).expect("invariant: an array's length fits")
}

fn refuse(
    rule: impl Into<Cow<'static, str>>,
    field: impl Into<Cow<'static, str>>,
    expected: i64,
    got: i64,
) -> Result<(), Fault> {
    Err(Fault { rule: rule.into(), field: field.into(), expected, got })
}

fn equal(rule: &'static str, field: &'static str, expected: i64, got: i64) -> Result<(), Fault> {
    if expected == got { Ok(()) } else { refuse(rule, field, expected, got) }
}

fn equal_at(rule: &'static str, field: &'static str, index: usize, expected: i64, got: i64) -> Result<(), Fault> {
    if expected == got { Ok(()) } else { refuse(rule, format!("{field} {index}"), expected, got) }
}

fn all_equal(
    rule: &'static str,
    field: &'static str,
    values: impl Iterator<Item = i64>,
    expected: i64,
) -> Result<(), Fault> {
    let mut values = values;
    values.find(|&value| value != expected).map_or(Ok(()), |got| refuse(rule, field, expected, got))
}

/// `all_equal` of an array, which can be long: looked through without a branch for each entry.
fn all_are<Number: Copy + PartialEq + Into<i64>>(
    rule: &'static str,
    field: &'static str,
    values: &[Number],
    expected: impl Into<i64>,
) -> Result<(), Fault> {
    let expected = expected.into();
    let differs = |chunk: &&[Number]| chunk.iter().fold(false, |found, &value| found | (value.into() != expected));
    let chunk = values.chunks(AT_ONCE).find(differs).unwrap_or_default();
    all_equal(rule, field, chunk.iter().map(|&value| value.into()), expected)
}

fn at_most(rule: &'static str, field: &'static str, limit: i64, got: i64) -> Result<(), Fault> {
    if got <= limit { Ok(()) } else { refuse(rule, field, limit, got) }
}

fn at_least(rule: &'static str, field: &'static str, limit: i64, got: i64) -> Result<(), Fault> {
    if got >= limit { Ok(()) } else { refuse(rule, field, limit, got) }
}
