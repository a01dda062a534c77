//! Whoever speaks plain HTTP where TLS is spoken is told so.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// What a TLS handshake begins with.
const HANDSHAKE: u8 = 0x16;

const TOLD: &str = "plain HTTP was sent to a port that speaks HTTPS\n";

/// Bytes of the request that are read before the answer: a socket that is closed with more unread may lose it.
const READ_BYTES: usize = 65_536;

/// Waits for the client's first byte. Whether it begins something else than a TLS handshake.
pub(super) async fn speaks_clear(stream: &TcpStream) -> bool {
    let mut first = [0];
    matches!(stream.peek(&mut first).await, Ok(1)) && first[0] != HANDSHAKE
}

/// Answers 400 and closes.
pub(super) async fn refuse(mut stream: TcpStream) {
    let mut request = vec![0; READ_BYTES];
    let head = "HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\nconnection: close\r\n";
    let answer = format!("{head}content-length: {}\r\n\r\n{TOLD}", TOLD.len());
    // A client that leaves meanwhile needs no answer.
    if stream.read(&mut request).await.is_ok() && stream.write_all(answer.as_bytes()).await.is_ok() {
        let _ = stream.shutdown().await;
    }
}
