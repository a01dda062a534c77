//! The server over real sockets, with a scripted engine behind it.

mod captures;
mod chat;
mod chat_parts;
mod common;
mod completions;
mod echo;
mod explain;
mod grpc;
mod lifecycle;
mod prefix;
mod responses;
mod surface;
mod tokenizer;
