//! Ten thousand random steps in lockstep over real sockets, half of them planned one step ahead, within TRTLLM's attention
//! contract: no worker refuses, and all ranks run the same passes.

use paceline_engine::{GenerateRequest, TokenStream};

use crate::support::{Fleet, Setup, VOCAB_SIZE, expect_text, limit, request};

/// Numbers that look random and are the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % u64::from(bound)) as u32
    }

    fn prompt(&mut self) -> Vec<u32> {
        // Chunks of every kind: shorter than Q, of exactly Q, and far over the budget.
        let length = if self.below(3) == 0 { 1 + self.below(10) } else { 1 + self.below(150) };
        (0..length).map(|_| self.below(VOCAB_SIZE)).collect()
    }
}

type Running = (TokenStream, Vec<u32>, u32);

async fn submit(fleet: &Fleet, numbers: &mut Numbers, dp_size: u32) -> Running {
    let prompt = numbers.prompt();
    let count = 1 + numbers.below(60);
    let pinned = (numbers.below(4) == 0).then(|| numbers.below(dp_size));
    let request = GenerateRequest { dp_rank: pinned, ..request(&prompt, count) };
    (fleet.handle.submit(request).await.expect("it fits"), prompt, count)
}

async fn random_steps(dp_size: u32, k: u32, depth: u32, steps: u64) {
    let seed = u64::from(dp_size * 100 + k);
    let mut numbers = Numbers(seed);
    let setup = Setup {
        dp_size,
        k,
        depth,
        lockstep: true,
        attention_contract: "trtllm",
        max_num_seqs: 6,
        max_num_batched_tokens: 24,
        max_model_len: 256,
        num_blocks: 30,
        ..Setup::default()
    };
    let fleet = setup.start().await;
    while fleet.handle.status().counters.steps < steps {
        let mut running = Vec::new();
        for _ in 0..1 + numbers.below(16) {
            running.push(submit(&fleet, &mut numbers, dp_size).await);
        }
        for (mut stream, prompt, count) in running {
            if numbers.below(5) == 0 {
                // A reader that leaves, perhaps before its first token.
                if numbers.below(2) == 0 {
                    limit(stream.next()).await.expect("an event");
                }
                drop(stream);
            } else {
                expect_text(stream, &prompt, count).await;
            }
        }
    }
    fleet.until_all_answered().await;
    let status = fleet.handle.status();
    assert_eq!((status.counters.refused_plans, status.counters.failed), (0, 0), "seed {seed}");
    let records: Vec<_> = fleet.workers.iter().map(|worker| worker.records.all()).collect();
    for (index, first) in records[0].iter().enumerate() {
        assert_eq!(first.step, index as u64 + 1);
        for other in &records {
            let other = &other[index];
            let shape = |record: &paceline_testing::StepRecord| {
                (record.step, record.mode, record.query_len, record.passes, record.rows_padded, record.tokens_padded)
            };
            assert_eq!(shape(other), shape(first), "seed {seed}");
            assert!((other.rows == 0) == (other.dummy_tokens > 0), "seed {seed}: {other:?}");
            assert!(other.dummy_tokens == 0 || other.dummy_tokens == other.query_len, "seed {seed}: {other:?}");
        }
    }
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_thousand_random_steps_of_two_ranks() {
    for k in 0..=7 {
        random_steps(2, k, k % 2, 320).await;
        random_steps(2, k, 1 - k % 2, 320).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_thousand_random_steps_of_four_ranks() {
    for k in 0..=7 {
        random_steps(4, k, k % 2, 320).await;
        random_steps(4, k, 1 - k % 2, 320).await;
    }
}
