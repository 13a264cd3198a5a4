from __future__ import annotations

from pathlib import Path

import pytest

from headway.cli.main import main


def test_scenes_are_made_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "make",
        "shapes",
        "--out",
        str(tmp_path / "s"),
        "--n",
        "4",
        "--valid",
        "1",
        "--test",
        "2",
    ]
    assert main(words) == 0
    first = capsys.readouterr().out
    assert "train.jsonl" in first
    assert main(words) == 0
    assert "there already" in capsys.readouterr().out
    assert main([*words, "--seed", "1"]) == 2
    assert "other settings" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["shape"], "Did you mean 'shapes'?"),
        (["shapes", "--frames", "8"], "has no --frames"),
        (["digits"], "needs --recordings"),
        (["moving", "--frames", "1"], "frames=1 must be from 4"),
    ],
)
def test_what_cannot_be_made_is_named(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["make", *words, "--out", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
