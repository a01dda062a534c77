//! The threads that a worker computes with: the calling one, and helpers that sleep between calls.

use std::sync::{PoisonError, RwLock};

use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};

/// Work of fewer elements than this is done before a sleeping thread is awake.
const ELEMENTS_MIN: usize = 1 << 15;

static CREW: RwLock<Option<Crew>> = RwLock::new(None);

struct Crew {
    helpers: ThreadPool,
    count: usize,
}

/// Compute with `count` threads from now on, the calling one included; 0 counts as 1. Helpers may run where the caller may.
///
/// # Errors
/// When threads cannot be started.
pub fn set_threads(count: usize) -> Result<(), ThreadPoolBuildError> {
    let crew = if count > 1 {
        let helpers =
            ThreadPoolBuilder::new().num_threads(count - 1).thread_name(|index| format!("kernels-{index}")).build()?;
        Some(Crew { helpers, count })
    } else {
        None
    };
    *CREW.write().unwrap_or_else(PoisonError::into_inner) = crew;
    Ok(())
}

/// How many parts work of `elements` elements in `rows` rows is worth.
pub(crate) fn parts(rows: usize, elements: usize) -> usize {
    if elements < ELEMENTS_MIN {
        return 1;
    }
    let crew = CREW.read().unwrap_or_else(PoisonError::into_inner);
    crew.as_ref().map_or(1, |crew| crew.count.min(rows))
}

/// Runs all `tasks`, the first on this thread.
pub(crate) fn run<T: FnOnce() + Send>(tasks: impl IntoIterator<Item = T>) {
    let mut tasks = tasks.into_iter();
    let Some(first) = tasks.next() else { return };
    let crew = CREW.read().unwrap_or_else(PoisonError::into_inner);
    match crew.as_ref() {
        Some(crew) => crew.helpers.in_place_scope(|scope| {
            for task in tasks {
                scope.spawn(|_| task());
            }
            first();
        }),
        None => {
            first();
            tasks.for_each(|task| task());
        }
    }
}
