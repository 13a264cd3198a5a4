"""Published model sizes by name. Parameter counts are computed by `headway presets`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeVar

from headway.errors import ConfigError, suggest
from headway.settings.body import with_body
from headway.settings.model import (
    AudioEncoderSettings,
    AudioSeq2SeqSettings,
    AudioSettings,
    DecoderSettings,
    EncoderSettings,
    ImageEncoderSettings,
    ImageSeq2SeqSettings,
    ImageSettings,
    ModelSettings,
    Seq2SeqSettings,
)

Family = TypeVar("Family", bound=ModelSettings)


@dataclass(frozen=True)
class Preset:
    settings: ModelSettings
    published: str
    """Model size as published; empty without a publication."""

    source: str


def sized(
    base: Family, n_layers: int, d_model: int, n_heads: int, d_ff: int, **more: Any
) -> Family:
    more |= {"n_layers": n_layers, "d_model": d_model, "n_heads": n_heads, "d_ff": d_ff}
    return replace(base, **more)


TRANSFORMER = Seq2SeqSettings()
BERT = EncoderSettings()
GPT2 = DecoderSettings()
LLAMA = DecoderSettings(
    vocab_size=32_000, norm="rms", positions="rotary", activation="swiglu", attention_bias="",
    ff_bias=False, dropout=0.0, attention_dropout=0.0,
)  # fmt: skip
VIT = ImageEncoderSettings()
SMALL_VIT = sized(
    VIT, 7, 256, 4, 512, norm_eps=1e-6, attention_bias="", init="small", pooling="mean",
    n_labels=10,
    image=ImageSettings(
        height=32, width=32, patch=4, stem="conv", class_token=False, positions="sinusoidal"
    ),
)  # fmt: skip
WHISPER = AudioSeq2SeqSettings(
    vocab_size=51_865, d_model=384, n_layers=4, n_heads=6, d_ff=1536, norm_eps=1e-5,
    positions="learned", attention_bias="qvo", embedding_scale=False, dropout=0.0, init="bert",
    audio=AudioSettings(positions="whisper", pad_s=30.0),
)  # fmt: skip

RNN_TRANSLATOR = with_body(replace(TRANSFORMER, tie="none", block_layout="pre"), "lstm")
CONVOLUTIONS = with_body(replace(TRANSFORMER, block_layout="pre"), "convolution")
LSTM_LM = with_body(GPT2, "lstm")
SHA_RNN = with_body(sized(GPT2, 4, 1024, 16, 4096, dropout=0.1), "sha-rnn")

TINY: dict[str, Any] = {"vocab_size": 100, "max_len": 64}
SMALL_IMAGE = ImageSettings(height=16, width=16, patch=4)
NO_DROPOUT: dict[str, Any] = {"dropout": 0.0, "attention_dropout": 0.0}
SOME_DROPOUT: dict[str, Any] = {"dropout": 0.2, "attention_dropout": 0.2}

VASWANI = "Vaswani et al. 2017, table 3"
DEVLIN = "Devlin et al. 2018, section 3"
TURC = "Turc et al. 2019"
GPT2_PAPER = "Radford et al. 2019"
VIT_PAPER = "Dosovitskiy et al. 2020; patches of 16"
WHISPER_PAPER = "Radford et al. 2022, table 1"
TESTS = "for tests"

ROWS: dict[str, tuple[ModelSettings, str, str]] = {
    # Each row has a name and the changed sizes: layers, width, heads, feed-forward width, and
    # others.
    "transformer-base": (TRANSFORMER, "65 M", VASWANI),
    "transformer-big": (sized(TRANSFORMER, 6, 1024, 16, 4096, dropout=0.3), "213 M", VASWANI),
    "transformer-iwslt": (
        sized(TRANSFORMER, 6, 512, 4, 1024, vocab_size=10_000, dropout=0.3),
        "", "the usual size for IWSLT"),
    "transformer-tiny": (
        sized(TRANSFORMER, 4, 128, 4, 256, vocab_size=10_000, dropout=0.3),
        "", "the usual size for Multi30k"),
    "transformer-small": (
        sized(TRANSFORMER, 4, 256, 4, 1024, vocab_size=10_000), "", "a larger corpus on two cores"),
    "transformer-test": (sized(TRANSFORMER, 2, 32, 4, 64, **TINY), "", TESTS),
    "seq2seq-lstm": (
        replace(RNN_TRANSLATOR, n_layers=4, d_model=1000, vocab_size=80_000,
                source_vocab_size=160_000, bidirectional=False, source_attention="last",
                dropout=0.0),
        "", "Sutskever et al. 2014: only the last encoder state"),
    "rnnsearch": (
        replace(with_body(RNN_TRANSLATOR, "gru"), n_layers=1, d_model=1000, vocab_size=30_000,
                source_attention="additive", dropout=0.0),
        "", "Bahdanau et al. 2015: additive attention"),
    "luong": (
        replace(RNN_TRANSLATOR, n_layers=4, d_model=1000, vocab_size=50_000, bidirectional=False,
                source_attention="dot", dropout=0.2),
        "", "Luong et al. 2015: dot-product attention"),
    "bytenet": (
        replace(CONVOLUTIONS, n_layers=30, d_model=800, vocab_size=323, dilation=2),
        "", "Kalchbrenner et al. 2016: dilated convolutions, characters"),
    "convs2s": (
        replace(CONVOLUTIONS, n_layers=20, d_model=512, vocab_size=40_000, positions="learned"),
        "", "Gehring et al. 2017: stacked, gated convolutions"),
    "bert-base": (BERT, "110 M", DEVLIN),
    "bert-large": (sized(BERT, 24, 1024, 16, 4096), "340 M", DEVLIN),
    "bert-mini": (sized(BERT, 4, 256, 4, 1024), "11.3 M", TURC),
    "bert-tiny": (sized(BERT, 2, 128, 2, 512), "4.4 M", TURC),
    "distilbert": (
        replace(BERT, n_layers=6, n_segments=0, heads=("words",)),
        "66 M", "Sanh et al. 2019, table 3"),
    "minilm-l6": (
        sized(BERT, 6, 384, 12, 1536, heads=("pooled",), pooling="mean"),
        "22.7 M", "all-MiniLM-L6-v2"),
    "encoder-test": (sized(BERT, 2, 32, 4, 64, **TINY), "", TESTS),
    "gpt": (
        replace(GPT2, vocab_size=40_478, max_len=512, block_layout="post"),
        "117 M", "Radford et al. 2018"),
    "gpt2": (GPT2, "124 M", GPT2_PAPER),
    "gpt2-medium": (sized(GPT2, 24, 1024, 16, 4096), "355 M", GPT2_PAPER),
    "gpt2-large": (sized(GPT2, 36, 1280, 20, 5120), "774 M", GPT2_PAPER),
    "gpt2-xl": (sized(GPT2, 48, 1600, 25, 6400), "1.5 B", GPT2_PAPER),
    "gpt3-small": (
        replace(GPT2, max_len=2048, **NO_DROPOUT), "125 M", "Brown et al. 2020, table 2.1"),
    "shakespeare": (
        sized(GPT2, 6, 384, 6, 1536, vocab_size=65, max_len=256, **SOME_DROPOUT),
        "", "characters on one GPU"),
    "shakespeare-laptop": (
        sized(GPT2, 4, 128, 4, 512, vocab_size=65, max_len=64, **NO_DROPOUT),
        "", "characters on two cores"),
    "lstm-lm": (
        replace(LSTM_LM, n_layers=2, d_model=650, vocab_size=10_000, tie=False, dropout=0.5),
        "", "Zaremba et al. 2014, medium"),
    "sha-rnn": (
        replace(SHA_RNN, vocab_size=205, window=5000), "54 M", "Merity 2019, table 2"),
    "bilstm": (
        replace(with_body(BERT, "lstm"), n_layers=1, d_model=300, vocab_size=20_000, n_segments=0,
                embedding_norm=False, heads=("classes",), n_labels=2, dropout=0.5),
        "", "Graves and Schmidhuber 2005: bidirectional"),
    "stories260K": (
        sized(LLAMA, 5, 64, 8, 172, vocab_size=512, n_kv_heads=4, max_len=512),
        "260 K", "llama2.c"),
    "stories15M": (sized(LLAMA, 6, 288, 6, 768, max_len=256), "15 M", "llama2.c"),
    "llama-laptop": (
        sized(LLAMA, 6, 256, 8, 688, vocab_size=8192, n_kv_heads=4, max_len=512),
        "", "a modern decoder that trains on a laptop"),
    "vit-base": (VIT, "86 M", VIT_PAPER),
    "vit-large": (sized(VIT, 24, 1024, 16, 4096), "307 M", VIT_PAPER),
    "deit-tiny": (sized(VIT, 12, 192, 3, 768), "5.7 M", "Touvron et al. 2021, reported as 5 M"),
    "deit-small": (sized(VIT, 12, 384, 6, 1536), "22 M", "Touvron et al. 2021"),
    "vit-small-images": (SMALL_VIT, "", "a convolutional stem, for images of 32 × 32"),
    "whisper-tiny": (WHISPER, "39 M", WHISPER_PAPER),
    "whisper-base": (sized(WHISPER, 6, 512, 8, 2048), "74 M", WHISPER_PAPER),
    "whisper-small": (sized(WHISPER, 12, 768, 12, 3072), "244 M", WHISPER_PAPER),
    "decoder-test": (sized(GPT2, 2, 32, 4, 64, **TINY), "", TESTS),
    "image-encoder-test": (
        sized(SMALL_VIT, 2, 32, 4, 64, image=SMALL_IMAGE, pooling="first"), "", TESTS),
    "image-seq2seq-test": (
        sized(ImageSeq2SeqSettings(), 2, 32, 4, 64, **TINY,
              image=replace(SMALL_IMAGE, class_token=False)), "", TESTS),
    "audio-encoder-test": (sized(AudioEncoderSettings(), 2, 32, 4, 64), "", TESTS),
    "audio-seq2seq-test": (
        sized(AudioSeq2SeqSettings(), 2, 32, 4, 64, **TINY, ctc=True), "", TESTS),
}  # fmt: skip
PRESETS = {name: Preset(*row) for name, row in ROWS.items()}


def preset(name: str) -> ModelSettings:
    if name not in PRESETS:
        raise ConfigError(f"unknown preset {name!r}.{suggest(name, PRESETS)}")
    return PRESETS[name].settings
