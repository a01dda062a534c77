//! Chats that call tools, think, or are continued.

use crate::common::{EOS, Setup, TestServer, limits, output, tokenizer};
use paceline_engine::{FinishReason, ModelLimits};
use paceline_server::ChatOptions;
use paceline_text::{ReasoningFormat, ToolFormat};
use serde_json::{Value, json};

const CALLS: &str = "Let me look.<tool_call>\n{\"name\": \"get\", \"arguments\": {\"city\": \"Bern\"}}\n</tool_call>\
    <tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>";

fn with_tools(more: &Value) -> Value {
    let tool = json!({"type": "function", "function": {"name": "get", "parameters": {"type": "object"}}});
    let mut body = json!({"messages": [{"role": "user", "content": "Weather?"}], "tools": [tool], "max_tokens": 400});
    body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    body
}

fn hermes() -> Setup {
    let chat = ChatOptions { tool_format: Some(ToolFormat::Hermes), reasoning: None };
    Setup { chat, limits: Some(roomy()), ..Setup::default() }
}

/// A context long enough for these answers.
fn roomy() -> ModelLimits {
    ModelLimits { max_model_len: 1_024, kv_blocks: 256, ..limits() }
}

#[tokio::test]
async fn tool_calls_are_told_apart_from_content() {
    let server = TestServer::saying_with(hermes(), CALLS).await;
    let answer = server.chat(&with_tools(&json!({}))).await.json();
    let choice = &answer["choices"][0];
    assert_eq!(
        (&choice["finish_reason"], &choice["message"]["content"]),
        (&json!("tool_calls"), &json!("Let me look."))
    );
    let calls = choice["message"]["tool_calls"].as_array().unwrap();
    assert_eq!(calls.len(), 2);
    assert_eq!(calls[0]["type"], "function");
    assert_eq!(calls[0]["function"], json!({"name": "get", "arguments": "{\"city\": \"Bern\"}"}));
    assert_ne!(calls[0]["id"], calls[1]["id"]);
    let one = server.chat(&with_tools(&json!({"parallel_tool_calls": false}))).await.json();
    assert_eq!(one["choices"][0]["message"]["tool_calls"].as_array().unwrap().len(), 1);
    // No tools, no calls: the text stays as it is.
    let none = server.chat(&with_tools(&json!({"tool_choice": "none"}))).await.json();
    assert_eq!(none["choices"][0]["message"]["content"], CALLS);
    assert_eq!(none["choices"][0]["finish_reason"], "stop");
    server.stop().await;
}

#[tokio::test]
async fn a_stream_has_the_same_calls() {
    let server = TestServer::saying_with(hermes(), CALLS).await;
    let chunks = server.chat(&with_tools(&json!({"stream": true}))).await.chunks();
    let deltas: Vec<&Value> = chunks.iter().map(|chunk| &chunk["choices"][0]["delta"]).collect();
    let content: String = deltas.iter().filter_map(|delta| delta["content"].as_str()).collect();
    assert_eq!(content, "Let me look.");
    let calls: Vec<&Value> = deltas.iter().filter_map(|delta| delta["tool_calls"].as_array()).flatten().collect();
    let names: Vec<&Value> = calls.iter().map(|call| &call["function"]["name"]).collect();
    assert_eq!((names, &calls[1]["index"]), (vec![&json!("get"), &json!("now")], &json!(1)));
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
    server.stop().await;
}

#[tokio::test]
async fn a_model_whose_calls_nobody_can_read_refuses_tools() {
    let server = TestServer::saying_with(Setup { limits: Some(roomy()), ..Setup::default() }, "speak").await;
    assert_eq!(server.chat(&with_tools(&json!({}))).await.refusal(), (400, "tools".to_owned()));
    assert_eq!(server.chat(&with_tools(&json!({"tool_choice": "none"}))).await.status, 200);
    server.stop().await;
}

#[tokio::test]
async fn reasoning_has_a_field_of_its_own() {
    let chat = ChatOptions { tool_format: None, reasoning: Some(ReasoningFormat::DeepSeekR1) };
    let server = TestServer::saying_with(Setup { chat, ..Setup::default() }, "so it is</think>two").await;
    let ask = json!({"messages": [{"role": "developer", "content": "x"}, {"role": "user", "content": "1+1?"}]});
    let message = server.chat(&ask).await.json()["choices"][0]["message"].clone();
    assert_eq!((&message["reasoning"], &message["content"]), (&json!("so it is"), &json!("two")));
    assert_eq!(message["reasoning_content"], "so it is");
    let mut streamed = ask.clone();
    streamed["stream"] = json!(true);
    let chunks = server.chat(&streamed).await.chunks();
    let joined = |field: &str| -> String {
        chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"][field].as_str()).collect()
    };
    assert_eq!((joined("reasoning"), joined("content")), ("so it is".to_owned(), "two".to_owned()));
    let mut hidden = ask;
    hidden["include_reasoning"] = json!(false);
    let message = server.chat(&hidden).await.json()["choices"][0]["message"].clone();
    assert_eq!((&message["reasoning"], &message["content"]), (&Value::Null, &json!("two")));
    server.stop().await;
}

#[tokio::test]
async fn the_last_message_can_be_continued() {
    let (server, mut requests) = TestServer::held(Setup::default()).await;
    let seen = tokio::spawn(async move {
        let submitted = requests.recv().await.unwrap();
        let prompt = submitted.request.prompt_token_ids.clone();
        submitted.produce(&[300; 4]);
        prompt
    });
    let messages = json!([{"role": "user", "content": "Sing"}, {"role": "assistant", "content": "La la"}]);
    let body = json!({"messages": messages, "continue_final_message": true, "max_tokens": 4});
    assert_eq!(server.chat(&body).await.status, 200);
    let prompt = server.tokenizer.decode(&seen.await.unwrap(), paceline_text::SpecialTokens::Show).unwrap();
    assert!(prompt.ends_with("La la"), "{prompt}");
    server.stop().await;
}

/// The usage of an answer that comes in steps of several tokens, and of its stream.
async fn usage_of(steps: &[&[u32]], reason: FinishReason, more: &Value) -> Value {
    let steps: Vec<Vec<u32>> = steps.iter().map(|step| step.to_vec()).collect();
    let chat = ChatOptions { tool_format: None, reasoning: Some(ReasoningFormat::DeepSeekR1) };
    let server = TestServer::scripted(Setup { chat, ..Setup::default() }, move |submitted| {
        let (last, first) = steps.split_last().expect("a step");
        let tokens = |step: &Vec<u32>| step.iter().map(|token| output(*token, None)).collect::<Vec<_>>();
        first.iter().for_each(|step| submitted.sink.tokens(tokens(step)));
        submitted.sink.finish(tokens(last), reason);
        Ok(())
    })
    .await;
    let mut ask = json!({"messages": [{"role": "user", "content": "1+1?"}]});
    ask.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    let usage = server.chat(&ask).await.json()["usage"].clone();
    ask["stream"] = json!(true);
    ask["stream_options"] = json!({"include_usage": true});
    assert_eq!(server.chat(&ask).await.chunks().last().expect("a chunk")["usage"], usage);
    let plain = server.complete(&json!({"prompt": "x"})).await.json()["usage"].clone();
    assert_eq!(plain["completion_tokens_details"], Value::Null);
    server.stop().await;
    usage
}

#[tokio::test]
async fn c02_tokens_of_reasoning_are_counted_after_the_cut() {
    let ids = |text: &str| tokenizer("bytelevel").encode(text, false).unwrap();
    let thought = |usage: &Value| {
        let details = &usage["completion_tokens_details"];
        (usage["completion_tokens"].as_u64().unwrap(), details["reasoning_tokens"].as_u64().unwrap())
    };
    let two = ids("ab");
    let [first, second] = [two[0], *two.last().unwrap()];
    // The last step has [r, r, EOS]; what was drafted behind the end was cut before.
    let ended = usage_of(&[&[first], &[first, second, EOS]], FinishReason::Stop(Some(EOS)), &json!({})).await;
    assert_eq!(thought(&ended), (4, 3));
    // A stop string in the middle of a step: what follows it never counts.
    let stop = tokenizer("bytelevel").token_text(second);
    let stopped = usage_of(&[&[first, second, first, first]], FinishReason::Length, &json!({"stop": stop})).await;
    let (completion, reasoning) = thought(&stopped);
    assert!(completion <= 2 && reasoning <= completion, "{stopped}");
    // The marker ends reasoning inside a step.
    let close = ids("</think>");
    let step = [&[first, first], close.as_slice(), &[second, EOS]].concat();
    let both = usage_of(&[&step], FinishReason::Stop(Some(EOS)), &json!({})).await;
    assert_eq!(thought(&both), (4 + close.len() as u64, 2));
}
