//! The gRPC protocol: generated messages, clients and servers, and the wire settings both ends share.
//!
//! The code in `generated/` comes from `proto/` by `paceline-dev codegen` and is committed, so that neither a build nor
//! an installation needs `protoc`; a test keeps it current. This crate opens no socket and holds no logic.

mod convert;
pub mod wire;

/// Messages, clients and servers of package `paceline.v1`.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic, reason = "generated code")]
pub mod v1 {
    include!("generated/paceline.v1.rs");
}

/// The encoded `FileDescriptorSet` of all schemas, for server reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!("generated/descriptor.bin");

/// Hash of the worker protocol's schema. A worker that joins with another value is refused (rule 14).
pub const PROTOCOL_HASH: &str = include!("generated/protocol_hash.in");
