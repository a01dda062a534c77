//! The tasks of one connection, moved on by the thread of the streams or by whoever has just queued a message.
//!
//! A message that is queued for another thread waits until that thread has been woken and is given a core; on the core of
//! the model that is longer than it takes to send. So the sender works through the tasks itself, as far as they go without
//! waiting: the message is in the socket when it returns. It never waits for the other thread. Whatever comes later, such
//! as what is received, pings and their answers, is the other thread's.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::stream::{FuturesUnordered, StreamExt};
use hyper::rt::Executor;
use tokio::runtime::Runtime;
use tokio::sync::Notify;

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;
type Tasks = FuturesUnordered<Task>;

/// The tasks of a connection. Clones are the same crew.
#[derive(Clone)]
pub(crate) struct Crew {
    shared: Arc<Shared>,
}

struct Shared {
    tasks: Mutex<Tasks>,
    /// Tasks that nobody has looked at yet: a task may start others while it is worked on.
    new: Mutex<Vec<Task>>,
    gate: Arc<Gate>,
}

/// Who is told that a task can go on.
#[derive(Default)]
struct Gate {
    /// For the thread of the streams.
    bell: Notify,
    /// Somebody is working, and looks at `again` before going.
    is_worked_on: AtomicBool,
    /// A task can go on.
    again: AtomicBool,
}

impl Wake for Gate {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.again.store(true, Ordering::SeqCst);
        if !self.is_worked_on.load(Ordering::SeqCst) {
            self.bell.notify_one();
        }
    }
}

impl Crew {
    /// An empty crew, which `runtime` works on until neither a task nor a clone of it is left.
    pub(crate) fn start(runtime: &Runtime) -> Self {
        let (tasks, new, gate) = (Mutex::default(), Mutex::default(), Arc::new(Gate::default()));
        let bell = Arc::clone(&gate);
        let crew = Self { shared: Arc::new(Shared { tasks, new, gate }) };
        let shared = Arc::downgrade(&crew.shared);
        runtime.spawn(async move {
            loop {
                bell.bell.notified().await;
                let Some(shared) = shared.upgrade() else { return };
                shared.work(&mut shared.tasks.lock().unwrap_or_else(PoisonError::into_inner));
            }
        });
        crew
    }

    /// Adds a task.
    pub(crate) fn add(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.shared.new.lock().unwrap_or_else(PoisonError::into_inner).push(Box::pin(task));
        self.shared.gate.wake_by_ref();
    }

    /// Calls `queue` and does what it lets tasks do. Left to the thread of the streams if that is working just now.
    pub(crate) fn send(&self, runtime: &Runtime, queue: impl FnOnce()) {
        let mut tasks = match self.shared.tasks.try_lock() {
            Ok(tasks) => tasks,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return queue(),
        };
        self.shared.gate.is_worked_on.store(true, Ordering::SeqCst);
        queue();
        // Tasks may set timers.
        let _context = runtime.enter();
        self.shared.work(&mut tasks);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.gate.bell.notify_one();
    }
}

impl Shared {
    /// Works until every task waits for something.
    fn work(&self, tasks: &mut Tasks) {
        let waker = Waker::from(Arc::clone(&self.gate));
        let mut context = Context::from_waker(&waker);
        loop {
            self.gate.is_worked_on.store(true, Ordering::SeqCst);
            self.gate.again.store(false, Ordering::SeqCst);
            tasks.extend(self.new.lock().unwrap_or_else(PoisonError::into_inner).drain(..));
            while let Poll::Ready(Some(())) = tasks.poll_next_unpin(&mut context) {}
            self.gate.is_worked_on.store(false, Ordering::SeqCst);
            // Whoever came meanwhile has rung no bell; whoever comes from here on does.
            if !self.gate.again.load(Ordering::SeqCst) {
                return;
            }
        }
    }
}

impl Executor<Task> for Crew {
    fn execute(&self, task: Task) {
        self.add(task);
    }
}
