"""The sampling rules in plain numpy, checked against the golden vectors that Rust wrote.

Nothing here is shared with the Rust code: two implementations of one page of rules agree on every token.
"""

import json
import struct
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import numpy.typing as npt
import pytest

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[1] / "vectors" / "sampling.json").read_text())
MASK = 0xFFFF_FFFF
Floats = npt.NDArray[np.float64]


def philox4x32_10(counter: list[int], key: list[int]) -> list[int]:
    """Ten Philox rounds on Python integers."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        first, second = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (second >> 32) ^ c1 ^ k0, second & MASK, (first >> 32) ^ c3 ^ k1, first & MASK
        k0, k1 = (k0 + 0x9E3779B9) & MASK, (k1 + 0xBB67AE85) & MASK
    return [c0, c1, c2, c3]


def noise(seed: int, index: int, token_ids: list[int]) -> Floats:
    """Gumbel noise of each token."""
    key = [seed & MASK, seed >> 32]
    words = [philox4x32_10([index & MASK, index >> 32, token, 0], key)[0] for token in token_ids]
    uniform = (np.array(words, dtype=np.float64) + 0.5) / 2.0**32
    result: Floats = -np.log(-np.log(uniform))
    return result


def row(name: str) -> Floats:
    """A named row of logits."""
    logits = next(row["logits"] for row in VECTORS["rows"] if row["name"] == name)
    return np.array([float(logit) for logit in logits], dtype=np.float64)


def kept(params: dict[str, Any], logits: Floats) -> list[int]:
    """Tokens that survive temperature, top-k, top-p, min-p, in rank order."""
    ranked = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    if params["temperature"] == 0:
        return ranked[:1]
    scaled = logits / params["temperature"]
    if params["top_k"]:
        ranked = ranked[: params["top_k"]]
    if params["top_p"] < 1:
        weights = np.exp(scaled[ranked] - scaled.max())
        reached = np.cumsum(weights) >= params["top_p"] * weights.sum()
        ranked = ranked[: int(np.argmax(reached)) + 1]
    if params["min_p"] > 0:
        ranked = [token for token in ranked if scaled[token] - scaled.max() >= np.log(params["min_p"])]
    return ranked


def sample(params: dict[str, Any], logits: Floats, index: int) -> int:
    """The kept token with the largest scaled logit plus noise."""
    tokens = sorted(kept(params, logits))
    if params["temperature"] == 0:
        return tokens[0]
    scores = logits[tokens] / params["temperature"] + noise(params["seed"], index, tokens)
    return tokens[int(np.argmax(scores))]


def propose(history: list[int], count: int, length_max: int, length_min: int) -> list[int]:
    """Prompt lookup, tried length by length, newest occurrence first."""
    for length in range(min(length_max, len(history) - 1), length_min - 1, -1):
        for start in range(len(history) - length - 1, -1, -1):
            if history[start : start + length] == history[-length:]:
                text = list(history)
                for step in range(count):
                    text.append(text[start + length + step])
                return text[len(history) :]
    return []


@pytest.mark.parametrize("case", VECTORS["philox4x32_10"])
def test_philox(case: dict[str, Any]) -> None:
    assert philox4x32_10(case["counter"], case["key"]) == case["words"]


@pytest.mark.parametrize("case", VECTORS["noise"])
def test_noise(case: dict[str, Any]) -> None:
    np.testing.assert_allclose(noise(case["seed"], case["index"], case["token_ids"]), case["noise"], rtol=1e-12)


@pytest.mark.parametrize("case", VECTORS["choice_seeds"])
def test_choice_seeds(case: dict[str, Any]) -> None:
    seed = case["seed"]
    low, high, _, _ = philox4x32_10([case["index"], 0, 0, 1], [seed & MASK, seed >> 32])
    assert case["choice_seed"] == (low | high << 32 if case["count"] > 1 else seed)


@pytest.mark.parametrize("case", VECTORS["samples"])
def test_filters_and_tokens(case: dict[str, Any]) -> None:
    params, logits = case["params"], row(case["row"])
    assert kept(params, logits) == case["kept"]
    token_ids = [sample(params, logits, index) for index in range(len(case["token_ids_from_index_0"]))]
    assert token_ids == case["token_ids_from_index_0"]
    assert sample(params, logits, 2**34) == case["token_id_at_index_2_to_34"]


@pytest.mark.parametrize("case", VECTORS["samples"] + VECTORS["verifications"])
def test_parameter_bytes(case: dict[str, Any]) -> None:
    params = case["params"]
    temperature, top_k, top_p, min_p, seed, logprobs = msgpack.unpackb(bytes.fromhex(params["bytes"]))
    floats = [struct.unpack("<f", struct.pack("<I", bits))[0] for bits in (temperature, top_p, min_p)]
    assert floats == [params["temperature"], params["top_p"], params["min_p"]]
    assert [top_k, seed, logprobs] == [params["top_k"], params["seed"], params["logprobs"]]


@pytest.mark.parametrize("case", VECTORS["verifications"])
def test_verification(case: dict[str, Any]) -> None:
    params, logits = case["params"], row(case["row_at_every_position"])
    emitted: list[int] = []
    for offset in range(len(case["drafts"]) + 1):
        emitted.append(sample(params, logits, case["first_index"] + offset))
        if emitted[-1] != (case["drafts"] + [-1])[offset]:
            break
    assert emitted == case["emitted"]
    assert len(emitted) - 1 == case["accepted"]


@pytest.mark.parametrize("case", VECTORS["logprobs"])
def test_logprobs(case: dict[str, Any]) -> None:
    logits = row(case["row"])
    shifted = logits - logits.max()
    values = shifted - np.log(np.exp(shifted).sum())
    top = sorted(range(len(logits)), key=lambda token: (-logits[token], token))[: len(case["top"])]
    assert top == [token for token, _ in case["top"]]
    np.testing.assert_allclose(values[top], [value for _, value in case["top"]], rtol=1e-6)
    np.testing.assert_allclose(values[case["token_id"]], case["sampled"], rtol=1e-6)


@pytest.mark.parametrize("case", VECTORS["ngrams"])
def test_ngram_drafts(case: dict[str, Any]) -> None:
    drafts = propose(case["history"], case["count"], case["length_max"], case["length_min"])
    assert drafts == case["drafts"]


def adjusted(case: dict[str, Any], logits: Floats, output: list[int]) -> Floats:
    """A row after penalties, bias, allowed tokens, bad words and min_tokens, in f32."""
    values = logits.astype(np.float32)
    for token in range(len(values)):
        times = output.count(token)
        if times or token in case["prompt"]:
            penalty = np.float32(case["repetition_penalty"])
            values[token] = values[token] / penalty if values[token] > 0 else values[token] * penalty
        if times:
            values[token] -= np.float32(case["frequency_penalty"]) * np.float32(times)
            values[token] -= np.float32(case["presence_penalty"])
    for token, bias in case["logit_bias"]:
        values[token] += np.float32(bias)
    if case["allowed_token_ids"] is not None:
        values[[token for token in range(len(values)) if token not in case["allowed_token_ids"]]] = -np.inf
    excluded = values.copy()
    for *before, last in case["bad_words"]:
        if output[len(output) - len(before) :] == before:
            excluded[last] = -np.inf
    if len(output) < case["min_tokens"]:
        excluded[case["ending_token_ids"]] = -np.inf
    result: Floats = (values if np.isneginf(excluded).all() else excluded).astype(np.float64)
    return result


@pytest.mark.parametrize("case", VECTORS["adjusted"])
def test_c15_adjusted_rows_with_drafts(case: dict[str, Any]) -> None:
    params, logits = case["params"], row(case["row_at_every_position"])
    output = list(case["output"])
    emitted: list[int] = []
    for draft in [*case["drafts"], -1]:
        index = len(case["prompt"]) + len(output)
        emitted.append(sample(params, adjusted(case, logits, output), index))
        if emitted[-1] != draft:
            break
        output.append(draft)
    assert emitted == case["emitted"]


@pytest.mark.parametrize("case", VECTORS["adjusted"])
def test_adjustments_follow_the_parameters_in_their_bytes(case: dict[str, Any]) -> None:
    fields = msgpack.unpackb(bytes.fromhex(case["params"]["bytes"]))
    names = ("presence_penalty", "frequency_penalty", "repetition_penalty")
    assert fields[6] is None
    assert [struct.unpack("<f", struct.pack("<I", bits))[0] for bits in fields[7:10]] == [case[name] for name in names]
    bias = [[token, struct.unpack("<f", struct.pack("<I", bits))[0]] for token, bits in fields[10]]
    lists = ("allowed_token_ids", "bad_words", "min_tokens", "ending_token_ids")
    assert [bias, *fields[11:]] == [case["logit_bias"], *(case[name] for name in lists)]
