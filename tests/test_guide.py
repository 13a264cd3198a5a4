"""The guide is true: every program prints the output below it, and every image is there."""

from __future__ import annotations

import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
CHAPTERS = sorted((DOCS / "look" / "guide").glob("[0-9]*.md"))
PROGRAM = re.compile(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAMES = (
    "look/python", "look/lens", "look/maps", "look/heads", "look/factors", "look/beam",
    "start/python", "start/five-minutes", "start/install", "start/cookbook",
    "start/coming-from-hugging-face", "tour",
    "tasks/translate", "tasks/complete", "tasks/embed", "tasks/decoding",
    "tasks/caption", "tasks/transcribe", "tasks/data", "tasks/metrics",
    "models/base-en", "models/families", "models/tokenizers",
)  # fmt: skip
PAGES = [DOCS / f"{name}.md" for name in NAMES]
PROGRAMS = [
    pytest.param(match[1], match[2], id=f"{path.name}: {number}")
    for path in [*CHAPTERS, *PAGES]
    for number, match in enumerate(PROGRAM.finditer(path.read_text()), 1)
]
NUMBER = re.compile(r"-?\d+\.\d+")
MOST_IMAGE, MOST_IMAGES = 120_000, 8_000_000


@pytest.mark.parametrize(("program", "shown"), PROGRAMS)
def test_a_program_of_the_guide_prints_the_output_below_it(
    program: str, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(DOCS.parent / "examples")
    printed = StringIO()
    with redirect_stdout(printed):
        exec(compile(program, "the guide", "exec"), {"__name__": "__guide__"})
    assert_alike("".join(line.rstrip() + "\n" for line in printed.getvalue().splitlines()), shown)


def assert_alike(printed: str, shown: str) -> None:
    """Equal, but for what another processor may do to the last digit that is shown."""
    assert NUMBER.sub("…", printed) == NUMBER.sub("…", shown), printed
    for one, other in zip(NUMBER.findall(printed), NUMBER.findall(shown), strict=True):
        digit = 10.0 ** -len(other.partition(".")[2])
        assert float(one) == pytest.approx(float(other), abs=max(2e-3, 1.01 * digit)), printed


def test_numbers_may_differ_in_their_last_digit_and_nothing_else_may() -> None:
    assert_alike("loss 3.02 of 16\n", "loss 3.03 of 16\n")
    for wrong in ("loss 3.05 of 16\n", "loss 3.03 of 17\n", "lost 3.03 of 16\n"):
        with pytest.raises(AssertionError):
            assert_alike(wrong, "loss 3.03 of 16\n")


def test_there_are_ten_chapters_and_a_tutorial_for_every_question() -> None:
    assert [path.name[:2] for path in CHAPTERS] == [f"{n:02}" for n in range(1, 11)]
    questions = re.findall(r"^## .*\?$", (DOCS / "look" / "python.md").read_text(), re.MULTILINE)
    assert len(questions) >= 7
    assert len(PROGRAMS) >= len(CHAPTERS) + len(questions)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_every_program_of_a_page_is_run(path: Path) -> None:
    """One that needs more than what is shipped is marked py, not python."""
    text = path.read_text()
    assert len(PROGRAM.findall(text)) == text.count("```python\n") >= 1


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_a_chapter_has_a_question_a_program_an_image_and_an_answer(path: Path) -> None:
    text = path.read_text()
    assert re.match(r"# \d+\. .*\n\n\*\*.*\?\*\*\n", text)
    assert len(PROGRAM.findall(text)) == text.count("```python") == 1
    shown = r'!\[.+\]\(\.\./\.\./images/.*\.png\)|<img src="\.\./\.\./images/.*\.png"'
    assert len(re.findall(shown, text)) == 1
    assert text.count("\n**Answer.** ") == 1
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    assert 300 <= len(prose.split()) <= 600


def test_images_are_small_and_all_of_them_are_used() -> None:
    images = {path.name: path.stat().st_size for path in (DOCS / "images").glob("*.png")}
    pages = [DOCS.parent / "README.md", *DOCS.rglob("*.md")]
    text = "".join(path.read_text() for path in pages)
    assert [name for name in images if not re.search(rf'images/{name}[)"]', text)] == []
    assert max(images.values()) <= MOST_IMAGE
    assert sum(images.values()) <= MOST_IMAGES
