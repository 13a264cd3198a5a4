"""`headway import`: what it writes, what it says, what it refuses, and that all works after it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from headway.cli.main import main
from headway.errors import UserError
from headway.interop.families import Architecture
from headway.interop.importing import import_run, with_task
from headway.models.folder import load_model
from headway.settings.folder import load_run
from headway.settings.model import EncoderSettings, Seq2SeqSettings
from headway.tokens.tokenizer import Vocabularies
from tests.training.labelled import people, sentiments, write_conll

from ..facts import missing
from .folders import N_PIECES, PIECES, SIZES, bert_folder, change, write_pieces
from .theirs import reference, saved

LABELS = {"id2label": {0: "neg", 1: "pos", 2: "so"}, "label2id": {"neg": 0, "pos": 1, "so": 2}}
TAGS = ["O", "B-per", "I-per", "B-loc"]
TAG_LABELS = {"id2label": dict(enumerate(TAGS)), "label2id": {t: i for i, t in enumerate(TAGS)}}
QUICK = ["--device", "cpu", "train.steps=4", "train.batch_tokens=256", "train.micro_tokens=256"]
QUICK += ["train.precision=fp32", "data.valid_size=12"]


def predicted(folder: Path, lines: list[str], tmp_path: Path, *words: str) -> list[dict[str, Any]]:
    path = tmp_path / "lines.txt"
    path.write_text("".join(f"{line}\n" for line in lines))
    out = tmp_path / "answers.jsonl"
    assert main(["predict", str(folder), str(path), "--json", "--out", str(out), *words]) == 0
    return [json.loads(line) for line in out.read_text().splitlines()]


def ids(text: str) -> torch.Tensor:
    """As BERT reads a text of whole words."""
    names = ["[CLS]", *text.split(), "[SEP]"]
    return torch.tensor([[PIECES.index(name) for name in names]])


def labelled(path: Path, n: int) -> str:
    rows = [json.dumps({"text": text, "label": label}) for text, label in sentiments(n)]
    path.write_text("\n".join(rows))
    return str(path)


# What is written


def test_a_folder_becomes_a_run_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, theirs = bert_folder(tmp_path / "bert", "BertForPreTraining")
    out = tmp_path / "run"
    assert main(["import", str(source), "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    n = sum(p.numel() for name, p in theirs.named_parameters() if "seq_relationship" not in name)
    facts = ("bert", "encoder", "fill", f"{n:,}", "2", "cls.seq_relationship.bias")
    assert not missing(printed, *facts, f"headway predict {out}")
    names = {path.name for path in out.iterdir()}
    assert names == {"config.toml", "model.safetensors", "tokenizer.json", "import.json",
                     "ignored.safetensors", "tokenizer"}  # fmt: skip
    settings = load_run(out)
    assert settings.task == "fill"
    assert isinstance(settings.model, EncoderSettings)
    assert Vocabularies.load(out / "tokenizer.json").target.vocab_size == N_PIECES
    assert {p.name for p in (out / "tokenizer").iterdir()} == {"vocab.txt", "tokenizer_config.json"}
    facts = json.loads((out / "import.json").read_text())
    assert facts["model_type"] == "bert"
    assert facts["architectures"] == ["BertForPreTraining"]
    assert facts["config"]["hidden_size"] == 32
    assert list(facts["tensors"]) == list(load_file(source / "model.safetensors"))
    assert set(facts["tensors"].values()) == {"float32"}
    assert len(facts["files"]["model.safetensors"]) == 64
    assert str(tmp_path) not in (out / "import.json").read_text()
    kept = load_file(out / "ignored.safetensors")
    assert set(kept) == set(facts["ignored"])
    assert torch.equal(kept["cls.seq_relationship.bias"], theirs.cls.seq_relationship.bias)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_types_are_read_as_fp32(dtype: torch.dtype, tmp_path: Path) -> None:
    source, _ = bert_folder(tmp_path / "bert")
    path = source / "model.safetensors"
    tensors = {name: tensor.to(dtype) for name, tensor in load_file(path).items()}
    save_file(tensors, path)
    import_run(str(source), tmp_path / "run")
    weights = load_file(tmp_path / "run" / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}
    table = tensors["bert.embeddings.word_embeddings.weight"]
    assert torch.equal(weights["front.tokens.weight"], table.float())
    facts = json.loads((tmp_path / "run" / "import.json").read_text())
    assert set(facts["tensors"].values()) == {str(dtype).removeprefix("torch.")}


def test_integers_are_not_accepted_as_weights(tmp_path: Path) -> None:
    source, _ = bert_folder(tmp_path / "bert")
    tensors = load_file(source / "model.safetensors")
    tensors["bert.embeddings.word_embeddings.weight"] = torch.ones(N_PIECES, 32, dtype=torch.int8)
    save_file(tensors, source / "model.safetensors")
    with pytest.raises(UserError, match="int8"):
        import_run(str(source), tmp_path / "run")


def test_a_folder_that_is_not_empty_is_left_alone(tmp_path: Path) -> None:
    source, _ = bert_folder(tmp_path / "bert")
    out = tmp_path / "run"
    out.mkdir()
    import_run(str(source), out)
    before = (out / "config.toml").read_bytes()
    with pytest.raises(UserError, match=rf"{out}\b.*out="):
        import_run(str(source), out)
    assert (out / "config.toml").read_bytes() == before
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=rf"{tmp_path}/file\b.*out="):
        import_run(str(source), tmp_path / "file")
    assert (tmp_path / "file").read_text() == ""


def test_a_tokenizer_of_another_size_is_an_error_and_another_can_be_named(tmp_path: Path) -> None:
    source, _ = bert_folder(tmp_path / "bert")
    write_pieces(source, [*PIECES, "one", "more"])
    pattern = rf"vocab\.txt\b.*\b{N_PIECES + 1}\b.*\b{N_PIECES}\b.*'one', 'more'"
    with pytest.raises(UserError, match=pattern):
        import_run(str(source), tmp_path / "run")
    (tmp_path / "right").mkdir()
    write_pieces(tmp_path / "right")
    import_run(str(source), tmp_path / "run", tokenizer=tmp_path / "right" / "vocab.txt")
    assert Vocabularies.load(tmp_path / "run" / "tokenizer.json").target.vocab_size == N_PIECES
    assert [p.name for p in (tmp_path / "run" / "tokenizer").iterdir()] == ["vocab.txt"]


def test_settings_of_the_model_are_those_of_the_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = bert_folder(tmp_path / "bert", "BertForMaskedLM")
    for word, facts in (
        ("model.n_layers=1", ["model.n_layers=1"]),
        ("decode.beem=2", ["decode.beem", "beam"]),
        ("decode.beam=2", ["decode.beam=2", "fill"]),
        ("embed.normalise=false", ["[embed]", "fill"]),
    ):
        assert main(["import", str(folder), "--out", str(tmp_path / "run"), word]) == 2
        assert not missing(capsys.readouterr().err, *facts)
        assert not (tmp_path / "run").exists()


def test_any_encoder_makes_vectors_but_other_tasks_need_their_head(tmp_path: Path) -> None:
    source, theirs = bert_folder(tmp_path / "bert", "BertForSequenceClassification", **LABELS)
    import_run(str(source), tmp_path / "run", task="embed")
    assert load_run(tmp_path / "run").task == "embed"
    (answer,) = predicted(tmp_path / "run", ["the film"], tmp_path)
    with torch.no_grad():
        pooled = theirs.bert(ids("the film")).pooler_output[0]
    assert np.abs(np.array(answer["vector"]) - pooled.numpy()).max() < 1e-5
    with pytest.raises(UserError, match=r"\bclassify\b.*\bembed\b.*\btag\b.*--from\b"):
        import_run(str(source), tmp_path / "other", task="tag")
    with pytest.raises(UserError, match=r"task=.nonsense..*\btranslate\b.*\bembed\b"):
        import_run(str(source), tmp_path / "other", task="nonsense")


def test_training_is_not_suggested_where_it_cannot_help() -> None:
    """An encoder-decoder makes no vectors, trained or not."""
    model = Seq2SeqSettings(vocab_size=9)
    found = Architecture(task="translate", model=model, pairs=[])
    with pytest.raises(UserError) as error:
        with_task(found, "embed")
    families = ("encoder", "decoder", "image-encoder", "audio-encoder", "seq2seq")
    assert not missing(error.value, "translate", "embed", *families, "task=")
    assert "--from" not in str(error.value)


def test_rows_without_a_token_are_counted(tmp_path: Path) -> None:
    source, _ = bert_folder(tmp_path / "bert", vocab_size=N_PIECES + 3)
    [*_, note] = import_run(str(source), tmp_path / "run").notes
    assert not missing(note, "3")
    whole, _ = bert_folder(tmp_path / "whole")
    assert not import_run(str(whole), tmp_path / "other").notes


# Errors


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("tiny.pt", ("tiny.pt",)),
        ("model.safetensors", ("model.safetensors", "config.json", ".bin", ".pt")),
        ("pytorch_model.bin", ("pytorch_model.bin", "torch", "llama2.c", "config.json")),
        ("absent/a/b", ("absent/a/b", "config.json", ".bin", ".pt")),
        ("/absent/folder", ("/absent/folder", "config.json", ".bin", ".pt")),
        ("folder", ("folder", "config.json")),
    ],
)
def test_an_invalid_source_is_an_error(
    name: str, facts: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "tiny.pt").write_bytes(b"PK\x03\x04")
    (tmp_path / "model.safetensors").write_bytes(b"")
    torch.save({}, tmp_path / "pytorch_model.bin")
    with pytest.raises(UserError) as caught:
        import_run(name, tmp_path / "run")
    assert not missing(caught.value, *facts)


def test_weights_of_other_libraries_are_named(tmp_path: Path) -> None:
    source, _ = bert_folder(tmp_path / "bert")
    (source / "model.safetensors").rename(source / "tf_model.h5")
    with pytest.raises(UserError, match=r"tf_model\.h5\b.*\bTensorFlow\b"):
        import_run(str(source), tmp_path / "run")


# Everything works afterwards


@torch.no_grad()
def test_an_imported_classifier_predicts_and_is_evaluated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, theirs = bert_folder(tmp_path / "bert", "BertForSequenceClassification", **LABELS)
    out = tmp_path / "run"
    import_run(str(source), out)
    texts = [text for text, _ in sentiments(12)]
    for text, answer in zip(texts, predicted(out, texts, tmp_path), strict=True):
        p_C = theirs(ids(text)).logits[0].softmax(-1)
        assert answer["label"] == ("neg", "pos", "so")[int(p_C.argmax())]
        assert abs(answer["probability"] - float(p_C.max())) < 1e-5
    capsys.readouterr()
    assert main(["evaluate", str(out), "--text", labelled(tmp_path / "test.jsonl", 30)]) == 0
    assert "accuracy" in capsys.readouterr().out


@torch.no_grad()
def test_an_imported_tagger_predicts_and_is_evaluated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, theirs = bert_folder(tmp_path / "bert", "BertForTokenClassification", **TAG_LABELS)
    out = tmp_path / "run"
    import_run(str(source), out)
    (answer,) = predicted(out, ["mister ada went then"], tmp_path)
    assert answer["words"] == ["mister", "ada", "went", "then"]
    scores_TC = theirs(ids("mister ada went then")).logits[0, 1:-1]
    best = [TAGS[i] for i in scores_TC.argmax(-1)]
    assert len(answer["tags"]) == 4
    if all(tag != "I-per" for tag in best):  # else the nearest sequence that may be
        assert answer["tags"] == best
    capsys.readouterr()
    test = write_conll(tmp_path / "test.conll", people(20))
    assert main(["evaluate", str(out), "--text", test]) == 0
    assert "f1" in capsys.readouterr().out.lower()


@torch.no_grad()
def test_an_imported_masked_model_fills_gaps_and_is_evaluated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, theirs = bert_folder(tmp_path / "bert")
    out = tmp_path / "run"
    import_run(str(source), out)
    (answer,) = predicted(out, ["the [MASK] went"], tmp_path)
    p_V = theirs(ids("the [MASK] went")).logits[0, 2].softmax(-1)
    text = json.dumps(answer)
    assert PIECES[int(p_V[5:].argmax()) + 5].removeprefix("##") in text
    capsys.readouterr()
    (tmp_path / "test.txt").write_text("the film of a long scene\nada saw the river\n" * 20)
    assert main(["evaluate", str(out), "--text", str(tmp_path / "test.txt")]) == 0
    assert "perplexity" in capsys.readouterr().out


def test_an_imported_model_is_fine_tuned_and_distilled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, _ = bert_folder(tmp_path / "bert")
    run_, tuned = tmp_path / "run", tmp_path / "tuned"
    import_run(str(source), run_)
    words = ["--text", labelled(tmp_path / "train.jsonl", 90), *QUICK]
    assert main(["train", "classify", "--from", str(run_), "--out", str(tuned), *words]) == 0
    assert load_run(tuned).labels == ("neg", "pos", "so")
    (answer,) = predicted(tuned, ["awful film"], tmp_path)
    assert answer["label"] in ("neg", "pos", "so")
    # The body began with the imported weights: four steps have not led it far.
    before = load_file(run_ / "model.safetensors")["front.positions.table.weight"]
    after = load_file(tuned / "model.safetensors")["front.positions.table.weight"]
    assert 0 < (before - after).abs().max() < 0.1
    small = tmp_path / "small"
    assert main(["train", "distil", "--teacher", str(tuned), "--out", str(small), *words]) == 0
    settings = load_run(small)
    assert settings.model is not None
    assert settings.model.n_layers == 1
    capsys.readouterr()


def test_an_imported_albert_is_tuned_as_one_layer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "albert"
    saved(reference("AlbertForMaskedLM", {**SIZES, "embedding_size": 20}), folder)
    write_pieces(folder)
    change(folder / "config.json", num_hidden_layers=3)
    out, tuned = tmp_path / "run", tmp_path / "tuned"
    import_run(str(folder), out)
    data = write_conll(tmp_path / "train.conll", people(60))
    words = ["--text", data, *QUICK]
    assert main(["train", "tag", "--from", str(out), "--out", str(tuned), *words]) == 0
    names = set(load_file(tuned / "model.safetensors"))
    assert not any(name.startswith("stack.blocks.1") for name in names)
    model = load_model(tuned)
    assert len({id(block) for block in model.stack.blocks}) == 1
    (answer,) = predicted(tuned, ["mister ada in paris"], tmp_path)
    assert len(answer["tags"]) == 4
    capsys.readouterr()
