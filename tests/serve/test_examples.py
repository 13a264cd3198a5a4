"""The examples of a container and of a service say what the command understands."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headway.cli.main import _parser
from headway.serve.application import ROUTES
from headway.serve.limits import Limits

EXAMPLES = Path(__file__).parents[2] / "examples/serve"
UNIT = (EXAMPLES / "headway.service").read_text()
CONTAINER = (EXAMPLES / "Containerfile").read_text()


def understood(words: list[str]) -> dict[str, Any]:
    """The options of `headway serve …` as the command reads them."""
    assert words[:2] == ["headway", "serve"]
    command = _parser().commands["serve"]
    return dict(command.make_context("serve", words[2:]).params)


def test_the_service_starts_what_there_is_and_waits_for_the_drain() -> None:
    [line] = re.findall(r"^ExecStart=(.*)$", UNIT, re.M)
    words = shlex.split(line)
    found = understood(["headway", *words[1:]])
    assert (found["host"], found["port"]) == ("0.0.0.0", 8080)
    assert found["key_file"].name in re.findall(r"^LoadCredential=([^:]+):", UNIT, re.M)
    [stop] = re.findall(r"^TimeoutStopSec=(\d+)$", UNIT, re.M)
    [drain] = re.findall(r"serve\.drain=(\d+)", line)
    assert int(stop) > int(drain)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here")
def test_systemd_reads_the_service(tmp_path: Path) -> None:
    place = tmp_path / "headway.service"
    place.write_text(re.sub(r"(?<=^ExecStart=)\S+", sys.executable, UNIT, flags=re.M))
    found = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", place], capture_output=True, text=True, timeout=60
    )
    assert "headway.service" not in found.stderr, found.stderr


def test_the_container_starts_what_there_is() -> None:
    [entry] = re.findall(r"^ENTRYPOINT (.*)$", CONTAINER, re.M)
    found = understood([*json.loads(entry), "/runs/de-en"])
    assert (found["host"], str(found["key_file"])) == ("0.0.0.0", "/keys.txt")
    [checked] = re.findall(r"127\.0\.0\.1:8080(/\w+)", CONTAINER)
    assert any(route.path == checked and route.is_public for route in ROUTES)
    [stop] = re.findall(r"--stop-timeout (\d+)", CONTAINER)
    assert int(stop) > Limits().drain


def test_the_container_can_read_its_keys_and_its_layers_hold_none() -> None:
    """A file of keys is its owner's alone, and in the container another user reads it."""
    [user] = re.findall(r"useradd .*--uid (\d+)", CONTAINER)
    [secret] = re.findall(r"--secret (\S+)", CONTAINER)
    assert {f"uid={user}", "target=/keys.txt"} <= set(secret.split(","))
    assert "-v ./keys.txt" not in CONTAINER
    left_out = (EXAMPLES.parents[1] / ".containerignore").read_text().split("\n")
    assert {".git", ".venv", "**/keys*.txt", "runs*"} <= set(left_out)
    [build] = re.findall(r"^# (podman build .*)$", CONTAINER, re.M)
    assert ("HEALTHCHECK" in CONTAINER) == ("--format docker" in build)  # else it is left out
