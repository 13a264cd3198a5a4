"""A task and a kind of data from outside the package go everywhere by one row and one file. That
they keep the contract the other tests of this folder show: the row is one of `ROWS`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

import headway
from headway.errors import ConfigError, UserError
from headway.settings.run import load_run_settings
from headway.specs.tasks import register
from tests.facts import naming

from . import columns, longer
from .tiny import SETTINGS, command, printed


def write_duels(folder: Path, n: int = 48) -> str:
    """Two tones each, of which the first is longer or not."""
    from ..training.spoken import write_wav

    draw, rows = np.random.default_rng(5), []
    folder.mkdir()
    for number in range(n):
        sizes = sorted(draw.choice(np.arange(8, 32), 2, replace=False), reverse=bool(number % 2))
        names = []
        for which, size in enumerate(sizes):
            tone = 0.3 * np.sin(np.arange(100 * size) * (0.3 + 0.5 * draw.random()))
            names.append(f"{number:02}-{which}.wav")
            write_wav(folder / names[-1], tone.astype(np.float32))
        (folder / f"{number:02}.duel").write_text("\n".join(names))
        rows.append({"path": f"{number:02}.duel", "label": "yes" if number % 2 else "no"})
    return columns.write(folder / "duels.jsonl", rows)


def test_is_this_recording_longer_than_that_one(tmp_path: Path) -> None:
    data, run = write_duels(tmp_path / "files"), str(tmp_path / "run")
    words = [f"{key}={json.dumps(value)}" for key, value in SETTINGS.items()]
    code, found, wrong = command("check", "longer", "--media", data)
    assert code == 0, wrong
    assert "48" in found
    code, _, wrong = command(
        "train", "longer", "--media", data, "--out", run, "--device", "cpu", *words,
        "model.audio.bands=20", "longer.balance=true",
    )  # fmt: skip
    assert code == 0, wrong
    assert "duels" in wrong
    duel = str(tmp_path / "files" / "01.duel")
    [answer] = printed("predict", run, duel, "--json", "--device", "cpu")
    loaded = headway.load(run, device="cpu")
    assert loaded.settings.longer.balance  # type: ignore[attr-defined]
    assert loaded.labels == ("no", "yes")
    assert loaded(duel).to_dict()["label"] == answer["label"]
    [scores] = [json.loads(command("evaluate", run, "--media", data, "--json")[1])]
    assert scores["accuracy"] == loaded.evaluate(data)["accuracy"]
    code, _, wrong = command("look", run, "--file", duel, "--out", str(tmp_path / "look.html"))
    assert code == 0, wrong
    assert (tmp_path / "look.html").stat().st_size > 10_000
    both = " ".join(str(tmp_path / "files" / name) for name in ("01-0.wav", "01-1.wav"))
    (tmp_path / "three.duel").write_text(both)
    with pytest.raises(UserError, match=r"three\.duel"):
        loaded(tmp_path / "three.duel")


def test_a_name_is_registered_once() -> None:
    with pytest.raises(ConfigError, match="'longer'"):
        register(longer.ROW)
    with pytest.raises(ConfigError, match=naming("longer.balanse balance")):
        load_run_settings(None, ["longer.balanse=true"], {"task": "longer", "data.media": ["x"]})
    with pytest.raises(ConfigError, match=naming("[longer] classify")):
        load_run_settings(None, ["longer.balance=true"], {"task": "classify"})


def test_nothing_of_the_package_knows_of_it() -> None:
    root = Path(headway.__file__).parent
    for path in root.rglob("*.py"):
        assert not re.search(r"\bduel|tasks\.longer", path.read_text(encoding="utf-8")), path
