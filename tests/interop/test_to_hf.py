"""Runs as folders of `transformers`: loaded there they say the same, and imports go back whole."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import headway
from headway.cli.main import main
from headway.errors import UserError
from headway.interop.exporting import export_run
from headway.interop.families import family_named
from headway.interop.hf.proof import prove
from headway.interop.hf.sentence_transformers import SentenceFolder
from headway.interop.importing import import_run
from headway.interop.proof import Proof
from headway.interop.proof_inputs import compute_cases, proof_items, proof_sentences
from headway.models.folder import save_weights
from headway.settings.decode import DecodeSettings
from headway.settings.model import RopeSettings, StackSettings
from headway.settings.task_rows import spec_of
from headway.specs.task_settings import EmbedSettings
from headway.tasks.loaded_run import open_plain, open_run
from headway.tasks.seq2seq_answers import writer_of

from ..facts import missing
from .ours import save_run, settings_of, tensors_named, tokenizer_agrees

ROTARY: dict[str, Any] = {"positions": "rotary"}
LLAMA: dict[str, Any] = {**ROTARY, "norm": "rms", "activation": "swiglu", "ff_bias": False}
LLAMA |= {"attention_bias": ""}
T5: dict[str, Any] = {
    "block_layout": "pre",
    "norm": "rms",
    "positions": "relative",
    "ff_bias": False,
}
T5 |= {"embedding_scale": False, "scale_attention": False}
ESM: dict[str, Any] = {
    **ROTARY,
    "block_layout": "pre",
    "attention_bias": "",
    "embedding_norm": False,
}
ESM |= {"n_segments": 0, "pooling": "mean"}
GATE: dict[str, Any] = {"activation": "geglu-tanh", "tie": "source-target"}
ROPE3: dict[str, Any] = {"scaling": "llama3", "factor": 8.0, "trained_len": 16}


def rope(**values: Any) -> dict[str, Any]:
    return {"rope": RopeSettings(**values)}


RUNS: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "learned": ("decoder", "complete", "GPT2LMHeadModel", {}),
    "learned, few biases, untied, relu": (
        "decoder", "complete", "GPT2LMHeadModel",
        {"attention_bias": "qo", "ff_bias": False, "tie": False, "activation": "relu"}),
    "post-norm": ("decoder", "complete", "OpenAIGPTLMHeadModel", {"block_layout": "post",
    "d_ff": 128}),
    "llama, grouped": ("decoder", "complete", "LlamaForCausalLM", {**LLAMA, "n_kv_heads": 2}),
    "llama, some biases, untied": (
        "decoder", "complete", "LlamaForCausalLM", {**LLAMA, "attention_bias": "qv", "tie": False}),
    "llama, ntk": ("decoder", "complete", "LlamaForCausalLM",
                   {**LLAMA, **rope(scaling="ntk", factor=4.0), "d_head": 6}),
    "llama, llama3": ("decoder", "complete", "LlamaForCausalLM", {**LLAMA, **rope(**ROPE3)}),
    "a window": ("decoder", "complete", "MistralForCausalLM", {**LLAMA, "window": 3}),
    "norms on q and k": ("decoder", "complete", "Qwen3ForCausalLM", {**LLAMA, "qk_norm": True}),
    "our own": ("decoder", "complete", "GPTNeoXForCausalLM", {**ROTARY, "attention_bias": ""}),
    "our own, relu2": ("decoder", "complete", "GPTNeoXForCausalLM",
                       {**ROTARY, "attention_bias": "k", "activation": "relu2"}),
    "our own, tags": ("decoder", "tag", "GPTNeoXForTokenClassification",
                      {**ROTARY, "heads": ("tags",)}),
    "vectors of a decoder": ("decoder", "embed", "GPT2Model", {"heads": ()}),
    "bert": ("encoder", "fill", "BertForMaskedLM", {"heads": ("words",)}),
    "bert, untied": ("encoder", "fill", "BertForMaskedLM", {"heads": ("words",), "tie": False}),
    "bert, classes": ("encoder", "classify", "BertForSequenceClassification",
                      {"heads": ("pooled", "classes")}),
    "bert, tags": ("encoder", "tag", "BertForTokenClassification", {"heads": ("tags",)}),
    "bert, vectors": ("encoder", "embed", "BertModel", {"heads": ("pooled",)}),
    "roberta, classes": (
        "encoder", "classify", "BertForSequenceClassification",
        {"heads": ("classes", "pooled"), "n_segments": 1},
    ),
    "distilbert, classes": (
        "encoder", "classify", "DistilBertForSequenceClassification",
        {"heads": ("classes", "pooled"), "n_segments": 0, "pooler": "relu"},
    ),
    "albert": (
        "encoder", "fill", "AlbertForMaskedLM",
        {"heads": ("words",), "d_embedding": 20, "share_layers": True},
    ),
    "albert, untied": (
        "encoder", "fill", "AlbertForMaskedLM",
        {"heads": ("words",), "d_embedding": 20, "share_layers": True, "tie": False},
    ),
    "our own, words": ("encoder", "fill", "EsmForMaskedLM", {**ESM, "heads": ("words",)}),
    "our own encoder, tags": ("encoder", "tag", "EsmForTokenClassification",
                              {**ESM, "heads": ("tags",)}),
    "our own, vectors": ("encoder", "embed", "EsmModel", {**ESM, "heads": ()}),
    "2017": ("seq2seq", "translate", "MarianMTModel", {}),
    "2017, halves": ("seq2seq", "translate", "MarianMTModel",
                     {"positions": "sinusoidal-halves", "decoder": StackSettings(n_layers=1),
                      "head_bias": True}),
    "2017, two vocabularies": ("seq2seq", "translate", "MarianMTModel", {"tie": "target-softmax"}),
    "2017, nothing tied": ("seq2seq", "translate", "MarianMTModel", {"tie": "none"}),
    "2017, one embedding": ("seq2seq", "translate", "MarianMTModel", {"tie": "source-target"}),
    "2017, other sides": (
        "seq2seq", "translate", "MarianMTModel",
        {"decoder": StackSettings(n_layers=1, n_heads=2, d_ff=24)},
    ),
    "our own translator": ("seq2seq", "translate", "PegasusForConditionalGeneration",
                           {"block_layout": "pre", "activation": "gelu"}),
    "bart": ("seq2seq", "translate", "BartForConditionalGeneration",
             {"positions": "learned", "embedding_norm": True, "attention_bias": "qkv"}),
    "t5": ("seq2seq", "translate", "T5ForConditionalGeneration", {**T5, "scale_head": True}),
    "t5 1.1": ("seq2seq", "translate", "T5ForConditionalGeneration", {**T5, **GATE, "d_head": 6}),
}  # fmt: skip


@pytest.mark.parametrize("name", RUNS)
def test_a_run_of_ours_is_loaded_whole_and_gives_the_same_scores(name: str, tmp_path: Path) -> None:
    family, task, cls, changes = RUNS[name]
    save_run(tmp_path / "run", settings_of(family, task, **changes))
    proof = export_run(str(tmp_path / "run"), "hf", tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["architectures"] == [cls]
    check(proof)
    assert json.loads((tmp_path / "out" / "proof.json").read_text())["passed"] is True
    assert tensors_named(proof) == []  # none missing, none too many


def check(proof: Proof, tolerance: float = 1e-4) -> None:
    assert proof.passed, proof.text()
    assert proof.by.startswith("transformers")
    assert proof.max_difference < tolerance
    assert proof.equal_outputs == 1
    assert tokenizer_agrees(proof)


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"n_heads": 2, "d_head": 8}, ("model.decoder.n_heads", "2", "4")),
        ({"d_ff": 24}, ("model.decoder.d_ff", "24", "40")),
        ({"d_head": 6}, ("model.decoder.d_head", "6", "8")),
        ({"activation": "gelu"}, ("model.decoder.activation", "'gelu'", "'relu'")),
        ({"norm_eps": 1e-3}, ("model.decoder.norm_eps", "0.001", "1e-06")),
        ({"n_kv_heads": 2}, ("model.decoder.n_kv_heads", "2", "4")),
    ],
)
def test_a_format_with_equal_sides_rejects_others(
    changes: dict[str, Any], facts: tuple[str, ...]
) -> None:
    """T5 has one number of heads and one width for both."""
    decoder = StackSettings(**changes)
    settings = settings_of("seq2seq", "translate", **T5, scale_head=True, decoder=decoder)
    with pytest.raises(UserError) as caught:
        family_named("t5").write(settings)
    assert not missing(caught.value, "T5", *facts)


def test_transformers_writes_what_we_write(tmp_path: Path) -> None:
    """Through its own tokenizer and `generate`: the special tokens are where we put them."""
    decode = DecodeSettings(beam=1, max_len=20, extra_len=20, no_repeat_ngram=2)
    settings = settings_of("seq2seq", "translate", tie="source-target")
    save_run(tmp_path / "run", replace(settings, decode=decode))
    export_run(str(tmp_path / "run"), "hf", tmp_path / "out")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out")
    lines = ["a dog runs", "is this good or bad ?", "the price"]
    found = []
    for line in lines:
        ids_1T = model.generate(**tokenizer(line, return_tensors="pt"))
        found.append(tokenizer.decode(ids_1T[0], skip_special_tokens=True).strip())
    one_less = replace(decode, max_len=19)  # their last token is the end
    translator = writer_of(open_run(tmp_path / "run", device="cpu"), one_less)
    assert [translation.text for translation in translator.write(lines)] == found
    assert len({word for text in found for word in text.split()}) > 3


def test_a_classifier_needs_what_transformers_has(tmp_path: Path) -> None:
    settings = settings_of("decoder", "classify", heads=("classes",))
    run = save_run(tmp_path / "run", settings)
    with pytest.raises(UserError, match=r"\bheads\.classes\.linear\.bias\b"):
        export_run(str(run), "hf", tmp_path / "out")
    weights = load_file(run / "model.safetensors")
    save_weights(run, weights | {"heads.classes.linear.bias": torch.zeros(3)})
    check(export_run(str(run), "hf", tmp_path / "out"))
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["id2label"] == {"0": "no", "1": "yes", "2": "maybe"}
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    lines = ["a dog runs across the wet grass", "the price"]
    with torch.no_grad():
        together_BC = model(**tokenizer(lines, padding=True, return_tensors="pt")).logits
    loaded = open_plain(str(run))
    ours = [torch.tensor(r.scores[0]) for r in compute_cases(loaded, proof_items(loaded, lines))]
    torch.testing.assert_close(together_BC, torch.stack(ours), atol=1e-5, rtol=0)
    mean = settings_of("encoder", "classify", heads=("pooled", "classes"), pooling="mean")
    save_run(tmp_path / "mean", mean)
    with pytest.raises(UserError, match=r"model\.pooling=mean\b.*model\.pooling=first\b"):
        export_run(str(tmp_path / "mean"), "hf", tmp_path / "no")
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    ("family", "task", "changes", "reasons"),
    [
        ("decoder", "complete", {"positions": "alibi"},
         [("gpt2", "model.positions", "'alibi'", "'learned'"), ("openai-gpt", "model.block_layout"),
          ("llama", "'gelu-tanh'"), ("gpt_neox", "model.positions", "'alibi'", "'rotary'")]),
        ("decoder", "complete", {**ROTARY, "activation": "swiglu"},
         [("gpt2", "activation='swiglu'"), ("llama", "model.norm", "'layer'", "'rms'")]),
        ("decoder", "complete", {"block_layout": "parallel", **ROTARY},
         [("gpt2", "model.block_layout", "'parallel'", "'pre'"), ("gpt_neox",
         "model.block_layout")]),
        ("encoder", "fill", {"heads": ("words",), "positions": "alibi"},
         [("bert", "model.positions", "'alibi'"), ("esm", "model.block_layout", "'post'",
         "'pre'")]),
        ("seq2seq", "translate", {"activation": "swiglu"},
         [("marian", "activation='swiglu'"), ("t5", "model.norm", "'layer'", "'rms'")]),
        ("seq2seq", "translate", {**T5, "scale_attention": True},
         [("t5", "model.scale_attention", "true", "false")]),
    ],
)  # fmt: skip
def test_a_run_without_an_architecture_is_an_error_with_every_reason(
    family: str,
    task: str,
    changes: dict[str, Any],
    reasons: list[tuple[str, ...]],
    tmp_path: Path,
) -> None:
    save_run(tmp_path / "run", settings_of(family, task, **changes))
    with pytest.raises(UserError, match=rf"(?s)\b{family}\b.*to=.onnx.") as error:
        export_run(str(tmp_path / "run"), "hf", tmp_path / "out")
    lines = str(error.value).splitlines()
    for facts in reasons:
        assert sum(not missing(line, *facts) for line in lines) == 1, (facts, lines)
    assert not (tmp_path / "out").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_without_transformers_the_folder_is_imported_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    for name in ("our own, vectors", "our own translator", "llama, ntk"):
        family, task, _, changes = RUNS[name]
        save_run(tmp_path / name, settings_of(family, task, **changes))
        proof = export_run(str(tmp_path / name), "hf", tmp_path / f"{name} out")
        assert proof.passed
        assert proof.by == "headway"
        assert "transformers" in proof.notes[-1]


def test_a_damaged_export_fails_its_proof(tmp_path: Path) -> None:
    run = save_run(tmp_path / "run", settings_of("decoder", "complete"))
    out = tmp_path / "out"
    export_run(str(run), "hf", out)
    tensors = load_file(out / "model.safetensors")
    tensors["transformer.h.1.mlp.c_fc.bias"][3] += 0.1
    tensors["more"] = tensors.pop("transformer.ln_f.bias")
    save_file(tensors, out / "model.safetensors", {"format": "pt"})
    proof = prove(open_plain(str(run)), out, proof_sentences())
    assert not proof.passed
    assert tensors_named(proof) == ["transformer.ln_f.bias"]
    found = [note for note in proof.notes if "GPT2LMHeadModel" in note]
    assert [not missing(note, "more") for note in found] == [False, True]


def test_sentence_vectors_come_with_their_modules(tmp_path: Path) -> None:
    settings = settings_of("encoder", "embed", **ESM, heads=())
    save_run(tmp_path / "run", settings)
    export_run(str(tmp_path / "run"), "hf", tmp_path / "out")
    folder = SentenceFolder(tmp_path / "out")
    assert (folder.pooling, folder.normalise) == ("mean", True)
    plain = replace(settings, embed=EmbedSettings(normalise=False))
    save_run(tmp_path / "plain", plain)
    export_run(str(tmp_path / "plain"), "hf", tmp_path / "plain out")
    assert not SentenceFolder(tmp_path / "plain out").normalise


@pytest.mark.slow
@pytest.mark.parametrize("name", ["stories", "tatoeba-de-en", "tatoeba-en-de"])
def test_shipped_models_go_to_transformers_and_back(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Imported again they write the same, with the run's own length penalty, which is not said
    there."""
    check(export_run(name, "hf", tmp_path / "hf"), tolerance=2e-3)
    import_run(str(tmp_path / "hf"), tmp_path / "run")
    capsys.readouterr()
    lines = tmp_path / "in.txt"
    lines.write_text("Once upon a time\nA dog sleeps.\nIch gehe heute nach Hause.\n")
    words = ["decode.sample=false", "decode.max_len=20"]
    words += ["decode.extra_len=50"] * ("extra_len" in spec_of(headway.load(name).task).decode)
    words += ["decode.length_penalty=gnmt", "decode.length_penalty_alpha=0.6", "decode.unknown=ban"]
    found = []
    for run in (name, str(tmp_path / "run")):
        assert main(["predict", run, str(lines), *words]) == 0
        found.append(capsys.readouterr().out)
    assert found[0] == found[1]
    assert len(found[0].split()) > 10
