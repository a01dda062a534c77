//! The crate over two small tokenizers: a byte-level one in the style of SmolLM2 and a SentencePiece one in that of Llama 2.

use std::path::PathBuf;

use paceline_text::{ChatInput, ChatTemplate, Error, ModelSettings, SpecialTokens, Tokenizer};
use proptest::prelude::*;
use serde_json::{Value, json};

fn load(name: &str) -> Tokenizer {
    Tokenizer::load(&PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name))
        .expect("the fixture loads")
}

fn increments(tokenizer: &Tokenizer, special: SpecialTokens, ids: &[u32]) -> Vec<String> {
    let mut decoder = tokenizer.decoder(special, &[]);
    let mut pieces = Vec::new();
    for id in ids {
        let mut piece = String::new();
        decoder.push(*id, &mut piece).expect("decodes");
        pieces.push(piece);
    }
    let mut tail = String::new();
    decoder.finish(&mut tail).expect("decodes");
    pieces.push(tail);
    pieces
}

const TEXTS: [&str; 5] = [
    "First Citizen: speak, speak.",
    "naïve café — déjà vu\n\n  tabs\tand 日本語 テスト",
    "😀 👩‍👩‍👧 family",
    "<|im_start|>user\nhi<|im_end|>",
    "a <tool call> b",
];

#[test]
fn text_survives_the_way_through_tokens() {
    let tokenizer = load("bytelevel");
    for text in TEXTS {
        let ids = tokenizer.encode(text, true).unwrap();
        assert_eq!(tokenizer.decode(&ids, SpecialTokens::Show).unwrap(), text);
        let pieces = increments(&tokenizer, SpecialTokens::Show, &ids);
        assert_eq!(pieces.concat(), text);
        assert!(!pieces.concat().contains(char::REPLACEMENT_CHARACTER));
    }
}

#[test]
fn the_other_decoder_family_agrees_with_its_whole_decode() {
    let tokenizer = load("metaspace");
    for text in ["First Citizen: speak", "café 日本 x", "two  blanks"] {
        let ids = tokenizer.encode(text, true).unwrap();
        assert_eq!(ids[0], 1, "BOS comes first");
        assert_ne!(tokenizer.encode(text, false).unwrap()[0], 1);
        let whole = tokenizer.decode(&ids, SpecialTokens::Skip).unwrap();
        assert_eq!(whole, text);
        assert_eq!(increments(&tokenizer, SpecialTokens::Skip, &ids).concat(), text);
    }
}

#[test]
fn a_continuation_keeps_its_leading_blank() {
    let tokenizer = load("metaspace");
    let ids = tokenizer.encode("speak speak", false).unwrap();
    let (prompt, rest) = ids.split_at(ids.len() / 2);
    let mut decoder = tokenizer.decoder(SpecialTokens::Skip, prompt);
    let mut out = String::new();
    for id in rest {
        decoder.push(*id, &mut out).unwrap();
    }
    assert_eq!(tokenizer.decode(prompt, SpecialTokens::Skip).unwrap() + &out, "speak speak");
}

#[test]
fn special_tokens_are_skipped_or_shown_as_themselves() {
    let tokenizer = load("bytelevel");
    let ids = tokenizer.encode("hi<|im_end|>", false).unwrap();
    assert_eq!(increments(&tokenizer, SpecialTokens::Skip, &ids).concat(), "hi");
    assert_eq!(increments(&tokenizer, SpecialTokens::Show, &ids).concat(), "hi<|im_end|>");
    assert_eq!(tokenizer.token_text(*ids.last().unwrap()), "<|im_end|>");
    assert_eq!(tokenizer.vocab_size(), 901);
    assert_eq!(tokenizer.longest_token_bytes(), "<|endoftext|>".len());
    assert_eq!(tokenizer.token_bytes(40_000), b"");
}

#[test]
fn e12_an_empty_prompt_is_one_token_with_bos_and_none_without() {
    assert_eq!(load("metaspace").encode("", true).unwrap(), [1]);
    assert_eq!(load("bytelevel").encode("", true).unwrap(), [0_u32; 0]);
}

#[test]
fn chat_templates_come_from_either_file() {
    let input = ChatInput {
        messages: vec![json!({"role": "user", "content": "hi"})],
        add_generation_prompt: true,
        variables: serde_json::Map::new(),
        ..ChatInput::default()
    };
    let text = load("bytelevel").render_chat(&input).unwrap();
    assert!(text.starts_with("<|im_start|>system\nYou are a helpful AI assistant"), "{text}");
    assert!(text.ends_with("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"), "{text}");
    assert_eq!(load("metaspace").render_chat(&input).unwrap(), "<s>[USER] hi");
}

/// `feature_template.txt` is what `transformers` renders from the same template and variables.
#[test]
fn a_template_full_of_features_renders_as_transformers_renders_it() {
    let settings = ModelSettings::from_values(&Value::Null, &Value::Null, &json!({"eos_token": "</s>"}));
    let template = ChatTemplate::new(include_str!("data/feature_template.jinja"), &settings).unwrap();
    let messages = json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi \"there\" <b>é</b>", "name": "Anna"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nyo "},
        {"role": "user", "content": "more\n"},
    ]);
    let variables = json!({"tools": [{"type": "function", "f": {"n": 1.5, "x": "<'&>"}}], "enable_thinking": false});
    let input = ChatInput {
        messages: messages.as_array().unwrap().clone(),
        add_generation_prompt: true,
        variables: variables.as_object().unwrap().clone(),
        ..ChatInput::default()
    };
    assert_eq!(template.render(&input).unwrap(), include_str!("data/feature_template.txt"));
}

#[test]
fn settings_are_read_beside_the_vocabulary() {
    let tokenizer = load("bytelevel");
    assert_eq!(tokenizer.settings().eos_token_ids, [0, 2]);
    assert_eq!(tokenizer.settings().sampling.temperature, Some(0.6));
    assert_eq!(tokenizer.settings().context_tokens, Some(256));
    assert_eq!(load("metaspace").settings().context_tokens, Some(128));
}

#[test]
fn a_missing_or_broken_file_is_named() {
    let error = Tokenizer::load(&PathBuf::from("/nowhere")).unwrap_err();
    assert!(matches!(&error, Error::Read { .. }) && error.to_string().contains("/nowhere/tokenizer.json"), "{error}");
    let folder = std::env::temp_dir().join(format!("paceline-text-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("tokenizer.json"), "{").unwrap();
    let error = Tokenizer::load(&folder).unwrap_err();
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(matches!(error, Error::Parse { .. }), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn increments_join_to_the_whole_decode(ids in prop::collection::vec(0_u32..905, 0..60), skip in any::<bool>()) {
        let tokenizer = load("bytelevel");
        let special = if skip { SpecialTokens::Skip } else { SpecialTokens::Show };
        let pieces = increments(&tokenizer, special, &ids);
        prop_assert_eq!(pieces.concat(), tokenizer.decode(&ids, special).unwrap());
    }

    #[test]
    fn any_text_streams_without_a_broken_character(text in "\\PC{0,40}") {
        let tokenizer = load("bytelevel");
        let ids = tokenizer.encode(&text, false).unwrap();
        for piece in increments(&tokenizer, SpecialTokens::Show, &ids) {
            prop_assert!(!piece.contains(char::REPLACEMENT_CHARACTER) || text.contains(char::REPLACEMENT_CHARACTER));
        }
    }

    /// What has been shown after each token is all that is whole by then: no half a character, and nothing later than
    /// need be.
    #[test]
    fn every_character_is_shown_with_its_last_byte(text in "\\PC{0,30}") {
        let tokenizer = load("bytelevel");
        let ids = tokenizer.encode(&text, false).unwrap();
        let mut bytes = Vec::new();
        let mut shown = String::new();
        for (id, piece) in ids.iter().zip(increments(&tokenizer, SpecialTokens::Show, &ids)) {
            bytes.extend_from_slice(tokenizer.token_bytes(*id));
            shown.push_str(&piece);
            let whole = match std::str::from_utf8(&bytes) {
                Ok(whole) => whole,
                Err(error) => std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap(),
            };
            prop_assert_eq!(shown.as_str(), whole);
        }
    }

    /// SentencePiece marks blanks and writes what it has no token for in bytes: cut anywhere, both halves make the text.
    #[test]
    fn a_text_of_the_other_family_goes_on_after_any_prompt(text in "[ a-zé日]{1,24}", cut in 0.0_f64..1.0) {
        let tokenizer = load("metaspace");
        let ids = tokenizer.encode(&text, true).unwrap();
        let whole = tokenizer.decode(&ids, SpecialTokens::Skip).unwrap();
        prop_assert_eq!(increments(&tokenizer, SpecialTokens::Skip, &ids).concat(), whole.as_str());
        let (prompt, rest) = ids.split_at(1 + ((ids.len() - 1) as f64 * cut) as usize);
        let before = tokenizer.decode(prompt, SpecialTokens::Skip).unwrap();
        // A prompt that ends within a character has no text of its own to go on from.
        prop_assume!(!before.contains(char::REPLACEMENT_CHARACTER));
        let mut decoder = tokenizer.decoder(SpecialTokens::Skip, prompt);
        let mut after = String::new();
        for id in rest {
            decoder.push(*id, &mut after).unwrap();
            prop_assert!(!after.contains(char::REPLACEMENT_CHARACTER));
        }
        decoder.finish(&mut after).unwrap();
        prop_assert_eq!(before + &after, whole);
    }
}
