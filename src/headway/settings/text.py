"""The families that read text: encoder-decoder, encoder, decoder."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

from headway.errors import ConfigError
from headway.settings.body import (
    Activation,
    BodySettings,
    HeadIn,
    Pooling,
    Positions,
    Scheme,
    Wiring,
)
from headway.settings.value_types import check_least


class Shape(IntEnum):
    """What kind of word it is, beside its tokens. Weights rest on the numbers."""

    LOWER = 0
    CAPITALISED = 1
    CAPITALS = 2
    MIXED = 3
    WITH_DIGITS = 4
    NUMBER = 5
    SIGNS = 6
    CAPITAL = 7


SHAPES = {
    Shape.LOWER: "no capital letters",
    Shape.CAPITALISED: "Capitalised",
    Shape.CAPITALS: "ALL CAPITALS",
    Shape.MIXED: "miXed",
    Shape.WITH_DIGITS: "letters and digits",
    Shape.NUMBER: "a number",
    Shape.SIGNS: "signs alone",
    Shape.CAPITAL: "one capital letter",
}


@dataclass(frozen=True, kw_only=True)
class TextSettings(BodySettings):
    """What every text family has beside its body: words."""

    vocab_size: int = 37_000
    """Words of the vocabulary."""

    embedding_scale: bool = True
    """Multiply token embeddings by √d_model."""

    embedding_norm: bool = False
    """A norm on the sum of embeddings, as in BERT."""

    head_bias: bool = False
    """A bias per word in the vocabulary scores."""

    embeddings: str | None = None
    """A file of word vectors (word2vec's or GloVe's text form) that token embeddings start from."""

    tune_embeddings: bool = True
    """Whether vectors from a file are trained further."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, 1, "vocab_size")
        if not self.tune_embeddings and self.embeddings is None:
            raise ConfigError(
                "tune_embeddings=false has no effect without word vectors. Name a file: "
                "embeddings=vectors.txt."
            )


DECODER_KEYS = {
    "n_layers": "n_decoder_layers",
    "n_heads": "n_decoder_heads",
    "n_kv_heads": "n_decoder_kv_heads",
    "d_head": "d_decoder_head",
    "d_ff": "d_decoder_ff",
    "activation": "decoder_activation",
    "norm_eps": "decoder_norm_eps",
}
"""Settings of both sides, and what the decoder alone has for them."""


@dataclass(frozen=True, kw_only=True)
class Seq2SeqSettings(TextSettings):
    """The encoder-decoder of "Attention Is All You Need"."""

    n_decoder_layers: int | None = None
    """None: as many as the encoder has (`n_layers`)."""

    n_decoder_heads: int | None = None
    """Of its attention to itself and to the source. None: as the encoder (`n_heads`)."""

    n_decoder_kv_heads: int | None = None
    """None: `n_kv_heads`, or where that is open too as many as the decoder has heads."""

    d_decoder_head: int | None = None
    """None: `d_head`, or where that is open too `d_model` by the decoder's heads."""

    d_decoder_ff: int | None = None
    """None: as the encoder (`d_ff`)."""

    decoder_activation: Activation | None = None
    """None: as the encoder (`activation`)."""

    decoder_norm_eps: float | None = None
    """None: as the encoder (`norm_eps`)."""

    source_vocab_size: int | None = None
    """None: one vocabulary for source and target (`vocab_size`)."""

    tie: Literal["all", "source-target", "source-softmax", "target-softmax", "none"] = "all"
    """Which of source embedding, target embedding and softmax are one matrix."""

    scale_head: bool = False
    """Divide the stream by √d_model before it is scored, as T5 does where the softmax is tied."""

    memory: Literal["dot", "additive", "last"] = "dot"
    """How a decoder other than the Transformer's reads the encoder's rows: by one head of attention
    that multiplies, by additive attention, or nothing of them but the last state."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.memory == "last" and self.body == "convolution":
            raise ConfigError(
                "memory='last' begins the decoder with the encoder's last state, and convolutions "
                "have none. Use memory=dot or memory=additive."
            )
        if self.source_vocab < 1:
            raise ConfigError(f"source_vocab_size={self.source_vocab_size} must be at least 1.")
        shares_source = self.tie in ("all", "source-target", "source-softmax")
        if shares_source and self.source_vocab != self.vocab_size:
            raise ConfigError(
                f"tie={self.tie!r} makes the source embedding one matrix with another, but "
                f"source_vocab_size={self.source_vocab} and vocab_size={self.vocab_size} differ. "
                "Use tie=target-softmax, or one shared vocabulary."
            )

    @property
    def sides(self) -> tuple[str, ...]:
        return ("encoder", "decoder")

    def own_key(self, kind: str, name: str) -> str:
        return name if kind == "encoder" else DECODER_KEYS[name]

    @property
    def attention_layers(self) -> dict[str, int]:
        if self.body != "transformer":
            return {}
        return {
            "encoder": self.n_layers,
            "decoder": self.decoder_layers,
            "cross": self.decoder_layers,
        }

    @property
    def decoder_layers(self) -> int:
        return self.side("decoder").n_layers

    @property
    def source_vocab(self) -> int:
        return self.vocab_size if self.source_vocab_size is None else self.source_vocab_size


@dataclass(frozen=True, kw_only=True)
class EncoderSettings(TextSettings):
    """BERT, DistilBERT, MiniLM: an encoder that reads in both directions. Defaults: BERT-base."""

    vocab_size: int = 30_522
    d_model: int = 768
    n_layers: int = 12
    n_heads: int = 12
    d_ff: int = 3072
    max_len: int = 512
    activation: Activation = "gelu"
    norm_eps: float = 1e-12
    positions: Positions = "learned"
    attention_bias: str = "qkvo"
    embedding_scale: bool = False
    embedding_norm: bool = True
    head_bias: bool = True
    attention_dropout: float = 0.1
    init: Scheme = "bert"

    d_embedding: int | None = None
    """Width of the embeddings, which a matrix then brings to `d_model`, as in ALBERT. None:
    `d_model`."""

    share_layers: bool = False
    """All layers are one and the same, as in ALBERT."""

    n_segments: int = 2
    """Kinds of segment embedding: sentence A and sentence B; 8: what kind of word it is, beside the
    tokens, in taggers whose tokenizer has no case. 0: none, as in DistilBERT."""

    token_dropout_mask: int | None = None
    """The number of the mask token in models with ESM's token dropout: its embedding is zero, and
    the others are multiplied by 0.88 / (1 - the share of masked tokens). None: no such scaling."""

    heads: tuple[Literal["words", "pooled", "classes", "tags"], ...] = ("words", "pooled")
    """What is read out: masked words, BERT's pooled vector, classes of a text, tags of words."""

    pooling: Pooling = "first"
    """How a text becomes one vector: its first token, its last, or the mean of all."""

    pooler: Literal["tanh", "relu"] = "tanh"
    """What ends the layer of the pooled head: BERT's and RoBERTa's, or DistilBERT's."""

    n_labels: int = 0
    """Classes or tags, when there is such a head."""

    tag_transitions: bool = False
    """Scores for one tag after another beside those of each tag: a linear-chain CRF."""

    ngrams: int = 0
    """Buckets of a table of n-grams that is fitted before training, whose scores of labels are
    averaged with those of the layers. 0: none."""

    tie: bool = True
    """Word scores use the embedding matrix."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_heads(self.heads, self.n_labels, self.tag_transitions)
        check_least(self, 0, "ngrams")
        labelled = {"classes", "tags"} & set(self.heads)  # else a task will bring the head
        if self.ngrams and labelled and len(self.heads) > 1:
            raise ConfigError(
                f"ngrams={self.ngrams} goes with one head of labels and no other: "
                f'heads=["classes"] or heads=["tags"], not {list(self.heads)}.'
            )
        if self.n_segments < 0:
            raise ConfigError(f"n_segments={self.n_segments} must be 0 (none) or more.")
        check_least(self, 1, "d_embedding")
        check_least(self, 0, "token_dropout_mask")
        if self.positions.startswith("sinusoidal") and self.embedding_width % 2:
            raise ConfigError(
                f"sinusoidal positions are pairs of sine and cosine, so "
                f"d_embedding={self.d_embedding} must be even."
            )
        if self.pooler != "tanh" and "pooled" not in self.heads:
            raise ConfigError(f"pooler={self.pooler!r} has no effect without a 'pooled' head.")

    @property
    def attention_layers(self) -> dict[str, int]:
        if self.body != "transformer":
            return {}
        return {"self": 1 if self.share_layers else self.n_layers}

    @property
    def embedding_width(self) -> int:
        return self.d_model if self.d_embedding is None else self.d_embedding

    @property
    def reads_shapes(self) -> bool:
        """Whether its segments, where it tags words, are the shapes of those."""
        return self.n_segments == len(Shape)


@dataclass(frozen=True, kw_only=True)
class DecoderSettings(TextSettings):
    """GPT, GPT-2, Llama-style: a decoder that predicts the next token. Defaults: GPT-2 small."""

    vocab_size: int = 50_257
    d_model: int = 768
    n_layers: int = 12
    n_heads: int = 12
    d_ff: int = 3072
    activation: Activation = "gelu-tanh"
    norm_eps: float = 1e-5
    wiring: Wiring = "pre"
    positions: Positions = "learned"
    attention_bias: str = "qkvo"
    embedding_scale: bool = False
    attention_dropout: float = 0.1
    init: Scheme = "gpt2"

    heads: tuple[Literal["words", "classes", "tags"], ...] = ("words",)
    """What is read out: the next word, classes of a text, tags of words."""

    pooling: Pooling = "last"
    """How a text becomes one vector: only its last token has seen all of it."""

    n_labels: int = 0
    """Classes or tags, when there is such a head."""

    tag_transitions: bool = False
    """Scores for one tag after another beside those of each tag: a linear-chain CRF."""

    tie: bool = True
    """Word scores use the embedding matrix."""

    order: int = 5
    """With `ngram`: how many tokens its n-grams have at most, the one that is said among them."""

    single_head: HeadIn = "every"
    """With `sha-rnn`: which layers have the single head of attention. `second-last`: one alone."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, 1, "order")
        _check_heads(self.heads, self.n_labels, self.tag_transitions)
        if self.counts and self.heads != ("words",):
            raise ConfigError(
                f"body='ngram' says the next word and nothing else: heads={list(self.heads)} needs "
                "another body."
            )

    @property
    def size_facts(self) -> list[str]:
        return [f"n-grams of up to {self.order} tokens"] if self.counts else super().size_facts

    @property
    def causal(self) -> bool:
        return True


def _check_heads(heads: tuple[str, ...], n_labels: int, tag_transitions: bool) -> None:
    if len(set(heads)) != len(heads):
        raise ConfigError(f"heads={list(heads)} names a head twice.")
    labelled = [head for head in heads if head in ("classes", "tags")]
    if labelled and n_labels < 1:
        raise ConfigError(f"a {labelled[0]!r} head needs n_labels, the number of labels.")
    if n_labels and not labelled:
        raise ConfigError(
            f"n_labels={n_labels} has no effect without a 'classes' or 'tags' head. "
            f"Add one: heads={[*heads, 'classes']}."
        )
    if tag_transitions and "tags" not in heads:
        raise ConfigError("tag_transitions has no effect without a 'tags' head.")
