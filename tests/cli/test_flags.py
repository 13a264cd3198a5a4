"""Options come from what tasks declare: columns name columns, help shows what fits, and every flag
there ever was works or has a hint."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from headway.cli.flags import COLUMNS, DECODING
from headway.cli.main import _called_here, _parser, main
from headway.settings.decode import DecodeSettings
from headway.settings.field_docs import documented
from headway.settings.folder import load_run, shipped_names
from headway.settings.task_rows import spec_of
from headway.specs.options import OPTIONS
from headway.specs.task_settings import ClassifySettings
from headway.specs.tasks import SPECS
from tests.facts import missing

Output = pytest.CaptureFixture[str]
OLD = json.loads((Path(__file__).parent / "old_flags.json").read_text())


def helped(*words: str, capsys: Output) -> str:
    assert main([*words, "--help"]) == 0
    return capsys.readouterr().out


def flags(text: str) -> set[str]:
    return set(re.findall(r"^  (--[a-z0-9-]+)", text.split("\nOptions:")[1], re.MULTILINE))


@pytest.mark.parametrize("run", shipped_names())
def test_the_help_of_a_run_shows_its_options_and_no_others(run: str, capsys: Output) -> None:
    shown = flags(helped("predict", run, capsys=capsys))
    spec = spec_of(load_run(run))
    assert ("--text" in shown) == (spec.modality == "text")
    for names, fitting in ((OPTIONS.keys(), spec.options), (
        {field.name for field in fields(DecodeSettings)}, spec.decode
    )):  # fmt: skip
        words = {f"--{name.replace('_', '-')}" for name in names}
        assert shown & words == {f"--{name.replace('_', '-')}" for name in fitting}


def test_the_help_of_a_run_shows_its_settings_and_loads_no_torch() -> None:
    code = (
        "import sys\nfrom headway.cli.main import main\n"
        "main(['predict', '--device', 'cpu', 'stories', '--help'])\n"
        "main(['train', 'classify', '--help'])\nprint('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout.endswith("False\n"), done.stderr
    printed = " ".join(done.stdout.split())
    helps = {flag.name: flag.help for flag in DECODING}
    temperature = load_run("stories").decode.temperature
    assert f"--temperature NUMBER {helps['temperature']} [{temperature}]" in printed
    assert "--on-long" not in printed
    assert f"--stop TEXT {helps['stop']} [none]" in printed
    assert f"balance {documented(ClassifySettings)['balance']} [false]" in printed


@pytest.mark.parametrize("command", ["predict", "train", "check", "evaluate"])
def test_help_without_a_run_or_a_task_has_a_line_for_each_task(
    command: str, capsys: Output
) -> None:
    found = helped(command, capsys=capsys)
    common, _, table = found.rpartition(f"headway {command} ")
    assert [line.split()[0] for line in table.splitlines()[1:] if re.match(r"  [a-z]", line)] == [
        *SPECS
    ]
    shown = flags(common)
    assert not shown & {"--label", "--source", "--image"}
    assert not shown & {flag.word for flag in DECODING if flag.name != "precision"}


@pytest.mark.parametrize("task", SPECS)
def test_training_has_an_option_for_each_column_that_a_task_needs(
    task: str, capsys: Output
) -> None:
    shown = flags(helped("train", task, capsys=capsys))
    fitting = {flag.word for flag in COLUMNS if any(map(flag.fits, SPECS[task].rows))}
    assert shown & {flag.word for flag in COLUMNS} == fitting
    for row in SPECS[task].rows:
        for need in row.needs:
            assert need.name == "path" or f"--{need.name}" in shown


def test_help_of_an_unknown_run_is_an_error(capsys: Output) -> None:
    assert main(["predict", "nowhere", "--help"]) == 2
    assert not missing(capsys.readouterr().err, "nowhere tatoeba-de-en")


@pytest.mark.parametrize("command", OLD)
def test_every_old_option_works_or_has_a_hint(command: str, capsys: Output) -> None:
    known = _parser().commands
    assert command in known, f"headway {command} is gone"
    if known[command].hidden:  # no command any more
        assert main([command, "shapes", *OLD[command]]) == 2
        assert "python examples/" in capsys.readouterr().err
        return
    words = {word for param in known[command].params for word in (*param.opts,
             *param.secondary_opts)}  # fmt: skip
    for option in OLD[command]:
        answer = _called_here(option, [command, option, "x"])
        assert option in words or answer is not None, f"headway {command} {option}"


REVIEWS = "".join(
    f"{i},the film {i} was {'fine' if i % 2 else 'bad'},{i % 2},x\n" for i in range(60)
)


@pytest.fixture
def reviews(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("reviews.csv").write_text("id,review,stars,text\n" + REVIEWS)
    return tmp_path


def test_with_files_options_name_columns(reviews: Path, capsys: Output) -> None:
    assert main(["check", "classify", "reviews.csv", "--text", "review", "--label", "stars"]) == 0
    printed = capsys.readouterr().out
    assert 'review → text    text    "the film 0 was bad"' in printed
    assert "stars  → label" in printed


def test_without_files_options_name_files_except_for_labels(reviews: Path, capsys: Output) -> None:
    words = ["data.text_field=review", "--label", "stars"]
    assert main(["check", "classify", "--text", "reviews.csv", *words]) == 0
    assert "stars  → label" in capsys.readouterr().out


def test_sides_of_pairs_are_columns(reviews: Path, capsys: Output) -> None:
    words = ["--source", "review", "--target", "text"]
    assert main(["check", "translate", "--pairs", "reviews.csv", *words]) in (0, 2)
    printed = capsys.readouterr().out
    assert "review → source" in printed
    assert "text   → target" in printed


def test_what_is_trained_keeps_its_columns_and_is_scored_on_files(
    reviews: Path, capsys: Output
) -> None:
    words = ["reviews.csv", "--text", "review", "--label", "stars"]
    tiny = [
        "model.preset=encoder-test",
        "train.steps=2",
        "train.batch_tokens=64",
        "--device",
        "cpu",
    ]
    valid = ["--valid", "reviews.csv", "--encoding", "latin-1"]
    assert (
        main(["train", "classify", *words, *valid, *tiny, "--device", "cpu", "--out", "run"]) == 0
    )
    settings = load_run("run")
    assert settings.asked.origin("data.text_field").text == "headway train"
    assert settings.asked.origin("data.encoding").text == "--encoding"
    assert (settings.data.text_field, settings.data.label_field) == ("review", "stars")
    assert settings.data.valid_text == ("reviews.csv",)
    capsys.readouterr()
    other = "number,stars,words\n" + "".join(f"{i},{i % 2},film {i}\n" for i in range(8))
    Path("test.csv").write_text(other)
    for given in (["reviews.csv"], ["--text", "reviews.csv"]):
        assert main(["evaluate", "run", *given, "--json", "--device", "cpu"]) == 0
        assert json.loads(capsys.readouterr().out)["n"] == 60
    assert main(["evaluate", "run", "test.csv", "--text", "words", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["n"] == 8


def test_a_setting_of_decoding_is_an_option(capsys: Output) -> None:
    words = ["predict", "stories", "--text", "Once", "--device", "cpu"]
    found = []
    for more in (["--max-len", "4"], ["decode.max_len=4"], ["--max-len", "9", "--seed", "7"]):
        assert main([*words, *more]) == 0
        found.append(capsys.readouterr().out)
    assert found[0] == found[1] != found[2]
    assert main(["predict", "digits", "x.wav", "--stop", "a"]) == 2
    assert not missing(capsys.readouterr().err, "--stop transcribe")
    assert main([*words, "--unknown", "bann"]) == 2
    assert not missing(capsys.readouterr().err, "bann ban")
