//! The fuzz corpus as a plain test. Its seeds are the rule vectors' plans.

use std::path::PathBuf;

use serde_json::Value;

use crate::wire::{group_bytes, rank_bytes};

#[path = "../../../fuzz/src/worker_begin.rs"]
mod worker_begin;

fn folder(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn append(input: &mut Vec<u8>, part: &[u8]) {
    let length = u16::try_from(part.len()).expect("vector plans are small");
    input.extend_from_slice(&length.to_le_bytes());
    input.extend_from_slice(part);
}

#[test]
fn stored_inputs_are_refused_or_taken() {
    let corpus = folder("../fuzz/corpus/worker_begin");
    let mut count = 0;
    for entry in std::fs::read_dir(corpus).expect("the corpus is committed") {
        let input = std::fs::read(entry.expect("a readable folder").path()).expect("a readable file");
        worker_begin::run(&input);
        count += 1;
    }
    assert!(count > 0, "the corpus is empty");
}

#[test]
fn rule_vectors_are_seeds() {
    for entry in std::fs::read_dir(folder("../../tests/vectors/rules")).expect("the vectors are committed") {
        let path = entry.expect("a readable folder").path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("a readable file");
        let document: Value = serde_json::from_str(&text).expect("vectors are JSON");
        for (index, case) in document["cases"].as_array().expect("a list of cases").iter().enumerate() {
            let mut input = Vec::new();
            for step in case["steps"].as_array().expect("a list of steps") {
                append(&mut input, &group_bytes(&step["group"]));
                append(&mut input, &rank_bytes(&step["rank"]));
            }
            worker_begin::run(&input);
            for cut in 0..input.len() {
                worker_begin::run(&input[..cut]);
            }
            if std::env::var_os("UPDATE_VECTORS").is_some() {
                let stem = path.file_stem().expect("a file name").to_string_lossy().into_owned();
                let seed = folder("../fuzz/corpus/worker_begin").join(format!("{stem}_{index}"));
                std::fs::write(seed, &input).expect("the corpus folder is writable");
            }
        }
    }
}
