//! Answers that have to be something: every spelling of the wish, and what is wrong with one.

use paceline_engine::{FailureKind, ModelLimits};
use paceline_proto::v1::generate_request::Prompt;
use paceline_proto::v1::generation_client::GenerationClient;
use paceline_proto::v1::structured_outputs::Constraint;
use paceline_proto::v1::{Choices, GenerateRequest, StructuredOutputs};
use paceline_server::ChatOptions;
use paceline_text::ReasoningFormat;
use serde_json::{Value, json};

use crate::common::{Setup, TestServer, limits, tokenizer};

/// A server whose model says `text` as far as it may.
async fn obedient(reasoning: Option<ReasoningFormat>, text: &'static str) -> TestServer {
    let speaker = tokenizer("bytelevel");
    let chat = ChatOptions { tool_format: None, reasoning };
    let limits = Some(ModelLimits { max_model_len: 1_024, kv_blocks: 256, ..limits() });
    TestServer::scripted(Setup { chat, limits, ..Setup::default() }, move |submitted| {
        submitted.follow(&speaker, text);
        Ok(())
    })
    .await
}

fn schema() -> Value {
    let name = json!({"type": "string", "maxLength": 8});
    json!({"type": "object", "properties": {"name": name, "age": {"enum": [1, 22]}}, "required": ["name", "age"]})
}

fn check_schema(text: &str) {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text:?}"));
    let members = value.as_object().expect("an object");
    assert!(members.len() == 2 && value["name"].is_string() && value["age"].is_u64(), "{text}");
}

fn body(more: &Value) -> Value {
    let mut body = json!({"prompt": "x", "max_tokens": 300, "messages": [{"role": "user", "content": "x"}]});
    for (field, value) in more.as_object().expect("an object") {
        body[field] = value.clone();
    }
    body
}

fn without(mut body: Value, field: &str) -> Value {
    body.as_object_mut().expect("an object").remove(field);
    body
}

fn for_completion(body: Value) -> Value {
    without(body, "messages")
}

fn for_chat(body: Value) -> Value {
    without(body, "prompt")
}

#[tokio::test]
async fn every_spelling_of_a_wish_is_kept_to() {
    let server = obedient(None, "Sure! {\"name\": \"Ada\", \"age\": 22} Anything else?").await;
    let wishes = [
        json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema()}}}),
        json!({"structured_outputs": {"json": schema()}}),
        json!({"structured_outputs": {"json": schema().to_string(), "disable_any_whitespace": true}}),
        json!({"guided_json": schema()}),
    ];
    for wish in wishes {
        let completion = server.complete(&for_completion(body(&wish))).await.json();
        assert_eq!(completion["choices"][0]["finish_reason"], "stop", "{completion}");
        check_schema(completion["choices"][0]["text"].as_str().unwrap());
        let chat = server.chat(&for_chat(body(&wish))).await.json();
        check_schema(chat["choices"][0]["message"]["content"].as_str().unwrap());
    }
    let format = json!({"format": {"type": "json_schema", "name": "x", "schema": schema(), "strict": true}});
    let response = server.post("/v1/responses", &json!({"input": "x", "text": format})).await.json();
    check_schema(response["output"][0]["content"][0]["text"].as_str().unwrap());
    assert_eq!(response["text"]["format"]["type"], "json_schema");
    for (wish, is_it) in [
        (json!({"regex": "[0-9]{3}"}), (|text| text.len() == 3) as fn(&str) -> bool),
        (json!({"choice": ["red", "blue"]}), |text| ["red", "blue"].contains(&text)),
        (json!({"grammar": "start: \"<\" /[ab]{2}/ \">\""}), |text| text.starts_with('<') && text.len() == 4),
    ] {
        let reply = server.complete(&for_completion(body(&json!({"structured_outputs": wish})))).await.json();
        let text = reply["choices"][0]["text"].as_str().unwrap();
        assert!(is_it(text), "{wish}: {text:?}");
    }
    let several = body(&json!({"structured_outputs": {"choice": ["red", "blue"]}, "n": 3, "stream": true}));
    let chunks = server.chat(&for_chat(several)).await.chunks();
    let finished = chunks.iter().filter(|chunk| chunk["choices"][0]["finish_reason"] == "stop");
    assert_eq!(finished.count(), 3);
    server.stop().await;
}

#[tokio::test]
async fn e11_a_wish_that_cannot_be_kept_is_named_and_hurts_nobody() {
    let server = obedient(None, "red").await;
    let schema = |schema: Value| json!({"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}});
    let within = "response_format.json_schema.schema";
    for (wish, field) in [
        (schema(json!({"type": "colour"})), within),
        (schema(json!({"$ref": "#/nowhere"})), within),
        (schema(json!("{")), within),
        (json!({"structured_outputs": {"regex": "("}}), "structured_outputs.regex"),
        (json!({"structured_outputs": {"grammar": "begin: /a/"}}), "structured_outputs.grammar"),
        (json!({"structured_outputs": {"choice": []}}), "structured_outputs.choice"),
        (json!({"guided_regex": "a".repeat(300_000)}), "guided_regex"),
        (json!({"thinking_token_budget": 3}), "thinking_token_budget"),
        (json!({"thinking_token_budget": -2}), "thinking_token_budget"),
    ] {
        for reply in [server.complete(&for_completion(body(&wish))).await, server.chat(&for_chat(body(&wish))).await] {
            assert_eq!(reply.refusal(), (400, field.to_owned()), "{wish}");
        }
    }
    let good = server.complete(&for_completion(body(&json!({"guided_choice": ["red"]})))).await.json();
    assert_eq!(good["choices"][0]["text"], "red");
    server.stop().await;
    let stuck = TestServer::scripted(Setup::default(), |submitted| {
        submitted.sink.fail(FailureKind::Stuck, "no token can follow");
        Ok(())
    })
    .await;
    assert_eq!(stuck.complete(&for_completion(body(&json!({"guided_choice": ["red"]})))).await.status, 400);
    stuck.stop().await;
}

#[tokio::test]
async fn c09_the_answer_is_held_to_its_schema_behind_the_reasoning() {
    let text = "let me {see}</think>no json at all";
    for reasoning in [ReasoningFormat::DeepSeekR1, ReasoningFormat::Qwen3] {
        let server = obedient(Some(reasoning), text).await;
        let chat = for_chat(body(&json!({"guided_json": schema()})));
        let reply = server.chat(&chat).await.json();
        let message = &reply["choices"][0]["message"];
        check_schema(message["content"].as_str().unwrap());
        let thought = reasoning == ReasoningFormat::DeepSeekR1;
        assert_eq!(message["reasoning_content"] == json!("let me {see}"), thought, "{message}");
        server.stop().await;
    }
}

#[tokio::test]
async fn c17_a_budget_ends_the_reasoning_of_a_chat() {
    let server = obedient(Some(ReasoningFormat::DeepSeekR1), "one two three four five six seven").await;
    let mut lengths = Vec::new();
    for budget in [0, 2, 4] {
        let more = json!({"thinking_token_budget": budget, "guided_choice": ["red"]});
        let reply = server.chat(&for_chat(body(&more))).await.json();
        let message = &reply["choices"][0]["message"];
        assert_eq!(message["content"], "red", "{reply}");
        let thought = message["reasoning_content"].as_str().unwrap_or_default();
        lengths.push(server.tokenizer.encode(thought, false).unwrap().len());
    }
    assert_eq!(lengths, [0, 2, 4]);
    server.stop().await;
}

#[tokio::test]
async fn grpc_has_the_same_wishes() {
    let server = obedient(None, "green").await;
    let mut client = GenerationClient::connect(format!("http://{}", server.grpc)).await.unwrap();
    let request = |constraint: Option<Constraint>| GenerateRequest {
        prompt: Some(Prompt::Text("x".to_owned())),
        structured_outputs: Some(StructuredOutputs { constraint, ..StructuredOutputs::default() }),
        ..GenerateRequest::default()
    };
    let content = json!({"type": "json_schema", "json_schema": {"enum": [7]}});
    let tag = json!({"format": {"type": "tag", "begin": "<n>", "content": content, "end": "</n>"}});
    let choices = Choices { texts: vec!["red".to_owned(), "blue".to_owned()] };
    for (constraint, expected) in [
        (Constraint::Choice(choices), vec!["red", "blue"]),
        (Constraint::Regex("[x]".to_owned()), vec!["x"]),
        (Constraint::Grammar("start: \"y\"".to_owned()), vec!["y"]),
        (Constraint::Json("{\"enum\": [7]}".to_owned()), vec!["7"]),
        (Constraint::Grammar("root ::= \"z\"".to_owned()), vec!["z"]),
        (Constraint::StructuralTag(tag.to_string()), vec!["<n>7</n>"]),
    ] {
        let mut stream = client.generate(request(Some(constraint))).await.unwrap().into_inner();
        let mut text = String::new();
        while let Some(message) = stream.message().await.unwrap() {
            text.push_str(&message.text);
        }
        assert!(expected.contains(&text.as_str()), "{text:?} of {expected:?}");
    }
    for (constraint, field) in [
        (None, "structured_outputs"),
        (Some(Constraint::JsonObject(false)), "structured_outputs"),
        (Some(Constraint::Json("{".to_owned())), "structured_outputs.json"),
        (Some(Constraint::Regex("(".to_owned())), "structured_outputs.regex"),
    ] {
        let status = client.generate(request(constraint)).await.unwrap_err();
        assert_eq!(status.code(), tonic::Code::InvalidArgument);
        assert!(status.message().starts_with(field), "{}", status.message());
    }
    server.stop().await;
}
