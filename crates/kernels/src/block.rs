//! The two halves of a decoder layer, each in one call: what comes between two sums over the workers of a rank.
//!
//! Both do what their parts do one after another, bit for bit; a caller pays for one call instead of four.

use std::time::{Duration, Instant};

use crate::linear::outputs_of;
use crate::{Attention, HeadNorm, Part, Rotation, Shape, gate, linear, rms_norm, rotate};

/// Numbers of a line of the cache.
const LINE: usize = 32;

/// The norm before a half of a layer.
#[derive(Clone, Copy, Debug)]
pub struct Norm<'a> {
    /// Factors, one for each column.
    pub weight: &'a [u16],
    /// Keeps the root from 0.
    pub epsilon: f32,
}

/// A weight `[outputs, inputs]` with its bias, in bfloat16.
#[derive(Clone, Copy, Debug)]
pub struct Weight<'a> {
    /// The matrix, in parts whose outputs follow each other.
    pub parts: &'a [Part<'a>],
    /// One number for each output.
    pub bias: Option<&'a [u16]>,
    /// Inputs of each output.
    pub inputs: usize,
}

impl Weight<'_> {
    /// Outputs of a row.
    pub fn outputs(&self) -> usize {
        outputs_of(self.parts, self.inputs)
    }

    fn multiply(&self, x: &[u16], product: &mut [u16]) {
        linear(x, self.parts, self.bias, self.inputs, product);
    }
}

/// A layer's part of the cache: pools `[kv heads, slots, size]`.
#[derive(Debug)]
pub struct Cache<'a> {
    /// Keys.
    pub keys: &'a mut [u16],
    /// Values.
    pub values: &'a mut [u16],
}

/// What a layer attends with.
#[derive(Clone, Copy, Debug)]
pub struct SelfAttention<'a> {
    /// Before all.
    pub norm: Norm<'a>,
    /// Queries, keys and values in one product.
    pub qkv: Weight<'a>,
    /// Of queries and keys.
    pub rotation: Rotation<'a, u16>,
    /// Of each query and key, before it is rotated.
    pub head_norm: Option<HeadNorm<'a, u16>>,
    /// Heads and their sizes.
    pub shape: Shape,
    /// A query sees so many keys, all if 0.
    pub window: usize,
    /// Behind attention.
    pub output: Weight<'a>,
}

/// A gated feed-forward block.
#[derive(Clone, Copy, Debug)]
pub struct GatedMlp<'a> {
    /// Before all.
    pub norm: Norm<'a>,
    /// Gates, then what they gate.
    pub gate_up: Weight<'a>,
    /// Behind the gates.
    pub down: Weight<'a>,
}

/// Memory that is used again, and where the time went.
#[derive(Debug, Default)]
pub struct Scratch {
    normed: Vec<u16>,
    wide: Vec<u16>,
    inner: Vec<u16>,
    /// Time so far.
    pub spent: Spent,
}

/// Time by kind of work.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spent {
    /// Matrix products.
    pub products: Duration,
    /// Attention, its writing of keys and values included.
    pub attention: Duration,
    /// Norms of the residual stream.
    pub norms: Duration,
    /// Rotation with the norms of heads.
    pub rotation: Duration,
    /// Gates.
    pub activation: Duration,
}

/// Books time since the last call.
struct Watch(Instant);

impl Watch {
    fn lap(&mut self, spent: &mut Duration) {
        let now = Instant::now();
        *spent += now - self.0;
        self.0 = now;
    }
}

impl SelfAttention<'_> {
    /// Adds `added` to the residual stream `x [tokens, width]` in place, and gives what attention makes of its norm.
    ///
    /// # Panics
    /// If lengths do not fit each other or the rows that `attention` was told.
    pub fn apply(
        &self,
        x: &mut [u16],
        added: Option<&[u16]>,
        attention: &mut Attention,
        cache: Cache<'_>,
        scratch: &mut Scratch,
        output: &mut [u16],
    ) {
        let Scratch { normed, wide, inner, spent } = scratch;
        let Cache { keys, values } = cache;
        let Self { shape, qkv, .. } = *self;
        assert_eq!(shape.key_size, shape.value_size, "columns of a key and of a value");
        let mut watch = Watch(Instant::now());
        let tokens = x.len() / qkv.inputs;
        let normed = self.norm.apply(x, added, normed);
        watch.lap(&mut spent.norms);
        let row_width = qkv.outputs();
        let heads = resized(wide, tokens * row_width);
        qkv.multiply(normed, heads);
        watch.lap(&mut spent.products);
        let rotated = shape.head_count + shape.kv_head_count;
        rotate(heads, row_width, rotated, shape.key_size, self.rotation, self.head_norm);
        watch.lap(&mut spent.rotation);
        let attended = resized(inner, tokens * self.output.inputs);
        let scale = (shape.key_size as f32).sqrt().recip();
        attention.attend_heads(shape, heads, keys, values, scale, self.window, usize::MAX, attended);
        watch.lap(&mut spent.attention);
        self.output.multiply(attended, output);
        watch.lap(&mut spent.products);
    }
}

impl GatedMlp<'_> {
    /// Adds `added` to the residual stream `x [tokens, width]` in place, and gives what the block makes of its norm.
    ///
    /// # Panics
    /// If lengths do not fit each other.
    pub fn apply(&self, x: &mut [u16], added: Option<&[u16]>, scratch: &mut Scratch, output: &mut [u16]) {
        let Scratch { normed, wide, inner, spent } = scratch;
        let mut watch = Watch(Instant::now());
        let tokens = x.len() / self.gate_up.inputs;
        let normed = self.norm.apply(x, added, normed);
        watch.lap(&mut spent.norms);
        let gate_up = resized(wide, tokens * self.gate_up.outputs());
        self.gate_up.multiply(normed, gate_up);
        watch.lap(&mut spent.products);
        let gated = resized(inner, tokens * self.down.inputs);
        gate(gate_up, self.down.inputs, gated);
        watch.lap(&mut spent.activation);
        self.down.multiply(gated, output);
        watch.lap(&mut spent.products);
    }
}

impl Norm<'_> {
    fn apply<'a>(&self, x: &mut [u16], added: Option<&[u16]>, memory: &'a mut Vec<u16>) -> &'a [u16] {
        let normed = resized(memory, x.len());
        rms_norm(x, added, self.weight, self.epsilon, normed);
        normed
    }
}

/// Room for `count` numbers, from a line of the cache on; what was there before may be there still.
fn resized(memory: &mut Vec<u16>, count: usize) -> &mut [u16] {
    if memory.len() < count + LINE {
        memory.resize(count + LINE, 0);
    }
    let start = memory.as_ptr().align_offset(LINE * size_of::<u16>()).min(LINE);
    &mut memory[start..start + count]
}
