//! Requests that real clients sent to another server, and the structure of what they got back: ours must have it too.

use crate::common::{Setup, TestServer, limits, send};
use paceline_engine::ModelLimits;
use serde_json::Value;

/// Parts of answers that no client reads.
const NOT_KEPT: &[&str] = &["first.prompt_token_ids"];

/// Checks that `got` has every field of `expected`, whose leaves are type names. `null` promises nothing.
fn compare(expected: &Value, got: &Value, path: &str, missing: &mut Vec<String>) {
    match expected {
        Value::Object(fields) => {
            for (name, expected) in fields {
                let path = format!("{path}.{name}");
                match got.get(name) {
                    Some(got) => compare(expected, got, &path, missing),
                    None if path.contains("top_logprobs[]") => {}
                    None if NOT_KEPT.contains(&path.as_str()) => {}
                    None => missing.push(path),
                }
            }
        }
        Value::Array(items) => match (items.first(), got.as_array()) {
            (Some(expected), Some(got)) if !got.is_empty() => {
                compare(expected, &got[0], &format!("{path}[]"), missing);
            }
            (None, Some(got)) if got.is_empty() => {}
            _ => missing.push(path.to_owned()),
        },
        Value::String(kind) => {
            let fits = match kind.as_str() {
                "str" => got.is_string() || path.ends_with("stop_reason"),
                "int" => got.is_u64(),
                "float" => got.is_f64(),
                _ => true,
            };
            if !fits {
                missing.push(format!("{path} as {kind}"));
            }
        }
        other => panic!("a structure has no {other}"),
    }
}

#[tokio::test]
async fn answers_have_the_structure_that_clients_got_elsewhere() {
    let setup =
        Setup { limits: Some(ModelLimits { max_model_len: 2_048, kv_blocks: 256, ..limits() }), ..Setup::default() };
    let server = TestServer::saying_with(setup, "red, green and blue").await;
    let captures: Vec<Value> = serde_json::from_str(include_str!("data/captures.json")).unwrap();
    for capture in captures {
        let name = capture["name"].as_str().unwrap();
        let path = capture["path"].as_str().unwrap();
        let body = capture["body"].as_object().map_or_else(String::new, |_| capture["body"].to_string());
        let reply = send(server.http, capture["method"].as_str().unwrap(), path, &[], &body).await;
        assert_eq!(u64::from(reply.status), capture["status"].as_u64().unwrap(), "{name}: {}", reply.body);
        let mut missing = Vec::new();
        if let Some(parts) = capture["chunks"].as_object() {
            let chunks = reply.chunks();
            let count = chunks.len();
            // Tokens that waited come together, so that a short answer may have no chunk between its first and its last.
            let middle = 1.min(count - 2);
            for (part, index) in [("first", 0), ("middle", middle), ("finish", count - 2), ("usage", count - 1)] {
                compare(&parts[part], &chunks[index], part, &mut missing);
            }
        } else {
            compare(&capture["response"], &reply.json(), "response", &mut missing);
        }
        assert!(missing.is_empty(), "{name} lacks {missing:?}");
    }
    server.stop().await;
}
