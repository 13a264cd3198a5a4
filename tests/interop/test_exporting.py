"""From a run to a folder: whole or not at all, proved, and what is said to mistakes."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from headway.cli.main import main
from headway.errors import FolderError
from headway.interop import exporting
from headway.interop.exporting import export_run
from headway.interop.proof import Proof, compared
from headway.interop.proof_inputs import compute_cases, proof_items
from headway.tasks.loaded_run import LoadedRun, open_plain, open_run

from ..facts import missing
from .ours import save_run, settings_of

Output = pytest.CaptureFixture[str]


class Copy(ModuleType):
    """A target that writes one file and says what we say, a little off."""

    off, breaks = 0.0, False

    def on_write(self) -> None:
        """Called while it writes."""

    def write(self, run: LoadedRun, out: Path, *, int8: bool) -> None:
        (out / "model").write_text("int8" if int8 else "fp32")
        self.on_write()
        if self.breaks:
            raise OSError(28, "disk-full")

    def prove(self, run: LoadedRun, out: Path, sentences: Sequence[str], *, int8: bool) -> Proof:
        assert (out / "model").is_file()
        self.sentences, self.proved = sentences, run
        ours = compute_cases(run, proof_items(run, sentences))
        return compared("copy", ours, [np.array(r.scores + self.off) for r in ours])


@pytest.fixture
def copy(monkeypatch: pytest.MonkeyPatch) -> Copy:
    module = Copy("copy")
    monkeypatch.setitem(sys.modules, "copy_target", module)
    monkeypatch.setitem(exporting.TARGETS, "copy", "copy_target")
    return module


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    return save_run(folder, settings_of("decoder", "complete"))


def test_the_command_prints_the_proof_and_its_exit_code_is_the_verdict(
    run: Path,
    copy: Copy,
    tmp_path: Path,
    capsys: Output,
    monkeypatch: pytest.MonkeyPatch,
    slow: Any,
) -> None:
    monkeypatch.setattr("headway.cli.export.Progress", lambda: slow)
    copy.on_write = slow.tick  # type: ignore[method-assign]
    out = tmp_path / "deep" / "out"
    words = ["export", str(run), "--to", "copy", "--out", str(out)]
    assert main(words) == 0
    printed = capsys.readouterr()
    assert not missing(printed.out, "16", str(out))
    assert str(out) in slow.stream.getvalue()
    assert json.loads((out / "proof.json").read_text())["passed"] is True
    assert sorted(path.name for path in out.parent.iterdir()) == ["out"]
    copy.off = 0.1
    words[-1] = str(tmp_path / "other")
    assert main(words) == 1
    assert not missing(capsys.readouterr().out, "0.1")
    assert json.loads((tmp_path / "other" / "proof.json").read_text())["passed"] is False


def test_sentences_of_the_user_are_part_of_the_proof(run: Path, copy: Copy, tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    file.write_text("a dog\n\nthe wet grass\n")
    words = ["export", str(run), "--to", "copy", "--out", str(tmp_path / "out")]
    assert main([*words, "--sentences", str(file)]) == 0
    assert list(copy.sentences[:2]) == ["a dog", "the wet grass"]
    assert len(copy.sentences) == 16


def test_an_empty_folder_is_filled_and_a_full_one_is_left_alone(
    run: Path, copy: Copy, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    export_run(str(run), "copy", out)
    with pytest.raises(FolderError, match=rf"{out}\b.*out="):
        export_run(str(run), "copy", out)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(FolderError, match=rf"{tmp_path}/file\b.*out="):
        export_run(str(run), "copy", tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


def test_what_is_open_is_exported_as_it_was_saved(run: Path, copy: Copy, tmp_path: Path) -> None:
    """Also where it is held in fewer bits to answer."""
    for precision in ("fp32", "int8"):
        opened = open_run(run, device="cpu", precision=precision)
        export_run(opened, "copy", tmp_path / precision)
        assert copy.proved.model is not opened.model
        for name, weight in open_plain(run).model.state_dict().items():
            assert torch.equal(copy.proved.model.state_dict()[name], weight)


def test_the_current_folder_is_not_replaced(
    run: Path, copy: Copy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(FolderError, match=r"out=.\.."):
        export_run(str(run), "copy", Path())
    assert list(tmp_path.iterdir()) == [tmp_path / "here"]


def test_a_proof_that_is_interrupted_leaves_nothing_unproved(
    run: Path, copy: Copy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: Any, **more: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(copy, "prove", interrupted)
    with pytest.raises(KeyboardInterrupt):
        export_run(str(run), "copy", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_export_leaves_nothing(
    run: Path, copy: Copy, tmp_path: Path, capsys: Output
) -> None:
    copy.breaks = True
    assert main(["export", str(run), "--to", "copy", "--out", str(tmp_path / "out")]) == 2
    assert "disk-full" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (["--to", "hg"], ("--to", "'hg'", "hf", "ctranslate2", "onnx", "torch")),
        (["--to", "hf", "--int8"], ("--int8", "--to hf")),
        (["--to", "torch", "--int8"], ("--int8", "--to torch", "--to onnx")),
    ],
)
def test_mistakes(
    run: Path, words: list[str], facts: tuple[str, ...], tmp_path: Path, capsys: Output
) -> None:
    assert main(["export", str(run), "--out", str(tmp_path / "out"), *words]) == 2
    assert not missing(capsys.readouterr().err, *facts)
    assert list(tmp_path.iterdir()) == []


def test_an_incomplete_run_is_an_error(tmp_path: Path, capsys: Output) -> None:
    out = ["--to", "hf", "--out", str(tmp_path / "out")]
    assert main(["export", str(tmp_path / "nothing"), *out]) == 2
    assert not missing(capsys.readouterr().err, str(tmp_path / "nothing"))
    folder = save_run(tmp_path / "run", settings_of("decoder", "complete"))
    (folder / "import.json").write_text("[1")
    with pytest.raises(FolderError, match=rf"{folder}/import\.json\b.*line 1 column 3"):
        open_plain(str(folder))
    (folder / "import.json").write_text("[1]")
    with pytest.raises(FolderError, match=rf"{folder}/import\.json\b.*headway import"):
        open_plain(str(folder))
    (folder / "import.json").unlink()
    other = settings_of("decoder", "complete", vocab_size=50)
    save_run(tmp_path / "other", other)
    with pytest.raises(FolderError, match=r"tokenizer\.json\b.*\b29\b.*\b50\b"):
        open_plain(str(tmp_path / "other"))
