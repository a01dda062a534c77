//! Calls that are forced, or whose arguments have to match a schema.

use paceline_engine::ModelLimits;
use paceline_server::ChatOptions;
use paceline_text::{ReasoningFormat, ToolFormat};
use serde_json::{Value, json};

use crate::common::{Setup, TestServer, limits, tokenizer};

const FORMATS: [ToolFormat; 4] =
    [ToolFormat::Hermes, ToolFormat::Llama3Json, ToolFormat::Mistral, ToolFormat::DeepSeekV3];

/// A server whose model says `text` as far as it may.
async fn obedient(tools: ToolFormat, reasoning: Option<ReasoningFormat>, text: &'static str) -> TestServer {
    let speaker = tokenizer("bytelevel");
    let chat = ChatOptions { tool_format: Some(tools), reasoning };
    let limits = Some(ModelLimits { max_model_len: 4_096, kv_blocks: 1_024, ..limits() });
    TestServer::scripted(Setup { chat, limits, ..Setup::default() }, move |submitted| {
        if submitted.request.constraint.is_some() {
            submitted.follow(&speaker, text);
        } else {
            submitted.say(&speaker, text);
        }
        Ok(())
    })
    .await
}

fn parameters() -> Value {
    let city = json!({"type": "string", "maxLength": 6});
    json!({"type": "object", "properties": {"city": city, "days": {"enum": [1, 22]}}, "required": ["city", "days"]})
}

fn function(name: &str, strict: bool) -> Value {
    json!({"type": "function", "function": {"name": name, "parameters": parameters(), "strict": strict}})
}

fn ask(more: &Value) -> Value {
    let tools = json!([function("get", false), {"type": "function", "function": {"name": "get_now"}}]);
    let mut body = json!({"messages": [{"role": "user", "content": "Weather?"}], "tools": tools, "max_tokens": 2_000});
    body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    body
}

fn named(name: &str) -> Value {
    json!({"tool_choice": {"type": "function", "function": {"name": name}}})
}

/// Checks a call by its name and its arguments.
fn check(name: &Value, arguments: &Value) {
    let parsed: Value = serde_json::from_str(arguments.as_str().expect("a text")).expect("JSON");
    match name.as_str() {
        Some("get_now") => assert_eq!(parsed, json!({})),
        Some("get") => {
            let members = parsed.as_object().expect("an object");
            let known = parsed["city"].is_string() && (parsed["days"] == 1 || parsed["days"] == 22);
            assert!(members.len() == 2 && known, "{parsed}");
        }
        other => panic!("{other:?}"),
    }
}

fn check_calls(message: &Value) -> usize {
    let calls = message["tool_calls"].as_array().unwrap_or_else(|| panic!("{message}"));
    calls.iter().for_each(|call| check(&call["function"]["name"], &call["function"]["arguments"]));
    assert_eq!(message["content"], Value::Null, "{message}");
    calls.len()
}

#[tokio::test]
async fn a_forced_call_is_written_as_its_reader_expects_it() {
    for format in FORMATS {
        let server = obedient(format, None, "").await;
        let required = server.chat(&ask(&json!({"tool_choice": "required"}))).await.json();
        let choice = &required["choices"][0];
        // Where a list is closed, this model may go on calling before it closes it.
        assert!(check_calls(&choice["message"]) > 0, "{format:?}");
        assert_eq!(choice["finish_reason"], "tool_calls", "{format:?}");
        for name in ["get", "get_now"] {
            let answer = server.chat(&ask(&named(name))).await.json();
            let choice = &answer["choices"][0];
            assert_eq!((check_calls(&choice["message"]), &choice["finish_reason"]), (1, &json!("stop")), "{format:?}");
            assert_eq!(choice["message"]["tool_calls"][0]["function"]["name"], name);
        }
        let mut streamed = ask(&json!({"tool_choice": "required"}));
        streamed["stream"] = json!(true);
        let chunks = server.chat(&streamed).await.chunks();
        let deltas = chunks.iter().map(|chunk| &chunk["choices"][0]["delta"]);
        let calls: Vec<&Value> = deltas.filter_map(|delta| delta["tool_calls"].as_array()).flatten().collect();
        calls.iter().for_each(|call| check(&call["function"]["name"], &call["function"]["arguments"]));
        assert_eq!(
            (calls.is_empty(), &chunks.last().unwrap()["choices"][0]["finish_reason"]),
            (false, &json!("tool_calls"))
        );
        server.stop().await;
    }
}

#[tokio::test]
async fn several_calls_may_be_forced_and_one_where_only_one_may_come() {
    // The model would go on calling for ever.
    let text = "<tool_call>\n{\"name\": \"get_now\", \"arguments\": {}}\n</tool_call>\n\
                <tool_call>\n{\"name\": \"get\", \"arguments\": {\"city\": \"Bern\", \"days\": 22}}\n</tool_call>";
    let server = obedient(ToolFormat::Hermes, None, text).await;
    let both = server.chat(&ask(&json!({"tool_choice": "required"}))).await.json();
    assert_eq!(check_calls(&both["choices"][0]["message"]), 2);
    assert_eq!(
        both["choices"][0]["message"]["tool_calls"][1]["function"]["arguments"],
        "{\"city\": \"Bern\", \"days\": 22}"
    );
    let one = server.chat(&ask(&json!({"tool_choice": "required", "parallel_tool_calls": false}))).await.json();
    assert_eq!(check_calls(&one["choices"][0]["message"]), 1);
    let own = server.chat(&ask(&named("get_now"))).await.json();
    assert_eq!(check_calls(&own["choices"][0]["message"]), 1);
    let none = server.chat(&ask(&json!({"tool_choice": "none"}))).await.json();
    assert_eq!(none["choices"][0]["message"]["content"], text);
    let cut = server.chat(&ask(&json!({"tool_choice": "required", "max_tokens": 3}))).await.json();
    assert_eq!(cut["choices"][0]["finish_reason"], "length");
    server.stop().await;
}

#[tokio::test]
async fn reasoning_ends_before_a_forced_call() {
    let server = obedient(ToolFormat::Hermes, Some(ReasoningFormat::DeepSeekR1), "hm <tool_call> hm</think>no").await;
    let answer = server.chat(&ask(&json!({"tool_choice": "required"}))).await.json();
    let choice = &answer["choices"][0];
    assert_eq!(choice["message"]["reasoning"], "hm <tool_call> hm");
    assert!(check_calls(&choice["message"]) > 0);
    let thought = answer["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap();
    assert_eq!(thought, server.tokenizer.encode("hm <tool_call> hm", false).unwrap().len() as u64);
    server.stop().await;
}

#[tokio::test]
async fn strict_arguments_match_their_schema_where_nothing_is_forced() {
    for format in FORMATS {
        let spelling = format.spelling("");
        let text = match format {
            ToolFormat::Hermes => "Look: <tool_call>\n{\"name\": \"get\", \"arguments\": {\"town\": 1}}\n</tool_call>",
            ToolFormat::Llama3Json => "{\"name\": \"get\", \"parameters\": {\"town\": 1}}",
            ToolFormat::Mistral => "Look: [TOOL_CALLS][{\"name\": \"get\", \"arguments\": {\"town\": 1}}]",
            ToolFormat::DeepSeekV3 => {
                "Look: <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get<｜tool▁sep｜>{\"town\": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
            }
        };
        assert!(!spelling.call.is_empty());
        let server = obedient(format, None, text).await;
        let tools = json!({"tools": [function("get", true), function("other", false)], "parallel_tool_calls": false});
        let message = server.chat(&ask(&tools)).await.json()["choices"][0]["message"].clone();
        let call = &message["tool_calls"][0]["function"];
        check(&call["name"], &call["arguments"]);
        let content = if format == ToolFormat::Llama3Json { Value::Null } else { json!("Look: ") };
        assert_eq!(message["content"], content, "{format:?}");
        server.stop().await;
        let server = obedient(format, None, "Nothing to call, [1] {2} <3>.").await;
        let answer = server.chat(&ask(&tools)).await.json();
        assert_eq!(answer["choices"][0]["message"]["content"], "Nothing to call, [1] {2} <3>.");
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
        server.stop().await;
    }
}

#[tokio::test]
async fn formatted_content_and_calls_are_two_ways_to_answer() {
    let schema = json!({"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]});
    let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
    let wish = |more: &Value| {
        let mut body = ask(more);
        body["response_format"] = format.clone();
        body
    };
    let server = obedient(ToolFormat::Hermes, None, "{\"sum\": 7}").await;
    let answer = server.chat(&wish(&json!({}))).await.json();
    assert_eq!(answer["choices"][0]["message"]["content"], "{\"sum\": 7}");
    let forced = server.chat(&wish(&json!({"tool_choice": "required"}))).await.json();
    assert!(check_calls(&forced["choices"][0]["message"]) > 0);
    let mut excluded = ask(&json!({"tool_choice": "required"}));
    excluded["structured_outputs"] = json!({"regex": "a"});
    assert_eq!(server.chat(&excluded).await.refusal(), (400, "tool_choice".to_owned()));
    server.stop().await;
    let calling = "<tool_call>\n{\"name\": \"get_now\", \"arguments\": {}}\n</tool_call>";
    let server = obedient(ToolFormat::Hermes, None, calling).await;
    assert_eq!(check_calls(&server.chat(&wish(&json!({}))).await.json()["choices"][0]["message"]), 1);
    server.stop().await;
}

#[tokio::test]
async fn calls_that_cannot_be_forced_are_refused_by_name() {
    let server = obedient(ToolFormat::Hermes, None, "").await;
    let bad = |schema: Value| {
        let tool = json!({"type": "function", "function": {"name": "get", "parameters": schema}});
        json!({"tools": [function("first", false), tool], "tool_choice": "required"})
    };
    for (more, field) in [
        (named("set"), "tool_choice.function.name"),
        (json!({"tools": [], "tool_choice": "required"}), "tool_choice"),
        (bad(json!({"type": "object", "properties": {"a": {"type": "colour"}}})), "tools[1].function.parameters"),
        (bad(json!({"type": "string"})), "tools[1].function.parameters.type"),
        (bad(json!([])), "tools[1].function.parameters"),
    ] {
        assert_eq!(server.chat(&ask(&more)).await.refusal(), (400, field.to_owned()), "{more}");
    }
    let unknown = server.chat(&ask(&named("set"))).await.json();
    assert!(unknown["error"]["message"].as_str().unwrap().ends_with("there are: get, get_now"), "{unknown}");
    let flat = json!({"type": "function", "name": "get", "parameters": {"type": "object", "properties": {"a": {"type": "colour"}}}});
    let body = json!({"input": "x", "tools": [flat], "tool_choice": "required"});
    assert_eq!(server.post("/v1/responses", &body).await.refusal(), (400, "tools[0].parameters".to_owned()));
    let body = json!({"input": "x", "tools": [flat], "tool_choice": {"type": "function", "name": "set"}});
    assert_eq!(server.post("/v1/responses", &body).await.refusal(), (400, "tool_choice.name".to_owned()));
    server.stop().await;
    let server = obedient(ToolFormat::DeepSeekV3, None, "").await;
    let spaced = json!({"tools": [function("two words", false)], "tool_choice": "required"});
    assert_eq!(server.chat(&ask(&spaced)).await.refusal(), (400, "tools[0].function.name".to_owned()));
    server.stop().await;
}

#[tokio::test]
async fn a_response_forces_calls_in_its_own_words() {
    let server = obedient(ToolFormat::Hermes, Some(ReasoningFormat::DeepSeekR1), "so</think>no").await;
    let tool = json!({"type": "function", "name": "get", "parameters": parameters(), "strict": true});
    let choice = json!({"type": "function", "name": "get"});
    let mut body = json!({"input": "x", "tools": [tool], "tool_choice": choice, "parallel_tool_calls": false});
    let answer = server.post("/v1/responses", &body).await.json();
    assert_eq!((&answer["tool_choice"], &answer["parallel_tool_calls"]), (&choice, &json!(false)));
    let output = answer["output"].as_array().unwrap();
    assert_eq!(
        (output.len(), &output[0]["type"], &output[1]["type"]),
        (2, &json!("reasoning"), &json!("function_call"))
    );
    check(&output[1]["name"], &output[1]["arguments"]);
    assert!(answer["usage"]["output_tokens_details"]["reasoning_tokens"].as_u64() > Some(0), "{answer}");
    body["stream"] = json!(true);
    let reply = server.post("/v1/responses", &body).await;
    let events: Vec<Value> = reply.events().iter().map(|event| serde_json::from_str(event).unwrap()).collect();
    let of = |kind: &str| events.iter().filter(|event| event["type"] == kind).collect::<Vec<_>>();
    let done = of("response.function_call_arguments.done");
    assert_eq!((done.len(), &done[0]["output_index"]), (1, &json!(1)));
    check(&json!("get"), &done[0]["arguments"]);
    assert_eq!(of("response.output_item.added").len(), of("response.output_item.done").len());
    let thought: String =
        of("response.reasoning_text.delta").iter().filter_map(|event| event["delta"].as_str()).collect();
    assert_eq!(thought, "so");
    let last = &events.last().unwrap()["response"];
    let shown: Vec<&Value> = of("response.output_item.done").iter().map(|event| &event["item"]).collect();
    assert_eq!((&last["output"][0], &last["output"][1]), (shown[0], shown[1]));
    server.stop().await;
}
