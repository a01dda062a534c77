//! The rows that were sent to a rank, kept until its reply is in.

use paceline_plan::{Mask, Row, Seat, SeatGeneration};

/// The rows of a rank's part of a plan, in its order: decode rows first.
#[derive(Clone, Debug, Default)]
pub(crate) struct SentRows {
    pub(crate) rows: Vec<Row>,
    /// What prompt rows do not say of themselves, of each of them.
    pub(crate) prompts: Vec<SentPrompt>,
}

/// What a prompt row does not say of itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SentPrompt {
    /// What the worker knows of the request once the plan's deltas are applied.
    pub(crate) known: u32,
    /// Whether the row gives a token.
    pub(crate) samples: bool,
    /// Where the row's tokens end in the prompt, when they are reported with log-probabilities.
    pub(crate) reported_end: Option<u32>,
}

/// All that the reply to a row is checked against.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SentRow {
    pub(crate) seat: Seat,
    pub(crate) generation: SeatGeneration,
    pub(crate) is_decode: bool,
    /// Tokens of a prompt row; 1 in a decode row.
    pub(crate) tokens: u32,
    pub(crate) drafts: u32,
    /// What the worker knows of the request once the plan's deltas are applied, at most.
    pub(crate) known_max: u32,
    /// Whether the row gives a token.
    pub(crate) samples: bool,
    /// Whether its masks follow.
    pub(crate) is_masked: bool,
    /// Where the row's tokens end in the prompt, when they are reported with log-probabilities.
    pub(crate) reported_end: Option<u32>,
}

impl SentRows {
    pub(crate) fn decode_rows(&self) -> &[Row] {
        &self.rows[..self.rows.len() - self.prompts.len()]
    }

    /// All rows, decode rows first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = SentRow> + '_ {
        self.decode_rows().iter().map(SentRow::decoding).chain(self.prompt_rows())
    }

    pub(crate) fn prompt_rows(&self) -> impl Iterator<Item = SentRow> + '_ {
        let rows = &self.rows[self.decode_rows().len()..];
        rows.iter().zip(&self.prompts).map(|(row, prompt)| SentRow::of_prompt(row, prompt))
    }

    pub(crate) fn clear(&mut self) {
        self.rows.clear();
        self.prompts.clear();
    }
}

impl SentRow {
    pub(crate) const fn decoding(row: &Row) -> Self {
        let Row { seat, generation, drafts, .. } = *row;
        let (is_decode, tokens, known_max, samples) = (true, 1, row.start_max + 1, true);
        let (is_masked, reported_end) = (matches!(row.mask, Mask::Follows), None);
        Self { seat, generation, is_decode, tokens, drafts, known_max, samples, is_masked, reported_end }
    }

    const fn of_prompt(row: &Row, prompt: &SentPrompt) -> Self {
        let Row { seat, generation, drafts, .. } = *row;
        let SentPrompt { known: known_max, samples, reported_end } = *prompt;
        let (is_decode, tokens) = (false, row.query_len.get());
        let is_masked = matches!(row.mask, Mask::Follows);
        Self { seat, generation, is_decode, tokens, drafts, known_max, samples, is_masked, reported_end }
    }
}
