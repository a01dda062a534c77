//! Rust messages, clients and servers, the descriptor set for reflection, and the protocol hash.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use prost::Message;

use super::Files;
use super::schema::Schema;

/// Where generated Rust lies.
pub(super) const DIRECTORY: &str = "crates/proto/src/generated";

/// Generates all Rust files; the same schema gives the same bytes.
pub(super) fn generate(schema: &Schema) -> Result<Files> {
    let scratch = Scratch::new("rust")?;
    tonic_prost_build::configure()
        .bytes(".")
        .emit_rerun_if_changed(false)
        .out_dir(&scratch.path)
        .compile_fds(schema.commented.clone())
        .context("generating Rust")?;
    let mut files = Files::new();
    for entry in fs::read_dir(&scratch.path)? {
        let entry = entry?;
        files.insert(Path::new(DIRECTORY).join(entry.file_name()), fs::read(entry.path())?);
    }
    files.insert(Path::new(DIRECTORY).join("descriptor.bin"), schema.bare.encode_to_vec());
    let hash = format!("\"{}\"\n", schema.protocol_hash());
    files.insert(Path::new(DIRECTORY).join("protocol_hash.in"), hash.into_bytes());
    Ok(files)
}

/// A folder of this process that is removed when dropped.
pub(super) struct Scratch {
    pub(super) path: PathBuf,
}

impl Scratch {
    /// An empty folder; `purpose` keeps two of one process apart, the counter two of one purpose.
    pub(super) fn new(purpose: &str) -> Result<Self> {
        use std::sync::atomic::{AtomicU32, Ordering};
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let name = format!("paceline-dev-{purpose}-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).with_context(|| format!("creating {}", path.display()))?;
        Ok(Self { path })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A folder left behind in the temporary directory harms nobody; there is no one to tell here.
        let _ = fs::remove_dir_all(&self.path);
    }
}
