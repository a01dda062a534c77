//! The vocabulary that the scheduler, the wire and the workers share: ids, counts, pass shapes, step plans and
//! replies, with their invariants and their msgpack codec.
//!
//! A value of a type in this crate has passed its checks: fields with an invariant are private and there is one
//! constructor, which returns [`Error`] with the numbers. Decoding goes through the same constructors.
//!
//! What it does not do: it decides no shape (that is `scheduler::shape`), it knows no clock, socket, thread,
//! randomness or log, and it holds no float (float bits travel as `u32`).

pub mod arrays;
mod checks;
mod codec;
pub mod counts;
mod error;
pub mod ids;
pub mod limits;
pub mod masks;
mod pack;
pub mod padding;
pub mod pass;
pub mod rank;
pub mod reply;
pub mod seats;
mod share;
pub mod step;
mod words;

pub use checks::check_rank;
pub use codec::{Coded, digest, from_bytes, to_bytes};
pub use counts::{DummyRows, QueryLen, Rows, RowsPadded, Tokens, TokensPadded};
pub use error::Error;
pub use ids::{BlockId, DpRank, Epoch, GroupId, KvGroup, Seat, SeatGeneration, StepId};
pub use limits::WorkerLimits;
pub use masks::{RowMasks, StepMasks};
pub use pass::{Mode, Network, Pass, PassKind, RankLoad, Shape};
pub use rank::{Admission, BlockAppend, Feed, LogitsWanted, Mask, RankDraft, RankPart, Release, Row};
pub use reply::{Logprobs, RowDrafts, RowReply, StepReply, TokenLogprobs};
pub use share::tp_share;
pub use step::{GroupDraft, GroupPart, StepPlan};
pub use words::Words;
