from __future__ import annotations

import pytest

from headway.cli.main import main


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["shapes", "--out", "s", "--n", "4"], "python examples/make_shapes.py --out shapes"),
        (["digits", "--recordings", "a.flac"], "python examples/make_digits.py --out digits"),
        (["shape"], "Did you mean 'shapes'?"),
    ],
)
def test_who_wants_data_made_is_told_the_program(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["make", *words]) == 2
    assert message in capsys.readouterr().err
