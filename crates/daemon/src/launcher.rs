//! Starts the workers, passes their lines on, and replaces them when the engine says so.
//!
//! It runs on a thread of its own that lives until the last worker is gone, because the kernel kills a worker when the
//! thread that started it ends.

use std::collections::{BTreeMap, VecDeque};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use paceline_engine::{ExitReporter, Supervisor};
use paceline_fleet::Place;
use paceline_plan::DpRank;
use tokio::process::{Child, Command};
use tokio::sync::mpsc;

use crate::children_say::{Speaker, pass_on};
use crate::failure::EXIT_USAGE;
use crate::process::{bind, reap};

/// Starts of one worker within [`RESTART_WINDOW`].
const RESTARTS_MAX: usize = 5;
const RESTART_WINDOW: Duration = Duration::from_secs(60);
/// Before the second start of a worker; doubled for each one after.
const FIRST_BACKOFF: Duration = Duration::from_millis(250);
/// What a worker that was told to stop gets to end by itself.
const STOP_GRACE: Duration = Duration::from_millis(1_200);

/// Where glibc reads its settings, and the one for huge pages.
const TUNABLES: &str = "GLIBC_TUNABLES";
const HUGE_PAGES: &str = "glibc.malloc.hugetlb=1";

/// How to start a worker.
#[derive(Clone, Debug)]
pub(crate) struct WorkerCommand {
    pub(crate) program: String,
    pub(crate) arguments: Vec<String>,
    pub(crate) daemon_address: String,
    pub(crate) model_folder: String,
    pub(crate) join_token: String,
    pub(crate) dp_size: u32,
    pub(crate) tp_size: u32,
}

/// The launcher's thread.
#[derive(Debug)]
pub(crate) struct Launcher {
    thread: std::thread::JoinHandle<()>,
    exit_code: Arc<AtomicU8>,
}

impl Launcher {
    /// Starts every worker of every rank. It ends, and its workers with it, when the engine has ended.
    ///
    /// # Errors
    /// When the operating system gives no thread.
    pub(crate) fn start(command: WorkerCommand, supervisor: Supervisor) -> std::io::Result<Self> {
        let exit_code = Arc::new(AtomicU8::new(0));
        let shared = Arc::clone(&exit_code);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = std::thread::Builder::new().name("launcher".to_owned()).spawn(move || {
            runtime.block_on(supervise(command, supervisor, shared));
        })?;
        Ok(Self { thread, exit_code })
    }

    /// Waits until every worker is gone. [`EXIT_USAGE`] when one of them ended for bad usage, else 0.
    pub(crate) fn join(self) -> u8 {
        if self.thread.join().is_err() {
            tracing::error!("the launcher panicked");
        }
        self.exit_code.load(Ordering::Relaxed)
    }
}

async fn supervise(command: WorkerCommand, mut supervisor: Supervisor, exit_code: Arc<AtomicU8>) {
    let mut posts = Vec::new();
    let mut orders = BTreeMap::new();
    let tp_size = command.tp_size;
    let places = (0..command.dp_size).flat_map(|rank| (0..tp_size).map(move |tp| Place::new(DpRank::new(rank), tp)));
    for place in places {
        let (sender, receiver) = mpsc::channel(8);
        let post = Post {
            place,
            name: place.name(tp_size),
            command: command.clone(),
            orders: receiver,
            reporter: supervisor.reporter(),
            starts: VecDeque::new(),
            exit_code: Arc::clone(&exit_code),
        };
        posts.push(tokio::spawn(post.run()));
        orders.insert(place, sender);
    }
    while let Some(order) = supervisor.order().await {
        if let Some(sender) = orders.get(&order.place) {
            // A worker with eight orders waiting is going to be started in any case.
            let _ = sender.try_send(());
        }
    }
    drop(orders);
    for post in posts {
        if post.await.is_err() {
            tracing::error!("a worker's supervision panicked");
        }
    }
}

/// One place for a worker.
struct Post {
    place: Place,
    /// What lines of its worker begin with.
    name: String,
    command: WorkerCommand,
    orders: mpsc::Receiver<()>,
    reporter: ExitReporter,
    starts: VecDeque<Instant>,
    exit_code: Arc<AtomicU8>,
}

impl Post {
    async fn run(mut self) {
        loop {
            let wanted = match self.spawn() {
                Ok(child) => self.watch(child).await,
                Err(error) => {
                    let how = format!("cannot start {}: {error}", self.command.program);
                    self.report(0, &how).await;
                    self.orders.recv().await.is_some()
                }
            };
            if !wanted || !self.back_off().await {
                return;
            }
        }
    }

    /// Watches a worker until it is gone. Whether another one is wanted.
    async fn watch(&mut self, mut child: Child) -> bool {
        let process_id = child.id().unwrap_or(0);
        let ended = tokio::select! {
            status = child.wait() => Some(status),
            order = self.orders.recv() => {
                self.note_bad_usage(reap(&mut child, STOP_GRACE).await);
                return order.is_some();
            }
        };
        if let Some(Ok(status)) = ended {
            self.note_bad_usage(Some(status));
            self.report(process_id, &status.to_string()).await;
        } else {
            self.report(process_id, "it cannot be watched").await;
        }
        self.orders.recv().await.is_some()
    }

    async fn report(&self, process_id: u32, how: &str) {
        self.reporter.exited(self.place, process_id, how).await;
    }

    /// Remembers that a worker ended for bad usage. Its peers end for other reasons, and do not hide it.
    fn note_bad_usage(&self, status: Option<ExitStatus>) {
        if status.is_some_and(|status| status.code() == Some(EXIT_USAGE.into())) {
            self.exit_code.store(EXIT_USAGE, Ordering::Relaxed);
        }
    }

    /// Waits until the next start is due. False when none is wanted any more.
    async fn back_off(&mut self) -> bool {
        while self.starts.front().is_some_and(|start| start.elapsed() > RESTART_WINDOW) {
            self.starts.pop_front();
        }
        let recent = self.starts.len();
        let delay = match self.starts.front() {
            Some(oldest) if recent > RESTARTS_MAX => RESTART_WINDOW.saturating_sub(oldest.elapsed()),
            _ => FIRST_BACKOFF * (1 << recent.saturating_sub(1).min(RESTARTS_MAX)),
        };
        tracing::info!("{}: starting another worker in {} ms", self.name, delay.as_millis());
        let until = tokio::time::sleep(delay);
        tokio::pin!(until);
        loop {
            tokio::select! {
                () = &mut until => return true,
                order = self.orders.recv() => if order.is_none() { return false },
            }
        }
    }

    fn spawn(&mut self) -> std::io::Result<Child> {
        self.starts.push_back(Instant::now());
        let mut command = Command::new(&self.command.program);
        command
            .args(&self.command.arguments)
            .args(["--daemon-address", &self.command.daemon_address])
            .args(["--dp-rank", &self.place.dp_rank.to_string()])
            .args(["--tp-rank", &self.place.tp_rank.to_string()])
            .args(["--model", &self.command.model_folder])
            .env("PACELINE_JOIN_TOKEN", &self.command.join_token)
            .env(TUNABLES, with_huge_pages(std::env::var(TUNABLES).ok()))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        bind(&mut command, libc::SIGKILL);
        let mut child = command.spawn()?;
        let speaker = Speaker::Worker { place: self.place, name: self.name.clone() };
        if let Some(stdout) = child.stdout.take() {
            tokio::spawn(pass_on(stdout, speaker.clone()));
        }
        if let Some(stderr) = child.stderr.take() {
            tokio::spawn(pass_on(stderr, speaker));
        }
        Ok(child)
    }
}

/// `tunables`, glibc's settings as the user has them, and that memory for weights and cache lies in huge pages. A decode
/// step reads all weights once, and reads them a tenth faster so. Elsewhere than on Linux with glibc it means nothing.
fn with_huge_pages(tunables: Option<String>) -> String {
    match tunables {
        None => HUGE_PAGES.to_owned(),
        Some(own) if own.is_empty() => HUGE_PAGES.to_owned(),
        // What the user says of it holds.
        Some(own) if own.contains("glibc.malloc.hugetlb") => own,
        Some(own) => format!("{own}:{HUGE_PAGES}"),
    }
}

#[cfg(test)]
mod tests {
    use super::with_huge_pages;

    #[test]
    fn huge_pages_are_asked_for_beside_what_the_user_says() {
        let with = |own: &str| with_huge_pages(Some(own.to_owned()));
        assert_eq!(with_huge_pages(None), "glibc.malloc.hugetlb=1");
        assert_eq!(with(""), "glibc.malloc.hugetlb=1");
        assert_eq!(with("glibc.malloc.check=3"), "glibc.malloc.check=3:glibc.malloc.hugetlb=1");
        assert_eq!(with("glibc.malloc.hugetlb=0"), "glibc.malloc.hugetlb=0");
    }
}
