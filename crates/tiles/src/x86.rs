//! Tiles of x86 under Linux.
//!
//! Tiles 0 to 3 hold sums, 4 and 5 weights, 6 and 7 inputs. All eight have sixteen rows of 64 bytes.

mod expanded;
mod many;
mod woven;

use std::arch::asm;
use std::arch::x86_64::{__cpuid_count, _MM_HINT_T1, _mm_prefetch};
use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::OnceLock;

use crate::{CompressedRows, CompressedTile, INPUTS, Lines, SIDE, Square};

/// Bytes of a line of the cache, and of a row of a tile.
const LINE_BYTES: usize = 64;
const TILE_COUNT: usize = 8;
/// Places of what is read next that are fetched side by side: a processor fetches few lines ahead of use in each.
const PLACES: usize = 8;
/// `ARCH_REQ_XCOMP_PERM` of Linux: a process asks for state of a processor that is large.
const REQUEST_STATE: libc::c_int = 0x1023;
/// The data of tiles among the states of a processor.
const TILE_DATA_STATE: libc::c_ulong = 18;

thread_local! {
    /// How many hold the tiles of this thread.
    static HOLDERS: Cell<usize> = const { Cell::new(0) };
}

/// Fetches four lines in each of the `PLACES` of `next`, `place` bytes apart, and goes on by so many: in as many steps as there
/// are lines in a row of weights, 32 rows of them are fetched. `third` and `sixth` are those places.
macro_rules! fetch_ahead {
    () => {
        concat!(
            fetch_ahead!("[{next}"),
            fetch_ahead!("[{next} + {place}"),
            fetch_ahead!("[{next} + 2 * {place}"),
            fetch_ahead!("[{third}"),
            fetch_ahead!("[{next} + 4 * {place}"),
            fetch_ahead!("[{third} + 2 * {place}"),
            fetch_ahead!("[{sixth}"),
            fetch_ahead!("[{third} + 4 * {place}"),
            "add {next}, 256\nadd {third}, 256\nadd {sixth}, 256\n",
        )
    };
    ($place:literal) => {
        concat!(
            "prefetcht1 ",
            $place,
            "]\nprefetcht1 ",
            $place,
            " + 64]\n",
            "prefetcht1 ",
            $place,
            " + 128]\nprefetcht1 ",
            $place,
            " + 192]\n",
        )
    };
}

/// Two times sixteen outputs with two times sixteen rows, and what is done beside it in every step.
macro_rules! multiply_two {
    ($weights:ident, $x:ident, $sums:ident, $beside:expr, $($operands:tt)*) => {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "2:",
            "tileloadd tmm4, [{first} + {stride}]",
            "tileloadd tmm6, [{x} + {line}]",
            "tileloadd tmm7, [{y} + {line}]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm5, [{second} + {stride}]",
            $beside,
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "add {first}, 64",
            "add {second}, 64",
            "add {x}, 1024",
            "add {y}, 1024",
            "dec {steps}",
            "jnz 2b",
            "tilestored [{sums} + {line}], tmm0",
            "tilestored [{sums} + {line} + 1024], tmm1",
            "tilestored [{sums} + {line} + 2048], tmm2",
            "tilestored [{sums} + {line} + 3072], tmm3",
            $($operands)*
            first = inout(reg) $weights[0].as_ptr() => _,
            second = inout(reg) $weights[1].as_ptr() => _,
            stride = in(reg) $x[0].len() * LINE_BYTES,
            x = inout(reg) $x[0].as_ptr() => _,
            y = inout(reg) $x[1].as_ptr() => _,
            steps = inout(reg) $x[0].len() => _,
            sums = in(reg) $sums.as_mut_ptr(),
            line = in(reg) LINE_BYTES,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        )
    };
}

/// The tiles of one thread. They are given back when the last that holds them goes.
#[derive(Debug)]
pub struct Tiles {
    // Tiles belong to a thread.
    not_send: PhantomData<*const ()>,
}

/// What the processor is told of its tiles.
#[repr(C, align(64))]
#[derive(Debug)]
struct Layout {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

static LAYOUT: Layout = {
    let (mut row_bytes, mut rows) = ([0; 16], [0; 16]);
    let mut tile = 0;
    while tile < TILE_COUNT {
        row_bytes[tile] = LINE_BYTES as u16;
        rows[tile] = SIDE as u8;
        tile += 1;
    }
    Layout { palette: 1, start_row: 0, reserved: [0; 14], row_bytes, rows }
};

/// Whether the processor has tiles of bfloat16, and the system lets this process use them.
fn are_available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| {
        // Leaf 7 of what a processor says of itself, in edx: bit 22 for products of bfloat16, bit 24 for tiles.
        #[allow(unused_unsafe, reason = "newer compilers know that asking is safe")]
        // SAFETY: every processor with AVX-512, which is asked first, has this leaf.
        let has_tiles = || unsafe { __cpuid_count(7, 0) }.edx & (1 << 22 | 1 << 24) == (1 << 22 | 1 << 24);
        is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512bf16")
            && has_tiles()
            // SAFETY: the call reads its two numbers and no memory; it fails where the kernel does not know it.
            && unsafe { libc::syscall(libc::SYS_arch_prctl, REQUEST_STATE, TILE_DATA_STATE) } == 0
    })
}

impl Tiles {
    /// The tiles of this thread; nothing where processor or system have none.
    pub fn new() -> Option<Self> {
        if !are_available() {
            return None;
        }
        if HOLDERS.replace(HOLDERS.get() + 1) == 0 {
            let layout = &raw const LAYOUT;
            // SAFETY: tiles are there and permitted; the layout is one that palette 1 allows, on a line of its own.
            unsafe { asm!("ldtilecfg [{layout}]", layout = in(reg) layout, options(nostack, preserves_flags)) };
        }
        Some(Self { not_send: PhantomData })
    }

    /// The products of 32 outputs with 16 rows of inputs.
    ///
    /// `weights` are two times sixteen outputs, each `[16, inputs]`. `x` has for every 32 inputs a square: word `[pair,
    /// row]` is that pair of inputs of that row. The first two `sums` are made `[output, row]` in fp32, of the first outputs
    /// and of the second. Meanwhile as many weights as these two have are fetched from where `next` begins.
    ///
    /// # Panics
    /// If lengths do not fit each other.
    #[inline]
    pub fn multiply(&mut self, weights: [&[u16]; 2], next: &[u16], x: &[Square], sums: &mut [Square]) {
        let [next, third, sixth] = places(next, x);
        check(weights, x);
        assert!(sums.len() >= 2, "sums of both halves");
        // SAFETY: every row of the weights has a line for each square of `x`, and all are read within their slices, as
        // was checked; `sums` has two tiles. The tiles are set up, and nobody else on this thread uses them. To fetch
        // ahead of use is no access: any address will do.
        unsafe {
            asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "2:",
                "tileloadd tmm6, [{x} + {line}]",
                "tileloadd tmm4, [{first} + {stride}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm5, [{second} + {stride}]",
                fetch_ahead!(),
                "tdpbf16ps tmm1, tmm5, tmm6",
                "add {first}, 64",
                "add {second}, 64",
                "add {x}, 1024",
                "dec {steps}",
                "jnz 2b",
                "tilestored [{sums} + {line}], tmm0",
                "tilestored [{sums} + {line} + 1024], tmm1",
                first = inout(reg) weights[0].as_ptr() => _,
                second = inout(reg) weights[1].as_ptr() => _,
                stride = in(reg) x.len() * LINE_BYTES,
                next = inout(reg) next => _,
                third = inout(reg) third => _,
                sixth = inout(reg) sixth => _,
                place = in(reg) place_bytes(x),
                x = inout(reg) x.as_ptr() => _,
                steps = inout(reg) x.len() => _,
                sums = in(reg) sums.as_mut_ptr(),
                line = in(reg) LINE_BYTES,
                out("tmm0") _, out("tmm1") _, out("tmm4") _, out("tmm5") _, out("tmm6") _,
                options(nostack),
            );
        }
    }

    /// The products of 32 outputs with two times 16 rows of inputs, as [`Self::multiply`]: `sums` are of the first outputs
    /// with both `x`, then of the second. Nothing is fetched where there is no `next`.
    ///
    /// # Panics
    /// If lengths do not fit each other.
    #[inline]
    pub fn multiply_two(
        &mut self,
        weights: [&[u16]; 2],
        next: Option<&[u16]>,
        x: [&[Square]; 2],
        sums: &mut [Square; 4],
    ) {
        check(weights, x[0]);
        assert_eq!(x[0].len(), x[1].len(), "squares of both inputs");
        // SAFETY: as for `multiply`; both `x` are as long, and `sums` has four tiles.
        unsafe {
            match next.map(|next| places(next, x[0])) {
                Some([next, third, sixth]) => multiply_two!(
                    weights, x, sums, fetch_ahead!(),
                    next = inout(reg) next => _,
                    third = inout(reg) third => _,
                    sixth = inout(reg) sixth => _,
                    place = in(reg) place_bytes(x[0]),
                ),
                None => multiply_two!(weights, x, sums, "",),
            }
        }
    }

    /// The products of 32 outputs, whose weights are compressed, with one or two times 16 rows of inputs.
    ///
    /// `x` have a square for each 32 inputs, rows as they are. The first two `sums` are made `[row, output]`, of the first rows with
    /// the first outputs and with the others, then those of the second rows; they are the bits of the other products. The
    /// weights are expanded into `expanded`, two squares for each square of `x`, as far as there is room, then from its beginning again.
    /// Meanwhile as many weights as these are fetched from where `next` begins.
    ///
    /// # Panics
    /// If lengths do not fit each other, or `expanded` is empty or odd.
    #[inline]
    pub fn multiply_compressed<const ROWS: usize>(
        &mut self,
        weights: CompressedRows<'_>,
        next: &[[CompressedTile; 2]],
        x: [&[Square]; ROWS],
        expanded: &mut [Square],
        sums: &mut [Square; 4],
    ) {
        const { assert!(ROWS == 1 || ROWS == 2) };
        assert!(x.iter().all(|x| x.len() == weights.tiles.len()), "squares for each line of the weights");
        assert!(!expanded.is_empty() && expanded.len().is_multiple_of(2), "room for pairs of squares");
        self.begin_sums();
        // SAFETY: processors with tiles have these vectors, as was asked; lengths were checked; the tiles are set up, and nobody
        // else on this thread uses them.
        unsafe { expanded::add_compressed(weights, next.as_ptr().cast(), x, expanded) };
        self.take_sums(sums);
    }

    /// The same with what all weights were expanded to.
    ///
    /// # Panics
    /// If lengths do not fit each other.
    #[inline]
    pub fn multiply_expanded<const ROWS: usize>(
        &mut self,
        weights: &[Square],
        x: [&[Square]; ROWS],
        sums: &mut [Square; 4],
    ) {
        const { assert!(ROWS == 1 || ROWS == 2) };
        assert!(x.iter().all(|x| 2 * x.len() == weights.len()), "two squares of weights for each of inputs");
        self.begin_sums();
        // SAFETY: as for `multiply_compressed`.
        unsafe { expanded::add_expanded(weights, x) };
        self.take_sums(sums);
    }

    /// The products of sixteen outputs with four times 16 rows of inputs.
    ///
    /// `weights` are `[16, stride]`, of which as many lines of 32 inputs are taken as `x` has, each with four squares.
    /// `sums` are `[output, row]`.
    ///
    /// # Panics
    /// If the lengths do not fit each other.
    #[inline]
    pub fn multiply_four(&mut self, weights: &[u16], x: &[[Square; 4]], sums: &mut [Square; 4]) {
        let stride = weights.len() / SIDE;
        assert!(!x.is_empty() && x.len() * INPUTS <= stride, "lines of the weights");
        // SAFETY: sixteen rows of weights have a line for each four squares of `x`, as was checked; `sums` has four tiles.
        // The tiles are set up, and nobody else on this thread uses them.
        unsafe {
            asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "2:",
                "tileloadd tmm4, [{weights} + {stride}]",
                "tileloadd tmm5, [{x} + {line}]",
                "tileloadd tmm6, [{x} + {line} + 1024]",
                "tdpbf16ps tmm0, tmm4, tmm5",
                "tileloadd tmm7, [{x} + {line} + 2048]",
                "tdpbf16ps tmm1, tmm4, tmm6",
                "tileloadd tmm5, [{x} + {line} + 3072]",
                "tdpbf16ps tmm2, tmm4, tmm7",
                "tdpbf16ps tmm3, tmm4, tmm5",
                "add {weights}, 64",
                "add {x}, 4096",
                "dec {steps}",
                "jnz 2b",
                "tilestored [{sums} + {line}], tmm0",
                "tilestored [{sums} + {line} + 1024], tmm1",
                "tilestored [{sums} + {line} + 2048], tmm2",
                "tilestored [{sums} + {line} + 3072], tmm3",
                weights = inout(reg) weights.as_ptr() => _,
                stride = in(reg) stride * 2,
                x = inout(reg) x.as_ptr() => _,
                steps = inout(reg) x.len() => _,
                sums = in(reg) sums.as_mut_ptr(),
                line = in(reg) LINE_BYTES,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }

    /// Begins sums of sixteen outputs with four times 16 rows of inputs. They stay in the tiles until they are taken; any other
    /// product ends them.
    #[inline]
    pub fn begin_sums(&mut self) {
        // SAFETY: the tiles are set up, and nobody else on this thread uses them.
        unsafe {
            asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                options(nomem, nostack, preserves_flags),
            );
        }
    }

    /// Adds the products of one line of `weights [16, stride]`, of 32 inputs, with `x`.
    ///
    /// # Panics
    /// If the weights have no such line.
    #[inline]
    pub fn add_line(&mut self, weights: &[u16], line: usize, x: &[Square; 4]) {
        let stride = weights.len() / SIDE;
        assert!((line + 1) * INPUTS <= stride, "a line of the weights");
        // SAFETY: sixteen rows of weights have this line, as was checked. The tiles are set up, and nobody else on this
        // thread uses them.
        unsafe {
            asm!(
                "tileloadd tmm4, [{weights} + {stride}]",
                "tileloadd tmm5, [{x} + {line}]",
                "tileloadd tmm6, [{x} + {line} + 1024]",
                "tdpbf16ps tmm0, tmm4, tmm5",
                "tileloadd tmm7, [{x} + {line} + 2048]",
                "tdpbf16ps tmm1, tmm4, tmm6",
                "tileloadd tmm5, [{x} + {line} + 3072]",
                "tdpbf16ps tmm2, tmm4, tmm7",
                "tdpbf16ps tmm3, tmm4, tmm5",
                weights = in(reg) weights.as_ptr().add(line * INPUTS),
                stride = in(reg) stride * 2,
                x = in(reg) x.as_ptr(),
                line = in(reg) LINE_BYTES,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, readonly, preserves_flags),
            );
        }
    }

    /// Takes the sums `[output, row]` that were begun.
    #[inline]
    pub fn take_sums(&mut self, sums: &mut [Square; 4]) {
        // SAFETY: `sums` has four tiles. The tiles are set up, and nobody else on this thread uses them.
        unsafe {
            asm!(
                "tilestored [{sums} + {line}], tmm0",
                "tilestored [{sums} + {line} + 1024], tmm1",
                "tilestored [{sums} + {line} + 2048], tmm2",
                "tilestored [{sums} + {line} + 3072], tmm3",
                sums = in(reg) sums.as_mut_ptr(),
                line = in(reg) LINE_BYTES,
                options(nostack, preserves_flags),
            );
        }
    }

    /// The products of four times sixteen outputs with 16 rows of inputs.
    ///
    /// `weights` are `[16, inputs]` each, `x` as for [`Self::multiply`], and `sums` `[output, row]`.
    ///
    /// # Panics
    /// If the lengths do not fit each other.
    #[inline]
    pub fn multiply_by_four(&mut self, weights: [&[u16]; 4], x: &[Square], sums: &mut [Square; 4]) {
        check([weights[0], weights[1]], x);
        check([weights[2], weights[3]], x);
        // SAFETY: every row of the weights has a line for each square of `x`, as was checked; `sums` has four tiles. The
        // tiles are set up, and nobody else on this thread uses them.
        unsafe {
            asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "2:",
                "tileloadd tmm4, [{x} + {line}]",
                "tileloadd tmm5, [{first} + {stride}]",
                "tileloadd tmm6, [{second} + {stride}]",
                "tdpbf16ps tmm0, tmm5, tmm4",
                "tileloadd tmm7, [{third} + {stride}]",
                "tdpbf16ps tmm1, tmm6, tmm4",
                "tileloadd tmm5, [{fourth} + {stride}]",
                "tdpbf16ps tmm2, tmm7, tmm4",
                "tdpbf16ps tmm3, tmm5, tmm4",
                "add {first}, 64",
                "add {second}, 64",
                "add {third}, 64",
                "add {fourth}, 64",
                "add {x}, 1024",
                "dec {steps}",
                "jnz 2b",
                "tilestored [{sums} + {line}], tmm0",
                "tilestored [{sums} + {line} + 1024], tmm1",
                "tilestored [{sums} + {line} + 2048], tmm2",
                "tilestored [{sums} + {line} + 3072], tmm3",
                first = inout(reg) weights[0].as_ptr() => _,
                second = inout(reg) weights[1].as_ptr() => _,
                third = inout(reg) weights[2].as_ptr() => _,
                fourth = inout(reg) weights[3].as_ptr() => _,
                stride = in(reg) x.len() * LINE_BYTES,
                x = inout(reg) x.as_ptr() => _,
                steps = inout(reg) x.len() => _,
                sums = in(reg) sums.as_mut_ptr(),
                line = in(reg) LINE_BYTES,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }

    /// Squares of 64 columns of 32 rows, from `column` on: word `[pair, place]` is a column of two rows that follow each
    /// other. Places are, of each 32 columns, those of 0-3, 8-11, 16-19 and 24-27, and in the next square the others.
    ///
    /// `rows` are two times `[16, size]`.
    ///
    /// # Panics
    /// If the rows are too few or the columns beyond `size`.
    #[inline]
    pub fn weave(&self, rows: [&[u16]; 2], size: usize, column: usize, woven: &mut [Square; 4]) {
        assert!(column + 4 * SIDE <= size, "columns of a row");
        for half in rows {
            assert_eq!(half.len(), SIDE * size, "numbers of sixteen rows");
        }
        // SAFETY: processors with tiles have these, as was asked; lengths were checked.
        unsafe { woven::weave_to(rows, size, column, woven) };
    }

    /// Rows for columns.
    #[inline]
    pub fn transpose(&self, square: &Square, turned: &mut Square) {
        // SAFETY: processors with tiles have AVX-512, as was asked.
        unsafe { woven::transposed_to(square, turned) };
    }

    /// Rows for columns, of which the first `count` are taken at least.
    #[inline]
    pub fn transpose_first(&self, square: &Square, count: usize, turned: &mut Square) {
        if count > 4 {
            return self.transpose(square, turned);
        }
        // SAFETY: processors with tiles have AVX-512, as was asked.
        unsafe { woven::four_columns_to(square, turned) };
    }

    /// The 32 columns from `column` on of sixteen rows `[16, size]` as inputs: word `[pair, row]` is that pair of columns of
    /// that row.
    ///
    /// # Panics
    /// If the rows are too few or the columns beyond `size`.
    #[inline]
    pub fn turn(&self, rows: &[u16], size: usize, column: usize, turned: &mut Square) {
        assert!(column + INPUTS <= size, "columns of a row");
        assert_eq!(rows.len(), SIDE * size, "numbers of sixteen rows");
        // SAFETY: processors with tiles have AVX-512, as was asked; lengths were checked.
        unsafe { woven::turn_to(rows, size, column, turned) };
    }

    /// Numbers in bfloat16, ties to even; what is below the normal numbers becomes zero.
    ///
    /// # Panics
    /// If the lengths differ or are not whole vectors of sixteen.
    #[inline]
    pub fn narrow(&self, numbers: &[f32], halves: &mut [u16]) {
        assert_eq!(numbers.len(), halves.len(), "as many halves as numbers");
        let (numbers, halves) = (numbers.as_chunks::<SIDE>(), halves.as_chunks_mut::<SIDE>());
        assert!(numbers.1.is_empty(), "whole vectors");
        // SAFETY: processors with tiles have these, as was asked.
        unsafe { woven::narrow_to(numbers.0, halves.0) };
    }

    /// Sums of woven columns times `factor` in bfloat16, ties to even, columns in order: of each 32 columns, those of both
    /// squares that [`Self::weave`] makes.
    ///
    /// # Panics
    /// If there are not as many places as sums, or not pairs of sums.
    #[inline]
    pub fn narrow_woven(&self, sums: &[[f32; SIDE]], factor: f32, halves: &mut [u16]) {
        assert_eq!(sums.len() * SIDE, halves.len(), "as many halves as sums");
        let (sums, halves) = (sums.as_chunks::<2>(), halves.as_chunks_mut::<INPUTS>());
        assert!(sums.1.is_empty(), "pairs of sums");
        // SAFETY: processors with tiles have these, as was asked.
        unsafe { woven::narrow_woven_to(sums.0, factor, halves.0) };
    }

    /// Fetches numbers that are read soon into the second cache, and waits for nothing.
    #[inline]
    pub fn fetch(&self, numbers: &[u16]) {
        for at in (0..numbers.len()).step_by(INPUTS) {
            // SAFETY: to fetch ahead of use is no access.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(numbers.as_ptr().wrapping_add(at).cast()) };
        }
    }

    /// The first `count` rows of twice the sums `[row, output]` in fp32 of sixteen outputs and their biases, added, as bfloat16
    /// `[row, output]`, ties to even.
    ///
    /// # Panics
    /// If there are no so many rows.
    #[inline]
    pub fn round_rows(&self, sums: [&Square; 2], count: usize, biases: &[[f32; SIDE]; 2], lines: &mut Lines) {
        assert!(count <= SIDE, "rows of a square");
        // SAFETY: processors with tiles have these, as was asked.
        unsafe { woven::round_rows_to(sums, count, biases, lines) };
    }

    /// Twice the sums `[output, row]` in fp32 of sixteen outputs and their biases, added, as bfloat16 `[row, output]`, ties
    /// to even.
    #[inline]
    pub fn round(&self, sums: [&Square; 2], biases: &[[f32; SIDE]; 2], lines: &mut Lines) {
        // SAFETY: processors with tiles have these, as was asked.
        unsafe { woven::round_to(sums, biases, lines) };
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        if HOLDERS.replace(HOLDERS.get() - 1) == 1 {
            // SAFETY: the thread that set the tiles up gives them back.
            unsafe { asm!("tilerelease", options(nomem, nostack, preserves_flags)) };
        }
    }
}

/// From one of the places of what is fetched ahead to the next.
const fn place_bytes(x: &[Square]) -> usize {
    2 * SIDE / PLACES * LINE_BYTES * x.len()
}

/// The first, third and sixth place of what is fetched ahead, which may lie behind the end of `next`.
fn places(next: &[u16], x: &[Square]) -> [*const u8; 3] {
    [0, 3, 6].map(|place| next.as_ptr().cast::<u8>().wrapping_add(place * place_bytes(x)))
}

fn check(weights: [&[u16]; 2], x: &[Square]) {
    assert!(!x.is_empty(), "at least one square");
    for half in weights {
        assert_eq!(half.len(), SIDE * x.len() * INPUTS, "weights of sixteen outputs");
    }
}
