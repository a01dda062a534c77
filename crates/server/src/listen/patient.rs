//! How long a client may leave bytes unread.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};

/// Watches one connection's writes: one that waits for longer than the limit fails.
pub(super) struct Patience {
    limit: Option<Duration>,
    timer: Option<Pin<Box<Sleep>>>,
    /// Whether a write waits, since the timer was set.
    waits: bool,
}

impl Patience {
    pub(super) const fn new(limit: Option<Duration>) -> Self {
        Self { limit, timer: None, waits: false }
    }

    /// The outcome of a write: as it is, or an error once it has waited too long.
    pub(super) fn judge<T>(&mut self, context: &mut Context<'_>, outcome: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        let Some(limit) = self.limit else { return outcome };
        if outcome.is_ready() {
            self.waits = false;
            return outcome;
        }
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(limit)));
        if !self.waits {
            self.waits = true;
            timer.as_mut().reset(Instant::now() + limit);
        }
        match timer.as_mut().poll(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(()) => {
                let message = format!("the client has read nothing for {} s", limit.as_secs());
                Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, message)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    async fn write(patience: &mut Patience, outcome: fn() -> Poll<io::Result<usize>>) -> io::Result<usize> {
        poll_fn(|context| patience.judge(context, outcome())).await
    }

    const LIMIT: Duration = Duration::from_millis(200);

    #[tokio::test]
    async fn a_write_that_waits_too_long_fails_and_none_before() {
        let began = Instant::now();
        let mut patience = Patience::new(Some(LIMIT));
        assert_eq!(write(&mut patience, || Poll::Ready(Ok(7))).await.ok(), Some(7));
        let waited = write(&mut patience, || Poll::Pending).await;
        assert_eq!(waited.map_err(|error| error.kind()), Err(io::ErrorKind::TimedOut));
        assert!(began.elapsed() >= LIMIT);
        let mut endless = Patience::new(None);
        assert!(tokio::time::timeout(2 * LIMIT, write(&mut endless, || Poll::Pending)).await.is_err());
    }

    #[tokio::test]
    async fn every_byte_that_is_read_gives_the_whole_time_again() {
        let mut patience = Patience::new(Some(LIMIT));
        let waits = poll_fn(|context| Poll::Ready(patience.judge(context, Poll::<io::Result<usize>>::Pending))).await;
        assert!(waits.is_pending());
        tokio::time::sleep(LIMIT).await;
        assert_eq!(write(&mut patience, || Poll::Ready(Ok(1))).await.ok(), Some(1));
        let waits = poll_fn(|context| Poll::Ready(patience.judge(context, Poll::<io::Result<usize>>::Pending))).await;
        assert!(waits.is_pending(), "what came before does not count");
    }
}
