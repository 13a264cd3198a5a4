"""Classifiers that read the mean of all tokens are exported to classes that read the first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import headway
from headway.cli.main import main
from headway.interop.exporting import export_run
from headway.interop.first_token import read_at_first
from headway.models.build import build_model
from headway.nn.layout import Layout
from headway.settings.model import EncoderSettings, RopeSettings

from .test_docs_of_exports import QUICK
from .test_importing import labelled
from .theirs import check

SMALL: dict[str, Any] = {"vocab_size": 40, "d_model": 32, "n_layers": 2, "n_heads": 4, "d_ff": 40}
SMALL |= {"max_len": 32, "heads": ("classes",), "pooling": "mean", "n_labels": 5}
SHAPES: dict[str, dict[str, Any]] = {
    "norm behind, learned positions": {},
    "narrow embeddings": {"d_embedding": 12},
    "norm before, rotary, few biases": {
        "block_layout": "pre", "positions": "rotary", "attention_bias": "", "norm_eps": 1e-5,
        "embedding_norm": False, "n_segments": 0, "rope": RopeSettings()},
    "first token": {"pooling": "first"},
    "many labels": {"n_labels": 15},
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
@torch.no_grad()
def test_one_more_layer_gives_the_scores_of_the_mean(name: str) -> None:
    settings = EncoderSettings(**SMALL | SHAPES[name])
    model: Any = build_model(settings).eval()
    torch.manual_seed(3)
    for weight in model.parameters():
        weight.copy_(weight + 0.3 * torch.randn_like(weight))
    other: Any
    other, changed = read_at_first(model, settings)
    assert changed.n_layers == (2 if settings.pooling == "first" else 3)
    tokens_N, layout = torch.randint(0, 40, (27,)), Layout.of([1, 12, 5, 9])
    ours = model.classes(model(tokens_N, layout), layout)
    there = other.classes(other(tokens_N, layout), layout)
    check(there, ours, tolerance=2e-5 * float(ours.abs().max()))


@pytest.mark.parametrize("start", ["base-en", "none"])
def test_a_classifier_as_training_makes_it_is_exported_to_hugging_face(
    start: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, run = labelled(tmp_path / "data.jsonl", 120), tmp_path / "run"
    more = ["--from", "none"] if start == "none" else []
    assert main(["train", "classify", data, "--out", str(run), *more, *QUICK]) == 0
    capsys.readouterr()
    assert main(["export", str(run), "--to", "hf", "--out", str(tmp_path / "hf")]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    opened = headway.load(str(run), device="cpu").opened
    model: Any = opened.model
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "hf").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    texts = ["a long film", "the plot of an awful scene and its music", "ok"]
    # Padded, as people use it: padding has no part in the mean.
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.unk_token
    with torch.no_grad():
        given = tokenizer(texts, return_tensors="pt", padding=True)
        there = theirs(**given).logits
        vocab = opened.vocab.source
        ids = [vocab.as_text(vocab.encode(text)) for text in texts]
        layout = Layout.of([len(one) for one in ids])
        x_ND = model.neural(torch.tensor([token for one in ids for token in one]), layout)
        ours = model.neural.classes(x_ND, layout)
    np.testing.assert_allclose(there.numpy(), ours.numpy(), atol=1e-4 * float(ours.abs().max()))
    proof = json.loads((tmp_path / "hf" / "proof.json").read_text())
    assert proof["passed"]
    if model.ngrams is not None:
        records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        members = next(one["members"] for one in reversed(records) if "members" in one)
        alone = members["neural model alone"]["accuracy"]
        [line] = [note for note in proof["notes"] if "n-gram" in note]
        assert f"{alone:.2f}" in line
        assert line in printed


def test_base_en_itself_is_exported(tmp_path: Path) -> None:
    proof = export_run("base-en", "hf", tmp_path / "hf")
    assert proof.passed, proof.text()
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["num_hidden_groups"] == 3
