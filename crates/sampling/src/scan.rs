//! The one pass that every row gets: its largest logit, and whether it is usable at all.

use crate::Error;

const LANES: usize = 16;
const CHUNK: usize = 16 * LANES;

/// The largest logit of a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Largest {
    /// The lowest token that has it.
    pub(crate) token_id: u32,
    /// Its value, always finite.
    pub(crate) logit: f32,
}

/// Finds the largest logit, lowest id on ties. Negative infinity marks a token that is excluded.
///
/// # Errors
/// A logit is NaN or positive infinity, or no token is left.
pub(crate) fn largest(logits: &[f32]) -> Result<Largest, Error> {
    let mut best = f32::NEG_INFINITY;
    let mut best_start = 0;
    let mut not_a_number = false;
    for (chunk_index, chunk) in logits.chunks(CHUNK).enumerate() {
        let (chunk_best, chunk_nan) = chunk_largest(chunk);
        not_a_number |= chunk_nan;
        if chunk_best > best {
            best = chunk_best;
            best_start = chunk_index * CHUNK;
        }
    }
    if not_a_number || best == f32::INFINITY {
        let unusable = |logit: &f32| logit.is_nan() || *logit == f32::INFINITY;
        let position = logits.iter().position(unusable).expect("the scan saw such a logit");
        return Err(Error::Logit { token_id: token_id(position), value: logits[position] });
    }
    if best == f32::NEG_INFINITY {
        return Err(Error::NoCandidate { vocab_size: logits.len() });
    }
    let offset = logits[best_start..].iter().position(|logit| *logit == best).expect("the scan saw this logit");
    Ok(Largest { token_id: token_id(best_start + offset), logit: best })
}

/// Largest value of a chunk and whether it holds a NaN, in lanes that compile to vector code.
fn chunk_largest(chunk: &[f32]) -> (f32, bool) {
    let mut maxima = [f32::NEG_INFINITY; LANES];
    let mut not_a_number = [false; LANES];
    let mut groups = chunk.chunks_exact(LANES);
    for group in &mut groups {
        for lane in 0..LANES {
            let logit = group[lane];
            maxima[lane] = if logit > maxima[lane] { logit } else { maxima[lane] };
            not_a_number[lane] |= logit.is_nan();
        }
    }
    for (lane, &logit) in groups.remainder().iter().enumerate() {
        maxima[lane] = if logit > maxima[lane] { logit } else { maxima[lane] };
        not_a_number[lane] |= logit.is_nan();
    }
    let best = maxima.into_iter().fold(f32::NEG_INFINITY, f32::max);
    (best, not_a_number.into_iter().any(|lane| lane))
}

/// The token at a position of a row.
pub(crate) fn token_id(position: usize) -> u32 {
    u32::try_from(position).expect("a vocabulary has fewer than 2^32 tokens")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_id_wins_ties_across_chunks() {
        let mut logits = vec![-1.0; 3 * CHUNK + 5];
        for position in [CHUNK + 7, CHUNK + 8, 3 * CHUNK + 4] {
            logits[position] = 2.0;
        }
        let expected = Largest { token_id: token_id(CHUNK + 7), logit: 2.0 };
        assert_eq!(largest(&logits), Ok(expected));
        logits[3 * CHUNK + 4] = 2.5;
        assert_eq!(largest(&logits).map(|found| found.token_id), Ok(token_id(3 * CHUNK + 4)));
    }

    #[test]
    fn zero_and_minus_zero_tie() {
        assert_eq!(largest(&[-1.0, -0.0, 0.0]).map(|found| found.token_id), Ok(1));
    }

    #[test]
    fn unusable_rows_are_refused_with_the_token() {
        let mut logits = vec![0.0; CHUNK + 3];
        logits[CHUNK + 1] = f32::INFINITY;
        assert_eq!(largest(&logits), Err(Error::Logit { token_id: token_id(CHUNK + 1), value: f32::INFINITY }));
        logits[2] = f32::NAN;
        assert!(matches!(largest(&logits), Err(Error::Logit { token_id: 2, value }) if value.is_nan()));
        assert_eq!(largest(&[f32::NEG_INFINITY; 4]), Err(Error::NoCandidate { vocab_size: 4 }));
        assert_eq!(largest(&[]), Err(Error::NoCandidate { vocab_size: 0 }));
    }
}
