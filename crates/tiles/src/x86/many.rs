//! Products of weights with many rows: their inputs pass by the first cache, where the weights stay.

use std::arch::asm;
use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};

use super::{LINE_BYTES, check, woven};
use crate::{INPUTS, SIDE, Square, Tiles};

impl Tiles {
    /// The products of 32 outputs with two times 16 rows of inputs, as [`Self::multiply_two`] makes them, bit for bit, for
    /// weights that many rows meet. `beside` is called in every step, with its number; it makes no products.
    ///
    /// # Panics
    /// If lengths do not fit each other.
    #[inline]
    pub fn multiply_beside(
        &mut self,
        weights: [&[u16]; 2],
        x: [&[Square]; 2],
        sums: &mut [Square; 4],
        mut beside: impl FnMut(usize),
    ) {
        check(weights, x[0]);
        assert_eq!(x[0].len(), x[1].len(), "squares of both inputs");
        self.begin_sums();
        let stride = x[0].len() * LINE_BYTES;
        for (step, (x, y)) in x[0].iter().zip(x[1]).enumerate() {
            // SAFETY: every row of the weights has a line for each square of `x`, and all are read within their slices, as
            // was checked. The tiles are set up, and nobody else on this thread uses them.
            unsafe {
                asm!(
                    "tileloadd tmm4, [{first} + {stride}]",
                    "tileloaddt1 tmm6, [{x} + {line}]",
                    "tileloaddt1 tmm7, [{y} + {line}]",
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    "tileloadd tmm5, [{second} + {stride}]",
                    "tdpbf16ps tmm1, tmm4, tmm7",
                    "tdpbf16ps tmm2, tmm5, tmm6",
                    "tdpbf16ps tmm3, tmm5, tmm7",
                    first = in(reg) weights[0].as_ptr().add(step * INPUTS),
                    second = in(reg) weights[1].as_ptr().add(step * INPUTS),
                    stride = in(reg) stride,
                    x = in(reg) x,
                    y = in(reg) y,
                    line = in(reg) LINE_BYTES,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack, readonly, preserves_flags),
                );
            }
            beside(step);
        }
        self.take_sums(sums);
    }

    /// Fetches a line of 32 numbers, which may lie behind the end of `numbers`, into the second cache, and waits for nothing.
    #[inline]
    pub fn fetch_line(numbers: &[u16], line: usize) {
        // SAFETY: to fetch ahead of use is no access.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(numbers.as_ptr().wrapping_add(line * INPUTS).cast()) };
    }

    /// Fetches the line of the cache where `numbers` begin, to be written, and waits for nothing.
    #[inline]
    pub fn fetch_to_write(numbers: &mut [u16]) {
        // SAFETY: to fetch ahead of use is no access.
        unsafe { asm!("prefetchw [{0}]", in(reg) numbers.as_ptr(), options(nostack, readonly, preserves_flags)) };
    }

    /// Twice the sums `[output, row]` in fp32 of sixteen outputs and their biases, added, as bfloat16, ties to even: of each of
    /// `rows`, at most sixteen, 32 outputs from `first` on. The bits are those of [`Self::round`].
    ///
    /// # Panics
    /// If there are more rows, or one of them is too short.
    #[inline]
    pub fn round_into(&self, sums: [&Square; 2], biases: &[f32; 2 * SIDE], rows: &mut [&mut [u16]], first: usize) {
        assert!(rows.len() <= SIDE, "rows of a square");
        assert!(rows.iter().all(|row| row.len() >= first + 2 * SIDE), "outputs of every row");
        // SAFETY: processors with tiles have these, as was asked; lengths were checked.
        unsafe { woven::round_into(sums, biases, rows, first) };
    }
}
