//! Top-k, top-p and min-p: which tokens of a row stay.
//!
//! Tokens rank by value, largest first, then by id, lowest first, so each filter keeps a prefix of that ranking and
//! ties never depend on the order of computation.
//!
//! - top-k keeps exactly the first k (all when k is 0 or not below the vocabulary).
//! - top-p sees the distribution that top-k left. Weights are `exp(value - largest)`; the total is summed in id order
//!   when top-k is off and in rank order when it is on; the shortest prefix whose running sum reaches
//!   `top_p * total` stays.
//! - min-p keeps tokens with `value - largest >= ln(min_p)`.

use crate::adjust::AdjustScratch;
use crate::scan::{Largest, token_id};

/// Buffers that live from one token to the next, so that sampling allocates nothing.
#[derive(Debug, Default)]
pub struct Scratch {
    keys: Vec<u64>,
    pub(crate) adjusted: AdjustScratch,
}

impl Scratch {
    pub(crate) fn keys_mut(&mut self) -> &mut Vec<u64> {
        &mut self.keys
    }
}

/// The filters of one request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Filter {
    pub(crate) temperature: f64,
    pub(crate) top_k: usize,
    pub(crate) top_p: f64,
    /// Natural logarithm of `min_p`; negative infinity when off.
    pub(crate) min_p_log: f64,
}

/// What a filter left of a row.
#[derive(Debug, PartialEq)]
pub(crate) enum Kept<'a> {
    /// Every token whose logit is at least this.
    AtLeast(f32),
    /// These tokens, in rank order, as keys.
    Ranked(&'a [u64]),
}

impl Filter {
    /// Applies the filters to one row whose largest logit is known.
    pub(crate) fn apply<'a>(&self, logits: &[f32], largest: Largest, scratch: &'a mut Scratch) -> Kept<'a> {
        let limited = self.top_k > 0 && self.top_k < logits.len();
        if !limited && self.top_p >= 1.0 {
            return Kept::AtLeast(self.min_p_floor(largest.logit));
        }
        let keys = &mut scratch.keys;
        let kept = if limited {
            keep_top_k(logits, self.top_k, keys);
            keys.sort_unstable_by(|left, right| right.cmp(left));
            if self.top_p < 1.0 { self.ranked_nucleus(keys, largest.logit) } else { keys.len() }
        } else {
            self.whole_nucleus(logits, largest.logit, keys)
        };
        let floor = self.min_p_floor(largest.logit);
        let kept = keys[..kept].partition_point(|key| key_logit(*key) >= floor);
        Kept::Ranked(&keys[..kept])
    }

    /// A logit divided by the temperature. Order and ties of f32 logits survive the f64 division.
    pub(crate) fn scaled(&self, logit: f32) -> f64 {
        f64::from(logit) / self.temperature
    }

    /// The lowest f32 logit that min-p keeps.
    fn min_p_floor(&self, largest: f32) -> f32 {
        if self.min_p_log == f64::NEG_INFINITY {
            return f32::NEG_INFINITY;
        }
        let largest_scaled = self.scaled(largest);
        // Bisection over all f32 values in order: the lowest kept one, whatever rounding does near the edge.
        let (mut dropped, mut kept) = (ordered(f32::NEG_INFINITY), ordered(largest));
        while kept - dropped > 1 {
            let middle = dropped + (kept - dropped) / 2;
            if self.scaled(from_ordered(middle)) - largest_scaled >= self.min_p_log {
                kept = middle;
            } else {
                dropped = middle;
            }
        }
        from_ordered(kept)
    }

    fn weight(&self, logit: f32, largest_scaled: f64) -> f64 {
        (self.scaled(logit) - largest_scaled).exp()
    }

    /// How many of these ranked keys top-p keeps.
    fn ranked_nucleus(&self, keys: &[u64], largest: f32) -> usize {
        let largest_scaled = self.scaled(largest);
        let weight = |key: &u64| self.weight(key_logit(*key), largest_scaled);
        let total = keys.iter().fold(0.0, |sum, key| sum + weight(key));
        self.reaching(keys, total, 0.0, largest_scaled).0.unwrap_or(keys.len())
    }

    /// Fills `keys` with a ranked start of the whole row and says how many of them top-p keeps.
    fn whole_nucleus(&self, logits: &[f32], largest: f32, keys: &mut Vec<u64>) -> usize {
        let largest_scaled = self.scaled(largest);
        let total = logits.iter().fold(0.0, |sum, logit| sum + self.weight(*logit, largest_scaled));
        // Tokens under this weight cannot, all together, hold the share that top-p cuts. If rounding says
        // otherwise, the second round below looks at all of them.
        let share_cut = (1.0 - self.top_p) * total / logits.len() as f64;
        let floor = ((largest_scaled + share_cut.ln()) * self.temperature) as f32;
        for floor in [floor.min(largest), f32::NEG_INFINITY] {
            keys.clear();
            keys.extend(
                logits.iter().enumerate().filter(|(_, logit)| **logit >= floor).map(|(id, logit)| key(*logit, id)),
            );
            if let Some(kept) = self.rank_until_reached(keys, total, largest_scaled) {
                return kept;
            }
        }
        keys.len()
    }

    /// Ranks keys piece by piece, each four times the last, until the running sum reaches top-p.
    fn rank_until_reached(&self, keys: &mut [u64], total: f64, largest_scaled: f64) -> Option<usize> {
        let (mut start, mut sum, mut piece) = (0, 0.0, 64);
        while start < keys.len() {
            let rest = &mut keys[start..];
            let length = piece.min(rest.len());
            if length < rest.len() {
                rest.select_nth_unstable_by(length - 1, |left, right| right.cmp(left));
            }
            rest[..length].sort_unstable_by(|left, right| right.cmp(left));
            let (reached, sum_now) = self.reaching(&rest[..length], total, sum, largest_scaled);
            if let Some(kept) = reached {
                return Some(start + kept);
            }
            (start, sum, piece) = (start + length, sum_now, piece * 4);
        }
        None
    }

    /// The count of ranked keys after which the running sum, begun at `sum`, reaches `top_p * total`; and the sum.
    fn reaching(&self, keys: &[u64], total: f64, mut sum: f64, largest_scaled: f64) -> (Option<usize>, f64) {
        let target = self.top_p * total;
        for (position, key) in keys.iter().enumerate() {
            sum += self.weight(key_logit(*key), largest_scaled);
            if sum >= target {
                return (Some(position + 1), sum);
            }
        }
        (None, sum)
    }
}

/// Leaves the keys of the `count` first-ranked tokens in `keys`, in no order.
pub(crate) fn keep_top_k(logits: &[f32], count: usize, keys: &mut Vec<u64>) {
    keys.clear();
    let room = count.saturating_mul(2).max(1024);
    let mut floor = 0;
    for (id, &logit) in logits.iter().enumerate() {
        let candidate = key(logit, id);
        if candidate < floor {
            continue;
        }
        keys.push(candidate);
        if keys.len() == room {
            floor = shorten(keys, count);
        }
    }
    if keys.len() > count {
        shorten(keys, count);
    }
}

/// Keeps the `count` largest keys, at least one, and gives the smallest of them.
fn shorten(keys: &mut Vec<u64>, count: usize) -> u64 {
    let (_, &mut smallest, _) = keys.select_nth_unstable_by(count - 1, |left, right| right.cmp(left));
    keys.truncate(count);
    smallest
}

/// A token as one integer whose descending order is the ranking.
pub(crate) fn key(logit: f32, id: usize) -> u64 {
    u64::from(ordered(logit)) << 32 | u64::from(!token_id(id))
}

/// The logit of a key.
pub(crate) fn key_logit(key: u64) -> f32 {
    from_ordered((key >> 32) as u32)
}

/// The token of a key.
pub(crate) fn key_token(key: u64) -> u32 {
    !((key & 0xFFFF_FFFF) as u32)
}

/// An integer that orders as the value does; both zeros give the same one.
fn ordered(value: f32) -> u32 {
    let bits = (value + 0.0).to_bits();
    if bits >> 31 == 1 { !bits } else { bits | 1 << 31 }
}

fn from_ordered(ordered: u32) -> f32 {
    f32::from_bits(if ordered >> 31 == 1 { ordered & !(1 << 31) } else { !ordered })
}
