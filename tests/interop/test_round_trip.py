"""Import, then export: the same tensors, names, types and bytes, and what lies beside them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from safetensors.torch import load_file, save_file
from tokenizers import models, pre_tokenizers, processors

from headway.cli.main import main
from headway.errors import FolderError
from headway.interop.exporting import export_run
from headway.interop.importing import import_run

from .folders import bert_folder
from .ours import tokenizer_agrees
from .test_hf_decoders import DECODERS
from .test_hf_seq2seq import PAIRS, SUMMARY
from .theirs import SIZE, reference, saved

SPECIALS = ["<pad>", "</s>", "<unk>", "<s>", "<mask>"]
LETTERS = [chr(ord("a") + i) for i in range(26)] + [str(i) for i in range(10)]


def write_words(folder: Path, size: int = SIZE) -> None:
    """A tokenizer.json of so many words; those of translators put an end behind a text."""
    words = [*SPECIALS, *LETTERS, *(f"w{i}" for i in range(size))][:size]
    inner = tokenizers.Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, "<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.add_special_tokens(SPECIALS)
    config = folder / "config.json"
    kind = json.loads(config.read_text()) if config.is_file() else {}
    if kind.get("is_encoder_decoder") and kind["model_type"] != "whisper":
        single = "</s> $A </s>" if kind["model_type"] == "bart" else "$A </s>"
        end = [("</s>", SPECIALS.index("</s>"))]
        inner.post_processor = processors.TemplateProcessing(single=single, special_tokens=end)
    inner.save(str(folder / "tokenizer.json"))
    facts = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>"}
    facts |= {"eos_token": "</s>", "pad_token": "<pad>", "bos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(facts))


def same_bytes(one: Path, other: Path) -> None:
    before, after = load_file(one / "model.safetensors"), load_file(other / "model.safetensors")
    assert list(before) == list(after)
    for name, tensor in before.items():
        assert tensor.dtype == after[name].dtype, name
        assert (
            tensor.reshape(-1).view(torch.uint8).equal(after[name].reshape(-1).view(torch.uint8))
        ), name


NAMES = ["gpt2", "gpt2, untied", "gpt", "llama, biases", "llama, llama3 scaling", "neox",
         "mistral, a window", "qwen3, norms on q and k", "marian", "marian, softmax apart",
         "marian, other sides", "bart", "pegasus", "t5", "t5 1.1"]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_what_comes_in_goes_out(name: str, tmp_path: Path) -> None:
    theirs = reference(*(DECODERS | PAIRS)[name])
    source = saved(theirs, tmp_path / "theirs")
    write_words(source)
    import_run(str(source), tmp_path / "run")
    proof = export_run(str(tmp_path / "run"), "hf", tmp_path / "out")
    assert proof.passed, proof.text()
    assert proof.max_difference < 1e-4
    same_bytes(source, tmp_path / "out")
    for beside in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        before, after = (json.loads((f / beside).read_text()) for f in (source, tmp_path / "out"))
        assert before == after


@pytest.mark.parametrize("name", ["BertForPreTraining", "BertModel", "BertForTokenClassification"])
def test_encoders_go_out_as_they_came(name: str, tmp_path: Path) -> None:
    source, _ = bert_folder(tmp_path / "theirs", name)
    import_run(str(source), tmp_path / "run")
    assert export_run(str(tmp_path / "run"), "hf", tmp_path / "out").passed
    same_bytes(source, tmp_path / "out")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_comes_back_bit_for_bit(dtype: torch.dtype, tmp_path: Path) -> None:
    """Each number is exact in fp32. Their scores are compared in fp32 too."""
    source = saved(reference(*PAIRS["bart"]).to(dtype), tmp_path / "theirs")
    write_words(source)
    import_run(str(source), tmp_path / "run")
    assert export_run(str(tmp_path / "run"), "hf", tmp_path / "out").passed
    same_bytes(source, tmp_path / "out")


def test_tensors_without_a_place_come_back_too(tmp_path: Path) -> None:
    source = saved(reference(*DECODERS["gpt2"]), tmp_path / "theirs")
    write_words(source)
    tensors = load_file(source / "model.safetensors")
    tensors["lm_head.weight"] = tensors["transformer.wte.weight"].clone()
    tensors["transformer.h.0.attn.bias"] = torch.ones(1, 1, 16, 16, dtype=torch.uint8).tril()
    tensors["transformer.h.1.attn.masked_bias"] = torch.tensor(-1e4)
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    found = import_run(str(source), tmp_path / "run")
    assert len(found.ignored) == 2
    export_run(str(tmp_path / "run"), "hf", tmp_path / "out")
    same_bytes(source, tmp_path / "out")


def test_a_pickle_comes_back_as_safetensors(tmp_path: Path) -> None:
    theirs = reference(*DECODERS["llama"])
    source = saved(theirs, tmp_path / "theirs")
    write_words(source)
    (source / "model.safetensors").rename(tmp_path / "model.safetensors")
    torch.save(theirs.state_dict(), source / "pytorch_model.bin")
    import_run(str(source), tmp_path / "run")
    export_run(str(tmp_path / "run"), "hf", tmp_path / "out")
    same_bytes(tmp_path, tmp_path / "out")


def test_a_record_of_an_import_that_does_not_fit_is_an_error(tmp_path: Path) -> None:
    source = saved(reference(*DECODERS["llama"]), tmp_path / "theirs")
    write_words(source)
    import_run(str(source), tmp_path / "run")
    note = tmp_path / "run" / "import.json"
    facts = json.loads(note.read_text())
    facts.pop("sha256")  # a file written by hand has none
    for tensors in ({"model.more.weight": "float32"}, {"lm_head.weight": "no type"}):
        note.write_text(json.dumps({**facts, "tensors": facts["tensors"] | tensors}))
        [name] = tensors
        with pytest.raises(FolderError, match=rf"import\.json\b.*\b{re.escape(name)}"):
            export_run(str(tmp_path / "run"), "hf", tmp_path / "out")


def test_how_to_decode_comes_back(tmp_path: Path) -> None:
    source = saved(reference(*PAIRS["bart"]), tmp_path / "theirs")
    write_words(source)
    (source / "generation_config.json").write_text(json.dumps(SUMMARY))
    assert main(["import", str(source), "--out", str(tmp_path / "run")]) == 0
    assert main(["export", str(tmp_path / "run"), "--to", "hf", "--out", str(tmp_path / "o")]) == 0
    assert json.loads((tmp_path / "o" / "generation_config.json").read_text()) == SUMMARY


def test_an_imported_language_model_that_was_changed_goes_out_by_itself(tmp_path: Path) -> None:
    """A run trained from an import has no import.json: it is written as any run of ours, with a
    tokenizer that adds what we add."""
    source = saved(reference(*DECODERS["llama, one key head"]), tmp_path / "theirs")
    write_words(source)
    import_run(str(source), tmp_path / "run")
    (tmp_path / "run" / "import.json").unlink()
    proof = export_run(str(tmp_path / "run"), "hf", tmp_path / "out")
    assert proof.passed, proof.text()
    assert tokenizer_agrees(proof)
    same: dict[str, Any] = json.loads((tmp_path / "out" / "config.json").read_text())
    assert same["architectures"] == ["LlamaForCausalLM"]
