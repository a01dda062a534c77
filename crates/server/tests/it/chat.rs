//! `/v1/chat/completions` over real sockets.

use crate::common::{EOS, LENGTH, Setup, TestServer};
use serde_json::{Value, json};

fn hello() -> Value {
    json!([{"role": "user", "content": "Name one colour."}])
}

#[tokio::test]
async fn a_conversation_goes_through_the_models_template() {
    let (server, mut requests) = TestServer::held(Setup::default()).await;
    let speaker = server.tokenizer.clone();
    let prompt = tokio::spawn(async move {
        let submitted = requests.recv().await.unwrap();
        let prompt = submitted.request.prompt_token_ids.clone();
        submitted.say(&speaker, "red");
        prompt
    });
    let messages =
        json!([{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}]);
    let body = server.chat(&json!({"model": "tiny", "messages": messages, "max_tokens": 8})).await.json();
    assert!(body["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert_eq!(body["object"], "chat.completion");
    let message = &body["choices"][0]["message"];
    assert_eq!((&message["role"], &message["content"]), (&json!("assistant"), &json!("red")));
    assert_eq!(message.get("refusal"), Some(&Value::Null));
    let prompt = prompt.await.unwrap();
    let text = server.tokenizer.decode(&prompt, paceline_text::SpecialTokens::Show).unwrap();
    assert!(text.ends_with("<|im_start|>user\none\ntwo<|im_end|>\n<|im_start|>assistant\n"), "{text}");
    assert_eq!(prompt[0], 1, "the template's own special token, not a second one");
    server.stop().await;
}

#[tokio::test]
async fn a_stream_says_who_speaks_first() {
    let server = TestServer::saying("red or blue").await;
    let body =
        json!({"messages": hello(), "stream": true, "stream_options": {"include_usage": true}, "max_tokens": 16});
    let chunks = server.chat(&body).await.chunks();
    assert_eq!(chunks[0]["object"], "chat.completion.chunk");
    assert_eq!(chunks[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    let (usage, rest) = chunks[1..].split_last().unwrap();
    let text: String = rest.iter().map(|chunk| chunk["choices"][0]["delta"]["content"].as_str().unwrap()).collect();
    assert_eq!(text, "red or blue");
    assert_eq!(rest.last().unwrap()["choices"][0]["finish_reason"], "stop");
    assert_eq!(usage["choices"], json!([]));
    assert!(usage["usage"]["prompt_tokens"].as_u64().unwrap() > 20);
    server.stop().await;
}

#[tokio::test]
async fn log_probabilities_carry_bytes() {
    let server = TestServer::saying("é!").await;
    let body = json!({"messages": hello(), "logprobs": true, "top_logprobs": 2, "n": 2, "max_tokens": 8});
    let body = server.chat(&body).await.json();
    assert_eq!(body["choices"].as_array().unwrap().len(), 2);
    let content = body["choices"][1]["logprobs"]["content"].as_array().unwrap();
    let text: String = content.iter().map(|token| token["token"].as_str().unwrap()).collect();
    assert_eq!(text, "é!<|im_end|>");
    let bytes: Vec<u8> = content
        .iter()
        .flat_map(|token| token["bytes"].as_array().unwrap().iter().map(|byte| byte.as_u64().unwrap() as u8))
        .collect();
    assert_eq!(bytes, "é!<|im_end|>".as_bytes());
    assert_eq!(content[0]["top_logprobs"].as_array().unwrap().len(), 2);
    assert_eq!(content[0]["top_logprobs"][0]["token"], content[0]["token"]);
    let refused = json!({"messages": hello(), "top_logprobs": 2});
    assert_eq!(server.chat(&refused).await.refusal(), (400, "top_logprobs".to_owned()));
    server.stop().await;
}

#[tokio::test]
async fn without_a_limit_the_answer_may_fill_the_context() {
    let (server, mut requests) = TestServer::held(Setup::default()).await;
    tokio::spawn(async move {
        while let Some(submitted) = requests.recv().await {
            let asked = submitted.request.max_new_tokens + submitted.request.prompt_token_ids.len() as u32;
            assert_eq!(asked, LENGTH);
            submitted.produce(&[300, EOS]);
        }
    });
    assert_eq!(server.chat(&json!({"messages": hello()})).await.status, 200);
    let long = "speak ".repeat(200);
    let refused = server.chat(&json!({"messages": [{"role": "user", "content": long}]})).await;
    assert_eq!(refused.refusal(), (400, "messages".to_owned()));
    server.stop().await;
}

#[tokio::test]
async fn what_clients_really_send_is_understood() {
    let server = TestServer::saying("17").await;
    let body = json!({"messages": [
            {"role": "user", "content": "Question: What is 5 + 11?\nAnswer:"},
            {"role": "assistant", "content": "16", "refusal": null, "annotations": null, "audio": null,
             "function_call": null, "tool_calls": null, "reasoning": null},
            {"role": "user", "content": "Question: Tom?\nAnswer:"}],
        "model": "tiny", "max_tokens": 16, "temperature": 0, "stop": ["\n", "Question:"], "seed": 1234});
    let reply = server.chat(&body).await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    assert_eq!(reply.json()["choices"][0]["message"]["content"], "17");
    let tools = json!({"messages": hello(), "tools": [{"type": "function"}]});
    assert_eq!(server.chat(&tools).await.refusal(), (400, "tools[0].function.name".to_owned()));
    server.stop().await;
}
