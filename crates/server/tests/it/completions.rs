//! `/v1/completions` over real sockets.

use crate::common::{EOS, LENGTH, Setup, TestServer, output};
use paceline_engine::FinishReason;
use serde_json::{Value, json};

#[tokio::test]
async fn an_answer_has_the_structure_clients_know() {
    let server = TestServer::saying("speak, speak.").await;
    let reply = server.complete(&json!({"model": "tiny", "prompt": "First", "max_tokens": 50, "temperature": 0})).await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    let body = reply.json();
    assert!(body["id"].as_str().unwrap().starts_with("cmpl-"));
    assert_eq!(body["object"], "text_completion");
    assert_eq!(body["model"], "tiny");
    let choice = &body["choices"][0];
    assert_eq!(choice["text"], "speak, speak.");
    assert_eq!(choice["finish_reason"], "stop");
    for field in ["logprobs", "stop_reason", "token_ids", "prompt_logprobs"] {
        assert_eq!(choice.get(field), Some(&Value::Null), "{field}");
    }
    let spoken = server.tokenizer.encode("speak, speak.", false).unwrap().len() + 1;
    let prompt = server.tokenizer.encode("First", true).unwrap().len();
    assert_eq!(body["usage"]["completion_tokens"], spoken);
    assert_eq!(body["usage"]["prompt_tokens"], prompt);
    assert_eq!(body["usage"]["total_tokens"], spoken + prompt);
    server.stop().await;
}

#[tokio::test]
async fn a_stream_gives_the_same_text_and_never_half_a_character() {
    let server = TestServer::saying("naïve 😀 日本語").await;
    let body = json!({"prompt": "x", "max_tokens": 100, "stream": true});
    let reply = server.complete(&body).await;
    assert_eq!(reply.header("content-type"), Some("text/event-stream"));
    let chunks = reply.chunks();
    let text: String = chunks.iter().map(|chunk| chunk["choices"][0]["text"].as_str().unwrap()).collect();
    assert_eq!(text, "naïve 😀 日本語");
    assert!(chunks.iter().all(|chunk| !chunk["choices"][0]["text"].as_str().unwrap().contains('\u{FFFD}')));
    assert!(chunks.iter().all(|chunk| chunk.get("usage").is_none()));
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "stop");
    server.stop().await;
}

#[tokio::test]
async fn e01_usage_comes_last_in_a_chunk_without_choices() {
    let (server, mut requests) = TestServer::held(Setup::default()).await;
    tokio::spawn(async move {
        let counts = [5, 7];
        for count in counts {
            let mut submitted = requests.recv().await.unwrap();
            submitted.request.stop_token_ids.clear();
            submitted.request.max_new_tokens = count;
            submitted.produce(&[300; 7]);
        }
    });
    let body = json!({"prompt": [9, 9, 9, 9, 9, 9, 9, 9, 9, 9], "max_tokens": 20, "n": 2, "stream": true,
        "stream_options": {"include_usage": true}});
    let chunks = server.complete(&body).await.chunks();
    let (last, before) = chunks.split_last().unwrap();
    assert!(before.iter().all(|chunk| chunk["usage"].is_null() && chunk.get("usage").is_some()));
    assert!(before.iter().all(|chunk| chunk["choices"].as_array().unwrap().len() == 1));
    assert_eq!(last["choices"], json!([]));
    let usage = &last["usage"];
    assert_eq!((&usage["prompt_tokens"], &usage["completion_tokens"]), (&json!(10), &json!(12)));
    assert_eq!(usage["total_tokens"], 22);
    server.stop().await;
}

#[tokio::test]
async fn d20_the_prompt_of_several_choices_counts_once() {
    let counts = std::sync::Mutex::new([5, 6, 7, 8].into_iter());
    let server = TestServer::scripted(Setup::default(), move |mut submitted| {
        submitted.request.stop_token_ids.clear();
        submitted.request.max_new_tokens = counts.lock().unwrap().next().unwrap();
        submitted.produce(&[300; 8]);
        Ok(())
    })
    .await;
    let body = server.complete(&json!({"prompt": [9, 9, 9, 9, 9, 9, 9, 9, 9, 9], "n": 4})).await.json();
    let usage = &body["usage"];
    assert_eq!((&usage["prompt_tokens"], &usage["completion_tokens"]), (&json!(10), &json!(26)));
    assert_eq!(usage["total_tokens"], 36);
    server.stop().await;
}

#[tokio::test]
async fn a_hopelessly_long_text_is_refused_without_tokenizing_it() {
    let server = TestServer::saying("speak").await;
    let reply = server.complete(&json!({"prompt": "speak ".repeat(1_000_000)})).await;
    assert_eq!(reply.refusal(), (400, "prompt".to_owned()));
    assert!(reply.body.contains("6000000 bytes"), "{}", reply.body);
    server.stop().await;
}

#[tokio::test]
async fn e02_continuous_usage_sums_all_choices_and_never_falls() {
    let server = TestServer::saying("speak speak speak").await;
    let body = json!({"prompt": "x", "max_tokens": 50, "n": 2, "stream": true,
        "stream_options": {"include_usage": true, "continuous_usage_stats": true}});
    let chunks = server.complete(&body).await.chunks();
    let counts: Vec<u64> = chunks.iter().map(|chunk| chunk["usage"]["completion_tokens"].as_u64().unwrap()).collect();
    assert!(counts.is_sorted(), "{counts:?}");
    let spoken = server.tokenizer.encode("speak speak speak", false).unwrap().len() as u64 + 1;
    assert_eq!(counts.last(), Some(&(2 * spoken)));
    server.stop().await;
}

#[tokio::test]
async fn c03_a_stop_string_inside_a_step_cuts_text_and_count() {
    for streamed in [false, true] {
        let (server, mut requests) = TestServer::held(Setup::default()).await;
        let ids: Vec<u32> =
            ["x", "EN", "D", "y"].iter().flat_map(|text| server.tokenizer.encode(text, false).unwrap()).collect();
        let shown = ids.len() - 1;
        let engine = tokio::spawn(async move {
            let submitted = requests.recv().await.unwrap();
            submitted.sink.tokens(ids.into_iter().map(|id| output(id, None)).collect());
            submitted.sink.abandoned().await;
        });
        let body = json!({"prompt": "go", "stop": "END", "max_tokens": 50, "stream": streamed,
            "stream_options": if streamed { json!({"include_usage": true}) } else { Value::Null }});
        let reply = server.complete(&body).await;
        let (choice, usage) = if streamed {
            let chunks = reply.chunks();
            (chunks[0]["choices"][0].clone(), chunks[1]["usage"].clone())
        } else {
            let body = reply.json();
            (body["choices"][0].clone(), body["usage"].clone())
        };
        assert_eq!(choice["text"], "x");
        assert_eq!(choice["finish_reason"], "stop");
        assert_eq!(choice["stop_reason"], "END");
        assert_eq!(usage["completion_tokens"], shown);
        engine.await.unwrap();
        server.stop().await;
    }
}

#[tokio::test]
async fn a_stop_token_is_named_and_hidden_unless_asked_for() {
    let server = TestServer::saying("speak.").await;
    let ids = server.tokenizer.encode("speak.", false).unwrap();
    let last = *ids.last().unwrap();
    let hidden = server.complete(&json!({"prompt": "x", "stop_token_ids": [last]})).await.json();
    assert_eq!(
        hidden["choices"][0]["text"],
        server.tokenizer.decode(&ids[..ids.len() - 1], paceline_text::SpecialTokens::Skip).unwrap()
    );
    assert_eq!(hidden["choices"][0]["stop_reason"], last);
    let shown = json!({"prompt": "x", "stop_token_ids": [last], "include_stop_str_in_output": true});
    assert_eq!(server.complete(&shown).await.json()["choices"][0]["text"], "speak.");
    server.stop().await;
}

#[tokio::test]
async fn ignore_eos_goes_on_to_the_limit() {
    let (server, mut requests) = TestServer::held(Setup::default()).await;
    tokio::spawn(async move {
        let submitted = requests.recv().await.unwrap();
        assert!(submitted.request.stop_token_ids.is_empty());
        submitted.produce(&[300, EOS, 300, 300, 300]);
    });
    let body = server.complete(&json!({"prompt": "x", "ignore_eos": true, "max_tokens": 4})).await.json();
    assert_eq!(body["choices"][0]["finish_reason"], "length");
    assert_eq!(body["usage"]["completion_tokens"], 4);
    server.stop().await;
}

#[tokio::test]
async fn e07_batches_keep_their_order() {
    let server = TestServer::scripted(Setup::default(), |submitted| {
        // The answer repeats the prompt's first token, so that every choice can be told apart.
        let first = submitted.request.prompt_token_ids[0];
        submitted.produce(&[first, EOS]);
        Ok(())
    })
    .await;
    let text = |id: u32| server.tokenizer.token_text(id);
    let one = server.complete(&json!({"prompt": [301, 302, 303]})).await.json();
    assert_eq!(one["choices"].as_array().unwrap().len(), 1);
    let two = server.complete(&json!({"prompt": [[301, 302], [303, 304]]})).await.json();
    assert_eq!(two["choices"][0]["text"], text(301));
    assert_eq!(two["choices"][1]["text"], text(303));
    assert_eq!(two["usage"]["prompt_tokens"], 4);
    let four = server.complete(&json!({"prompt": ["a", "b"], "n": 2})).await.json();
    let indices: Vec<u64> =
        four["choices"].as_array().unwrap().iter().map(|choice| choice["index"].as_u64().unwrap()).collect();
    assert_eq!(indices, [0, 1, 2, 3]);
    let texts: Vec<&str> =
        four["choices"].as_array().unwrap().iter().map(|choice| choice["text"].as_str().unwrap()).collect();
    assert_eq!(texts, ["a", "a", "b", "b"]);
    let prompts: Vec<[u32; 1]> = (300..364).map(|id| [id]).collect();
    let many = server.complete(&json!({"prompt": prompts})).await.json();
    assert_eq!(many["choices"].as_array().unwrap().len(), 64);
    assert_eq!(many["choices"][63]["text"], text(363));
    assert_eq!(server.complete(&json!({"prompt": ["a", [1]]})).await.refusal(), (400, "prompt".to_owned()));
    server.stop().await;
}

#[tokio::test]
async fn e06_token_texts_join_to_the_text_and_specials_show() {
    let server = TestServer::saying("naïve\n  日本 😀 speak").await;
    let body = server.complete(&json!({"prompt": "x", "max_tokens": 60, "logprobs": 2})).await.json();
    let logprobs = &body["choices"][0]["logprobs"];
    let tokens: Vec<&str> =
        logprobs["tokens"].as_array().unwrap().iter().map(|token| token.as_str().unwrap()).collect();
    assert_eq!(tokens.concat(), "naïve\n  日本 😀 speak<|im_end|>");
    let count = body["usage"]["completion_tokens"].as_u64().unwrap() as usize;
    for field in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(logprobs[field].as_array().unwrap().len(), count, "{field}");
    }
    let mut offset = 0;
    for (token, at) in tokens.iter().zip(logprobs["text_offset"].as_array().unwrap()) {
        assert_eq!(at.as_u64().unwrap() as usize, offset);
        offset += token.chars().count();
    }
    assert_eq!(logprobs["token_logprobs"][0], -0.5);
    assert_eq!(logprobs["top_logprobs"][0].as_object().unwrap().len(), 2);
    server.stop().await;
}

#[tokio::test]
async fn c15_streamed_log_probabilities_are_as_many_as_the_tokens() {
    let server = TestServer::saying("naïve 😀 END of it").await;
    let body = json!({"prompt": "x", "max_tokens": 40, "logprobs": 1, "stream": true, "stop": ["END."]});
    let mut tokens = String::new();
    let mut count = 0;
    for chunk in server.complete(&body).await.chunks() {
        for token in chunk["choices"][0]["logprobs"]["tokens"].as_array().unwrap() {
            tokens.push_str(token.as_str().unwrap());
            count += 1;
        }
    }
    assert_eq!(tokens, "naïve 😀 END of it<|im_end|>");
    assert_eq!(count, server.tokenizer.encode("naïve 😀 END of it", false).unwrap().len() + 1);
    server.stop().await;
}

#[tokio::test]
async fn d19_prompt_and_output_share_the_context() {
    let server = TestServer::scripted(Setup::default(), |submitted| {
        submitted.produce(&[300; 200]);
        Ok(())
    })
    .await;
    let ask = async |prompt: u32, max_tokens: Option<u32>| {
        let prompt = vec![300; prompt as usize];
        server.complete(&json!({"prompt": prompt, "max_tokens": max_tokens})).await
    };
    assert_eq!(ask(LENGTH, None).await.refusal(), (400, "prompt".to_owned()));
    assert_eq!(ask(LENGTH, Some(1)).await.status, 400);
    assert_eq!(ask(LENGTH + 1, None).await.status, 400);
    let refused = ask(LENGTH - 1, Some(5)).await;
    assert_eq!(refused.refusal(), (400, "max_tokens".to_owned()));
    assert!(refused.body.contains("127") && refused.body.contains("128"), "{}", refused.body);
    for max_tokens in [Some(1), None] {
        let body = ask(LENGTH - 1, max_tokens).await.json();
        assert_eq!(body["usage"]["completion_tokens"], 1);
        assert_eq!(body["choices"][0]["finish_reason"], "length");
    }
    assert_eq!(ask(3, None).await.json()["usage"]["completion_tokens"], 16);
    server.stop().await;
}

#[tokio::test]
async fn e08_ids_outside_the_vocabulary_are_refused() {
    let server = TestServer::saying("speak").await;
    // The embedding has three rows more than the tokenizer has tokens.
    let size = server.tokenizer.vocab_size() as u64;
    assert!(size < u64::from(crate::common::limits().vocab_size));
    for id in [json!(-1), json!(size), json!(903), json!(4_294_967_295_u64), json!(9_223_372_036_854_775_808_u64)] {
        let prompt = server.complete(&json!({"prompt": [1, id]})).await;
        assert_eq!(prompt.refusal(), (400, "prompt".to_owned()), "{id}");
        let stop = server.complete(&json!({"prompt": "x", "stop_token_ids": [id]})).await;
        assert_eq!(stop.refusal(), (400, "stop_token_ids".to_owned()), "{id}");
        let bias = server.complete(&json!({"prompt": "x", "logit_bias": {id.to_string(): 1}})).await;
        assert_eq!(bias.refusal(), (400, "logit_bias".to_owned()), "{id}");
        let allowed = server.complete(&json!({"prompt": "x", "allowed_token_ids": [id]})).await;
        assert_eq!(allowed.refusal(), (400, "allowed_token_ids".to_owned()), "{id}");
    }
    assert_eq!(server.complete(&json!({"prompt": [size - 1]})).await.status, 200);
    server.stop().await;
}

#[tokio::test]
async fn e11_bad_values_name_their_field_and_the_server_lives_on() {
    let server = TestServer::saying("speak").await;
    let table = [
        ("top_k", json!(0.01)),
        ("temperature", json!(-1)),
        ("temperature", json!("hot")),
        ("top_p", json!(0)),
        ("top_p", json!(1.5)),
        ("min_p", json!(-0.1)),
        ("n", json!(0)),
        ("n", json!(1_000_000)),
        ("max_tokens", json!(-1)),
        ("max_tokens", json!(0)),
        ("max_tokens", json!(100_000)),
        ("logprobs", json!(10_000)),
        ("logprobs", json!(true)),
        ("seed", json!("x")),
        ("stop", json!(vec!["s"; 5_000])),
        ("stop", json!([""])),
        ("stop", json!([1])),
        ("stop_token_ids", json!("x")),
        ("stream", json!("yes")),
        ("stream_options", json!({"include_usage": true})),
        ("ignore_eos", json!(1)),
        ("repetition_penalty", json!(0)),
        ("presence_penalty", json!(2.5)),
        ("echo", json!("yes")),
        ("suffix", json!("end")),
        ("use_beam_search", json!(true)),
        ("response_format", json!("json")),
        ("thinking_token_budget", json!(5)),
        ("best_of", json!(3)),
        ("priority", json!(1e12)),
        ("no_such_field", json!(1)),
    ];
    for (field, value) in table {
        let mut body = json!({"prompt": "x"});
        body[field] = value.clone();
        assert_eq!(server.complete(&body).await.refusal(), (400, field.to_owned()), "{field}={value}");
    }
    let post = |body: &'static str| crate::common::send(server.http, "POST", "/v1/completions", &[], body);
    for broken in
        ["{", "", "[]", "\"x\"", "{\"prompt\": \"x\", \"temperature\": NaN}", "{\"prompt\": \"x\", \"top_p\": 1e999}"]
    {
        assert_eq!(post(broken).await.status, 400, "{broken}");
    }
    assert_eq!(server.complete(&json!({"model": "nope", "prompt": "x"})).await.refusal(), (404, "model".to_owned()));
    assert_eq!(server.get("/v1/completions").await.status, 405);
    assert_eq!(server.get("/v2/nothing").await.status, 404);
    assert_eq!(server.complete(&json!({"prompt": "x"})).await.status, 200);
    server.stop().await;
}

#[tokio::test]
async fn e12_an_empty_prompt_needs_a_bos_token() {
    let with = TestServer::saying_with(Setup { tokenizer: Some("metaspace"), ..Setup::default() }, "speak").await;
    assert_eq!(with.complete(&json!({"prompt": ""})).await.json()["usage"]["prompt_tokens"], 1);
    let without = TestServer::saying("speak").await;
    for prompt in [json!(""), json!([]), json!([""]), json!([[]])] {
        assert_eq!(
            without.complete(&json!({"prompt": prompt})).await.refusal(),
            (400, "prompt".to_owned()),
            "{prompt}"
        );
    }
    assert_eq!(without.chat(&json!({"messages": []})).await.refusal(), (400, "messages".to_owned()));
    assert_eq!(without.complete(&json!({"prompt": "x"})).await.status, 200);
    with.stop().await;
    without.stop().await;
}

#[tokio::test]
async fn c15_adjustments_reach_the_engine_and_bad_ones_are_refused_by_name() {
    let (server, mut requests) = TestServer::held(Setup::default()).await;
    let own = json!({"prompt": "x", "presence_penalty": 0.5, "frequency_penalty": -0.25, "repetition_penalty": 1.25,
        "logit_bias": {"5": 2, "900": -100}, "allowed_token_ids": [5, 6, 900], "bad_words": ["speak"], "min_tokens": 3,
        "stop_token_ids": [7], "max_tokens": 4});
    let answer = tokio::spawn(async move {
        let submitted = requests.recv().await.unwrap();
        let adjust = submitted.request.sampling.adjust.clone();
        submitted.sink.finish(Vec::new(), FinishReason::Length);
        adjust
    });
    assert_eq!(server.complete(&own).await.status, 200);
    let adjust = answer.await.unwrap();
    assert_eq!((adjust.presence_penalty, adjust.frequency_penalty, adjust.repetition_penalty), (0.5, -0.25, 1.25));
    assert_eq!(adjust.logit_bias, [(5, 2.0), (900, -100.0)]);
    assert_eq!(adjust.allowed_token_ids, Some(vec![5, 6, 900]));
    let spelled = |text: &str| server.tokenizer.encode(text, false).unwrap();
    assert_eq!(adjust.bad_words, [spelled("speak"), spelled(" speak")]);
    assert_eq!((adjust.min_tokens, adjust.ending_token_ids), (3, vec![0, 2, 7]));
    for (field, value) in [
        ("presence_penalty", json!(2.5)),
        ("frequency_penalty", json!("0")),
        ("repetition_penalty", json!(0)),
        ("logit_bias", json!({"5": 101})),
        ("logit_bias", json!({"x": 1})),
        ("logit_bias", json!([5])),
        ("allowed_token_ids", json!([])),
        ("bad_words", json!([""])),
        ("bad_words", json!([3])),
        ("min_tokens", json!(-1)),
        ("min_tokens", json!(17)),
    ] {
        let reply = server.complete(&json!({"prompt": "x", field: value})).await;
        assert_eq!(reply.refusal(), (400, field.to_owned()), "{value}");
    }
    server.stop().await;
}

/// The stop string counts only in what follows the tokens that must come.
#[tokio::test]
async fn stop_strings_wait_for_min_tokens() {
    let server = TestServer::saying("speak, speak, speak").await;
    let ask = |min_tokens: usize| json!({"prompt": "x", "max_tokens": 50, "stop": ["speak"], "min_tokens": min_tokens});
    let text = server.complete(&ask(0)).await.json()["choices"][0]["text"].clone();
    assert_eq!(text, "");
    let first = server.tokenizer.encode("speak", false).unwrap().len();
    let text = server.complete(&ask(first)).await.json()["choices"][0]["text"].clone();
    assert_eq!(text, "speak, ");
    server.stop().await;
}

#[tokio::test]
async fn sampling_values_come_from_the_request_then_from_the_model() {
    let (server, mut requests) = TestServer::held(Setup::default()).await;
    let seen = tokio::spawn(async move {
        let mut seen = Vec::new();
        while seen.len() < 5 {
            let submitted = requests.recv().await.unwrap();
            seen.push(submitted.request.clone());
            submitted.sink.finish(Vec::new(), FinishReason::Length);
        }
        seen
    });
    server.complete(&json!({"prompt": "x"})).await;
    let own = json!({"prompt": "x", "temperature": 0.25, "top_k": -1, "top_p": 0.5, "min_p": 0.125, "seed": 9, "priority": -3});
    server.complete(&own).await;
    server.complete(&json!({"prompt": "x", "seed": 9, "n": 2})).await;
    server.complete(&json!({"prompt": "x"})).await;
    let seen = seen.await.unwrap();
    assert_eq!((seen[0].sampling.temperature, seen[0].sampling.top_k), (0.6, 50));
    assert_eq!(seen[0].stop_token_ids, [0, 2]);
    let sampling = &seen[1].sampling;
    assert_eq!((sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p), (0.25, 0, 0.5, 0.125));
    assert_eq!((sampling.seed, seen[1].priority), (9, -3));
    assert_eq!(seen[2].sampling.seed, paceline_sampling::choice_seed(9, 0, 2));
    assert_eq!(seen[3].sampling.seed, paceline_sampling::choice_seed(9, 1, 2));
    assert_ne!(seen[0].sampling.seed, seen[4].sampling.seed, "drawn anew for each request");
    server.stop().await;
}
