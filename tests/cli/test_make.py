from __future__ import annotations

import pytest

from headway.cli.main import main
from tests.facts import missing


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (["shapes", "--out", "s", "--n", "4"], "`python examples/make_shapes.py --out shapes`"),
        (["digits", "--recordings", "a.flac"], "`python examples/make_digits.py --out digits`"),
        (["shape"], "shapes"),
    ],
)
def test_the_old_command_names_the_program(
    words: list[str], facts: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["make", *words]) == 2
    assert not missing(capsys.readouterr().err, facts)
