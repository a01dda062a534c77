"""Whole steps in one process: plans in, tokens out, equal to what transformers generates."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from paceline import _core
from paceline._core import Pulse
from paceline.parallel.placement import Placement
from paceline.v1.worker_pb2 import RowLadder, Welcome, WorkerSettings
from paceline.worker.load import LoadedModel, UnusableSettingsError, load
from paceline.worker.lockstep import ProcessGroups
from paceline.worker.runner import Runner
from paceline.worker.warmup import warm_up
from parity.checkpoints import greedy_text, logits_of, make_checkpoint, random_tokens
from parity.planner import BLOCK_SIZE, Planner


def settings(folder: Path, **fields: object) -> WorkerSettings:
    """Settings of a small worker on one rank."""
    defaults = {
        "model_path": str(folder),
        "dtype": "float32",
        "device": "cpu",
        "attention_backend": "reference",
        "dp_size": 1,
        "tp_size": 1,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 64,
        "max_model_len": 96,
        "block_size": BLOCK_SIZE,
        "num_blocks_override": 60,
        "seats": 4,
        "k_max": 3,
        "row_capacity": 4,
        "token_capacity": 64,
        "table_width": 25,
        "threads": 1,
        "row_ladders": [RowLadder(query_len=1, rows=[1, 2, 4]), RowLadder(query_len=4, rows=[1, 4])],
    }
    return WorkerSettings(**{**defaults, **fields})  # type: ignore[arg-type]


def load_worker(folder: Path, group: list[int], **fields: object) -> LoadedModel:
    """Load rank 0 of a group that forms no process group; fit for models without collectives."""
    welcome = Welcome(group=0, epoch=1, group_dp_ranks=group, settings=settings(folder, dp_size=len(group), **fields))
    return load(folder, 0, welcome, ProcessGroups(Placement(), Pulse()), lambda stage, done, total: None)


def make_runner(folder: Path, **fields: object) -> Runner:
    runner = Runner(load_worker(folder, [0], **fields), Pulse(), dp_rank=0, is_lockstep=False)
    runner.reset(1)
    return runner


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[torch.nn.Module, Path]:
    folder = tmp_path_factory.mktemp("tiny")
    return make_checkpoint(folder), folder


def test_chunks_then_padded_decode_equals_generate(tiny: tuple[torch.nn.Module, Path]) -> None:
    oracle, folder = tiny
    runner, planner = make_runner(folder), Planner([0])
    first = planner.admit(0, 2, random_tokens(20, seed=1), list(range(1, 15)))
    second = planner.admit(0, 0, random_tokens(9, seed=2), [40, 20, 41, 22, 43, 24, 45, 26, 47, 28])

    def execute(envelopes) -> dict:
        return planner.settle(0, runner.execute(envelopes[0]).body)

    execute(planner.eager({0: {2: 13}}))
    execute(planner.eager({0: {2: 7, 0: 9}}))
    # The second request decodes beside nobody, then both under a larger padded size.
    execute(planner.full({0: [0]}, rows_padded=1))
    for _ in range(20):
        reply = execute(planner.full({0: [0, 2]}, rows_padded=4))
        assert len(reply["timings_us"]) == 4
    assert first.output == greedy_text(oracle, first.prompt, 21)
    assert second.output == greedy_text(oracle, second.prompt, 22)


def test_ngram_speculation_gives_the_same_text(tiny: tuple[torch.nn.Module, Path]) -> None:
    oracle, folder = tiny
    runner, planner = make_runner(folder, drafter="ngram"), Planner([0])
    # A prompt that repeats itself, so that lookups find something to propose.
    seat = planner.admit(0, 1, random_tokens(6, seed=3) * 3, list(range(1, 20)))
    accepted = proposed = 0
    planner.settle(0, runner.execute(planner.eager({0: {1: 18}}, k_draft=3)[0]).body)
    while len(seat.output) < 40:
        proposed += seat.proposed
        reply = planner.settle(0, runner.execute(planner.full({0: [1]}, query_len=4, rows_padded=4, k_draft=3)[0]).body)
        accepted += reply["rows"][0]["accepted"]
    assert proposed > 0
    expected = greedy_text(oracle, seat.prompt, len(seat.output))
    assert seat.output == expected
    assert accepted <= proposed


def test_logprobs_equal_the_oracle(tiny: tuple[torch.nn.Module, Path]) -> None:
    oracle, folder = tiny
    runner, planner = make_runner(folder), Planner([0])
    seat = planner.admit(0, 0, random_tokens(11, seed=4), list(range(1, 10)), logprobs=3)
    replies = [planner.settle(0, runner.execute(planner.eager({0: {0: 11}})[0]).body)]
    replies += [planner.settle(0, runner.execute(planner.full({0: [0]}, rows_padded=1)[0]).body) for _ in range(5)]
    expected = torch.log_softmax(logits_of(oracle, seat.prompt + seat.output), dim=-1)
    for index, reply in enumerate(replies):
        position = expected[len(seat.prompt) - 1 + index]
        (entry,) = reply["rows"][0]["logprobs"]
        assert len(entry) == 4
        for token, value in entry:
            assert value == pytest.approx(position[token].item(), abs=1e-3)


def test_a_dummy_runs_and_touches_nothing(tiny: tuple[torch.nn.Module, Path]) -> None:
    _, folder = tiny
    loaded = load_worker(folder, [0, 1])
    runner = Runner(loaded, Pulse(), dp_rank=0, is_lockstep=False)
    runner.reset(1)
    planner = Planner([0, 1])
    planner.admit(1, 0, random_tokens(8, seed=5), [1, 2, 3, 4])
    for envelopes in (planner.eager({1: {0: 8}}), planner.full({1: [0]}, rows_padded=1), planner.full({1: [0]}, rows_padded=4)):
        reply = planner.settle(0, runner.execute(envelopes[0]).body)
        assert reply["rows"] == []
        # The other rank's seat moves on, so that the next plan is one that a daemon could send.
        planner.seats[1][0].output.append(1)
    assert loaded.core.seats_occupied == 0
    assert not any(pool.any() for pool in (*loaded.backend.cache.keys, *loaded.backend.cache.values))


def test_warm_up_leaves_no_trace(tiny: tuple[torch.nn.Module, Path]) -> None:
    oracle, folder = tiny
    loaded, planner = load_worker(folder, [0]), Planner([0])
    runner = Runner(loaded, Pulse(), dp_rank=0, is_lockstep=False)
    said = warm_up(loaded, settings(folder), dp_rank=0).describe()
    assert said == "6 target, 0 extend and 0 single passes, collectives: 0 of the target, 0 of the drafter"
    assert not any(pool.any() for pool in (*loaded.backend.cache.keys, *loaded.backend.cache.values))
    runner.reset(1)
    seat = planner.admit(0, 0, random_tokens(5, seed=6), [1, 2, 3, 4])
    planner.settle(0, runner.execute(planner.eager({0: {0: 5}})[0]).body)
    assert seat.output == greedy_text(oracle, seat.prompt, 1)


def test_refused_plans_carry_rule_and_numbers(tiny: tuple[torch.nn.Module, Path]) -> None:
    runner, planner = make_runner(tiny[1]), Planner([0])
    planner.admit(0, 0, random_tokens(5, seed=7), [1, 2])
    planner.step = 4
    with pytest.raises(_core.PlanRefused) as caught:
        runner.execute(planner.eager({0: {0: 5}})[0])
    assert (caught.value.rule, caught.value.expected, caught.value.got) == ("rule 13", 1, 5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dtype": "float16"}, "dtype 'float16' is not supported"),
        ({"quantization": "int4"}, "quantization 'int4' is not supported; known are none, int8"),
        ({"device": "cuda"}, "device 'cuda'"),
        ({"attention_backend": "flash"}, "unknown attention backend 'flash'; known are cpu, reference"),
        ({"attention_contract": "other"}, "unknown attention contract 'other'; known are reference, cpu, flashinfer, trtllm"),
        ({"attention_contract": "trtllm"}, "attention contract trtllm: block_size 4 is not one of (16, 32, 64)"),
        ({"drafter": "eagle"}, "drafter 'eagle'"),
        ({"drafter": "mtp", "drafter_layers": 1}, "drafter 'mtp' with 1 layers: the model has 0"),
        (
            {"expert_parallel": "pigeons"},
            "expert parallelism 'pigeons' is not known; known are off, allgather_reducescatter, all_to_all",
        ),
        ({"num_blocks_override": 0, "kv_cache_memory_bytes": 1000}, "holds no block: one takes 3072 bytes"),
    ],
)
def test_unusable_settings_are_named(tiny: tuple[torch.nn.Module, Path], fields: dict[str, object], message: str) -> None:
    with pytest.raises(UnusableSettingsError) as caught:
        make_runner(tiny[1], **fields)
    assert message in str(caught.value)


def test_kv_blocks_follow_memory_and_need(tiny: tuple[torch.nn.Module, Path]) -> None:
    sizes = {"num_blocks_override": 0, "kv_cache_memory_bytes": 3072 * 11}
    assert load_worker(tiny[1], [0], **sizes).num_blocks == 10
    # 4 rows of 96 + 3 tokens in blocks of 4.
    assert load_worker(tiny[1], [0], **{**sizes, "kv_cache_memory_bytes": 1 << 30}).num_blocks == 100
