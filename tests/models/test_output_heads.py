"""What is read out of a model: words, classes, tags, one vector a text; also in the fixed form."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from headway.errors import ConfigError, UserError
from headway.models.build import build_model
from headway.models.parts.output_heads import LabelHead
from headway.nn.layout import Layout
from headway.nn.loss import LabelSmoothing
from headway.settings.model import DecoderSettings, EncoderSettings
from headway.settings.presets import PRESETS
from tests.models.variants import SIZES, flat, tiny

TEXTS = [(3, 7, 9, 2), (5,), (8, 1, 6)]


def built(family: type[Any], **more: Any) -> Any:
    return build_model(family(**SIZES, **more), seed=2).eval()


@pytest.mark.parametrize("family", [EncoderSettings, DecoderSettings])
@pytest.mark.parametrize("pooling", ["first", "last", "mean"])
def test_classes_are_read_from_one_vector_a_text(family: type[Any], pooling: str) -> None:
    model = built(family, heads=("classes",), n_labels=3, pooling=pooling)
    tokens_N, layout = flat(TEXTS, "cpu")
    x_ND = model(tokens_N, layout)
    by_hand = {"first": lambda x: x[0], "last": lambda x: x[-1], "mean": lambda x: x.mean(0)}
    vectors = torch.stack([by_hand[pooling](x) for x in layout.split(x_ND)])
    torch.testing.assert_close(model.pooled(x_ND, layout), vectors)
    torch.testing.assert_close(model.classes(x_ND, layout), model.heads["classes"].linear(vectors))


@pytest.mark.parametrize("pooling", ["first", "last", "mean"])
def test_the_fixed_form_gives_real_texts_the_same_vectors(pooling: str) -> None:
    lengths = [len(text) for text in TEXTS]
    fixed = Layout.fixed(lengths, n_rows=16, n_sequences=9, longest=5)
    x_ND = torch.randn(16, 4)
    plain = Layout.of(lengths).pooled(x_ND[: sum(lengths)], pooling)
    assert fixed.lengths_B[-1] == 0
    torch.testing.assert_close(fixed.pooled(x_ND, pooling)[: len(lengths)], plain)


def test_a_later_token_changes_the_classes_of_a_decoder() -> None:
    """The last token has seen all; the first, which an encoder may use, has seen nothing."""
    model = built(DecoderSettings, heads=("classes",), n_labels=2)
    one, other = (
        model.classes(model(*flat([text], "cpu")), Layout.of([3]))
        for text in ((4, 2, 9), (4, 2, 8))
    )
    assert (one - other).abs().max() > 1e-6


def test_tags_are_read_from_every_token() -> None:
    model = built(DecoderSettings, heads=("words", "tags"), n_labels=5)
    x_ND = model(*flat(TEXTS, "cpu"))
    assert model.tags(x_ND).shape == (8, 5)
    assert model.scores(x_ND).shape == (8, SIZES["vocab_size"])


@pytest.mark.parametrize("family", [EncoderSettings, DecoderSettings])
def test_transitions_are_one_more_matrix_of_the_tags(family: type[Any]) -> None:
    model = built(family, heads=("tags",), n_labels=5, tag_transitions=True)
    head = model.head_named("tags")
    assert isinstance(head, LabelHead)
    assert head.transitions is not None
    assert head.transitions.shape == (7, 5)
    plain = built(family, heads=("tags",), n_labels=5)
    assert sum(p.numel() for p in model.parameters()) == 35 + sum(
        p.numel() for p in plain.parameters()
    )
    with pytest.raises(ConfigError, match=r"\btag_transitions\b.*'tags'"):
        family(**SIZES, tag_transitions=True)


def test_a_decoder_without_words_has_no_word_weights() -> None:
    with_words = built(DecoderSettings, tie=False)
    without = built(DecoderSettings, tie=False, heads=("classes",), n_labels=2)
    assert "head.linear.weight" in with_words.state_dict()
    assert not any(name.startswith("head.") for name in without.state_dict())
    with pytest.raises(UserError, match=r"'words'.*\bclasses\b"):
        without.scores(torch.zeros(1, SIZES["d_model"]))
    with pytest.raises(UserError, match=r"'tags'.*\bclasses\b"):
        without.tags(torch.zeros(1, SIZES["d_model"]))


def test_the_heads_of_presets_keep_their_names() -> None:
    gpt2 = build_model(PRESETS["gpt2"].settings, device="meta").state_dict()
    bert = build_model(PRESETS["bert-base"].settings, device="meta").state_dict()
    assert [name for name in gpt2 if name.startswith("head")] == ["head.linear.weight"]
    assert {name.split(".")[1] for name in bert if name.startswith("head")} == {"words", "pooled"}


def test_the_loss_of_masked_rows_is_that_of_their_scores() -> None:
    model = tiny("encoder")
    x_ND = model(*flat(TEXTS, "cpu"))
    rows, targets, weights = torch.tensor([1, 4, 6]), torch.tensor([9, 5, 1]), torch.ones(3)
    weights[1] = 0.0
    found = model.lm_head.loss(x_ND[rows], targets, LabelSmoothing(1.0, 0.0), weights)
    logs_RV = model.scores(x_ND[rows]).log_softmax(-1)
    by_hand = -(logs_RV[0, 9] + logs_RV[2, 1])
    torch.testing.assert_close(found.sum, by_hand)
    torch.testing.assert_close(found.nll, by_hand.detach())


def test_narrow_embeddings_are_brought_to_the_width_of_the_stream_and_back() -> None:
    """ALBERT: embeddings, their norm and the words' own layer are narrow; the rest is wide."""
    model = built(EncoderSettings, d_embedding=12)
    assert model.front.tokens.weight.shape == (SIZES["vocab_size"], 12)
    assert model.front.positions.table.weight.shape == (SIZES["max_len"], 12)
    assert model.front.norm.weight.shape == (12,)
    x_ND = model(*flat(TEXTS, "cpu"))
    assert x_ND.shape == (8, SIZES["d_model"])
    words = model.lm_head.transform(x_ND)
    assert words.shape == (8, 12)
    by_hand = words @ model.front.tokens.weight.T + model.lm_head.words.linear.bias
    torch.testing.assert_close(model.scores(x_ND), by_hand)


def test_shared_layers_are_one_layer_run_several_times() -> None:
    shared = built(EncoderSettings, share_layers=True)
    assert len({id(block) for block in shared.stack.blocks}) == 1
    one = built(EncoderSettings, **{"share_layers": True}).stack.blocks[0]
    assert sum(p.numel() for p in shared.stack.parameters()) == sum(
        p.numel() for p in one.parameters()
    )
    tokens_N, layout = flat(TEXTS, "cpu")
    x_ND = shared.front(tokens_N, layout)
    for _ in range(SIZES["n_layers"]):
        x_ND = shared.stack.blocks[0](x_ND, layout)
    torch.testing.assert_close(shared(tokens_N, layout), x_ND)


def test_a_pooler_has_the_activation_of_its_settings() -> None:
    model = built(EncoderSettings, heads=("pooled", "classes"), n_labels=2, pooler="relu")
    tokens_N, layout = flat(TEXTS, "cpu")
    x_ND = model(tokens_N, layout)
    first = torch.stack([x[0] for x in layout.split(x_ND)])
    torch.testing.assert_close(
        model.pooled(x_ND, layout), model.heads["pooled"].dense(first).relu()
    )
    with pytest.raises(ConfigError, match=r"pooler='relu'.*'pooled'"):
        EncoderSettings(**SIZES, heads=("words",), pooler="relu")
