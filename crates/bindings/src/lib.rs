//! The Python extension `paceline._core`: what the worker and the `paceline` command call.
//!
//! It translates and holds nothing of its own beyond the seats' samplers: plans are decoded, checked and turned into
//! arrays by `paceline-plan`, layers are computed by `paceline-kernels`, tokens are chosen by `paceline-sampling`, and the
//! daemon is `paceline-daemon`.

#![expect(clippy::needless_pass_by_value, reason = "PyO3 hands arguments over by value")]

mod arrays;
mod attention;
mod block;
mod crew;
mod daemon;
mod errors;
mod int8;
mod kernels;
mod launch;
mod linear;
mod outcomes;
mod prompt;
mod pulse;
mod reply;
mod sampling;
mod share;
mod step;
mod stream;
mod testing;
mod worker;

use pyo3::prelude::*;

/// The compiled part of Paceline.
#[pymodule]
mod _core {
    use super::*;

    #[pymodule_export]
    use crate::arrays::PassBuffers;
    #[pymodule_export]
    use crate::attention::PagedAttention;
    #[pymodule_export]
    use crate::block::{AttentionBlock, FeedForwardBlock, LayerStack};
    #[pymodule_export]
    use crate::daemon::run_daemon;
    #[pymodule_export]
    use crate::errors::{
        CoreError, InvalidSampling, PlanRefused, PlanUndecodable, StepOutOfOrder, StreamLost, UnusableLogits,
    };
    #[pymodule_export]
    use crate::int8::{Int8Matrix, quantise_rows};
    #[pymodule_export]
    use crate::kernels::{gate, rms_norm, rotate, set_kernel_threads};
    #[pymodule_export]
    use crate::launch::{CheckedLaunch, LaunchDesk, check_launch};
    #[pymodule_export]
    use crate::linear::{LinearWeight, has_matrix_instructions, linear};
    #[pymodule_export]
    use crate::pulse::Pulse;
    #[pymodule_export]
    use crate::reply::encode_reply;
    #[pymodule_export]
    use crate::sampling::{philox_noise, sample_row};
    #[pymodule_export]
    use crate::share::tp_share;
    #[pymodule_export]
    use crate::step::{Pass, Step};
    #[pymodule_export]
    use crate::stream::{WorkerStream, wire_thread_id};
    #[pymodule_export]
    use crate::testing::{decode_reply_for_test, encode_masks_for_test, encode_step_for_test, sampling_bytes_for_test};
    #[pymodule_export]
    use crate::worker::WorkerCore;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
