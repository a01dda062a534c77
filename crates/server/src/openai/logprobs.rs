//! Log-probabilities in the two shapes OpenAI has for them.

use paceline_text::Tokenizer;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::generate::TokenPiece;

/// JSON has no infinity; this is what clients know for "impossible".
const LOGPROB_MIN: f32 = -9_999.0;

fn finite(logprob: f32) -> f32 {
    logprob.max(LOGPROB_MIN)
}

/// Of `/v1/completions`: parallel arrays.
#[derive(Debug, Default, Serialize)]
pub(crate) struct CompletionLogprobs {
    text_offset: Vec<usize>,
    token_logprobs: Vec<f32>,
    tokens: Vec<String>,
    /// The token produced and the likeliest ones, by text.
    top_logprobs: Vec<Map<String, Value>>,
}

impl CompletionLogprobs {
    pub(crate) fn new(pieces: &[TokenPiece], tokenizer: &Tokenizer) -> Self {
        let mut logprobs = Self::default();
        for piece in pieces {
            logprobs.text_offset.push(piece.text_offset);
            logprobs.token_logprobs.push(finite(piece.logprob));
            logprobs.tokens.push(piece.text.clone());
            let mut top = Map::new();
            top.insert(piece.text.clone(), Value::from(finite(piece.logprob)));
            for (token_id, logprob) in &piece.top {
                if *token_id != piece.token_id {
                    // Two tokens may read the same; the likelier one keeps the name.
                    top.entry(tokenizer.token_text(*token_id)).or_insert_with(|| Value::from(finite(*logprob)));
                }
            }
            logprobs.top_logprobs.push(top);
        }
        logprobs
    }
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
    pub(crate) fn new(pieces: &[TokenPiece], tokenizer: &Tokenizer) -> Self {
        let bytes = |token_id: u32| tokenizer.token_bytes(token_id).to_vec();
        let content = pieces
            .iter()
            .map(|piece| ChatToken {
                token: ChatTop {
                    token: piece.text.clone(),
                    logprob: finite(piece.logprob),
                    bytes: bytes(piece.token_id),
                },
                top_logprobs: piece
                    .top
                    .iter()
                    .map(|(token_id, logprob)| ChatTop {
                        token: if *token_id == piece.token_id {
                            piece.text.clone()
                        } else {
                            tokenizer.token_text(*token_id)
                        },
                        logprob: finite(*logprob),
                        bytes: bytes(*token_id),
                    })
                    .collect(),
            })
            .collect();
        Self { content }
    }
}
