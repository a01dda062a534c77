//! A client's connection, encrypted or not.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;
use tonic::transport::server::{Connected, TcpConnectInfo};

use super::patient::Patience;

enum Stream {
    Plain(TcpStream),
    Encrypted(Box<TlsStream<TcpStream>>),
}

/// A connection whose writes fail once its client has left bytes unread for too long.
pub(crate) struct Socket {
    stream: Stream,
    patience: Patience,
    peer: Option<SocketAddr>,
}

impl Socket {
    pub(super) fn plain(stream: TcpStream, unread: Option<Duration>) -> Self {
        let peer = stream.peer_addr().ok();
        Self { stream: Stream::Plain(stream), patience: Patience::new(unread), peer }
    }

    pub(super) fn encrypted(stream: TlsStream<TcpStream>, unread: Option<Duration>) -> Self {
        let peer = stream.get_ref().0.peer_addr().ok();
        Self { stream: Stream::Encrypted(Box::new(stream)), patience: Patience::new(unread), peer }
    }
}

/// Calls the same method of whichever stream it is.
macro_rules! of_stream {
    ($socket:ident, $stream:ident => $call:expr) => {
        match &mut $socket.stream {
            Stream::Plain($stream) => {
                let $stream = Pin::new($stream);
                $call
            }
            Stream::Encrypted($stream) => {
                let $stream = Pin::new($stream.as_mut());
                $call
            }
        }
    };
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        of_stream!(self, stream => stream.poll_read(context, buffer))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = of_stream!(self, stream => stream.poll_write(context, bytes));
        self.patience.judge(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = of_stream!(self, stream => stream.poll_write_vectored(context, parts));
        self.patience.judge(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Stream::Plain(stream) => stream.is_write_vectored(),
            Stream::Encrypted(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = of_stream!(self, stream => stream.poll_flush(context));
        self.patience.judge(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = of_stream!(self, stream => stream.poll_shutdown(context));
        self.patience.judge(context, shut)
    }
}

impl Connected for Socket {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        TcpConnectInfo { local_addr: None, remote_addr: self.peer }
    }
}
