//! Prompts that are reported: echo, log-probabilities of prompts, token ids.

use crate::common::{Setup, TestServer};
use serde_json::{Value, json};

fn array(value: &Value) -> &[Value] {
    value.as_array().expect("an array")
}

#[tokio::test]
async fn e03_an_echoed_prompt_has_a_log_probability_for_every_token_but_the_first() {
    let server = TestServer::saying("speak").await;
    let prompt = server.tokenizer.encode("First, speak.", false).unwrap();
    let body =
        json!({"prompt": [prompt], "echo": true, "logprobs": 1, "max_tokens": 1, "temperature": 0, "seed": 1234});
    for streamed in [false, true] {
        let choice = if streamed {
            let mut body = body.clone();
            body["stream"] = json!(true);
            let chunks = server.complete(&body).await.chunks();
            let mut all = chunks[0]["choices"][0].clone();
            for chunk in &chunks[1..] {
                for field in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
                    let more = array(&chunk["choices"][0]["logprobs"][field]).to_vec();
                    all["logprobs"][field].as_array_mut().unwrap().extend(more);
                }
            }
            all
        } else {
            server.complete(&body).await.json()["choices"][0].clone()
        };
        let logprobs = &choice["logprobs"];
        for field in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
            assert_eq!(array(&logprobs[field]).len(), prompt.len() + 1, "{field}");
        }
        assert_eq!((&logprobs["token_logprobs"][0], &logprobs["top_logprobs"][0]), (&Value::Null, &Value::Null));
        for (logprob, top) in array(&logprobs["token_logprobs"]).iter().zip(array(&logprobs["top_logprobs"])).skip(1) {
            let values = top.as_object().unwrap().values();
            assert_eq!(values.map(|value| value.as_f64().unwrap()).fold(f64::MIN, f64::max), logprob.as_f64().unwrap());
        }
        let offsets: Vec<u64> = array(&logprobs["text_offset"]).iter().map(|offset| offset.as_u64().unwrap()).collect();
        assert!(offsets.is_sorted() && offsets[0] == 0, "{offsets:?}");
    }
    server.stop().await;
}

#[tokio::test]
async fn e04_nothing_to_produce_gives_the_prompt_alone() {
    let server = TestServer::saying("speak").await;
    let text = "First, speak.";
    let prompt = server.tokenizer.encode(text, false).unwrap();
    let body = json!({"prompt": text, "echo": true, "logprobs": 0, "max_tokens": 0});
    let answer = server.complete(&body).await.json();
    let choice = &answer["choices"][0];
    assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!(text), &json!("length")));
    assert_eq!(array(&choice["logprobs"]["tokens"]).len(), prompt.len());
    assert_eq!(
        (&answer["usage"]["prompt_tokens"], &answer["usage"]["completion_tokens"]),
        (&json!(prompt.len()), &json!(0))
    );
    let plain = server.complete(&json!({"prompt": text, "echo": true, "max_tokens": 0})).await.json();
    assert_eq!(plain["choices"][0]["text"], text);
    // Without echo there is nothing to answer.
    let refused = server.complete(&json!({"prompt": text, "max_tokens": 0})).await;
    assert_eq!(refused.refusal(), (400, "max_tokens".to_owned()));
    assert_eq!(server.complete(&json!({"prompt": text})).await.status, 200);
    server.stop().await;
}

#[tokio::test]
async fn e06_tokens_joined_are_the_echoed_text() {
    let server = TestServer::saying(" naïve 日本\nspeak").await;
    for text in ["First\n\n  speak", "naïve 😀 日本語", " leading", "<|im_start|>user\nhi<|im_end|>"] {
        let ids = server.tokenizer.encode(text, false).unwrap();
        for prompt in [json!(text), json!([ids])] {
            let body = json!({"prompt": prompt, "echo": true, "logprobs": 1, "max_tokens": 60});
            let choice = server.complete(&body).await.json()["choices"][0].clone();
            let logprobs = &choice["logprobs"];
            let tokens: Vec<&str> = array(&logprobs["tokens"]).iter().map(|token| token.as_str().unwrap()).collect();
            let shown = choice["text"].as_str().unwrap();
            assert!(shown.starts_with(text), "{shown}");
            // The end-of-sequence token is reported, and not shown.
            assert_eq!(tokens[..tokens.len() - 1].concat(), shown);
            for (token, offset) in tokens.iter().zip(array(&logprobs["text_offset"])) {
                let offset = usize::try_from(offset.as_u64().unwrap()).unwrap();
                let rest: String = shown.chars().skip(offset).collect();
                assert!(rest.starts_with(token) || token.starts_with("<|"), "{token:?} at {offset}");
            }
        }
    }
    server.stop().await;
}

/// A token that the tokenizer put before the text is reported and takes no place in it.
#[tokio::test]
async fn a_bos_token_is_no_part_of_the_echoed_text() {
    let setup = Setup { tokenizer: Some("metaspace"), ..Setup::default() };
    let server = TestServer::saying_with(setup, "speak").await;
    let body = json!({"prompt": "hello", "echo": true, "logprobs": 0, "max_tokens": 0});
    let choice = server.complete(&body).await.json()["choices"][0].clone();
    assert_eq!(choice["text"], "hello");
    assert_eq!((&choice["logprobs"]["text_offset"][0], &choice["logprobs"]["text_offset"][1]), (&json!(0), &json!(0)));
    server.stop().await;
}

#[tokio::test]
async fn prompt_logprobs_and_token_ids_are_reported_when_asked_for() {
    let server = TestServer::saying("speak").await;
    let ids = server.tokenizer.encode("First, speak.", false).unwrap();
    let body = json!({"prompt": [ids], "prompt_logprobs": 2, "return_token_ids": true, "max_tokens": 9, "logprobs": 0,
        "return_tokens_as_token_ids": true});
    let choice = server.complete(&body).await.json()["choices"][0].clone();
    assert_eq!(choice["prompt_token_ids"], json!(ids));
    let of_prompt = array(&choice["prompt_logprobs"]);
    assert_eq!((of_prompt.len(), &of_prompt[0]), (ids.len(), &Value::Null));
    let own = &of_prompt[1][ids[1].to_string()];
    assert_eq!((&own["rank"], &own["logprob"]), (&json!(1), &json!(-0.5)));
    let produced: Vec<u64> = array(&choice["token_ids"]).iter().map(|id| id.as_u64().unwrap()).collect();
    let names: Vec<String> = produced.iter().map(|id| format!("token_id:{id}")).collect();
    assert_eq!(choice["logprobs"]["tokens"], json!(names));
    let chat = json!({"messages": [{"role": "user", "content": "x"}], "prompt_logprobs": 1, "return_token_ids": true});
    let answer = server.chat(&chat).await.json();
    assert_eq!(array(&answer["prompt_logprobs"]).len(), array(&answer["prompt_token_ids"]).len());
    assert!(!array(&answer["choices"][0]["token_ids"]).is_empty());
    server.stop().await;
}

#[tokio::test]
async fn a_long_prompt_can_be_cut_to_its_end() {
    let (server, mut requests) = TestServer::held(Setup::default()).await;
    let ids: Vec<u32> = (300..500).collect();
    let seen = tokio::spawn(async move {
        let mut seen = Vec::new();
        while seen.len() < 2 {
            let submitted = requests.recv().await.unwrap();
            seen.push(submitted.request.prompt_token_ids.clone());
            submitted.produce(&[300; 20]);
        }
        seen
    });
    server.complete(&json!({"prompt": ids, "truncate_prompt_tokens": 5})).await;
    server.complete(&json!({"prompt": ids, "truncate_prompt_tokens": -1, "max_tokens": 28})).await;
    let seen = seen.await.unwrap();
    assert_eq!(seen[0], ids[195..]);
    assert_eq!(seen[1], ids[100..]);
    let refused = server.complete(&json!({"prompt": ids, "truncate_prompt_tokens": 0})).await;
    assert_eq!(refused.refusal(), (400, "truncate_prompt_tokens".to_owned()));
    server.stop().await;
}
