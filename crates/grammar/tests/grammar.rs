//! Masks of small vocabularies: every byte, some words, markers of reasoning and two tokens that end an answer.
#![allow(clippy::unwrap_used, reason = "tests")]

use paceline_grammar::{
    Begins, Compiler, Constraint, Error, JsonStyle, Limits, Reasoning, Source, TokenMask, Vocabulary,
};
use serde_json::json;

const WORDS: [&str; 8] = ["{\"", "\":", "\"name\"", "true", "abc", "  ", "\"}", "}\n"];
const THINK: u32 = 256 + WORDS.len() as u32;
const END_THINK: u32 = THINK + 1;
const EOS: u32 = THINK + 2;
const END_OF_TURN: u32 = THINK + 3;
const COUNT: u32 = THINK + 4;

fn vocabulary() -> Vocabulary {
    let mut words: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
    words.extend(WORDS.map(|word| word.as_bytes().to_vec()));
    words.extend(["<think>", "</think>", "<eos>", "<eot>"].map(|word| word.as_bytes().to_vec()));
    Vocabulary::new(COUNT, |id| &words[id as usize], |id| id >= EOS, &[EOS, END_OF_TURN]).unwrap()
}

fn compiler() -> Compiler {
    Compiler::new(vocabulary(), Limits::default()).unwrap()
}

fn constraint(source: &Source) -> Constraint {
    let compiler = compiler();
    Constraint::new(compiler.vocabulary().clone(), Some(&compiler.compile(source).unwrap()), None)
}

fn bytes(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

fn allowed(mask: &TokenMask) -> Vec<u32> {
    (0..COUNT).filter(|token| mask.allows(*token)).collect()
}

fn next(constraint: &mut Constraint) -> Vec<u32> {
    allowed(&constraint.masks(&[]).unwrap()[0])
}

/// Whether the whole text is an answer.
fn accepts(source: &Source, text: &str) -> bool {
    let mut constraint = constraint(source);
    let tokens = bytes(text);
    let masks = constraint.masks(&tokens).unwrap();
    let each = tokens.iter().zip(&masks).all(|(token, mask)| mask != &TokenMask::Neutral && mask.allows(*token));
    each && masks[tokens.len()].allows(EOS)
}

#[test]
fn sources_say_what_an_answer_is() {
    let object = Source::JsonObject(JsonStyle::default());
    assert!(accepts(&object, "{\"a\": [1, null]}") && !accepts(&object, "[1]") && !accepts(&object, "{\"a\": 1"));
    let schema = json!({"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]});
    let open = Source::JsonSchema(schema.clone(), JsonStyle::default());
    assert!(accepts(&open, "{\n  \"name\": \"x\", \"more\": 1}") && !accepts(&open, "{}"));
    let strict = Source::JsonSchema(schema, JsonStyle { is_compact: true, is_closed: true });
    assert!(accepts(&strict, "{\"name\":\"x\"}"));
    assert!(!accepts(&strict, "{\"name\":\"x\",\"more\":1}") && !accepts(&strict, "{ \"name\":\"x\"}"));
    let regex = Source::Regex("^[0-9]{2}(a|/)$".to_owned());
    assert!(accepts(&regex, "12a") && accepts(&regex, "12/") && !accepts(&regex, "1a"));
    let choice = Source::Choice(vec!["yes".to_owned(), "no \"thanks\"\n".to_owned()]);
    assert!(accepts(&choice, "yes") && accepts(&choice, "no \"thanks\"\n") && !accepts(&choice, "maybe"));
    let lark = Source::Lark("start: \"(\" start \")\" | /[a-c]/".to_owned());
    assert!(accepts(&lark, "((b))") && !accepts(&lark, "((b)"));
}

#[test]
fn closing_an_object_forbids_nothing_that_its_schema_asks_for() {
    let part = |name: &str| json!({"type": "object", "properties": {name: {"enum": [1]}}, "required": [name]});
    let closed = JsonStyle { is_compact: true, is_closed: true };
    let joined = Source::JsonSchema(json!({"allOf": [part("a"), part("b")]}), closed);
    assert!(accepts(&joined, "{\"a\":1,\"b\":1}"));
    let mut unnamed = part("a");
    unnamed["required"] = json!(["a", "b"]);
    assert!(accepts(&Source::JsonSchema(unnamed, closed), "{\"a\":1,\"b\":2}"));
    let either = Source::JsonSchema(json!({"anyOf": [part("a"), part("b")]}), closed);
    assert!(accepts(&either, "{\"b\":1}") && !accepts(&either, "{\"a\":1,\"c\":1}"));
}

#[test]
fn blanks_of_json_come_to_an_end() {
    let object = Source::JsonObject(JsonStyle::default());
    let spaced = |blanks: &str| format!("{{{blanks}\"a\":1}}");
    for blanks in ["", " ", "\n", "\n\t\t", &format!("\n{}", " ".repeat(24))] {
        assert!(accepts(&object, &spaced(blanks)), "{blanks:?}");
    }
    for blanks in ["  ", "\n\n", &format!("\n{}", " ".repeat(25))] {
        assert!(!accepts(&object, &spaced(blanks)), "{blanks:?}");
    }
}

#[test]
fn bad_sources_are_refused_with_a_reason() {
    let compiler = compiler();
    let refused = |source: &Source| compiler.compile(source).map(drop).unwrap_err();
    let schema = |value| Source::JsonSchema(value, JsonStyle::default());
    for source in [
        Source::Regex("(".to_owned()),
        Source::Lark("begin: \"x\"".to_owned()),
        schema(json!({"type": "colour"})),
        schema(json!({"$ref": "#/nowhere"})),
        schema(json!(7)),
        schema(json!({"type": "string", "minLength": 3, "maxLength": 2})),
    ] {
        let Error::Source { message } = refused(&source) else { panic!("{source:?}") };
        assert!(!message.is_empty() && !message.contains('\n'), "{source:?}: {message:?}");
    }
    assert_eq!(refused(&Source::Choice(Vec::new())), Error::Choices { most: 4_096, got: 0 });
    let long = Source::Regex("a".repeat(300_000));
    assert!(matches!(refused(&long), Error::TooLong { most: 262_144, .. }));
    let none = Vocabulary::new(3, |_| b"a", |_| false, &[7]);
    assert!(matches!(none, Err(Error::NoEnd)));
}

#[test]
fn a_complete_answer_can_only_end() {
    let mut constraint = constraint(&Source::Choice(vec!["abc".to_owned(), "abcd".to_owned()]));
    constraint.accept(&[256 + 4]).unwrap();
    assert_eq!(next(&mut constraint), [u32::from(b'd'), EOS, END_OF_TURN]);
    constraint.accept(&bytes("d")).unwrap();
    assert_eq!(next(&mut constraint), [EOS, END_OF_TURN]);
    constraint.accept(&[EOS]).unwrap();
}

#[test]
fn drafts_get_a_mask_each_up_to_the_first_that_is_refused() {
    let source = Source::JsonSchema(json!({"enum": ["abc", true]}), JsonStyle::default());
    let mut constraint = constraint(&source);
    let drafts = [bytes("\"a"), bytes("x"), bytes("c")].concat();
    let masks = constraint.masks(&drafts).unwrap();
    assert_eq!(masks.len(), 5);
    assert!(masks[0].allows(drafts[0]) && masks[1].allows(drafts[1]) && !masks[2].allows(drafts[2]));
    assert_eq!(masks[3..], [TokenMask::Neutral, TokenMask::Neutral]);
    // Nothing moved: the same masks again, one by one.
    for (token, mask) in bytes("\"a").iter().zip(&masks) {
        assert_eq!(&constraint.masks(&[]).unwrap()[0], mask);
        constraint.accept(&[*token]).unwrap();
    }
    assert_eq!(constraint.masks(&[]).unwrap()[0], masks[2]);
    // A draft may end the answer; what comes after it does not count.
    let ended = constraint.masks(&[bytes("bc\""), vec![EOS, 7]].concat()).unwrap();
    assert!(ended[3].allows(EOS));
    assert!(matches!(constraint.accept(&bytes("?")), Err(Error::Refused { token: 63, .. })));
}

#[test]
fn clones_go_their_own_ways() {
    let mut first = constraint(&Source::Regex("[ab]c".to_owned()));
    let mut second = first.clone();
    first.accept(&bytes("a")).unwrap();
    assert_eq!(next(&mut first), bytes("c"));
    assert_eq!(next(&mut second), bytes("ab"));
}

#[test]
fn the_latest_grammars_are_kept() {
    let compiler = Compiler::new(vocabulary(), Limits { kept: 1, ..Limits::default() }).unwrap();
    for text in ["a", "b", "a", "a"] {
        let grammar = compiler.compile(&Source::Regex(text.to_owned())).unwrap();
        let mut constraint = Constraint::new(vocabulary(), Some(&grammar), None);
        assert_eq!(next(&mut constraint), bytes(text));
    }
}

fn thinking(begins: Begins, budget: Option<u32>, grammar: Option<&str>) -> Constraint {
    let compiler = compiler();
    let grammar = grammar.map(|text| compiler.compile(&Source::Regex(text.to_owned())).unwrap());
    let reasoning = Reasoning {
        begins,
        open: "<think>".to_owned(),
        close: "</think>".to_owned(),
        close_tokens: vec![END_THINK],
        budget,
    };
    Constraint::new(compiler.vocabulary().clone(), grammar.as_ref(), Some(reasoning))
}

#[test]
fn c09_the_grammar_holds_from_the_marker_on_inside_a_row_of_drafts() {
    let mut constraint = thinking(Begins::Thinking, None, Some("[0-9]+"));
    constraint.accept(&bytes("so{")).unwrap();
    let masks = constraint.masks(&[u32::from(b't'), END_THINK, u32::from(b'{')]).unwrap();
    // Whatever is thought, it does not end before the answer.
    assert!(masks[..2].iter().all(|mask| allowed(mask) == (0..EOS).collect::<Vec<u32>>()));
    assert_eq!(allowed(&masks[2]), bytes("0123456789"));
    assert_eq!(masks[3], TokenMask::Neutral);
    // The draft behind the marker was refused: only what was accepted counts.
    constraint.accept(&[bytes("t"), vec![END_THINK], bytes("7")].concat()).unwrap();
    assert!(next(&mut constraint).contains(&EOS));
}

#[test]
fn c09_a_marker_may_come_in_pieces_and_reasoning_may_be_opened_or_not() {
    let mut pieces = thinking(Begins::Thinking, None, Some("7"));
    pieces.accept(&bytes("x</thin")).unwrap();
    assert_eq!(next(&mut pieces), (0..EOS).collect::<Vec<u32>>());
    pieces.accept(&bytes("k>")).unwrap();
    assert_eq!(next(&mut pieces), bytes("7"));
    let mut open = thinking(Begins::Open, None, Some("7"));
    assert_eq!(next(&mut open), [bytes("7"), vec![THINK]].concat());
    let mut direct = open.clone();
    direct.accept(&bytes("7")).unwrap();
    assert_eq!(next(&mut direct), [EOS, END_OF_TURN]);
    open.accept(&[THINK]).unwrap();
    assert_eq!(next(&mut open), (0..EOS).collect::<Vec<u32>>());
    open.accept(&[u32::from(b'h'), END_THINK]).unwrap();
    assert_eq!(next(&mut open), bytes("7"));
    let mut done = thinking(Begins::Answering, None, Some("7"));
    assert_eq!(next(&mut done), bytes("7"));
}

#[test]
fn c17_reasoning_is_closed_at_its_budget_with_and_without_drafts() {
    let mut plain = thinking(Begins::Thinking, Some(3), None);
    plain.accept(&[vec![THINK], bytes("ab")].concat()).unwrap();
    assert_eq!(plain.masks(&[]).unwrap(), [TokenMask::Neutral]);
    let ahead = plain.masks(&bytes("cde")).unwrap();
    assert_eq!(allowed(&ahead[1]), [END_THINK]);
    assert_eq!((&ahead[0], &ahead[2]), (&TokenMask::Neutral, &TokenMask::Neutral));
    plain.accept(&bytes("c")).unwrap();
    assert_eq!(next(&mut plain), [END_THINK]);
    plain.accept(&[END_THINK]).unwrap();
    assert_eq!(plain.masks(&[]).unwrap(), [TokenMask::Neutral]);
    let mut none = thinking(Begins::Open, Some(0), Some("7"));
    none.accept(&[THINK]).unwrap();
    assert_eq!(next(&mut none), [END_THINK]);
    let mut early = thinking(Begins::Thinking, Some(9), None);
    early.accept(&[vec![END_THINK], bytes("0123456789abc")].concat()).unwrap();
    assert_eq!(early.masks(&[]).unwrap(), [TokenMask::Neutral]);
}
