//! A server over real sockets with a scripted engine behind it, and an HTTP client small enough to see through.
#![allow(dead_code, unreachable_pub, missing_docs, reason = "helpers, of which a test uses a part")]

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use paceline_engine::{
    FailureKind, FinishReason, FleetStatus, GenerateRequest, Handle, ModelLimits, Publisher, RankState, RankStatus,
    SubmitError, TokenLogprobs, TokenOutput, TokenSink,
};
use paceline_server::{
    ChatOptions, ConnectionLimits, CorsOptions, Listeners, Options, RequestLimits, Server, Tls, Traces,
};
use paceline_text::Tokenizer;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

pub const MODEL: &str = "tiny";
pub const EOS: u32 = 2;

/// The longest sequence of the test model.
pub const LENGTH: u32 = 128;

pub fn tokenizer(name: &str) -> Tokenizer {
    let data = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../text/tests/data").join(name);
    Tokenizer::load(&data).expect("the fixture loads")
}

pub fn limits() -> ModelLimits {
    ModelLimits {
        max_model_len: LENGTH,
        vocab_size: 904,
        max_num_seqs: 8,
        max_num_batched_tokens: 64,
        block_size: 16,
        kv_blocks: 64,
        dp_size: 2,
    }
}

/// A request that reached the engine, and where its tokens go.
pub struct Submitted {
    pub request: GenerateRequest,
    pub sink: TokenSink,
}

impl Submitted {
    /// Produces `text` one token at a time, then the end-of-sequence token; within the request's token limit.
    pub fn say(self, tokenizer: &Tokenizer, text: &str) {
        let mut ids = tokenizer.encode(text, false).expect("encodes");
        ids.push(EOS);
        self.produce(&ids);
    }

    /// Says `text` as far as the request's constraint lets it; where it does not, some token that may come.
    pub fn follow(self, tokenizer: &Tokenizer, text: &str) {
        let Self { mut request, sink } = self;
        let mut constraint = request.constraint.take().expect("the answer is held to something");
        let wanted = tokenizer.encode(text, false).expect("encodes");
        let mut wanted = wanted.into_iter().chain([EOS]).peekable();
        for count in 1.. {
            let mask = match constraint.masks(&[]) {
                Ok(mut masks) => masks.remove(0),
                Err(error) => return sink.fail(FailureKind::Stuck, error.to_string()),
            };
            let own = wanted.peek().copied().filter(|token| mask.allows(*token));
            let some = (1..=900).map(|step| (count * 97 + step * 31) % 900).find(|token| mask.allows(*token));
            let token = own.or(some).expect("a mask allows something");
            wanted.next_if_eq(&token);
            constraint.accept(&[token]).expect("the mask allowed it");
            let tokens = vec![output(token, request.sampling.logprobs)];
            if request.stop_token_ids.contains(&token) {
                return sink.finish(tokens, FinishReason::Stop(Some(token)));
            }
            if count == request.max_new_tokens {
                return sink.finish(tokens, FinishReason::Length);
            }
            sink.tokens(tokens);
        }
    }

    /// Produces these tokens one at a time, as an engine would: until a stop token or the limit.
    pub fn produce(self, ids: &[u32]) {
        let Self { request, sink } = self;
        if let Some(top) = request.sampling.prompt_logprobs {
            let of = |id: &u32| output(*id, Some(top)).logprobs.expect("asked for");
            sink.prompt_logprobs(request.prompt_token_ids[1..].iter().map(of).collect());
        }
        for (count, id) in (1..).zip(ids) {
            let tokens = vec![output(*id, request.sampling.logprobs)];
            if request.stop_token_ids.contains(id) {
                return sink.finish(tokens, FinishReason::Stop(Some(*id)));
            }
            if count == request.max_new_tokens {
                return sink.finish(tokens, FinishReason::Length);
            }
            sink.tokens(tokens);
        }
        sink.finish(Vec::new(), FinishReason::Aborted);
    }
}

/// A token with log-probabilities that depend on its id only.
pub fn output(token_id: u32, logprobs: Option<u32>) -> TokenOutput {
    let logprobs = logprobs.map(|top| TokenLogprobs {
        sampled: -0.5,
        top: (0..top).map(|rank| ((token_id + rank) % 900, -0.5 - rank as f32)).collect(),
    });
    TokenOutput { token_id, logprobs }
}

pub struct TestServer {
    pub http: SocketAddr,
    pub grpc: SocketAddr,
    pub tokenizer: Tokenizer,
    pub publisher: Publisher,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<Result<(), paceline_server::Error>>,
}

#[derive(Default)]
pub struct Setup {
    pub tokenizer: Option<&'static str>,
    pub api_key: Option<&'static str>,
    pub limits: Option<ModelLimits>,
    pub chat: ChatOptions,
    pub admin: bool,
    pub request_limits: RequestLimits,
    pub connections: ConnectionLimits,
    pub tls: Option<Tls>,
    pub traces: Option<Traces>,
    pub cors: CorsOptions,
}

/// A model whose answers may be long.
pub fn long() -> Setup {
    Setup { limits: Some(ModelLimits { max_model_len: 200_000, kv_blocks: 20_000, ..limits() }), ..Setup::default() }
}

impl TestServer {
    /// A server whose engine does what `script` says.
    pub async fn scripted(
        setup: Setup,
        script: impl Fn(Submitted) -> Result<(), SubmitError> + Send + Sync + 'static,
    ) -> Self {
        let limits = setup.limits.unwrap_or_else(limits);
        let (handle, publisher) = Handle::scripted(limits, move |request, sink| script(Submitted { request, sink }));
        publisher.publish(FleetStatus { ready: true, ranks: ranks(&[0, 0]), ..FleetStatus::default() });
        let tokenizer = tokenizer(setup.tokenizer.unwrap_or("bytelevel"));
        let options = Options {
            model_name: MODEL.to_owned(),
            model_root: "models/tiny".to_owned(),
            sampling_defaults: tokenizer.settings().sampling.clone(),
            tokenizer: tokenizer.clone(),
            api_key: setup.api_key.map(str::to_owned),
            admin: setup.admin,
            chat: setup.chat,
            limits: setup.request_limits,
            connections: setup.connections,
            tls: setup.tls,
            traces: setup.traces,
            cors: setup.cors,
        };
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let listeners = Listeners::bind(any, Some(any)).await.expect("a free port");
        let http = listeners.http_addr().expect("bound");
        let grpc = listeners.grpc_addr().expect("bound").expect("asked for");
        let stop = CancellationToken::new();
        let task = tokio::spawn(Server::build(options, handle, listeners).run(stop.clone()));
        Self { http, grpc, tokenizer, publisher, stop, task }
    }

    /// A server whose model answers every prompt with `text`.
    pub async fn saying(text: &'static str) -> Self {
        Self::saying_with(Setup::default(), text).await
    }

    pub async fn saying_with(setup: Setup, text: &'static str) -> Self {
        let speaker = tokenizer(setup.tokenizer.unwrap_or("bytelevel"));
        Self::scripted(setup, move |submitted| {
            submitted.say(&speaker, text);
            Ok(())
        })
        .await
    }

    /// A server whose requests wait for the test to answer them.
    pub async fn held(setup: Setup) -> (Self, mpsc::UnboundedReceiver<Submitted>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        let server = Self::scripted(setup, move |submitted| {
            sender.send(submitted).map_err(|_| SubmitError::Unavailable { message: "the test is over".to_owned() })
        })
        .await;
        (server, receiver)
    }

    pub async fn stop(self) {
        self.stop.cancel();
        self.task.await.expect("no panic").expect("no error");
    }

    pub async fn get(&self, path: &str) -> Reply {
        send(self.http, "GET", path, &[], "").await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Reply {
        send(self.http, "POST", path, &[], &body.to_string()).await
    }

    pub async fn complete(&self, body: &Value) -> Reply {
        self.post("/v1/completions", body).await
    }

    pub async fn chat(&self, body: &Value) -> Reply {
        self.post("/v1/chat/completions", body).await
    }

    /// The value of one line of `/metrics`.
    pub async fn metric(&self, series: &str) -> Option<f64> {
        let text = self.get("/metrics").await.body;
        text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
    }
}

/// Ranks in service with this many running requests each.
pub fn ranks(running: &[usize]) -> Vec<RankStatus> {
    (0..)
        .zip(running)
        .map(|(dp_rank, running)| RankStatus {
            dp_rank,
            state: RankState::Ready,
            running: *running,
            ..RankStatus::default()
        })
        .collect()
}

#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Reply {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error} in {:?}", self.body))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The `data:` lines of a stream.
    pub fn events(&self) -> Vec<String> {
        self.body.lines().filter_map(|line| line.strip_prefix("data: ")).map(str::to_owned).collect()
    }

    /// The chunks of a stream that ended as it should.
    pub fn chunks(&self) -> Vec<Value> {
        let mut events = self.events();
        assert_eq!(events.pop().as_deref(), Some("[DONE]"), "{}", self.body);
        events.iter().map(|event| serde_json::from_str(event).expect("chunks are JSON")).collect()
    }

    /// Status and the field named by an error object.
    pub fn refusal(&self) -> (u16, String) {
        (self.status, self.json()["error"]["param"].as_str().unwrap_or_default().to_owned())
    }
}

/// Writes a request and returns the open connection.
pub async fn open(addr: SocketAddr, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> TcpStream {
    let mut socket = TcpStream::connect(addr).await.expect("the server listens");
    let mut head = format!("{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str(&format!("content-length: {}\r\n\r\n", body.len()));
    socket.write_all(head.as_bytes()).await.expect("writes");
    socket.write_all(body.as_bytes()).await.expect("writes");
    socket
}

pub async fn send(addr: SocketAddr, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Reply {
    let mut socket = open(addr, method, path, headers, body).await;
    let mut bytes = Vec::new();
    socket.read_to_end(&mut bytes).await.expect("reads");
    parse(&bytes)
}

/// Reads until the connection has shown `text`.
pub async fn read_until(socket: &mut TcpStream, text: &str) {
    let mut seen = Vec::new();
    let mut buffer = [0; 4096];
    while !String::from_utf8_lossy(&seen).contains(text) {
        let read = socket.read(&mut buffer).await.expect("reads");
        assert!(read > 0, "closed after {:?}", String::from_utf8_lossy(&seen));
        seen.extend_from_slice(&buffer[..read]);
    }
}

fn parse(bytes: &[u8]) -> Reply {
    let split = bytes.windows(4).position(|window| window == b"\r\n\r\n").expect("a whole head");
    let head = String::from_utf8_lossy(&bytes[..split]).into_owned();
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok()).expect("a status line");
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
        .collect();
    let chunked = headers.iter().any(|(name, value)| name == "transfer-encoding" && value == "chunked");
    let rest = &bytes[split + 4..];
    let body = if chunked { unchunk(rest) } else { rest.to_vec() };
    Reply { status, headers, body: String::from_utf8(body).expect("text") }
}

fn unchunk(mut rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(end) = rest.windows(2).position(|window| window == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..end]).expect("hex"), 16).expect("hex");
        if size == 0 {
            break;
        }
        body.extend_from_slice(&rest[end + 2..end + 2 + size]);
        rest = &rest[end + 4 + size..];
    }
    body
}

/// Shared between tests that hand a tokenizer to a script.
pub fn shared(name: &str) -> Arc<Tokenizer> {
    Arc::new(tokenizer(name))
}
