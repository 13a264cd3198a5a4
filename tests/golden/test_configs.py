"""Settings that older versions wrote are read for ever, and mean the same.

`configs/` has the config.toml of every tiny run as the code of the tag `before-house` wrote it:
format 1, from before files said their format. These files are never renewed.
"""

from __future__ import annotations

import os
import tomllib
import types
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import hypothesis.strategies as st
import pytest
from hypothesis import assume, given, settings

from . import before, seams
from .cells import CELLS
from .compare import differences

CONFIGS = Path(__file__).parent / "configs"
EXAMPLES = int(os.environ.get("BEFORE_EXAMPLES", "60"))
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


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Of the type of a setting; nothing for types whose values hang on others."""
    if hint is bool:
        return st.booleans()
    if hint is int:
        return st.integers(0, 40)
    if hint is float:
        return st.sampled_from([0.0, 1e-9, 0.05, 0.3, 1.0, 2.5])
    if hint is str:
        return st.sampled_from(["x", "naïve", 'a "quoted" word', "back\\slash"])
    if get_origin(hint) is Literal:
        return st.sampled_from(get_args(hint))
    if get_origin(hint) is types.UnionType:
        return st.one_of([values(one) for one in get_args(hint) if one is not type(None)])
    if get_origin(hint) is tuple and get_args(hint)[0] is str:
        return st.lists(st.sampled_from(["a", "b c"]), max_size=2, unique=True)
    return st.nothing()


@st.composite
def asked(draw: st.DrawFn, sections: dict[str, type]) -> dict[str, Any]:
    """Settings of a task: a model, and a few of the leaves of any section."""
    task = draw(st.sampled_from(sorted(MODELS)))
    found: dict[str, Any] = {"task": task, "model": draw(st.sampled_from(MODELS[task]))}
    leaves = [
        (section, field.name, hints[field.name])
        for section, kind in sections.items()
        if section not in MODELS or section == task
        for hints in [get_type_hints(kind)]
        for field in fields(kind)
        if not values(hints[field.name]).is_empty
    ]
    for section, name, hint in draw(st.lists(st.sampled_from(leaves), min_size=1, max_size=6)):
        found.setdefault(section, {})[name] = draw(values(hint))
    return found


@pytest.fixture(scope="module")
def old_run() -> Any:
    try:
        return before.before("config.run")
    except before.Unavailable as error:
        pytest.skip(f"no headway_before to compare with: {error}")


@pytest.mark.before
def test_whatever_settings_the_old_code_wrote_the_new_code_reads_the_same(
    old_run: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    old_error = before.before("errors").UserError
    folder = tmp_path_factory.mktemp("run")
    read = 0

    @settings(max_examples=EXAMPLES)
    @given(asked(old_run.SETTINGS))
    def check(wanted: dict[str, Any]) -> None:
        nonlocal read
        try:
            text = old_run.resolved_toml(old_run.run_settings(wanted))
        except old_error:  # no such run could be made
            assume(False)
        (folder / "config.toml").write_text(text, encoding="utf-8")
        assert kept(old_run.flat(tomllib.loads(text)), seams.reread(folder)) == []
        read += 1

    check()
    assert read > EXAMPLES / 4
