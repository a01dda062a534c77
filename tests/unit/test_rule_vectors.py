"""The rule vectors: arrays derived again in Python, held against the launch checks, and sent to `_core`."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from paceline import _core
from paceline.attention.contracts import find_contract
from paceline.worker.arrays import StepArrays
from paceline.worker.checks import Launch, LaunchLimits, LaunchRefusedError, check_launch
from tests.unit.rule_vectors import (
    DRAFTS,
    MODES,
    TOKEN,
    Json,
    Seats,
    cases,
    expected_arrays,
    expected_drafter_arrays,
    fnv1a_64,
    group_bytes,
    masks_bytes,
    rank_bytes,
)

CASES = cases()
NAMES = [name for name, _, _ in CASES]


def launch_of(group: Json, rank: Json, rank_index: int, logits: int, step: int) -> Launch:
    """What the plan says of the target pass on this rank."""
    target = group["passes"][0]
    return Launch(
        dp_rank=rank["dp_rank"],
        step=step,
        mode=MODES[target["mode"]],
        query_len=target["query_len"],
        rows=target["rows"][rank_index],
        tokens=target["tokens"][rank_index],
        is_dummy=bool(target["dummy"][rank_index]),
        rows_padded=target["rows_padded"],
        tokens_padded=target["tokens_padded"],
        logits=logits,
    )


def launch_limits(limits: Json) -> LaunchLimits:
    """The worker's sizes as the checks want them."""
    return LaunchLimits(
        max_model_len=limits["max_model_len"],
        k_max=limits["k_max"],
        block_size=limits["block_size"],
        block_count=limits["num_blocks"] + 1,
        vocab_size=limits["vocab_size"],
    )


def arrays_of(values: Json) -> StepArrays:
    """Arrays with the dtypes that kernels are given."""
    wide = {"input_ids", "positions", "slots", "logits_index"}
    return StepArrays(
        **{
            field.name: np.array(values[field.name], np.int64 if field.name in wide else np.int32)
            for field in dataclasses.fields(StepArrays)
        }
    )


@pytest.mark.parametrize(("name", "limits", "case"), CASES, ids=NAMES)
def test_arrays_follow_from_the_rules(name: str, limits: Json, case: Json) -> None:
    """What Rust wrote is what the rules' text gives, and the launch checks take it."""
    seats = Seats()
    for number, step in enumerate(case["steps"], 1):
        expect = step["expect"]
        if "refused" in expect:
            assert step is case["steps"][-1], name
            return
        group, rank = step["group"], step["rank"]
        seats.apply(rank)
        assert expected_arrays(limits, group, rank, case["dp_rank"], seats) == expect["arrays"]
        launch = launch_of(group, rank, case["dp_rank"], expect["arrays"]["logits_count"], number)
        check_launch(launch, arrays_of(expect["arrays"]), launch_limits(limits), find_contract("reference"))
        emitted = seats.outcomes(rank, step.get("accepted", 0), TOKEN)
        layers = case.get("drafter_layers", 0)
        if layers:
            drafter = expected_drafter_arrays(limits, group, rank, case["dp_rank"], seats, emitted, layers)
            assert drafter == expect["drafter"]
        seats.commit(emitted, DRAFTS[: group["k_draft"]] if layers else DRAFTS)


@pytest.mark.parametrize(("name", "limits", "case"), CASES, ids=NAMES)
def test_core_takes_or_refuses_each_plan(name: str, limits: Json, case: Json) -> None:
    """`_core` makes the same arrays of plans packed here, and refuses the same plans with the same numbers."""
    layers = case.get("drafter_layers", 0)
    core = _core.WorkerCore(
        dp_rank=case["dp_rank"], group_ranks=case["group_dp_ranks"], drafter_layers=layers, scheduling_depth=1, **limits
    )
    core.reset(1)
    greedy = _core.sampling_bytes_for_test(temperature=0.0)
    for step in case["steps"]:
        group, expect = step["group"], step["expect"]
        body = group_bytes(group)
        envelope = (group["group"], group["epoch"], group["step"], fnv1a_64(body), body, rank_bytes(step["rank"], greedy))
        if "refused" in expect:
            with pytest.raises(_core.PlanRefused) as caught:
                deliver(core, step, envelope)
            assert (expect["layer"] == "masks") == ("masks" in step), name
            refused = {field: getattr(caught.value, field) for field in ("rule", "field", "expected", "got")}
            assert refused == expect["refused"], name
            return
        plan = deliver(core, step, envelope)
        sizes = (limits["row_capacity"], limits["token_capacity"], limits["table_width"])
        arrays = StepArrays.allocate(row_capacity=sizes[0], token_capacity=sizes[1], table_width=sizes[2])
        fields = [field.name for field in dataclasses.fields(StepArrays)]
        count = core.fill_target(plan, _core.PassBuffers(arrays))
        assert {field: getattr(arrays, field).tolist() for field in fields} | {"logits_count": count} == expect["arrays"]
        assert (plan.masked_rows > 0) == ("masks" in step), name
        accepted = step.get("accepted", 0)
        core.sample(plan, likely((DRAFTS[:accepted] + [TOKEN] * count)[:count], limits))
        if layers:
            found = run_drafter(core, plan, layers, arrays, limits)
            assert found == expect["drafter"]
        else:
            core.propose_ngram(plan)
        core.reply(plan, [0, 0, 0, 0])


def deliver(core: _core.WorkerCore, step: Json, envelope: tuple[Any, ...]) -> _core.Step:
    """Give a core a plan, and the masks that follow it."""
    plan = core.begin(*envelope)
    if "masks" in step:
        core.set_masks(plan, step["group"]["epoch"], step["group"]["step"], masks_bytes(step["masks"]))
    return plan


def likely(tokens: list[int], limits: Json) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Logits whose likeliest tokens are these."""
    logits = np.zeros((len(tokens), limits["vocab_size"]), np.float32)
    logits[np.arange(len(tokens)), tokens] = 1.0
    return logits


def run_drafter(core: _core.WorkerCore, plan: _core.Step, layers: int, arrays: StepArrays, limits: Json) -> list[Json]:
    """The drafter's passes with drafts `DRAFTS`; the arrays of each."""
    fields = [field.name for field in dataclasses.fields(StepArrays)]
    buffers = _core.PassBuffers(arrays)
    found = []

    def keep(count: int) -> None:
        found.append({field: getattr(arrays, field).tolist() for field in fields} | {"logits_count": count})

    for layer in range(1, layers + 1):
        keep(core.fill_extend(plan, layer, buffers))
    for index in range(1, plan.k_draft + 1):
        if index > 1:
            keep(core.fill_single(plan, index, buffers))
        core.propose(plan, likely([DRAFTS[index - 1]] * found[-1]["logits_count"], limits))
    return found


# One padding or shape value broken by hand: which array, where, what, and the rule that refuses it.
BROKEN = [
    ("query_start_loc", 2, 9, "rule 7"),
    ("query_start_loc", 4, 13, "rule 4"),
    ("query_start_loc", 7, 0, "rule 7"),
    ("kv_lens", 1, 0, "rule 7"),
    ("kv_lens", 1, 5, "rule 7"),
    ("kv_lens", 0, 3, "rule 7"),
    ("kv_lens", 0, 69, "rule 9"),
    ("kv_lens", 5, 1, "rule 7"),
    ("input_ids", 4, 1, "rule 7"),
    ("input_ids", 0, 100, "rule 9"),
    ("positions", 5, 3, "rule 7"),
    ("positions", 0, 4, "rule 9"),
    ("slots", 6, 0, "rule 7"),
    ("slots", 0, 1, "rule 7"),
    ("slots", 0, 68, "rule 7"),
    ("slots", 0, 38, "rule 7"),
    ("slots", 0, 36, "rule 16"),
    ("request_index", 0, 1, "rule 7"),
    ("request_index", 4, 0, "rule 7"),
    ("block_table", (0, 0), 17, "rule 7"),
    ("block_table", (0, 0), 0, "rule 9"),
    ("block_table", (2, 0), 3, "rule 7"),
    ("logits_index", 0, 4, "rule 20"),
    ("logits_index", 3, 4, "rule 20"),
]


@pytest.mark.parametrize(("array", "index", "value", "rule"), BROKEN)
def test_the_launch_checks_refuse_a_broken_array(array: str, index: int, value: int, rule: str) -> None:
    """A worker that fills its arrays wrongly stops itself before the kernels see them."""
    name = "rule_07: padding rows read the null block and write nothing"
    limits, case = next((limits, case) for known, limits, case in CASES if known == name)
    step = case["steps"][-1]
    arrays = arrays_of(step["expect"]["arrays"])
    launch = launch_of(step["group"], step["rank"], 0, step["expect"]["arrays"]["logits_count"], 2)
    check_launch(launch, arrays, launch_limits(limits), find_contract("reference"))
    getattr(arrays, array)[index] = value
    with pytest.raises(LaunchRefusedError) as caught:
        check_launch(launch, arrays, launch_limits(limits), find_contract("reference"))
    assert caught.value.rule == rule, str(caught.value)
    assert (caught.value.step, caught.value.dp_rank) == (2, 0)
