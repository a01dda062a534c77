//! The compiled `.proto` files and their hashes.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use prost::Message;
use prost_types::{FileDescriptorProto, FileDescriptorSet};

/// The file both ends of the worker protocol must agree on.
const WORKER_FILE: &str = "paceline/v1/worker.proto";

/// All schemas of the repository.
pub(super) struct Schema {
    /// With comments, for code generation.
    pub(super) commented: FileDescriptorSet,
    /// Without comments and with imports, for reflection and for hashes.
    pub(super) bare: FileDescriptorSet,
    /// Names of our own files, without imports, in order.
    pub(super) names: Vec<String>,
}

impl Schema {
    /// Compiles every file below `proto/`.
    pub(super) fn compile(root: &Path) -> Result<Self> {
        let include = root.join("proto");
        let names = proto_files(&include)?;
        ensure!(!names.is_empty(), "no .proto file below {}", include.display());
        let compile = |source_info: bool| -> Result<FileDescriptorSet> {
            let mut compiler = protox::Compiler::new([&include])?;
            compiler.include_imports(true).include_source_info(source_info);
            compiler.open_files(names.iter().map(|name| include.join(name)))?;
            Ok(compiler.file_descriptor_set())
        };
        Ok(Self { commented: compile(true)?, bare: compile(false)?, names })
    }

    /// The descriptor of one file, as Python embeds it: without comments and without JSON names.
    pub(super) fn descriptor(&self, name: &str) -> FileDescriptorProto {
        let file = self.bare.file.iter().find(|file| file.name() == name);
        without_derived(file.expect("every own file is in the set").clone())
    }

    /// Hash of one file's content; comments and formatting do not change it.
    pub(super) fn file_hash(&self, name: &str) -> String {
        hash(&self.descriptor(name).encode_to_vec())
    }

    /// What a worker and the daemon compare when they meet.
    pub(super) fn protocol_hash(&self) -> String {
        self.file_hash(WORKER_FILE)
    }
}

/// FNV-1a 64 in hexadecimal. It guards against mistakes, not against attackers.
pub(super) fn hash(bytes: &[u8]) -> String {
    let value = bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |state, byte| (state ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3));
    format!("{value:016x}")
}

/// Drops what compilers may or may not fill in: comments, and JSON names that follow from the field's name.
pub(super) fn without_derived(mut file: FileDescriptorProto) -> FileDescriptorProto {
    file.source_code_info = None;
    let mut messages: Vec<_> = file.message_type.iter_mut().collect();
    while let Some(message) = messages.pop() {
        for field in message.field.iter_mut().chain(&mut message.extension) {
            field.json_name = None;
        }
        messages.extend(&mut message.nested_type);
    }
    file
}

/// Paths of all `.proto` files from the include folder, with forward slashes, sorted.
fn proto_files(include: &Path) -> Result<Vec<String>> {
    let mut folders = vec![PathBuf::new()];
    let mut names = Vec::new();
    while let Some(folder) = folders.pop() {
        let path = include.join(&folder);
        for entry in fs::read_dir(&path).with_context(|| format!("reading {}", path.display()))? {
            let entry = entry?;
            let relative = folder.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                folders.push(relative);
            } else if relative.extension().is_some_and(|extension| extension == "proto") {
                names.push(relative.to_string_lossy().replace('\\', "/"));
            }
        }
    }
    names.sort();
    Ok(names)
}
