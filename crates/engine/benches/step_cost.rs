//! What a step costs outside the model, over real sockets with a scripted worker: `cargo bench -p paceline-engine`.
//!
//! Prints the median and the 99th percentile in microseconds of each part, for 1, 8 and 64 decode rows.

#[path = "../tests/it/support.rs"]
#[allow(dead_code, reason = "the tests use all of it")]
mod support;

use paceline_engine::Spread;
use support::{Setup, expect_text, prompt};

/// Tokens of each request: more than the window of the measurement holds, so that prompts are not in it.
const TOKENS: u32 = 1_100;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    println!("{:>8} {:>16} {:>16} {:>16} {:>16} {:>16}", "rows", "plan", "encode", "wire", "decode+check", "commit");
    for rows in [1, 8, 64] {
        let setup = Setup {
            dp_size: 1,
            max_num_seqs: 64,
            max_num_batched_tokens: 2_048,
            max_model_len: 2_048,
            num_blocks: 8_192,
            ..Setup::default()
        };
        let fleet = setup.start().await;
        let mut streams = Vec::new();
        for number in 0..rows {
            streams.push((fleet.submit(&prompt(number, 16), TOKENS).await, prompt(number, 16)));
        }
        for (stream, prompt) in streams {
            expect_text(stream, &prompt, TOKENS).await;
        }
        let timings = fleet.handle.status().timings;
        let parts = [timings.plan, timings.encode, timings.wire, timings.worker_decode, timings.commit];
        let shown = parts.map(|Spread { median_us, p99_us }| format!("{median_us} / {p99_us}"));
        println!("{rows:>8} {:>16} {:>16} {:>16} {:>16} {:>16}", shown[0], shown[1], shown[2], shown[3], shown[4]);
        fleet.stop().await;
    }
}
