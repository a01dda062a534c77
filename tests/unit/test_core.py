"""The extension as the worker uses it: plans in, arrays filled, tokens out, refusals with their numbers."""

import subprocess
import sys

import numpy as np
import pytest

from paceline import _core
from tests.unit.core_steps import GREEDY, VOCAB, Buffers, begin, logits_for, make_core, prompt_plan


def test_a_prompt_then_a_verified_decode_row() -> None:
    core, buffers = make_core(), Buffers()
    step = begin(core, 1, **prompt_plan([4, 5, 6, 4, 5], k_draft=2))
    assert (step.step, step.epoch, step.group, step.dp_rank, step.is_dummy) == (1, 1, 0, 0, False)
    (target,) = step.passes
    assert (target.kind, target.mode, target.q, target.rows, target.tokens) == ("target", "eager", 0, 1, 5)
    assert target.tokens_per_rank == [5]
    assert buffers.fill(core, step) == 1
    assert buffers.input_ids.tolist() == [4, 5, 6, 4, 5] + [0] * 11
    assert buffers.positions.tolist() == [0, 1, 2, 3, 4] + [0] * 11
    assert buffers.slots.tolist() == [12, 13, 14, 15, 20] + [-1] * 11
    assert buffers.query_start_loc.tolist() == [0, 5, 5, 5, 5]
    assert buffers.kv_lens.tolist() == [5, 0, 0, 0]
    assert buffers.block_table.tolist() == [[3, 5, 7] + [0] * 6] + [[0] * 9] * 3
    assert buffers.request_index.tolist() == [0] * 5 + [-1] * 11
    assert buffers.logits_index.tolist() == [4] + [-1] * 15
    core.sample(step, logits_for([6]))
    core.propose_ngram(step)
    reply = _core.decode_reply_for_test(core.reply(step, [1, 2, 3, 4]))
    assert reply["timings_us"] == [1, 2, 3, 4]
    assert reply["rows"][0]["emitted"] == [6]
    assert reply["rows"][0]["proposed"] == 2

    # 4 5 6 4 5 6: the drafts are 4 5. One agrees; a placeholder fills the row to Q = 4.
    step = begin(
        core,
        2,
        k_verify=3,
        target={"mode": "full", "q": 4, "rows_padded": 2, "loads": [(1, 4)]},
        rows=[{"seat": 1, "start": 5, "query_len": 4, "drafts": 2, "blocks": 3, "logits": "verify"}],
    )
    (target,) = step.passes
    assert (target.mode, target.q, target.rows_padded, target.tokens_padded) == ("full", 4, 2, 8)
    assert buffers.fill(core, step) == 3
    assert buffers.input_ids.tolist() == [6, 4, 5] + [0] * 13
    assert buffers.positions.tolist() == [5, 6, 7, 8] + [0] * 12
    assert buffers.slots.tolist() == [21, 22, 23] + [-1] * 13
    assert buffers.query_start_loc.tolist() == [0, 4, 8, 8, 8]
    assert buffers.kv_lens.tolist() == [9, 4, 0, 0]
    assert buffers.logits_index.tolist() == [0, 1, 2] + [-1] * 13
    core.sample(step, logits_for([4, 9, 11]))
    (row,) = _core.decode_reply_for_test(core.reply(step, [0, 0, 0, 0]))["rows"]
    assert (row["known"], row["accepted"], row["emitted"], row["proposed"]) == (6, 1, [4, 9], 0)


def test_arrays_are_rewritten_as_far_as_the_pass_before_went_and_wholly_once_forgotten() -> None:
    core, buffers = make_core(), Buffers()
    arrays = buffers.arrays()
    step = begin(core, 1, **prompt_plan([4, 5, 6, 4, 5]))
    core.fill_target(step, arrays)
    assert buffers.input_ids.tolist() == [4, 5, 6, 4, 5] + [0] * 11
    core.sample(step, logits_for([6]))
    core.reply(step, [0] * 4)
    row = {"seat": 1, "query_len": 1, "blocks": 3, "logits": "last"}
    for number, rubbish in ((2, False), (3, True)):
        if rubbish:
            buffers.input_ids[:], buffers.kv_lens[:] = 99, 99
            arrays.forget()
        step = begin(core, number, target={"mode": "eager", "loads": [(1, 1)]}, rows=[row | {"start": 3 + number}])
        core.fill_target(step, arrays)
        assert buffers.input_ids.tolist() == [6] + [0] * 15
        assert buffers.slots.tolist() == [19 + number] + [-1] * 15
        assert buffers.kv_lens.tolist() == [4 + number, 0, 0, 0]
        core.sample(step, logits_for([6]))
        core.reply(step, [0] * 4)


def test_seeded_tokens_are_those_of_the_rules_and_carry_logprobs() -> None:
    params = _core.sampling_bytes_for_test(temperature=0.8, seed=5, logprobs=2)
    core = make_core()
    step = begin(core, 1, **prompt_plan([1, 2, 3], params))
    logits = np.linspace(0, 2, VOCAB, dtype=np.float32)[None]
    core.sample(step, logits)
    (row,) = _core.decode_reply_for_test(core.reply(step, [0] * 4))["rows"]
    assert row["emitted"] == [_core.sample_row(logits[0], params, 3)]
    noise = _core.philox_noise(5, 3, np.arange(VOCAB))
    assert row["emitted"] == [int(np.argmax(logits[0].astype(np.float64) / np.float32(0.8) + noise))]
    (entries,) = row["logprobs"]
    assert [token for token, _ in entries] == [*row["emitted"], 15, 14]
    log_softmax = logits[0] - np.log(np.exp(logits[0].astype(np.float64)).sum())
    np.testing.assert_allclose([value for _, value in entries], log_softmax[[*row["emitted"], 15, 14]], rtol=1e-6)


def test_a_chunk_that_does_not_end_the_prompt_gives_no_token() -> None:
    core, buffers = make_core(), Buffers()
    plan = prompt_plan([1, 2, 3, 4])
    plan["admissions"] = [(1, 0, 6, GREEDY)]
    plan["rows"][0]["logits"] = "none"
    step = begin(core, 1, **plan)
    assert buffers.fill(core, step) == 0
    reply = _core.decode_reply_for_test(core.reply(step, [0] * 4))
    assert reply["rows"][0]["emitted"] == []
    step = begin(
        core,
        2,
        target={"mode": "eager", "loads": [(1, 2)]},
        feeds=[(1, 4, [5, 6])],
        rows=[{"seat": 1, "start": 4, "query_len": 2, "blocks": 3, "logits": "last"}],
    )
    core.sample(step, logits_for([7]))
    (row,) = _core.decode_reply_for_test(core.reply(step, [0] * 4))["rows"]
    assert (row["known"], row["emitted"]) == (6, [7])


@pytest.mark.parametrize("k", range(4))
def test_an_idle_rank_runs_one_dummy_row_of_q_tokens(k: int) -> None:
    core, buffers = make_core([0, 1]), Buffers()
    target = {"mode": "full", "q": 1 + k, "rows_padded": 2, "loads": [(0, 1 + k), (2, 2 * (1 + k))]}
    step = begin(core, 1, dp_ranks=[0, 1], k_verify=k, target=target)
    (first,) = step.passes
    assert step.is_dummy
    assert (first.rows, first.tokens, first.rows_padded, first.tokens_padded) == (1, 1 + k, 2, 2 * (1 + k))
    assert first.tokens_per_rank == [1 + k, 2 * (1 + k)]
    assert buffers.fill(core, step) == 0
    assert buffers.query_start_loc.tolist() == [0, 1 + k, *[2 * (1 + k)] * 3]
    assert buffers.kv_lens.tolist() == [1 + k, 1 + k, 0, 0]
    assert not buffers.block_table.any()
    assert (buffers.slots == -1).all()
    assert _core.decode_reply_for_test(core.reply(step, [0] * 4))["rows"] == []


def test_refusals_carry_the_rule_and_both_numbers_and_end_the_epoch() -> None:
    core = make_core()
    plan = prompt_plan([1, 2, 3])
    plan["rows"][0]["blocks"] = 2
    with pytest.raises(_core.PlanRefused) as refusal:
        begin(core, 1, **plan)
    error = refusal.value
    assert (error.rule, error.expected, error.got, error.dp_rank, error.step) == ("rule 9", 3, 2, 0, 1)
    assert str(error) == f"rank 0 refuses step 1: rule 9: {error.field}: expected 3, got 2"
    with pytest.raises(_core.PlanRefused, match="rule 13"):
        begin(core, 1, **prompt_plan([1, 2, 3]))
    core.reset(1)
    assert core.seats_occupied == 0
    begin(core, 1, **prompt_plan([1, 2, 3]))
    assert core.seats_occupied == 1


def test_bytes_that_are_no_plan_are_refused_as_such() -> None:
    core = make_core()
    digest, group_part, _ = _core.encode_step_for_test(epoch=1, step=1, dp_rank=0, dp_ranks=[0], **prompt_plan([1]))
    with pytest.raises(_core.PlanUndecodable) as refusal:
        core.begin(0, 1, 1, digest, group_part, b"\xc1")
    assert refusal.value.rule == "decode"
    assert isinstance(refusal.value, _core.PlanRefused)


@pytest.mark.parametrize("sampling", [b"", b"\x90", GREEDY + b"\x00"])
def test_unusable_sampling_bytes_are_refused_for_the_whole_epoch(sampling: bytes) -> None:
    core = make_core()
    with pytest.raises(_core.PlanUndecodable, match="sampling of seat 1"):
        begin(core, 1, **prompt_plan([1, 2], sampling))
    with pytest.raises(_core.PlanRefused, match="rule 13"):
        begin(core, 2, **prompt_plan([1, 2]))


def test_invalid_parameters_name_the_field() -> None:
    with pytest.raises(_core.InvalidSampling, match=r"top_p .* got 1.5") as invalid:
        _core.sampling_bytes_for_test(top_p=1.5)
    assert invalid.value.field == "top_p"


def test_logits_without_a_distribution_name_the_row() -> None:
    core = make_core()
    step = begin(core, 1, **prompt_plan([1, 2, 3]))
    logits = logits_for([6])
    logits[0, 2] = np.nan
    with pytest.raises(_core.UnusableLogits, match=r"row 0 \(seat 1\): the logit of token 2 is NaN") as unusable:
        core.sample(step, logits)
    assert (unusable.value.row, unusable.value.seat) == (0, 1)
    with pytest.raises(_core.StepOutOfOrder):
        core.reply(step, [0] * 4)


def test_calls_out_of_order_are_refused() -> None:
    core = make_core()
    step = begin(core, 1, **prompt_plan([1, 2, 3]))
    with pytest.raises(_core.StepOutOfOrder):
        core.propose_ngram(step)
    with pytest.raises(_core.StepOutOfOrder):
        core.reply(step, [0] * 4)
    core.sample(step, logits_for([6]))
    core.reply(step, [0] * 4)
    with pytest.raises(_core.StepOutOfOrder, match="step 1 of epoch 1 is not the current step: none"):
        core.reply(step, [0] * 4)
    core.reset(2)
    with pytest.raises(_core.StepOutOfOrder):
        core.sample(step, logits_for([6]))


def test_arrays_of_another_shape_or_type_are_refused() -> None:
    core, buffers = make_core(), Buffers()
    step = begin(core, 1, **prompt_plan([1, 2, 3]))
    with pytest.raises(ValueError, match=r"\[1, 16\], got \[2, 16\]"):
        core.sample(step, logits_for([6, 7]))
    with pytest.raises(ValueError, match="contiguous"):
        core.sample(step, np.zeros((VOCAB, 1), np.float32).repeat(2, axis=1).T[:1])
    with pytest.raises(TypeError):
        core.sample(step, logits_for([6]).astype(np.float64))
    buffers.block_table = np.zeros((4, 8), np.int32)
    with pytest.raises(ValueError, match="9 columns, got 8"):
        buffers.fill(core, step)
    buffers = Buffers()
    buffers.input_ids = np.zeros(2, np.int64)
    with pytest.raises(_core.PlanRefused, match="token capacity"):
        buffers.fill(core, step)


def test_importing_the_extension_imports_no_torch() -> None:
    code = "import sys, paceline._core; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def run_in_a_process(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)


def test_the_daemon_gives_its_exit_code_and_finds_default_signal_handlers() -> None:
    result = run_in_a_process(
        "import signal, sys\n"
        "from paceline._core import run_daemon\n"
        "assert run_daemon(['--version'], sys.executable) == 0\n"
        "assert {signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)} == {signal.SIG_DFL}\n"
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("paceline ")


def test_bad_usage_is_exit_code_64() -> None:
    result = run_in_a_process(
        "import sys\nfrom paceline._core import run_daemon\nsys.exit(run_daemon(['serve', '--no-such-flag'], sys.executable))"
    )
    assert result.returncode == 64
    assert "--no-such-flag" in result.stderr
