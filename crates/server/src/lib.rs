//! The face of Paceline: OpenAI-shaped HTTP and the gRPC services, over an engine [`Handle`](paceline_engine::Handle).
//!
//! Both protocols become one [`generate::Call`], which is checked, tokenized, admitted and read back as a stream of
//! text, so that a request means the same whichever way it came. Nothing here decides what runs when: that is the
//! engine's business, and dropping a token stream is what aborts its request.
//!
//! | module | holds |
//! |---|---|
//! | `options` | [`Options`], [`Listeners`]: what the daemon gives |
//! | `server` | [`Server`]: build, then run until told to stop |
//! | `api_error` | every error a client can get, with its HTTP and gRPC codes |
//! | `admin` | what operators may ask: pause, drain, abort |
//! | `generate` | a call from its checked parameters to its text, for both protocols |
//! | `openai` | requests and responses as OpenAI clients write and read them |
//! | `http`, `grpc` | routes and services |
//! | `traces` | spans of calls for an OpenTelemetry collector |
//! | `listen` | connections: limits, TLS, readers that stop reading |
//! | `metrics` | the name of every metric |
//! | `limits` | the limit on every size that comes from outside |

mod admin;
mod api_error;
mod app;
mod error;
mod generate;
mod grpc;
mod http;
pub mod limits;
mod listen;
mod metrics;
mod openai;
mod options;
mod server;
mod traces;

pub use error::Error;
pub use listen::{ConnectionLimits, Tls};
pub use options::{ChatOptions, CorsOptions, Listeners, Options, RequestLimits};
pub use server::Server;
pub use traces::Traces;
