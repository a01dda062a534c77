//! The activation of a gated feed-forward block.

use paceline_tiles::Vectors;
use pulp::{Arch, Simd, WithSimd};

use crate::exponential::exponential;
use crate::{Element, crew};

/// `silu` of less than this is nothing in any type.
const GATE_MIN: f32 = -88.0;

/// `silu(gate) * up`: rows of `gate_up` hold `width` gates and then `width` others, rows of `product` are `width` wide.
///
/// # Panics
/// If lengths are no multiple of the width or do not fit each other.
pub fn gate<E: Element>(gate_up: &[E], width: usize, product: &mut [E]) {
    assert!(width > 0 && product.len().is_multiple_of(width), "rows of the product");
    assert_eq!(gate_up.len(), 2 * product.len(), "elements of gate and up");
    let rows = product.len() / width;
    let part = rows.div_ceil(crew::parts(rows, gate_up.len())).max(1) * width;
    let parts = gate_up.chunks(2 * part).zip(product.chunks_mut(part));
    crew::run(parts.map(|(gate_up, product)| {
        move || match (Vectors::new(), E::halves(gate_up)) {
            (Some(vectors), Some(gate_up)) => {
                let product = E::halves_mut(product).expect("of the type of the gates");
                for (row, product) in gate_up.chunks_exact(2 * width).zip(product.chunks_exact_mut(width)) {
                    let (gates, ups) = row.split_at(width);
                    vectors.gate(gates, ups, product);
                }
            }
            _ => Arch::new().dispatch(Gate { gate_up, width, product }),
        }
    }));
}

struct Gate<'a, E> {
    gate_up: &'a [E],
    width: usize,
    product: &'a mut [E],
}

impl<E: Element> WithSimd for Gate<'_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) {
        let rows = self.gate_up.chunks_exact(2 * self.width);
        for (row, product) in rows.zip(self.product.chunks_exact_mut(self.width)) {
            let (gates, ups) = row.split_at(self.width);
            for ((place, &gate), &up) in product.iter_mut().zip(gates).zip(ups) {
                let gate = gate.to_f32();
                // What is less comes to nothing, too, and its exponential would not be large enough.
                let gate = if gate < GATE_MIN { GATE_MIN } else { gate };
                *place = E::from_f32(gate / (1.0 + exponential(-gate)) * up.to_f32());
            }
        }
    }
}
