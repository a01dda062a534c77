"""Multi-token prediction in one worker, step by step: the text is that without drafts, the drafts those of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.modeling_layers import MtpModel

from paceline._core import PlanRefused, Pulse
from paceline.worker.runner import Runner
from parity.checkpoints import greedy_text, make_drafting_checkpoint, random_tokens
from parity.families import DEEPSEEK
from parity.planner import Planner
from parity.test_runner import load_worker, make_runner


class Drafting:
    """A checkpoint, its oracle, and a worker of it with a planner."""

    def __init__(self, folder: Path, layers: int) -> None:
        self.layers = layers
        self.folder = folder
        self.oracle = make_drafting_checkpoint(folder, "DeepseekV3", layers, **DEEPSEEK)
        self.mtp = MtpModel.from_pretrained(self.oracle).eval()

    def start(self, **fields: Any) -> tuple[Runner, Planner]:
        runner = make_runner(self.folder, drafter="mtp", drafter_layers=self.layers, **fields)
        return runner, Planner([0], drafter_layers=self.layers)

    @torch.no_grad()
    def drafts(self, tokens: list[int], count: int) -> list[int]:
        """What transformers' drafting layers propose after `tokens`, by whole sequences without a cache.

        Past the last layer's draft it goes on with its own output at further positions.
        """
        fed_hidden: torch.Tensor = self.oracle.model(torch.tensor([tokens[:-1]])).last_hidden_state
        drafts: list[int] = []
        for index in range(1, count + 1):
            layer = min(index, self.layers)
            fed = torch.tensor([(tokens + drafts)[layer:]])
            positions = torch.arange(layer, layer + fed.shape[1]).unsqueeze(0)
            output = self.mtp.forward_layer(layer - 1, fed_hidden, positions, None, input_ids=fed)
            drafts.append(int(self.oracle.lm_head(output[0, -1]).argmax()))
            fed_hidden = output if index < self.layers else torch.cat((fed_hidden, output[:, -1:]), dim=1)
        return drafts


@pytest.fixture(scope="module", params=[1, 2], ids=["one layer", "two layers"])
def drafting(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Drafting:
    return Drafting(tmp_path_factory.mktemp("drafting"), request.param)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_drafts_are_lossless_and_counted(drafting: Drafting, k: int) -> None:
    if k < drafting.layers:
        k = drafting.layers
    runner, planner = drafting.start()
    seat = planner.admit(0, 1, random_tokens(19, seed=1), [9, 3, 4, 8, 7, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29])
    other = planner.admit(0, 3, random_tokens(7, seed=2), [40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51])
    planner.settle(0, runner.execute(planner.eager({0: {1: 11}}, k_draft=k)[0]).body)
    planner.settle(0, runner.execute(planner.eager({0: {1: 8, 3: 7}}, k_draft=k)[0]).body)
    accepted = 0
    for _ in range(9):
        reply = planner.settle(0, runner.execute(planner.full({0: [3, 1]}, query_len=k + 1, rows_padded=4, k_draft=k)[0]).body)
        assert [row["proposed"] for row in reply["rows"]] == [k, k]
        assert reply["passes"] == 1 + k
        accepted += sum(row["accepted"] for row in reply["rows"])
    for each in (seat, other):
        assert each.output == greedy_text(drafting.oracle, each.prompt, len(each.output))
    assert accepted < 9 * 2 * k


def test_drafts_equal_those_of_transformers_whatever_came_before(drafting: Drafting) -> None:
    """Chunks, drafts accepted or rejected, k that changes, steps without drafts, a preemption: no context is lost.

    A second layer's own context holds drafts where they were rejected, until the request is computed again.
    """
    runner, planner = drafting.start()
    drafted = Recording(runner)
    prompt = random_tokens(23, seed=3)
    seat = planner.admit(0, 0, prompt, list(range(1, 16)))

    def run(envelopes: dict[int, Any], exact: int = 1) -> None:
        planner.settle(0, runner.execute(envelopes[0]).body)
        count = seat.proposed if drafting.layers == 1 else min(exact, seat.proposed)
        assert drafted.last[:count] == drafting.drafts(seat.tokens, count)

    run(planner.eager({0: {0: 5}}, k_draft=3))
    run(planner.eager({0: {0: 1}}, k_draft=3))
    run(planner.eager({0: {0: 17}}, k_draft=3), exact=3)
    assert seat.proposed == 3
    for k_verify, k_draft in ((3, 3), (3, 2), (2, 3), (1, 3), (0, 3), (3, 0), (0, 3), (3, 3)):
        run(planner.full({0: [0]}, query_len=k_verify + 1, rows_padded=4, k_draft=k_draft))
    planner.preempt(0, 0, [30, 31, 50, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43])
    run(planner.eager({0: {0: 13}}, k_draft=2))
    run(planner.eager({0: {0: seat.known - 13}}, k_draft=3), exact=3)
    for _ in range(3):
        run(planner.full({0: [0]}, query_len=4, rows_padded=1, k_draft=3))
    assert seat.output == greedy_text(drafting.oracle, prompt, len(seat.output))


class Recording:
    """Takes down the drafts of the last step: the best token of each row of draft logits, for one row."""

    def __init__(self, runner: Runner) -> None:
        self._drafts: list[int] = []
        draft_logits, fill = runner.network.draft_logits, runner.network.target

        def recorded(layer: int, wanted: torch.Tensor, count: int) -> Any:
            logits = draft_logits(layer, wanted, count)
            self._drafts += [int(row.argmax()) for row in logits]
            return logits

        def started(*arguments: Any) -> torch.Tensor:
            self._drafts = []
            return fill(*arguments)

        runner.network.draft_logits = recorded  # type: ignore[method-assign]
        runner.network.target = started  # type: ignore[method-assign]

    @property
    def last(self) -> list[int]:
        return self._drafts


def test_a_seeded_text_does_not_depend_on_drafts(drafting: Drafting) -> None:
    texts = []
    for k in (0, drafting.layers, 3):
        runner, planner = drafting.start()
        seat = planner.admit(0, 2, random_tokens(9, seed=5), list(range(1, 20)), temperature=0.8, seed=11)
        planner.settle(0, runner.execute(planner.eager({0: {2: 9}}, k_draft=k)[0]).body)
        while len(seat.output) < 24:
            planner.settle(0, runner.execute(planner.full({0: [2]}, query_len=k + 1, rows_padded=1, k_draft=k)[0]).body)
        texts.append(seat.output[:24])
    assert texts[0] == texts[1] == texts[2]


def test_drafts_go_on_where_blocks_end(drafting: Drafting) -> None:
    """Blocks that are wanted and not there: single passes write nothing past the seat's blocks, and the text stays."""
    loaded = load_worker(drafting.folder, [0], drafter="mtp", drafter_layers=drafting.layers)
    runner, planner = Runner(loaded, Pulse(), dp_rank=0, is_lockstep=False), Planner([0], drafter_layers=drafting.layers)
    runner.reset(1)
    # 8 tokens in 2 blocks: the first draft's position is the first one without a block.
    seat = planner.admit(0, 0, random_tokens(8, seed=6), [5, 6])
    planner.settle(0, runner.execute(planner.eager({0: {0: 8}}, k_draft=3)[0]).body)
    assert seat.proposed == 3
    assert seat.output == greedy_text(drafting.oracle, seat.prompt, 1)
    pools = loaded.backend.cache.keys
    used = torch.zeros(pools[0].shape[1], dtype=torch.bool)
    for pool in pools:
        used |= pool.any(dim=-1)[0]
    assert used.nonzero().flatten().tolist() == list(range(20, 28))


def test_a_plan_without_the_drafter_is_refused(drafting: Drafting) -> None:
    runner, _ = drafting.start()
    planner = Planner([0])
    planner.admit(0, 0, random_tokens(5, seed=7), [1, 2])
    with pytest.raises(PlanRefused, match="rule 18: passes of a step with a drafter: expected 2, got 1"):
        runner.execute(planner.eager({0: {0: 5}})[0])
