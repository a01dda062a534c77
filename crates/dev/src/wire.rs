//! The wire settings of `paceline-proto`, compiled here a second time from the same file.
//!
//! Code generation renders them for Python. It cannot depend on `paceline-proto`, which would not compile while the
//! generated code it includes is missing or broken.

include!("../../proto/src/settings.rs");
