"""The table of defaults: its names exist, its rows apply, and values are computed as written."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields, replace
from functools import cache
from itertools import product
from typing import Any

import pytest

from headway.settings.default_facts import DefaultFacts
from headway.settings.defaults import (
    BEFORE_DATA,
    COMPARE,
    FUNCTIONS,
    QUANTITIES,
    DefaultRow,
    before_data,
    choose,
    default_rows,
    input_defaults,
    propose,
)
from headway.settings.facts import DatasetStats, DeviceInfo, MediaFormat, ParentRun
from headway.settings.model import FAMILY_SETTINGS, AudioSettings, ImageSettings, StackSettings
from headway.settings.overrides import Overrides
from headway.settings.presets import preset
from headway.settings.run import SETTINGS, RunSettings, load_run_settings
from headway.settings.task_rows import spec_of
from headway.settings.warm_start import with_changes
from headway.specs.tasks import SPECS, Spec
from headway.specs.values import setting_types

CPU, GPU = DeviceInfo(), DeviceInfo(type="cuda", free_bytes=80 << 30, bf16=True)
ROWS = {row.name: row for row in default_rows()}
PLACES = {"amount", "device"}
"""What reasons may name beside the facts."""


@cache
def known_settings() -> set[str]:
    """Dotted keys of all settings, and `model.input`, which means all of an input."""
    found = {f"{name}.{one.name}" for name, kind in SETTINGS.items() for one in fields(kind)}
    for kind in FAMILY_SETTINGS.values():
        found |= {f"model.{name}" for name in setting_types(kind)}
    groups = {"image": ImageSettings, "audio": AudioSettings, "decoder": StackSettings}
    for name, group in groups.items():
        found |= {f"model.{name}.{one.name}" for one in fields(group)}
    return found | {"model.preset", "model.family", "model.input"}


def named_facts(how: Any) -> Iterator[str]:
    """Names of the facts that a value refers to."""
    if isinstance(how, dict):
        yield from (name for key, name in how.items() if key in ("fact", "by"))
        for one in how.values():
            yield from named_facts(one)


@pytest.mark.parametrize("row", default_rows(), ids=lambda row: row.name)
def test_every_name_in_a_row_exists(row: DefaultRow) -> None:
    facts = {name for name in dir(DefaultFacts) if not name.startswith("_")}
    assert row.values.keys() <= known_settings() | set(QUANTITIES)
    named = {name for one in row.when for name in one} - {"open", "asked"}
    for how in row.values.values():
        named |= set(named_facts(how))
        if isinstance(how, dict):
            assert how.get("function", "stored_format") in FUNCTIONS
            assert how.get("chosen", "train.lr") in known_settings()
    named |= set(re.findall(r"\{(\w+)", row.reason + row.values.get("amount", ""))) - PLACES
    assert named <= facts
    for one in row.when:
        for name in ("open", "asked"):
            for key in one.get(name, ()):
                assert any(f"{other}.".startswith(f"{key}.") for other in known_settings()), key
        for wanted in one.values():
            if isinstance(wanted, dict):
                assert wanted.keys() <= COMPARE.keys()
    assert row.reason


def cases() -> Iterator[DefaultFacts]:
    """Facts of little and much data of every row of the task table, on a CPU and a GPU, for models
    from scratch, named, fine-tuned and distilled."""
    encoder = {"text": "encoder-test", "image": "image-encoder-test", "video": "image-encoder-test",
               "audio": "audio-encoder-test"}  # fmt: skip
    named = {
        "translate": ("transformer-base", "transformer-big", "transformer-test"),
        "complete": ("decoder-test", "sha-rnn"),
        "caption": ("image-seq2seq-test",),
        "transcribe": ("audio-seq2seq-test", "audio-encoder-test"),
    }
    rows = [row for spec in SPECS.values() for row in spec.rows]
    sizes = (40, 20_000, 2_000_000, 10**9)
    for row, n, device, start in product(
        rows, sizes, (CPU, GPU), ("scratch", "model", "run", "encoder", "teacher")
    ):
        for name in named.get(row.name, (encoder[row.modality],)):
            model = preset(encoder[row.modality] if start == "encoder" else name)
            given: dict[str, Any] = {"task": row.name}
            if start == "scratch" and (row.is_text or row.name == "transcribe"):
                given["tokenizer.kind"] = "words"
            elif start == "model":
                given["model.preset"] = name
            elif start == "teacher":
                given["distil.teacher"] = "old"
            elif start != "scratch":
                given |= {"start.run": "old", "lora.rank": 2 if n == 40 else 0}
            settings = load_run_settings(None, [], given)
            parents: list[ParentRun | None] = [None]
            if start in ("run", "encoder", "teacher"):
                other = with_changes(
                    model, {"dropout": 0.0} | ({"ngrams": 2048} if hasattr(model, "ngrams") else {})
                )
                parents = [
                    ParentRun(name="old", task=row.name, model=model),
                    ParentRun(name="old", task=row.name, model=other, imported=True),
                ]
            answers = ("label", "labels", "number") if row.labelled else ("label",)
            for parent, answer in product(parents, answers):
                yield DefaultFacts(row, settings, statistics(row, n, answer, parent), device)


def statistics(row: Spec, n: int, answer: str, parent: ParentRun | None) -> DatasetStats:
    front: ImageSettings | AudioSettings | None = None
    side = 16 if n < 100 else 32
    if row.modality in ("image", "video"):
        front = ImageSettings(height=side, width=side, patch=8, class_token=n > 40,
                              distil_token=n > 20_000)  # fmt: skip
    elif row.modality == "audio":
        front = AudioSettings()
    return DatasetStats(
        n=n, n_tokens=50 * n, longest=600, longest_text=9, vocab_size=500, front=front,
        labels=("O", "B-X", "I-X"), counts=(900, 90, 9), answer=answer, shapes=n < 100,
        source_vocab_size=n % 3, pairs=n > 20_000, parent=parent,
        stored=MediaFormat(height=side, width=side),
    )  # fmt: skip


SPECIAL: dict[str, dict[str, Any]] = {
    "complete.asked-context": {"task": "complete", "complete.context": 9},
    "complete.ngram-order": {"task": "complete", "model.body": "ngram"},
    "fill.asked-context": {"task": "fill", "fill.context": 9},
    "translate.own-positions": {"task": "translate", "model.family": "seq2seq"},
    "embed.asked-batches": {"task": "embed", "train.batch_tokens": 900},
    "transcribe.asked-ctc": {"task": "transcribe", "transcribe.ctc": 0.2, "start.run": "old"},
}
"""Rows for which settings of the user are needed."""


def test_every_row_applies_to_some_run() -> None:
    left = {name: row for name, row in ROWS.items() if name not in SPECIAL}
    for facts in cases():
        left = {name: row for name, row in left.items() if not row.applies(facts)}
        if not left:
            break
    assert not list(left)


@pytest.mark.parametrize("name", SPECIAL)
def test_a_row_applies_to_settings_of_the_user(name: str) -> None:
    settings = load_run_settings(None, [], SPECIAL[name])
    parent = ParentRun(name="old", task="transcribe", model=preset("audio-seq2seq-test"))
    stats = replace(statistics(spec_of(settings), 40, "label", None),
                    parent=parent if settings.start.run else None)  # fmt: skip
    facts = DefaultFacts(spec_of(settings), settings, stats, CPU)
    assert ROWS[name].applies(facts)
    plain = RunSettings(task=settings.task, asked=Overrides({"task": settings.task}))
    assert not ROWS[name].applies(replace(facts, settings=plain))


@pytest.mark.parametrize(
    ("how", "on_cpu", "on_gpu"),
    [
        (3, 3, 3),
        (["a", "b"], ("a", "b"), ("a", "b")),
        ({"cpu": 1, "gpu": 2}, 1, 2),
        ({"by": "examples", "up_to": [[99, 1], [100, 2]], "above": 3}, 2, 2),
        ({"by": "examples", "below": [[100, 1], [101, 2]], "from": 3}, 2, 2),
        ({"by": "examples", "below": [[99, 1], [100, 2]], "from": 3}, 3, 3),
        ({"by": "examples", "up_to": [[99, 1]], "above": {"cpu": 4, "gpu": 5}}, 4, 5),
        ({"fact": "examples", "times": 1.255, "plus": 8}, 133, 133),
        ({"fact": "examples", "over": 33, "at_least": 2}, 3, 3),
        ({"fact": "examples", "over": 33, "at_least": {"fact": "longest"}}, 60, 60),
        ({"fact": "examples", "at_most": {"cpu": 16, "gpu": 32}}, 16, 32),
        ({"divide": 5.0, "by": "examples"}, 0.05, 0.05),
        ({"chosen": "train.keep", "times": 2}, 14, 14),
        ({"function": "positions_of_pairs", "pairs": 3}, 30, 30),
    ],
)
def test_a_value_is_computed_as_it_is_written(how: Any, on_cpu: object, on_gpu: object) -> None:
    stats = DatasetStats(n=100, n_tokens=1000, longest=60)
    rows = [DefaultRow("a.b", "why", {"train.keep": 7}), DefaultRow("a.c", "so", {"train.lr": how})]
    for device, wanted in ((CPU, on_cpu), (GPU, on_gpu)):
        facts = DefaultFacts(spec_of("translate"), RunSettings(task="translate"), stats, device)
        found, _ = choose(facts, rows)
        assert found["train.lr"].value == wanted
        assert found["train.lr"].reason == "so [a.c]"


@pytest.mark.parametrize(
    ("when", "applies"),
    [
        ({"task": "translate"}, True),
        ({"task": ["tag", "fill"]}, False),
        ({"task": {"not": "translate"}}, False),
        ({"examples": {"from": 100, "below": 101}}, True),
        ({"examples": {"above": 100}}, False),
        ({"examples": {"up_to": {"cpu": 100, "gpu": 5}}}, True),
        ({"open": ["train.keep"]}, False),
        ({"open": ["train.lr", "model"]}, True),
        ({"asked": ["train.keep"]}, True),
        ({"asked": ["train.keep", "train.lr"]}, False),
    ],
)
def test_a_row_applies_where_all_its_conditions_hold(when: Any, applies: bool) -> None:
    settings = load_run_settings(None, ["train.keep=3"], {"task": "translate"})
    facts = DefaultFacts(spec_of("translate"), settings, DatasetStats(n=100), CPU)
    assert DefaultRow("a.b", "why", {}, (when, {})).applies(facts) is applies
    assert not DefaultRow("a.b", "why", {}, (when, {"task": "tag"})).applies(facts)


def test_later_rows_replace_earlier_ones() -> None:
    settings = load_run_settings(None, [], {"task": "classify"})
    stats = DatasetStats(n=900, n_tokens=9000, longest=9, labels=("a", "b"))
    chosen = propose(spec_of("classify"), settings, stats, CPU).settings
    [layers] = (ROWS["classify-text.little-text"].values["model.n_layers"],)
    assert chosen["model.n_layers"].value == layers
    assert chosen["model.n_layers"].reason.endswith("[classify-text.little-text]")
    assert chosen["model.d_model"].reason.endswith("[model.text-small]")


def test_defaults_before_the_data_are_those_of_the_tokenizer() -> None:
    wanted = ROWS["preparation.vocabulary"].values["tokenizer.vocab_size"]
    settings = load_run_settings(None, [], {"task": "classify"})
    found = before_data(spec_of("classify"), settings, None)
    assert found == replace(settings, tokenizer=replace(settings.tokenizer, vocab_size=wanted))
    chosen = propose(spec_of("classify"), settings, DatasetStats(n=9), CPU).settings
    assert "tokenizer.vocab_size" not in chosen
    spoken = load_run_settings(None, [], {"task": "transcribe"})
    assert before_data(spec_of("transcribe"), spoken, None).tokenizer.kind == "characters"
    asked = load_run_settings(None, ["tokenizer.kind=words"], {"task": "transcribe"})
    assert before_data(spec_of("transcribe"), asked, None) == asked
    assert {row.group for row in default_rows()} >= set(BEFORE_DATA)


@pytest.mark.parametrize(
    ("task", "modality", "names"),
    [
        ("classify", "image", ()),
        ("classify", "video", ("video.model.image.frames", "video.model.image.tubelet")),
        ("caption", "image", ("caption.model.image.class_token",)),
        ("identify", "audio", ("audio.model.audio.scale",)),
        ("transcribe", "audio", ()),
    ],
)
def test_defaults_of_media_are_rows_of_the_table(
    task: str, modality: str, names: tuple[str, ...]
) -> None:
    wanted = {}
    for name in names:
        row, _, key = name.partition(".")
        wanted[key] = ROWS[f"input.{row}"].values[key]
    settings = load_run_settings(None, [], {"task": task})
    [row] = [one for one in SPECS[task].rows if one.modality == modality]
    found = input_defaults(row, settings)
    assert found == {key.rpartition(".")[2]: value for key, value in wanted.items()}
    chosen = propose(row, settings, statistics(row, 900, "label", None), CPU).settings
    for key in wanted:
        assert chosen[key].value == wanted[key]
        assert "[input." in chosen[key].reason
