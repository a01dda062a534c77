//! Programs that talk to a server over HTTP, any server that speaks the OpenAI API: a load client, a chat in the
//! terminal, and batches of requests from a file.
//!
//! They know nothing of this server's inside and use none of its crates, so that what they measure is what a client
//! sees.

mod batch;
mod bench;
mod chat;
mod endpoint;
mod error;
mod events;

pub use batch::{BatchArguments, run as run_batch};
pub use bench::{BenchArguments, Summary, run as run_bench};
pub use chat::{ChatArguments, run as run_chat};
pub use endpoint::{Endpoint, EndpointArguments};
pub use error::Error;
