//! The products of one panel of weights and a few rows, for each set of instructions that this machine may have.
//!
//! All of them give the same sums: of products of two bytes, in 32 bits that they fit.

#[cfg(target_arch = "x86_64")]
use pulp::x86::{V3, V4};

use super::Line;

/// Outputs of a panel.
pub(super) const PANEL: usize = 32;
/// Rows that may be multiplied side by side; a tile is filled up to one of these.
pub(super) const WIDTHS: [usize; 5] = [1, 2, 4, 8, 12];
/// Panels that may be read side by side; the processor fetches each ahead.
pub(super) const STREAMS_MAX: usize = 4;

/// Two inputs that follow each other, of one row.
pub(super) type Pair = [i16; 2];

#[cfg(target_arch = "x86_64")]
pulp::simd_type! {
    /// AVX512 with products of 16-bit pairs that are added in one instruction. It has no function of its own: compiled
    /// for it, a product of pairs and the addition behind it are one instruction.
    pub(super) struct Vnni {
        sse: "sse",
        sse2: "sse2",
        fxsr: "fxsr",
        sse3: "sse3",
        ssse3: "ssse3",
        sse4_1: "sse4.1",
        sse4_2: "sse4.2",
        popcnt: "popcnt",
        avx: "avx",
        avx2: "avx2",
        bmi1: "bmi1",
        bmi2: "bmi2",
        fma: "fma",
        lzcnt: "lzcnt",
        avx512f: "avx512f",
        avx512bw: "avx512bw",
        avx512cd: "avx512cd",
        avx512dq: "avx512dq",
        avx512vl: "avx512vl",
        avx512vnni: "avx512vnni",
    }
}

/// A set of instructions that this machine has.
#[derive(Clone, Copy, Debug)]
pub(super) enum Instructions {
    /// AVX512 with VNNI.
    #[cfg(target_arch = "x86_64")]
    Vnni(Vnni, V4),
    /// AVX512.
    #[cfg(target_arch = "x86_64")]
    Avx512(V4),
    /// AVX2.
    #[cfg(target_arch = "x86_64")]
    Avx2(V3),
    /// What the compiler makes of plain loops.
    Plain,
}

/// What is to be done with the products of a machine.
pub(super) trait Work {
    /// Does it.
    fn run<M: Multiply>(self, multiplier: M);
}

impl Instructions {
    /// All that this machine has, the best first.
    #[cfg(test)]
    pub(super) fn all() -> Vec<Self> {
        #[cfg(target_arch = "x86_64")]
        let special = [
            Vnni::try_new().zip(V4::try_new()).map(|(vnni, v4)| Self::Vnni(vnni, v4)),
            V4::try_new().map(Self::Avx512),
            V3::try_new().map(Self::Avx2),
        ];
        #[cfg(not(target_arch = "x86_64"))]
        let special: [Option<Self>; 0] = [];
        special.into_iter().flatten().chain([Self::Plain]).collect()
    }

    /// The best that this machine has.
    pub(super) fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            if let (Some(vnni), Some(v4)) = (Vnni::try_new(), V4::try_new()) {
                return Self::Vnni(vnni, v4);
            }
            if let Some(v4) = V4::try_new() {
                return Self::Avx512(v4);
            }
            if let Some(v3) = V3::try_new() {
                return Self::Avx2(v3);
            }
        }
        Self::Plain
    }

    /// Rows of the widest tile.
    pub(super) fn rows_max(self) -> usize {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Vnni(..) | Self::Avx512(_) => V4::ROWS_MAX,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(_) => V3::ROWS_MAX,
            Self::Plain => Plain::ROWS_MAX,
        }
    }

    /// Does some work with these instructions.
    pub(super) fn run(self, work: impl Work) {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Vnni(vnni, v4) => vnni.vectorize(
                #[inline(always)]
                || work.run(v4),
            ),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(v4) => v4.vectorize(
                #[inline(always)]
                || work.run(v4),
            ),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(v3) => v3.vectorize(
                #[inline(always)]
                || work.run(v3),
            ),
            Self::Plain => work.run(Plain),
        }
    }
}

/// Products of bytes, as a set of instructions has them.
pub(super) trait Multiply: Copy {
    /// Rows that fit the registers side by side, one of [`WIDTHS`].
    const ROWS_MAX: usize;
    /// A line of weights, widened.
    type Weights: Copy;
    /// The sum of each output of a panel.
    type Sums: Copy;

    /// Sums of nothing.
    fn zero(self) -> Self::Sums;

    /// Widens a line.
    fn widen(self, line: &Line) -> Self::Weights;

    /// Adds to each output's sum its two weights times the two inputs.
    fn add(self, sums: Self::Sums, weights: Self::Weights, pair: Pair) -> Self::Sums;

    /// The sums as numbers.
    fn numbers(self, sums: Self::Sums) -> [i32; PANEL];

    /// Panels that are read side by side where all rows are in one tile of `width`: as many as registers hold sums of.
    #[inline(always)]
    fn streams(self, width: usize) -> usize {
        match width {
            1 | 2 if Self::ROWS_MAX > 4 => STREAMS_MAX,
            4 if Self::ROWS_MAX > 4 => STREAMS_MAX / 2,
            _ => 1,
        }
    }

    /// Hands to `done` the index of each of some panels and of each row of a tile of `width` rows, and their sums.
    #[inline(always)]
    fn tile(self, panels: &[&[Line]], pairs: &[Pair], width: usize, done: impl FnMut(usize, usize, &[i32; PANEL])) {
        match (panels.len(), width) {
            (4, 1) => tile::<Self, 4, 1>(self, panels, pairs, done),
            (4, 2) => tile::<Self, 4, 2>(self, panels, pairs, done),
            (2, 4) => tile::<Self, 2, 4>(self, panels, pairs, done),
            (1, 1) => tile::<Self, 1, 1>(self, panels, pairs, done),
            (1, 2) => tile::<Self, 1, 2>(self, panels, pairs, done),
            (1, 4) => tile::<Self, 1, 4>(self, panels, pairs, done),
            (1, 8) => tile::<Self, 1, 8>(self, panels, pairs, done),
            (1, 12) => tile::<Self, 1, 12>(self, panels, pairs, done),
            (panels, width) => unreachable!("{panels} panels side by side for {width} rows"),
        }
    }
}

#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "adapters over vectors are not inlined into code for wider vectors")]
fn tile<M: Multiply, const PANELS: usize, const ROWS: usize>(
    multiplier: M,
    panels: &[&[Line]],
    pairs: &[Pair],
    mut done: impl FnMut(usize, usize, &[i32; PANEL]),
) {
    if ROWS > M::ROWS_MAX {
        return;
    }
    let pairs = pairs.as_chunks::<ROWS>().0;
    let mut streams = [panels[0]; PANELS];
    for panel in 0..PANELS {
        streams[panel] = &panels[panel][..pairs.len()];
    }
    let mut sums = [[multiplier.zero(); ROWS]; PANELS];
    for index in 0..pairs.len() {
        for panel in 0..PANELS {
            let weights = multiplier.widen(&streams[panel][index]);
            for row in 0..ROWS {
                sums[panel][row] = multiplier.add(sums[panel][row], weights, pairs[index][row]);
            }
        }
    }
    for panel in 0..PANELS {
        for row in 0..ROWS {
            done(panel, row, &multiplier.numbers(sums[panel][row]));
        }
    }
}

#[cfg(target_arch = "x86_64")]
impl Multiply for V4 {
    const ROWS_MAX: usize = 12;
    type Weights = [pulp::i16x32; 2];
    type Sums = [pulp::i32x16; 2];

    #[inline(always)]
    fn zero(self) -> Self::Sums {
        [self.splat_i32x16(0); 2]
    }

    #[inline(always)]
    fn widen(self, line: &Line) -> Self::Weights {
        let [first, second]: [pulp::i8x32; 2] = pulp::cast(line.0);
        [self.convert_i8x32_to_i16x32(first), self.convert_i8x32_to_i16x32(second)]
    }

    #[inline(always)]
    fn add(self, sums: Self::Sums, weights: Self::Weights, pair: Pair) -> Self::Sums {
        let inputs: pulp::i16x32 = pulp::cast(self.splat_i32x16(pulp::cast(pair)));
        let add = |sum, weights| {
            let products = self.multiply_wrapping_add_adjacent_i16x32(weights, inputs);
            self.wrapping_add_i32x16(sum, products)
        };
        [add(sums[0], weights[0]), add(sums[1], weights[1])]
    }

    #[inline(always)]
    fn numbers(self, sums: Self::Sums) -> [i32; PANEL] {
        pulp::cast(sums)
    }
}

#[cfg(target_arch = "x86_64")]
impl Multiply for V3 {
    const ROWS_MAX: usize = 2;
    type Weights = [pulp::i16x16; 4];
    type Sums = [pulp::i32x8; 4];

    #[inline(always)]
    fn zero(self) -> Self::Sums {
        [self.splat_i32x8(0); 4]
    }

    #[inline(always)]
    fn widen(self, line: &Line) -> Self::Weights {
        let [first, second, third, fourth]: [pulp::i8x16; 4] = pulp::cast(line.0);
        let widen = |quarter| self.convert_i8x16_to_i16x16(quarter);
        [widen(first), widen(second), widen(third), widen(fourth)]
    }

    #[inline(always)]
    fn add(self, sums: Self::Sums, weights: Self::Weights, pair: Pair) -> Self::Sums {
        let inputs: pulp::i16x16 = pulp::cast(self.splat_i32x8(pulp::cast(pair)));
        let add = |index: usize| {
            let products = self.multiply_wrapping_add_adjacent_i16x16(weights[index], inputs);
            self.wrapping_add_i32x8(sums[index], products)
        };
        [add(0), add(1), add(2), add(3)]
    }

    #[inline(always)]
    fn numbers(self, sums: Self::Sums) -> [i32; PANEL] {
        pulp::cast(sums)
    }
}

/// Plain loops.
#[derive(Clone, Copy)]
struct Plain;

impl Multiply for Plain {
    const ROWS_MAX: usize = 2;
    type Weights = [[i8; 2]; PANEL];
    type Sums = [i32; PANEL];

    #[inline(always)]
    fn zero(self) -> Self::Sums {
        [0; PANEL]
    }

    #[inline(always)]
    fn widen(self, line: &Line) -> Self::Weights {
        line.0
    }

    #[inline(always)]
    fn add(self, mut sums: Self::Sums, weights: Self::Weights, pair: Pair) -> Self::Sums {
        for (sum, weights) in sums.iter_mut().zip(weights) {
            let product = |index: usize| i32::from(weights[index]) * i32::from(pair[index]);
            // Sums of so few products of bytes fit.
            *sum = sum.wrapping_add(product(0) + product(1));
        }
        sums
    }

    #[inline(always)]
    fn numbers(self, sums: Self::Sums) -> [i32; PANEL] {
        sums
    }
}
