//! A model's tokenizer with everything a request needs from it.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use tokenizers::DecoderWrapper;

use crate::decode::{IncrementalDecoder, SpecialTokens};
use crate::vocabulary::Vocabulary;
use crate::{ChatInput, ChatTemplate, Error, ModelSettings, ToolFormat};

/// A tokenizer loaded from a model folder; clones share one copy.
#[derive(Clone)]
pub struct Tokenizer {
    shared: Arc<Shared>,
}

struct Shared {
    tokenizer: tokenizers::Tokenizer,
    vocabulary: Vocabulary,
    settings: ModelSettings,
    template: Option<ChatTemplate>,
    longest_token_bytes: usize,
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Tokenizer").field("vocab_size", &self.vocab_size()).finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Loads `tokenizer.json` (required) and `tokenizer_config.json`, `config.json`, `generation_config.json`,
    /// `chat_template.jinja` (each optional) from `folder`.
    ///
    /// # Errors
    /// [`Error::Read`] when `tokenizer.json` cannot be read, [`Error::Parse`] when a file is malformed.
    pub fn load(folder: &Path) -> Result<Self, Error> {
        let path = folder.join("tokenizer.json");
        let bytes = std::fs::read(&path).map_err(|source| Error::Read { path: path.clone(), source })?;
        let unusable = |error: tokenizers::Error| Error::Parse { path: path.clone(), message: error.to_string() };
        let mut tokenizer = tokenizers::Tokenizer::from_bytes(&bytes).map_err(unusable)?;
        // Some files carry the truncation and padding of a training run; a server must see the prompt as it is.
        tokenizer.with_truncation(None).map_err(unusable)?;
        tokenizer.with_padding(None);
        let settings = ModelSettings::load(folder)?;
        let template = ChatTemplate::load(folder, &settings)?;
        let vocabulary = vocabulary(&tokenizer);
        let longest_token_bytes = vocabulary.longest_bytes();
        Ok(Self { shared: Arc::new(Shared { tokenizer, vocabulary, settings, template, longest_token_bytes }) })
    }

    /// Token ids of `text`. With `add_special_tokens` the tokenizer's own additions (such as BOS) are included.
    ///
    /// # Errors
    /// [`Error::Encode`] when the tokenizer refuses the text.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, Error> {
        self.shared
            .tokenizer
            .encode_fast(text, add_special_tokens)
            .map(|encoding| encoding.get_ids().to_vec())
            .map_err(|error| Error::Encode { message: error.to_string() })
    }

    /// The text of a whole sequence.
    ///
    /// # Errors
    /// [`Error::Decode`] when the tokenizer's decoder fails.
    pub fn decode(&self, token_ids: &[u32], special: SpecialTokens) -> Result<String, Error> {
        self.shared
            .tokenizer
            .decode(token_ids, special == SpecialTokens::Skip)
            .map_err(|error| Error::Decode { message: error.to_string() })
    }

    /// A decoder for the tokens that follow `prompt` (of which only the last few matter).
    #[must_use]
    pub fn decoder(&self, special: SpecialTokens, prompt: &[u32]) -> IncrementalDecoder {
        IncrementalDecoder::new(self.clone(), special, prompt)
    }

    /// Renders a conversation with the model's chat template.
    ///
    /// # Errors
    /// [`Error::NoChatTemplate`], or [`Error::Template`] when the template refuses the messages.
    pub fn render_chat(&self, input: &ChatInput) -> Result<String, Error> {
        self.shared.template.as_ref().ok_or(Error::NoChatTemplate)?.render(input)
    }

    /// The spelling of tool calls that the chat template teaches; `None` when it teaches none.
    #[must_use]
    pub fn tool_format(&self) -> Option<ToolFormat> {
        self.shared.template.as_ref()?.tool_format()
    }

    /// The source of the chat template; `None` when there is none.
    #[must_use]
    pub fn chat_template(&self) -> Option<&str> {
        self.shared.template.as_ref().map(ChatTemplate::source)
    }

    /// Whether the token is one of the tokenizer's special ones.
    #[must_use]
    pub fn is_special(&self, token_id: u32) -> bool {
        self.shared.vocabulary.is_special(token_id)
    }

    /// One token's bytes: its share of the decoded text, or a special token's name. Empty for an unknown id.
    #[must_use]
    pub fn token_bytes(&self, token_id: u32) -> &[u8] {
        self.shared.vocabulary.bytes(token_id)
    }

    /// One token's text on its own; bytes of an incomplete character show as U+FFFD.
    #[must_use]
    pub fn token_text(&self, token_id: u32) -> String {
        String::from_utf8_lossy(self.token_bytes(token_id)).into_owned()
    }

    /// Ids the tokenizer knows, added tokens included, are below this number.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.shared.vocabulary.len()
    }

    /// Bytes of the longest token: a text of `n` bytes has at least `n` divided by this many tokens.
    #[must_use]
    pub fn longest_token_bytes(&self) -> usize {
        self.shared.longest_token_bytes
    }

    /// What the model folder says beside the vocabulary.
    #[must_use]
    pub fn settings(&self) -> &ModelSettings {
        &self.shared.settings
    }

    pub(crate) fn vocabulary(&self) -> &Vocabulary {
        &self.shared.vocabulary
    }
}

fn vocabulary(tokenizer: &tokenizers::Tokenizer) -> Vocabulary {
    let added = tokenizer.get_added_tokens_decoder();
    let count = tokenizer.get_vocab(true).into_values().max().map_or(0, |id| id.saturating_add(1));
    Vocabulary::build(
        count,
        matches!(tokenizer.get_decoder(), Some(DecoderWrapper::ByteLevel(_))),
        |id| tokenizer.id_to_token(id),
        |id| added.get(&id).is_some_and(|token| token.special),
    )
}
