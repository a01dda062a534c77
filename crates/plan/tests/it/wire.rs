//! Decoded plans as JSON, and JSON as msgpack bodies: the wire format written out once more, by name and order, so
//! that a plan which no constructor would build can still be sent.

use serde::{Serialize, Serializer};
use serde_json::Value;

/// A msgpack value.
enum Item {
    Number(u64),
    Flag(bool),
    Bytes(Vec<u8>),
    List(Vec<Item>),
}

impl Serialize for Item {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Number(number) => serializer.serialize_u64(*number),
            Self::Flag(flag) => serializer.serialize_bool(*flag),
            Self::Bytes(bytes) => serializer.serialize_bytes(bytes),
            Self::List(items) => items.serialize(serializer),
        }
    }
}

/// How a field travels.
enum Kind {
    Number,
    Flag,
    /// `bin` of little-endian u32.
    Words,
    /// `bin` of bytes.
    Blob,
    /// A list of structs.
    Structs(&'static [(&'static str, Kind)]),
}

use Kind::{Blob, Flag, Number, Structs, Words};

const PASS: &[(&str, Kind)] = &[
    ("kind", Number),
    ("mode", Number),
    ("query_len", Number),
    ("rows_padded", Number),
    ("tokens_padded", Number),
    ("rows", Words),
    ("tokens", Words),
    ("dummy", Words),
];

const MASKS: &[(&str, Kind)] =
    &[("seats", Words), ("generations", Words), ("counts", Words), ("lengths", Words), ("words", Words)];

const GROUP: &[(&str, Kind)] = &[
    ("group", Number),
    ("epoch", Number),
    ("step", Number),
    ("depth", Number),
    ("k_verify", Number),
    ("k_draft", Number),
    ("dp_ranks", Words),
    ("passes", Structs(PASS)),
];

const RELEASE: &[(&str, Kind)] = &[("seat", Number), ("generation", Number)];

const ADMISSION: &[(&str, Kind)] = &[
    ("seat", Number),
    ("generation", Number),
    ("prompt_len", Number),
    ("computed", Number),
    ("adapter", Number),
    ("sampling", Blob),
    ("history", Flag),
];

const FEED: &[(&str, Kind)] = &[("seat", Number), ("start", Number), ("tokens", Words)];

const BLOCK_APPEND: &[(&str, Kind)] = &[("seat", Number), ("kv_group", Number), ("blocks", Words)];

const RANK: &[(&str, Kind)] = &[
    ("dp_rank", Number),
    ("releases", Structs(RELEASE)),
    ("admissions", Structs(ADMISSION)),
    ("feeds", Structs(FEED)),
    ("block_appends", Structs(BLOCK_APPEND)),
    ("copy_sources", Words),
    ("copy_destinations", Words),
    ("block_zeroings", Words),
    ("decode_rows", Number),
    ("row_seats", Words),
    ("row_generations", Words),
    ("row_starts", Words),
    ("row_query_lens", Words),
    ("row_drafts", Words),
    ("row_blocks", Words),
    ("row_logits", Words),
    ("row_masks", Words),
    ("masks", Blob),
    ("history", Structs(FEED)),
    ("kv_imports", Structs(BLOCK_APPEND)),
    ("kv_exports", Structs(BLOCK_APPEND)),
    ("stage", Number),
];

fn numbers(value: &Value) -> Vec<u64> {
    value.as_array().into_iter().flatten().map(|number| number.as_u64().expect("vectors hold whole numbers")).collect()
}

fn item(value: &Value, kind: &Kind) -> Item {
    match kind {
        Number => Item::Number(value.as_u64().unwrap_or(0)),
        Flag => Item::Flag(value.as_bool().unwrap_or(false)),
        Words => Item::Bytes(numbers(value).into_iter().flat_map(|word| (word as u32).to_le_bytes()).collect()),
        Blob => Item::Bytes(numbers(value).into_iter().map(|byte| byte as u8).collect()),
        Structs(fields) => {
            let items = value.as_array().into_iter().flatten();
            Item::List(items.map(|entry| structure(entry, fields)).collect())
        }
    }
}

/// A field that the JSON lacks is empty or 0.
fn structure(value: &Value, fields: &[(&str, Kind)]) -> Item {
    let known: Vec<&str> = fields.iter().map(|(name, _)| *name).collect();
    for name in value.as_object().expect("a struct is an object").keys() {
        assert!(known.contains(&name.as_str()), "no field named {name}");
    }
    Item::List(fields.iter().map(|(name, kind)| item(&value[name], kind)).collect())
}

fn pack(value: &Value, fields: &[(&str, Kind)]) -> Vec<u8> {
    rmp_serde::to_vec(&structure(value, fields)).expect("items always encode")
}

/// The msgpack body of a group part.
pub(crate) fn group_bytes(value: &Value) -> Vec<u8> {
    pack(value, GROUP)
}

/// The msgpack body of a step's masks.
pub(crate) fn masks_bytes(value: &Value) -> Vec<u8> {
    pack(value, MASKS)
}

/// The msgpack body of a rank part.
pub(crate) fn rank_bytes(value: &Value) -> Vec<u8> {
    pack(value, RANK)
}
