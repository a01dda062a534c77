//! Rotary position embedding in the half-split form, in place, after an optional norm of each head.

use pulp::{Arch, Simd, WithSimd};

use crate::norm::root_mean_square_inverse;
use crate::{Element, crew};

/// Cosine and signed sine of every token, rows of `width` columns: the sine's first half is negative.
#[derive(Clone, Copy, Debug)]
pub struct Rotation<'a, E> {
    /// Cosines.
    pub cos: &'a [E],
    /// Sines, the first half of each row negated.
    pub sin: &'a [E],
    /// Columns of a head that are rotated, the first ones.
    pub width: usize,
}

/// A norm of each rotated head by its own root mean square.
#[derive(Clone, Copy, Debug)]
pub struct HeadNorm<'a, E> {
    /// One row of factors for each rotated head.
    pub weight: &'a [E],
    /// Keeps the root from 0.
    pub epsilon: f32,
}

/// Rotates the first `count` heads, each `size` wide, of every row of `heads`, which has `row_width` columns.
///
/// # Panics
/// If lengths do not fit each other.
pub fn rotate<E: Element>(
    heads: &mut [E],
    row_width: usize,
    count: usize,
    size: usize,
    rotation: Rotation<'_, E>,
    norm: Option<HeadNorm<'_, E>>,
) {
    assert!(row_width > 0 && heads.len().is_multiple_of(row_width), "rows of heads");
    assert!(count * size <= row_width, "heads of a row");
    assert!(
        size > 0 && rotation.width > 0 && rotation.width <= size && rotation.width.is_multiple_of(2),
        "rotated columns"
    );
    let tokens = heads.len() / row_width;
    assert_eq!(rotation.cos.len(), tokens * rotation.width, "cosines");
    assert_eq!(rotation.sin.len(), tokens * rotation.width, "sines");
    if let Some(norm) = norm {
        assert_eq!(norm.weight.len(), count * size, "factors of the norm");
    }
    let Rotation { cos, sin, width } = rotation;
    let part = tokens.div_ceil(crew::parts(tokens, heads.len())).max(1);
    let angles = cos.chunks(part * width).zip(sin.chunks(part * width));
    crew::run(heads.chunks_mut(part * row_width).zip(angles).map(|(heads, (cos, sin))| {
        let rotation = Rotation { cos, sin, width };
        move || Arch::new().dispatch(Rotate { heads, row_width, count, size, rotation, norm })
    }));
}

struct Rotate<'a, E> {
    heads: &'a mut [E],
    row_width: usize,
    count: usize,
    size: usize,
    rotation: Rotation<'a, E>,
    norm: Option<HeadNorm<'a, E>>,
}

impl<E: Element> WithSimd for Rotate<'_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) {
        let Rotation { cos, sin, width } = self.rotation;
        let angles = cos.chunks_exact(width).zip(sin.chunks_exact(width));
        for (row, (cos, sin)) in self.heads.chunks_exact_mut(self.row_width).zip(angles) {
            let rotated = &mut row[..self.count * self.size];
            if let Some(norm) = self.norm {
                for (head, weight) in rotated.chunks_exact_mut(self.size).zip(norm.weight.chunks_exact(self.size)) {
                    let factor = root_mean_square_inverse(head, norm.epsilon);
                    for (place, &weight) in head.iter_mut().zip(weight) {
                        *place = E::from_f32(place.to_f32() * factor * weight.to_f32());
                    }
                }
            }
            for head in rotated.chunks_exact_mut(self.size) {
                rotate_head(&mut head[..width], cos, sin);
            }
        }
    }
}

#[inline(always)]
fn rotate_head<E: Element>(head: &mut [E], cos: &[E], sin: &[E]) {
    let half = head.len() / 2;
    // Equal lengths in plain sight, so that no index below is checked.
    let (low, high) = head.split_at_mut(half);
    let (cos_low, cos_high) = cos.split_at(half);
    let (sin_low, sin_high) = sin.split_at(half);
    let (low, high) = (&mut low[..half], &mut high[..half]);
    let (cos_high, sin_high) = (&cos_high[..half], &sin_high[..half]);
    for at in 0..half {
        let (first, second) = (low[at].to_f32(), high[at].to_f32());
        low[at] = E::from_f32(first * cos_low[at].to_f32() + second * sin_low[at].to_f32());
        high[at] = E::from_f32(second * cos_high[at].to_f32() + first * sin_high[at].to_f32());
    }
}
