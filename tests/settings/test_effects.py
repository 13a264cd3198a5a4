"""The table of effects: every row can hold and can fail, and names settings that exist."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest

from headway.errors import ConfigError
from headway.settings import effects
from headway.settings.data import FILES, DataSettings
from headway.settings.effects import (
    EFFECTS,
    BodyFacts,
    CallFacts,
    EffectRule,
    ModelFacts,
    RequestFacts,
    RunFacts,
    data_settings,
    no_effect,
)
from headway.settings.model import FAMILY_SETTINGS
from headway.settings.run import SETTINGS
from headway.specs.options import OPTIONS, SCORING
from headway.specs.tasks import SECTIONS, SPECS, Spec, spec_for_answer
from tests.facts import missing

ROWS = tuple(
    spec_for_answer(row, answer)
    for spec in SPECS.values()
    for row in spec.rows
    for answer in ("label", "labels", "number")
)
USELESS = replace(
    ROWS[0], decode=frozenset(), options=frozenset(), scoring=frozenset(), name="other"
)
"""A row that uses no option at all."""


def run_facts() -> Iterator[RunFacts]:
    for row in (*ROWS, USELESS):
        usual = RunFacts(row=row, teacher="x", schedule="cosine")
        yield usual
        yield replace(
            usual, media=frozenset(), section="fill", parent="x", distils=False, lora=False
        )
        yield replace(usual, media=frozenset({"image"}), body="ngram", optimizer="adam")
        yield replace(usual, media=frozenset({"audio"}), schedule="trapezoid", media_files=False)
        yield replace(usual, fields=False, pairs=True, answer="number", crf=True, ctc=1.0)
        yield replace(usual, answer="label", margin=False)


BODIES = [
    BodyFacts(body=body, single_head=head, masked_words=False)
    for body in ("transformer", "lstm", "gru", "convolution", "sha-rnn", "ngram")
    for head in ("every", "none")
]
MODELS = [
    ModelFacts(),
    ModelFacts(causal=True, attention=frozenset(), heads=("pooled",), positions="rotary"),
    ModelFacts(heads=("tags",), positions="relative", rope_scaling="llama3", word_vectors=True),
    ModelFacts(grid=True),
]


def call_facts() -> Iterator[CallFacts]:
    for row in (*ROWS, USELESS):
        yield CallFacts(row=row, fields=True)
        yield CallFacts(row=row, fields=False, options={"against": "x", "nearest": "x"})
        yield CallFacts(row=row, fields=False, options={})
        yield CallFacts(row=row, chooses_labels=True, scoring=True)


REQUESTS = [
    RequestFacts(distils=known, data=known, recipe=known) for known in (True, False)
]  # fmt: skip


TABLES: list[tuple[effects.EffectTable[Any], list[Any]]] = [
    (effects.OF_RUN, list(run_facts())),
    (effects.OF_BODY, BODIES),
    (effects.OF_MODEL, MODELS),
    (effects.OF_CALL, list(call_facts())),
    (effects.OF_REQUEST, REQUESTS),
]
CASES = {
    f"{row.settings[0]}: {row.condition}": (row, facts)
    for table, facts in TABLES
    for rows in table.rows.values()
    for row in rows
}


@pytest.mark.parametrize("case", CASES)
def test_every_condition_can_hold_and_can_fail(case: str) -> None:
    row, facts = CASES[case]
    assert {bool(row.when(one)) for one in facts} == {True, False}


def leaves(kind: Any, where: str) -> Iterator[str]:
    usual = kind()
    for one in fields(kind):
        yield f"{where}.{one.name}"
        if is_dataclass(getattr(usual, one.name)):
            yield from leaves(type(getattr(usual, one.name)), f"{where}.{one.name}")


def test_every_row_names_settings_that_exist() -> None:
    known = {*SETTINGS, "budget", "--text", "--sentences", "--teacher", "--valid", "--data"} | {
        f"--{name.replace('_', '-')}" for name in (*OPTIONS, *SCORING)
    }
    for section, kind in SETTINGS.items():
        known.update(leaves(kind, section))
    for kind in FAMILY_SETTINGS.values():
        known.update(leaves(kind, "model"))
    assert sorted(EFFECTS.keys() - known) == []


def test_all_decoding_settings_depend_on_the_task() -> None:
    assert set(leaves(SETTINGS["decode"], "decode")) <= EFFECTS.keys()
    assert set(SECTIONS) <= EFFECTS.keys()


@pytest.mark.parametrize(
    ("row", "used", "unused"),
    [
        (SPECS["translate"], "source_field max_ratio", "text_field fields on_long unit"),
        (SPECS["complete"], "text_field fields unit", "source_field on_long label_separator"),
        (SPECS["tag"], "words_field on_long", "path_field other_field fields"),
        (SPECS["classify"], "other_field fields on_long", "unit max_len label_separator"),
        (spec_for_answer(SPECS["classify"], "labels"), "label_separator", "unit"),
        (SPECS["transcribe"], "path_field text_field", "words_field other_field on_long"),
    ],
)
def test_the_data_settings_of_a_row(row: Spec, used: str, unused: str) -> None:
    found = data_settings(row)
    assert set(FILES) < found < {one.name for one in fields(DataSettings)}
    assert set(used.split()) <= found
    assert not set(unused.split()) & found


def test_a_row_of_a_section_counts_for_its_settings() -> None:
    facts = RunFacts(row=SPECS["complete"], lora=False)
    assert effects.OF_RUN.missing("lora.alpha", facts)
    assert not effects.OF_RUN.missing("lora.alpha", replace(facts, lora=True))


def test_defaults_are_accepted_unless_a_row_is_explicit() -> None:
    table: effects.EffectTable[RunFacts] = effects.EffectTable(
        EffectRule(settings=("a.b",), when=lambda facts: False, reason="never"),
        EffectRule(settings=("a.c",), when=lambda facts: False, reason="never", explicit=True),
    )
    facts = RunFacts(row=SPECS["complete"])
    assert table.missing("a.b", facts)
    assert not table.missing("a.b", facts, is_default=True)
    assert table.missing("a.c", facts, is_default=True)


def test_the_error_names_the_value_the_task_the_condition_and_the_fix() -> None:
    place = RunFacts(row=SPECS["fill"]).place
    error = no_effect("fill.span=2", "to images", place, remove="fill.span", where="r.toml: ")
    assert isinstance(error, ConfigError)
    assert str(error).startswith("r.toml: fill.span=2 ")
    assert not missing(error, "fill text images", "Remove fill.span.")
