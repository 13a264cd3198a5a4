"""Settings of the text families: encoder-decoder, encoder and decoder."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

from headway.errors import ConfigError
from headway.settings.body import (
    SHARED,
    Activation,
    BlockLayout,
    BodySettings,
    HeadIn,
    InitScheme,
    Pooling,
    PositionKind,
    StackSettings,
    StackSpec,
)
from headway.specs.values import check_least


class WordShape(IntEnum):
    """Kinds of word shape (capitalization and digits), an optional input in addition to the tokens.

    The numbers must not change, because trained weights depend on them.
    """

    LOWER = 0
    CAPITALISED = 1
    CAPITALS = 2
    MIXED = 3
    WITH_DIGITS = 4
    NUMBER = 5
    SIGNS = 6
    CAPITAL = 7


SHAPES = {
    WordShape.LOWER: "no capital letters",
    WordShape.CAPITALISED: "Capitalised",
    WordShape.CAPITALS: "ALL CAPITALS",
    WordShape.MIXED: "miXed",
    WordShape.WITH_DIGITS: "letters and digits",
    WordShape.NUMBER: "a number",
    WordShape.SIGNS: "only symbols",
    WordShape.CAPITAL: "one capital letter",
}


@dataclass(frozen=True, kw_only=True)
class TextSettings(BodySettings):
    """Settings of the vocabulary and the token embeddings, which all text families share."""

    vocab_size: int = 37_000
    """Vocabulary size in tokens. In a run, it is determined by the tokenizer."""

    embedding_scale: bool = True
    """Multiply token embeddings by √d_model."""

    embedding_norm: bool = False
    """Normalize the sum of the embeddings, as in BERT."""

    head_bias: bool = False
    """Add a bias to the logit of each token."""

    embeddings: str | None = None
    """File of word vectors that initialize the token embeddings, in the text format of word2vec or
    GloVe. None: random initialization."""

    tune_embeddings: bool = True
    """Continue to train word vectors that were read from a file."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, 1, "vocab_size")


@dataclass(frozen=True, kw_only=True)
class Seq2SeqSettings(TextSettings):
    """The encoder-decoder of "Attention Is All You Need"."""

    decoder: StackSettings = SHARED
    """Settings of the decoder that differ from those of the encoder."""

    source_vocab_size: int | None = None
    """Source vocabulary size. None: one vocabulary for source and target (`vocab_size`)."""

    tie: Literal["all", "source-target", "source-softmax", "target-softmax", "none"] = "all"
    """Weight tying: which of the source embedding, the target embedding and the softmax share one
    matrix."""

    scale_head: bool = False
    """Divide hidden states by √d_model before the softmax, as T5 does with a tied softmax."""

    source_attention: Literal["dot", "additive", "last"] = "dot"
    """How recurrent and convolutional decoders read the encoder: one head of dot-product attention
    (`dot`), additive attention (`additive`), or only the last state of the encoder (`last`)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.source_attention == "last" and self.body == "convolution":
            raise ConfigError(
                "source_attention='last' starts the decoder from the last state of the encoder, "
                "but body='convolution' has no recurrent state. Use source_attention=dot or "
                "source_attention=additive."
            )
        if self.source_vocab < 1:
            raise ConfigError(f"source_vocab_size={self.source_vocab_size} must be at least 1.")
        shares_source = self.tie in ("all", "source-target", "source-softmax")
        if shares_source and self.source_vocab != self.vocab_size:
            raise ConfigError(
                f"tie={self.tie!r} shares the source embedding with another matrix, but "
                f"source_vocab_size={self.source_vocab} and vocab_size={self.vocab_size} differ. "
                "Use tie=target-softmax, or one shared vocabulary."
            )

    @property
    def stacks(self) -> dict[str, StackSpec]:
        return {"encoder": self._stack(), "decoder": self._stack(self.decoder, "decoder.")}

    @property
    def attention_layers(self) -> dict[str, int]:
        if self.body != "transformer":
            return {}
        n_layers = {kind: stack.n_layers for kind, stack in self.stacks.items()}
        return {**n_layers, "cross": n_layers["decoder"]}

    @property
    def source_vocab(self) -> int:
        return self.vocab_size if self.source_vocab_size is None else self.source_vocab_size


@dataclass(frozen=True, kw_only=True)
class EncoderSettings(TextSettings):
    """Bidirectional encoders such as BERT, DistilBERT and MiniLM. Defaults: BERT-base."""

    vocab_size: int = 30_522
    d_model: int = 768
    n_layers: int = 12
    n_heads: int = 12
    d_ff: int = 3072
    max_len: int = 512
    activation: Activation = "gelu"
    norm_eps: float = 1e-12
    positions: PositionKind = "learned"
    attention_bias: str = "qkvo"
    embedding_scale: bool = False
    embedding_norm: bool = True
    head_bias: bool = True
    attention_dropout: float = 0.1
    init: InitScheme = "bert"

    d_embedding: int | None = None
    """Width of the embeddings, which are projected to `d_model` as in ALBERT. None: equal to
    `d_model`."""

    share_layers: bool = False
    """Share the weights of all layers, as in ALBERT."""

    n_segments: int = 2
    """Number of segment embeddings. 0: none, as in DistilBERT. 2: sentences A and B, as in BERT. 8:
    word shapes, for taggers whose tokenizer ignores case."""

    token_dropout_mask: int | None = None
    """Id of the mask token in models with ESM's token dropout. Its embedding is zero, and all
    others are multiplied by 0.88 / (1 - fraction of masked tokens). None: no token dropout."""

    heads: tuple[Literal["words", "pooled", "classes", "tags"], ...] = ("words", "pooled")
    """Output heads: masked tokens (`words`), BERT's pooled vector (`pooled`), classes of a text
    (`classes`), tags of words (`tags`)."""

    pooling: Pooling = "first"
    """Pooling of a text into one vector: the first token, the last token, or the mean of all."""

    pooler: Literal["tanh", "relu"] = "tanh"
    """Activation function of the pooled head: `tanh` in BERT and RoBERTa, `relu` in DistilBERT."""

    n_labels: int = 0
    """Number of classes or tags, if there is a `classes` or `tags` head."""

    tag_transitions: bool = False
    """Add transition scores between neighbouring tags, which makes the tagger a linear-chain
    CRF."""

    ngrams: int = 0
    """Number of buckets of an n-gram table that is fitted before training. Its label scores are
    averaged with those of the model. 0: no table."""

    tie: bool = True
    """Share the embedding matrix with the softmax."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_heads(self.heads, self.n_labels)
        check_least(self, 0, "ngrams")
        labelled = {"classes", "tags"} & set(self.heads)  # otherwise the task adds the head later
        if self.ngrams and labelled and len(self.heads) > 1:
            raise ConfigError(
                f"ngrams={self.ngrams} supports only a single label head "
                f'(heads=["classes"] or heads=["tags"]), not heads={list(self.heads)}.'
            )
        if self.n_segments < 0:
            raise ConfigError(f"n_segments={self.n_segments} must be 0 (none) or more.")
        check_least(self, 1, "d_embedding")
        check_least(self, 0, "token_dropout_mask")
        if self.positions.startswith("sinusoidal") and self.embedding_width % 2:
            raise ConfigError(
                f"sinusoidal positions need an even width, but d_embedding={self.d_embedding} is "
                "odd. Choose an even d_embedding."
            )

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
        """Whether segment embeddings encode word shapes."""
        return self.n_segments == len(WordShape)


@dataclass(frozen=True, kw_only=True)
class DecoderSettings(TextSettings):
    """Decoders that predict the next token, such as GPT-2 and Llama. Defaults: GPT-2 small."""

    vocab_size: int = 50_257
    d_model: int = 768
    n_layers: int = 12
    n_heads: int = 12
    d_ff: int = 3072
    activation: Activation = "gelu-tanh"
    norm_eps: float = 1e-5
    block_layout: BlockLayout = "pre"
    positions: PositionKind = "learned"
    attention_bias: str = "qkvo"
    embedding_scale: bool = False
    attention_dropout: float = 0.1
    init: InitScheme = "gpt2"

    heads: tuple[Literal["words", "classes", "tags"], ...] = ("words",)
    """Output heads: the next token (`words`), classes of a text (`classes`), tags of words
    (`tags`)."""

    pooling: Pooling = "last"
    """Pooling of a text into one vector. The default is the last token, because only it has seen
    the whole text."""

    n_labels: int = 0
    """Number of classes or tags, if there is a `classes` or `tags` head."""

    tag_transitions: bool = False
    """Add transition scores between neighbouring tags, which makes the tagger a linear-chain
    CRF."""

    tie: bool = True
    """Share the embedding matrix with the softmax."""

    order: int = 5
    """With `ngram`: maximum length of an n-gram in tokens, including the predicted token."""

    single_head: HeadIn = "every"
    """With `sha-rnn`: which layers have the single attention head: every layer, only the
    second-last, or none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, 1, "order")
        _check_heads(self.heads, self.n_labels)
        if self.is_counted and self.heads != ("words",):
            raise ConfigError(
                f"body='ngram' only predicts the next token (heads=['words']). For "
                f"heads={list(self.heads)}, use another body."
            )

    @property
    def size_facts(self) -> list[str]:
        return [f"n-grams of up to {self.order} tokens"] if self.is_counted else super().size_facts

    @property
    def causal(self) -> bool:
        return True


def _check_heads(heads: tuple[str, ...], n_labels: int) -> None:
    if len(set(heads)) != len(heads):
        raise ConfigError(f"heads={list(heads)} lists a head twice. List each head only once.")
    labelled = [head for head in heads if head in ("classes", "tags")]
    if labelled and n_labels < 1:
        raise ConfigError(
            f"a {labelled[0]!r} head needs labels, but n_labels={n_labels}. Set n_labels to the "
            "number of labels."
        )
