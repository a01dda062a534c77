//! The rules of this crate, run on this repository.

use paceline_dev::{codegen, dependencies, purity, repository_root, tidy};

fn assert_none(findings: &[String]) {
    assert!(findings.is_empty(), "{} findings:\n{}", findings.len(), findings.join("\n"));
}

#[test]
fn generated_code_is_current() {
    assert_none(&codegen::check(&repository_root()).expect("the schema compiles"));
}

#[test]
fn crates_depend_downward_only() {
    assert_none(&dependencies::violations(&repository_root()).expect("cargo metadata works"));
}

#[test]
fn pure_crates_are_pure() {
    assert_none(&purity::violations(&repository_root()).expect("sources are readable"));
}

#[test]
fn files_are_tidy() {
    assert_none(&tidy::violations(&repository_root()).expect("git lists the files"));
}
