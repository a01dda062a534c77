//! `/v1/responses`.

use crate::common::{Setup, TestServer, limits};
use paceline_engine::ModelLimits;
use paceline_server::ChatOptions;
use paceline_text::ToolFormat;
use serde_json::{Value, json};

#[tokio::test]
async fn a_response_is_a_chat_under_newer_names() {
    let server = TestServer::saying("speak").await;
    let reply =
        server.post("/v1/responses", &json!({"model": "tiny", "input": "hi", "instructions": "Be brief."})).await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    let body = reply.json();
    assert_eq!((&body["object"], &body["status"]), (&json!("response"), &json!("completed")));
    assert_eq!(body["output"][0]["content"][0]["text"], "speak");
    assert_eq!(body["usage"]["output_tokens"], server.tokenizer.encode("speak", false).unwrap().len() + 1);
    let cut = server.post("/v1/responses", &json!({"input": "hi", "max_output_tokens": 1})).await.json();
    assert_eq!(
        (&cut["status"], &cut["incomplete_details"]["reason"]),
        (&json!("incomplete"), &json!("max_output_tokens"))
    );
    let refused = server.post("/v1/responses", &json!({"input": "hi", "previous_response_id": "r"})).await;
    assert_eq!(refused.refusal(), (400, "previous_response_id".to_owned()));
    server.stop().await;
}

#[tokio::test]
async fn a_streamed_response_names_its_events() {
    let chat = ChatOptions { tool_format: Some(ToolFormat::Hermes), reasoning: None };
    let said = "See<tool_call>{\"name\": \"get\"}</tool_call>";
    let limits = Some(ModelLimits { max_model_len: 1_024, kv_blocks: 256, ..limits() });
    let server = TestServer::saying_with(Setup { chat, limits, ..Setup::default() }, said).await;
    let body =
        json!({"input": "hi", "stream": true, "tools": [{"type": "function", "name": "get"}], "max_output_tokens": 99});
    let reply = server.post("/v1/responses", &body).await;
    let names: Vec<&str> = reply.body.lines().filter_map(|line| line.strip_prefix("event: ")).collect();
    let events: Vec<Value> = reply.events().iter().map(|event| serde_json::from_str(event).unwrap()).collect();
    assert!(events.iter().zip(&names).all(|(event, name)| event["type"] == *name));
    assert!(events.iter().zip(0..).all(|(event, number)| event["sequence_number"] == number));
    assert_eq!((names[0], *names.last().unwrap()), ("response.created", "response.completed"));
    let of = |kind: &str| events.iter().filter(|event| event["type"] == kind).collect::<Vec<_>>();
    let text: String = of("response.output_text.delta").iter().filter_map(|event| event["delta"].as_str()).collect();
    assert_eq!(text, "See");
    // Every item begins and ends in its place.
    for kind in ["response.output_item.added", "response.output_item.done"] {
        let mut places: Vec<u64> = of(kind).iter().map(|event| event["output_index"].as_u64().unwrap()).collect();
        places.sort_unstable();
        assert_eq!(places, [0, 1], "{kind}");
    }
    assert_eq!(of("response.function_call_arguments.done")[0]["arguments"], "{}");
    let output = &events.last().unwrap()["response"]["output"];
    assert_eq!((&output[0]["content"][0]["text"], &output[1]["name"]), (&json!("See"), &json!("get")));
    server.stop().await;
}
