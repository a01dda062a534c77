//! Bytes: what goes out comes back, and no bytes bring the decoder down.

use paceline_plan::{
    Error, GroupPart, RankPart, RowDrafts, RowReply, Seat, SeatGeneration, StepReply, TokenLogprobs, Words, digest,
    from_bytes, to_bytes,
};
use proptest::prelude::*;

use crate::support::{dummy, full, group_draft, prompt_draft, real};

fn group() -> GroupPart {
    let loads = vec![real(2, 8), dummy(4)];
    GroupPart::new(group_draft(7, 3, full(4, 2), loads).expect("a legal pass")).expect("a legal group part")
}

#[test]
fn parts_come_back_as_they_went() {
    let rank = RankPart::new(prompt_draft(3, &[1, 2, 3], &[5])).expect("a legal part");
    assert_eq!(from_bytes::<RankPart>(&to_bytes(&rank)), Ok(rank));
    let group = group();
    assert_eq!(from_bytes::<GroupPart>(&to_bytes(&group)), Ok(group));
    let reply = StepReply {
        rows: vec![RowReply {
            seat: Seat::new(3),
            generation: SeatGeneration::new(1),
            known: 3,
            accepted: 0,
            emitted: Words::one(9),
            proposed: 2,
            logprobs: vec![TokenLogprobs { token_ids: vec![9, 4], logprob_bits: vec![0x3f80_0000, 1] }].into(),
        }],
        drafts: vec![RowDrafts { seat: Seat::new(3), generation: SeatGeneration::new(1), drafts: vec![8, 9].into() }],
        ..StepReply::default()
    };
    assert_eq!(from_bytes::<StepReply>(&to_bytes(&reply)), Ok(reply));
}

#[test]
fn the_digest_tells_plans_apart() {
    let other = GroupPart::new(group_draft(8, 3, full(4, 2), vec![real(2, 8), dummy(4)]).expect("a legal pass"));
    assert_ne!(digest(&to_bytes(&group())), digest(&to_bytes(&other.expect("a legal group part"))));
    assert_eq!(digest(b"foobar"), 0x8594_4171_f739_67e8, "the published FNV-1a 64 value");
}

#[test]
fn cut_bytes_are_refused() {
    let bytes = to_bytes(&group());
    for end in 0..bytes.len() {
        assert!(matches!(from_bytes::<GroupPart>(&bytes[..end]), Err(Error::Decode { .. })), "cut at {end}");
    }
}

proptest! {
    #[test]
    fn no_bytes_bring_the_decoder_down(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = from_bytes::<GroupPart>(&bytes);
        let _ = from_bytes::<RankPart>(&bytes);
        let _ = from_bytes::<StepReply>(&bytes);
    }

    #[test]
    fn a_changed_byte_is_refused_or_still_legal(index in 0usize..200, value in any::<u8>()) {
        let mut bytes = to_bytes(&group());
        let index = index % bytes.len();
        bytes[index] = value;
        if let Ok(part) = from_bytes::<GroupPart>(&bytes) {
            prop_assert_eq!(from_bytes::<GroupPart>(&to_bytes(&part)), Ok(part));
        }
    }
}
