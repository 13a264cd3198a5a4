"""N-grams beside the body: what they count, and how the head takes them in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headway.errors import ConfigError
from headway.models.build import build_model
from headway.models.parts.ngrams import SHARE, Ngrams, NgramScores, TokenView
from headway.models.parts.output_heads import ModelInput, apply_temperature
from headway.nn.attention.padded import PaddedLayout
from headway.nn.layout import Layout
from headway.nn.logistic import SparseFeatures, fit_logistic
from headway.settings.facts import DatasetStats, DeviceInfo
from headway.settings.model import EncoderSettings
from headway.settings.run import load_run_settings
from headway.settings.task_rows import spec_of
from headway.tasks.dataset import EvalPass
from headway.tasks.ngram_fit import token_views
from headway.tasks.readout import OneClass
from headway.tasks.scores import NEURAL, NGRAMS, Temperature, fit_temperature
from headway.tasks.task import find_task, make_task
from headway.training.distributed import Distributed
from headway.training.resolve import resolve
from headway.training.trainer import Trainer
from tests.models.variants import SIZES, flat
from tests.training.labelled import (
    people,
    resolved,
    sentiments,
    settings_of,
    write_conll,
    write_tsv,
)

TEXTS = [(3, 7, 9, 2), (5,), (8, 1, 6)]


def table(*, of_texts: bool) -> Ngrams:
    """Every token is a word of its own, but 7, which goes on with one."""
    found = Ngrams(512, 3, 10, of_texts=of_texts)
    found.views_KV[:] = torch.arange(1, 11)
    found.views_KV[TokenView.BEGINS] = torch.arange(10) != 7
    found.weight_GC.normal_(generator=torch.Generator().manual_seed(1))
    return found


@pytest.mark.parametrize("of_texts", [True, False])
def test_the_ngrams_of_a_text_do_not_depend_on_its_batch(of_texts: bool) -> None:
    ngrams = table(of_texts=of_texts)
    found = flat(TEXTS, "cpu")
    alone = [ngrams(*flat([text], "cpu")) for text in TEXTS]
    torch.testing.assert_close(ngrams(*found), torch.cat(alone))
    grid_BT = torch.tensor([[0, 3, 7, 9, 2], [0, 0, 5, 0, 0], [8, 1, 6, 0, 0]])
    real_BT = torch.tensor([[0, 1, 1, 1, 1], [0, 0, 1, 0, 0], [1, 1, 1, 0, 0]])
    padded = ngrams(grid_BT.flatten(), PaddedLayout.over(real_BT))
    if not of_texts:
        padded = padded[real_BT.flatten() > 0]
    torch.testing.assert_close(padded, torch.cat(alone))


def test_an_ngram_counts_once_a_text() -> None:
    ngrams = table(of_texts=True)
    once, often = (ngrams(*flat([text], "cpu"))[0] for text in ((4, 4, 4), (4, 4, 4, 4, 4)))
    torch.testing.assert_close(once, often)
    assert not torch.allclose(once, ngrams(*flat([(4, 5, 4)], "cpu"))[0])


def test_a_word_of_several_pieces_is_one_unit() -> None:
    word, *_ = table(of_texts=True).buckets(*flat([(3, 7, 9)], "cpu"))
    other, *_ = table(of_texts=True).buckets(*flat([(3, 9, 7)], "cpu"))
    assert word[0] != other[0], "3 with 7 is another word than 3"
    assert word[1] == other[1], "the piece is the same"


def test_the_answer_averages_both_members_and_training_has_the_layers_alone() -> None:
    settings = EncoderSettings(**SIZES, heads=("classes",), n_labels=3, ngrams=512, pooling="mean")
    model: Any = build_model(settings, seed=2).eval()
    model.ngrams.views_KV[:] = torch.arange(1, settings.vocab_size + 1)
    model.ngrams.weight_GC.normal_(generator=torch.Generator().manual_seed(1))
    tokens_N, layout = flat(TEXTS, "cpu")
    stream = ModelInput(tokens_N, layout)
    neural_BC = model.classes(model(tokens_N, layout), layout)
    read = OneClass().read(model, stream)
    torch.testing.assert_close(read.neural.averaged_logits(), neural_BC)
    both_BC = torch.lerp(neural_BC, model.ngrams(tokens_N, layout), SHARE)
    torch.testing.assert_close(read.averaged_logits(), both_BC)
    torch.testing.assert_close(OneClass().read(model.neural, stream).averaged_logits(), neural_BC)
    torch.testing.assert_close(read.select_rows(torch.tensor([2])).logits_RC, both_BC[2:])
    assert OneClass().read(model.train(), stream).ngrams is None


@pytest.mark.parametrize("task", ["classify", "tag"])
def test_the_table_is_fitted_before_the_first_step(task: str, tmp_path: Path) -> None:
    """It alone knows what single words tell, and stays as it is."""
    if task == "classify":
        text = write_tsv(tmp_path / "texts.tsv", sentiments())
    else:
        text = write_conll(tmp_path / "texts.conll", people())
    settings, prepared = resolved(make_task(spec_of(task)), settings_of(task, text), tmp_path)
    heard: list[str] = []
    worker = Trainer(settings, prepared, Distributed(), heard.append)
    assert any("n-grams" in line for line in heard)
    model: Any = worker.model.eval()
    items = worker.objective.valid_dataset
    batch = items.batch(np.arange(len(items.lengths)), torch.device("cpu"))
    stream = batch.streams[0]
    said_RC, right = model.ngrams(stream.values, stream.layout), batch.targets
    if task == "tag":
        said_RC, right = said_RC[batch.rows_R], batch.targets.labels_W
    assert (said_RC.argmax(-1) == right).float().mean() > 0.9
    assert not [name for name, _ in model.named_parameters() if "ngrams" in name]


def test_views_tell_case_shape_and_words(tmp_path: Path) -> None:
    text = write_tsv(tmp_path / "texts.tsv", [(f"Ok {a} OK", b) for a, b in sentiments()])
    _, prepared = resolved(make_task(spec_of("classify")), settings_of("classify", text), tmp_path)
    words = prepared.tokenizer
    views_KV = token_views(words, words.vocab_size)
    (title, *_), (small, *_) = (words.encode(one) for one in ("Ok", "ok"))
    assert views_KV[TokenView.PIECE, title] != views_KV[TokenView.PIECE, small]
    assert views_KV[TokenView.FOLDED, title] == views_KV[TokenView.FOLDED, small]
    assert views_KV[TokenView.SHAPE, title] != views_KV[TokenView.SHAPE, small]
    assert views_KV[TokenView.BEGINS, title] == 1


def test_telling_features_may_weigh_more() -> None:
    """Of a feature of one class and one of both, the first decides, the sooner if it may."""
    rows = SparseFeatures(torch.tensor([0, 2, 0, 2, 1, 2, 1, 2]), torch.tensor([0, 2, 4, 6]), 3)
    labels_N = torch.tensor([0, 0, 1, 1])
    plain, telling = (
        fit_logistic(rows, labels_N, 2, telling=one).weight_FC for one in (False, True)
    )
    assert plain[0, 0] > 0 > plain[1, 0]
    assert telling[2].abs().max() < 1e-3
    assert (rows.scores(telling, torch.zeros(2)).argmax(-1) == labels_N).all()


def chosen(*words: str, task: str = "classify", n_tokens: int = 100_000, n: int = 2) -> Any:
    settings = load_run_settings(None, [f"task={task}", *words])
    labels = tuple(f"B-{i}" for i in range(n))
    facts = DatasetStats(n=5000, n_tokens=n_tokens, longest=40, vocab_size=900, labels=labels)
    assert find_task(settings)
    return resolve(settings, facts, DeviceInfo()).model


def test_little_text_without_a_pretrained_model_gets_ngrams() -> None:
    assert chosen().ngrams == chosen(task="tag").ngrams == 1 << 17
    assert chosen(n_tokens=1000).ngrams == 4096, "no more than there can be"
    assert chosen(n=64).ngrams == 1 << 15, "nor more weights than a small model has"
    assert chosen(n_tokens=10_000_000).ngrams == 0
    assert chosen("model.ngrams=0").ngrams == 0
    assert chosen("tokenizer.kind=characters").ngrams == 0
    assert chosen('model.heads=["classes", "pooled"]').ngrams == 0


def test_ngrams_go_with_one_head_of_labels() -> None:
    with pytest.raises(ConfigError, match=r"ngrams=512.*\['classes', 'pooled'\]"):
        EncoderSettings(**SIZES, heads=("classes", "pooled"), n_labels=3, ngrams=512)
    with pytest.raises(ConfigError, match=r"ngrams=-1\b.*\b0\b"):
        EncoderSettings(**SIZES, heads=("classes",), n_labels=3, ngrams=-1)


def test_ngrams_of_numbers_are_ridge_regression_and_have_a_share(tmp_path: Path) -> None:
    text = write_tsv(tmp_path / "texts.tsv", [(a, str(len(a))) for a, _ in sentiments()])
    wanted = settings_of("classify", text, classify__answer="number", model__ngrams=512)
    settings, prepared = resolved(make_task(spec_of("classify")), wanted, tmp_path)
    worker = Trainer(settings, prepared, Distributed(), lambda text: None)
    asking = EvalPass(worker.model.eval(), torch.device("cpu"), calibrate=True)
    with torch.no_grad():
        found = worker.objective.evaluate(asking)
    assert found.temperature is not None
    assert (found.temperature.value, found.temperature.has_probabilities) == (1.0, False)
    members = found.members
    assert members[NGRAMS]["mae"] < members[NEURAL]["mae"]
    assert found["mae"] < members[NEURAL]["mae"]


def test_rows_know_their_sequence() -> None:
    assert Layout.of([2, 0, 1]).numbers_N().tolist() == [0, 0, 2]


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_temperature_and_share_are_kept_in_the_weights(share: float) -> None:
    settings = EncoderSettings(**SIZES, heads=("classes",), n_labels=3, ngrams=512)
    model: Any = build_model(settings, seed=2).eval()
    model.ngrams.weight_GC.normal_(generator=torch.Generator().manual_seed(1))
    stream = ModelInput(*flat(TEXTS, "cpu"))
    before = OneClass().read(model, stream)
    assert before.ngrams is not None
    mixed = NgramScores(before.ngrams.scores_RC, torch.tensor(share))
    wanted_BC = mixed.blend(before.neural.averaged_logits()) / 2
    apply_temperature(model, 2.0, share)
    torch.testing.assert_close(OneClass().read(model, stream).averaged_logits(), wanted_BC)


def test_the_share_that_is_kept_makes_what_is_right_likeliest() -> None:
    def loss(value: float, share: float | None) -> float:
        return abs((share or 0.0) - 0.3) + abs(value - 2.0)

    assert fit_temperature(lambda share: 2.0, loss, 7, ngrams=True) == Temperature(2.0, 7, 0.3)
    assert fit_temperature(lambda share: 2.0, loss, 7, ngrams=False) == Temperature(2.0, 7)
    numbers = fit_temperature(lambda share: None, loss, 7, ngrams=True)
    assert numbers == Temperature(1.0, 7, 0.3, has_probabilities=False)
    assert fit_temperature(lambda share: None, loss, 7, ngrams=False) is None
