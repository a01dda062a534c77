"""The passes of a drafter with KV as the worker fills them (rule 18): extend, then one single pass for each draft."""

from typing import Any

import numpy as np
import pytest

from paceline import _core
from tests.unit.core_steps import GREEDY, VOCAB, Buffers, begin, logits_for, make_core, prompt_plan


def eager(rows: int, tokens: int) -> dict[str, Any]:
    return {"mode": "eager", "loads": [(rows, tokens)]}


def drafter_passes(target: dict[str, Any], sampled: int, k_draft: int) -> list[dict[str, Any]]:
    """Extend like the target, then the single passes of `sampled` rows; 0 is a dummy of one token."""
    return [target, *[eager(sampled, max(sampled, 1))] * (k_draft - 1)]


def prompt_step(core: _core.WorkerCore, prompt: list[int], k_draft: int = 3, **plan: Any) -> _core.Step:
    """A prompt on seat 1, run whole as step 1."""
    plan = prompt_plan(prompt, k_draft=k_draft) | plan
    return begin(core, 1, **plan, drafter_passes=drafter_passes(plan["target"], 1, k_draft))


def decode_step(core: _core.WorkerCore, number: int, start: int, drafts: int, **plan: Any) -> _core.Step:
    """Seat 1 decodes with `drafts` drafts."""
    row = {"seat": 1, "start": start, "query_len": 1 + drafts, "drafts": drafts, "blocks": 3, "logits": "verify"}
    plan = {"k_verify": 3, "k_draft": 3, "target": eager(1, 1 + drafts), "rows": [row], **plan}
    plan.setdefault("drafter_passes", drafter_passes(plan["target"], 1, plan["k_draft"]))
    return begin(core, number, **plan)


def propose_all(core: _core.WorkerCore, buffers: Buffers, step: _core.Step, tokens: list[int]) -> None:
    """Extend and single passes of one row, with drafts of these tokens."""
    buffers.extend(core, step)
    core.propose(step, logits_for(tokens[:1]))
    for index, token in enumerate(tokens[1:], 2):
        assert buffers.single(core, step, index) == 1
        core.propose(step, logits_for([token]))


def test_a_whole_prompt_is_moved_on_by_the_layer_and_ends_in_the_new_token() -> None:
    core, buffers = make_core(drafter_layers=2), Buffers()
    step = prompt_step(core, [4, 5, 6, 7, 8])
    assert [each.kind for each in step.passes] == ["target", "extend", "single", "single"]
    buffers.fill(core, step)
    core.sample(step, logits_for([9]))
    assert buffers.extend(core, step, 1) == 1
    assert buffers.input_ids.tolist() == [5, 6, 7, 8, 9] + [0] * 11
    assert buffers.positions.tolist() == [0, 1, 2, 3, 4] + [0] * 11
    assert buffers.slots.tolist() == [12, 13, 14, 15, 20] + [-1] * 11
    assert buffers.query_start_loc.tolist() == [0, 5, 5, 5, 5]
    assert buffers.kv_lens.tolist() == [5, 0, 0, 0]
    assert buffers.request_index.tolist() == [0] * 5 + [-1] * 11
    assert buffers.logits_index.tolist() == [4] + [-1] * 15
    assert buffers.extend(core, step, 2) == 1, "the same logits in every layer"
    assert buffers.input_ids.tolist() == [6, 7, 8, 9, 0] + [0] * 11
    assert buffers.positions.tolist() == [0, 1, 2, 3, 4] + [0] * 11
    assert buffers.slots.tolist() == [12, 13, 14, 15, -1] + [-1] * 11
    assert buffers.logits_index.tolist() == [4] + [-1] * 15


def test_single_passes_of_one_layer_go_on_from_the_last_position() -> None:
    core, buffers = make_core(drafter_layers=1), Buffers()
    step = prompt_step(core, [4, 5, 6, 7, 8])
    core.sample(step, logits_for([9]))
    buffers.extend(core, step)
    core.propose(step, logits_for([10]))
    assert buffers.single(core, step, 2) == 1
    assert buffers.input_ids.tolist() == [10] + [0] * 15
    assert buffers.positions.tolist() == [5] + [0] * 15
    assert buffers.slots.tolist() == [21] + [-1] * 15
    assert buffers.query_start_loc.tolist() == [0, 1, 1, 1, 1]
    assert buffers.kv_lens.tolist() == [6, 0, 0, 0]
    assert buffers.block_table.tolist() == [[3, 5, 7] + [0] * 6] + [[0] * 9] * 3
    assert buffers.logits_index.tolist() == [0] + [-1] * 15
    core.propose(step, logits_for([11]))
    buffers.single(core, step, 3)
    assert (buffers.input_ids[0], buffers.positions[0], buffers.slots[0], buffers.kv_lens[0]) == (11, 6, 22, 7)
    core.propose(step, logits_for([12]))
    (row,) = _core.decode_reply_for_test(core.reply(step, [0] * 4))["rows"]
    assert (row["emitted"], row["proposed"]) == ([9], 3)
    step = decode_step(core, 2, 5, 3)
    buffers.fill(core, step)
    assert buffers.input_ids[:4].tolist() == [9, 10, 11, 12], "the drafts that the next step verifies"


def test_single_passes_of_two_layers_run_the_second_at_the_last_position_first() -> None:
    core, buffers = make_core(drafter_layers=2), Buffers()
    step = prompt_step(core, [4, 5, 6, 7, 8])
    core.sample(step, logits_for([9]))
    buffers.extend(core, step, 1)
    buffers.extend(core, step, 2)
    core.propose(step, logits_for([10]))
    buffers.single(core, step, 2)
    assert (buffers.input_ids[0], buffers.positions[0], buffers.slots[0], buffers.kv_lens[0]) == (10, 4, 20, 5)
    core.propose(step, logits_for([11]))
    buffers.single(core, step, 3)
    assert (buffers.input_ids[0], buffers.positions[0], buffers.slots[0], buffers.kv_lens[0]) == (11, 5, 21, 6)


@pytest.mark.parametrize("accepted", range(4))
def test_rejected_drafts_write_nothing(accepted: int) -> None:
    core, buffers = make_core(drafter_layers=1), Buffers()
    step = prompt_step(core, [4, 5, 6])
    core.sample(step, logits_for([9]))
    propose_all(core, buffers, step, [10, 11, 12])
    core.reply(step, [0] * 4)
    step = decode_step(core, 2, 3, 3)
    buffers.fill(core, step)
    target_positions = buffers.positions.tolist()
    emitted = [*[10, 11, 12][:accepted], 13]
    core.sample(step, logits_for(emitted + [0] * (3 - accepted)))
    assert buffers.extend(core, step) == 1
    assert buffers.input_ids[:4].tolist() == emitted + [0] * (3 - accepted)
    assert buffers.positions.tolist() == target_positions
    slots = [15, 20, 21, 22]
    assert buffers.slots[:4].tolist() == slots[: accepted + 1] + [-1] * (3 - accepted)
    assert buffers.kv_lens[0] == 7
    assert buffers.logits_index[:2].tolist() == [accepted, -1]
    core.propose(step, logits_for([14]))
    buffers.single(core, step, 2)
    assert (buffers.input_ids[0], buffers.positions[0], buffers.slots[0]) == (14, 4 + accepted, 20 + accepted)


def test_placeholders_padding_and_their_positions() -> None:
    core, buffers = make_core(drafter_layers=1), Buffers()
    step = prompt_step(core, [4, 5, 6], k_draft=1)
    core.sample(step, logits_for([9]))
    propose_all(core, buffers, step, [10])
    core.reply(step, [0] * 4)
    full = {"mode": "full", "q": 4, "rows_padded": 2, "loads": [(1, 4)]}
    single = {"mode": "full", "q": 1, "rows_padded": 4, "loads": [(1, 1)]}
    row = {"seat": 1, "start": 3, "query_len": 4, "drafts": 1, "blocks": 3, "logits": "verify"}
    step = decode_step(core, 2, 3, 1, target=full, rows=[row], k_draft=2, drafter_passes=[full, single])
    core.sample(step, logits_for([10, 11]))
    assert buffers.extend(core, step) == 1
    assert buffers.input_ids.tolist() == [10, 11] + [0] * 14
    assert buffers.positions.tolist() == [3, 4, 5, 6] + [0] * 12
    assert buffers.slots.tolist() == [15, 20] + [-1] * 14
    assert buffers.query_start_loc.tolist() == [0, 4, 8, 8, 8]
    assert buffers.kv_lens.tolist() == [7, 4, 0, 0]
    assert buffers.request_index.tolist() == [0] * 4 + [-1] * 12
    assert buffers.logits_index.tolist() == [1] + [-1] * 15
    core.propose(step, logits_for([12]))
    assert buffers.single(core, step, 2) == 1
    assert buffers.query_start_loc.tolist() == [0, 1, 2, 3, 4]
    assert buffers.kv_lens.tolist() == [6, 1, 1, 1]
    assert buffers.slots.tolist() == [21] + [-1] * 15
    assert buffers.request_index.tolist() == [0] + [-1] * 15


def test_a_chunk_needs_the_token_after_it_and_gives_no_draft() -> None:
    core, buffers = make_core(drafter_layers=1), Buffers()
    chunk = prompt_plan([1, 2, 3, 4], k_draft=0)
    chunk["admissions"] = [(1, 0, 6, GREEDY)]
    chunk["rows"][0]["logits"] = "none"
    passes = [chunk["target"]]
    with pytest.raises(_core.PlanRefused, match="rule 18: known tokens after a chunk: expected 5, got 4"):
        begin(core, 1, **chunk, drafter_passes=passes)
    core.reset(1)
    chunk["feeds"] = [(1, 0, [1, 2, 3, 4, 5])]
    step = begin(core, 1, **chunk, drafter_passes=passes)
    assert buffers.fill(core, step) == 0
    assert buffers.input_ids[:5].tolist() == [1, 2, 3, 4, 0]
    assert buffers.extend(core, step) == 0
    assert buffers.input_ids[:5].tolist() == [2, 3, 4, 5, 0]
    assert buffers.slots[:5].tolist() == [12, 13, 14, 15, -1]
    assert (buffers.logits_index == -1).all()
    (row,) = _core.decode_reply_for_test(core.reply(step, [0] * 4))["rows"]
    assert (row["known"], row["emitted"], row["proposed"]) == (5, [], 0)
    rows = [{"seat": 1, "start": 4, "query_len": 2, "blocks": 3, "logits": "last"}]
    target = eager(1, 2)
    step = begin(core, 2, target=target, feeds=[(1, 5, [6])], rows=rows, k_draft=1, drafter_passes=[target])
    core.sample(step, logits_for([7]))
    assert buffers.extend(core, step) == 1
    assert buffers.input_ids[:3].tolist() == [6, 7, 0]


def test_the_extend_pass_runs_without_drafts_and_a_step_without_it_is_refused() -> None:
    core, buffers = make_core(drafter_layers=1), Buffers()
    plan = prompt_plan([4, 5, 6])
    step = begin(core, 1, **plan, drafter_passes=[plan["target"]])
    core.sample(step, logits_for([9]))
    assert buffers.extend(core, step) == 0
    assert buffers.slots[:3].tolist() == [12, 13, 14]
    with pytest.raises(_core.StepOutOfOrder, match="plans 0 drafts"):
        core.propose(step, logits_for([1]))
    core.reply(step, [0] * 4)
    with pytest.raises(_core.PlanRefused, match="rule 18: passes of a step with a drafter: expected 2, got 1"):
        decode_step(core, 2, 3, 0, k_draft=0, drafter_passes=[])


def test_a_dummy_runs_every_pass() -> None:
    core, buffers = make_core([0, 1], drafter_layers=1), Buffers()
    target = {"mode": "full", "q": 3, "rows_padded": 2, "loads": [(0, 3), (2, 6)]}
    single = {"mode": "full", "q": 1, "rows_padded": 2, "loads": [(0, 1), (2, 2)]}
    passes = [target, single]
    step = begin(core, 1, dp_ranks=[0, 1], k_verify=2, k_draft=2, target=target, drafter_passes=passes)
    for q in (3, 1):
        assert (buffers.extend(core, step) if q == 3 else buffers.single(core, step, 2)) == 0
        assert buffers.query_start_loc.tolist() == [0, q, *[2 * q] * 3]
        assert buffers.kv_lens.tolist() == [q, q, 0, 0]
        assert not buffers.block_table.any()
        assert (buffers.slots == -1).all()
        core.propose(step, np.zeros((0, VOCAB), np.float32))
    reply = _core.decode_reply_for_test(core.reply(step, [0] * 4))
    assert (reply["rows"], reply["passes"]) == ([], 3)


def at_the_limit(core: _core.WorkerCore, buffers: Buffers, blocks: list[int], known: int) -> _core.Step:
    """A step in which a prompt of `known - 1` tokens, of at most 32, gives its token number `known`."""
    prompt = [1 + index % 9 for index in range(known - 1)]
    rest = prompt[16:]
    row = {"seat": 1, "start": 0, "query_len": 16, "blocks": len(blocks), "logits": "none"}
    step = begin(
        core,
        1,
        target=eager(1, 16),
        admissions=[(1, 0, len(prompt), GREEDY)],
        feeds=[(1, 0, prompt[:17])],
        block_appends=[(1, blocks)],
        rows=[row],
        drafter_passes=[eager(1, 16)],
    )
    assert step.k_draft == 0
    core.reply(step, [0] * 4)
    row = {"seat": 1, "start": 16, "query_len": len(rest), "blocks": len(blocks), "logits": "last"}
    target = eager(1, len(rest))
    passes = drafter_passes(target, 1, 3)
    step = begin(core, 2, target=target, feeds=[(1, 17, prompt[17:])], rows=[row], k_draft=3, drafter_passes=passes)
    core.sample(step, logits_for([9]))
    buffers.extend(core, step)
    core.propose(step, logits_for([10]))
    return step


def test_c05_no_write_slot_exists_at_the_length_limit() -> None:
    core, buffers = make_core(drafter_layers=1), Buffers()
    step = at_the_limit(core, buffers, list(range(1, 9)), 32)
    assert buffers.positions[14] == 30
    buffers.single(core, step, 2)
    assert (buffers.positions[0], buffers.slots[0], buffers.kv_lens[0]) == (31, 35, 32)
    core.propose(step, logits_for([11]))
    buffers.single(core, step, 3)
    assert (buffers.positions[0], buffers.slots[0], buffers.kv_lens[0]) == (31, -1, 32)


def test_a_position_whose_block_is_missing_is_not_written() -> None:
    core, buffers = make_core(drafter_layers=1), Buffers()
    step = at_the_limit(core, buffers, [1, 2, 3, 4, 5, 6], 24)
    buffers.single(core, step, 2)
    assert (buffers.positions[0], buffers.slots[0], buffers.kv_lens[0]) == (23, 27, 24)
    core.propose(step, logits_for([11]))
    buffers.single(core, step, 3)
    assert (buffers.positions[0], buffers.slots[0], buffers.kv_lens[0]) == (24, -1, 25)
    assert buffers.block_table[0].tolist() == [1, 2, 3, 4, 5, 6, 0, 0, 0], "the null block is read, never written"


def test_drafts_are_sampled_as_the_row_itself_is() -> None:
    params = _core.sampling_bytes_for_test(temperature=0.8, seed=5)
    core, buffers = make_core(drafter_layers=1), Buffers()
    plan = prompt_plan([1, 2, 3], params, k_draft=2)
    step = begin(core, 1, **plan, drafter_passes=drafter_passes(plan["target"], 1, 2))
    logits = np.linspace(0, 2, VOCAB, dtype=np.float32)[None]
    core.sample(step, logits)
    for index in (1, 2):
        _ = buffers.extend(core, step) if index == 1 else buffers.single(core, step, index)
        core.propose(step, logits)
    core.reply(step, [0] * 4)
    step = decode_step(core, 2, 3, 2)
    buffers.fill(core, step)
    assert buffers.input_ids[:3].tolist() == [_core.sample_row(logits[0], params, index) for index in (3, 4, 5)]


def test_drafter_calls_out_of_order_are_refused() -> None:
    core, buffers = make_core(drafter_layers=1), Buffers()
    step = prompt_step(core, [4, 5, 6], k_draft=2)
    with pytest.raises(_core.StepOutOfOrder, match="follows sampling"):
        buffers.extend(core, step)
    core.sample(step, logits_for([9]))
    with pytest.raises(_core.StepOutOfOrder, match="single pass 2 follows draft 1; there are 0"):
        buffers.single(core, step, 2)
    with pytest.raises(ValueError, match=r"\[1, 16\], got \[2, 16\]"):
        core.propose(step, logits_for([1, 2]))
    core.propose(step, logits_for([1]))
    buffers.single(core, step, 2)
    core.propose(step, logits_for([2]))
    with pytest.raises(_core.StepOutOfOrder, match="plans 2 drafts"):
        core.propose(step, logits_for([3]))
    with pytest.raises(_core.PlanRefused, match="rule 18: layer of the drafter: expected 1, got 0"):
        buffers.extend(core, step, 0)


def test_the_digest_of_tokens_tells_replies_apart() -> None:
    digests = set()
    for token in (6, 7, 6):
        core = make_core()
        assert core.tokens_digest == 0
        step = begin(core, 1, **prompt_plan([1, 2, 3]))
        core.sample(step, logits_for([token]))
        core.reply(step, [0] * 4)
        digests.add(core.tokens_digest)
    assert len(digests) == 2
    # Seat 1, generation 0, none accepted, one token 6, no draft.
    digest = 0xCBF29CE484222325
    for word in (1, 0, 0, 1, 6, 0):
        for byte in word.to_bytes(4, "little"):
            digest = (digest ^ byte) * 0x100000001B3 % 2**64
    assert digest in digests


def test_shares_of_tp_workers_lie_side_by_side() -> None:
    assert [_core.tp_share(5, 4, tp_rank) for tp_rank in range(4)] == [(0, 2), (2, 2), (4, 1), (5, 0)]
    assert _core.tp_share(7, 1, 0) == (0, 7)
    with pytest.raises(ValueError, match="below tp_size 2, got 2"):
        _core.tp_share(4, 2, 2)
