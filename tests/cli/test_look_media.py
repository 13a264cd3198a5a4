"""`headway look --file` and `headway truth --media`: a page that shows what was measured."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from headway.cli.main import main
from headway.models.folder import model_weights, save_weights
from headway.settings.run import resolved_toml
from headway.web.pack import unpack
from tests.facts import figures, missing

from ..inside.media_runs import item_for, media_run


@pytest.fixture
def captioner(tmp_path: Path) -> Path:
    run = media_run("caption")
    folder = tmp_path / "captions"
    folder.mkdir()
    (folder / "config.toml").write_text(resolved_toml(run.settings))
    run.vocab.save(folder / "tokenizer.json")
    save_weights(folder, model_weights(run.model))
    frames = [np.moveaxis(item_for(run, seed)[0], 0, -1) for seed in range(4)]
    np.save(tmp_path / "images.npy", np.stack(frames))
    things = [{"name": "red circle", "words": [1, 2], "box": [0, 0, 16, 24]}]
    lines = [
        {"path": "images.npy", "index": i, "text": "a red circle", "objects": things}
        for i in range(4)
    ]
    (tmp_path / "scenes.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return folder


def test_the_page_shows_what_was_measured(
    captioner: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest, page = str(tmp_path / "scenes.jsonl"), tmp_path / "look.html"
    assert main(["truth", str(captioner), manifest, "--maps", "heads,rollout"]) == 0
    printed = capsys.readouterr().out
    assert figures(printed.splitlines()[0]) == ["8", "4", "0.500"]
    assert "centre" in printed
    assert "AER" not in printed
    assert main(["look", str(captioner), "--file", f"{manifest}:2", "--out", str(page)]) == 0
    held = unpack(page.read_text())["looks"][0]
    assert held["text"] == "scenes.jsonl:2"
    truth = held["truth"]
    assert truth["maps"]["rollout"]["random"] == 0.5
    # Which one that is, random weights decide; that it is the best one, they do not.
    shown, maps, head = held["sections"]["image"]["first"], truth["maps"], truth["best"]
    assert shown["measured"]
    layer_map = f"cross.{shown['layer']}.{shown['map']}"
    right = {"head": head["p1"], "rollout": maps["rollout"]["p1"]}
    right |= {name: m["p1"] for name, m in maps.items() if name.endswith((".mean", ".max"))}
    assert right[layer_map if layer_map in right else shown["map"]] == max(right.values())
    assert (held["sections"]["image"]["frames"] == np.load(tmp_path / "images.npy")[1]).all()


@pytest.mark.parametrize(
    ("command", "facts"),
    [
        (["look", "RUN"], "--file"),
        (["look", "RUN", "--text", "hello"], "captions --file"),
        (["look", "RUN", "--file", "none.png"], "none.png"),
        (["look", "RUN", "--file", "tone.wav"], "tone.wav"),
        (["truth", "RUN"], "examples/make_shapes.py FILE.jsonl"),
        (["truth", "RUN", "--pairs", "x.tsv"], "--pairs caption"),
        (["truth", "tatoeba-de-en", "--media", "x.jsonl"], "--media translate"),
        (["prune", "RUN", "--heads", "2", "--out", "x"], "captions FILES --importance-from"),
    ],
)
def test_a_mistake_is_one_line(
    captioner: Path, capsys: pytest.CaptureFixture[str], command: list[str], facts: str
) -> None:
    given = [str(captioner) if word == "RUN" else word for word in command]
    assert main(given) == 2
    error = capsys.readouterr().err
    assert not missing(error, facts)
    assert len(error.strip().splitlines()) == 1
