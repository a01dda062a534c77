//! SIGINT and SIGTERM.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::Failure;

/// The signals that have come.
#[derive(Clone, Debug)]
pub(crate) struct Signals {
    first: CancellationToken,
    second: CancellationToken,
    number: Arc<AtomicU8>,
}

impl Signals {
    /// Listens from now on; neither signal ends the process any more.
    ///
    /// # Errors
    /// When the operating system does not allow it.
    pub(crate) fn listen() -> std::io::Result<Self> {
        let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        let signals = Self {
            first: CancellationToken::new(),
            second: CancellationToken::new(),
            number: Arc::new(AtomicU8::new(0)),
        };
        let seen = signals.clone();
        tokio::spawn(async move {
            loop {
                let number = tokio::select! {
                    _ = interrupt.recv() => libc::SIGINT,
                    _ = terminate.recv() => libc::SIGTERM,
                };
                if seen.first.is_cancelled() {
                    seen.second.cancel();
                } else {
                    seen.number.store(number as u8, Ordering::SeqCst);
                    seen.first.cancel();
                }
            }
        });
        Ok(signals)
    }

    /// Cancelled by the first signal.
    pub(crate) const fn first(&self) -> &CancellationToken {
        &self.first
    }

    /// Waits for the first signal; its name.
    pub(crate) async fn wait(&self) -> &'static str {
        self.first.cancelled().await;
        self.name()
    }

    /// Waits for the second signal.
    pub(crate) async fn wait_again(&self) {
        self.second.cancelled().await;
    }

    /// How the process ends when a signal came before it was in service.
    pub(crate) fn failure(&self) -> Option<Failure> {
        let number = self.number.load(Ordering::SeqCst);
        (number != 0).then(|| Failure::Signal { name: self.name(), number })
    }

    fn name(&self) -> &'static str {
        if i32::from(self.number.load(Ordering::SeqCst)) == libc::SIGINT { "SIGINT" } else { "SIGTERM" }
    }
}
