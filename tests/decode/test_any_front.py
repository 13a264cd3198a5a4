"""Every search works on sources of any kind: what a source is, only the front knows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from headway.decode.align import cross_attention
from headway.decode.logits_processors import SpecialTokens
from headway.decode.search.cuda_graphs import CudaGraphSearcher
from headway.decode.search.job import Hypothesis
from headway.decode.search.searcher import Searcher, search
from headway.decode.writer import Writer, token_log_probs
from headway.models.build import build_model
from headway.models.seq2seq import Seq2Seq
from headway.settings.data import TokenizerSettings
from headway.settings.decode import DecodeSettings
from headway.settings.model import ImageSeq2SeqSettings, ImageSettings
from headway.tokens.tokenizer import Vocabularies
from headway.tokens.trainer import train_vocabularies

from . import reference
from .reference import BOS, EOS, UNK, next_given
from .test_search import check_equal

PATCH = 4
SETTINGS = {
    "greedy": DecodeSettings(beam=1, max_len=7),
    "beam": DecodeSettings(beam=3, n_best=2, max_len=7),
    "coverage": DecodeSettings(beam=3, max_len=7, coverage=0.2),
    "draws": DecodeSettings(sample=True, n_best=2, max_len=7, top_k=4),
}


def captioner(vocab_size: int = 9, seed: int = 0, **image: Any) -> Seq2Seq:
    """Random, with scores that depend on what is seen, and ends that come up."""
    shape = ImageSettings(
        **{"height": 12, "width": 8, "patch": PATCH, "class_token": False} | image
    )
    model = build_model(
        ImageSeq2SeqSettings(
            image=shape, vocab_size=vocab_size, d_model=16, n_layers=1, n_heads=2, d_ff=32,
            max_len=32, tie="none", head_bias=True, dropout=0.0,
        ),
        seed=seed,
    )  # fmt: skip
    assert isinstance(model, Seq2Seq)
    with torch.no_grad():
        for part in model.decoder.blocks:
            part.cross.to_out.weight.mul_(8.0)
        model.head.linear.weight.mul_(2.0)
        model.head.linear.bias[EOS] += 1.0
    return model.eval()


def images(n: int, seed: int = 0, *, same_size: bool = False) -> list[NDArray[np.uint8]]:
    """T C Y X, of several sizes."""
    draw = np.random.default_rng(seed)
    sizes = [(12, 8), (8, 8), (20, 16), (4, 4)]
    return [
        draw.integers(0, 256, (1, 3, *sizes[0 if same_size else i % 4])).astype(np.uint8)
        for i in range(n)
    ]


def found(model: Seq2Seq, sources: list[Any], settings: DecodeSettings) -> list[list[Hypothesis]]:
    return search([model], sources, settings, bos=BOS, eos=EOS, unk=UNK)


def same(one: list[list[Hypothesis]], other: list[list[Hypothesis]]) -> None:
    assert [[h.tokens for h in of_one] for of_one in one] == [
        [h.tokens for h in of_one] for of_one in other
    ]
    scores = [[h.score for of_one in x for h in of_one] for x in (one, other)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-4)


def test_a_beam_over_images_that_holds_everything_is_brute_force() -> None:
    model = captioner(6)
    for source in images(4):
        best = reference.everything(next_given([model], source), 6, 4)
        settings = DecodeSettings(beam=120, max_len=4, n_best=10)
        check_equal(found(model, [source], settings), [best[:10]])


def test_cached_steps_over_images_are_one_pass() -> None:
    model, sources = captioner(), images(6)
    expected = [reference.beam(next_given([model], source), 3, 7, 2) for source in sources]
    check_equal(found(model, sources, SETTINGS["beam"]), expected)
    outputs = {one.tokens for of_one in expected for one in of_one}
    assert len(outputs) > 4  # what is seen makes a difference


@pytest.mark.parametrize("name", SETTINGS)
def test_outputs_do_not_depend_on_the_other_images(name: str) -> None:
    model, sources, settings = captioner(), images(7), SETTINGS[name]
    together = found(model, sources, settings)
    searcher = Searcher([model], settings, SpecialTokens(BOS, EOS, UNK))
    alone = [searcher([source], numbers=[[i]])[0] for i, source in enumerate(sources)]
    same(together, alone)


@pytest.mark.parametrize("name", ["greedy", "beam", "draws"])
def test_fixed_shapes_find_the_same_in_images(name: str, device: torch.device) -> None:
    """Rooms are measured in rows of the front, not in what `len` says of an array."""
    model, settings = captioner(), SETTINGS[name]
    expected = found(model, images(9), settings)
    on_device = captioner().to(device)
    searcher = Searcher([on_device], settings, SpecialTokens(BOS, EOS, UNK))
    searcher.graph_searcher = CudaGraphSearcher(on_device)
    same(searcher(images(9)), expected)
    same(searcher(images(9)), expected)
    [shape] = {
        (s.source_room, s.n_sources) for s in searcher.graph_searcher.searches if s.n_sources > 8
    }
    assert shape == (32, 16)


def test_models_with_other_patches_answer_together() -> None:
    models = [captioner(), captioner(seed=1, patch=2), captioner(seed=2, stem="grid", stem_width=4)]
    source = images(1)[0]
    expected = reference.beam(next_given(models, source), 3, 6)
    settings = DecodeSettings(beam=3, max_len=6)
    check_equal(search(models, [source], settings, bos=BOS, eos=EOS, unk=UNK), [expected])


def test_an_output_is_as_long_as_rows_allow() -> None:
    model = captioner()
    with torch.no_grad():
        model.head.linear.bias[EOS] = -torch.inf
    settings = DecodeSettings(beam=1, extra_len=2)
    lengths = [len(h.tokens) for [h] in found(model, images(4), settings)]
    assert lengths == [6 + 2, 4 + 2, 20 + 2, 1 + 2]
    searcher = Searcher([model], replace(settings, max_len=5), SpecialTokens(BOS, EOS, UNK))
    assert [len(h.tokens) for [h] in searcher(images(2))] == [5, 5]


def test_attention_has_a_column_for_every_patch() -> None:
    model, sources = captioner(), images(3)
    targets = [[5, 6], [7], [3, 4, 5]]
    seen = cross_attention(model, sources, targets, BOS)
    assert [tuple(x_TS.shape) for x_TS in seen] == [(3, 6), (2, 4), (4, 20)]
    for x_TS in seen:
        assert x_TS.sum(1) == pytest.approx(torch.ones(len(x_TS)).numpy(), abs=1e-5)


def test_scores_of_given_captions_are_those_of_the_search() -> None:
    model, sources = captioner(), images(5)
    best = [of_one[0] for of_one in found(model, sources, SETTINGS["beam"])]
    logs = token_log_probs([model], sources, [h.tokens for h in best], bos=BOS, eos=EOS)
    assert any(h.finished for h in best)
    for h, ours in zip(best, logs, strict=True):
        n = len(h.token_log_probs)
        # The banned tokens take a share of the probability that the search does not know of.
        assert ours[:n] == pytest.approx(h.token_log_probs, abs=1e-4)


def test_text_becomes_rows_token_by_token() -> None:
    front = reference.small_model().source_front
    tokens_N, layout = front.collate([[5, 6, 2], [2]])
    assert tokens_N.tolist() == [5, 6, 2, 2]
    assert layout.known_lengths() == (3, 1)
    assert front.rows([5, 6, 2]) == 3


@pytest.mark.parametrize("name", ["beam", "draws"])
def test_captions_do_not_depend_on_the_batch(name: str) -> None:
    vocab, sources = words(), images(6)
    model = captioner(vocab.target.vocab_size)

    def texts(batch_tokens: int, first: int = 0) -> list[list[str]]:
        writer = Writer([model], vocab, replace(SETTINGS[name], batch_tokens=batch_tokens))
        found = writer.write(sources[first:], first=first)
        return [[output.text for output in one.outputs] for one in found]

    together = texts(10_000)
    assert together == texts(1)
    assert together[2:] == texts(1, first=2)  # a draw depends on the number of the image


def test_a_caption_has_the_score_and_the_attention_of_its_words() -> None:
    vocab, sources = words(), images(4)
    writer = Writer([captioner(vocab.target.vocab_size)], vocab, SETTINGS["beam"], align=True)
    best = [found.outputs[0] for found in writer.write(sources)]
    assert writer.summary.sources == 4
    assert writer.summary.tokens == sum(len(one.tokens) + one.finished for one in best)
    for image, output in zip(sources, best, strict=True):
        assert output.attended_regions is not None
        assert len(output.attended_regions) == len(output.text.split())
        for look in output.attended_regions:
            assert look.grid_TYX.sum() == pytest.approx(1.0, abs=1e-5)
            assert look.grid_TYX.size == image.shape[2] * image.shape[3] // PATCH**2
    whole = [pair for pair in zip(sources, best, strict=True) if pair[1].finished]
    assert whole
    scores = writer.score([(image, output.text) for image, output in whole])
    for score, (_, output) in zip(scores, whole, strict=True):
        assert score.log_prob == pytest.approx(output.log_prob, abs=1e-4)


def words() -> Vocabularies:
    """A word is a token."""
    lines = ["ba de fi go ku"] * 2
    return train_vocabularies(lines, lines, TokenizerSettings(kind="words"), 2)
