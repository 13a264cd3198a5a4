"""N-grams beside the body: what they count, and how the head takes them in."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headway.errors import ConfigError
from headway.models.build import build_model
from headway.models.parts.ngrams import Ngrams, View
from headway.models.parts.output_heads import NGRAM_SHARE, LabelHead, remixed, soften
from headway.nn.attention.padded import PaddedLayout
from headway.nn.layout import Layout
from headway.nn.logistic import Sparse, fit_logistic
from headway.settings.facts import DeviceFacts, Facts
from headway.settings.model import EncoderSettings
from headway.settings.run import load_run_settings
from headway.tasks.ngram_fit import token_views
from headway.tasks.scores import Temperature, fitted
from headway.tasks.specs import spec_of
from headway.tasks.task import find_task, make_task
from headway.training.distributed import Ranks
from headway.training.resolve import resolve
from headway.training.trainer import Worker
from tests.models.variants import SIZES, flat
from tests.training.labelled import (
    asked,
    people,
    resolved,
    sentiments,
    write_conll,
    write_tsv,
)

TEXTS = [(3, 7, 9, 2), (5,), (8, 1, 6)]


def table(*, of_texts: bool) -> Ngrams:
    """Every token is a word of its own, but 7, which goes on with one."""
    found = Ngrams(512, 3, 10, of_texts=of_texts)
    found.views_KV[:] = torch.arange(1, 11)
    found.views_KV[View.BEGINS] = torch.arange(10) != 7
    found.weight_GC.normal_(generator=torch.Generator().manual_seed(1))
    return found


@pytest.mark.parametrize("of_texts", [True, False])
def test_a_text_has_its_own_ngrams_whatever_stands_beside_it(of_texts: bool) -> None:
    ngrams = table(of_texts=of_texts)
    said = flat(TEXTS, "cpu")
    alone = [ngrams(*flat([text], "cpu")) for text in TEXTS]
    torch.testing.assert_close(ngrams(*said), torch.cat(alone))
    grid_BT = torch.tensor([[0, 3, 7, 9, 2], [0, 0, 5, 0, 0], [8, 1, 6, 0, 0]])
    real_BT = torch.tensor([[0, 1, 1, 1, 1], [0, 0, 1, 0, 0], [1, 1, 1, 0, 0]])
    padded = ngrams(grid_BT.flatten(), PaddedLayout.over(real_BT))[real_BT.flatten() > 0]
    torch.testing.assert_close(padded, torch.cat(alone))


def test_an_ngram_counts_once_a_text() -> None:
    ngrams = table(of_texts=True)
    once, often = (ngrams(*flat([text], "cpu"))[0] for text in ((4, 4, 4), (4, 4, 4, 4, 4)))
    torch.testing.assert_close(once, often)
    assert not torch.allclose(once, ngrams(*flat([(4, 5, 4)], "cpu"))[0])


def test_a_word_of_several_pieces_is_one_thing() -> None:
    word, *_ = table(of_texts=True).buckets(*flat([(3, 7, 9)], "cpu"))
    other, *_ = table(of_texts=True).buckets(*flat([(3, 9, 7)], "cpu"))
    assert word[0] != other[0], "3 with 7 is another word than 3"
    assert word[1] == other[1], "the piece is the same"


def test_the_head_averages_both_and_teaches_the_body_alone() -> None:
    settings = EncoderSettings(**SIZES, heads=("classes",), n_labels=3, ngrams=512, pooling="mean")
    model: Any = build_model(settings, seed=2).eval()
    ngrams = model.heads["classes"].ngrams
    ngrams.views_KV[:] = torch.arange(1, settings.vocab_size + 1)
    ngrams.weight_GC.normal_(generator=torch.Generator().manual_seed(1))
    tokens_N, layout = flat(TEXTS, "cpu")
    body_BC = model.heads["classes"].linear(
        layout.pooled(model.body(tokens_N, layout, None), "mean")
    )
    by_ngrams_BC = layout.pooled(ngrams(tokens_N, layout), "first")
    both_BC = model.classes(model(tokens_N, layout), layout)
    torch.testing.assert_close(both_BC, torch.lerp(body_BC, by_ngrams_BC, NGRAM_SHARE))
    assert model.train()(tokens_N, layout).shape[-1] == settings.d_model


@pytest.mark.parametrize("task", ["classify", "tag"])
def test_the_table_is_fitted_before_the_first_step(task: str, tmp_path: Path) -> None:
    """It alone knows what single words tell, and stays as it is."""
    if task == "classify":
        text = write_tsv(tmp_path / "texts.tsv", sentiments())
    else:
        text = write_conll(tmp_path / "texts.conll", people())
    settings, prepared = resolved(make_task(spec_of(task)), asked(task, text), tmp_path)
    heard: list[str] = []
    worker = Worker(settings, prepared, Ranks(), heard.append)
    assert any(line.startswith("n-grams: ") for line in heard)
    model: Any = worker.model.eval()
    head, items = model.heads[spec_of(task).heads[0]], worker.objective.valid_items
    batch = items.batch(np.arange(len(items.lengths)), torch.device("cpu"))
    stream = batch.streams[0]
    said_NC = head.ngrams(stream.values, stream.layout)
    rows, right = stream.layout.starts_B, batch.targets
    if task == "tag":
        rows, right = batch.rows_R, batch.targets.labels_W
    assert (said_NC[rows].argmax(-1) == right).float().mean() > 0.9
    assert not [name for name, _ in model.named_parameters() if "ngrams" in name]


def test_views_tell_case_shape_and_words(tmp_path: Path) -> None:
    text = write_tsv(tmp_path / "texts.tsv", [(f"Ok {a} OK", b) for a, b in sentiments()])
    _, prepared = resolved(make_task(spec_of("classify")), asked("classify", text), tmp_path)
    words = prepared.tokenizer
    views_KV = token_views(words, words.vocab_size)
    (title, *_), (small, *_) = (words.encode(one) for one in ("Ok", "ok"))
    assert views_KV[View.PIECE, title] != views_KV[View.PIECE, small]
    assert views_KV[View.FOLDED, title] == views_KV[View.FOLDED, small]
    assert views_KV[View.SHAPE, title] != views_KV[View.SHAPE, small]
    assert views_KV[View.BEGINS, title] == 1


def test_telling_features_may_weigh_more() -> None:
    """Of a feature of one class and one of both, the first decides, the sooner if it may."""
    rows = Sparse(torch.tensor([0, 2, 0, 2, 1, 2, 1, 2]), torch.tensor([0, 2, 4, 6]), 3)
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
    facts = Facts(n=5000, n_tokens=n_tokens, longest=40, vocab_size=900, labels=labels)
    assert find_task(settings)
    return resolve(settings, facts, DeviceFacts()).model


def test_little_text_from_nothing_gets_ngrams() -> None:
    assert chosen().ngrams == chosen(task="tag").ngrams == 1 << 17
    assert chosen(n_tokens=1000).ngrams == 4096, "no more than there can be"
    assert chosen(n=64).ngrams == 1 << 15, "nor more weights than a small model has"
    assert chosen(n_tokens=10_000_000).ngrams == 0
    assert chosen("model.ngrams=0").ngrams == 0
    assert chosen("tokenizer.kind=characters").ngrams == 0
    assert chosen('model.heads=["classes", "pooled"]').ngrams == 0


def test_ngrams_go_with_one_head_of_labels() -> None:
    with pytest.raises(ConfigError, match=r"goes with one head of labels and no other"):
        EncoderSettings(**SIZES, heads=("classes", "pooled"), n_labels=3, ngrams=512)
    with pytest.raises(ConfigError, match=r"ngrams=-1 must be 0 or more"):
        EncoderSettings(**SIZES, heads=("classes",), n_labels=3, ngrams=-1)


def test_ngrams_are_refused_where_the_answer_is_no_class(tmp_path: Path) -> None:
    text = write_tsv(tmp_path / "texts.tsv", [(a, str(len(a))) for a, _ in sentiments()])
    wanted = asked("classify", text, classify__answer="number", model__ngrams=64)
    settings, prepared = resolved(make_task(spec_of("classify")), wanted, tmp_path)
    with pytest.raises(ConfigError, match=r"answers with something else \(classify.answer\)"):
        Worker(settings, prepared, Ranks(), lambda text: None)


def test_rows_know_their_sequence() -> None:
    assert Layout.of([2, 0, 1]).numbers_N().tolist() == [0, 0, 2]


def test_how_much_n_grams_say_is_folded_into_the_weights() -> None:
    x_ND, layout = torch.randn(6, 8), Layout.of([4, 2])
    head = LabelHead(8, 3, 0.0, ngrams=table(of_texts=True)).eval()
    tokens_N = torch.tensor([3, 4, 5, 6, 7, 8])
    rows_ND = head.with_ngrams(x_ND, tokens_N, layout)
    before_NC, by_ngrams_NC = head(rows_ND), head.by_ngrams(rows_ND)
    assert by_ngrams_NC is not None
    wanted_NC = {share: remixed(before_NC, by_ngrams_NC, share) for share in (0.0, 0.3, 0.9)}
    torch.testing.assert_close(wanted_NC[0.0], head.linear(x_ND))
    rounded_NC = head.by_ngrams(rows_ND.bfloat16())  # as on a GPU, where scores are fp32
    assert rounded_NC is not None
    torch.testing.assert_close(
        remixed(before_NC, rounded_NC, 0.3), wanted_NC[0.3], atol=0.1, rtol=0
    )
    for share, scores_NC in wanted_NC.items():
        other = deepcopy(head)
        soften(other, 2.0, share)
        torch.testing.assert_close(other(other.with_ngrams(x_ND, tokens_N, layout)), scores_NC / 2)


def test_the_share_that_is_kept_makes_what_is_right_likeliest() -> None:
    def loss(value: float, share: float | None) -> float:
        return abs((share or 0.0) - 0.3) + abs(value - 2.0)

    assert fitted(lambda share: 2.0, loss, 7, ngrams=True) == Temperature(2.0, 7, 0.3)
    assert fitted(lambda share: 2.0, loss, 7, ngrams=False) == Temperature(2.0, 7)
    assert fitted(lambda share: None, loss, 7, ngrams=True) is None
