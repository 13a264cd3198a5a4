"""Files of llama2.c: both forms, read as what its own program computes."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from headway.cli.main import main
from headway.errors import UserError
from headway.interop.importing import check_shapes, import_run
from headway.interop.llama2c import halves, read_llama2c
from headway.interop.name_pairs import to_ours, to_theirs
from headway.models.build import build_model
from headway.models.folder import load_weights
from headway.nn.layout import Layout
from headway.settings.folder import load_run

from ..facts import missing

Numbers = NDArray[Any]
SIZES = {"dim": 24, "hidden_dim": 20, "n_layers": 3, "n_heads": 6, "n_kv_heads": 2}
SIZES |= {"vocab_size": 300, "max_seq_len": 16}
KINDS = {
    "attention_norm": ("dim",),
    "wq": ("dim", "dim"),
    "wk": ("kv", "dim"),
    "wv": ("kv", "dim"),
    "wo": ("dim", "dim"),
    "ffn_norm": ("dim",),
    "w1": ("hidden_dim", "dim"),
    "w2": ("dim", "hidden_dim"),
    "w3": ("hidden_dim", "dim"),
}


def weights(sizes: dict[str, int], *, shared: bool) -> dict[str, Numbers]:
    """Random ones, one array for all layers of a kind."""
    random = np.random.default_rng(0)
    width = {**sizes, "kv": sizes["dim"] // sizes["n_heads"] * sizes["n_kv_heads"]}
    made: dict[str, Numbers] = {}
    for kind, axes in KINDS.items():
        shape = (sizes["n_layers"], *(width[axis] for axis in axes))
        spread = 0.3 if len(axes) == 1 else width[axes[1]] ** -0.5
        made[kind] = random.normal(float(len(axes) == 1), spread, shape)
    made["embedding"] = random.normal(0, 1, (sizes["vocab_size"], sizes["dim"]))
    made["norm"] = random.normal(1, 0.3, sizes["dim"])
    made["output"] = made["embedding"]
    if not shared:
        made["output"] = random.normal(0, 0.3, made["embedding"].shape)
    return {name: array.astype(np.float32) for name, array in made.items()}


def legacy(sizes: dict[str, int], made: dict[str, Numbers], *, shared: bool) -> bytes:
    numbers = list(sizes.values())
    numbers[5] *= 1 if shared else -1
    turns = np.zeros(sizes["max_seq_len"] * sizes["dim"] // sizes["n_heads"], np.float32)
    parts = [made["embedding"], *(made[kind] for kind in KINDS), made["norm"], turns]
    parts += [] if shared else [made["output"]]
    return struct.pack("<7i", *numbers) + b"".join(part.tobytes() for part in parts)


def version1(sizes: dict[str, int], made: dict[str, Numbers], *, shared: bool) -> bytes:
    header = struct.pack("<Ii7iB", 0x616B3432, 1, *sizes.values(), shared).ljust(256, b"\0")
    norms = ["attention_norm", "ffn_norm"]
    order = [*norms, "norm", "embedding", *(kind for kind in KINDS if kind not in norms)]
    order += [] if shared else ["output"]
    return header + b"".join(made[name].tobytes() for name in order)


def computed(sizes: dict[str, int], made: dict[str, Numbers], tokens: list[int]) -> Numbers:
    """The scores after each token, as the program of llama2.c computes them, in fp64."""
    made = {name: array.astype(np.float64) for name, array in made.items()}
    n_heads, n_kv = sizes["n_heads"], sizes["n_kv_heads"]
    size = sizes["dim"] // n_heads
    past: list[list[tuple[Numbers, Numbers]]] = [[] for _ in range(sizes["n_layers"])]
    scores = []
    for position, token in enumerate(tokens):
        x = made["embedding"][token].copy()
        for layer in range(sizes["n_layers"]):
            part = {kind: made[kind][layer] for kind in KINDS}
            normed = rms(x, part["attention_norm"])
            q = rotated((part["wq"] @ normed).reshape(n_heads, size), position)
            k = rotated((part["wk"] @ normed).reshape(n_kv, size), position)
            past[layer].append((k, (part["wv"] @ normed).reshape(n_kv, size)))
            heads = []
            for head in range(n_heads):
                group = head // (n_heads // n_kv)
                fits = np.array([q[head] @ k[group] for k, _ in past[layer]]) / size**0.5
                share = np.exp(fits - fits.max())
                share /= share.sum()
                heads.append(
                    sum(s * v[group] for s, (_, v) in zip(share, past[layer], strict=True))
                )
            x += part["wo"] @ np.concatenate(heads)
            normed = rms(x, part["ffn_norm"])
            gate = part["w1"] @ normed
            x += part["w2"] @ (gate / (1 + np.exp(-gate)) * (part["w3"] @ normed))
        scores.append(made["output"] @ rms(x, made["norm"]))
    return np.array(scores)


def rms(x: Numbers, weight: Numbers) -> Numbers:
    return x / np.sqrt((x * x).mean() + 1e-5) * weight


def rotated(x: Numbers, position: int) -> Numbers:
    """Numbers 0 and 1 of a head are a pair, 2 and 3 are one ..."""
    out = x.copy()
    for i in range(0, x.shape[1], 2):
        angle = position * 10_000.0 ** (-i / x.shape[1])
        out[:, i] = x[:, i] * np.cos(angle) - x[:, i + 1] * np.sin(angle)
        out[:, i + 1] = x[:, i] * np.sin(angle) + x[:, i + 1] * np.cos(angle)
    return out


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "own softmax"])
@pytest.mark.parametrize("form", [legacy, version1])
@torch.no_grad()
def test_the_scores_are_those_of_the_program(form: Any, shared: bool, tmp_path: Path) -> None:
    made = weights(SIZES, shared=shared)
    path = tmp_path / "model.bin"
    path.write_bytes(form(SIZES, made, shared=shared))
    _, found, tensors = read_llama2c(path)
    check_shapes(found, tensors)
    taken = to_ours(tensors, found.pairs, found.ignored)
    model = build_model(found.model)
    load_weights(model, taken.weights)
    ids = [1, 17, 250, 3, 3, 299, 40]
    scores_NV = model.eval().scores(model(torch.tensor(ids), Layout.of([len(ids)])))
    expected = computed(SIZES, made, ids)
    assert np.abs(scores_NV.numpy() - expected).max() < 2e-5 * max(1, np.abs(expected).max())
    assert sorted(taken.ignored) == ([] if form is version1 else ["freqs_cos", "freqs_sin"])
    back = to_theirs(taken.weights, found.pairs, taken.kept)
    assert all(torch.equal(back[name], tensors[name]) for name in tensors)


def test_pairs_of_neighbours_become_halves_and_back() -> None:
    rows = torch.arange(12.0)[:, None]
    change = halves(2)
    assert change.to_ours(rows)[:, 0].tolist() == [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]
    assert torch.equal(change.to_theirs(change.to_ours(rows)), rows)


def tokenizer_file(path: Path, n_tokens: int = 300) -> Path:
    """Three marks, 256 bytes, some letters and words; merges by score."""
    pieces = [b"<unk>", b"\n<s>\n", b"\n</s>\n", *(b"<0x%02X>" % i for i in range(256))]
    pieces += [b" ", b"a", b"b", b"c", b"ab", b" a", b" ab", b" c", b"abc"]
    pieces += [b"z%d" % i for i in range(n_tokens - len(pieces))]
    data = struct.pack("<i", max(map(len, pieces)))
    for number, piece in enumerate(pieces):
        data += struct.pack("<fi", -float(number), len(piece)) + piece
    path.write_bytes(data)
    return path


def test_the_command_makes_a_run_that_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "model.bin", tmp_path / "run"
    path.write_bytes(legacy(SIZES, weights(SIZES, shared=True), shared=True))
    with pytest.raises(UserError, match="tokenizer="):
        import_run(str(path), out)
    tokenizer_file(tmp_path / "tok300.bin")
    assert main(["import", str(path), "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert not missing(printed, "llama2.c", "decoder", "complete", "2")
    assert len(json.loads((out / "import.json").read_text())["ignored"]) == 2
    assert load_run(out).task == "complete"
    assert (out / "tokenizer" / "tok300.bin").is_file()
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("ab c\n")
    assert main(["predict", str(out), str(prompt), "decode.max_len=8"]) == 0
    assert len(capsys.readouterr().out.splitlines()) >= 1
