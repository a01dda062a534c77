//! The server over real sockets, with a scripted engine behind it.

mod admin;
mod captures;
mod chat;
mod chat_parts;
mod common;
mod completions;
mod connections;
mod echo;
mod explain;
mod grpc;
mod lifecycle;
mod metrics;
mod prefix;
mod responses;
mod structured;
mod surface;
mod tokenizer;
mod tool_calls;
mod traces;
