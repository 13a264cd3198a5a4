"""Labelled texts from packages: what is taken of each kind of file, and that nothing leaks."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path

import label_sets
import pytest
from label_sets import Text, described, remarks, runs, split

RECORD = {
    "Package": "foo-gtk", "Source": "foo (1.2)", "Version": "1.2-3", "Section": "games",
    "Tag": "role::program", "Size": "10",
    "Description-en": "a game\n Foo is a game for one player\n .\n with Foo-GTK and seven cards.",
}  # fmt: skip
PAGE = r""".TH FOO 6
.SH NAME
foo \- a game
.SH DESCRIPTION
.B foo
plays \fIcards\fP with
.BR you (1)
\- until
.Nm
you stop.
.PP
Another paragraph.
"""


class NoApt:
    """Two packages that are unpacked already."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def records(self) -> list[dict[str, str]]:
        named = ("manpages", "manpages-dev", "fortunes", "base-files", "ruby-licensee")
        return [RECORD, *({"Package": name, "Version": "1", "Size": "1"} for name in named)]

    def unpacked(self, found: Sequence[dict[str, str]]) -> dict[str, Path]:
        return {record["Package"]: self.folder / record["Package"] for record in found}


def test_a_paragraph_of_a_manual_page_is_plain_text_without_sections() -> None:
    assert described(PAGE, "foo") == "foo plays cards with you - until foo you stop."


def test_comments_lose_their_marks_and_code_is_none() -> None:
    c = "/** Opens the door.\n * And then waits.\n *\n * @param x */\nint x; // y"
    c += "\n  // a line\n  // more\n"
    assert list(remarks(c, "c")) == ["Opens the door. And then waits.", "a line more"]
    python = '"""What it is for."""\n# first\n# second\nx = 1  # beside\n# x[1] += y(2)\n'
    assert list(remarks(python, "hash")) == ["What it is for.", "first second"]
    assert list(remarks("; Copyright 2020\n\n;; A list of all.\n", "lisp")) == ["A list of all."]


def test_no_held_out_text_shares_eight_words_with_training() -> None:
    same = "one two three four five six seven eight"
    texts = [Text(f"{same} and {i}", "a", f"group {i}") for i in range(40)]
    texts += [
        Text(f"text number {i} says that it is like no other {i} text", "b", f"{i}")
        for i in range(200)
    ]
    parts = split(texts)
    assert all(len(found) > 5 for found in parts.values())
    train = {run for text in parts["train"] for run in runs(text.text)}
    for name in ("valid", "test"):
        assert not any(runs(text.text) & train for text in parts[name])
    groups = [{text.group for text in found} for found in parts.values()]
    assert sum(map(len, groups)) == len(set.union(*groups))


def test_held_out_texts_that_occur_elsewhere_are_left_out(tmp_path: Path) -> None:
    texts = [Text(f"it is text {i} and no other text is like this one", "a", "") for i in range(3)]
    (tmp_path / "plain").write_text("He said: It is text 1, and no other text is, he said.\n")
    sets = {"a": {"train": texts, "valid": texts, "test": texts}}
    left = label_sets.without(sets, [tmp_path / "plain"])["a"]
    assert left == {"train": texts, "valid": texts[::2], "test": texts[::2]}


def test_sets_are_tables_and_their_sources_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(label_sets, "Apt", NoApt)
    monkeypatch.setattr(label_sets, "FEWEST", 1)
    monkeypatch.setattr(label_sets, "TOPICS", ("food",))
    monkeypatch.setattr(label_sets, "FAMILIES", {"Free": ("gpl-1",)})
    packages = tmp_path / "packages"
    files = {
        "foo-gtk/usr/share/man/man6/foo.6.gz": PAGE,
        "foo-gtk/usr/share/doc/foo-gtk/copyright": "Files: *\nLicense: MIT\n",
        "fortunes/usr/share/games/fortunes/food": "Never eat more than you can lift.\n%\nShort.\n",
        "base-files/usr/share/common-licenses/GPL-1": "1. You may copy it as often as you like.\n",
    }
    for name, text in files.items():
        path = packages / name
        path.parent.mkdir(parents=True)
        path.write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    label_sets.main([str(tmp_path), "--only", "sections", "manuals", "fortunes", "licences"])
    rows = {
        name: [
            line
            for part in ("train", "valid", "test")
            for line in (tmp_path / name / f"{part}.tsv").read_text().splitlines()[1:]
        ]
        for name in ("sections", "manuals", "fortunes", "licences")
    }
    assert rows == {
        "sections": ["is a game for one player with and seven cards.\tgames"],
        "manuals": ["foo plays cards with you - until foo you stop.\t6"],
        "fortunes": ["Never eat more than you can lift.\tfood"],
        "licences": ["You may copy it as often as you like.\tFree"],
    }
    assert "manuals\tfoo-gtk\t1.2-3\tMIT" in (tmp_path / "SOURCES.tsv").read_text().splitlines()


def test_tags_are_sets_of_labels_and_sizes_are_logarithms() -> None:
    library = {
        "Package": "libfoo1", "Tag": "role::shared-lib, devel::library,\n suite::gnu",
        "Description": "library for playing foo", "Installed-Size": "1000",
    }  # fmt: skip
    plain = {"Package": "bar", "Tag": "suite::gnu", "Description": "a bar", "Installed-Size": "0"}
    expected = Text("library for playing foo", "devel::library; role::shared-lib", "libfoo1")
    assert list(label_sets.tags([library, plain])) == [expected]
    assert list(label_sets.sizes([library, plain])) == [expected._replace(label="3.000")]


def test_a_draw_has_each_text_once() -> None:
    texts = [Text(f"a text with number {i // 2}", f"{i % 2}", "") for i in range(20)]
    texts += [Text("too short", "0", "")]
    found = label_sets.drawn(texts, 6)
    assert len({text.text for text in found}) == len(found) == 6
    assert label_sets.drawn(reversed(texts), 6) == found
    assert "too short" not in {text.text for text in label_sets.drawn(texts, 99)}
