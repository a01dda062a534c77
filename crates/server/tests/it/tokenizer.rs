//! `/tokenize`, `/detokenize`, `/tokenizer_info`.

use crate::common::TestServer;
use serde_json::json;

#[tokio::test]
async fn text_and_chats_become_tokens_and_tokens_text() {
    let server = TestServer::saying("speak").await;
    let text = "First, speak.\n";
    let ids = server.tokenizer.encode(text, false).unwrap();
    let body = json!({"model": "tiny", "prompt": text, "add_special_tokens": false, "return_token_strs": true});
    let answer = server.post("/tokenize", &body).await.json();
    assert_eq!(
        (&answer["tokens"], &answer["count"], &answer["max_model_len"]),
        (&json!(ids), &json!(ids.len()), &json!(128))
    );
    let joined: String = answer["token_strs"].as_array().unwrap().iter().map(|token| token.as_str().unwrap()).collect();
    assert_eq!(joined, text);
    assert_eq!(server.post("/detokenize", &json!({"tokens": ids})).await.json(), json!({"prompt": text}));
    let chat = server.post("/tokenize", &json!({"messages": [{"role": "user", "content": "hi"}]})).await.json();
    assert!(chat["count"].as_u64().unwrap() > 1);
    // Longer than the model's context: it is only counted.
    let long = server.post("/tokenize", &json!({"prompt": "speak ".repeat(300)})).await.json();
    assert!(long["count"].as_u64().unwrap() > 128);
    for (path, body, param) in [
        ("/tokenize", json!({}), "messages"),
        ("/tokenize", json!({"prompt": 5}), "prompt"),
        ("/tokenize", json!({"prompt": "x", "colour": 1}), "colour"),
        ("/detokenize", json!({"tokens": [904]}), "tokens"),
        ("/detokenize", json!({"tokens": ["x"]}), "tokens"),
        ("/detokenize", json!({}), "tokens"),
    ] {
        assert_eq!(server.post(path, &body).await.refusal(), (400, param.to_owned()), "{path} {body}");
    }
    assert_eq!(server.post("/tokenize", &json!({"prompt": "x", "model": "other"})).await.status, 404);
    server.stop().await;
}

#[tokio::test]
async fn a_client_learns_how_prompts_are_made() {
    let server = TestServer::saying("speak").await;
    let info = server.get("/tokenizer_info").await.json();
    assert!(info["eos_token"].is_string() && info["chat_template"].is_string(), "{info}");
    assert_eq!(info["model_max_length"], 128);
    server.stop().await;
}
