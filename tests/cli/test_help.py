"""The help of every command lists its options."""

from __future__ import annotations

import re

import pytest

from headway.cli.flags import DECODING
from headway.cli.main import _parser, main

COMMANDS = {name: one for name, one in _parser().commands.items() if not one.hidden}
WITH_A_RUN = {flag.word for flag in DECODING}
"""Options that only the help of a run shows, see `test_flags`."""


@pytest.mark.parametrize("command", COMMANDS)
def test_help_lists_every_option(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    listed = set(re.findall(r"--[a-z][a-z0-9-]*", capsys.readouterr().out))
    declared = {param.opts[0] for param in COMMANDS[command].params if param.opts[0][:2] == "--"}
    assert declared - WITH_A_RUN <= listed


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    listed = set(re.findall(r"^  ([a-z]+) ", capsys.readouterr().out, re.MULTILINE))
    assert listed == set(COMMANDS)
