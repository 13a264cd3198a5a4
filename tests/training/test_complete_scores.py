"""Scores of language models on files: bits a byte, n-grams beside them, fields or none."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headway.cli.main import main
from headway.data.causal_lm import DEFAULT_EPOCH, FieldMarks, FieldStream
from headway.data.store import load_prepared
from headway.data.token_store import TokenStore
from headway.models.build import build_model
from headway.models.decoder import Decoder
from headway.models.folder import load_model
from headway.nn.kneser_ney import NONE, KneserNey
from headway.nn.layout import Layout
from headway.settings.data import DataSettings, TokenizerSettings
from headway.settings.folder import load_run
from headway.settings.model import DecoderSettings
from headway.settings.run import RunSettings, resolved_toml
from headway.tasks.causal_lm import (
    CausalLMDataset,
    body_likelihood,
    default_order,
)
from headway.tasks.dataset import READ_AT_ONCE
from headway.tasks.history import read_history
from headway.tasks.loaded_run import open_run
from headway.tasks.scores import Scores
from headway.tasks.task import InferenceRequest, find_task
from headway.tokens.trainer import train_on_texts
from tests.training.test_complete import write_fields, write_lines

BOS, EOS = 1, 2
MARKS = {"title": FieldMarks(3, 4), "date": FieldMarks(5, 6), "body": FieldMarks(7, 8)}
DOCUMENTS: list[dict[str, list[int]]] = [
    {"title": [10, 11], "date": [12], "body": [13, 14, 15, 16]},
    {"title": [17], "body": [10]},
    {"date": [11], "title": [12, 13, 14]},  # nothing to be said about a body
    {"body": [18, 19, 10, 11, 12, 13, 14, 15, 16, 17, 18]},
]
Output = pytest.CaptureFixture[str]


def source() -> FieldStream:
    stores = {}
    for name in MARKS:
        texts = [document.get(name, []) for document in DOCUMENTS]
        tokens = np.array([token for text in texts for token in text], np.uint16)
        stores[name] = TokenStore(tokens, np.array([len(text) for text in texts], np.int32))
    return FieldStream(stores, MARKS, BOS, EOS, 0.1, 0)


def model() -> Decoder:
    settings = DecoderSettings(
        vocab_size=20, d_model=16, n_layers=2, n_heads=2, d_ff=32, max_len=64, dropout=0.0
    )
    made = build_model(settings, seed=1).eval()
    assert isinstance(made, Decoder)
    return made


def by_hand(model: Decoder, names: list[str], context: int) -> tuple[float, int]:
    """One window at a time, one token at a time."""
    total, count = 0.0, 0
    for document in DOCUMENTS:
        if "body" not in document:
            continue
        tokens = [BOS]
        for name in [name for name in names if name in document]:
            first = len(tokens) + 1
            tokens += [MARKS[name].open, *document[name], MARKS[name].close]
        for place in range(first, len(tokens)):
            window = tokens[(place - 1) // context * context : place]
            logs_V = model.scores(model(torch.tensor(window), Layout.of([len(window)])))[-1]
            total -= float(logs_V.log_softmax(-1)[tokens[place]])
            count += 1
    return total, count


@pytest.mark.parametrize("names", [["body"], ["title", "date", "body"], ["date", "body"]])
@pytest.mark.parametrize("context", [64, 5])
@torch.no_grad()
def test_the_body_after_other_fields_and_alone(
    names: list[str], context: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, stream = model(), source()
    items = CausalLMDataset(stream, train_on_texts(["a b"], TokenizerSettings(), 20), context)
    expected, n = by_hand(made, names, context)
    for at_once in (4096, 1):
        monkeypatch.setitem(READ_AT_ONCE, "cpu", at_once)
        total, count = body_likelihood(made, items, names, torch.device("cpu"))
        assert count == n == 4 + 1 + 11 + 3  # the end of the body is a token too
        assert total == pytest.approx(expected, rel=1e-5)
    present_DF, _ = stream.choice(DEFAULT_EPOCH)  # what others read from the stream is as before
    assert present_DF.sum() == 8


def train(out: Path, words: list[str]) -> None:
    shape = ["model.d_model=32", "model.n_layers=1", "model.n_heads=2", "model.d_ff=32"]
    more = ["model.max_len=16", "train.steps=80", "train.batch_tokens=256", "data.valid_size=8"]
    words = ["train", "complete", *words, "--device", "cpu", "--out", str(out)]
    assert (
        main(
            [
                *words,
                *shape,
                *more,
                "tokenizer.kind=words",
                "train.average=1",
                "train.eval_every=40",
            ]
        )
        == 0
    )


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain")
    train(folder / "run", ["--text", write_lines(folder / "text"), "data.unit=line"])
    return folder


@pytest.fixture(scope="module")
def fielded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fields")
    text = write_fields(folder / "text.jsonl")
    train(folder / "run", ["--text", text, "data.fields=[title,date,body]"])
    return folder


def evaluated(folder: Path, text: Path, capsys: Output) -> dict[str, Any]:
    capsys.readouterr()
    words = ["evaluate", str(folder / "run"), "--text", str(text), "--device", "cpu", "--json"]
    assert main(words) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_plain_documents_compared_with_a_unigram_model(plain: Path, capsys: Output) -> None:
    lines = ["the old red house", "never here never", "sees the tree sees the dog"]
    test = plain / "test"
    test.write_text("".join(f"{line}\n" for line in lines))
    found = evaluated(plain, test, capsys)
    prepared = load_prepared(plain / "run")
    tokenizer, made = prepared.tokenizer, load_model(plain / "run").eval()
    assert isinstance(made, Decoder)
    nll, n = 0.0, 0
    with torch.no_grad():
        for line in lines:
            tokens = [tokenizer.bos, *tokenizer.encode(line), tokenizer.eos]
            logs_NV = made.scores(made(torch.tensor(tokens[:-1]), Layout.of([len(tokens) - 1])))
            nll += float(torch.nn.functional.cross_entropy(
                logs_NV, torch.tensor(tokens[1:]), reduction="sum"
            ))  # fmt: skip
            n += len(tokens) - 1
    n_bytes = sum(map(len, lines))
    assert found["loss"] == pytest.approx(nll / n, rel=1e-5)
    assert found["ppl"] == pytest.approx(math.exp(nll / n), rel=1e-5)
    assert found["bits_per_byte"] == pytest.approx(nll / math.log(2) / n_bytes, rel=1e-5)
    counts = Counter(prepared.train["text"].tokens.tolist())
    counts[tokenizer.eos] += len(prepared.train["text"])
    size = counts.total() + tokenizer.vocab_size
    ids = [token for line in lines for token in [*tokenizer.encode(line), tokenizer.eos]]
    bits = -sum(math.log2((counts[token] + 1) / size) for token in ids)
    unigram = found["baselines"]["token frequencies"]
    assert unigram["bits_per_byte"] == pytest.approx(bits / n_bytes)
    assert unigram["loss"] == pytest.approx(bits * math.log(2) / n)


def test_n_grams_and_model_are_scored_on_the_same_tokens(plain: Path, capsys: Output) -> None:
    """Counted anew from the training lines, and asked line by line."""
    lines = ["the old red house", "never here never", "sees the tree sees the dog"]
    test = plain / "test-n-grams"
    test.write_text("".join(f"{line}\n" for line in lines))
    found = evaluated(plain, test, capsys)
    prepared = load_prepared(plain / "run")
    tokenizer = prepared.tokenizer
    store = prepared.train["text"]
    texts = [store[i].tolist() for i in range(len(store))]
    order = default_order(tokenizer.vocab_size)
    table = KneserNey.fitted(
        np.array([token for text in texts for token in [tokenizer.bos, *text]]),
        np.array([token for text in texts for token in [*text, tokenizer.eos]]),
        [len(text) + 1 for text in texts], vocab_size=tokenizer.vocab_size, order=order,
    )  # fmt: skip
    nll, n = 0.0, 0
    for line in lines:
        tokens = [tokenizer.bos, *tokenizer.encode(line), tokenizer.eos]
        for place in range(1, len(tokens)):
            before = torch.tensor(tokens[max(0, place - order + 1) : place]).flip(0)
            recent = torch.full((1, order - 1), NONE)
            recent[0, : len(before)] = before
            nll -= math.log(float(table.all_probs(table.contexts(recent))[0, tokens[place]]))
        n += len(tokens) - 1
    assert order == 7
    ngrams = found["baselines"]["n-grams"]
    assert ngrams["loss"] == pytest.approx(nll / n, rel=1e-5)
    assert ngrams["ppl"] == pytest.approx(math.exp(nll / n), rel=1e-5)
    n_bytes = sum(map(len, lines))
    assert ngrams["bits_per_byte"] == pytest.approx(nll / math.log(2) / n_bytes, rel=1e-5)


def test_large_training_data_is_sampled_and_the_sample_size_is_reported(
    plain: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.tasks.causal_lm.MOST_TOKENS", 50)
    whole = load_prepared(plain / "run").train["text"]
    n = len(whole.tokens) + len(whole)
    capsys.readouterr()
    words = ["evaluate", str(plain / "run"), "--text", str(plain / "text"), "--device", "cpu"]
    assert main(words) == 0
    [line] = [line for line in capsys.readouterr().out.splitlines() if "n-grams" in line]
    *_, counted, all_tokens = re.findall(r"\b\d[\d,]*\b", line)
    assert 0 < int(counted) <= 50
    assert all_tokens == f"{n:,}"


def test_n_grams_are_in_the_table_at_the_end_of_training(plain: Path) -> None:
    [end] = read_history(plain / "run").end
    found = end["baselines"]
    assert list(found) == ["token frequencies", "n-grams"]
    assert found["n-grams"].keys() == {"loss", "ppl", "bits_per_byte"}
    bits = {
        one["bits_per_byte"] / one["loss"] for one in [*found.values(), *end["scores"].values()]
    }
    assert max(bits) == pytest.approx(min(bits))  # all of as many bytes a token
    shown = {row["name"] for row in end["compared"]["rows"]}
    assert shown == {"token frequencies", "n-grams", "this model"}


def test_a_test_set_is_read_as_the_training_data_was(
    plain: Path, tmp_path: Path, capsys: Output
) -> None:
    run = shutil.copytree(plain / "run", tmp_path / "run")
    settings = load_run(run)
    other = replace(settings, data=replace(settings.data, encoding="utf-16"))
    (run / "config.toml").write_text(resolved_toml(other))
    (tmp_path / "test").write_text("the old house\n", encoding="utf-16")
    (tmp_path / "plain").write_text("the old house\n")
    found = evaluated(tmp_path, tmp_path / "test", capsys)
    words = ["evaluate", str(run), "--text", str(tmp_path / "plain"), "--encoding", "utf-8"]
    assert main([*words, "--device", "cpu", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == found


def test_scores_are_printed_with_the_baseline_in_the_same_unit(plain: Path, capsys: Output) -> None:
    words = ["evaluate", str(plain / "run"), "--text", str(plain / "text"), "--device", "cpu"]
    capsys.readouterr()
    assert main(words) == 0
    printed = capsys.readouterr().out
    for found in ("60", "loss", "perplexity", "token frequencies", "n-grams"):
        assert found in printed


def test_without_the_training_data_n_grams_are_counted_in_the_other_half_of_the_text(
    plain: Path, tmp_path: Path
) -> None:
    for name in ("config.toml", "tokenizer.json", "model.safetensors"):
        (tmp_path / name).write_bytes((plain / "run" / name).read_bytes())
    settings, files = settings_and_files(tmp_path, plain / "text")
    found = scored(tmp_path, settings, files.data)
    unigram, n_grams = (
        next((value, remark) for name, value, remark in found.rows if kind in name)
        for kind in ("token frequencies", "n-grams")
    )
    assert unigram[0] == "–"
    assert unigram[1]
    assert n_grams[1]
    [(name, halves)] = found.baselines.items()
    assert "n-grams" in name
    assert name != "n-grams"
    assert n_grams[0] == f"{halves['loss']:.3f}"
    whole = scored(plain / "run", settings, files.data)
    assert whole.baselines["n-grams"]["loss"] < halves["loss"]  # which knows all of this text

    def of_text(text: str) -> float | None:
        (tmp_path / "one").write_text(text)
        settings, files = settings_and_files(tmp_path, tmp_path / "one")
        found = scored(tmp_path, settings, files.data).baselines
        return found.get(name, {}).get("loss")

    assert of_text("t") is None
    again, other = of_text("the old house " * 40), of_text("the old house " * 2)
    assert again is not None
    assert other is not None
    assert again < other  # a document alone, by halves


def scored(folder: Path, settings: Any, files: DataSettings) -> Scores:
    use = InferenceRequest(open_run(folder, device="cpu"), settings)
    return find_task(settings).evaluation(use, files)


def settings_and_files(folder: Path, text: Path) -> tuple[RunSettings, RunSettings]:
    settings = load_run(folder)
    return settings, replace(settings, data=replace(settings.data, text=(str(text),)))


def test_fields_are_scored_with_the_body_given_the_others_and_alone(
    fielded: Path, capsys: Output
) -> None:
    """The words of the body are that of the title."""
    found = evaluated(fielded, fielded / "text.jsonl", capsys)
    assert found.keys() == {
        "loss", "ppl", "body_alone_loss", "body_alone_bits_per_byte", "body_given_loss",
        "body_given_bits_per_byte", "n", "tokens", "bytes", "baselines",
    }  # fmt: skip
    assert {tuple(one) for one in found["baselines"].values()} == {("loss", "ppl")}
    assert found["body_given_loss"] < found["body_alone_loss"]
    prepared = load_prepared(fielded / "run")
    lines = (fielded / "text.jsonl").read_text().splitlines()
    bodies = [json.loads(line)["body"] for line in lines]
    n = sum(len(prepared.tokenizer.encode(body)) + 1 for body in bodies)
    n_bytes = sum(map(len, bodies))
    for name in ("alone", "given"):
        bits = found[f"body_{name}_loss"] * n / math.log(2) / n_bytes
        assert found[f"body_{name}_bits_per_byte"] == pytest.approx(bits)
