//! What clients are told of the prefix cache, and what they may ask of it.

use crate::common::{Setup, TestServer};
use serde_json::{Value, json};

/// A server whose engine read this many tokens of each prompt from its cache.
async fn having_cached(tokens: u32) -> TestServer {
    let speaker = crate::common::shared("bytelevel");
    TestServer::scripted(Setup::default(), move |submitted| {
        submitted.sink.cached_tokens(tokens);
        submitted.say(&speaker, "red");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn usage_tells_what_was_read_from_the_cache() {
    let server = having_cached(16).await;
    let cached = |body: &Value| body["usage"]["prompt_tokens_details"]["cached_tokens"].clone();
    let prompt: Vec<u32> = (300..340).collect();
    let body = server.complete(&json!({"prompt": prompt, "n": 3, "max_tokens": 4})).await.json();
    assert_eq!((cached(&body), &body["usage"]["prompt_tokens"]), (json!(16), &json!(40)), "each prompt once");
    let two = server.complete(&json!({"prompt": [prompt, prompt], "max_tokens": 4})).await.json();
    assert_eq!((cached(&two), &two["usage"]["prompt_tokens"]), (json!(32), &json!(80)));
    let streamed = json!({"prompt": prompt, "stream": true, "stream_options": {"include_usage": true}});
    assert_eq!(cached(server.complete(&streamed).await.chunks().last().unwrap()), 16);
    let messages = json!([{"role": "user", "content": "hi"}]);
    assert_eq!(cached(&server.chat(&json!({"messages": messages, "max_tokens": 4})).await.json()), 16);
    let response = server.post("/v1/responses", &json!({"input": "hi"})).await.json();
    assert_eq!(response["usage"]["input_tokens_details"]["cached_tokens"], 16);
    server.stop().await;
}

#[tokio::test]
async fn d09_a_salt_goes_with_the_request_and_choices_share_their_prompt() {
    let (server, mut requests) = TestServer::held(Setup::default()).await;
    let seen = tokio::spawn(async move {
        let mut seen = Vec::new();
        for _ in 0..4 {
            let submitted = requests.recv().await.unwrap();
            seen.push((submitted.request.cache_salt.clone(), submitted.request.shares_prompt_with));
            submitted.produce(&[300; 4]);
        }
        seen
    });
    let body = json!({"prompt": ["red", "blue"], "n": 2, "max_tokens": 4, "cache_salt": "tenant"});
    assert_eq!(server.complete(&body).await.status, 200);
    let (salts, shared): (Vec<Vec<u8>>, Vec<_>) = seen.await.unwrap().into_iter().unzip();
    assert!(salts.iter().all(|salt| salt == b"tenant"), "{salts:?}");
    assert!(matches!(shared[..], [None, Some(_), None, Some(_)]), "{shared:?}");
    assert_ne!(shared[1], shared[3], "each prompt has a first choice of its own");
    for (salt, field) in [(json!(""), "cache_salt"), (json!(7), "cache_salt")] {
        assert_eq!(
            server.complete(&json!({"prompt": "red", "cache_salt": salt})).await.refusal(),
            (400, field.to_owned())
        );
    }
    server.stop().await;
}
