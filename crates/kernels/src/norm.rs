//! Root-mean-square norm of the residual stream, with the addition that comes before it.

use paceline_tiles::Vectors;
use pulp::{Arch, Simd, WithSimd};

use crate::{Element, crew};

/// Independent sums, so that adding them up does not wait for one addition after another.
const LANES: usize = 32;

/// Adds `added` to the residual stream `x` in place, if given, and writes `x / rms(x) * weight` to `normed`.
///
/// `x`, `added` and `normed` hold rows as wide as `weight`. The sum is rounded before it is normalised.
///
/// # Panics
/// If lengths differ or are no multiple of the width.
pub fn rms_norm<E: Element>(x: &mut [E], added: Option<&[E]>, weight: &[E], epsilon: f32, normed: &mut [E]) {
    assert!(!weight.is_empty(), "the width of a norm");
    assert_eq!(x.len() % weight.len(), 0, "rows of x");
    assert_eq!(x.len(), normed.len(), "elements of x and of the result");
    if let Some(added) = added {
        assert_eq!(x.len(), added.len(), "elements of x and of what is added");
    }
    let width = weight.len();
    let rows = x.len() / width;
    let part = rows.div_ceil(crew::parts(rows, x.len())).max(1) * width;
    let mut added = added.map(|added| added.chunks(part));
    let parts = x.chunks_mut(part).zip(normed.chunks_mut(part)).map(|(x, normed)| {
        let added = added.as_mut().and_then(Iterator::next);
        let norm = RmsNorm { x, added, weight, epsilon, normed };
        move || match Vectors::new() {
            Some(vectors) if E::halves(weight).is_some() => norm.with_vectors(vectors),
            _ => Arch::new().dispatch(norm),
        }
    });
    crew::run(parts);
}

struct RmsNorm<'a, E> {
    x: &'a mut [E],
    added: Option<&'a [E]>,
    weight: &'a [E],
    epsilon: f32,
    normed: &'a mut [E],
}

impl<E: Element> RmsNorm<'_, E> {
    fn with_vectors(self, vectors: Vectors) {
        let weight = E::halves(self.weight).expect("vectors are for bfloat16");
        let x = E::halves_mut(self.x).expect("of the type of the weights");
        let normed = E::halves_mut(self.normed).expect("of the type of the weights");
        let mut added = self.added.and_then(E::halves).map(|added| added.chunks_exact(weight.len()));
        for (row, normed) in x.chunks_exact_mut(weight.len()).zip(normed.chunks_exact_mut(weight.len())) {
            let squares = vectors.add(row, added.as_mut().and_then(Iterator::next));
            let factor = 1.0 / (squares / weight.len() as f32 + self.epsilon).sqrt();
            vectors.scale(row, factor, weight, normed);
        }
    }
}

impl<E: Element> WithSimd for RmsNorm<'_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) {
        let width = self.weight.len();
        let rows = self.x.chunks_exact_mut(width).zip(self.normed.chunks_exact_mut(width));
        for (index, (row, normed)) in rows.enumerate() {
            if let Some(added) = self.added {
                for (place, &more) in row.iter_mut().zip(&added[index * width..]) {
                    *place = E::from_f32(place.to_f32() + more.to_f32());
                }
            }
            let factor = root_mean_square_inverse(row, self.epsilon);
            for ((place, &value), &weight) in normed.iter_mut().zip(&*row).zip(self.weight) {
                *place = E::from_f32(value.to_f32() * factor * weight.to_f32());
            }
        }
    }
}

/// One over the root of the mean square, kept from 0 by `epsilon`.
#[inline(always)]
pub(crate) fn root_mean_square_inverse<E: Element>(row: &[E], epsilon: f32) -> f32 {
    let mut sums = [0.0_f32; LANES];
    let mut whole = row.chunks_exact(LANES);
    for part in &mut whole {
        for (sum, &value) in sums.iter_mut().zip(part) {
            *sum += value.to_f32() * value.to_f32();
        }
    }
    for (sum, &value) in sums.iter_mut().zip(whole.remainder()) {
        *sum += value.to_f32() * value.to_f32();
    }
    let mean = sums.iter().sum::<f32>() / row.len() as f32;
    1.0 / (mean + epsilon).sqrt()
}
