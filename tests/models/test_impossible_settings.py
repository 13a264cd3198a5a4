"""Settings that cannot be built raise a ConfigError before torch is imported.

Settings that are accepted can be built and give finite numbers.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields, replace
from functools import cache
from typing import Any, get_args

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headway.errors import ConfigError
from headway.models.build import build_model
from headway.nn.layout import Layout
from headway.settings.kept_heads import KeptHeads
from headway.settings.model import (
    FAMILY_SETTINGS,
    AudioEncoderSettings,
    AudioSeq2SeqSettings,
    AudioSettings,
    DecoderSettings,
    EncoderSettings,
    ImageEncoderSettings,
    ImageSeq2SeqSettings,
    ImageSettings,
    ModelSettings,
    RelativeSettings,
    RopeSettings,
    Seq2SeqSettings,
    StackSettings,
)
from headway.specs.values import setting_types

from ..facts import missing

IMPOSSIBLE: list[tuple[str, ...]] = [
    # settings, then the facts of the message: the setting with its value, and what to use instead
    ("DecoderSettings(vocab_size=0)", "vocab_size=0", "1"),
    ("DecoderSettings(d_model=-4)", "d_model=-4", "1"),
    ("EncoderSettings(n_layers=0)", "n_layers=0", "1"),
    ("Seq2SeqSettings(n_heads=0)", "n_heads=0", "1"),
    ("DecoderSettings(d_ff=0)", "d_ff=0", "1"),
    ("EncoderSettings(max_len=0)", "max_len=0", "1"),
    ("Seq2SeqSettings(decoder=StackSettings(n_layers=0))", "decoder.n_layers=0", "1"),
    ("Seq2SeqSettings(decoder=StackSettings(n_heads=0))", "decoder.n_heads=0", "1"),
    ("ImageSeq2SeqSettings(decoder=StackSettings(d_ff=0))", "decoder.d_ff=0", "1"),
    ("AudioSeq2SeqSettings(decoder=StackSettings(d_head=-1))", "decoder.d_head=-1", "1"),
    ("Seq2SeqSettings(decoder=StackSettings(n_heads=5))", "decoder.n_heads=5", "d_model=520"),
    (
        "Seq2SeqSettings(decoder=StackSettings(n_heads=4, n_kv_heads=3))",
        "decoder.n_kv_heads=3",
        "1",
        "2",
        "4",
    ),
    (
        "Seq2SeqSettings(n_kv_heads=8, decoder=StackSettings(n_heads=4))",
        "decoder.n_heads=4",
        "n_kv_heads=8",
        "decoder.n_kv_heads",
    ),
    ("Seq2SeqSettings(decoder=StackSettings(norm_eps=0.0))", "decoder.norm_eps=0", "1e-6"),
    ("Seq2SeqSettings(decoder=StackSettings(norm_eps=float('nan')))", "norm_eps=nan", "number"),
    ("Seq2SeqSettings(decoder=StackSettings(activation='glu'))", "'glu'", "swiglu"),
    (
        "Seq2SeqSettings(positions='rotary', decoder=StackSettings(d_head=3))",
        "d_model=512",
        "n_heads=8",
        "3",
        "decoder.d_head",
    ),
    ("DecoderSettings(d_head=0)", "d_head=0", "1"),
    ("DecoderSettings(dropout=1.0)", "dropout=1", "0", "1"),
    ("DecoderSettings(dropout=-0.1)", "dropout=-0.1", "0", "1"),
    ("DecoderSettings(dropout=float('nan'))", "dropout=nan"),
    ("EncoderSettings(attention_dropout=1.5)", "attention_dropout=1.5", "0", "1"),
    ("Seq2SeqSettings(ff_dropout=2.0)", "ff_dropout=2", "0", "1"),
    ("DecoderSettings(norm_eps=0.0)", "norm_eps=0", "1e-6"),
    ("DecoderSettings(window=0)", "window=0", "1"),
    ("DecoderSettings(d_model=30, n_heads=4)", "d_model=30", "d_model=32"),
    ("DecoderSettings(d_model=2, n_heads=4)", "n_heads=4", "d_model=4"),
    ("DecoderSettings(n_heads=12, n_kv_heads=5)", "n_kv_heads=5", "1", "2", "3", "4", "6", "12"),
    ("DecoderSettings(n_heads=12, n_kv_heads=0)", "n_kv_heads=0", "1", "2"),
    ("DecoderSettings(n_kv_heads=24)", "n_kv_heads=24", "1", "2"),
    ("DecoderSettings(attention_bias='qx')", "attention_bias='qx'", "'qkvo'"),
    ("DecoderSettings(attention_bias='qq')", "attention_bias='qq'", "'qkvo'"),
    (
        "DecoderSettings(d_model=21, n_heads=3, positions='rotary')",
        "d_model=21",
        "n_heads=3",
        "7",
        "d_head",
    ),
    ("Seq2SeqSettings(d_model=15, n_heads=5)", "d_model=15", "d_model=20"),
    (
        "Seq2SeqSettings(d_model=9, n_heads=3, positions='sinusoidal-halves')",
        "d_model=9",
        "d_model=12",
    ),
    ("DecoderSettings(rope=RopeSettings(base=500.0))", "rope", "positions=rotary"),
    (
        "DecoderSettings(relative=RelativeSettings(buckets=8))",
        "relative",
        "positions=relative",
    ),
    ("RopeSettings(base=0.0)", "rope.base=0", "10000"),
    ("RopeSettings(factor=2.0)", "rope.factor=2", "rope.scaling=linear", "ntk", "llama3"),
    ("RopeSettings(scaling='linear', factor=0.5)", "rope.factor=0.5", "1"),
    ("RelativeSettings(buckets=6)", "relative.buckets=6", "32"),
    ("RelativeSettings(buckets=0)", "relative.buckets=0", "4"),
    ("RelativeSettings(max_distance=16)", "relative.max_distance=16", "relative.buckets=32"),
    (
        "Seq2SeqSettings(source_vocab_size=9, vocab_size=8)",
        "source_vocab_size=9",
        "tie=target-softmax",
    ),
    (
        "Seq2SeqSettings(source_vocab_size=9, vocab_size=8, tie='source-softmax')",
        "tie='source-softmax'",
        "source_vocab_size=9",
        "tie=target-softmax",
    ),
    ("DecoderSettings(body='lstn')", "'lstn'", "'lstm'"),
    ("DecoderSettings(body='lstm', n_heads=4)", "n_heads", "body='lstm'", "transformer"),
    ("DecoderSettings(kernel=5)", "kernel", "body='transformer'", "convolution"),
    (
        "Seq2SeqSettings(source_attention='last')",
        "source_attention",
        "body='transformer'",
        "lstm",
        "gru",
        "convolution",
    ),
    ("DecoderSettings(body='gru', bidirectional=False)", "bidirectional=false", "decoder"),
    ("Seq2SeqSettings(body='sha-rnn')", "body='sha-rnn'", "lstm", "gru", "convolution"),
    ("EncoderSettings(body='lstm', d_model=33)", "d_model=33", "d_model=34"),
    ("EncoderSettings(body='convolution', kernel=4)", "kernel=4", "kernel=5"),
    (
        "Seq2SeqSettings(body='convolution', source_attention='last')",
        "source_attention='last'",
        "source_attention=dot",
    ),
    ("DecoderSettings(body='convolution', dilation=0)", "dilation=0", "1"),
    (
        "DecoderSettings(body='lstm', block_layout='parallel')",
        "block_layout='parallel'",
        "block_layout=pre",
    ),
    ("DecoderSettings(body='lstm', positions='rotary')", "positions='rotary'", "positions=none"),
    ("DecoderSettings(body='sha-rnn', d_ff=100)", "d_ff=100", "d_ff=768"),
    ("DecoderSettings(body='lstm', single_head='none')", "single_head", "body='lstm'", "sha-rnn"),
    (
        "DecoderSettings(body='sha-rnn', d_ff=1536, single_head='none', window=9)",
        "window",
        "single_head=none",
    ),
    (
        "EncoderSettings(body='convolution', heads=('classes',), n_labels=2)",
        "pooling='first'",
        "pooling=mean",
    ),
    (
        "EncoderSettings(body='gru', bidirectional=False, heads=('classes',), n_labels=2)",
        "bidirectional=false",
        "pooling=last",
    ),
    ("DecoderSettings(heads=('classes',))", "'classes'", "n_labels"),
    ("DecoderSettings(n_labels=2)", "n_labels=2", "heads", "'classes'"),
    ("DecoderSettings(heads=('pooled',))", "'pooled'", "words", "classes", "tags"),
    ("EncoderSettings(tag_transitions=True)", "tag_transitions", "'tags'"),
    ("EncoderSettings(heads=('words', 'words'))", "heads=['words', 'words']"),
    ("EncoderSettings(heads=('classes',))", "'classes'", "n_labels"),
    ("EncoderSettings(heads=('tags',), n_labels=-1)", "'tags'", "n_labels"),
    ("EncoderSettings(n_labels=4)", "n_labels=4", "heads", "'classes'"),
    ("EncoderSettings(n_segments=-1)", "n_segments=-1", "0"),
    ("ImageSettings(patch=0)", "patch=0", "1"),
    ("ImageSettings(channels=4)", "channels=4", "1", "3"),
    ("ImageSettings(stride=0)", "stride=0", "1"),
    ("ImageSettings(frames=3, tubelet=2)", "frames=3", "image.tubelet=2"),
    ("ImageSettings(class_token=False, distil_token=True)", "distil_token"),
    ("ImageSettings(mean=(0.5, 0.5))", "image.mean", "1", "3"),
    ("ImageSettings(std=(0.0,))", "image.std=[0.0]"),
    ("ImageSettings(height=8)", "8", "224", "16", "image.patch"),
    ("ImageSettings(stem='grid', frames=4, tubelet=2)", "tubelet=2", "image.stem=grid"),
    ("ImageSettings(stem='conv', stride=0)", "stride=0", "1"),
    ("ImageEncoderSettings(positions='learned')", "positions='learned'", "image.positions"),
    ("ImageEncoderSettings(heads=('distilled',))", "'distilled'", "image.distil_token=true"),
    ("ImageEncoderSettings(n_labels=0)", "n_labels", "'classes'"),
    (
        "ImageEncoderSettings(image=ImageSettings(class_token=False))",
        "pooling=first",
        "pooling=mean",
    ),
    ("ImageSeq2SeqSettings(tie='all')", "source_vocab_size", "tie=none", "tie=target-softmax"),
    ("ImageSeq2SeqSettings(source_vocab_size=5)", "source_vocab_size", "tie=target-softmax"),
    (
        "ImageEncoderSettings(d_model=18, n_heads=3, image=ImageSettings(positions='sinusoidal'))",
        "d_model=18",
        "4",
    ),
    ("AudioSettings(hop=0)", "hop=0", "1"),
    ("AudioSettings(hop=500)", "hop=500", "n_fft=400"),
    ("AudioSettings(bands=300)", "bands=300", "201", "n_fft=400"),
    ("AudioSettings(strides=())", "strides=[]", "1"),
    ("AudioSettings(strides=(2, 0))", "strides=[2, 0]", "1"),
    ("AudioSettings(pad_s=-1.0)", "pad_s=-1", "0"),
    ("AudioEncoderSettings(positions='sinusoidal')", "'sinusoidal'", "audio.positions"),
    ("AudioEncoderSettings(d_model=9, n_heads=3)", "d_model=9", "audio.positions=none"),
    ("AudioEncoderSettings(vocab_size=0)", "vocab_size=0", "1"),
    (
        "AudioSeq2SeqSettings(tie='source-target')",
        "source_vocab_size",
        "tie=none",
        "tie=target-softmax",
    ),
]


def error_text(code: str) -> str:
    try:
        eval(code)
    except ConfigError as error:
        return str(error)
    raise AssertionError(f"{code} is not an error")


def test_what_cannot_be_built_is_refused_with_the_value_and_a_way_out() -> None:
    for code, *facts in (*IMPOSSIBLE, *MORE_IMPOSSIBLE):
        message = error_text(code)
        assert not missing(message, *facts), (code, message)
        assert message.endswith((".", "?")), code
        assert "\n" not in message, code


def test_impossible_settings_are_errors_without_torch() -> None:
    """So that a mistake costs no waiting: the settings import nothing slow."""
    script = f"""
import sys
sys.modules["torch"] = None  # an import of it would fail
from headway.settings.model import *
from headway.errors import ConfigError
for code in {[code for code, *_ in IMPOSSIBLE]!r}:
    try:
        eval(code)
    except ConfigError:
        print("error")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["error"] * len(IMPOSSIBLE)


MORE_IMPOSSIBLE: list[tuple[str, ...]] = [
    ("DecoderSettings(norm_eps=float('nan'))", "norm_eps=nan", "number"),
    ("DecoderSettings(norm_eps=float('inf'))", "norm_eps=inf", "number"),
    ("RopeSettings(base=float('nan'))", "base=nan", "number"),
    ("RopeSettings(scaling='linear', factor=float('inf'))", "factor=inf", "number"),
    ("DecoderSettings(n_layers=2.5)", "n_layers=2.5"),
    ("DecoderSettings(positions='rotray')", "'rotray'", "'rotary'"),
    ("DecoderSettings(norm='rsm')", "'rsm'", "layer", "rms"),
    ("DecoderSettings(block_layout='per')", "'per'", "'pre'"),
    ("DecoderSettings(activation='glu')", "'glu'", "swiglu"),
    ("DecoderSettings(init='papper')", "'papper'", "'paper'"),
    ("Seq2SeqSettings(tie='al')", "'al'", "all"),
    ("EncoderSettings(pooling='max')", "'max'", "first", "mean", "last"),
    ("EncoderSettings(heads=('word',))", "'word'", "words"),
    ("RopeSettings(scaling='lama3', factor=2.0)", "'lama3'", "'llama3'"),
    ("RopeSettings(trained_len=4096)", "trained_len=4096", "llama3"),
    ("RopeSettings(scaling='llama3', factor=2.0, trained_len=0)", "trained_len=0", "1"),
    ("Seq2SeqSettings(source_vocab_size=0, tie='none')", "source_vocab_size=0", "1"),
    ("Seq2SeqSettings(source_vocab_size=-3, tie='none')", "source_vocab_size=-3", "1"),
    (
        "DecoderSettings(d_head=2, positions='rotary', "
        "rope=RopeSettings(scaling='ntk', factor=2.0))",
        "rope.scaling='ntk'",
        "d_head",
    ),
]


@pytest.mark.parametrize(
    ("d_model", "n_heads", "positions"),
    [
        (30, 4, "learned"),
        (2, 4, "none"),
        (33, 4, "rotary"),
        (15, 5, "sinusoidal"),
        (16, 5, "sinusoidal-halves"),
        (22, 3, "rotary"),
    ],
)
def test_the_suggested_value_works(d_model: int, n_heads: int, positions: str) -> None:
    with pytest.raises(ConfigError, match=rf"\bd_model={d_model}\b") as caught:
        DecoderSettings(d_model=d_model, n_heads=n_heads, positions=positions)
    named = {int(found) for found in re.findall(r"\bd_model=(\d+)", str(caught.value))}
    [better] = named - {d_model}
    DecoderSettings(d_model=better, n_heads=n_heads, positions=positions)


def test_changing_settings_checks_them_again() -> None:
    with pytest.raises(ConfigError, match=r"d_model=768.*n_heads=7\b"):
        replace(DecoderSettings(), n_heads=7)


TINY: dict[str, Any] = {"d_model": 12, "n_layers": 2, "n_heads": 3, "d_ff": 10, "max_len": 8}
TINY_WORDS = {"vocab_size": 11}
TINY_IMAGE = ImageSettings(height=8, width=8, patch=4, stem_width=4)
TINY_AUDIO = AudioSettings(rate=800, n_fft=40, hop=16, bands=6, max_rows=64)
TINY_OF: dict[str, dict[str, Any]] = {
    "image-encoder": {"image": TINY_IMAGE, "n_labels": 3},
    "image-seq2seq": {"image": replace(TINY_IMAGE, class_token=False), **TINY_WORDS},
    "audio-encoder": {"audio": TINY_AUDIO, "n_labels": 3, **TINY_WORDS},
    "audio-seq2seq": {"audio": TINY_AUDIO, **TINY_WORDS},
}

VALUES: dict[str, list[Any]] = {
    "vocab_size": [1, 2, 11],
    "d_model": [1, 2, 3, 8, 30, 33],
    "n_layers": [1, 3],
    "n_heads": [1, 2, 3, 8],
    "n_kv_heads": [None, 0, 1, 2, 3],
    "d_head": [None, 0, 1, 2, 3, 8],
    "d_ff": [0, 1, 7],
    "max_len": [1, 5],
    "norm_eps": [-1.0, 1e-12, 1.0],
    "kernel": [0, 1, 2, 5],
    "dilation": [0, 1, 3],
    "order": [5, 0, 3, -1],
    "rope": [
        RopeSettings(base=2.0),
        RopeSettings(base=1e6),
        RopeSettings(scaling="linear", factor=3.0),
        RopeSettings(scaling="ntk", factor=3.0),
        RopeSettings(scaling="llama3", factor=8.0, trained_len=4),
    ],
    "relative": [
        RelativeSettings(buckets=4, max_distance=3),
        RelativeSettings(buckets=8, max_distance=100),
    ],
    "window": [None, 0, 1, 2, 100],
    "attention_bias": ["", "q", "kv", "qkvo", "ovkq", "x"],
    "dropout": [0.0, 0.5, 1.0],
    "attention_dropout": [0.0, 0.5, -1.0],
    "ff_dropout": [0.0, 0.5],
    "decoder": [
        StackSettings(),
        *(StackSettings(n_layers=n) for n in (0, 1, 3)),
        *(StackSettings(n_heads=n) for n in (0, 1, 2, 4)),
        *(StackSettings(n_kv_heads=n) for n in (0, 1, 2)),
        *(StackSettings(d_head=n) for n in (0, 1, 4)),
        *(StackSettings(d_ff=n) for n in (0, 1, 9)),
        *(StackSettings(activation=kind) for kind in ("relu", "swiglu")),
        *(StackSettings(norm_eps=eps) for eps in (-1.0, 1e-3)),
    ],
    "source_vocab_size": [None, 1, 5],
    "kept_heads": [
        KeptHeads(),
        KeptHeads(self=((0,),)),
        KeptHeads(self=((0,), (0, 1))),
        KeptHeads(encoder=((0,), (1,)), cross=((0, 1), (1,))),
        KeptHeads(self=((),)),
    ],
    "n_segments": [-1, 0, 1, 3],
    "n_labels": [-1, 0, 1, 3],
    "ngrams": [-1, 0, 64],
    "embeddings": [None, "vectors.txt"],
    "heads": [
        (),
        ("words",),
        ("pooled",),
        ("pooled", "classes"),
        ("classes",),
        ("tags", "classes"),
        ("words", "pooled", "classes", "tags"),
        ("words", "tags"),
        ("words", "words"),
    ],
}
"""Values worth trying, some of them impossible. Choices and switches try all they have."""

OWN_VALUES: dict[str, dict[str, list[Any]]] = {
    "image-encoder": {
        "heads": [(), ("classes",), ("rebuild",), ("classes", "pooled"), ("classes", "distilled")],
        "image": [
            TINY_IMAGE,
            replace(TINY_IMAGE, patch=3, stride=2, stem="conv", stem_layers=1),
            replace(TINY_IMAGE, stem="grid", positions="none"),
            replace(TINY_IMAGE, class_token=False, positions="sinusoidal"),
            replace(TINY_IMAGE, frames=4, tubelet=2, channels=1),
            replace(TINY_IMAGE, distil_token=True),
        ],
    },
    "image-seq2seq": {
        "image": [
            TINY_IMAGE,
            replace(TINY_IMAGE, class_token=False, stem="grid"),
            replace(TINY_IMAGE, class_token=False, frames=4, positions="sinusoidal"),
        ],
    },
    "audio-encoder": {
        "heads": [(), ("classes",), ("ctc",), ("rebuild", "classes"), ("ctc", "ctc")],
        "audio": [
            TINY_AUDIO,
            replace(TINY_AUDIO, scale="standard", strides=(2, 2), positions="learned"),
            replace(TINY_AUDIO, strides=(1,), positions="none", pad_s=0.5),
            replace(TINY_AUDIO, positions="whisper"),
        ],
    },
    "audio-seq2seq": {"audio": [TINY_AUDIO, replace(TINY_AUDIO, strides=(4,))]},
}
"""The same for settings that mean something else in a family, or are its own."""


def values_of(family: str, name: str) -> list[Any]:
    hint = setting_types(FAMILY_SETTINGS[family])[name]
    values = VALUES | OWN_VALUES.get(family, {})
    if name == "parts":  # code of a program's own: there is none here to be named
        return [None]
    if name in values:
        return values[name]
    return [False, True] if hint is bool else list(get_args(hint))


@st.composite
def attempts(draw: st.DrawFn, family: str) -> dict[str, Any]:
    """A few settings that differ from a tiny model; those that belong together come together."""
    names = [field.name for field in fields(FAMILY_SETTINGS[family])]
    changes = {
        name: draw(st.sampled_from(values_of(family, name)))
        for name in draw(st.lists(st.sampled_from(names), unique=True, max_size=8))
    }
    if draw(st.booleans()):
        if "rope" in changes:
            changes |= {"positions": "rotary", "d_head": draw(st.sampled_from([4, 6]))}
        elif "relative" in changes:
            changes |= {"positions": "relative"}
        if "heads" in changes and family not in OWN_VALUES:
            changes["n_labels"] = 3 if {"classes", "tags"} & set(changes["heads"]) else 0
        if "source_vocab_size" in changes:
            changes["tie"] = "target-softmax"
    return changes


def outputs(model: torch.nn.Module, wanted: ModelSettings) -> dict[str, torch.Tensor]:
    """Everything that the model can be asked for, on a ragged batch of its first token."""
    lengths = [min(wanted.max_len, length) for length in (3, 1, 8)]
    layout = Layout.of(lengths)
    tokens_N = torch.zeros(layout.n_rows, dtype=torch.long)
    source, source_layout = seen_or_heard(model, wanted) or (tokens_N, layout)
    if isinstance(wanted, Seq2SeqSettings):
        x_ND = model(source, source_layout, tokens_N, layout)
    else:
        x_ND = model(source, source_layout)
    found = {"vectors": x_ND}
    if isinstance(wanted, ImageEncoderSettings | AudioEncoderSettings):
        assert len(x_ND) == source_layout.n_rows
        if "classes" in wanted.heads:
            found["classes"] = model.classes(x_ND, source_layout)
            assert found["classes"].shape == (3, wanted.n_labels)
        return found
    reads_out = isinstance(wanted, EncoderSettings | DecoderSettings)
    if not reads_out or "words" in wanted.heads:
        found["scores"] = model.scores(x_ND)
        assert found["scores"].shape == (layout.n_rows, wanted.vocab_size)
    if reads_out:
        found["pooled"] = model.pooled(x_ND, layout)
        assert found["pooled"].shape == (3, wanted.d_model)
        if "classes" in wanted.heads:
            found["classes"] = model.classes(x_ND, layout)
            assert found["classes"].shape == (3, wanted.n_labels)
        if "tags" in wanted.heads:
            found["tags"] = model.tags(x_ND)
            assert found["tags"].shape == (layout.n_rows, wanted.n_labels)
    return found


def seen_or_heard(model: torch.nn.Module, wanted: ModelSettings) -> tuple[Any, Layout] | None:
    """Three images of two sizes, or three recordings, as the model reads them."""
    front = model.source_front if isinstance(wanted, Seq2SeqSettings) else model.front
    if isinstance(wanted, ImageEncoderSettings | ImageSeq2SeqSettings):
        shape = wanted.image
        sizes = [(8, 8), (12, 8), (8, 8)]
        size = (shape.frames, shape.channels)
        return front.collate([torch.full((*size, *two), 9, dtype=torch.uint8) for two in sizes])
    if isinstance(wanted, AudioEncoderSettings | AudioSeq2SeqSettings):
        waves = [torch.sin(torch.arange(n) / 3).numpy() for n in (300, 1, 160)]
        return front.collate(waves)
    return None


@cache  # most settings have a value that is the one they have anyway
def runs(wanted: ModelSettings) -> None:
    """It can be built, run, trained for a step and evaluated, with finite numbers throughout."""
    model = build_model(wanted)
    for training in (True, False):
        model.train(training)
        found = outputs(model, wanted)
        for name, values in found.items():
            assert values.isfinite().all(), name
        sum(values.sum() for values in found.values()).backward()
    for name, weight in model.named_parameters():
        assert weight.grad is None or weight.grad.isfinite().all(), name


try_many = settings(
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def accepted(family: str, changes: dict[str, Any]) -> ModelSettings | None:
    """The settings, or None where they raise a ConfigError."""
    try:
        return FAMILY_SETTINGS[family](**TINY | TINY_OF.get(family, TINY_WORDS) | changes)
    except ConfigError:
        return None


@pytest.mark.parametrize("tries", [80, pytest.param(300, marks=pytest.mark.slow)])
@pytest.mark.parametrize("family", FAMILY_SETTINGS)
def test_any_settings_are_refused_in_words_or_run(family: str, tries: int) -> None:
    counts = {"error": 0, "run": 0}

    @settings(try_many, max_examples=tries)
    @given(attempts(family))
    def attempt(changes: dict[str, Any]) -> None:
        wanted = accepted(family, changes)
        counts["error" if wanted is None else "run"] += 1
        if wanted is not None:
            runs(wanted)

    attempt()
    # Both happen often enough to mean something.
    assert min(counts.values()) > 15 * tries / 80, counts


@pytest.mark.parametrize("family", FAMILY_SETTINGS)
def test_every_value_of_every_setting_runs_or_raises_a_config_error(family: str) -> None:
    for field in fields(FAMILY_SETTINGS[family]):
        assert values_of(family, field.name), f"{field.name} is tried nowhere"
        for value in values_of(family, field.name):
            wanted = accepted(family, {field.name: value})
            if wanted is not None:
                runs(wanted)
