"""Test sets of recordings that are too long for one pass of the model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from headway.cli.main import main

from ..training.spoken import write_wav


def test_a_recording_over_the_batch_limit_is_scored_without_a_loss(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.tasks.seq2seq.AT_ONCE", 60)
    noise = np.random.default_rng(0).normal(0, 0.01, 8000 * 4).astype(np.float32)
    facts = {}
    for name, samples in (("short", noise[:4000]), ("long", noise)):
        write_wav(tmp_path / f"{name}.wav", samples)
        line = json.dumps({"path": f"{name}.wav", "text": "one"})
        (tmp_path / f"{name}.jsonl").write_text(line + "\n")
        words = ["evaluate", "digits", "--media", str(tmp_path / f"{name}.jsonl"), "--json"]
        assert main([*words, "--device", "cpu"]) == 0
        facts[name] = json.loads(capsys.readouterr().out)
    assert facts["short"]["loss"] > 0
    assert "loss" not in facts["long"]
    assert facts["long"]["wer"] >= 0
