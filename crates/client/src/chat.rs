//! `paceline chat`: a conversation in the terminal, streamed.

use std::io::Write;

use serde_json::{Value, json};
use tokio::io::{AsyncBufRead, AsyncBufReadExt};

use crate::{Endpoint, EndpointArguments, Error};

/// Arguments of `paceline chat`.
#[derive(Clone, Debug, clap::Args)]
pub struct ChatArguments {
    /// Where to talk.
    #[command(flatten)]
    pub endpoint: EndpointArguments,
    /// What the model is told before the conversation
    #[arg(long)]
    pub system: Option<String>,
    /// Tokens of one answer at most [default: as many as fit]
    #[arg(long)]
    pub max_tokens: Option<u32>,
    /// 0 is greedy [default: the model's own]
    #[arg(long)]
    pub temperature: Option<f32>,
    /// Seed of every answer [default: drawn by the server]
    #[arg(long)]
    pub seed: Option<u64>,
    /// Say this, print the answer and end
    #[arg(value_name = "MESSAGE")]
    pub message: Option<String>,
}

/// Talks until the input ends, or answers the one message given. `/reset` forgets the conversation, `/quit` ends it.
///
/// # Errors
/// When the server cannot be reached or refuses. In a conversation, a refused message is told and the talk goes on.
pub async fn run(
    arguments: ChatArguments,
    input: impl AsyncBufRead + Unpin,
    output: &mut (impl Write + Send),
) -> Result<(), Error> {
    let (endpoint, model) = Endpoint::open(&arguments.endpoint).await?;
    let mut talk = Talk { endpoint, model, messages: Vec::new(), arguments };
    talk.reset();
    if let Some(message) = talk.arguments.message.take() {
        return talk.say(&message, output).await;
    }
    let _ = writeln!(output, "{} at {}. /reset forgets, /quit ends.", talk.model, talk.endpoint.url());
    let mut lines = input.lines();
    loop {
        let _ = write!(output, "\n> ").and_then(|()| output.flush());
        // An input that cannot be read any more has ended.
        let Ok(Some(line)) = lines.next_line().await else { break };
        match line.trim() {
            "" => {}
            "/quit" => break,
            "/reset" => talk.reset(),
            said => {
                if let Err(error) = talk.say(said, output).await {
                    let _ = writeln!(output, "{error}");
                }
            }
        }
    }
    let _ = writeln!(output);
    Ok(())
}

struct Talk {
    endpoint: Endpoint,
    model: String,
    messages: Vec<Value>,
    arguments: ChatArguments,
}

impl Talk {
    fn reset(&mut self) {
        self.messages.clear();
        if let Some(system) = &self.arguments.system {
            self.messages.push(json!({"role": "system", "content": system}));
        }
    }

    /// Says one thing and prints the answer as it comes. What fails leaves the conversation as it was.
    async fn say(&mut self, said: &str, output: &mut (impl Write + Send)) -> Result<(), Error> {
        let before = self.messages.len();
        self.messages.push(json!({"role": "user", "content": said}));
        match self.answer(output).await {
            Ok(answer) => {
                let _ = writeln!(output);
                self.messages.push(json!({"role": "assistant", "content": answer}));
                Ok(())
            }
            Err(error) => {
                self.messages.truncate(before);
                Err(error)
            }
        }
    }

    async fn answer(&self, output: &mut (impl Write + Send)) -> Result<String, Error> {
        let mut body = json!({"model": self.model, "messages": self.messages, "stream": true});
        let ChatArguments { max_tokens, temperature, seed, .. } = &self.arguments;
        for (field, value) in [
            ("max_completion_tokens", max_tokens.map(Value::from)),
            ("temperature", temperature.map(|value| json!(f64::from(value)))),
            ("seed", seed.map(Value::from)),
        ] {
            if let Some(value) = value {
                body[field] = value;
            }
        }
        let mut stream = self.endpoint.stream("/v1/chat/completions", &body).await?;
        let mut answer = String::new();
        while let Some(chunk) = stream.next().await? {
            if let Some(piece) = chunk["choices"][0]["delta"]["content"].as_str() {
                answer.push_str(piece);
                // A closed stdout is the reader's choice.
                let _ = output.write_all(piece.as_bytes()).and_then(|()| output.flush());
            }
        }
        Ok(answer)
    }
}
