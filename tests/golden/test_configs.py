"""Settings that older versions wrote are read for ever, and mean the same.

`configs/` has the config.toml of every tiny run as 06b66eb wrote it:
format 1, from before files said their format. These files are never renewed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from . import seams
from .cells import CELLS
from .compare import differences

CONFIGS = Path(__file__).parent / "configs"
MODELS: dict[str, list[dict[str, Any]]] = {
    "translate": [{"family": "seq2seq"}, {"preset": "transformer-tiny"}],
    "complete": [{"family": "decoder", "positions": "rotary"}, {"preset": "shakespeare"}],
    "fill": [{"family": "encoder", "heads": ["words"]},
             {"family": "sound-encoder", "heads": ["rebuild"]}],
    "classify": [{"family": "encoder", "heads": ["classes"], "n_labels": 3}, {"family": "decoder"}],
    "tag": [{"family": "encoder", "heads": ["tags"], "n_labels": 3}],
    "embed": [{"family": "encoder", "heads": []}],
    "see": [{"family": "picture-encoder", "n_labels": 3}],
    "watch": [{"family": "picture-encoder", "n_labels": 3}],
    "caption": [{"family": "picture-seq2seq"}],
    "transcribe": [{"family": "sound-seq2seq", "ctc": True},
                   {"family": "sound-encoder", "heads": ["ctc"]}],
    "identify": [{"family": "sound-encoder", "n_labels": 3}],
}  # fmt: skip


NEW_WORDS = {"see": ("classify", "pictures"), "watch": ("classify", "videos")}
"""What tasks of old are called today, and what they are given."""


def in_new_words(old: dict[str, Any]) -> dict[str, Any]:
    if old["task"] not in NEW_WORDS:
        return old
    task, what = NEW_WORDS[old["task"]]
    sections = {f"{old['task']}.": f"{task}.", f"asked.{old['task']}.": f"asked.{task}."}
    found = dict(old)
    for then, now in sections.items():
        found = {key.replace(then, now, 1) if key.startswith(then) else key: value
                 for key, value in found.items()}  # fmt: skip
    tasks = {key: task for key in ("task", "asked.task") if key in found}
    return found | tasks | {f"{task}.what": what}


def kept(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """What of the old settings is not there any more, or is another; new ones may be added."""
    old = in_new_words(old)
    return list(differences(old, {key: new[key] for key in old if key in new}))


def test_there_is_a_file_of_every_run_and_of_every_task() -> None:
    assert {path.stem for path in CONFIGS.iterdir()} == set(CELLS)
    assert {cell.task for cell in CELLS.values()} == set(MODELS)


@pytest.mark.parametrize("name", CELLS)
def test_what_the_old_code_wrote_is_read_and_means_the_same(name: str, tmp_path: Path) -> None:
    text = (CONFIGS / f"{name}.toml").read_text(encoding="utf-8")
    (tmp_path / "config.toml").write_text(text, encoding="utf-8")
    assert kept(seams.settings_of_text(text), seams.reread(tmp_path)) == []
