"""Imports from the Hugging Face hub fetch all files that an import of the folder reads."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sentencepiece
import torch
from safetensors.torch import load_file, save_file

from headway.errors import UserError
from headway.interop.importing import import_run
from headway.settings.vision import ImageEncoderSettings

from .folders import bert_folder
from .test_folders_to_answers import SEQ2SEQ, TRAINING, byte_pairs
from .test_hf_images import folder_of
from .test_sentence_transformers import sentence_folder
from .test_whisper import hears, whisper_folder, write_words
from .theirs import reference, saved

IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}


class FakeHub:
    """A hub with one model. Files are copied to the snapshot as the patterns select them."""

    def __init__(self, source: Path, store: Path) -> None:
        self.source, self.snapshot = source, store / "snapshots" / "abc"
        self.asked: list[tuple[str, list[str]]] = []

    def snapshot_download(self, name: str, allow_patterns: list[str]) -> str:
        self.asked.append((name, allow_patterns))
        self.snapshot.mkdir(parents=True, exist_ok=True)
        for path in sorted(self.source.rglob("*")):
            relative = path.relative_to(self.source).as_posix()
            if path.is_file() and any(fnmatch(relative, pattern) for pattern in allow_patterns):
                (self.snapshot / relative).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, self.snapshot / relative)
        return str(self.snapshot)


def hub_of(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    hub = FakeHub(source, tmp_path / "store")
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    return hub


def bert(folder: Path) -> Path:
    return bert_folder(folder)[0]


def shards(folder: Path) -> Path:
    """Weights in two files under names of their own, which only the index tells."""
    bert_folder(folder)
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    halves: dict[str, dict[str, torch.Tensor]] = {"one.safetensors": {}, "two.safetensors": {}}
    for number, (name, tensor) in enumerate(tensors.items()):
        halves[("one.safetensors", "two.safetensors")[number % 2]][name] = tensor
    for file, part in halves.items():
        save_file(part, folder / file)
    table = {name: file for file, part in halves.items() for name in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": table}))
    return folder


def pickled(folder: Path) -> Path:
    bert_folder(folder)
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    return folder


def vit(folder: Path) -> Path:
    source, _ = folder_of(folder, "vit", **IMAGENET)
    return source


def whisper(folder: Path) -> Path:
    whisper_folder(folder)
    hears(folder)
    write_words(folder)
    return folder


def whisper_processor(folder: Path) -> Path:
    """As a processor of newer versions of `transformers` saves it: one file with both parts."""
    whisper(folder)
    facts = json.loads((folder / "preprocessor_config.json").read_text())
    (folder / "preprocessor_config.json").unlink()
    both = {"feature_extractor": facts, "processor_class": "WhisperProcessor"}
    (folder / "processor_config.json").write_text(json.dumps(both))
    return folder


def sentences(folder: Path) -> Path:
    return sentence_folder(folder)[0]


def nested_sentences(folder: Path) -> Path:
    """The encoder in a folder of its own, as the first versions of sentence-transformers did."""
    sentence_folder(folder)
    (folder / "0_Transformer").mkdir()
    above = {"modules.json", "config_sentence_transformers.json"}
    for path in folder.iterdir():
        if path.is_file() and path.name not in above:
            path.rename(folder / "0_Transformer" / path.name)
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    modules[1]["path"] = "my_pooling"
    (folder / "1_Pooling").rename(folder / "my_pooling")
    (folder / "modules.json").write_text(json.dumps(modules))
    return folder


def marian(folder: Path) -> Path:
    """A vocabulary for each side."""
    folder.mkdir(parents=True)
    numbers = []
    for side in ("source", "target"):
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(TRAINING), model_prefix=str(folder / side), vocab_size=60,
            hard_vocab_limit=False, minloglevel=2,
        )  # fmt: skip
        (folder / f"{side}.model").rename(folder / f"{side}.spm")
        (folder / f"{side}.vocab").unlink()
        words = sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{side}.spm"))
        pieces = [words.id_to_piece(i) for i in range(3, words.vocab_size())]
        numbers.append({name: i for i, name in enumerate(["</s>", "<unk>", *pieces, "<pad>"])})
    # The second table has another order, so that reading the first in its place is noticed.
    second = list(numbers[1])
    second[2:-1] = reversed(second[2:-1])
    (folder / "vocab.json").write_text(json.dumps(numbers[0]))
    (folder / "target_vocab.json").write_text(json.dumps({p: i for i, p in enumerate(second)}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"separate_vocabs": True}))
    sizes = {**SEQ2SEQ, "vocab_size": len(numbers[0]), "decoder_vocab_size": len(second)}
    sizes |= {"share_encoder_decoder_embeddings": False, "eos_token_id": 0}
    sizes |= {"pad_token_id": len(second) - 1, "decoder_start_token_id": len(second) - 1}
    sizes |= {"forced_eos_token_id": None}
    return saved(reference("MarianMTModel", sizes), folder)


def gpt2(folder: Path) -> Path:
    size = byte_pairs(folder, ["<|endoftext|>"])
    sizes = {"vocab_size": size, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    return saved(
        reference("GPT2LMHeadModel", {**sizes, "bos_token_id": 0, "eos_token_id": 0}), folder
    )


FOLDERS: list[Callable[[Path], Path]] = [
    bert, shards, pickled, vit, whisper, whisper_processor, sentences, nested_sentences, marian,
    gpt2,
]  # fmt: skip


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("make", FOLDERS, ids=lambda make: make.__name__)
def test_an_import_from_the_hub_is_that_of_the_folder(
    make: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make(tmp_path / "source")
    (source / "code.py").write_text("raise SystemExit")
    (source / "tf_model.h5").write_text("large")
    hub = hub_of(source, tmp_path, monkeypatch)
    import_run(str(source), tmp_path / "local")
    import_run("someone/some-model", tmp_path / "run")
    assert not {p.name for p in hub.snapshot.rglob("*")} & {"code.py", "tf_model.h5"}
    files = [sorted(p.relative_to(tmp_path / run) for p in (tmp_path / run).rglob("*"))
             for run in ("local", "run")]  # fmt: skip
    assert files[0] == files[1]
    for name in files[0]:
        one, other = (tmp_path / run / name for run in ("local", "run"))
        if name.name == "import.json":
            facts = [json.loads(path.read_text()) for path in (one, other)]
            assert facts[1]["name"] == "someone/some-model"
            differs = {key for key in facts[0] if facts[0][key] != facts[1][key]}
            assert differs <= {"name", "checksum", "sha256"}
        elif one.is_file():
            assert one.read_bytes() == other.read_bytes(), name


def test_one_request_is_enough_for_a_plain_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = hub_of(bert(tmp_path / "source"), tmp_path, monkeypatch)
    import_run("someone/some-bert", tmp_path / "run")
    [(name, patterns)] = hub.asked
    assert name == "someone/some-bert"
    assert not {"*", "*.py", "*.bin", "*.safetensors", "*.json"} & set(patterns)


def test_a_processor_saved_as_a_whole_is_read(tmp_path: Path) -> None:
    source = whisper_processor(tmp_path / "source")
    path = source / "processor_config.json"
    facts = json.loads(path.read_text())
    facts["feature_extractor"]["sampling_rate"] = 8000
    path.write_text(json.dumps(facts))
    assert import_run(str(source), tmp_path / "run").settings.model.audio.rate == 8000  # type: ignore[union-attr]


def test_pixels_without_a_file_are_noted(tmp_path: Path) -> None:
    source, _ = folder_of(tmp_path, "vit")
    done = import_run(str(source), tmp_path / "run")
    assert any("preprocessor_config.json" in note and "0.5" in note for note in done.notes)
    source, _ = folder_of(tmp_path / "with", "vit", **IMAGENET)
    done = import_run(str(source), tmp_path / "run2")
    assert done.notes == ()
    assert isinstance(done.settings.model, ImageEncoderSettings)
    assert done.settings.model.image.mean == pytest.approx(IMAGENET["image_mean"])


@pytest.mark.parametrize(
    ("facts", "word"),
    [
        ({"resample": 3}, "resample"),
        ({"do_center_crop": True, "size": {"shortest_edge": 18},
          "crop_size": {"height": 16, "width": 16}}, "do_center_crop"),
    ],
)  # fmt: skip
def test_another_way_to_resize_is_noted(facts: dict[str, Any], word: str, tmp_path: Path) -> None:
    source, _ = folder_of(tmp_path, "vit", **IMAGENET, **facts)
    notes = import_run(str(source), tmp_path / "run").notes
    assert any(word in note for note in notes)


def test_errors_without_the_library_or_a_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match=r"someone/some-bert\b.*headway\[hub\]"):
        import_run("someone/some-bert", tmp_path / "run")

    def no_network(name: str, allow_patterns: list[str]) -> str:
        raise ConnectionError("unreachable\nmore lines")

    hub = SimpleNamespace(snapshot_download=no_network)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    with pytest.raises(UserError, match=r"someone/some-bert\b.*ConnectionError.*unreachable") as e:
        import_run("someone/some-bert", tmp_path / "run")
    assert "more lines" not in str(e.value)
