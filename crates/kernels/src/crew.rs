//! The threads that a worker computes with: the calling one, and helpers that sleep between calls.

use std::ops::Range;
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
