"""The pages of docs/reference that are made from declarations: `python docs/reference.py`.

Settings, tasks, scores, models, recipes and options are declared once, in the code, each with what
it says about itself; these pages repeat it, and a test compares them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import cached_property
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from command_line import command_line_page
from page_parts import MADE, prose, table
from python_api import python_api_page

from headway.errors import Edge, called_by
from headway.settings import effects
from headway.settings.default_facts import DefaultFacts
from headway.settings.defaults import DefaultRow, default_rows
from headway.settings.field_docs import documented
from headway.settings.model import FAMILY_SETTINGS, BodySettings, TextSettings, family_of
from headway.settings.presets import PRESETS
from headway.settings.recipes import about, recipe_names, recipe_path
from headway.settings.run import SETTINGS
from headway.settings.toml import toml_value
from headway.specs.metrics import METRICS, Metric
from headway.specs.needs import Need
from headway.specs.tasks import SECTIONS, SPECS, Spec
from headway.specs.values import setting_types

FOLDER = Path(__file__).parent / "reference"
BASE = "seq2seq"
"""The family whose defaults stand in the first table."""

READ_ON = {
    "data": "../tasks/data.md", "tokenizer": "../models/tokenizers.md",
    "train": "../tasks/training.md", "decode": "../tasks/decoding.md",
    "augment": "../tasks/classify.md#data-augmentation",
    "start": "../tasks/finetune.md", "lora": "../tasks/finetune.md#lora",
    "distil": "../tasks/finetune.md#distil-a-smaller-model-from-a-larger-one",
    "complete": "../tasks/complete.md", "fill": "../tasks/fill.md",
    "classify": "../tasks/classify.md", "tag": "../tasks/tag.md", "embed": "../tasks/embed.md",
    "caption": "../tasks/caption.md", "transcribe": "../tasks/transcribe.md",
    "identify": "../tasks/classify.md#speaker-identification", "translate": "../tasks/translate.md",
    "serve": "../serve/index.md#limits",
    "image": "../tasks/media.md", "audio": "../tasks/media.md#audio",
}  # fmt: skip
"""The pages that explain a section or a task."""


SETTINGS_INTRO = """
Every setting with its type, default and meaning. [How settings work](index.md) explains how to set
them, and how `headway train` chooses the others: those with the default *none: chosen*.

"""
TASKS_INTRO = """
Inputs, targets, outputs and scores of each task. Columns are found by these names, or you
[name them](../tasks/data.md). Targets are needed for training and scores, not for predictions.

"""
MODELS_INTRO = """
`model.preset=NAME` selects one of these configurations. `headway presets` lists them with
parameter counts. In Python: `headway.settings.presets.preset("gpt2")`.

"""
RECIPES_INTRO = """## Recipes

`headway train --recipe NAME --data DIR --out RUN`; `headway recipes NAME` prints one.

"""
SCORES_INTRO = """## Scores

`train.metric` names the score that selects the best weights. [Scores](../tasks/metrics.md) defines
each.

"""
EFFECTS_INTRO = """
These settings and options have an effect only under a condition. Setting one where its condition
does not hold is an error that names it, the condition and the fix. All other settings always have
an effect. A test compares this table with the settings that training and prediction read.

"""
DEFAULTS_INTRO = """
`headway train` chooses the settings that you leave open from this table. `--dry-run` and the
`config.toml` of a run name the row after each value:
`lr = 0.004  # chosen: … [classify-text.training]`.

A row applies if its conditions and those of its group hold; a later row replaces the values of an
earlier one. Conditions and reasons use [facts](#facts) of the data, the device and the run. Media
are images, videos and audio. A row without a condition always applies; one without a reason depends
on the amount of data and the device. Memory and other settings determine `train.micro_tokens`,
`train.steps`, `train.eval_every` and `train.save_every`.

"""
FACTS_INTRO = """## Facts

Values that conditions and settings refer to.

"""
MODEL_INTRO = """## `[model]`

Settings of all model families, with the defaults of `seq2seq`, the base Transformer of 2017.

"""


def takes(hint: Any) -> str:
    """What a setting may be."""
    inner = [one for one in get_args(hint) if one is not NoneType]
    if get_origin(hint) is Literal:
        return ", ".join(f"`{one}`" for one in get_args(hint))
    if get_origin(hint) is tuple:
        return f"a list: {takes(inner[0])}"
    if len(inner) < len(get_args(hint)):
        return f"{takes(inner[0])}, or none"
    names = {int: "whole number", float: "number", bool: "true or false", str: "text"}
    return names.get(hint, "a group")


def default(value: object) -> str:
    if value is None:
        return "none"
    return "" if is_dataclass(value) else f"`{toml_value(value)}`"


def settings_table(kind: type, names: Iterable[str] | None = None) -> str:
    said, hints, usual = documented(kind), setting_types(kind), kind()
    return table(
        ["setting", "takes", "default", "meaning"],
        (
            [f"`{name}`", takes(hints[name]), default(getattr(usual, name)), prose(said[name])]
            for name in (hints if names is None else names)
        ),
    )  # fmt: skip


def read_on(name: str) -> str:
    return f"Explained in [{name}]({READ_ON[name]}).\n\n" if name in READ_ON else ""


def settings_page() -> str:
    parts = [
        "# All settings\n\n", MADE,
        SETTINGS_INTRO,
        *_model(),
    ]  # fmt: skip
    common = [name for name in SETTINGS if name not in SECTIONS]
    for name in (*common, *SECTIONS):
        kind = SETTINGS[name]
        of_task = "Only for the task of this name. " if name in SECTIONS else ""
        parts += [f"## `[{name}]`\n\n", f"{of_task}{prose(_about(kind))}\n\n", read_on(name)]
        parts.append(settings_table(kind))
    parts += ["## `serve.*`\n\n", "Limits of `headway serve`, set on its command line. ",
              read_on("serve")]  # fmt: skip
    return "".join(parts)


def _about(kind: type) -> str:
    text = " ".join((kind.__doc__ or "").split())
    return "" if text.startswith(f"{kind.__name__}(") else text


def _model() -> Iterable[str]:
    yield MODEL_INTRO
    base = FAMILY_SETTINGS[BASE]
    body = [one.name for one in fields(BodySettings)]
    words = [one.name for one in fields(TextSettings) if one.name not in body]
    yield settings_table(base, body)
    yield "Settings of families that read or write text:\n\n"
    yield settings_table(base, words)
    others = {name: kind for name, kind in FAMILY_SETTINGS.items() if name != BASE}
    yield "Different defaults of other families:\n\n"
    shared = [
        name for name in (*body, *words)
        if any(_value(kind, name) not in ("", _value(base, name)) for kind in others.values())
    ]  # fmt: skip
    yield table(
        ["setting", *(f"`{name}`" for name in FAMILY_SETTINGS)],
        (
            [f"`{name}`", *(_value(kind, name) for kind in FAMILY_SETTINGS.values())]
            for name in shared
        ),
    )
    for family, kind in FAMILY_SETTINGS.items():
        own = [one.name for one in fields(kind) if one.name not in (*body, *words)]
        yield f'### `family = "{family}"`\n\n{prose(_about(kind))}\n\n'
        yield settings_table(kind, own)
    groups: dict[str, type] = {}
    for kind in FAMILY_SETTINGS.values():
        usual = kind()
        for name in setting_types(kind):
            if is_dataclass(getattr(usual, name)) and name != "kept_heads":
                groups.setdefault(name, type(getattr(usual, name)))
    for name, kind in groups.items():
        yield f"### `[model.{name}]`\n\n{prose(_about(kind))}\n\n{read_on(name)}"
        yield settings_table(kind)


def _value(kind: type, name: str) -> str:
    return default(getattr(kind(), name)) if name in setting_types(kind) else ""


def tasks_page() -> str:
    parts = [
        "# Tasks, columns and scores\n\n", MADE,
        TASKS_INTRO,
    ]  # fmt: skip
    for name, spec in SPECS.items():
        parts += [f"## `{name}`\n\n", read_on(name)]
        parts.append(
            table(
                ["data", "columns", "outputs", "scores, the main one first", "models"],
                (
                    [row.modality, "<br>".join(map(_need, row.needs)), row.answers,
                     ", ".join(f"`{one}`" for one in row.scores),
                     ", ".join(f"`{one}`" for one in row.families)]
                    for row in spec.rows
                ),
            )
        )  # fmt: skip
        parts.append(_options(spec))
    parts += [
        SCORES_INTRO,
        table(["name", "shown as", "unit", "better"], map(_metric, METRICS.values())),
    ]
    return "".join(parts)


def _need(need: Need) -> str:
    also = f" (or {', '.join(f'`{one}`' for one in need.also)})" if need.also else ""
    role = "; target" if need.role == "target" else ""
    return f"`{need.name}`{also}{role}{'; optional' if need.optional else ''}"


def _options(spec: Spec) -> str:
    rows = spec.rows
    said = sorted({one for row in rows for one in row.options})
    decode = sorted({one for row in rows for one in row.decode})
    own = f", settings [`[{spec.name}]`](settings.md#{spec.name})" if spec.settings else ""
    listed = ", ".join(f"`--{one.replace('_', '-')}`" for one in said)
    return (
        f"Options of `predict`: {listed}. Of `[decode]`: {', '.join(f'`{one}`' for one in decode)}"
        f"{own}.\n\n"
    )


def _metric(one: Metric) -> list[str]:
    return [f"`{one.name}`", one.label, one.unit, "lower" if one.lower else "higher"]


def models_page() -> str:
    rows = []
    for name, preset in PRESETS.items():
        shape = preset.settings
        layers = " + ".join(str(stack.n_layers) for stack in shape.stacks.values())
        heads = ", ".join(map(str, shape.each("n_heads")))
        rows.append([
            f"`{name}`", family_of(shape), layers, str(shape.d_model), heads, preset.published,
            preset.source,
        ])  # fmt: skip
    recipes = ([f"`{name}`", prose(about(recipe_path(name)))] for name in recipe_names())
    return "".join((
        "# Presets and recipes\n\n", MADE,
        MODELS_INTRO,
        table(["preset", "family", "layers", "width", "heads", "published", "source"], rows),
        RECIPES_INTRO,
        table(["recipe", "what"], recipes),
    ))  # fmt: skip


def effects_page() -> str:
    tables: dict[str, effects.EffectTable[Any]] = {
        "Training and decoding": effects.OF_RUN,
        "Body of the model": effects.OF_BODY,
        "Other settings of the model": effects.OF_MODEL,
        "Options of predict, evaluate and export": effects.OF_CALL,
        "Options of train and check": effects.OF_REQUEST,
    }
    parts = ["# When settings have an effect\n\n", MADE, EFFECTS_INTRO]
    for title, rows in tables.items():
        keys: dict[str, dict[str, None]] = {}
        with called_by(Edge.COMMAND_LINE):
            for row in (row for of_key in rows.rows.values() for row in of_key):
                keys.setdefault(row.condition, {}).update(dict.fromkeys(row.settings))
        shown = ([", ".join(f"`{key}`" for key in of), prose(why)] for why, of in keys.items())
        parts += [f"## {title}\n\n", table(["setting", "applies only"], shown)]
    return "".join(parts)


def defaults_page() -> str:
    groups: dict[str, list[DefaultRow]] = {}
    for row in default_rows():
        groups.setdefault(row.group, []).append(row)
    parts = ["# Defaults\n\n", MADE, DEFAULTS_INTRO]
    for group, rows in groups.items():
        shared, _ = rows[0].when
        applies = f"For {_conditions(shared)}.\n\n" if shared else ""
        parts.append(f"## `[{group}]`\n\n{applies}")
        parts.append(
            table(
                ["row", "when", "value", "reason"],
                (
                    [f"`{row.name.partition('.')[2]}`", _conditions(row.when[1]),
                     "<br>".join(_chosen(k, how) for k, how in row.values.items() if k != "amount"),
                     _reason(row.reason)]
                    for row in rows
                ),
            )
        )  # fmt: skip
    facts = (
        [f"`{name}`", prose(" ".join((one.__doc__ or "").split()))]
        for name, one in vars(DefaultFacts).items()
        if isinstance(one, property | cached_property) and not name.startswith("_")
    )
    return "".join((*parts, FACTS_INTRO, table(["fact", "meaning"], facts)))


PLACEHOLDER = re.compile(r"\{(\w+)[^}]*\}")
BY_AMOUNT = re.compile(
    r"\{(amount|tokens)\b[^}]*\}( tokens)?(, from scratch)?( on \{device\})?|\{device\}"
)
"""Reasons that give only the amount of data and the device."""

GROUPS_OF_VALUES = {
    ("modality", ("image", "video", "audio")): "media",
    ("modality", ("image", "video")): "images or videos",
    ("answers", ("label", "labels", "number")): "classification or regression",
    ("start", ("scratch", "model")): "runs without a parent",
}
"""Conditions with several values, in words."""


def _reason(text: str) -> str:
    return "" if BY_AMOUNT.fullmatch(text) else PLACEHOLDER.sub(r"*\1*", text)


LIMITS = {
    "from": "at least", "above": "above", "up_to": "up to", "below": "below", "not": "not",
}  # fmt: skip


def _conditions(when: Mapping[str, Any]) -> str:
    return ", and ".join(_condition(name, wanted) for name, wanted in when.items())


def _condition(name: str, wanted: Any) -> str:
    if name in ("open", "asked"):
        keys = " and ".join(f"`{key}`" for key in wanted)
        return f"{keys} {'left open' if name == 'open' else 'set by the user'}"
    if isinstance(wanted, bool):
        return f"`{name}`" if wanted else f"not `{name}`"
    if isinstance(wanted, Mapping):
        limits = (f"{LIMITS[how]} {_how(limit)}" for how, limit in wanted.items())
        return f"`{name}` {' and '.join(limits)}"
    values = wanted if isinstance(wanted, list) else [wanted]
    if (name, tuple(values)) in GROUPS_OF_VALUES:
        return GROUPS_OF_VALUES[name, tuple(values)]
    first, *others = values
    return " or ".join([f"`{name}={first}`", *(f"`{one}`" for one in others)])


def _chosen(key: str, how: Any) -> str:
    """A setting with its value: as a word of the command line if the value is fixed."""
    if isinstance(how, Mapping):
        return f"`{key}` = {_how(how)}"
    return f"`{key}={how if isinstance(how, str) else toml_value(how)}`"


def _how(how: Any) -> str:
    """A value of the table of defaults in words."""
    if not isinstance(how, Mapping):
        large = isinstance(how, int) and not isinstance(how, bool) and abs(how) > 999
        return f"{how:,}" if large else f"`{toml_value(how)}`"
    if "cpu" in how:
        found = f"{_how(how['cpu'])} on a CPU, {_how(how['gpu'])} on a GPU"
    elif "function" in how:
        inner = ", ".join(
            f"{name} {_how(one)}" for name, one in how.items()
            if name not in ("function", "at_least", "at_most")
        )  # fmt: skip
        found = f"`{how['function']}`" + (f" ({inner})" if inner else "")
    elif "divide" in how:
        found = f"{_how(how['divide'])} / `{how['by']}`"
    elif "by" in how:
        limit, rest = ("up_to", "above") if "up_to" in how else ("below", "from")
        steps = (f"{_how(value)} {LIMITS[limit]} {_how(most)}" for most, value in how[limit])
        found = f"by `{how['by']}`: {', '.join(steps)}, then {_how(how[rest])}"
    else:
        found = f"`{how.get('fact') or how['chosen']}`"
        found += f" × {how['times']}" if "times" in how else ""
        found += f" // {how['over']}" if "over" in how else ""
        found += f" + {how['plus']}" if "plus" in how else ""
    ends = (f", at {name} {_how(how[f'at_{name}'])}"
            for name in ("least", "most") if f"at_{name}" in how)  # fmt: skip
    return found + "".join(ends)


PAGES: Mapping[str, Callable[[], str]] = {
    "settings.md": settings_page,
    "defaults.md": defaults_page,
    "tasks.md": tasks_page,
    "models.md": models_page,
    "effects.md": effects_page,
    "flags.md": command_line_page,
    "python-api.md": python_api_page,
}


def main() -> None:
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page().rstrip() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
