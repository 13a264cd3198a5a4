"""Choose the settings that the user left open, from the table `defaults.toml`.

`propose` depends only on its arguments: equal settings and facts give equal defaults anywhere.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from headway.settings.default_facts import DefaultFacts
from headway.settings.facts import ChosenSetting, DatasetStats, DeviceInfo, ParentRun, Proposal
from headway.settings.run import RunSettings, overrides_of
from headway.specs.tasks import Spec

TABLE = Path(__file__).with_suffix(".toml")
QUANTITIES = ("amount", "epochs", "least_steps", "positions")
"""Names of quantities that a row of the table may set in addition to settings. The comment at the
top of `defaults.toml` explains them."""

STEM = "image-stem"
"""Name of the group of rows in `defaults.toml` that is applied first, because the number of patches
of an image depends on the values of this group."""

INPUT = "input"
"""Name of the group of rows in `defaults.toml` for the input format of images and audio. It is
applied before the data is prepared, because the data is stored in this format."""

BEFORE_DATA = ("tokenizer", "preparation")
"""Names of the groups of rows in `defaults.toml` that are applied before the data is prepared.
Values from the group `preparation` are not recorded in the run."""


@dataclass(frozen=True)
class DefaultRow:
    """A row of `defaults.toml`: values, their conditions and the reason for them."""

    name: str
    """Name of the group and of the row, as in the heading, such as `classify.little-text`."""

    reason: str
    values: Mapping[str, Any]
    """Values by the dotted key of a setting, or by the name of a quantity."""

    when: tuple[Mapping[str, Any], ...] = field(default=())
    """Conditions of the group and of the row. The row applies if all of them hold."""

    @property
    def group(self) -> str:
        return self.name.partition(".")[0]

    def applies(self, facts: DefaultFacts) -> bool:
        return all(_holds(name, wanted, facts) for one in self.when for name, wanted in one.items())


@cache
def default_rows() -> tuple[DefaultRow, ...]:
    """Return all rows of `defaults.toml` in order."""
    groups = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    return tuple(_rows(groups))


def _rows(groups: Mapping[str, Any]) -> Iterator[DefaultRow]:
    for group, found in groups.items():
        shared = found.pop("when", {})
        for name, row in found.items():
            when = (shared, row.pop("when", {}))
            yield DefaultRow(f"{group}.{name}", row.pop("reason"), dict(_flat(row)), when)


def _flat(row: Mapping[str, Any], section: str = "") -> Iterator[tuple[str, Any]]:
    """Return values by dotted key. A nested table is a section of settings, unless it describes how
    a value is computed."""
    for name, value in row.items():
        is_section = isinstance(value, dict) and not FORMS & value.keys()
        if is_section:
            yield from _flat(value, f"{section}{name}.")
        else:
            yield f"{section}{name}", value


def propose(row: Spec, settings: RunSettings, stats: DatasetStats, device: DeviceInfo) -> Proposal:
    """Return the default settings for a run. `row`: the row of the task table that fits its
    data."""
    facts = DefaultFacts(row, settings, stats, device)
    stem, _ = choose(facts, [one for one in default_rows() if one.group == STEM])
    if stem:
        values: dict[str, Any] = {key.rpartition(".")[2]: one.value for key, one in stem.items()}
        facts = facts.with_front(replace(stats.image, **values))
    chosen, quantities = choose(
        facts, [one for one in default_rows() if one.group != BEFORE_DATA[-1]]
    )
    return Proposal(
        settings=chosen, family=facts.family, metrics=facts.metrics, n_tokens=facts.tokens,
        **quantities,
    )  # fmt: skip


def before_data(row: Spec, settings: RunSettings, parent: ParentRun | None) -> RunSettings:
    """Return the settings, completed with the defaults that are needed before the data is prepared,
    such as those of the tokenizer."""
    given = replace(settings, asked=overrides_of(settings))
    facts = DefaultFacts(row, given, DatasetStats(n=0, parent=parent), DeviceInfo())
    found, _ = choose(facts, [one for one in default_rows() if one.group in BEFORE_DATA])
    values: dict[str, Any] = {key.partition(".")[2]: one.value for key, one in found.items()}
    return replace(settings, tokenizer=replace(settings.tokenizer, **values))


def input_defaults(row: Spec, settings: RunSettings) -> dict[str, Any]:
    """Return the default `model.image` or `model.audio` settings of a model trained from scratch,
    by name."""
    facts = DefaultFacts(row, settings, DatasetStats(n=0), DeviceInfo())
    found, _ = choose(facts, [one for one in default_rows() if one.group == INPUT])
    return {key.rpartition(".")[2]: one.value for key, one in found.items()}


def choose(
    facts: DefaultFacts, rows: Iterable[DefaultRow]
) -> tuple[dict[str, ChosenSetting], dict[str, Any]]:
    """Return the values of all rows that apply, by dotted key, and the quantities by name."""
    values: dict[str, Any] = {}
    sources: dict[str, DefaultRow] = {}
    for row in rows:
        if not row.applies(facts):
            continue
        for key, how in row.values.items():
            value = _value(how, facts, values)
            section = key.rpartition(".")[0]
            many = value if isinstance(value, Mapping) else None
            found = {key: value} if many is None else {f"{section}.{n}": v for n, v in many.items()}
            values |= found
            sources |= dict.fromkeys(found, row)
    words = _Words(facts, str(values.get("amount", "")))
    chosen = {
        key: ChosenSetting(values[key], f"{row.reason.format_map(words)} [{row.name}]")
        for key, row in sources.items()
    }
    quantities = {name: values[name] for name in QUANTITIES if name in values}
    if "amount" in quantities:
        quantities["amount"] = words["amount"]
    quantities["sources"] = {name: sources[name].name for name in QUANTITIES if name in sources}
    return {key: one for key, one in chosen.items() if key not in QUANTITIES}, quantities


@dataclass(frozen=True)
class _Words:
    """Mapping from the names that reasons may contain in braces to their values: facts, the device
    and the amount of data."""

    facts: DefaultFacts
    template: str

    def __getitem__(self, name: str) -> Any:
        if name == "amount":
            return self.template.format_map(self)
        return self.facts.place.description if name == "device" else self.facts[name]


# -- conditions


def _holds(name: str, wanted: Any, facts: DefaultFacts) -> bool:
    if name in ("open", "asked"):
        given = [any(f"{key}.".startswith(f"{one}.") for key in facts.settings.asked)
                 for one in wanted]  # fmt: skip
        return all(given) if name == "asked" else not any(given)
    value = facts[name]
    if isinstance(wanted, Mapping):
        return all(COMPARE[how](value, _value(limit, facts, {})) for how, limit in wanted.items())
    return value in wanted if isinstance(wanted, list) else bool(value == wanted)


COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "from": lambda value, limit: value >= limit,
    "above": lambda value, limit: value > limit,
    "up_to": lambda value, limit: value <= limit,
    "below": lambda value, limit: value < limit,
    "not": lambda value, limit: value != limit,
}


# -- values


def _value(how: Any, facts: DefaultFacts, chosen: Mapping[str, Any]) -> Any:
    """Compute a value of the table from the facts. `chosen`: values that earlier rows set."""
    if isinstance(how, list):
        return tuple(how)
    if not isinstance(how, Mapping):
        return how
    inner = {name: _value(one, facts, chosen) for name, one in how.items()
             if name not in ("cpu", "gpu", "up_to", "below")}  # fmt: skip
    if facts.device in how:
        found = _value(how[facts.device], facts, chosen)
    elif "function" in how:
        limits = ("function", "at_least", "at_most")
        found = FUNCTIONS[how["function"]](
            facts, **{name: one for name, one in inner.items() if name not in limits}
        )
    elif "divide" in how:
        found = inner["divide"] / facts[how["by"]]
    elif "by" in how:
        found = _step(how, inner, facts[how["by"]])
    else:
        found = facts[how["fact"]] if "fact" in how else chosen[how["chosen"]]
        found = _linear(found, inner)
    found = max(found, inner["at_least"]) if "at_least" in how else found
    return min(found, inner["at_most"]) if "at_most" in how else found


def _step(how: Mapping[str, Any], inner: Mapping[str, Any], fact: Any) -> Any:
    """Evaluate a step function at `fact`. The result is the value of the first step whose limit is
    not exceeded (`up_to`: inclusive, `below`: exclusive), or the final value if there is none."""
    limit, rest = ("up_to", "above") if "up_to" in how else ("below", "from")
    found = (value for most, value in how[limit] if COMPARE[limit](fact, most))
    return next(found, inner[rest])


def _linear(value: Any, inner: Mapping[str, Any]) -> Any:
    if "times" in inner:
        value = int(inner["times"] * value)
    if "over" in inner:
        value //= inner["over"]
    return value + inner["plus"] if "plus" in inner else value


def stored_format(facts: DefaultFacts) -> dict[str, object]:
    """Return the input settings of images or audio for which the data was prepared, by dotted key.
    Images add the measured mean and standard deviation of their pixels."""
    front = facts.stats.front
    assert front is not None
    section = "audio" if facts.row.is_audio else "image"
    found = {
        f"{section}.{name}": list(value) if isinstance(value, tuple) else value
        for name, value in asdict(front).items()
        if value is not None
    }
    return found | {f"image.{name}": values for name, values in facts.stats.colours.items()}


def positions_of_examples(facts: DefaultFacts, *, examples: int) -> int:
    """Return the total length in positions of `examples` examples of average length. Facts used:
    `tokens` and `examples`."""
    return round(examples * facts.tokens / max(1, facts.examples))


def positions_of_pairs(facts: DefaultFacts, *, pairs: int) -> int:
    """Return the total length in tokens of `pairs` texts of average length. Facts used: `tokens`
    and `examples`."""
    return pairs * facts.tokens // max(1, facts.examples)


def positions_of_views(facts: DefaultFacts, *, pairs: int) -> int:
    """Return the total length in positions of `pairs` examples of average length, or of all
    examples if there are fewer.

    Facts used: `tokens` and `examples`.
    """
    return min(pairs, facts.examples) * (facts.tokens // max(1, facts.examples))


def passes_over_rare_labels(
    facts: DefaultFacts, *, usual: int, shown: int, most_passes: int, most_tokens: int
) -> int:
    """Return the number of epochs that train rare labels well: their examples are then used `shown`
    times in total.

    The number is at least `usual`. It is at most `most_passes`, and so small that no more than
    `most_tokens` tokens are read. Facts used: `rare_label_examples` and `tokens`.
    """
    most = min(most_passes, most_tokens // max(1, facts.tokens))
    return max(usual, min(most, -(-shown // max(1, round(facts.rare_label_examples)))))


def ngram_buckets(facts: DefaultFacts, *, least: int, most: int, most_weights: int) -> int:
    """Return the number of buckets of the n-gram table. It is the smallest `least` · 2^k that
    reaches four times the number of tokens, limited by `most` and by the number of weights. Facts
    used: `tokens` and `labels`."""
    n = least
    while n < 4 * facts.tokens and 2 * n * max(1, facts.labels) <= most_weights and n < most:
        n *= 2
    return n


FORMS = frozenset({"by", "fact", "chosen", "function", "divide", "cpu", "gpu"})
"""Keys that mark a table in `defaults.toml` as the description of how a value is computed."""

FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    one.__name__: one
    for one in (stored_format, positions_of_examples, positions_of_pairs, positions_of_views,
                passes_over_rare_labels, ngram_buckets)
}  # fmt: skip
