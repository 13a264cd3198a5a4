"""Imported runs on their way out, and what the proof of a folder sees."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import transformers

from headway.cli.main import main
from headway.interop.exporting import export_run
from headway.interop.hf.proof import prove
from headway.interop.importing import import_run
from headway.interop.proof import Proof
from headway.interop.proof_inputs import proof_sentences
from headway.settings.folder import load_run
from headway.settings.model import EncoderSettings
from headway.tasks.loaded_run import open_plain

from .folders import SIZES, bert_folder, change, write_pieces
from .ours import tensors_named, tokenizer_agrees
from .test_hf_decoders import DECODERS
from .test_importing import QUICK, labelled
from .test_round_trip import same_bytes, write_words
from .test_sentence_transformers import sentence_folder
from .theirs import reference, saved


def proven_again(run: Path, out: Path) -> Proof:
    return prove(open_plain(str(run)), out, proof_sentences())


def trained(tmp_path: Path, run: Path, *words: str) -> tuple[Path, EncoderSettings]:
    tmp_path.mkdir(exist_ok=True)
    text = labelled(tmp_path / "train.jsonl", 60)
    out = tmp_path / "tuned"
    words = ("--text", text, "--from", str(run), "--out", str(out), *QUICK, *words)
    assert main(["train", "classify", *words]) == 0
    model = load_run(out).model
    assert isinstance(model, EncoderSettings)
    return out, model


@pytest.mark.parametrize(
    ("name", "there"),
    [
        ("BertModel", "BertForSequenceClassification"),
        ("RobertaModel", "BertForSequenceClassification"),
        ("AlbertModel", "AlbertForSequenceClassification"),
        ("DistilBertForSequenceClassification", "DistilBertForSequenceClassification"),
    ],
)
def test_a_classifier_keeps_the_pooler_of_its_run_and_goes_out(
    name: str, there: str, tmp_path: Path
) -> None:
    sizes: dict[str, Any] = {**SIZES, "embedding_size": 20} if "Albert" in name else SIZES
    if "Distil" in name:
        sizes = {"vocab_size": SIZES["vocab_size"], "dim": 32, "n_layers": 2, "n_heads": 4}
        sizes |= {"hidden_dim": 40, "max_position_embeddings": 24, "num_labels": 2}
    sizes = {**sizes, "type_vocab_size": 1} if "Roberta" in name else sizes
    source = saved(reference(name, sizes), tmp_path / "theirs")
    write_pieces(source)
    parts = {"cls": "[CLS]", "sep": "[SEP]", "unk": "[UNK]", "mask": "[MASK]"}
    named = {f"{part}_token": token for part, token in parts.items()}
    (source / "special_tokens_map.json").write_text(json.dumps(named))
    import_run(str(source), tmp_path / "run")
    tuned, model = trained(tmp_path, tmp_path / "run")
    assert set(model.heads) == {"classes", "pooled"}
    proof = export_run(str(tuned), "hf", tmp_path / "hf")
    assert proof.passed, proof.text()
    assert tensors_named(proof) == []
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["architectures"] == [there]


def test_a_classifier_without_a_pooler_gets_one_of_the_same_scores(tmp_path: Path) -> None:
    source, _ = bert_folder(tmp_path / "theirs", "BertForMaskedLM")
    import_run(str(source), tmp_path / "run")
    tuned, model = trained(tmp_path / "plain", tmp_path / "run")
    assert model.heads == ("classes",)
    proof = export_run(str(tuned), "hf", tmp_path / "hf")
    assert proof.passed, proof.text()
    assert tensors_named(proof) == []


def test_a_sentence_encoder_keeps_mean_pooling(tmp_path: Path) -> None:
    source, _ = sentence_folder(tmp_path / "theirs")
    import_run(str(source), tmp_path / "run")
    _, model = trained(tmp_path, tmp_path / "run")
    assert (model.pooling, model.heads) == ("mean", ("classes",))


@pytest.mark.parametrize("name", ["gpt2", "llama", "BertForMaskedLM"])
def test_vectors_of_a_model_with_another_head_go_out(name: str, tmp_path: Path) -> None:
    if name in DECODERS:
        source = saved(reference(*DECODERS[name]), tmp_path / "theirs")
        write_words(source)
    else:
        source, _ = bert_folder(tmp_path / "theirs", name)
    import_run(str(source), tmp_path / "run", task="embed")
    proof = export_run(str(tmp_path / "run"), "hf", tmp_path / "out")
    assert proof.passed, proof.text()
    assert proof.what == "vectors"
    assert tensors_named(proof) == []
    same_bytes(source, tmp_path / "out")


def test_a_folder_of_sentence_transformers_goes_back_as_it_came(tmp_path: Path) -> None:
    source, _ = sentence_folder(tmp_path / "theirs")
    (source / "README.md").write_text("# A model\n")
    (source / "config_sentence_transformers.json").write_text('{"prompts": {}}')
    import_run(str(source), tmp_path / "run")
    assert export_run(str(tmp_path / "run"), "hf", tmp_path / "out").passed
    for name in ("modules.json", "1_Pooling/config.json", "sentence_bert_config.json", "README.md",
                 "config_sentence_transformers.json", "vocab.txt"):  # fmt: skip
        assert (tmp_path / "out" / name).read_bytes() == (source / name).read_bytes(), name
    # What was changed at the import is said in files of our own.
    import_run(str(source), tmp_path / "plain", words=["embed.normalise=false"])
    proof = export_run(str(tmp_path / "plain"), "hf", tmp_path / "plain out")
    assert proof.passed, proof.text()
    assert len(json.loads((tmp_path / "plain out" / "modules.json").read_text())) == 2


@pytest.mark.parametrize("by", ["transformers", "headway"])
def test_vectors_are_proven_as_the_modules_say(
    by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, _ = sentence_folder(tmp_path / "theirs")
    run, out = tmp_path / "run", tmp_path / "out"
    import_run(str(source), run)
    if by == "headway":
        monkeypatch.setitem(sys.modules, "transformers", None)
    assert export_run(str(run), "hf", out).passed
    pooling = out / "1_Pooling" / "config.json"
    change(pooling, pooling_mode_mean_tokens=False, pooling_mode_cls_token=True)
    assert not proven_again(run, out).passed
    change(pooling, pooling_mode_mean_tokens=True, pooling_mode_cls_token=False)
    assert proven_again(run, out).passed
    modules = json.loads((out / "modules.json").read_text())
    (out / "modules.json").write_text(json.dumps(modules[:2]))
    assert not proven_again(run, out).passed


@pytest.mark.parametrize("called", ["my.json", "tokenizer.json"])
def test_a_tokenizer_of_the_users_choice_goes_out_so_that_it_is_found(
    called: str, tmp_path: Path
) -> None:
    source = saved(reference(*DECODERS["gpt2"]), tmp_path / "theirs")
    (tmp_path / "words").mkdir()
    write_words(tmp_path / "words")
    mine = tmp_path / "words" / "tokenizer.json"
    mine = mine.rename(tmp_path / called)
    import_run(str(source), tmp_path / "run", tokenizer=mine)
    proof = export_run(str(tmp_path / "run"), "hf", tmp_path / "out")
    assert tokenizer_agrees(proof)
    assert proof.passed, proof.text()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer("w3 z", add_special_tokens=False)["input_ids"] == [44, 30]


@pytest.mark.parametrize("imported", [True, False])
def test_other_ids_fail_a_proof(imported: bool, tmp_path: Path) -> None:
    source = saved(reference(*DECODERS["gpt2"]), tmp_path / "theirs")
    write_words(source)
    run, out = tmp_path / "run", tmp_path / "out"
    import_run(str(source), run)
    if not imported:
        (run / "import.json").unlink()
    proof = export_run(str(run), "hf", out)
    assert proof.passed
    assert tokenizer_agrees(proof)
    path = out / "tokenizer.json"
    path.write_text(path.read_text().replace('"a"', '"å"'))
    proof = proven_again(run, out)
    assert not proof.passed
    assert proof.max_difference < 1e-4  # the model itself is right
    assert not tokenizer_agrees(proof)
    path.write_text("{}")
    proof = proven_again(run, out)
    assert not proof.passed
    assert "tokenizer" in proof.notes[-1]
    assert not tokenizer_agrees(proof)


def test_tokenizers_of_formulas_are_not_compared(tmp_path: Path) -> None:
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"CcNnOo()=#123", "Cl", "[nH]"]
    sizes = {**SIZES, "embedding_size": 20, "vocab_size": len(pieces)}
    source = saved(reference("AlbertForMaskedLM", sizes), tmp_path / "theirs")
    (source / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces))
    import_run(str(source), tmp_path / "run")
    proof = export_run(str(tmp_path / "run"), "hf", tmp_path / "out")
    assert proof.passed, proof.text()
    assert "vocab.txt" in proof.notes[-1]
    assert not tokenizer_agrees(proof)
    assert "\n" not in proof.notes[-1]
