"""What there is too much of becomes less and never more: see `ratchets.py` for what is counted."""

from __future__ import annotations

import pytest

from . import ratchets
from .ratchets import complaints, found_in, numbers, sources_here, table, written


def test_nothing_that_should_become_fewer_has_become_more() -> None:
    said = complaints(found_in(sources_here()), table())
    assert not said, "\n" + "\n".join(said)


MODELS = {
    "models/encoder.py": "class Encoder(nn.Module): ...",
    "config/model.py": "@dataclass\nclass EncoderSettings(BodySettings): ...",
}


@pytest.mark.parametrize(
    ("name", "code", "n"),
    [
        ("task names", "if settings.task == 'classify': ...", 1),
        ("task names", "x = 'see' != task", 1),
        ("task names", "x = task in ('see', 'watch')", 1),
        ("task names", "x = task not in {'see'}", 1),
        ("task names", "match task:\n    case 'see' | 'watch': ...", 2),
        ("task names", "TABLE = {'see': 1, 'watch': 2}", 1),
        ("task names", "BOTH = frozenset({'see', 'watch'})", 1),
        ("task names", "f('see'); x = ('see', 'other'); y = {'see': 1}; z = task == 'pictures'", 0),
        ("families", "isinstance(model, Encoder)", 1),
        ("families", "isinstance(x, int | encoder.Encoder)", 1),
        ("families", "issubclass(kind, (EncoderSettings, SoundSettings))", 1),
        ("families", "type(model) is Encoder", 1),
        ("families", "isinstance(x, str) or type(x) is int", 0),
        ("any", "def f(x: Any, *y: dict[str, Any], **z: int) -> Any: ...", 3),
        ("any", "def f(x: list[typing.Any]) -> None:\n    y: Any = 1", 1),
        ("openers", "def f(x):\n    return load_model(x)", 1),
        ("openers", "class A:\n    def f(self):\n        return [folder.load_model(x)]", 1),
        ("openers", "def f():\n    def g():\n        return load_model(1)\n    return g", 1),
        ("openers", "def f(x):\n    return load_run(x)", 0),
    ],
)
def test_what_is_counted(name: str, code: str, n: int) -> None:
    found = found_in({**MODELS, "inside/a.py": code})
    assert [one.path for one in found[name]] == ["inside/a.py"] * n
    others = found_in({**MODELS, "tasks/a.py": code, "cli/a.py": code})
    assert len(others[name]) == (0 if name == "task names" else 2 * n)


def test_more_is_refused_with_its_place_and_fewer_must_be_written_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = {"inside/a.py": "def f(x: Any) -> int: ..."}
    after = {"inside/a.py": "y = 1\n\n\ndef f(x: Any) -> int: ...\ndef g() -> Any: ..."}
    monkeypatch.setattr(ratchets, "sources_then", lambda: before)
    most = numbers(found_in(before))
    assert not complaints(found_in(before), most)
    assert complaints(found_in(after), most) == [
        "any: 1 → 2, and may only become fewer. New:",
        "  src/headway/inside/a.py:5: def g() -> Any: ...",
    ]
    [said] = complaints(found_in(before), numbers(found_in(after)))
    assert "2 → 1" in said
    assert "--write" in said


def test_code_may_move_and_the_table_follows() -> None:
    moved = {"nn/a.py": "def f(x: Any) -> int: ..."}
    assert complaints(found_in(moved), {"any": {"inside": 1}})
    assert not complaints(found_in(moved), {"any": {"nn": 1}})


def test_writing_the_table_never_raises_it() -> None:
    now = {"any": {"inside": 5}, "openers": {"inside": 1, "nn": 1}}
    old = {"any": {"inside": 3}, "openers": {"tasks": 2}}
    assert written(now, old).splitlines()[2:] == [
        '["any"]', "inside = 3", "", '["openers"]', "inside = 1", "nn = 1",
    ]  # fmt: skip
