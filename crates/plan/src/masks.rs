//! The masks of a step (rule 19): they follow the plan, after the previous step is committed, and sampling waits for them.

use serde::Deserialize;

use crate::codec::Coded;
use crate::error::{check_at_least, check_equal};
use crate::pack;
use crate::{Error, RankPart, Row, Seat, SeatGeneration, Words};

/// The masks of one row: one for each position that it samples at, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowMasks {
    /// Whose row.
    pub seat: Seat,
    /// Which life of the seat.
    pub generation: SeatGeneration,
    /// Nothing where every token may be chosen. Else token t may be if bit `t % 32` of word `t / 32` is set.
    pub positions: Vec<Option<Words>>,
}

/// The masks of a rank's rows whose mask follows, in the plan's order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepMasks {
    /// One entry for each such row.
    pub rows: Vec<RowMasks>,
}

impl StepMasks {
    /// Checks that these are the masks of `rank`'s rows, for a vocabulary of `vocab_size` tokens.
    ///
    /// # Errors
    /// Rule 19 with both numbers.
    pub fn check(&self, rank: &RankPart, vocab_size: u32) -> Result<(), Error> {
        let masked: Vec<&Row> = rank.rows().iter().filter(|row| row.masks_count() > 0).collect();
        check_equal(19, "rows with masks", masked.len() as i64, self.rows.len() as i64)?;
        for (row, masks) in masked.into_iter().zip(&self.rows) {
            check_equal(19, "seat of a row's masks", row.seat.get().into(), masks.seat.get().into())?;
            let (held, said) = (row.generation.get(), masks.generation.get());
            check_equal(19, "generation of a row's masks", held.into(), said.into())?;
            check_equal(19, "masks of a row", row.masks_count().into(), masks.positions.len() as i64)?;
            for words in masks.positions.iter().flatten() {
                check_words(words, vocab_size)?;
            }
        }
        Ok(())
    }
}

/// A mask is as long as the vocabulary, allows something, and nothing past the vocabulary.
fn check_words(words: &Words, vocab_size: u32) -> Result<(), Error> {
    check_equal(19, "words of a mask", vocab_size.div_ceil(32).into(), words.len() as i64)?;
    let past = match vocab_size % 32 {
        0 => 0,
        rest => words.last().map_or(0, |word| word >> rest),
    };
    check_equal(19, "tokens past the vocabulary in a mask", 0, past.count_ones().into())?;
    let allows = words.iter().any(|word| *word != 0);
    check_at_least(19, "tokens that a mask allows", 1, allows.into())
}

/// The words of a mask; none where every token may be chosen.
fn words_of(mask: &Option<Words>) -> &[u32] {
    mask.as_ref().map_or(&[], |words| &words[..])
}

/// Masks as they travel: columns.
#[derive(Deserialize)]
pub struct MasksWire {
    seats: Words,
    generations: Words,
    /// Masks of each row.
    counts: Words,
    /// Words of each mask; 0 where every token may be chosen.
    lengths: Words,
    words: Words,
}

impl Coded for StepMasks {
    type Wire = MasksWire;

    fn append_to(&self, bytes: &mut Vec<u8>) {
        let masks: Vec<&[u32]> = self.rows.iter().flat_map(|row| &row.positions).map(words_of).collect();
        pack::list(bytes, 5);
        pack::column(bytes, &self.rows, |row| row.seat.get());
        pack::column(bytes, &self.rows, |row| row.generation.get());
        pack::column(bytes, &self.rows, |row| row.positions.len() as u32);
        pack::column(bytes, &masks, |words| words.len() as u32);
        pack::flat(bytes, masks.iter().copied());
    }

    fn from_wire(wire: MasksWire) -> Result<Self, Error> {
        let count = wire.seats.len();
        check_equal(19, "length of a mask column", count as i64, wire.generations.len() as i64)?;
        check_equal(19, "length of a mask column", count as i64, wire.counts.len() as i64)?;
        let masks: u64 = wire.counts.iter().map(|count| u64::from(*count)).sum();
        check_equal(19, "length of a mask column", masks.cast_signed(), wire.lengths.len() as i64)?;
        let words: u64 = wire.lengths.iter().map(|length| u64::from(*length)).sum();
        check_equal(19, "words of all masks", words.cast_signed(), wire.words.len() as i64)?;
        let (mut lengths, mut words) = (&wire.lengths[..], &wire.words[..]);
        let mut rows = Vec::with_capacity(count);
        for index in 0..count {
            let (of_row, later) = lengths.split_at(wire.counts[index] as usize);
            lengths = later;
            let mut positions = Vec::with_capacity(of_row.len());
            for length in of_row {
                let (mask, later) = words.split_at(*length as usize);
                words = later;
                positions.push((!mask.is_empty()).then(|| Words::from(mask)));
            }
            let (seat, generation) = (wire.seats[index], wire.generations[index]);
            rows.push(RowMasks { seat: Seat::new(seat), generation: SeatGeneration::new(generation), positions });
        }
        Ok(Self { rows })
    }
}
