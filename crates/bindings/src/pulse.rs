//! How far the model thread has come: written by it, read by the heartbeats, which hold no interpreter lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use paceline_proto::v1::Heartbeat;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Phases in the order in which a step goes through them.
const PHASES: [&str; 5] = ["idle", "received", "launched", "sampled", "replied"];

/// The numbers of a pulse. Each is one atomic: a heartbeat that is one field behind does no harm.
#[derive(Default)]
pub(crate) struct Progress {
    step: AtomicU64,
    pass_index: AtomicU32,
    phase: AtomicU8,
    collectives: AtomicU64,
}

impl Progress {
    /// What a heartbeat says now.
    pub(crate) fn heartbeat(&self) -> Heartbeat {
        Heartbeat {
            step: self.step.load(Ordering::Relaxed),
            pass_index: self.pass_index.load(Ordering::Relaxed),
            phase: PHASES[usize::from(self.phase.load(Ordering::Relaxed))].to_owned(),
            collectives: self.collectives.load(Ordering::Relaxed),
        }
    }
}

/// What a heartbeat reports. Phases: idle, received, launched, sampled, replied.
#[pyclass(frozen)]
#[derive(Default)]
pub(crate) struct Pulse {
    pub(crate) progress: Arc<Progress>,
}

#[pymethods]
impl Pulse {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// The newest step that was received.
    #[getter]
    fn step(&self) -> u64 {
        self.progress.step.load(Ordering::Relaxed)
    }

    #[setter]
    fn set_step(&self, step: u64) {
        self.progress.step.store(step, Ordering::Relaxed);
    }

    /// The pass of the step that was launched last.
    #[getter]
    fn pass_index(&self) -> u32 {
        self.progress.pass_index.load(Ordering::Relaxed)
    }

    #[setter]
    fn set_pass_index(&self, pass_index: u32) {
        self.progress.pass_index.store(pass_index, Ordering::Relaxed);
    }

    /// Where in the step the model thread is.
    #[getter]
    fn phase(&self) -> &'static str {
        PHASES[usize::from(self.progress.phase.load(Ordering::Relaxed))]
    }

    /// # Errors
    /// `ValueError` for a word that is no phase.
    #[setter]
    fn set_phase(&self, phase: &str) -> PyResult<()> {
        let index = (0_u8..).zip(PHASES).find(|(_, name)| *name == phase);
        let (index, _) =
            index.ok_or_else(|| PyValueError::new_err(format!("phase: one of {PHASES:?}, got {phase:?}")))?;
        self.progress.phase.store(index, Ordering::Relaxed);
        Ok(())
    }

    /// Collectives entered so far.
    #[getter]
    fn collectives(&self) -> u64 {
        self.progress.collectives.load(Ordering::Relaxed)
    }

    #[setter]
    fn set_collectives(&self, collectives: u64) {
        self.progress.collectives.store(collectives, Ordering::Relaxed);
    }
}
