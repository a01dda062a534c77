//! Log-probabilities in the two shapes OpenAI has for them.

use paceline_text::Tokenizer;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::generate::{PromptReport, TokenPiece};

/// JSON has no infinity; this is what clients know for "impossible".
const LOGPROB_MIN: f32 = -9_999.0;

fn finite(logprob: f32) -> f32 {
    logprob.max(LOGPROB_MIN)
}

/// Of `/v1/completions`: parallel arrays.
#[derive(Debug, Default, Serialize)]
pub(crate) struct CompletionLogprobs {
    text_offset: Vec<usize>,
    /// The first token of an echoed prompt has none.
    token_logprobs: Vec<Option<f32>>,
    tokens: Vec<String>,
    /// The token itself and the likeliest ones in its place, by text.
    top_logprobs: Vec<Option<Map<String, Value>>>,
}

/// How tokens are written in log-probabilities.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TokenNames<'a> {
    pub(crate) tokenizer: &'a Tokenizer,
    /// `token_id:17` in place of text.
    pub(crate) as_ids: bool,
    /// Likeliest tokens reported with each.
    pub(crate) top_count: usize,
}

impl TokenNames<'_> {
    fn piece(&self, piece: &TokenPiece) -> String {
        if self.as_ids { Self::id(piece.token_id) } else { piece.text.clone() }
    }

    fn token(&self, token_id: u32) -> String {
        if self.as_ids { Self::id(token_id) } else { self.tokenizer.token_text(token_id) }
    }

    fn id(token_id: u32) -> String {
        format!("token_id:{token_id}")
    }
}

impl CompletionLogprobs {
    pub(crate) fn new(pieces: &[TokenPiece], names: TokenNames<'_>) -> Self {
        let mut logprobs = Self::default();
        for piece in pieces {
            logprobs.text_offset.push(piece.text_offset);
            logprobs.token_logprobs.push(piece.logprob.map(finite));
            logprobs.tokens.push(names.piece(piece));
            let top = piece.logprob.map(|logprob| {
                let mut top = Map::new();
                top.insert(names.piece(piece), Value::from(finite(logprob)));
                for (token_id, logprob) in piece.top.iter().take(names.top_count) {
                    if *token_id != piece.token_id {
                        // Two tokens may read the same; the likelier one keeps the name.
                        top.entry(names.token(*token_id)).or_insert_with(|| Value::from(finite(*logprob)));
                    }
                }
                top
            });
            logprobs.top_logprobs.push(top);
        }
        logprobs
    }
}

/// Of `prompt_logprobs`: for each token of the prompt, null for the first, an entry for itself and the likeliest ones in
/// its place, by id.
pub(crate) fn prompt_logprobs(report: &PromptReport, names: TokenNames<'_>) -> Value {
    let entry = |token_id: u32, logprob: f32, rank: Option<usize>| {
        let shown = json!({
            "logprob": finite(logprob),
            "rank": rank,
            "decoded_token": names.tokenizer.token_text(token_id),
        });
        (token_id.to_string(), shown)
    };
    let mut entries = vec![Value::Null];
    for (token_id, found) in report.token_ids.iter().skip(1).zip(&report.logprobs) {
        let rank = found.top.iter().position(|(likely, _)| likely == token_id).map(|place| place + 1);
        let top = found.top.iter().take(names.top_count).zip(1..);
        let likeliest = top.map(|((likely, logprob), rank)| entry(*likely, *logprob, Some(rank)));
        let all: Map<String, Value> = std::iter::once(entry(*token_id, found.sampled, rank)).chain(likeliest).collect();
        entries.push(Value::Object(all));
    }
    Value::Array(entries)
}

/// Of `/v1/chat/completions`: one object per token.
#[derive(Debug, Default, Serialize)]
pub(crate) struct ChatLogprobs {
    content: Vec<ChatToken>,
}

#[derive(Debug, Serialize)]
struct ChatToken {
    #[serde(flatten)]
    token: ChatTop,
    top_logprobs: Vec<ChatTop>,
}

#[derive(Debug, Serialize)]
struct ChatTop {
    token: String,
    logprob: f32,
    /// The token's own bytes: where a character takes several tokens, joining these gives it back.
    bytes: Vec<u8>,
}

impl ChatLogprobs {
    pub(crate) fn new(pieces: &[TokenPiece], names: TokenNames<'_>) -> Self {
        let bytes = |token_id: u32| names.tokenizer.token_bytes(token_id).to_vec();
        let content = pieces
            .iter()
            .map(|piece| ChatToken {
                token: ChatTop {
                    token: names.piece(piece),
                    logprob: finite(piece.logprob.unwrap_or_default()),
                    bytes: bytes(piece.token_id),
                },
                top_logprobs: piece
                    .top
                    .iter()
                    .take(names.top_count)
                    .map(|(token_id, logprob)| ChatTop {
                        token: if *token_id == piece.token_id { names.piece(piece) } else { names.token(*token_id) },
                        logprob: finite(*logprob),
                        bytes: bytes(*token_id),
                    })
                    .collect(),
            })
            .collect();
        Self { content }
    }
}
