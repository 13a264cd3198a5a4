"""Every example runs, on a few lines of what it is for."""

from __future__ import annotations

import gzip
import importlib.util
import io
import json
import re
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from headway.cli.main import main as headway
from tests.facts import missing

FOLDER = Path(__file__).parents[1] / "examples"
STORY = "Once upon a time there was a dog named Spot who liked Anna. " * 3


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def copied(folder: Path) -> tuple[list[str], str]:
    write(folder, train=STORY, written=STORY)
    return [str(folder / "train"), str(folder / "written")], "written: 100.0%"


def cifar10(folder: Path) -> tuple[list[str], str]:
    for name, n in (("data_batch_1", 2), ("data_batch_2", 2), ("test_batch", 1)):
        Image.new("RGB", (1024, n), "red").save(folder / f"{name}.png")
    write(folder, **{"train_lables.json": "[3, 0, 9, 3]", "test_lables.json": "[1]"})
    return [str(folder), str(folder / "out")], "train: 4"


def debian_records(folder: Path) -> tuple[list[str], str]:
    return [str(folder / "out")], "train 1 test 0 valid 0"


def detector_data(folder: Path) -> tuple[list[str], str]:
    write(folder, test='{"title": "a", "text": "b"}\n', made='{"document": {"title": "a"}}\n')
    return ["join", str(folder / "test"), str(folder / "made")], '"label": "generated"'


def entities(folder: Path) -> tuple[list[str], str]:
    write(folder, wnut17__wnut17train="")
    (folder / "wnut17/wnut17train.conll").write_text("Anna\tB-person\nruns\tO\n")
    (folder / "wikiann-en").mkdir()
    (folder / "wikiann-en/en.train").write_text("en:Paris\tB-LOC\n")
    return [str(folder), str(folder / "out")], "text: 6"


def reactions(folder: Path) -> tuple[list[str], str]:
    return [str(folder / "reactions.smi")], "60"


def ruletaker(folder: Path) -> tuple[list[str], str]:
    asked = {"text": "It is.", "label": True, "meta": {"QDep": 0}}
    line = json.dumps({"context": "All is.", "questions": [asked]}) + "\n"
    for depth in (0, 1, 2, 3, 5):
        for part in ("dev", "test"):
            place = folder / f"depth-{depth}" / f"{part}.jsonl"
            place.parent.mkdir(exist_ok=True)
            place.write_text(line)
    return [str(folder), str(folder / "out")], "test-5-by-0: 1"


def sentiment(folder: Path) -> tuple[list[str], str]:
    reviews = "".join(f"{i % 2} a film of {i} ideas\n" for i in range(30))
    (folder / "sst2").mkdir()
    for part in ("train", "dev", "test"):
        (folder / f"sst2/{part}.tsv").write_text(f"a {part} sentence\t1\n")
    for place in ("rt-polarity.all", "mr/rt-polarity.all"):
        (folder / place).parent.mkdir(exist_ok=True)
        (folder / place).write_text(reviews, encoding="latin-1")
    return [str(folder), str(folder / "out")], "text:"


def stories(folder: Path) -> tuple[list[str], str]:
    names = ("ts_10k.txt", "ts_smallgpt.txt", "tinystories_slice.txt")
    for number, name in enumerate(names):
        (folder / name).write_text(STORY + f"The {'end ' * (number + 1)}.\n")
    return [str(folder), str(folder / "out")], "train:"


def toy_grammar(folder: Path) -> tuple[list[str], str]:
    return [str(folder / "toy"), "copy"], "test"


def trim_vocabulary(folder: Path) -> tuple[list[str], str]:
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##b", "never", "cat", "##s"]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.add_special_tokens(pieces[:5])
    tokenizer.post_processor = TemplateProcessing(
        "[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    (folder / "model").mkdir()
    tokenizer.save(str(folder / "model" / "tokenizer.json"))
    table = torch.arange(10.0)[:, None].repeat(1, 4)
    save_file({"embeddings.word_embeddings.weight": table}, folder / "model" / "model.safetensors")
    write(folder, model__config="{}", text="cats a cat\n")
    (folder / "model" / "config").rename(folder / "model" / "config.json")
    words = [str(folder / "model"), str(folder / "text"), "--keep", "9"]
    return [*words, "--out", str(folder / "out")], "9"


EXAMPLES: dict[str, Callable[[Path], tuple[list[str], str]]] = {
    made.__name__: made
    for made in (
        cifar10, copied, debian_records, detector_data, entities, reactions, ruletaker, sentiment,
        stories, toy_grammar, trim_vocabulary,
    )
}  # fmt: skip
RECORD = "Package: a\nSection: games\nDescription-en: A game\n It is played.\n .\n Often.\n\n"


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words, facts = EXAMPLES[name](tmp_path)
    monkeypatch.setattr(sys, "argv", [name, *words])
    monkeypatch.setattr(sys, "stdin", io.StringIO(RECORD))
    main = load(name).main
    main(*words) if name in ("reactions", "toy_grammar") else main()
    assert not missing(capsys.readouterr().out, facts)


def test_a_trimmed_vocabulary_keeps_its_vectors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, _ = trim_vocabulary(tmp_path)
    monkeypatch.setattr(sys, "argv", ["trim_vocabulary", *words])
    load("trim_vocabulary").main()
    tokenizer = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    table = load_file(tmp_path / "out" / "model.safetensors")["embeddings.word_embeddings.weight"]
    found = tokenizer.encode("cats a cat")
    assert found.tokens == ["[CLS]", "cat", "##s", "a", "cat", "[SEP]"]
    assert table[found.ids, 0].tolist() == [2.0, 8.0, 9.0, 5.0, 8.0, 3.0]
    assert tokenizer.token_to_id("never") is None
    assert json.loads((tmp_path / "out" / "config.json").read_text())["vocab_size"] == 9


def test_splitting_tatoeba_and_the_slice_of_the_demo(tmp_path: Path) -> None:
    module = load("split_tatoeba")
    lines = [f"Sentence {i}.\tSatz {i}.\tlicence" for i in range(6)]
    write(tmp_path, deu="\n".join(lines) + "\n")
    module.HELD_OUT = 2
    module.main(tmp_path / "deu", tmp_path / "out")
    sides = {path.name: path.read_text().splitlines() for path in (tmp_path / "out").iterdir()}
    for x in ("en", "de"):
        parts = [sides[f"{part}.{x}"] for part in ("train", "valid", "test")]
        assert all(parts)
        assert len({line for part in parts for line in part}) == sum(map(len, parts)) == 6
    assert len(module.demo_slice(tmp_path / "out", 1)) == 1


def test_the_split_of_tatoeba_is_that_of_the_shipped_models() -> None:
    """Another split would put their training pairs into the test set. The digest is that of the
    choice which the program made when they were trained."""
    demo, module = load("demo"), load("split_tatoeba")
    with gzip.open(demo.PAIRS, "rt", encoding="utf-8") as file:
        pairs = [tuple(line.rstrip("\n").split("\t")) for line in file]
    chosen = module.held_out(pairs)
    assert chosen.sum() == module.HELD_OUT
    digest = sha256(np.packbits(chosen).tobytes()).hexdigest()
    assert digest.startswith("368c6e3c9461ddf1")


def test_the_first_forward_pass(capsys: pytest.CaptureFixture[str]) -> None:
    load("first_forward")  # which is read from top to bottom, and has no main
    differences = [float(x) for x in re.findall(r"\b\d\.\de[-+]\d+\b", capsys.readouterr().out)]
    assert len(differences) == 2  # of a sentence alone, and of decoding token by token
    assert max(differences) < 1e-5


def test_the_demo_ends_with_translations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process, with a budget that is over before the first step: that is not an error, and
    there are translations. How a budget is kept is tested beside the loop."""
    demo = load("demo")
    with gzip.open(demo.PAIRS, "rt", encoding="utf-8") as file:
        few = [next(file) for _ in range(80)]
    write(tmp_path, few="".join(few))
    (tmp_path / "few").rename(tmp_path / "few.tsv")
    sizes = ["model.d_model=16", "model.n_heads=2", "model.n_layers=1", "model.d_ff=16"]
    steps = ["train.batch_tokens=200", "data.valid_size=4", *sizes]

    def in_this_process(*words: str) -> None:
        assert headway([*words, *steps]) == 0

    monkeypatch.setattr(demo, "command", in_this_process)
    monkeypatch.setattr(demo, "PAIRS", tmp_path / "few.tsv")
    monkeypatch.setattr(sys, "argv", ["demo", "--out", str(tmp_path / "run"), "--budget", "1s"])
    demo.main()
    printed = capsys.readouterr().out.splitlines()
    for sentence in demo.SENTENCES:  # and below it the outputs before, after and of the model here
        assert all(printed[printed.index(sentence) + 1 :][:3])


def test_the_demo_exits_with_the_code_of_a_failed_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    demo = load("demo")
    monkeypatch.setattr(demo.subprocess, "run", lambda words: SimpleNamespace(returncode=2))
    monkeypatch.setattr(sys, "argv", ["demo", "--out", str(tmp_path / "run")])
    with pytest.raises(SystemExit) as ended:
        demo.main()
    assert ended.value.code == 2


def test_no_example_is_left_out() -> None:
    others = {"split_tatoeba", "first_forward", "demo"}
    others |= {
        "make_shapes",
        "make_moving",
        "make_digits",
        "minimal",
        "label_sets",
        "base_corpus",
    }  # see tests/examples
    assert {path.stem for path in FOLDER.glob("*.py")} == EXAMPLES.keys() | others


def test_every_example_is_listed() -> None:
    listed = (FOLDER / "README.md").read_text()
    assert [path.name for path in FOLDER.glob("*.py") if f"]({path.name})" not in listed] == []
