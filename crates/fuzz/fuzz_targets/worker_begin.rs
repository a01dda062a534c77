//! Any bytes at a worker: refused or taken, never a panic, never an array past its end.

#![no_main]

#[path = "../src/worker_begin.rs"]
mod worker_begin;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| worker_begin::run(bytes));
