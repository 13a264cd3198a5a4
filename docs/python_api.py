"""The page docs/reference/python-api.md, made from signatures and docstrings.

Public functions document their arguments, result and an example in sections of their docstrings
(`Args:`, `Returns:`, `Example:`). Tests compare the arguments with the signature, and run examples
that start with `>>>`.
"""

from __future__ import annotations

import importlib
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from typing import Any, NamedTuple

from page_parts import MADE, cell, table

import headway
from headway import inside, lab
from headway.api import check, train
from headway.run import Run, available, load
from headway.serve import app
from headway.settings.field_docs import documented
from headway.tasks import answers
from headway.tasks.answers import Answer, Answers

INTRO = """
Public names of the package with their arguments; [Python](../start/python.md) introduces them.
In examples, `run` is `headway.load("tatoeba-de-en")`.

"""
INSIDE_INTRO = """[Look inside from Python](../look/python.md) shows these functions in use. `run`
is opened by `headway.inside.load`, `ask` holds
[generation options](#headwayinsidegenerationoptions), and `change` is an
[intervention](#headwayinsideintervention).

"""
KINDS_INTRO = """Each task has its own kind of answer, with more fields:

"""
NN_INTRO = """Layers are torch modules, built from numbers and other layers, without settings.
[Architecture](../built/architecture.md) explains flat batches and names of axes.

"""
HELPERS_INTRO = """These methods are for programs that batch inputs themselves, such as `headway
serve`:

"""

METHODS = (
    "run", "stream", "write", "choose", "evaluate", "look", "export", "train", "options", "to",
    "with_settings", "close",
)  # fmt: skip
"""Methods of a run for users, in the order of the page."""

HELPERS = ("question", "ask", "predictor", "score", "use")
"""Methods of a run for programs that take the place of the command line."""

SHOWN = {
    "Answer": (*documented(Answer), "others", "to_dict", "save"),
    "Scores": ("baselines", "members", "intervals", "rows", "facts", "answers", "truth"),
    "Report": ("n_pairs", "findings", "labels", "columns", "fingerprint", "ok",
               "to_dict"),
    "Intervention": ("hidden", "disabled_heads"),
    "Trace": ("reading", "attention", "values", "states", "scores_RC", "gradients",
              "beam", "meta", "save", "load"),
}  # fmt: skip
"""Attributes and methods of classes that have others for modules of this package."""

UNLISTED = {"top", "rest", "prompted", "marked", "probs", "classes", "size"}
"""Fields of answers that only printing needs, or that another field gives, too."""

SHARED = {
    "run": "The run, opened by `load`.",
    "ask": "What the model generates.",
    "change": "Tokens to hide and heads to disable.",
}
"""Arguments of `headway.inside` that its introduction describes for all functions."""

LAYERS = (
    "layout.Layout", "attention.attention.Attention", "feedforward.FeedForward", "block.PreNorm",
    "block.PostNorm", "stack.Stack", "positions.Rotary",
    "norms.LayerNorm", "norms.RMSNorm", "cache.Cache",
)  # fmt: skip
"""Modules and names in `headway.nn` that programs build models of."""

SECTION = re.compile(r"^(Args|Returns|Example):\n", re.MULTILINE)
ARGUMENT = re.compile(r"^    (\*{0,2}\w+): ", re.MULTILINE)


class Described(NamedTuple):
    """A public function, under the name that programs use."""

    name: str
    function: Any


@dataclass(frozen=True)
class Docstring:
    text: str
    arguments: Mapping[str, str]
    """Meaning by name, with the stars of a signature."""

    returns: str
    example: str

    @property
    def first(self) -> str:
        """The first sentence."""
        return re.split(r"(?<=\.)\s+(?=[A-Z`])", self.text)[0]


def parsed(thing: Any) -> Docstring:
    text, *rest = SECTION.split(inspect.cleandoc(thing.__doc__))
    parts = dict(zip(rest[::2], rest[1::2], strict=True))
    _, *named = ARGUMENT.split(parts.get("Args", ""))
    return Docstring(
        text="\n\n".join(joined(one) for one in text.strip().split("\n\n")),
        arguments=dict(zip(named[::2], map(joined, named[1::2]), strict=True)),
        returns=joined(parts.get("Returns", "")),
        example=textwrap.dedent(parts.get("Example", "")).strip(),
    )


def joined(text: str) -> str:
    return " ".join(text.split())


FUNCTIONS = (
    Described("headway.load", load), Described("headway.train", train),
    Described("headway.check", check), Described("headway.available", available),
)  # fmt: skip
INSIDE = (
    *(Described(f"headway.inside.{name}", getattr(inside, name)) for name in inside.__all__
      if inspect.isfunction(getattr(inside, name))),
    Described("headway.inside.maps.make", inside.maps.make),
)  # fmt: skip
OTHERS = (
    Described("headway.serve.app", app),
    Described("headway.lab.run_experiment", lab.run_experiment),
)
CLASSES = (Answer, Answers, headway.Scores, headway.Report, headway.Parts)
OF_INSIDE = (inside.GenerationOptions, inside.Intervention, inside.Trace)


def functions() -> Iterator[Described]:
    """Every function and method that the page describes."""
    yield from (*FUNCTIONS, *INSIDE, *OTHERS)
    for kind in (Run, *CLASSES, *OF_INSIDE):
        yield from methods(kind)


def methods(kind: type) -> Iterator[Described]:
    """Public methods of a class that the page shows."""
    prefix, shown = kind.__name__.lower(), SHOWN.get(kind.__name__)
    for name, thing in vars(kind).items():
        function = getattr(thing, "__func__", thing)
        if not inspect.isfunction(function) or (shown is not None and name not in shown):
            continue
        if name == "__call__":
            yield Described(prefix, function)
        elif not name.startswith("_") and function.__doc__:
            yield Described(f"{prefix}.{name}", function)


def attributes(kind: type) -> Iterator[tuple[str, str]]:
    """Documented fields and properties of a class that the page shows, with their meaning."""
    found = dict(documented(kind)) if is_dataclass(kind) else {}
    for name, thing in vars(kind).items():
        function = getattr(thing, "fget", None) or getattr(thing, "func", None)
        if function and function.__doc__ and not name.startswith("_"):
            found[name] = joined(function.__doc__)
    shown = SHOWN.get(kind.__name__, found)
    return ((f"`{name}`", cell(said)) for name, said in found.items() if name in shown)


def signature(one: Described) -> str:
    """The definition without the types of arguments."""
    found, words, keyword_only = inspect.signature(one.function), list[str](), False
    for parameter in found.parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            words.append("*")
        keyword_only |= parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        if keyword_only and words[-2:] and words[-1] == "*" and words[-2].startswith("*"):
            words.pop()
        words.append(named(parameter) + default(parameter))
    result = str(found.return_annotation).strip("'")
    name = one.name.rpartition(".")[2]
    line = f"def {name}({', '.join(words)}) -> {result}: ..."
    if len(line) <= 100:
        return line
    if len(", ".join(words)) <= 96:
        return f"def {name}(\n    {', '.join(words)}\n) -> {result}: ..."
    body = "".join(f"    {word},\n" for word in words)
    return f"def {name}(\n{body}) -> {result}: ..."


def named(parameter: inspect.Parameter) -> str:
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}
    return stars.get(parameter.kind, "") + parameter.name


def default(parameter: inspect.Parameter) -> str:
    value = parameter.default
    if value is parameter.empty:
        return ""
    if isinstance(value, str):
        return f'="{value}"'
    return f"={value!r}" if isinstance(value, int | float | None | tuple) else "=..."


def function_section(one: Described) -> str:
    doc = parsed(one.function)
    parts = [f"### `{one.name}`\n\n{doc.text}\n\n```py\n{signature(one)}\n```\n\n"]
    before, where = described_before(one)
    same = [f"`{name}`" for name, said in doc.arguments.items() if before.get(name) == said]
    lines = [
        f"- `{name}`: {said}\n"
        for name, said in doc.arguments.items()
        if before.get(name) != said
    ]  # fmt: skip
    lines += [f"- {', '.join(same)}: {where}\n"] if same and where else []
    parts += [*lines, "\n"] if lines else []
    parts += [f"Returns: {doc.returns}\n\n"] if doc.returns else []
    # Other pages have examples of these functions.
    return "".join([*parts, "" if one in (*INSIDE, *OTHERS) else example(doc)])


def described_before(one: Described) -> tuple[Mapping[str, str], str]:
    """Arguments that the page describes before this function, and where."""
    if one.name == "headway.check":
        return parsed(train).arguments, "As in `headway.train`."
    return (SHARED, "") if one in INSIDE else ({}, "")


def example(doc: Docstring) -> str:
    kind = "pycon" if doc.example.startswith(">>>") else "py"
    return f"```{kind}\n{doc.example}\n```\n\n" if doc.example else ""


def class_section(name: str, kind: type) -> str:
    doc = parsed(kind)
    parts = [f"## `{name}`\n\n{doc.text}\n\n", example(doc)]
    parts.append(table(["attribute", "meaning"], attributes(kind)))
    rows = list(map(method_row, methods(kind)))
    return "".join([*parts, table(["method", "meaning"], rows) if rows else ""])


def method_row(one: Described) -> tuple[str, str]:
    """A method on one line: its first sentence, then its arguments."""
    doc = parsed(one.function)
    words = [f"`{name}`: {said}" for name, said in doc.arguments.items()]
    return call(one, doc), cell(" ".join([doc.first, *words]))


def helper_row(one: Described) -> tuple[str, str]:
    doc = parsed(one.function)
    return call(one, doc), cell(doc.first)


def call(one: Described, doc: Docstring) -> str:
    return f"`{one.name}({', '.join(doc.arguments)})`"


def answer_kinds() -> Iterable[tuple[str, str, str]]:
    """Classes of answers with the fields that each adds."""
    for kind in vars(answers).values():
        if not (isinstance(kind, type) and issubclass(kind, Answer)):
            continue
        if kind in (Answer, answers.WordAnswer):
            continue
        own = [*vars(kind).get("__annotations__", {})]
        own += [name for name, one in vars(kind).items() if isinstance(one, property)]
        names = (f"`{name}`" for name in own if name not in (*vars(Answer), *UNLISTED))
        yield f"`{kind.__name__}`", parsed(kind).first, ", ".join(names)


def layers() -> Iterator[tuple[str, str]]:
    for place in LAYERS:
        module, _, name = place.rpartition(".")
        kind = getattr(importlib.import_module(f"headway.nn.{module}"), name)
        yield f"`headway.nn.{place}`", cell(parsed(kind).first)


def python_api_page() -> str:
    of_run = {one.name.rpartition(".")[2]: one for one in methods(Run)}
    own, helpers = ([of_run[name] for name in names] for names in (METHODS, HELPERS))
    parts = ["# Python API\n\n", MADE, INTRO, "## Functions\n\n"]
    parts += map(function_section, FUNCTIONS)
    parts += [f"## `headway.Run`\n\n{parsed(Run).text}\n\n"]
    parts += [table(["attribute", "meaning"], attributes(Run))]
    parts += map(function_section, own)
    parts += [HELPERS_INTRO, table(["method", "meaning"], map(helper_row, helpers))]
    for kind in CLASSES:
        parts += [class_section(f"headway.{kind.__name__}", kind)]
        if kind is Answer:
            parts += [KINDS_INTRO, table(["kind", "meaning", "adds"], answer_kinds())]
    parts += ["## `headway.inside`\n\n", INSIDE_INTRO]
    parts += map(function_section, INSIDE)
    parts += [f"#{class_section(f'headway.inside.{kind.__name__}', kind)}" for kind in OF_INSIDE]
    parts += ["## Service and experiments\n\n", *map(function_section, OTHERS)]
    parts += ["## `headway.nn`\n\n", NN_INTRO, table(["class", "meaning"], layers())]
    return "".join(parts)
