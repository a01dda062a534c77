//! `paceline batch`: requests from a file in the OpenAI batch format, answers to another. What has been answered is not
//! asked again, so that a batch that was cut goes on where it stopped.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::StreamExt;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{Endpoint, EndpointArguments, Error};

/// Arguments of `paceline batch`.
#[derive(Clone, Debug, clap::Args)]
pub struct BatchArguments {
    /// Where to ask.
    #[command(flatten)]
    pub endpoint: EndpointArguments,
    /// Requests, one JSON object a line: custom_id, method, url, body
    #[arg(value_name = "IN.jsonl")]
    pub input: PathBuf,
    /// Answers; those that it has already are not asked for again
    #[arg(value_name = "OUT.jsonl")]
    pub output: PathBuf,
    /// Requests under way at once
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub max_concurrency: u32,
}

/// A line of the input.
#[derive(Debug, Deserialize)]
struct Line {
    custom_id: String,
    method: String,
    url: String,
    body: Value,
}

/// Routes that a batch may ask for.
const ROUTES: [&str; 3] = ["/v1/chat/completions", "/v1/completions", "/v1/responses"];

/// How often, and how long after, a request is sent again to a server whose queue is full.
const FULL_TRIES: u32 = 300;
const FULL_PAUSE: Duration = Duration::from_secs(1);

/// What came of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    answered: usize,
    refused: usize,
    skipped: usize,
}

/// Answers every request of the input that the output does not answer yet. Answers are written as they come, each with
/// its `custom_id`; a refused request has its status and the server's words.
///
/// # Errors
/// For an input line that cannot be used, with its number, before anything is asked; when the server is lost: then the
/// same command goes on later.
pub async fn run(arguments: BatchArguments) -> Result<(), Error> {
    let lines = read_input(&arguments.input)?;
    let done = read_done(&arguments.output)?;
    let endpoint = Endpoint::new(&arguments.endpoint.url, arguments.endpoint.api_key.clone())?;
    let mut counts =
        Counts { skipped: lines.iter().filter(|line| done.contains(&line.custom_id)).count(), ..Counts::default() };
    let open: Vec<Line> = lines.into_iter().filter(|line| !done.contains(&line.custom_id)).collect();
    let mut output = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&arguments.output)
        .map_err(|error| Error::file(&arguments.output, error))?;

    let bar = progress(open.len());
    let model = arguments.endpoint.model.as_deref();
    let asked = open.into_iter().map(|line| ask(&endpoint, line, model));
    let mut answers = futures_util::stream::iter(asked).buffer_unordered(arguments.max_concurrency as usize);
    while let Some(answer) = answers.next().await {
        let (ok, record) = answer?;
        writeln!(output, "{record}").map_err(|error| Error::file(&arguments.output, error))?;
        counts.answered += usize::from(ok);
        counts.refused += usize::from(!ok);
        bar.inc(1);
    }
    bar.finish_and_clear();
    let Counts { answered, refused, skipped } = counts;
    eprintln!("{answered} answered, {refused} refused, {skipped} answered before: {}", arguments.output.display());
    Ok(())
}

fn progress(length: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} requests, {per_sec}, {eta} left");
    ProgressBar::new(length as u64).with_style(style.expect("invariant: the template is valid"))
}

/// Asks once; whether it was answered with 200, and the record for the output.
async fn ask(endpoint: &Endpoint, mut line: Line, model: Option<&str>) -> Result<(bool, Value), Error> {
    if let Some(model) = model {
        line.body["model"] = model.into();
    }
    let (mut status, mut body) = endpoint.post(&line.url, &line.body).await?;
    for _ in 0..FULL_TRIES {
        // A full queue says nothing about the request.
        if status != 429 {
            break;
        }
        tokio::time::sleep(FULL_PAUSE).await;
        (status, body) = endpoint.post(&line.url, &line.body).await?;
    }
    // Nor does a server that is still full, or stops: the batch goes on later.
    if status == 429 || status == 503 {
        let message = crate::endpoint::message(&body);
        return Err(Error::Status { url: format!("{}{}", endpoint.url(), line.url), status, message });
    }
    let request_id = body["id"].as_str().unwrap_or_default();
    let record = json!({
        "id": format!("batch_req_{}", line.custom_id),
        "custom_id": line.custom_id,
        "response": {"status_code": status, "request_id": request_id, "body": body},
        "error": null,
    });
    Ok((status == 200, record))
}

fn read_input(path: &Path) -> Result<Vec<Line>, Error> {
    let file = File::open(path).map_err(|error| Error::file(path, error))?;
    let mut lines = Vec::new();
    let mut seen = HashSet::new();
    for (index, text) in BufReader::new(file).lines().enumerate() {
        let text = text.map_err(|error| Error::file(path, error))?;
        if text.trim().is_empty() {
            continue;
        }
        let refuse = |what: String| Error::Usage(format!("{}, line {}: {what}", path.display(), index + 1));
        let line: Line = serde_json::from_str(&text).map_err(|error| refuse(error.to_string()))?;
        if line.method != "POST" {
            return Err(refuse(format!("method is {:?}, must be \"POST\"", line.method)));
        }
        if !ROUTES.contains(&line.url.as_str()) {
            return Err(refuse(format!("url is {:?}, must be one of {}", line.url, ROUTES.join(", "))));
        }
        if !line.body.is_object() {
            return Err(refuse("body is no object".to_owned()));
        }
        if line.body["stream"] == true {
            return Err(refuse("body.stream is true: answers of a batch are whole".to_owned()));
        }
        if !seen.insert(line.custom_id.clone()) {
            return Err(refuse(format!("custom_id {:?} is there twice", line.custom_id)));
        }
        lines.push(line);
    }
    Ok(lines)
}

/// The requests that the output answers. A last line that was cut is taken off, so that the next answer begins a line.
fn read_done(path: &Path) -> Result<HashSet<String>, Error> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(HashSet::new()),
        Err(error) => return Err(Error::file(path, error)),
    };
    let whole = text.rfind('\n').map_or(0, |end| end + 1);
    if whole < text.len() {
        let file = OpenOptions::new().write(true).open(path).map_err(|error| Error::file(path, error))?;
        file.set_len(whole as u64).map_err(|error| Error::file(path, error))?;
    }
    let mut done = HashSet::new();
    for (index, line) in text[..whole].lines().enumerate() {
        let record: Value = serde_json::from_str(line).map_err(|error| {
            Error::Usage(format!("{}, line {}: no answer of a batch: {error}", path.display(), index + 1))
        })?;
        if let Some(custom_id) = record["custom_id"].as_str() {
            done.insert(custom_id.to_owned());
        }
    }
    Ok(done)
}
