"""The data check: each oddity is found, counted, placed, and called by its level."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from headway.cli.main import main
from headway.data import source as reading
from headway.data.check import check
from headway.data.check_report import Finding, Report, counted
from headway.data.language_id import Profiles
from headway.data.scan import scan_examples
from headway.data.source import DataSource, pair_source
from headway.settings.run import run_settings
from tests.facts import figures, missing

from .conftest import sentences

Write = Callable[[str, list[str]], str]
Pairs = list[tuple[str, str]]
RUN = run_settings({})


@pytest.fixture
def found(write: Write) -> Callable[..., dict[str, Finding]]:
    """Check pairs written to files, and give the findings by name."""

    def run(pairs: Pairs, valid: Pairs | None = None) -> dict[str, Finding]:
        report = report_of(write, pairs, valid)
        names = [finding.name for finding in report.findings]
        return dict(zip(names, report.findings, strict=True))

    return run


def report_of(write: Write, pairs: Pairs, valid: Pairs | None = None) -> Report:
    def files(name: str, pairs: Pairs) -> DataSource:
        source = write(f"{name}.de", [one for one, _ in pairs])
        target = write(f"{name}.en", [other for _, other in pairs])
        return pair_source(RUN, (), (source,), (target,))

    return checked(files("train", pairs), None if valid is None else files("valid", valid))


def checked(training: DataSource, validation: DataSource | None = None) -> Report:
    profiles = Profiles()
    seen = scan_examples(training, profiles=profiles)
    held = None if validation is None else scan_examples(validation, profiles=profiles, learn=False)
    return check(seen, held)


def clean() -> Pairs:
    pairs = sentences()
    random.Random(0).shuffle(pairs)
    return pairs


Found = Callable[..., dict[str, Finding]]


def test_good_pairs_give_no_findings(found: Found) -> None:
    assert found(clean()) == {}
    assert found(clean()[:350], clean()[350:]).keys() <= {"shared-side"}


def test_each_oddity_is_found_with_its_place(found: Found) -> None:
    pairs = clean()
    oddities = {
        "empty": ("  ", "words"),
        "identical": ("Tom and Mary", "Tom and Mary"),
        "replaced": ("Stra\ufffde", "Street number one"),
        "garbled": ("MÃ¤dchen und KÃ¼he", "Girls and cows"),
        "control": ("ein\x07zwei drei", "one two three"),
        "duplicates": pairs[7],
        "ratio": ("Ja.", "This is far too long to be the translation of one short word."),
        "swapped": (pairs[3][1], pairs[3][0]),
        "several-targets": (pairs[5][0].lower().strip("."), "Something else entirely was said."),
    }
    for row, (name, pair) in enumerate(oddities.items(), 20):
        finding = found([*pairs[:row], pair, *pairs[row:]])[name]
        assert finding.count == 1, name
        assert [example.place for example in finding.examples] == [f"train.de:{row + 1}"]
        example = finding.examples[0]
        assert pair[0].startswith(example.source.rstrip("…"))
        assert pair[1].startswith(example.target.rstrip("…"))
        assert max(len(example.source), len(example.target)) <= 60
        assert finding.level != "error"


def test_many_of_something_usual_is_a_warning(found: Found) -> None:
    pairs = clean()
    assert found(pairs + pairs[:10])["duplicates"].level == "note"
    assert found(pairs + pairs[:100])["duplicates"].level == "warning"
    copies = found([(source, source) for source, _ in pairs])
    assert copies["identical"].level == "warning"
    assert copies.keys() == {"identical"}  # neither repeated nor exchanged


def test_a_pair_and_its_reverse_are_two_pairs(found: Found) -> None:
    there_and_back = [("eins zwei", "one two"), ("one two", "eins zwei")]
    assert found(there_and_back) == {}


def test_lengths_that_hardly_vary_make_no_outliers(found: Found) -> None:
    pairs = [(f"wort {i:04}", f"word {i:04}") for i in range(100)]
    assert "ratio" not in found([*pairs, ("wort wort wort wort", "word 1")])
    assert found([*pairs, ("wort " * 12, "word 1")])["ratio"].count == 1


def test_exchanged_files_are_distinguished_from_exchanged_lines(found: Found) -> None:
    pairs = clean()
    swapped = [(target, source) for source, target in pairs[300:]]
    finding = found(pairs[:300], swapped)["swapped"]
    assert not missing(finding.text, finding.count, 100)
    assert finding.count > 80
    lines = found(pairs[:300], swapped[:10] + pairs[310:])["swapped"]
    assert not missing(lines.text, lines.count, 100)
    assert re.sub(r"\d+", "", finding.text) != re.sub(r"\d+", "", lines.text)  # other advice
    few = found(pairs[:300] + swapped[:10])["swapped"]
    assert {example.place for example in few.examples} <= {f"train.de:{n}" for n in range(301, 311)}


def test_validation_pairs_that_training_sees_are_counted(found: Found) -> None:
    pairs = clean()
    held = [*pairs[:4], (pairs[5][0].lower(), "A new one."), ("Etwas Neues.", "Something new.")]
    held.append((pairs[5][0], pairs[6][1]))  # both sides are known, but not as a pair
    findings = found(pairs, held)
    assert findings["overlap"].count == 4
    assert findings["overlap"].level == "warning"
    assert findings["shared-side"].count == 2
    assert findings["overlap"].examples[0].place == "valid.de:1"


def test_only_what_makes_training_impossible_is_an_error(found: Found, write: Write) -> None:
    def errors(pairs: Pairs, valid: Pairs | None = None) -> list[str]:
        return [f.name for f in found(pairs, valid).values() if f.level == "error"]

    assert errors([]) == ["no-pairs"]
    assert errors([("a", ""), ("", "b")]) == ["no-pairs"]
    assert errors(clean(), []) == ["no-pairs"]
    assert errors([("Ja.", "Yes.")] * 50) == ["one-pair"]
    assert errors([("Ja.", "Yes.")] * 50, clean()) == []
    assert errors([("a", "b"), ("a", "b"), ("c", "d")]) == []
    source = write("a.de", ["eins", "zwei", "drei"])
    target = write("a.en", ["one", "two"])
    report = checked(pair_source(RUN, (), (source,), (target,)))
    assert report.impossible
    assert report.n_pairs == 2
    assert report.findings[0].name == "unequal"
    assert not missing(report.findings[0].text, source, 3, target, 2)


def test_several_files_and_headers_keep_their_own_line_numbers(write: Write) -> None:
    one = write("one.tsv", [f"{a}\t{b}" for a, b in clean()[:5]])
    two = write("two.tsv", ["source\ttarget", "gut gemacht\twell done", "leer\t"])
    report = checked(pair_source(RUN, (one, two), (), ()))
    (finding,) = report.findings
    assert finding.examples[0].place == "two.tsv:3"


def test_the_size_of_the_blocks_does_not_matter(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = clean()
    pairs[100:100] = [("", "x"), pairs[7], ("a\ufffd", "b"), ("Tom", "Tom")]
    whole = report_of(write, pairs, pairs[50:60])
    monkeypatch.setattr(reading, "BLOCK", 7)
    small = report_of(write, pairs, pairs[50:60])
    assert whole.to_dict() == small.to_dict()
    assert len(whole.findings) > 4


def test_a_report_survives_json_and_reads_well(write: Write) -> None:
    pairs = clean()
    pairs[1] = ("", "x")
    report = report_of(write, pairs, pairs[3:6])
    report.over_long = {64: 3}
    stored = json.loads(json.dumps(report.to_dict()))
    assert Report.from_dict(stored) == report
    counts, *lines = report.lines()
    assert not missing(counts, 400, 3)
    assert any(not missing(line, 3, 64) for line in lines)
    place = lines.index("    train.de:2: '' | 'x'")
    assert not missing(lines[place - 1], "warning", 1, 400)
    counts, nothing = Report(n_pairs=5).lines()
    assert not missing(counts, 5)
    assert not figures(nothing)


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (["p.tsv"], ["--valid"]),
        (["--pairs", "p.tsv"], ["--valid-pairs"]),
        (["--source", "a", "--target", "b"], ["--valid-source", "--valid-target"]),
    ],
)
def test_the_missing_option_for_validation_data_matches_the_given_options(
    words: list[str], options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    for name, text in (("p.tsv", "ja\tyes\n"), ("a", "ja\n"), ("b", "yes\n")):
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert main(["check", "translate", *words]) == 2
    shown = capsys.readouterr().out
    assert not missing(shown, 1)
    known = ["--valid", "--valid-pairs", "--valid-source", "--valid-target"]
    assert [option for option in known if not missing(shown, option)] == options


def test_one_is_counted_as_one() -> None:
    assert counted(1, "pairs", "validation ") == "1 validation pair"
    assert counted(1200, "texts") == "1,200 texts"
