"""From a folder with its own tokenizer to answers, beside `transformers` doing the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
import torch
import transformers
from tokenizers import ByteLevelBPETokenizer

from headway.interop.importing import import_run

from .folders import bert_folder
from .test_importing import LABELS, predicted
from .theirs import reference, saved

TEXTS = ["the film", "a long plot, and the music of a scene!", "ok", "Ada saw the river in Lagos"]
TEXTS += ["naïve façade — 日本 😀"]
TRAINING = [*TEXTS, "the actor went to the scene and then saw a great film", "awful plots"] * 4
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
SMALL |= {"intermediate_size": 40, "max_position_embeddings": 80}


def byte_pairs(folder: Path, specials: list[str]) -> int:
    """GPT-2's two files, and how many tokens they hold."""
    folder.mkdir(parents=True, exist_ok=True)
    made = ByteLevelBPETokenizer()
    made.train_from_iterator(TRAINING, vocab_size=330, special_tokens=specials, show_progress=False)
    made.save_model(str(folder))
    return int(made.get_vocab_size())


def roberta_folder(folder: Path) -> Any:
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    sizes = {**SMALL, "vocab_size": byte_pairs(folder, specials), "type_vocab_size": 1}
    theirs = reference("RobertaForSequenceClassification", {**sizes, **LABELS})
    saved(theirs, folder)
    return theirs


def check_classes(run: Path, theirs: Any, tokenizer: Any, tmp_path: Path, pairs: bool) -> None:
    """All probabilities of texts, or of pairs of texts, are theirs."""
    others = TEXTS[1:] + TEXTS[:1]
    lines = [f"{a}\t{b}" for a, b in zip(TEXTS, others, strict=True)] if pairs else TEXTS
    for number, answer in enumerate(predicted(run, lines, tmp_path)):
        both = (TEXTS[number], others[number]) if pairs else (TEXTS[number],)
        with torch.no_grad():
            p_C = theirs(**tokenizer(*both, return_tensors="pt")).logits[0].softmax(-1)
        found = np.array(list(answer["probabilities"].values()))
        assert np.abs(found - p_C.numpy()).max() < 1e-5, both


AS_PAIRS = ["data.other_field=other"]


@pytest.mark.parametrize("pairs", [False, True], ids=["texts", "pairs"])
def test_roberta_classifies_as_theirs(pairs: bool, tmp_path: Path) -> None:
    theirs = roberta_folder(tmp_path / "roberta")
    import_run(str(tmp_path / "roberta"), tmp_path / "run", words=AS_PAIRS if pairs else ())
    files = {"vocab": "vocab.json", "merges": "merges.txt"}
    tokenizer = transformers.RobertaTokenizer(
        **{name: str(tmp_path / "roberta" / file) for name, file in files.items()}
    )
    check_classes(tmp_path / "run", theirs, tokenizer, tmp_path, pairs)


@pytest.mark.parametrize("pairs", [False, True], ids=["texts", "pairs"])
def test_bert_classifies_as_theirs(pairs: bool, tmp_path: Path) -> None:
    sizes = {**LABELS, "max_position_embeddings": 64}
    folder, theirs = bert_folder(tmp_path / "bert", "BertForSequenceClassification", **sizes)
    import_run(str(folder), tmp_path / "run", words=AS_PAIRS if pairs else ())
    tokenizer = transformers.BertTokenizer(str(folder / "vocab.txt"), do_lower_case=True)
    check_classes(tmp_path / "run", theirs, tokenizer, tmp_path, pairs)


def test_gpt2_writes_as_theirs(tmp_path: Path) -> None:
    folder = tmp_path / "gpt2"
    size = byte_pairs(folder, ["<|endoftext|>"])
    sizes = {"vocab_size": size, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
    sizes |= {"bos_token_id": 0, "eos_token_id": 0, "tie_word_embeddings": False}
    theirs = reference("GPT2LMHeadModel", sizes)
    saved(theirs, folder)
    import_run(str(folder), tmp_path / "run")
    answers = predicted(tmp_path / "run", TEXTS, tmp_path, "decode.max_len=12")
    tokenizer = transformers.GPT2Tokenizer(
        vocab=str(folder / "vocab.json"), merges=str(folder / "merges.txt")
    )
    for text, answer in zip(TEXTS, answers, strict=True):
        ids = tokenizer(text)["input_ids"]  # with nothing before them, as its files say
        out = theirs.generate(torch.tensor([ids]), max_new_tokens=12, do_sample=False)
        expected = tokenizer.decode(out[0, len(ids) :], skip_special_tokens=True)
        assert answer["outputs"][0]["text"] == expected, text


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_t5_writes_as_theirs(tmp_path: Path) -> None:
    folder = tmp_path / "t5"
    folder.mkdir()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TRAINING), model_prefix=str(folder / "spiece"), vocab_size=60,
        pad_id=0, eos_id=1, unk_id=2, bos_id=-1, hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    words = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spiece.model"))
    sizes = {"vocab_size": words.vocab_size(), "d_model": 32, "num_layers": 2, "num_heads": 4}
    sizes |= {"d_kv": 8, "d_ff": 40, "decoder_start_token_id": 0, "pad_token_id": 0}
    sizes |= {"eos_token_id": 1}
    theirs = reference("T5ForConditionalGeneration", sizes)
    theirs.generation_config.max_new_tokens = 12
    saved(theirs, folder)
    import_run(str(folder), tmp_path / "run")
    answers = predicted(tmp_path / "run", TEXTS, tmp_path, "decode.unknown=keep")
    compared = 0
    for text, answer in zip(TEXTS, answers, strict=True):
        out = theirs.generate(torch.tensor([[*words.encode(text), 1]]), do_sample=False)
        ids = out[0, 1:].tolist()
        ids = ids[: ids.index(1)] if 1 in ids else ids
        if min(ids) > 2:  # else there are marks that only one side prints
            compared += 1
            assert answer["outputs"][0]["text"] == words.decode(ids), text
    assert compared > 2


SEQ2SEQ = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4}
SEQ2SEQ |= {"decoder_attention_heads": 4, "encoder_ffn_dim": 40, "decoder_ffn_dim": 40}
SEQ2SEQ |= {"max_position_embeddings": 80}


def test_bart_writes_as_theirs(tmp_path: Path) -> None:
    folder = tmp_path / "bart"
    size = byte_pairs(folder, ["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    theirs = reference("BartForConditionalGeneration", {**SEQ2SEQ, "vocab_size": size})
    options = {"max_new_tokens": 12, "forced_bos_token_id": 0, "forced_eos_token_id": None}
    theirs.generation_config.update(**options)
    saved(theirs, folder)
    import_run(str(folder), tmp_path / "run")
    tokenizer = transformers.BartTokenizer(
        vocab=str(folder / "vocab.json"), merges=str(folder / "merges.txt")
    )
    answers = predicted(tmp_path / "run", TEXTS, tmp_path)
    for text, answer in zip(TEXTS, answers, strict=True):
        out = theirs.generate(**tokenizer(text, return_tensors="pt"), do_sample=False)
        assert out[0, :2].tolist() == [2, 0]
        expected = tokenizer.decode(out[0], skip_special_tokens=True)
        assert answer["outputs"][0]["text"].strip() == expected.strip(), text


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_marian_writes_as_theirs(tmp_path: Path) -> None:
    folder = tmp_path / "marian"
    folder.mkdir()
    for side in ("source", "target"):
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(TRAINING), model_prefix=str(folder / side), vocab_size=60,
            hard_vocab_limit=False, minloglevel=2,
        )  # fmt: skip
        (folder / f"{side}.model").rename(folder / f"{side}.spm")
        (folder / f"{side}.vocab").unlink()
    words = sentencepiece.SentencePieceProcessor(model_file=str(folder / "source.spm"))
    pieces = [words.id_to_piece(i) for i in range(3, words.vocab_size())]
    names = {piece: i for i, piece in enumerate(["</s>", "<unk>", *pieces, "<pad>"])}
    (folder / "vocab.json").write_text(json.dumps(names))
    pad = names["<pad>"]
    sizes = {**SEQ2SEQ, "vocab_size": len(names), "pad_token_id": pad, "eos_token_id": 0}
    sizes |= {"decoder_start_token_id": pad, "scale_embedding": True, "forced_eos_token_id": None}
    theirs = reference("MarianMTModel", sizes)
    with torch.no_grad():  # as published models have it
        theirs.final_logits_bias[0, pad] = float("-inf")
    theirs.generation_config.update(max_new_tokens=12, bad_words_ids=[[pad]])
    saved(theirs, folder)
    import_run(str(folder), tmp_path / "run")
    answers = predicted(tmp_path / "run", TEXTS, tmp_path, "decode.unknown=keep")
    compared = 0
    for text, answer in zip(TEXTS, answers, strict=True):
        ids = [names.get(piece, 1) for piece in words.encode(text, out_type=str)]
        out = theirs.generate(torch.tensor([[*ids, 0]]), do_sample=False)[0, 1:].tolist()
        out = out[: out.index(0)] if 0 in out else out
        if 1 not in out:
            compared += 1
            made = [pieces[i - 2] for i in out]
            assert answer["outputs"][0]["text"] == words.decode(made), text
    assert compared > 2
