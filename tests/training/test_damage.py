"""A flipped bit or a cut in any file that is read from a run folder is found before it is used, in
finished runs, in prepared data and in data that is half made; nobody learns from it in silence."""

from __future__ import annotations

import io
import json
import os
import random
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headway.cli.main import main
from headway.data import encode, source
from headway.data import prepare as preparing
from headway.data.prepare import prepare
from headway.data.store import load_prepared
from headway.errors import DataError, FolderError, UserError
from headway.models.folder import load_model
from headway.progress import Progress
from headway.settings.folder import file_in, load_run
from headway.settings.run import run_settings
from headway.storage import read_json, seal_json
from headway.tasks.loaded_run import open_plain

EDGE = 8 * 120
"""Bits at both ends, where checksums stand: all are tried."""

WORDS = ["the", "old", "red", "häuser", "tree", "dog", "cat", "sees", "finds", "never", "here"]


def damages(data: bytes, flips: int, cuts: int) -> Iterator[bytes]:
    """The content with one flipped bit, or cut; of many bits a sample."""
    draw = random.Random(0)
    bits = draw.sample(range(8 * len(data)), min(flips, 8 * len(data)))
    if flips > 100:
        bits += [
            *range(min(EDGE, 8 * len(data))),
            *range(max(0, 8 * len(data) - EDGE), 8 * len(data)),
        ]
    for bit in bits:
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        yield bytes(changed)
    yield from (data[:size] for size in {0, 1, len(data) - 1})
    yield from (data[: draw.randrange(len(data))] for _ in range(cuts))


def lines(n: int) -> list[str]:
    draw = random.Random(1)
    return [" ".join(draw.choices(WORDS, k=draw.randint(3, 8))) for _ in range(n)]


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("files")
    (folder / "a").write_text("".join(line + "\n" for line in lines(60)))
    (folder / "b").write_text("".join(line[::-1] + "\n" for line in lines(60)))
    return [
        "train", "translate", "--source", str(folder / "a"), "--target", str(folder / "b"),
        "--device", "cpu", "model.preset=transformer-test", "tokenizer.kind=words",
        "train.steps=2", "train.batch_tokens=50", "train.metric=loss", "data.valid_size=8",
        "decode.max_len=8",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, command: list[str]) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    assert main([*command, "--out", str(out)]) == 0
    return out


@pytest.fixture
def run(tmp_path: Path, trained: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def not_found(
    path: Path, use: Callable[[], object], error: type[Exception], flips: int, cuts: int
) -> list[int]:
    """The numbers of the damages that `use` did not refuse, naming the file."""
    data, missed = path.read_bytes(), []
    for i, content in enumerate(damages(data, flips, cuts)):
        path.write_bytes(content)
        try:
            use()
            missed.append(i)
        except error as refused:
            missed += [i] * (path.name not in str(refused))
    path.write_bytes(data)
    return missed


def test_a_damaged_file_of_a_finished_run_is_named(run: Path) -> None:
    for name in ("config.toml", "tokenizer.json", "model.safetensors"):
        use = partial(open_plain, str(run))
        assert not_found(run / name, use, UserError, flips=16, cuts=4) == [], name
    open_plain(str(run))


@pytest.mark.parametrize(("name", "flips"), [("config.toml", 150), ("tokenizer.json", 100)])
def test_no_damage_of_settings_and_tokenizer_gets_to_a_reader(
    run: Path, name: str, flips: int
) -> None:
    """All ask for the file by `file_in`."""
    assert not_found(run / name, lambda: file_in(run, name), FolderError, flips, 30) == []


def test_the_header_of_the_weights_is_guarded_too(run: Path) -> None:
    """The checksum in it is of the tensors; the notes beside them count as well."""
    path = run / "model.safetensors"
    data = path.read_bytes()
    for note in (b'"format":"pt"', b'"sha256":"'):
        where = data.index(note)
        for at in range(where + 1, where + len(note) - 3):
            path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
            with pytest.raises(FolderError, match=r"model\.safetensors"):
                load_model(run)


@pytest.mark.slow
def test_every_bit_of_a_run_and_of_its_data(run: Path) -> None:
    for path in [run / "config.toml", *sorted((run / "data").iterdir())]:
        use = partial(load_run if path.name == "config.toml" else load_prepared, run)
        size = path.stat().st_size
        assert not_found(path, use, UserError, 8 * size, size) == [], path.name


def test_damaged_prepared_data_is_found_and_made_again(run: Path, command: list[str]) -> None:
    whole = load_prepared(run)
    for path in sorted((run / "data").iterdir()):
        flips = 100 if path.name == "manifest.json" else 5
        assert not_found(path, partial(load_prepared, run), DataError, flips, 5) == [], path
    (run / "data" / "train.source.tokens").write_bytes(b"")
    found = io.StringIO()
    source, target = (command[command.index(name) + 1] for name in ("--source", "--target"))
    settings = load_run(run)
    settings = replace(settings, data=replace(settings.data, source=(source,), target=(target,)))
    again = prepare(settings, run, Progress(stream=found))
    assert again.fingerprint == whole.fingerprint
    assert re.search(r"train\.source\.tokens\b.*\b0\b", found.getvalue())


def test_a_run_resumes_with_files_that_can_be_rebuilt(
    run: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = (run / "tokenizer.json").read_bytes()
    (run / "tokenizer.json").write_bytes(words.replace(b"tree", b"trfe"))
    assert main([*command, "--out", str(run)]) == 0
    assert str(run / "tokenizer.json") in capsys.readouterr().err
    assert (run / "tokenizer.json").read_bytes() == words
    config = (run / "config.toml").read_bytes()
    (run / "config.toml").write_bytes(config.replace(b"beam = ", b"beam = 1"))
    assert main([*command, "--out", str(run)]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert str(run / "config.toml") in last
    assert "# sha256" in last


def test_a_change_by_hand_is_kept_when_its_checksum_is_deleted(run: Path) -> None:
    path = run / "config.toml"
    beam = load_run(run).decode.beam
    text = path.read_text().replace(f"beam = {beam}", "beam = 7")
    path.write_text(text)
    with pytest.raises(FolderError, match=r"/config\.toml\b.*# sha256"):
        load_run(run)
    path.write_text(text.partition("\n")[2])
    assert load_run(run).decode.beam == 7
    file_in(run, "tokenizer.json")  # which has a line of its own
    words = (run / "tokenizer.json").read_text()
    (run / "tokenizer.json").write_text(words + "\n")
    with pytest.raises(FolderError, match=r"/tokenizer\.json\b.*# sha256.*config\.toml"):
        open_plain(str(run))
    path.write_text("".join(f"{x}\n" for x in text.split("\n")[:-1] if "# sha256" not in x))
    open_plain(str(run))


def test_settings_that_were_changed_may_be_a_recipe(
    run: Path, command: list[str], tmp_path: Path
) -> None:
    path = run / "config.toml"
    path.write_text(path.read_text().replace('metric = "loss"', 'metric = "loss" # mine'))
    words = [word for word in command[2:] if "=" not in word]
    assert main(["train", "--recipe", str(path), *words, "--out", str(tmp_path / "new")]) == 0


# Data that is half made


class Killed(BaseException):
    pass


@pytest.fixture(scope="module")
def half_made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path, dict[str, bytes]]:
    """Settings; a folder whose preparation was killed; and what comes out without a kill."""
    folder = tmp_path_factory.mktemp("half")
    (folder / "a.tsv").write_text("".join(f"{x}\t{'yn'[i % 2]}\n" for i, x in enumerate(lines(90))))
    data = {"text": [str(folder / "a.tsv")], "valid_size": 10}
    settings = run_settings({"task": "classify", "data": data, "tokenizer": {"kind": "characters"}})
    add = encode.DatasetWriter._add

    def dying(self: Any, *block: Any) -> None:
        if self.count.blocks == 4:
            self.files.sync()
            raise Killed
        add(self, *block)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "BLOCK", 12)
        patch.setattr(preparing, "RECORD_SECONDS", 0)
        prepare(settings, folder / "whole")
        patch.setattr(encode.DatasetWriter, "_add", dying)
        with pytest.raises(Killed):
            prepare(settings, folder / "run")
    contents = {path.name: path.read_bytes() for path in (folder / "whole" / "data").iterdir()}
    return settings, folder / "run", contents


def test_damaged_half_made_data_is_made_again(
    half_made: tuple[Any, Path, dict[str, bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, killed, whole = half_made
    monkeypatch.setattr(source, "BLOCK", 12)
    monkeypatch.setattr(os, "fsync", lambda handle: None)  # which takes nearly all of the time
    files = [path for path in sorted(killed.rglob("*")) if path.is_file()]
    assert {path.name for path in files} >= {
        "held_out.npy", "plan.json", "record.json", "tokenizer.json", "wanted.json",
        "train.text.tokens", "train.label", "valid.jsonl",
    }  # fmt: skip
    for path in files:
        for i, content in enumerate(damages(path.read_bytes(), flips=3, cuts=1)):
            out, result = tmp_path / "run", io.StringIO()
            shutil.rmtree(out, ignore_errors=True)
            shutil.copytree(killed, out)
            (out / path.relative_to(killed)).write_bytes(content)
            prepare(settings, out, Progress(stream=result))
            made = {path.name: path.read_bytes() for path in (out / "data").iterdir()}
            assert made == whole, (path.name, i)
            if len(content) == path.stat().st_size:
                found = result.getvalue().splitlines()
                assert any(path.name in line for line in found), found


# One file


@pytest.mark.parametrize("indent", [None, 1])
def test_a_json_file_with_a_checksum(tmp_path: Path, indent: int | None) -> None:
    values = {"maps": {"ä": [1, 2.5, None]}, "sha": "\\u00e9", "last": {"n": 1}}
    path = tmp_path / "truth.json"
    text = json.dumps(values, indent=indent)
    path.write_text(text)
    assert read_json(path) == values  # without a checksum
    path.write_text(seal_json(text))
    assert read_json(path) == values
    data = path.read_bytes()
    assert json.loads(data).keys() == {*values, "sha256"}  # for other readers it is one more entry
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        with pytest.raises((FolderError, ValueError)):
            read_json(path)
    for size in range(len(data)):
        path.write_bytes(data[:size])
        with pytest.raises((FolderError, ValueError)):
            read_json(path)
