"""Starting from a run: what is loaded, what starts fresh, what is refused; freezing and rates."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from headway.errors import ConfigError, FolderError
from headway.models.build import build_model
from headway.models.folder import model_weights, save_weights
from headway.settings.data import DataSettings
from headway.settings.facts import DatasetStats, DeviceInfo, MediaFormat
from headway.settings.folder import CONFIG, IMPORTED
from headway.settings.model import (
    AudioEncoderSettings,
    AudioSettings,
    DecoderSettings,
    EncoderSettings,
    ImageEncoderSettings,
    ImageSettings,
    ModelSettings,
    Seq2SeqSettings,
    family_of,
)
from headway.settings.overrides import Overrides
from headway.settings.run import Resolved, RunSettings, resolved_toml
from headway.settings.start import LoraSettings, StartSettings
from headway.settings.task_rows import spec_of
from headway.settings.train import TrainSettings
from headway.settings.warm_start import model_from
from headway.specs.task_settings import TranscribeSettings
from headway.storage import replace_text
from headway.tasks.parent_run import parent_of
from headway.training.initial_weights import freeze, lr_scales, start_from, trainable
from headway.training.optim import build_optimizer, set_lr
from headway.training.resolve import resolve
from tests.models.variants import SIZES, samples, word_loss

FILLING = EncoderSettings(**SIZES, heads=("words",), n_segments=0)
CPU = DeviceInfo()


def saved(folder: Path, model: ModelSettings, task: str, labels: tuple[str, ...] = ()) -> nn.Module:
    folder.mkdir(parents=True)
    made = build_model(model, seed=11)
    with torch.no_grad():
        for weight in made.parameters():
            weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)) * 0.1)
    save_weights(folder, model_weights(made))
    replace_text(folder / CONFIG, resolved_toml(RunSettings(task=task, model=model, labels=labels)))
    return made


def started(
    folder: Path, model: ModelSettings, task: str, labels: tuple[str, ...] = ()
) -> tuple[nn.Module, list[str], Any]:
    new = build_model(model, seed=3)
    found: list[str] = []
    start = StartSettings(run=str(folder))
    settings = RunSettings(task=task, model=model, labels=labels, start=start)
    return new, found, start_from(new, settings, found.append)


def tokenizer() -> Any:
    return SimpleNamespace(vocab_size=SIZES["vocab_size"])


def same(one: nn.Module, other: nn.Module, name: str) -> bool:
    return torch.equal(one.state_dict()[name], other.state_dict()[name])


def test_front_and_body_are_taken_over_and_the_new_head_starts_fresh(tmp_path: Path) -> None:
    old = saved(tmp_path / "fill", FILLING, "fill")
    needs = {"heads": ("classes",), "n_labels": 3}
    model = model_from(FILLING, needs, {"dropout": 0.3}, "fill")
    assert isinstance(model, EncoderSettings)
    assert (model.heads, model.n_labels, model.dropout) == (("classes",), 3, 0.3)
    new, result, found = started(tmp_path / "fill", model, "classify", ("a", "b", "c"))
    body = [name for name in new.state_dict() if not name.startswith("heads.")]
    assert len(body) > 20
    assert all(same(new, old, name) for name in body)
    untouched = build_model(model, seed=3)
    assert same(new, untouched, "heads.classes.linear.weight")
    assert found.initialized == {"heads.classes.linear.weight", "heads.classes.linear.bias"}
    loaded, unused = result
    assert re.search(rf"{re.escape(str(tmp_path))}/fill\b.* {len(body)} .*\bclasses\b", loaded)
    assert re.search(r"\bwords\b.*\b6\b", unused)


@pytest.mark.parametrize("tie", [True, False])
def test_tokens_that_a_task_brings_get_rows_of_their_own(tmp_path: Path, tie: bool) -> None:
    """Fields have marks: a model that has never seen them takes each for a word like any other."""
    old = saved(tmp_path / "old", replace(FILLING, tie=tie), "fill")
    grown = model_from(replace(FILLING, tie=tie), {"vocab_size": FILLING.vocab_size + 3}, {}, "old")
    new, _, found = started(tmp_path / "old", grown, "fill")
    assert not found.initialized
    for name in ("front.tokens.weight", "heads.words.words.linear.weight"):
        mine, theirs = new.state_dict()[name], old.state_dict()[name]
        assert torch.equal(mine[: len(theirs)], theirs)
        torch.testing.assert_close(mine[len(theirs) :], theirs.mean(0).expand(3, -1))
    bias = new.state_dict()["heads.words.words.linear.bias"]
    torch.testing.assert_close(
        bias[-3:], old.state_dict()["heads.words.words.linear.bias"].mean().expand(3)
    )
    with pytest.raises(ConfigError, match=r"start=.old..*vocab_size=41\b.* 44\b.*\btokenizer\b"):
        model_from(FILLING, {}, {"vocab_size": FILLING.vocab_size + 3}, "old")


def test_a_head_is_kept_for_the_same_labels_and_fresh_for_others(tmp_path: Path) -> None:
    model = replace(FILLING, heads=("classes",), n_labels=2)
    old = saved(tmp_path / "old", model, "classify", ("bad", "good"))
    new, _, found = started(tmp_path / "old", model, "classify", ("bad", "good"))
    assert same(new, old, "heads.classes.linear.weight")
    assert not found.initialized
    new, _, found = started(tmp_path / "old", model, "classify", ("no", "yes"))
    assert not same(new, old, "heads.classes.linear.weight")
    assert found.unused == ("heads.classes.linear.weight", "heads.classes.linear.bias")


def test_a_decoder_keeps_its_word_head(tmp_path: Path) -> None:
    model = DecoderSettings(**SIZES)
    old = saved(tmp_path / "gpt", model, "complete")
    new, found, _ = started(tmp_path / "gpt", model_from(model, {"heads": ("words",)}, {}, ""),
                           "complete")  # fmt: skip
    assert all(same(new, old, name) for name in old.state_dict())
    assert len(found) == 1


REFUSED: list[tuple[dict[str, Any], list[str]]] = [
    ({"d_model": 64}, [r"\bd_model=32\b.*\b64\b", r"model\.d_model\b"]),
    ({"n_layers": 3}, [r"\bn_layers=2\b.*\b3\b"]),
    ({"n_heads": 2}, [r"\bn_heads=4\b.*\b2\b"]),  # the same shapes, another meaning
    ({"activation": "relu"}, [r"\bactivation=gelu\b.*\brelu\b"]),
    ({"vocab_size": 50}, [r"\bvocab_size=41\b.*\b50\b", r"\btokenizer\b"]),
    ({"max_len": 64}, [r"\bmax_len=32\b.*\b64\b", r"(?i)\blearned\b"]),
    ({"block_layout": "pre"}, [r"\bblock_layout=post\b.*\bpre\b"]),
    ({"rope.base": 5.0, "positions": "rotary"}, [r"\bpositions=learned\b.*\brotary\b"]),
    ({"preset": "bert-base"}, [r"model\.preset\b"]),
    ({"decoder.n_layers": 2}, [r"\bencoder\b", r"\bdecoder\.n_layers\b"]),
]


@pytest.mark.parametrize(("changes", "said"), REFUSED)
def test_each_difference_from_the_parent_model_is_an_error(
    changes: dict[str, Any], said: list[str]
) -> None:
    with pytest.raises(ConfigError) as error:
        model_from(FILLING, {"heads": ("words",)}, changes, "runs/fill")
    for pattern in [*said, r"start=.runs/fill."]:
        assert re.search(pattern, str(error.value)), pattern


def test_word_vectors_are_not_read_again() -> None:
    old = replace(FILLING, embeddings="vectors.txt", tune_embeddings=False)
    model = model_from(old, {"heads": ("words",)}, {}, "runs/fill")
    assert model.embeddings is None
    assert model.tune_embeddings


def test_what_has_no_weights_of_its_own_may_change() -> None:
    rotary = replace(FILLING, positions="rotary")
    changes = {"max_len": 64, "attention_dropout": 0.2, "pooling": "mean", "rope.factor": 1.0}
    model = model_from(rotary, {"heads": ["words"]}, changes, "")
    assert (model.max_len, model.attention_dropout) == (64, 0.2)


@pytest.mark.parametrize(
    ("old", "task", "new", "said"),
    [
        (DecoderSettings(**SIZES), "fill", FILLING, r"\bfill\b.*\bencoder\b.*/old\b.*\bdecoder\b"),
        (Seq2SeqSettings(**SIZES), "classify", FILLING, r"\bclassify\b.*/old\b.*\bseq2seq\b"),
        (
            FILLING,
            "classify",
            DecoderSettings(**SIZES),
            r"start=.*/old\b.*\bencoder\b.*\bdecoder\b",
        ),
    ],
)
def test_another_family_is_an_error(
    tmp_path: Path, old: ModelSettings, task: str, new: ModelSettings, said: str
) -> None:
    saved(tmp_path / "old", old, "translate")
    with pytest.raises(ConfigError, match=said):
        started(tmp_path / "old", new, task)


def test_a_missing_run_is_named() -> None:
    with pytest.raises(FolderError, match="missing-run"):
        started(Path("missing-run"), FILLING, "fill")


@pytest.mark.parametrize("family", [EncoderSettings, DecoderSettings])
def test_frozen_layers_do_not_learn(family: type[Any]) -> None:
    model = build_model(family(**SIZES, tie=False))
    freeze(model, 1)
    frozen = {name for name, weight in model.named_parameters() if not weight.requires_grad}
    assert frozen == {
        name for name in model.state_dict() if name.startswith(("front.", "stack.blocks.0."))
    }
    learns, everything = trainable(model)
    assert 0 < learns < everything
    freeze(model, -1)
    assert all(
        weight.requires_grad == name.startswith(("head.", "heads."))
        for name, weight in model.named_parameters()
    )


def test_of_a_translator_the_reading_side_is_frozen() -> None:
    model = build_model(Seq2SeqSettings(**SIZES, tie="none"))
    freeze(model, 2)
    frozen = {name for name, weight in model.named_parameters() if not weight.requires_grad}
    assert frozen == {
        name for name in dict(model.named_parameters())
        if name.startswith(("source_front.", "encoder.blocks."))
    }  # fmt: skip


def test_too_many_frozen_layers_are_an_error() -> None:
    with pytest.raises(ConfigError, match=r"start\.freeze=3\b.*\b2\b"):
        freeze(build_model(FILLING), 3)


def test_a_layer_learns_at_a_share_of_the_rate_of_the_one_above() -> None:
    model = build_model(DecoderSettings(**(SIZES | {"n_layers": 3}), tie=False))
    scales = lr_scales(model, 0.5)
    named = {name: scales.get(weight, 1.0) for name, weight in model.named_parameters()}
    assert {rate for name, rate in named.items() if name.startswith("stack.blocks.2.")} == {1.0}
    assert {rate for name, rate in named.items() if name.startswith("stack.blocks.1.")} == {0.5}
    assert {rate for name, rate in named.items() if name.startswith("stack.blocks.0.")} == {0.25}
    assert named["front.tokens.weight"] == 0.125
    assert named["head.linear.weight"] == named["stack.final_norm.weight"] == 1.0
    assert lr_scales(model, 1.0) == {}


@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize("optimizer", ["adam", "adamw", "muon"])
def test_the_rates_reach_every_weight(optimizer: str, capturable: bool) -> None:
    model = build_model(DecoderSettings(**SIZES))
    scales = lr_scales(model, 0.5)
    train = TrainSettings(optimizer=optimizer)  # type: ignore[arg-type]
    made = build_optimizer(model, train, device="cpu", capturable=capturable, scales=scales)
    for lr in (0.1, 0.02):
        set_lr(made, lr)
        rates = {weight: group["lr"] for group in made.param_groups for weight in group["params"]}
        assert len(rates) == len(list(model.parameters()))
        for weight, rate in rates.items():
            assert float(rate) == pytest.approx(lr * scales.get(weight, 1.0))
            assert isinstance(rate, torch.Tensor) == capturable


def test_a_step_moves_lower_layers_less_and_frozen_ones_not_at_all() -> None:
    model = build_model(DecoderSettings(**(SIZES | {"n_layers": 3})), seed=5)
    freeze(model, 1)
    train = TrainSettings(optimizer="adam", eps=1e-20)
    made = build_optimizer(model, train, device="cpu", scales=lr_scales(model, 0.1))
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    word_loss(model, samples([5, 3])).backward()
    set_lr(made, 1e-3)
    made.step()
    moved = {
        number: float((weight - before[name]).detach().abs().max())
        for number in range(3)
        for name, weight in model.named_parameters()
        if name == f"stack.blocks.{number}.feed_forward.to_out.weight"
    }
    assert moved[0] == 0.0
    assert moved[1] == pytest.approx(1e-4, rel=1e-2)  # Adam's first step is the rate itself
    assert moved[2] == pytest.approx(1e-3, rel=1e-2)


def test_nothing_left_to_train_is_an_error() -> None:
    model = build_model(FILLING).requires_grad_(False)
    with pytest.raises(ConfigError, match=r"start\.freeze\b"):
        build_optimizer(model, TrainSettings(), device="cpu")


def few_texts(settings: RunSettings, device: DeviceInfo = CPU, longest: int = 20) -> Resolved:
    facts = DatasetStats(
        n=10, n_tokens=1000, longest=longest, vocab_size=tokenizer().vocab_size,
        labels=("a", "b"), parent=parent_of(settings),
    )  # fmt: skip
    return resolve(settings, facts, device)


def test_imported_weights_have_a_low_rate_by_default(tmp_path: Path) -> None:
    saved(tmp_path / "old", FILLING, "fill")
    settings = RunSettings(task="classify", start=StartSettings(run=str(tmp_path / "old")))
    assert few_texts(settings).train.lr == 3e-4
    (tmp_path / "old" / IMPORTED).write_text("{}")
    assert few_texts(settings).train.lr == 1e-4
    assert few_texts(replace(settings, train=TrainSettings(lr=0.5))).train.lr == 0.5


@pytest.mark.parametrize(("device", "longest"), [("cpu", 200), ("cuda", 100), ("cuda", 200)])
def test_fine_tuning_keeps_the_attention_dropout_of_the_model(
    tmp_path: Path, device: str, longest: int
) -> None:
    saved(tmp_path / "old", replace(FILLING, attention_dropout=0.1), "fill")
    settings = RunSettings(task="classify", start=StartSettings(run=str(tmp_path / "old")))
    place = DeviceInfo(type=device, free_bytes=80 << 30)
    assert few_texts(settings, place, longest).model.attention_dropout == 0.1


# A decoder behind the encoder of a run


LOOKING = ImageEncoderSettings(
    d_model=16, n_layers=2, n_heads=2, d_ff=32, heads=("rebuild",), n_labels=0, pooling="mean",
    image=ImageSettings(height=8, width=8, patch=4, class_token=True),
)  # fmt: skip
LISTENING = AudioEncoderSettings(
    d_model=16, n_layers=2, n_heads=2, d_ff=32, heads=("ctc",), n_labels=0, vocab_size=9,
    audio=AudioSettings(bands=20),
)  # fmt: skip
BERT = EncoderSettings(**SIZES, heads=("words", "pooled"), n_segments=2)
ENCODERS = {"caption": (LOOKING, "fill"), "transcribe": (LISTENING, "transcribe"),
            "translate": (BERT, "fill")}  # fmt: skip


def about(settings: RunSettings, model: ModelSettings) -> DatasetStats:
    front = getattr(model, "image", None) or getattr(model, "audio", None)
    return DatasetStats(
        n=10, n_tokens=1000, longest=20, longest_text=8, parent=parent_of(settings), front=front,
        vocab_size=getattr(model, "vocab_size", 30), stored=MediaFormat(height=8, width=8,
        rate=16_000),
    )  # fmt: skip


def writing(folder: Path, task: str, **asked: Any) -> Resolved:
    """The settings of a run that starts from the encoder there."""
    start = StartSettings(run=str(folder), **asked.pop("start", {}))
    lora = LoraSettings(**asked.pop("lora", {}))
    given = Overrides({**({"transcribe.ctc": 0.3} if task == "transcribe" else {}), **asked})
    transcribe = TranscribeSettings(ctc=0.3)
    data = DataSettings(max_len=20) if task == "translate" else DataSettings()
    settings = RunSettings(
        task=task, start=start, lora=lora, asked=given, transcribe=transcribe, data=data
    )
    return resolve(settings, about(settings, ENCODERS[task][0]), CPU)


def reads(model: nn.Module, task: str) -> torch.Tensor:
    """What the model makes of an example."""
    model.eval()
    front = getattr(model, "source_front", None) or model.front
    draw = np.random.default_rng(0)
    example: Any = {
        "caption": draw.integers(0, 255, (1, 3, 8, 8), np.uint8),
        "transcribe": draw.normal(0, 0.1, 9000).astype(np.float32),
        "translate": [5, 6, 7, 8],
    }[task]
    given, layout = front.collate([example])
    with torch.no_grad():
        return (
            model.encode(given, layout).x_MD if hasattr(model, "encode") else model(given, layout)
        )


@pytest.mark.parametrize("task", ENCODERS)
def test_a_model_that_writes_reads_as_the_encoder_does_that_it_started_from(
    tmp_path: Path, task: str
) -> None:
    shape, learned = ENCODERS[task]
    old = saved(tmp_path / "old", shape, learned)
    settings = writing(tmp_path / "old", task)
    model = settings.model
    assert family_of(model) == spec_of(task).families[0]
    assert (model.n_layers, model.stack("decoder").n_layers, model.d_model) == (2, 2, shape.d_model)  # type: ignore[union-attr]
    assert f"{tmp_path}/old" in settings.why["model.family"]
    new, result = build_model(model, seed=3), list[str]()
    found = start_from(new, settings, result.append)
    torch.testing.assert_close(reads(new, task), reads(old, task))
    fresh = {name for name in new.state_dict() if name.startswith(("target_front.", "decoder."))}
    assert fresh <= found.initialized
    assert re.search(r"\bdecoder\b.*\bwords\b", result[0])
    untouched = build_model(model, seed=3)
    assert all(same(new, untouched, name) for name in found.initialized)
    if task == "transcribe":  # both have the head of CTC
        assert torch.equal(new.ctc.linear.weight, old.heads["ctc"].linear.weight)
    assert settings.train.optimizer == "muon"  # as from scratch: a decoder has all to learn


def test_an_imported_encoder_with_a_fresh_decoder_has_a_low_rate(tmp_path: Path) -> None:
    saved(tmp_path / "bert", BERT, "fill")
    (tmp_path / "bert" / IMPORTED).write_text("{}")
    train = writing(tmp_path / "bert", "translate").train
    assert (train.optimizer, train.lr) == ("adamw", 3e-4)


def test_settings_may_change_the_decoder_and_not_the_encoder(tmp_path: Path) -> None:
    saved(tmp_path / "old", LOOKING, "fill")
    model = writing(
        tmp_path / "old", "caption", **{"model.decoder.n_layers": 1, "model.decoder.d_ff": 24}
    ).model
    assert (model.stack("decoder").n_layers, model.stack("decoder").d_ff) == (1, 24)
    for asked, found in (
        ({"model.d_model": 32}, r"\bd_model=16\b.*\b32\b"),
        ({"model.n_layers": 3}, r"\bn_layers=2\b.*\b3\b"),
        ({"model.image.patch": 2}, r"model\.image\b"),
        ({"lora": {"rank": 4}}, r"lora\.rank=4\b"),
        ({"start": {"freeze": -1}}, r"start\.freeze=-1\b"),
    ):
        with pytest.raises(ConfigError, match=found):
            writing(tmp_path / "old", "caption", **asked)


def test_encoders_that_cannot_be_part_of_a_seq2seq_model_are_an_error(tmp_path: Path) -> None:
    saved(tmp_path / "albert", replace(BERT, share_layers=True, d_embedding=8), "fill")
    with pytest.raises(ConfigError, match=r"start=.*/albert\b"):
        writing(tmp_path / "albert", "translate")
    saved(tmp_path / "seen", LOOKING, "fill")
    with pytest.raises(ConfigError, match=r"\btranslate\b.*/seen\b.*image-encoder"):
        writing(tmp_path / "seen", "translate")


def test_without_a_weight_a_transcriber_from_an_encoder_is_ctc_alone(tmp_path: Path) -> None:
    saved(tmp_path / "old", LISTENING, "transcribe")
    settings = RunSettings(task="transcribe", start=StartSettings(run=str(tmp_path / "old")))
    found = resolve(settings, about(settings, LISTENING), CPU)
    assert (family_of(found.model), found.transcribe.ctc) == ("audio-encoder", 1.0)
