"""Model folders in the forms in which they are published: old names, other heads, tokenizers."""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import models, normalizers, pre_tokenizers, processors

import headway
from headway.errors import FolderError
from headway.interop.exporting import export_run
from headway.interop.importing import import_run
from headway.settings.folder import load_run
from headway.settings.model import DecoderSettings
from headway.tasks.loaded_run import open_plain

from .folders import PIECES, bert_folder, change
from .test_hf_encoders import BERT
from .test_hub import FakeHub
from .test_importing import LABELS
from .test_round_trip import same_bytes, write_words
from .theirs import LLAMA, NEOX, SIZE, check, flat, ours, padded, real, reference, saved, tokens

TEXTS = ["the film", "a long plot and the music of a scene", "ok", "an awful actor"]


def vector(answer: Any) -> Any:
    return np.array(answer.vector)


# Proteins

AMINO = ["<cls>", "<pad>", "<eos>", "<unk>", *"LAGVSERTIDPKQNFYMHWCXBUZO.-", "<null_1>", "<mask>"]
ESM2: dict[str, Any] = {"vocab_size": len(AMINO), "hidden_size": 32, "num_hidden_layers": 2}
ESM2 |= {"num_attention_heads": 4, "intermediate_size": 40, "max_position_embeddings": 64}
ESM2 |= {"position_embedding_type": "rotary", "token_dropout": True, "pad_token_id": 1}
ESM2 |= {"mask_token_id": AMINO.index("<mask>"), "emb_layer_norm_before": False}


def esm_folder(folder: Path, name: str = "EsmForMaskedLM", **more: Any) -> tuple[Path, Any]:
    theirs = reference(name, {**ESM2, **more})
    saved(theirs, folder)
    (folder / "vocab.txt").write_text("\n".join(AMINO))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "EsmTokenizer"}))
    return folder, theirs


@torch.no_grad()
def test_esm_scales_embeddings_by_the_share_of_masked_tokens(tmp_path: Path) -> None:
    folder, theirs = esm_folder(tmp_path / "esm")
    model = ours(folder)
    sequences = tokens([9, 5, 12, 3], len(AMINO) - 1)
    mask = AMINO.index("<mask>")
    sequences[0][[2, 5, 6]] = mask
    sequences[2][4] = mask
    batch = padded(sequences)
    batch["input_ids"] = batch["input_ids"].where(batch["attention_mask"].bool(), 1)
    check(model.scores(model(*flat(sequences))), real(theirs(**batch).logits, batch))


@pytest.mark.parametrize("to", ["hf", "onnx"])
def test_esm_as_published_comes_in_and_goes_out(to: str, tmp_path: Path) -> None:
    folder, theirs = esm_folder(tmp_path / "esm")
    path = folder / "model.safetensors"
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("Norm.bias", "Norm.beta"): t
        for name, t in load_file(path).items()
    }
    old["esm.embeddings.position_embeddings.weight"] = torch.zeros(64, 32)
    save_file(old, path)
    import_run(str(folder), tmp_path / "run")
    run = headway.load(str(tmp_path / "run"), device="cpu")
    text = "MKTAYIAK<mask>RQISFVKSHFSRQ"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    given = tokenizer(text, return_tensors="pt")
    with torch.no_grad():
        at = given["input_ids"][0].tolist().index(AMINO.index("<mask>"))
        logits_V = theirs(**given).logits[0, at]
    special = ["<cls>", "<pad>", "<eos>", "<unk>", "<mask>"]  # never an answer
    logits_V[[AMINO.index(name) for name in special]] = -torch.inf
    expected_V = logits_V.softmax(-1)
    found = {guess.word: guess.probability for guess in run(text).gaps[0]}
    for word, probability in found.items():
        assert probability == pytest.approx(float(expected_V[AMINO.index(word)]), abs=1e-5)
    proof = export_run(str(tmp_path / "run"), to, tmp_path / "out")
    assert proof.passed, proof.text()
    if to == "hf":
        same_bytes(folder, tmp_path / "out")
        # As a run of ours, without the record of its origin.
        (tmp_path / "run" / "import.json").unlink()
        proof = export_run(str(tmp_path / "run"), "hf", tmp_path / "again")
        assert proof.passed, proof.text()
        config = json.loads((tmp_path / "again" / "config.json").read_text())
        assert (config["token_dropout"], config["mask_token_id"]) == (True, ESM2["mask_token_id"])


@torch.no_grad()
@pytest.mark.parametrize("kind", ["Roberta", "DistilBert", "Albert", "Esm"])
def test_norms_may_have_gamma_and_beta_in_every_encoder(kind: str, tmp_path: Path) -> None:
    sizes = {"Roberta": {**BERT, "type_vocab_size": 1}, "Albert": BERT, "Esm": ESM2}
    distil = {"vocab_size": SIZE, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 40}
    theirs = reference(f"{kind}Model", sizes.get(kind, distil))
    path = saved(theirs, tmp_path) / "model.safetensors"
    plain = ours(tmp_path)
    old = {}
    for name, tensor in load_file(path).items():
        stem, _, last = name.rpartition(".")
        if stem.lower().endswith("norm"):  # some are saved so anyway
            name = f"{stem}.{ {'weight': 'gamma', 'bias': 'beta'}.get(last, last) }"
        old[name] = tensor
    assert any(name.endswith("gamma") for name in old)
    save_file(old, path)
    inputs = flat(tokens([5, 3], 30))
    assert torch.equal(ours(tmp_path)(*inputs), plain(*inputs))


# Bodies without a head for words


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "sizes"),
    [("LlamaModel", LLAMA), ("MistralModel", LLAMA), ("GPTNeoXModel", NEOX)],
)
def test_a_language_model_without_its_head_makes_vectors(
    name: str, sizes: dict[str, Any], tmp_path: Path
) -> None:
    theirs = reference(name, {**sizes, "tie_word_embeddings": False})
    folder = saved(theirs, tmp_path / "theirs")
    write_words(folder)
    done = import_run(str(folder), tmp_path / "run")
    assert done.settings.task == "embed"
    assert isinstance(done.settings.model, DecoderSettings)
    run = headway.load(str(tmp_path / "run"), device="cpu")
    texts = ["w1 w2 w3", "a b c w4 w5"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for text, answer in zip(texts, run(texts), strict=True):
        hidden_TD = theirs(torch.tensor([tokenizer(text)["input_ids"]])).last_hidden_state[0]
        np.testing.assert_allclose(vector(answer), hidden_TD[-1].numpy(), atol=2e-5)
    proof = export_run(str(tmp_path / "run"), "hf", tmp_path / "back")
    assert proof.passed, proof.text()
    same_bytes(folder, tmp_path / "back")


# Heads of several labels, and of one number

SEVERAL = {**LABELS, "problem_type": "multi_label_classification"}
ONE = {"id2label": {0: "LABEL_0"}, "label2id": {"LABEL_0": 0}}


@torch.no_grad()
def test_a_head_of_several_labels_answers_with_several(tmp_path: Path) -> None:
    folder, theirs = bert_folder(tmp_path / "bert", "BertForSequenceClassification", **SEVERAL)
    done = import_run(str(folder), tmp_path / "run")
    assert done.settings.classify.answer == "labels"
    run = headway.load(str(tmp_path / "run"), device="cpu")
    tokenizer = transformers.BertTokenizer(str(folder / "vocab.txt"), do_lower_case=True)
    for text, answer in zip(TEXTS, run(TEXTS), strict=True):
        p_C = theirs(**tokenizer(text, return_tensors="pt")).logits[0].sigmoid()
        found = [answer.to_dict()["probabilities"][name] for name in ("neg", "pos", "so")]
        np.testing.assert_allclose(found, p_C.numpy(), atol=1e-5)
    proof = export_run(str(tmp_path / "run"), "hf", tmp_path / "back")
    assert proof.passed, proof.text()


@torch.no_grad()
@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_a_head_of_one_output_answers_with_a_number(kind: str, tmp_path: Path) -> None:
    if kind == "bert":
        folder, theirs = bert_folder(tmp_path / "bert", "BertForSequenceClassification", **ONE)
        texts = TEXTS
    else:
        sizes = {**LLAMA, **ONE, "pad_token_id": 0}
        theirs = reference("LlamaForSequenceClassification", sizes)
        folder, texts = saved(theirs, tmp_path / "llama"), ["w1 w2 w3", "a b c w4 w5"]
        write_words(folder)
        theirs.config.pad_token_id = None
    done = import_run(str(folder), tmp_path / "run")
    assert done.settings.classify.answer == "number"
    run = headway.load(str(tmp_path / "run"), device="cpu")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for text, answer in zip(texts, run(texts), strict=True):
        logit = theirs(torch.tensor([tokenizer(text)["input_ids"]])).logits
        assert answer.value == pytest.approx(float(logit), abs=2e-5)
    proof = export_run(str(tmp_path / "run"), "hf", tmp_path / "back")
    assert proof.passed, proof.text()


@torch.no_grad()
def test_a_cross_encoder_reads_pairs(tmp_path: Path) -> None:
    """A reranker of sentence-transformers has its own keys in config.json."""
    folder, theirs = bert_folder(tmp_path / "bert", "BertForSequenceClassification", **ONE)
    facts = {"activation_fn": "torch.nn.modules.activation.Sigmoid", "version": "5.0.0"}
    change(folder / "config.json", sentence_transformers=facts)
    done = import_run(str(folder), tmp_path / "run")
    assert done.settings.data.other_field
    assert any("Sigmoid" in note for note in done.notes)
    run = headway.load(str(tmp_path / "run"), device="cpu")
    tokenizer = transformers.BertTokenizer(str(folder / "vocab.txt"), do_lower_case=True)
    pairs = list(pairwise(TEXTS))
    for (one, other), answer in zip(
        pairs, run([{"text": a, "other": b} for a, b in pairs]), strict=True
    ):
        logit = theirs(**tokenizer(one, other, return_tensors="pt")).logits
        assert answer.value == pytest.approx(float(logit), abs=2e-5)


@pytest.mark.parametrize("answer", ["labels", "number"])
def test_own_runs_of_several_labels_and_numbers_are_exported(answer: str, tmp_path: Path) -> None:
    kinds = {"labels": SEVERAL, "number": ONE}
    folder, _ = bert_folder(tmp_path / "bert", "BertForSequenceClassification", **kinds[answer])
    import_run(str(folder), tmp_path / "run")
    (tmp_path / "run" / "import.json").unlink()
    config = tmp_path / "run" / "config.toml"
    if answer == "number":  # answers are 3 times the output and 5
        text = config.read_text()
        assert "[classify]" in text
        text = text.partition("\n")[2]  # without its checksum
        config.write_text(text.replace("[classify]", "[classify]\nmean = 5.0\nstd = 3.0"))
        assert load_run(tmp_path / "run").classify.std == 3.0
    proof = export_run(str(tmp_path / "run"), "hf", tmp_path / "out")
    assert proof.passed, proof.text()
    theirs = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    run = headway.load(str(tmp_path / "run"), device="cpu")
    for text, result in zip(TEXTS, run(TEXTS), strict=True):
        with torch.no_grad():
            logits_C = theirs(**tokenizer(text, return_tensors="pt")).logits[0]
        if answer == "number":
            assert theirs.config.problem_type == "regression"
            assert result.value == pytest.approx(float(logits_C[0]), abs=5e-5)
        else:
            assert theirs.config.problem_type == "multi_label_classification"
            found = list(result.to_dict()["probabilities"].values())
            np.testing.assert_allclose(found, logits_C.sigmoid().numpy(), atol=1e-5)


# CamemBERT


@torch.no_grad()
@pytest.mark.parametrize("kind", ["ForMaskedLM", "ForSequenceClassification", "Model"])
def test_camembert_is_read_and_given_back(kind: str, tmp_path: Path) -> None:
    sizes = {**BERT, "type_vocab_size": 1, "vocab_size": SIZE}
    theirs = reference(f"Camembert{kind}", sizes | ({} if kind == "Model" else LABELS))
    folder = saved(theirs, tmp_path / "theirs")
    write_words(folder)
    import_run(str(folder), tmp_path / "run")
    proof = export_run(str(tmp_path / "run"), "hf", tmp_path / "back")
    assert proof.passed, proof.text()
    same_bytes(folder, tmp_path / "back")


# Adapters


ADAPTER = {"peft_type": "LORA", "base_model_name_or_path": "someone/base-model", "r": 8}


@pytest.mark.parametrize("hub", [False, True], ids=["folder", "hub"])
def test_an_adapter_of_peft_is_named_with_the_way_to_merge_it(
    hub: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps(ADAPTER))
    save_file(
        {"base_model.model.lora_A.weight": torch.zeros(2)}, folder / "adapter_model.safetensors"
    )
    name = str(folder)
    if hub:
        monkeypatch.setitem(sys.modules, "huggingface_hub", FakeHub(folder, tmp_path / "store"))
        name = "someone/adapter"
    with pytest.raises(FolderError) as raised:
        import_run(name, tmp_path / "run")
    found = str(raised.value)
    assert "LORA" in found
    assert "someone/base-model" in found
    assert "merge_and_unload" in found


# Tokenizers without a rule of special tokens


def without_rule(folder: Path, kind: str | None, rule: Any = None) -> Path:
    """BERT with a tokenizer.json alone. `kind`: the class in tokenizer_config.json, if any."""
    bert_folder(folder, "BertForSequenceClassification", **LABELS)
    (folder / "vocab.txt").unlink()
    (folder / "tokenizer_config.json").unlink()
    numbers = {piece: i for i, piece in enumerate(PIECES)}
    inner = tokenizers.Tokenizer(models.WordPiece(numbers, unk_token="[UNK]"))
    inner.normalizer = normalizers.BertNormalizer(lowercase=True)
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.add_special_tokens(PIECES[:5])
    if rule is not None:
        inner.post_processor = rule
    inner.save(str(folder / "tokenizer.json"))
    if kind:
        names = dict(zip(("pad", "unk", "cls", "sep", "mask"), PIECES[:5], strict=True))
        facts = {f"{part}_token": name for part, name in names.items()}
        (folder / "tokenizer_config.json").write_text(
            json.dumps({"tokenizer_class": kind, **facts})
        )
    return folder


CLS_ALONE = processors.TemplateProcessing(
    single="[CLS] $A", pair="[CLS] $A $B:1", special_tokens=[("[CLS]", 2)]
)
FILES = {
    "generic": ("PreTrainedTokenizerFast", None),
    "of its model": ("BertTokenizer", None),
    "no class": (None, None),
    "generic, first token alone": ("PreTrainedTokenizerFast", CLS_ALONE),
    "of its model, with a rule": (
        "BertTokenizer", processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))),
}  # fmt: skip


@torch.no_grad()
@pytest.mark.parametrize("pairs", [False, True], ids=["texts", "pairs"])
@pytest.mark.parametrize("name", FILES)
def test_special_tokens_are_those_of_the_tokenizers_own_files(
    name: str, pairs: bool, tmp_path: Path
) -> None:
    folder = without_rule(tmp_path / "bert", *FILES[name])
    words = ["data.other_field=other"] if pairs else []
    import_run(str(folder), tmp_path / "run", words=words)
    proof = export_run(str(tmp_path / "run"), "hf", tmp_path / "back")
    assert proof.passed, proof.text()
    theirs = transformers.BertForSequenceClassification.from_pretrained(folder).eval()
    run = headway.load(str(tmp_path / "run"), device="cpu")
    lines: list[dict[str, str]] = [{"text": text} for text in TEXTS]
    if pairs:
        lines = [{"text": a, "other": b} for a, b in pairwise(TEXTS)]
    for place in (folder, tmp_path / "back"):
        tokenizer = transformers.AutoTokenizer.from_pretrained(place)
        for line, answer in zip(lines, run(lines), strict=True):
            given = tokenizer(*line.values(), return_tensors="pt", return_token_type_ids=True)
            p_C = theirs(**given).logits[0].softmax(-1)
            found = list(answer.to_dict()["probabilities"].values())
            np.testing.assert_allclose(found, p_C.numpy(), atol=1e-5)
    vocab = open_plain(str(tmp_path / "run")).vocab.source
    assert len(vocab.encode("the film")) == 2
