"""What another run has decided is not asked again: settings without effect are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.cli.main import main
from headway.errors import ConfigError
from headway.settings.run import run_settings
from headway.training.arguments import check_beginning


def refusal(task: str = "classify", **values: object) -> str:
    settings = run_settings({"task": task, "data": {"text": ["a.tsv"]}, **values})
    with pytest.raises(ConfigError) as caught:
        check_beginning(settings)
    return str(caught.value)


def test_a_vocabulary_is_that_of_the_run_one_starts_from() -> None:
    said = refusal(start={"run": "runs/base"}, tokenizer={"vocab_size": 300})
    assert said.startswith("tokenizer.vocab_size has no effect: the vocabulary is that of runs/bas")
    said = refusal(distil={"teacher": "runs/big"}, tokenizer={"kind": "characters"})
    assert said.startswith("tokenizer.kind has no effect: the vocabulary is that of runs/big")


def test_a_student_has_one_beginning() -> None:
    assert "leave --from out" in refusal(start={"run": "a"}, distil={"teacher": "b"})


def test_low_rank_changes_need_something_to_change() -> None:
    said = refusal("complete", lora={"rank": 8})
    assert "lora.rank" in said
    assert "--from RUN" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--beam", "2", "--stream"], "--stream shows one text while it is written"),
        (["--alignments"], "--alignments has no effect on a run of the task complete."),
        (["--to", "x.npy"], "--to has no effect on a run of the task complete."),
    ],
)
def test_options_of_other_tasks_are_refused(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "in.txt"
    file.write_text("Once\n")
    assert main(["predict", "stories", str(file), *words]) == 2
    assert message in capsys.readouterr().err
