//! Machines without tiles.

use crate::{CompressedRows, CompressedTile, Lines, SIDE, Square};

/// Never made here.
#[derive(Debug)]
pub enum Tiles {}

impl Tiles {
    /// Nothing.
    pub const fn new() -> Option<Self> {
        None
    }

    /// See the machines that have tiles.
    pub fn multiply(&mut self, _weights: [&[u16]; 2], _next: &[u16], _x: &[Square], _sums: &mut [Square]) {
        match *self {}
    }

    /// See the machines that have tiles.
    pub fn multiply_two(
        &mut self,
        _weights: [&[u16]; 2],
        _next: Option<&[u16]>,
        _x: [&[Square]; 2],
        _sums: &mut [Square; 4],
    ) {
        match *self {}
    }

    /// See the machines that have tiles.
    pub fn multiply_compressed<const ROWS: usize>(
        &mut self,
        _weights: CompressedRows<'_>,
        _next: &[[CompressedTile; 2]],
        _x: [&[Square]; ROWS],
        _expanded: &mut [Square],
        _sums: &mut [Square; 4],
    ) {
        match *self {}
    }

    /// See the machines that have tiles.
    pub fn multiply_expanded<const ROWS: usize>(
        &mut self,
        _weights: &[Square],
        _x: [&[Square]; ROWS],
        _sums: &mut [Square; 4],
    ) {
        match *self {}
    }

    /// See the machines that have tiles.
    pub fn transpose(&self, _square: &Square, _turned: &mut Square) {
        match *self {}
    }

    /// See the machines that have tiles.
    pub fn round(&self, _sums: [&Square; 2], _biases: &[[f32; SIDE]; 2], _lines: &mut Lines) {
        match *self {}
    }

    /// See the machines that have tiles.
    pub fn round_rows(&self, _sums: [&Square; 2], _count: usize, _biases: &[[f32; SIDE]; 2], _lines: &mut Lines) {
        match *self {}
    }

    /// See the machines that have tiles.
    pub fn multiply_four(&mut self, _weights: &[u16], _x: &[[Square; 4]], _sums: &mut [Square; 4]) {
        match *self {}
    }

    /// See the machines that have tiles.
    pub fn begin_sums(&mut self) {
        match *self {}
    }

    /// See the machines that have tiles.
    pub fn add_line(&mut self, _weights: &[u16], _line: usize, _x: &[Square; 4]) {
        match *self {}
    }

    /// See the machines that have tiles.
    pub fn take_sums(&mut self, _sums: &mut [Square; 4]) {
        match *self {}
    }

    /// See the machines that have tiles.
    pub fn multiply_by_four(&mut self, _weights: [&[u16]; 4], _x: &[Square], _sums: &mut [Square; 4]) {
        match *self {}
    }

    /// See the machines that have tiles.
    pub fn weave(&self, _rows: [&[u16]; 2], _size: usize, _column: usize, _woven: &mut [Square; 4]) {
        match *self {}
    }

    /// See the machines that have tiles.
    pub fn turn(&self, _rows: &[u16], _size: usize, _column: usize, _turned: &mut Square) {
        match *self {}
    }

    /// See the machines that have tiles.
    pub fn narrow(&self, _numbers: &[f32], _halves: &mut [u16]) {
        match *self {}
    }

    /// See the machines that have tiles.
    pub fn narrow_woven(&self, _sums: &[[f32; SIDE]], _factor: f32, _halves: &mut [u16]) {
        match *self {}
    }

    /// See the machines that have tiles.
    pub fn transpose_first(&self, _square: &Square, _count: usize, _turned: &mut Square) {
        match *self {}
    }

    /// See the machines that have tiles.
    pub fn fetch(&self, _numbers: &[u16]) {
        match *self {}
    }

    /// See the machines that have tiles.
    pub fn multiply_beside(
        &mut self,
        _weights: [&[u16]; 2],
        _x: [&[Square]; 2],
        _sums: &mut [Square; 4],
        _beside: impl FnMut(usize),
    ) {
        match *self {}
    }

    /// Nothing.
    pub fn fetch_line(_numbers: &[u16], _line: usize) {}

    /// Nothing.
    pub fn fetch_to_write(_numbers: &mut [u16]) {}

    /// See the machines that have tiles.
    pub fn round_into(&self, _sums: [&Square; 2], _biases: &[f32; 2 * SIDE], _rows: &mut [&mut [u16]], _first: usize) {
        match *self {}
    }
}

/// Never made here.
#[derive(Clone, Copy, Debug)]
pub enum Vectors {}

impl Vectors {
    /// Nothing.
    pub const fn new() -> Option<Self> {
        None
    }

    /// See the machines that have vectors of bfloat16.
    pub fn gate(self, _gates: &[u16], _ups: &[u16], _product: &mut [u16]) {
        match self {}
    }

    /// See the machines that have vectors of bfloat16.
    pub fn add(self, _x: &mut [u16], _added: Option<&[u16]>) -> f32 {
        match self {}
    }

    /// See the machines that have vectors of bfloat16.
    pub fn scale(self, _x: &[u16], _factor: f32, _weight: &[u16], _product: &mut [u16]) {
        match self {}
    }
}
