//! One step ahead over real sockets: the same text as when every step waits for the replies to the one before, for
//! random configurations and loads.

use paceline_engine::{FinishReason, GenerateRequest};

use crate::support::{End, Setup, VOCAB_SIZE, prompt, read, request};

/// Numbers that look random and are the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % u64::from(bound)) as u32
    }

    fn one_of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len() as u32) as usize]
    }
}

fn setup(numbers: &mut Numbers) -> Setup {
    let k = numbers.below(4);
    Setup {
        dp_size: numbers.one_of(&[1, 2, 4]),
        tp_size: numbers.one_of(&[1, 1, 2]),
        lockstep: numbers.below(2) == 0,
        k,
        drafter_layers: if k == 0 { 0 } else { numbers.below(3).min(k) },
        prefix_cache: numbers.below(2) == 0,
        max_num_seqs: 2 + numbers.below(5),
        max_num_batched_tokens: numbers.one_of(&[8, 24, 256]),
        max_model_len: 256,
        // One request fits at its longest; several preempt each other.
        num_blocks: numbers.one_of(&[17, 30, 512]),
        ..Setup::default()
    }
}

/// Requests whose prompts begin alike in threes, some of which end at a token that they emit on the way.
fn requests(numbers: &mut Numbers) -> Vec<GenerateRequest> {
    let mut requests = Vec::new();
    for index in 0..12 {
        let mut tokens = prompt(index / 3, 20 + 20 * numbers.below(3));
        tokens.extend((0..numbers.below(50)).map(|place| (place * 5 + index) % VOCAB_SIZE));
        let mut one = request(&tokens, 1 + numbers.below(80));
        if numbers.below(3) == 0 {
            one.stop_token_ids = vec![3, 77, 140];
        }
        // Whoever needs its history is told the tokens of a prefix hit too; the others read them from their blocks only.
        one.sampling.adjust.presence_penalty = if index % 2 == 0 { 0.5 } else { 0.0 };
        requests.push(one);
    }
    requests
}

type Texts = Vec<(Vec<u32>, End)>;

async fn texts(setup: &Setup, requests: &[GenerateRequest]) -> (Texts, u64) {
    let fleet = setup.start().await;
    let mut streams = Vec::new();
    for request in requests {
        streams.push(fleet.handle.submit(request.clone()).await.expect("it fits"));
    }
    let mut texts = Vec::new();
    for stream in streams {
        let (tokens, end) = read(stream).await;
        texts.push((tokens.iter().map(|token| token.token_id).collect(), end));
    }
    let status = fleet.handle.status();
    assert_eq!((status.counters.refused_plans, status.counters.failed), (0, 0), "{setup:?}");
    let preemptions = status.ranks.iter().map(|rank| rank.counters.preemptions).sum();
    fleet.stop().await;
    (texts, preemptions)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn text_is_the_same_one_step_ahead() {
    let (mut stopped, mut preemptions) = (0, [0, 0]);
    for seed in 0..40 {
        let mut numbers = Numbers(seed);
        let setup = setup(&mut numbers);
        let requests = requests(&mut numbers);
        let (waiting, preempted) = texts(&setup, &requests).await;
        preemptions[0] += preempted;
        let (ahead, preempted) = texts(&Setup { depth: 1, ..setup.clone() }, &requests).await;
        preemptions[1] += preempted;
        assert_eq!(waiting, ahead, "seed {seed}: {setup:?}");
        stopped += ahead.iter().filter(|(_, end)| matches!(end, End::Finished(FinishReason::Stop(_)))).count();
    }
    assert!(stopped > 10 && preemptions[0] > 0 && preemptions[1] > 0, "{stopped} stops, {preemptions:?} preemptions");
}
