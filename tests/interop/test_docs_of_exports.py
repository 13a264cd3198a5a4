"""Programs in the documentation of exports run on a classifier as training makes it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import tokenizers

import headway
from headway.cli.main import main
from headway.interop.hf.tokenizer import write_library_tokenizer
from headway.interop.onnx import export as to_onnx
from headway.tasks.loaded_run import open_plain

from .test_importing import labelled

PAGE = Path("docs/weights/export.md")
QUICK = ["--device", "cpu", "train.steps=3", "train.batch_tokens=256", "data.valid_size=12"]


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run as `headway train classify` trains it on English texts: it starts from base-en."""
    folder = tmp_path_factory.mktemp("classifier")
    data = labelled(folder / "data.jsonl", 80)
    out = folder / "run"
    assert main(["train", "classify", data, "--out", str(out), *QUICK]) == 0
    return out


def snippet(first: str) -> str:
    """The program of the page that mentions `first`."""
    found = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    [program] = [one for one in found if first in one]
    return str(program)


def test_the_onnx_program_gives_the_label_of_the_run(
    classifier: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    program = snippet("classifier-onnx")
    out = tmp_path / "classifier-onnx"
    out.mkdir()
    to_onnx.write(open_plain(str(classifier)), out, int8=False)  # the proof would take as long
    assert main(["predict", str(out), "--engine", "onnx", "--text", "ok"]) == 0
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    exec(compile(program, "export.md", "exec"), {})
    printed = capsys.readouterr().out.strip()
    [text] = re.findall(r'encode\("([^"]+)"\)', program)
    assert printed == headway.load(str(classifier), device="cpu")(text).label


@pytest.mark.parametrize("name", ["classifier", "tatoeba-de-en", "stories"])
def test_the_library_reads_the_tokenizer_of_an_export(
    name: str, tmp_path: Path, classifier: Path
) -> None:
    """The tokenizer.json that exports to onnx, ctranslate2 and torch write."""
    opened = open_plain(str(classifier) if name == "classifier" else name)
    write_library_tokenizer(opened, tmp_path)
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    ours = opened.vocab.source
    whole = {"classifier": ours.as_text, "stories": ours.as_prompt}.get(name, ours.as_source)
    for text in ("A long film, again.", "Ich gehe nach Hause."):
        assert library.encode(text).ids == whole(ours.encode(text))
