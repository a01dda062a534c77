//! One HTTP/1.1 connection that posts and reads answers, whole or chunked.

use std::io;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

/// When a client leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leave {
    Never,
    AtOnce,
    AfterFirstPart,
}

/// An open connection.
pub(super) struct Connection {
    socket: BufReader<TcpStream>,
    line: String,
    part: Vec<u8>,
}

/// What a response's head says.
struct Head {
    status: u16,
    /// Bytes of the body; unknown when it is chunked.
    length: Option<usize>,
}

impl Connection {
    pub(super) async fn open(address: &str) -> io::Result<Self> {
        let socket = TcpStream::connect(address).await?;
        socket.set_nodelay(true)?;
        Ok(Self { socket: BufReader::with_capacity(16 << 10, socket), line: String::new(), part: Vec::new() })
    }

    /// Posts `body` and reads the answer to its end; its status, or nothing when the client left before.
    pub(super) async fn post(&mut self, path: &str, body: &str, leave: Leave) -> io::Result<Option<u16>> {
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: load\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        self.socket.write_all(request.as_bytes()).await?;
        if leave == Leave::AtOnce {
            return Ok(None);
        }
        let head = self.head().await?;
        if let Some(length) = head.length {
            self.read_part(length).await?;
            return Ok(Some(head.status));
        }
        while self.chunk().await? > 0 {
            if leave == Leave::AfterFirstPart {
                return Ok(None);
            }
        }
        Ok(Some(head.status))
    }

    async fn read_line(&mut self) -> io::Result<&str> {
        self.line.clear();
        if self.socket.read_line(&mut self.line).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(self.line.trim_end())
    }

    async fn head(&mut self) -> io::Result<Head> {
        let unreadable = || io::Error::from(io::ErrorKind::InvalidData);
        let line = self.read_line().await?;
        let status = line.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(unreadable)?;
        let mut length = None;
        loop {
            let line = self.read_line().await?;
            if line.is_empty() {
                return Ok(Head { status, length });
            }
            if let Some(value) = line.strip_prefix("content-length: ") {
                length = Some(value.parse().map_err(|_| unreadable())?);
            }
        }
    }

    /// Reads one chunk; its size, which is 0 at the end.
    async fn chunk(&mut self) -> io::Result<usize> {
        let line = self.read_line().await?;
        let size = usize::from_str_radix(line, 16).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
        self.read_part(size + 2).await?;
        Ok(size)
    }

    async fn read_part(&mut self, size: usize) -> io::Result<()> {
        self.part.resize(size, 0);
        self.socket.read_exact(&mut self.part).await.map(drop)
    }
}
