"""What another run has decided is not asked again: settings without effect are an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.cli.main import main
from headway.errors import ConfigError
from headway.settings.run import run_settings
from headway.training.check_settings import check_implied
from tests.facts import missing


def error_of(task: str = "classify", **values: object) -> str:
    with pytest.raises(ConfigError) as caught:
        check_implied(run_settings({"task": task, "data": {"text": ["a.tsv"]}, **values}))
    return str(caught.value)


def test_settings_of_an_inherited_vocabulary_are_an_error() -> None:
    error = error_of(start={"run": "runs/base"}, tokenizer={"vocab_size": 300})
    assert not missing(error, "tokenizer.vocab_size start=")
    error = error_of(distil={"teacher": "runs/big"}, tokenizer={"kind": "characters"})
    assert not missing(error, "tokenizer.kind teacher=")


def test_a_student_has_one_beginning() -> None:
    assert "start=" in error_of(start={"run": "a"}, distil={"teacher": "b"})


def test_low_rank_changes_need_something_to_change() -> None:
    assert not missing(error_of("complete", lora={"rank": 8}), "lora.rank start=…")


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (["--beam", "2", "--stream"], "--stream --n-best --beam 1"),
        (["--alignments"], "--alignments complete"),
        (["--to", "x.npy"], "--to complete"),
    ],
)
def test_options_of_other_tasks_are_an_error(
    words: list[str], facts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "in.txt"
    file.write_text("Once\n")
    assert main(["predict", "stories", str(file), *words]) == 2
    assert not missing(capsys.readouterr().err, facts)
