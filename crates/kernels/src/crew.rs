//! The threads that a worker computes with: the calling one, and helpers that stay awake between calls, for a short while.

use std::ops::Range;
use std::sync::{PoisonError, RwLock, mpsc};
use std::thread::{self, JoinHandle};
use std::{io, mem};

use micropool::iter::{ExactParallelSourceExt, IntoExactParallelSource, ParallelIteratorExt};
use micropool::{ThreadPool, ThreadPoolBuilder};

/// Work of fewer elements than this is done before another thread has begun.
const ELEMENTS_MIN: usize = 1 << 15;
/// How often a helper looks for work before it sleeps: some 100 us, longer than what lies between the calls of a step, and
/// less than what lies between steps. To wake it takes as long as the product of a small layer.
const LOOKS: usize = 3000;

static CREW: RwLock<Option<Crew>> = RwLock::new(None);

struct Crew {
    helpers: ThreadPool,
    count: usize,
}

/// Compute with `count` threads from now on, the calling one included; 0 counts as 1. Helpers may run where the caller may.
///
/// # Errors
/// When threads cannot be started.
pub fn set_threads(count: usize) -> io::Result<()> {
    let crew = if count > 1 { Some(Crew::start(count)?) } else { None };
    *CREW.write().unwrap_or_else(PoisonError::into_inner) = crew;
    Ok(())
}

type Work = Box<dyn FnOnce() + Send>;

impl Crew {
    fn start(count: usize) -> io::Result<Self> {
        let mut started = (1..count).map(start_helper).collect::<io::Result<Vec<_>>>()?;
        let helpers = ThreadPoolBuilder::default()
            .num_threads(count - 1)
            .idle_spin_cycles(LOOKS)
            .spawn_handler(move |_, work| {
                let (handle, work_sender) = started.pop().expect("as many as the pool has");
                // Nobody but this sender could have ended the helper.
                mem::drop(work_sender.send(work));
                handle
            })
            .build();
        Ok(Self { helpers, count })
    }
}

/// A thread that waits for its work, or for the end of the sender.
fn start_helper(index: usize) -> io::Result<(JoinHandle<()>, mpsc::Sender<Work>)> {
    let (sender, receiver) = mpsc::channel::<Work>();
    let wait = move || receiver.recv().into_iter().for_each(|work| work());
    Ok((thread::Builder::new().name(format!("kernels-{index}")).spawn(wait)?, sender))
}

/// How many parts work of `elements` elements in `rows` rows is worth.
pub(crate) fn parts(rows: usize, elements: usize) -> usize {
    if elements < ELEMENTS_MIN {
        return 1;
    }
    let crew = CREW.read().unwrap_or_else(PoisonError::into_inner);
    crew.as_ref().map_or(1, |crew| crew.count.min(rows))
}

/// `0 .. width` in bands of `band`, the last of what is left.
pub(crate) fn bands(width: usize, band: usize) -> impl Iterator<Item = Range<usize>> + Clone {
    (0..width).step_by(band).map(move |start| start..width.min(start + band))
}

/// Cuts a matrix of rows `width` wide into bands of columns that follow each other: of each band its part of every row.
pub(crate) fn columns<'a, E>(
    matrix: &'a mut [E],
    width: usize,
    bands: &(impl Iterator<Item = Range<usize>> + Clone),
) -> Vec<Vec<&'a mut [E]>> {
    let rows = matrix.len() / width;
    let mut parts: Vec<Vec<&'a mut [E]>> = bands.clone().map(|_| Vec::with_capacity(rows)).collect();
    for mut row in matrix.chunks_exact_mut(width) {
        for (part, band) in parts.iter_mut().zip(bands.clone()) {
            let (own, rest) = row.split_at_mut(band.len());
            part.push(own);
            row = rest;
        }
    }
    parts
}

/// Runs all `tasks`, on this thread those that no other has begun. With helpers, a task that panics ends the process: others may
/// still use what it was given.
pub(crate) fn run<T: FnOnce() + Send>(tasks: impl IntoIterator<Item = T>) {
    let crew = CREW.read().unwrap_or_else(PoisonError::into_inner);
    match crew.as_ref() {
        Some(crew) => {
            let tasks: Vec<T> = tasks.into_iter().collect();
            tasks.into_par_iter().with_thread_pool(crew.helpers.split_per_item()).for_each(|task| task());
        }
        None => tasks.into_iter().for_each(|task| task()),
    }
}
