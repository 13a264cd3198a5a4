"""A run goes on with the same command; its files may lie elsewhere meanwhile."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from headway.cli.main import main
from headway.data.fingerprint import data_inputs
from headway.errors import FolderError
from headway.progress import SILENT
from headway.settings.run import RunSettings, run_settings
from headway.tasks.task import find_task
from headway.training.report import RunReport
from headway.training.run_folder import RunFolder


def settings_of(path: Path, **train: object) -> RunSettings:
    values = {"task": "classify", "data": {"text": [str(path)]}, "train": train}
    return run_settings(values)


def test_a_finished_run_does_not_store_the_folder_of_its_data(tmp_path: Path) -> None:
    (tmp_path / "private").mkdir()
    table, out = tmp_path / "private" / "reviews.tsv", tmp_path / "run"
    rows = [f"{'good' if n % 2 else 'bad'} film {n}\t{n % 2}\n" for n in range(60)]
    table.write_text("text\tlabel\n" + "".join(rows))
    words = ["train", "classify", str(table), "--out", str(out), "--from", "none",
             "--device", "cpu",
             "model.preset=encoder-test", "tokenizer.kind=words", "train.steps=2",
             "train.batch_tokens=200", f"data.valid_text=[{table}]"]  # fmt: skip
    assert main(words) == 0
    shown = [(out / name).read_text() for name in ("config.toml", "card.json")]
    report = RunReport(out)
    shown += [json.dumps(part) for part in (report.settings(), report.summary(), report.data())]
    for text in shown:
        assert "private" not in text
    assert all("reviews.tsv" in text for text in shown[:2])
    before = (out / "config.toml").read_bytes()
    assert main(words) == 0
    shutil.rmtree(out / "data")
    assert main(words) == 0
    assert (out / "config.toml").read_bytes() == before
    table.write_text(table.read_text() + "one more\t1\n")
    assert main(words) == 2
    assert main([*words, "--restart"]) == 0


def test_files_may_have_been_moved_but_not_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new, other = (tmp_path / name for name in ("a.tsv", "b.tsv", "c.tsv"))
    for path, text in ((old, "x"), (new, "x"), (other, "y")):
        path.write_text(text)
    home = RunFolder(tmp_path / "run")
    (home.path / "data").mkdir(parents=True)
    home.config.write_text("")
    inputs = data_inputs(settings_of(old))
    (home.path / "data" / "manifest.json").write_text(json.dumps({"inputs": inputs}))
    before = SimpleNamespace(asked=settings_of(old).asked)
    monkeypatch.setattr(RunFolder, "stored", lambda home, task: before)
    home.check(settings_of(new), restart=False)
    for changed in (
        settings_of(other),
        settings_of(tmp_path / "gone.tsv"),
        settings_of(new, steps=3),
    ):
        with pytest.raises(FolderError, match=r"data\.text\b.*a\.tsv"):
            home.check(changed, restart=False)


def test_media_may_have_been_moved_but_not_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = np.random.default_rng(0)
    for i in range(24):
        path = tmp_path / "old" / "ab"[i % 2] / f"{i}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, draw.integers(0, 255, (8, 8), np.uint8))

    def settings_of(name: str) -> RunSettings:
        own = {"modality": "image"}
        data = {"media": [str(tmp_path / name)]}
        return run_settings({"task": "classify", "data": data, "classify": own})

    home = RunFolder(tmp_path / "run")
    find_task(settings_of("old")).prepare(settings_of("old"), home.path, SILENT)
    home.config.write_text("")
    before = SimpleNamespace(asked=settings_of("old").asked)
    monkeypatch.setattr(RunFolder, "stored", lambda home, task: before)
    (tmp_path / "old").rename(tmp_path / "new")
    home.check(settings_of("new"), restart=False)
    np.save(tmp_path / "new" / "a" / "0.npy", np.zeros((8, 8), np.uint8))
    with pytest.raises(FolderError, match=r"data\.media\b.*/old\b"):
        home.check(settings_of("new"), restart=False)
