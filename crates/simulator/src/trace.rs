//! What arrives when: one request a line, as JSON.

use serde::{Deserialize, Serialize};

use crate::Error;

/// One request of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceRequest {
    /// Microseconds after the start.
    pub arrival_us: u64,
    /// Tokens of the prompt, at least 1.
    pub prompt_tokens: u32,
    /// Tokens generated, at least 1.
    pub output_tokens: u32,
    /// Requests with the same number share the first `prefix_tokens` tokens of their prompts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix_group: Option<u32>,
    /// Tokens shared; 0 without a group.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub prefix_tokens: u32,
    /// Lower goes first.
    #[serde(default, skip_serializing_if = "is_zero_signed")]
    pub priority: i32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
const fn is_zero(value: &u32) -> bool {
    *value == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
const fn is_zero_signed(value: &i32) -> bool {
    *value == 0
}

/// Requests in order of arrival.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// Going up by arrival.
    pub requests: Vec<TraceRequest>,
}

impl Trace {
    /// Reads a trace, one JSON object a line; empty lines are skipped, order does not matter.
    ///
    /// # Errors
    /// [`Error::Trace`] with the line.
    pub fn from_json_lines(text: &str) -> Result<Self, Error> {
        let mut requests = Vec::new();
        for (index, line) in text.lines().enumerate() {
            if line.trim().is_empty() {
                continue;
            }
            let refused = |message: String| Error::Trace { line: index as u64 + 1, message };
            let request: TraceRequest = serde_json::from_str(line).map_err(|error| refused(error.to_string()))?;
            if request.prompt_tokens == 0 || request.output_tokens == 0 {
                return Err(refused("prompt_tokens and output_tokens must be at least 1".to_owned()));
            }
            requests.push(request);
        }
        requests.sort_by_key(|request| request.arrival_us);
        Ok(Self { requests })
    }

    /// The same, to be written to a file.
    pub fn to_json_lines(&self) -> String {
        let line = |request: &TraceRequest| {
            let json = serde_json::to_string(request).expect("plain numbers are JSON");
            json + "\n"
        };
        self.requests.iter().map(line).collect()
    }

    /// Prompt and output tokens of the longest request.
    pub fn tokens_max(&self) -> u32 {
        self.requests.iter().map(|request| request.prompt_tokens + request.output_tokens).max().unwrap_or(0)
    }
}
