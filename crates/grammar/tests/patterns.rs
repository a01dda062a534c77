//! Answers put together from parts, and grammars in the notation of llama.cpp.
#![allow(clippy::unwrap_used, reason = "tests")]

use paceline_grammar::{Compiler, Constraint, Error, JsonStyle, Limits, Pattern, Source, Vocabulary};
use serde_json::json;

const CALL: u32 = 256;
const TEXT_CALL: u32 = 257;
const EOS: u32 = 258;

/// Every byte, a special token, a token of text, and one that ends an answer.
fn compiler() -> Compiler {
    let mut words: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
    words.extend(["<|call|>", "<call>", "<eos>"].map(|word| word.as_bytes().to_vec()));
    let vocabulary = Vocabulary::new(EOS + 1, |id| &words[id as usize], |id| id == CALL || id == EOS, &[EOS]);
    Compiler::new(vocabulary.unwrap(), Limits::default()).unwrap()
}

fn bytes(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

/// Whether these tokens are an answer, the same one by one and as drafts.
fn accepts(source: &Source, tokens: &[u32]) -> bool {
    let compiler = compiler();
    let grammar = compiler.compile(source).unwrap();
    let constraint = || Constraint::new(compiler.vocabulary().clone(), Some(&grammar), None);
    let masks = constraint().masks(&[tokens, &[EOS]].concat()).unwrap();
    let drafted = tokens.iter().chain([&EOS]).zip(&masks).take_while(|(token, mask)| mask.allows(**token)).count();
    let mut stepped = constraint();
    let taken = tokens
        .iter()
        .chain([&EOS])
        .take_while(|token| stepped.masks(&[]).unwrap()[0].allows(**token) && stepped.accept(&[**token]).is_ok());
    assert_eq!(taken.count(), drafted, "{tokens:?}");
    drafted == tokens.len() + 1
}

fn accepts_text(source: &Source, text: &str) -> bool {
    accepts(source, &bytes(text))
}

fn text(text: &str) -> Pattern {
    Pattern::Text(text.to_owned())
}

fn json(schema: serde_json::Value) -> Pattern {
    Pattern::Json { field: "schema".to_owned(), schema, style: JsonStyle { is_compact: false, is_closed: true } }
}

fn number() -> Pattern {
    json(json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}))
}

fn marked(mark: &str, then: Pattern, is_needed: bool, is_once: bool) -> Source {
    Source::Pattern(Pattern::Marked { marks: vec![(mark.to_owned(), then)], is_needed, is_once })
}

#[test]
fn parts_stand_one_after_the_other() {
    let call = |name: &str| Pattern::Sequence(vec![text(name), text(": "), number(), text(";")]);
    let item = Box::new(Pattern::OneOf(vec![call("get"), call("get_all")]));
    let between = Box::new(text(", "));
    let calls = |least, most| {
        let (item, between) = (item.clone(), between.clone());
        Source::Pattern(Pattern::Repeated { item, between, least, most })
    };
    let two = "get_all: {\"n\": 1};, get: {\"n\":22};";
    assert!(accepts_text(&calls(1, Some(2)), two) && accepts_text(&calls(0, None), &[two, two].join(", ")));
    for wrong in ["", "get: {};", "get: {\"n\": 1}", "set: {\"n\": 1};", &[two, two].join(", ")] {
        assert!(!accepts_text(&calls(1, Some(2)), wrong), "{wrong}");
    }
    assert!(accepts_text(&calls(0, Some(1)), "") && !accepts_text(&calls(0, Some(1)), two));
}

#[test]
fn a_marker_is_a_special_token_where_there_is_one_and_text_elsewhere() {
    let call = |mark: &str| Source::Pattern(Pattern::Sequence(vec![Pattern::Mark(mark.to_owned()), number()]));
    let body = bytes("{\"n\": 1}");
    assert!(accepts(&call("<|call|>"), &[vec![CALL], body.clone()].concat()));
    assert!(!accepts(&call("<|call|>"), &[bytes("<|call|>"), body.clone()].concat()));
    for spelled in [vec![TEXT_CALL], bytes("<call>")] {
        assert!(accepts(&call("<call>"), &[spelled, body.clone()].concat()));
    }
}

#[test]
fn free_text_goes_on_until_a_mark() {
    let body = "{\"n\": 1}";
    let many = marked("<call>", Pattern::Sequence(vec![number(), text("</call>")]), false, false);
    for good in
        ["", "so <cal> it is", &format!("so<call>{body}</call>"), &format!("<call>{body}</call>a<call>{body}</call>b")]
    {
        assert!(accepts_text(&many, good), "{good}");
    }
    for wrong in ["so <call>", "<call>{}</call>", &format!("a<call>{body}")] {
        assert!(!accepts_text(&many, wrong), "{wrong}");
    }
    assert!(accepts(&many, &[bytes("so "), vec![TEXT_CALL], bytes(body), bytes("</call>")].concat()));
    let once = marked("<call>", number(), false, true);
    assert!(accepts_text(&once, "no call") && accepts_text(&once, &format!("a <call>{body}")));
    assert!(!accepts_text(&once, &format!("<call>{body} and more")));
    let needed = marked("<call>", number(), true, false);
    assert!(!accepts_text(&needed, "no call") && accepts_text(&needed, &format!("a<call>{body}<call>{body} b")));
}

#[test]
fn free_text_ends_at_a_special_token_too() {
    let source = marked("<|call|>", number(), false, false);
    let body = bytes("{\"n\": 1}");
    assert!(accepts_text(&source, "what <|call|> means") && accepts(&source, &[vec![CALL], body.clone()].concat()));
    assert!(accepts(&source, &[bytes("so "), vec![CALL], body.clone(), bytes(" and "), vec![CALL], body].concat()));
    assert!(!accepts(&source, &[bytes("so "), vec![CALL], bytes("no")].concat()));
}

#[test]
fn a_part_that_is_none_is_named() {
    let bad = |field: &str, schema| Pattern::Json { field: field.to_owned(), schema, style: JsonStyle::default() };
    let parts = vec![number(), bad("second", json!({"type": "colour"})), bad("third", json!(7))];
    let Err(Error::Part { field, message }) = compiler().compile(&Source::Pattern(Pattern::Sequence(parts))) else {
        panic!("the second part is no schema")
    };
    assert!(field == "second" && message.contains("colour"), "{message}");
    let field = "expression".to_owned();
    let expression = Pattern::Regex { field, expression: "(".to_owned() };
    assert!(
        matches!(compiler().compile(&Source::Pattern(expression)), Err(Error::Part { field, .. }) if field == "expression")
    );
}

fn gbnf(text: &str) -> Source {
    Source::Lark(text.to_owned())
}

#[test]
fn the_notation_of_llama_cpp_is_read() {
    let sql = gbnf(
        "# From vLLM's examples.\nroot ::= select_statement\nselect_statement ::= \"SELECT \" column \" from \" table \" where \" condition\n\
         column ::= \"col_1 \" | \"col_2 \"\ntable ::= \"table_1 \" | \"table_2 \"\ncondition ::= column \"= \" number\n\
         number ::= \"1 \" | \"2 \"\n",
    );
    assert!(accepts_text(&sql, "SELECT col_1  from table_2  where col_1 = 2 ") && !accepts_text(&sql, "SELECT col_3 "));
    let list = gbnf(
        "root ::= value\nvalue ::= list | string | word\nlist ::= \"[\" ws (value (\",\" ws value)*)? \"]\" ws\n\
         string ::= \"\\\"\" ([^\"\\\\\\x00-\\x1f] | \"\\\\\" [\"\\\\n])* \"\\\"\" ws\nword ::=\n  \"true\"\n  | [a-c-]{2,3} ws   # not long\n\
         ws ::= [ \\t\\n]*\n",
    );
    for good in ["true", "a-c ", "[ ]", "[\"x\\n\\\"é\", [ab,abc] ]\n", "\"\""] {
        assert!(accepts_text(&list, good), "{good}");
    }
    for wrong in ["", "a", "[a", "\"\n\"", "[true,]", "abca"] {
        assert!(!accepts_text(&list, wrong), "{wrong}");
    }
    let others = gbnf("root ::= ( [a-z]+ \"end\" | . \"\\u00e9\" | \"\" ) \"!\"?");
    for good in ["endend!", "xé", "", "!"] {
        assert!(accepts_text(&others, good), "{good}");
    }
    assert!(!accepts_text(&others, "en!"));
    let token = gbnf("root ::= \"a\" <[256]> root | \"b\"");
    assert!(accepts(&token, &[bytes("a"), vec![CALL], bytes("b")].concat()) && !accepts_text(&token, "ab"));
}

#[test]
fn mistakes_in_that_notation_are_told_by_their_line() {
    let deep = format!("root ::= {}\"a\"{}", "(".repeat(20), ")".repeat(20));
    for (text, told) in [
        ("root ::= \"a", "line 1: the text ends"),
        ("root ::= \"a\"\nother ::= [z-a]", "line 2: the range"),
        ("root ::= other", "the rule other is used and not given"),
        ("start ::= \"a\"", "no rule root is given"),
        ("root ::= (\"a\"", "expected `)`"),
        ("root ::= \"a\" )", "expected the end of the rule"),
        ("root ::= \"a\"{3,2}", "expected {n}"),
        ("root ::= \"a\"**", "repeated again"),
        ("root ::= \"a\"\nroot ::= \"b\"", "given twice"),
        ("root ::= !", "expected a name"),
        (&deep, "at most 12 brackets"),
    ] {
        let Err(Error::Source { message }) = compiler().compile(&gbnf(text)) else { panic!("{text}") };
        assert!(message.contains(told), "{text}: {message}");
    }
}
