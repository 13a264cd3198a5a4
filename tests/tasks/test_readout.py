"""How models are asked: a read-out says what the model's own methods say, of every task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from headway.models.build import build_model
from headway.models.parts.output_heads import CosineHead, HiddenStates, ModelInput
from headway.nn.layout import Layout
from headway.tasks.losses import plain, rdrop
from headway.tasks.readout import EachRow, OneClass, OneVector, Readout, readout_of

from ..training import every
from ..training.every import CPU, DATA, Made


def of_items(model: Any, given: Any) -> torch.Tensor:
    return model.classes(model(*streams(given)), given.streams[0].layout)


def streams(given: Any) -> list[Any]:
    """As models are called."""
    return [x for stream in given.streams for x in (stream.values, stream.layout)]


BY_HAND: dict[str, tuple[Readout, Callable[[Any, Any], torch.Tensor]]] = {
    "translate": (EachRow("words"), lambda m, given: m.scores(m(*streams(given)))),
    "complete": (EachRow("words"), lambda m, given: m.scores(m(*streams(given)))),
    "fill": (EachRow("words"), lambda m, given: m.scores(m(*streams(given))[given.rows_R])),
    "fill images": (
        EachRow("rebuild"),
        lambda m, given: m.heads["rebuild"](m(*streams(given))[given.rows_R]),
    ),
    "classify": (OneClass(), of_items),
    "tag": (EachRow("tags"), lambda m, given: m.tags(m(*streams(given))[given.rows_R])),
    "embed": (
        OneVector(unit=True),
        lambda m, given: F.normalize(m.pooled(m(*streams(given)), given.streams[0].layout), dim=-1),
    ),
    "classify images": (OneClass(), of_items),
    "classify videos": (OneClass(), of_items),
    "classify audio": (OneClass(), of_items),
    "identify": (OneClass(), of_items),
    "caption": (EachRow("words"), lambda m, given: m.scores(m(*streams(given)))),
    "transcribe": (EachRow("words", ctc=0.3), lambda m, given: m.scores(m(*streams(given)))),
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return cache(lambda name: every.make(name, tmp_path_factory.mktemp("tiny")))


def given_to(made: Made) -> Any:
    task = made.task
    batch = task.batch(task.parts(task.epoch(0)[0], 256)[0], CPU, None)
    return task.augment(made.model.eval(), batch)


@pytest.mark.parametrize("name", DATA)
def test_the_settings_of_a_run_say_how_it_is_read(tiny: Any, name: str) -> None:
    made, (readout, by_hand) = tiny(name), BY_HAND[name]
    assert readout_of(made.settings) == readout
    given = given_to(made)
    with torch.no_grad():
        read = made.task.read(made.model, given)
        found = by_hand(made.model, given)
        torch.testing.assert_close(read.neural.averaged_logits(), found)
        assert (read.ngrams is not None) == (name in ("classify", "tag"))
        if read.ngrams is not None:
            both = torch.lerp(found, read.ngrams.scores_RC, float(made.model.ngrams.share))
            torch.testing.assert_close(read.averaged_logits(), both)
        assert set(read.extra_heads) == ({"ctc"} if name == "transcribe" else set())
        if read.extra_heads:
            heard = made.model.ctc(made.model.encode(*streams(given)[:2]).x_MD)
            torch.testing.assert_close(read.extra_heads["ctc"].logits_RC, heard)
            assert read.extra_heads["ctc"].loss_weight + read.loss_weight == pytest.approx(1.0)


def test_other_settings_are_read_otherwise(tiny: Any) -> None:
    speakers = tiny("identify").settings
    by_angle = replace(speakers.identify, margin=0.2, scale=12.0)
    assert readout_of(replace(speakers, identify=by_angle)) == OneClass(scale=12.0)
    bare = replace(tiny("classify images").settings.model, heads=("pooled",))
    assert readout_of(replace(tiny("classify images").settings, model=bare)) == OneVector()
    texts = tiny("embed").settings
    long = replace(texts, embed=replace(texts.embed, normalise=False))
    assert readout_of(long) == OneVector(unit=False)
    assert not readout_of(long).reads_like(readout_of(texts))
    assert EachRow("words", 0.2).reads_like(EachRow("words"))
    assert not EachRow("words").reads_like(EachRow("ctc"))


def test_an_early_end_is_read_as_all_states_are(tiny: Any) -> None:
    """Where classes are read from first rows, and a second token votes."""
    made = tiny("classify images")
    shape: Any = made.settings.model
    image = replace(shape.image, class_token=True, distil_token=True)
    shape = replace(shape, image=image, heads=("classes", "distilled"), pooling="first")
    model: Any = build_model(shape, seed=1).eval()
    items = [made.prepared.train.images[row] for row in range(3)]
    given, layout = model.front.collate(items)
    with torch.no_grad():
        early = OneClass().read(model, ModelInput(given, layout))
        x_ND = model(given, layout)
        whole = OneClass().of(model, HiddenStates(x_ND, layout))
        starts_B = layout.starts_B.long()
        heads = [model.heads[head](x_ND[starts_B + n]) for n, head in enumerate(shape.heads)]
        assert early.states_ND is None
        assert early.loss_weight == early.extra_heads["distilled"].loss_weight == 0.5
        for read in (early, whole):
            torch.testing.assert_close(read.averaged_logits(), (heads[0] + heads[1]) / 2)
            torch.testing.assert_close(read.logits_RC, heads[0])
            torch.testing.assert_close(read.extra_heads["distilled"].logits_RC, heads[1])


def test_angles_are_cosines_with_the_vectors_of_classes(tiny: Any) -> None:
    model: Any = tiny("identify").model.eval()
    x_RD = torch.randn(4, tiny("identify").settings.model.d_model)
    read = OneClass(scale=7.0).of(model, HiddenStates(x_RD, Layout.of([1] * 4)))
    assert isinstance(read.scores, CosineHead)
    weight_CD = model.heads["classes"].linear.weight
    cosines = F.cosine_similarity(x_RD[:, None], weight_CD[None], dim=-1)
    torch.testing.assert_close(read.averaged_logits(), 7.0 * cosines)


def test_scores_of_labels_are_drawn_once(tiny: Any) -> None:
    """A head that drops values says the same to all who ask about one reading, another to the
    next."""
    made = tiny("tag")
    model = build_model(replace(made.settings.model, dropout=0.5), seed=1).train()
    given = given_to(made)
    read = made.task.read(model, given)
    assert torch.equal(read.logits_RC, read.logits_RC)
    assert torch.equal(read.with_cached_log_probs().log_probs(), read.log_probs())
    assert not torch.equal(made.task.read(model, given).logits_RC, read.logits_RC)


def test_words_are_priced_without_all_scores_or_with(tiny: Any) -> None:
    """What R-Drop holds costs as much as what nobody holds."""
    made = tiny("complete")
    given = given_to(made)
    with torch.no_grad():
        read = made.task.read(made.model, given)
        torch.testing.assert_close(
            tuple(made.task.loss(read.with_cached_log_probs(), given)),
            tuple(made.task.loss(read, given)),
        )
        usual, twice = plain(made.task), rdrop(made.task, 1.0)
        assert torch.equal(twice(made.model, given).sum, usual(made.model, given).sum)
