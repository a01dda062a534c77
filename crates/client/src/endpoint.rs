//! Where a server is, and how it is asked.

use std::time::Duration;

use serde_json::Value;

use crate::Error;
use crate::events::Events;

/// Arguments that say which server to talk to.
#[derive(Clone, Debug, clap::Args)]
pub struct EndpointArguments {
    /// Address of the server
    #[arg(long, default_value = "http://127.0.0.1:8000")]
    pub url: String,
    /// Key of the server, if it asks for one
    #[arg(long, env = "PACELINE_API_KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// Name of the model [default: the first that the server lists]
    #[arg(long)]
    pub model: Option<String>,
}

/// One server.
#[derive(Clone, Debug)]
pub struct Endpoint {
    client: reqwest::Client,
    url: String,
    api_key: Option<String>,
}

/// How long a connection may take to be made. Answers may take as long as they do.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

impl Endpoint {
    /// A server by its address, with or without `/v1` at its end.
    ///
    /// # Errors
    /// [`Error::Usage`] for an address that is none.
    pub fn new(url: &str, api_key: Option<String>) -> Result<Self, Error> {
        let trimmed = url.trim_end_matches('/');
        let base = trimmed.strip_suffix("/v1").unwrap_or(trimmed);
        reqwest::Url::parse(base)
            .ok()
            .filter(|parsed| parsed.scheme() == "http" && parsed.has_host())
            .ok_or_else(|| Error::Usage(format!("--url {url}: it must be http://HOST:PORT")))?;
        let client = reqwest::Client::builder().connect_timeout(CONNECT_LIMIT).tcp_nodelay(true).build();
        let client = client.map_err(|error| Error::Usage(error.to_string()))?;
        Ok(Self { client, url: base.to_owned(), api_key })
    }

    /// The server that the arguments name, and the model to ask it for.
    ///
    /// # Errors
    /// As [`Self::new`]; without `--model`, when the server lists none.
    pub async fn open(arguments: &EndpointArguments) -> Result<(Self, String), Error> {
        let endpoint = Self::new(&arguments.url, arguments.api_key.clone())?;
        let model = match &arguments.model {
            Some(model) => model.clone(),
            None => endpoint.first_model().await?,
        };
        Ok((endpoint, model))
    }

    /// The address without a route.
    pub fn url(&self) -> &str {
        &self.url
    }

    async fn first_model(&self) -> Result<String, Error> {
        let (status, models) = self.exchange(reqwest::Method::GET, "/v1/models", None).await?;
        let url = format!("{}/v1/models", self.url);
        if status != 200 {
            return Err(Error::Status { url, status, message: message(&models) });
        }
        let name = models["data"][0]["id"].as_str().map(str::to_owned);
        name.ok_or_else(|| Error::Answer { url, message: "the server lists no model".to_owned() })
    }

    /// Posts a body; gives the status and the whole answer, an error's too. What is no JSON comes as a string.
    ///
    /// # Errors
    /// [`Error::Connection`] when there is no whole answer.
    pub async fn post(&self, route: &str, body: &Value) -> Result<(u16, Value), Error> {
        self.exchange(reqwest::Method::POST, route, Some(body)).await
    }

    async fn exchange(
        &self,
        method: reqwest::Method,
        route: &str,
        body: Option<&Value>,
    ) -> Result<(u16, Value), Error> {
        let response = self.send(method, route, body).await?;
        let status = response.status().as_u16();
        let bytes = response.bytes().await.map_err(|error| self.lost(route, &error))?;
        let answer = serde_json::from_slice(&bytes);
        let answer = answer.unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&bytes).into_owned()));
        Ok((status, answer))
    }

    /// Posts a body that asks for a stream.
    ///
    /// # Errors
    /// [`Error::Connection`], and [`Error::Status`] when the answer is no stream.
    pub async fn stream(&self, route: &str, body: &Value) -> Result<EventStream, Error> {
        let response = self.send(reqwest::Method::POST, route, Some(body)).await?;
        let status = response.status().as_u16();
        let url = format!("{}{route}", self.url);
        if status != 200 {
            let bytes = response.bytes().await.map_err(|error| self.lost(route, &error))?;
            let answer =
                serde_json::from_slice(&bytes).unwrap_or_else(|_| Value::from(String::from_utf8_lossy(&bytes)));
            return Err(Error::Status { url, status, message: message(&answer) });
        }
        Ok(EventStream { url, response, events: Events::default(), ready: Vec::new().into_iter(), done: false })
    }

    async fn send(
        &self,
        method: reqwest::Method,
        route: &str,
        body: Option<&Value>,
    ) -> Result<reqwest::Response, Error> {
        let mut request = self.client.request(method, format!("{}{route}", self.url));
        if let Some(key) = &self.api_key {
            request = request.bearer_auth(key);
        }
        if let Some(body) = body {
            request = request.json(body);
        }
        request.send().await.map_err(|error| self.lost(route, &error))
    }

    fn lost(&self, route: &str, error: &reqwest::Error) -> Error {
        Error::Connection { url: format!("{}{route}", self.url), message: deepest(error) }
    }
}

/// The chunks of a streamed answer.
#[derive(Debug)]
pub struct EventStream {
    url: String,
    response: reqwest::Response,
    events: Events,
    ready: std::vec::IntoIter<String>,
    done: bool,
}

impl EventStream {
    /// The next chunk; nothing after `[DONE]`.
    ///
    /// # Errors
    /// [`Error::Status`] with status 200 when the server reports an error in the stream, [`Error::Answer`] when it ends
    /// without `[DONE]` or sends what is no JSON, [`Error::Connection`] when it breaks.
    pub async fn next(&mut self) -> Result<Option<Value>, Error> {
        loop {
            if let Some(data) = self.ready.next() {
                return self.chunk(&data);
            }
            if self.done {
                return Ok(None);
            }
            let piece = self.response.chunk().await;
            let piece = piece.map_err(|error| Error::Connection { url: self.url.clone(), message: deepest(&error) })?;
            let Some(piece) = piece else {
                let message = "the stream ended without [DONE]".to_owned();
                return Err(Error::Answer { url: self.url.clone(), message });
            };
            self.ready = self.events.push(&piece).into_iter();
        }
    }

    fn chunk(&mut self, data: &str) -> Result<Option<Value>, Error> {
        if data == "[DONE]" {
            self.done = true;
            return Ok(None);
        }
        let url = || self.url.clone();
        let chunk: Value = serde_json::from_str(data)
            .map_err(|error| Error::Answer { url: url(), message: format!("{error} in {data:?}") })?;
        if chunk.get("error").is_some_and(|error| !error.is_null()) {
            return Err(Error::Status { url: url(), status: 200, message: message(&chunk) });
        }
        Ok(Some(chunk))
    }
}

/// The words of an error body, whatever its form.
pub(crate) fn message(answer: &Value) -> String {
    let found = answer["error"]["message"].as_str().or_else(|| answer["message"].as_str()).or(answer.as_str());
    found.map_or_else(|| answer.to_string(), str::to_owned)
}

/// The innermost cause: what a person can do something about.
fn deepest(error: &dyn std::error::Error) -> String {
    let mut deepest = error;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    deepest.to_string()
}
