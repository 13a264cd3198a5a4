"""Model settings that all families share. Names and symbols follow "Attention Is All You Need".

Nothing here imports torch, so settings are checked before any slow import.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypeVar

from headway.errors import ConfigError
from headway.settings.effects import OF_MODEL, ModelFacts, check_model, ignored_by
from headway.settings.kept_heads import ALL_HEADS, KeptHeads
from headway.specs.values import check_least, check_values

Activation = Literal["relu", "gelu", "gelu-tanh", "silu", "relu2", "swiglu", "geglu", "geglu-tanh"]
NormKind = Literal["layer", "rms"]
BlockLayout = Literal["post", "pre", "parallel"]
PositionKind = Literal[
    "sinusoidal", "sinusoidal-halves", "learned", "rotary", "alibi", "relative", "none"
]
InitScheme = Literal["paper", "gpt2", "bert", "small"]
Pooling = Literal["first", "mean", "last"]
BodyKind = Literal["transformer", "lstm", "gru", "convolution", "sha-rnn", "ngram"]
HeadIn = Literal["every", "second-last", "none"]

ADDED_POSITIONS = ("sinusoidal", "sinusoidal-halves", "learned", "none")
"""Positional encodings that are added to embeddings, so they work in models without attention. All
other encodings act inside attention."""

INSTEAD: dict[str, Any] = {"positions": "none", "init": "paper", "pooling": "mean"}
"""Defaults of models that are not Transformers. They read tokens in order, so they need no
positional encoding. Their first token does not see all others, so it cannot represent the text."""


@dataclass(frozen=True, kw_only=True)
class RopeSettings:
    """Rotary position embeddings (RoPE); used only with `positions = "rotary"`."""

    base: float = 10_000.0
    """RoPE base: the slowest-rotating pair of dimensions turns once in about 2π times this many
    positions."""

    scaling: Literal["none", "linear", "ntk", "llama3"] = "none"
    """Method of extending the context beyond the trained length."""

    factor: float = 1.0
    """Extended context length, as a multiple of the trained one."""

    trained_len: int = 8192
    """Context length before scaling; used only by `llama3`."""

    def __post_init__(self) -> None:
        check_values(self)
        check_least(self, 1, "trained_len", of="rope.")
        changed = {f"model.rope.{name}": value for name, value in vars(self).items()
                   if value != getattr(type(self), name)}  # fmt: skip
        OF_MODEL.check(changed, ModelFacts(positions="rotary", rope_scaling=self.scaling))
        if self.base <= 0:
            raise ConfigError(
                f"rope.base={self.base:g} must be positive. The usual value is 10000."
            )
        if self.factor < 1.0:
            raise ConfigError(
                f"rope.factor={self.factor:g} would shorten the context. Use 1 or more."
            )


@dataclass(frozen=True, kw_only=True)
class RelativeSettings:
    """Relative position buckets as in T5; used only with `positions = "relative"`."""

    buckets: int = 32
    """Number of distance buckets: half for earlier tokens, half for later ones."""

    max_distance: int = 128
    """Distance in tokens from which all distances share the last bucket."""

    def __post_init__(self) -> None:
        if self.buckets < 4 or self.buckets % 4:
            raise ConfigError(
                f"relative.buckets={self.buckets} must be a multiple of 4 and at least 4. Each "
                "direction gets half of the buckets, and half of those are for exact distances. "
                "T5 uses 32."
            )
        if self.max_distance <= self.buckets // 2:
            raise ConfigError(
                f"relative.max_distance={self.max_distance} must be greater than half of "
                f"relative.buckets={self.buckets}. Use {self.buckets // 2 + 1} or more."
            )


@dataclass(frozen=True, kw_only=True)
class StackSettings:
    """Settings of the decoder that differ from those of the encoder. None: as in the encoder."""

    n_layers: int | None = None
    """Number of layers. None: as in the encoder (`n_layers`)."""

    n_heads: int | None = None
    """Number of heads in self-attention and cross-attention. None: as in the encoder
    (`n_heads`)."""

    n_kv_heads: int | None = None
    """Number of key/value heads. None: as in the encoder (`n_kv_heads`), or else the number of
    heads of the decoder."""

    d_head: int | None = None
    """Width of a head. None: as in the encoder (`d_head`), or else `d_model` divided by the number
    of heads of the decoder."""

    d_ff: int | None = None
    """Hidden width of the feed-forward network. None: as in the encoder (`d_ff`)."""

    activation: Activation | None = None
    """Activation function of the feed-forward network. None: as in the encoder (`activation`)."""

    norm_eps: float | None = None
    """Epsilon that the norms add to the variance. None: as in the encoder (`norm_eps`)."""

    def __post_init__(self) -> None:
        check_values(self)


SHARED = StackSettings()
"""Default of `decoder`: all settings are those of the encoder."""


@dataclass(frozen=True, kw_only=True)
class StackSpec:
    """Resolved dimensions of one stack of layers, the encoder or the decoder."""

    n_layers: int
    n_heads: int
    kv_heads: int
    head_width: int
    d_ff: int
    activation: Activation
    norm_eps: float
    section: str = field(default="", compare=False)
    """Prefix of the settings that apply only to this stack, such as `decoder.`; empty for the
    shared settings."""

    own: StackSettings = field(default=SHARED, compare=False)
    """Settings that apply only to this stack."""

    def key(self, name: str) -> str:
        """Return the key of the setting that determines a dimension: the stack's own setting, or
        the shared one."""
        return name if getattr(self.own, name) is None else f"{self.section}{name}"


@dataclass(frozen=True, kw_only=True)
class BodySettings:
    """Settings shared by all families. The defaults are those of the 2017 Transformer (base)."""

    body: BodyKind = "transformer"
    """How tokens exchange information: self-attention (`transformer`), a recurrence (`lstm`,
    `gru`), convolutions over neighbours (`convolution`), or a recurrence with a single attention
    head (`sha-rnn`). `ngram` counts which token follows the last few."""

    d_model: int = 512
    """Width of the residual stream, the hidden state of each token."""

    n_layers: int = 6
    """Number of layers. In an encoder-decoder, `n_layers`, `n_heads` and `d_ff` apply to both
    stacks, unless the section `decoder` has another value."""

    n_heads: int = 8
    """Number of attention heads."""

    n_kv_heads: int | None = None
    """Number of key/value heads. Fewer than `n_heads` saves cache memory. None: equal to
    `n_heads`."""

    d_head: int | None = None
    """Width of a head. None: `d_model / n_heads`."""

    kept_heads: KeptHeads = ALL_HEADS
    """Heads that remain in each layer after `headway prune`."""

    d_ff: int = 2048
    """Hidden width of the feed-forward network."""

    max_len: int = 1024
    """Maximum length of a sequence in tokens. Only learned positions have parameters that depend on
    it."""

    activation: Activation = "relu"
    """Activation function of the feed-forward network. `swiglu`, `geglu` and `geglu-tanh` are
    gated: they have three matrices instead of two."""

    norm: NormKind = "layer"
    """Normalization: layer norm or RMS norm."""

    norm_eps: float = 1e-6
    """Epsilon that the norms add to the variance."""

    block_layout: BlockLayout = "post"
    """Block layout. `post` normalizes after the residual addition (2017), `pre` before each
    sub-layer (GPT-2). `parallel` runs attention and feed-forward in parallel after one norm. `pre`
    and `parallel` end with a final norm."""

    positions: PositionKind = "sinusoidal"
    """Positional encoding. `sinusoidal`, `sinusoidal-halves` and `learned` are added to embeddings;
    `rotary`, `alibi` and `relative` act inside attention."""

    rope: RopeSettings = RopeSettings()
    """Settings of `rotary` positions."""

    relative: RelativeSettings = RelativeSettings()
    """Settings of `relative` positions."""

    window: int | None = None
    """Sliding window of self-attention: only keys closer than this many tokens are visible. None:
    all keys."""

    scale_attention: bool = True
    """Divide attention scores by the square root of the head width. T5 does not."""

    attention_bias: str = ""
    """Attention projections that have a bias, as letters out of `qkvo`. Empty: none."""

    ff_bias: bool = True
    """Add biases in the feed-forward network."""

    qk_norm: bool = False
    """Apply RMS norm to the queries and keys of each head (QK norm)."""

    dropout: float = 0.1
    """Dropout on the summed embeddings and on the output of each sub-layer."""

    attention_dropout: float = 0.0
    """Dropout on attention weights."""

    ff_dropout: float = 0.0
    """Dropout inside the feed-forward network."""

    init: InitScheme = "paper"
    """Weight initialization: as in the 2017 paper, GPT-2 or BERT. `small` starts every layer as the
    identity."""

    bidirectional: bool = True
    """With `lstm` and `gru`: an encoder reads in both directions, and each direction has half of
    the width."""

    kernel: int = 3
    """With `convolution`: kernel width in tokens. An encoder is centred on each token; a decoder
    sees only the token itself and earlier ones."""

    dilation: int = 1
    """With `convolution`: growth factor of the dilation from layer to layer, restarting after five
    layers. 1: no dilation; 2: as in ByteNet."""

    parts: str | None = None
    """Name of the custom parts passed in Python (`headway.train(…, parts=…)`) that this model
    needs. None: no custom parts."""

    def __post_init__(self) -> None:
        check_values(self)
        self._check_body()
        self._check_sizes()
        self._check_heads()
        self._check_positions()
        unknown = set(self.attention_bias) - set("qkvo")
        if unknown or len(set(self.attention_bias)) != len(self.attention_bias):
            raise ConfigError(
                f"attention_bias={self.attention_bias!r} may contain only the letters q, k, v and "
                "o, each at most once. Use '' for no bias, or 'qkvo' for a bias on all projections."
            )

    def _check_body(self) -> None:
        """Raise an error for settings that the chosen `body` ignores or does not support."""
        check_model(self)
        body = self.body
        if body == "transformer":
            return
        if self.block_layout == "parallel":
            raise ConfigError(
                f"block_layout='parallel' applies only to body='transformer', not to "
                f"body={body!r}. Use block_layout=pre or block_layout=post."
            )
        if self.positions not in ADDED_POSITIONS:
            raise ConfigError(
                f"positions={self.positions!r} applies only to body='transformer', not to "
                f"body={body!r}. Use positions=none, or one of {', '.join(ADDED_POSITIONS[:-1])}."
            )
        check_least(self, 1, "kernel", "dilation")
        self._check_encoder()

    def _check_encoder(self) -> None:
        """Raise an error for settings that the chosen `body` does not support in an encoder or an
        encoder-decoder."""
        if self.body == "sha-rnn" and self.d_ff % self.d_model:
            near = self.d_model * max(1, round(self.d_ff / self.d_model))
            raise ConfigError(
                f"d_ff={self.d_ff} must be a multiple of d_model={self.d_model} with "
                f"body='sha-rnn', which sums slices of this width. Try d_ff={near}."
            )
        if self.causal:
            return
        if self.body in ("sha-rnn", "ngram"):
            raise ConfigError(
                f"body={self.body!r} works only in the decoder family (headway train complete). "
                "Use body=lstm, gru or convolution here."
            )
        if self.body in ("lstm", "gru") and self.bidirectional and self.d_model % 2:
            raise ConfigError(
                f"d_model={self.d_model} must be even with bidirectional=true, because each "
                f"direction has half of the width. Try d_model={self.d_model + 1}, or "
                "bidirectional=false."
            )
        if self.body == "convolution" and not self.kernel % 2:
            raise ConfigError(
                f"kernel={self.kernel} must be odd in an encoder, because it is centred on each "
                f"token. Try kernel={self.kernel + 1}."
            )
        pooling = getattr(self, "pooling", "mean")
        one_way = self.body in ("lstm", "gru") and not self.bidirectional
        if "classes" in getattr(self, "heads", ()) and (
            (pooling == "first" and (one_way or self.body == "convolution"))
            or (pooling == "last" and self.body == "convolution")
        ):
            raise ConfigError(
                f"pooling={pooling!r} uses a single token, but with body={self.body!r}"
                f"{' and bidirectional=false' * one_way} this token does not see all others. "
                f"Use pooling=mean"
                f"{' or pooling=last' * one_way}."
            )

    def _check_sizes(self) -> None:
        least = {name: getattr(self, name) for name in ("d_model", "max_len")}
        for stack in self.stacks.values():
            for name in ("n_layers", "n_heads", "d_head", "d_ff"):
                least[stack.key(name)] = self._value(stack, name)
        for name, value in least.items():
            if value is not None and value < 1:
                raise ConfigError(f"{name}={value} must be at least 1.")
        for name in ("dropout", "attention_dropout", "ff_dropout"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ConfigError(
                    f"{name}={getattr(self, name):g} must be at least 0 and below 1: "
                    "it is a probability."
                )
        for stack in self.stacks.values():
            if stack.norm_eps <= 0:
                raise ConfigError(
                    f"{stack.key('norm_eps')}={stack.norm_eps:g} must be positive. Try 1e-6."
                )
        if self.window is not None and self.window < 1:
            raise ConfigError(f"window={self.window} leaves no keys to attend to. Use 1 or more.")

    def _check_heads(self) -> None:
        for stack in self.stacks.values():
            heads, groups = stack.key("n_heads"), stack.key("n_kv_heads")
            has_heads = self.body == "transformer"
            if has_heads and self._derives_width(stack) and self.d_model % stack.n_heads:
                raise ConfigError(
                    f"d_model={self.d_model} must be a multiple of {heads}={stack.n_heads}. "
                    f"Try d_model={self._nearest_width()}, or another {heads}."
                )
            if stack.kv_heads < 1 or stack.n_heads % stack.kv_heads:
                fits = [g for g in range(1, stack.n_heads + 1) if stack.n_heads % g == 0]
                raise ConfigError(
                    f"{heads}={stack.n_heads} must be a multiple of {groups}={stack.kv_heads}. "
                    f"Use one of {', '.join(map(str, fits))} for {stack.section}n_kv_heads."
                )
        stacks = {kind: self.stack(kind) for kind in self.attention_layers}
        heads_of = {kind: (stack.n_heads, stack.kv_heads) for kind, stack in stacks.items()}
        self.kept_heads.check(self.attention_layers, heads_of)

    def _value(self, stack: StackSpec, name: str) -> Any:
        """Return the value of a setting for a stack: its own value if one is set, otherwise the
        shared one."""
        own = getattr(stack.own, name)
        return getattr(self, name) if own is None else own

    def _derives_width(self, stack: StackSpec) -> bool:
        return self._value(stack, "d_head") is None

    def _nearest_width(self) -> int:
        """Return the width nearest to `d_model` that is divisible by the number of heads and fits
        the positions."""
        derived = [one.n_heads for one in self.stacks.values() if self._derives_width(one)]
        step = math.lcm(*derived)
        needs_pairs = self.positions.startswith("sinusoidal") and step % 2
        if needs_pairs or (self.positions == "rotary" and derived):
            step *= 2
        return step * max(1, round(self.d_model / step))

    def _check_positions(self) -> None:
        for stack in self.stacks.values() if self.positions == "rotary" else ():
            width, wanted = stack.head_width, f"{stack.section}d_head"
            if self.rope.scaling == "ntk" and width < 4:
                raise ConfigError(
                    f"rope.scaling='ntk' needs heads of width 4 or more, but these heads have "
                    f"width {width}. Set {wanted} to 4 or more."
                )
            if width % 2:
                raise ConfigError(
                    f"rotary positions need an even head width, but d_model={self.d_model} with "
                    f"{stack.key('n_heads')}={stack.n_heads} gives {width}. Set {wanted} to an "
                    "even number."
                )
        if self.positions.startswith("sinusoidal") and self.d_model % 2:
            raise ConfigError(
                f"sinusoidal positions need an even width, but d_model={self.d_model} is odd. "
                f"Try d_model={self._nearest_width()}."
            )

    @property
    def is_counted(self) -> bool:
        """Whether the model is built by counting the training data instead of by optimizer
        steps."""
        return self.body == "ngram"

    @property
    def causal(self) -> bool:
        """Whether the model is a single stack in which each token sees only itself and earlier
        tokens."""
        return False

    @property
    def attention_layers(self) -> dict[str, int]:
        """Number of layers with their own weights, by kind of multi-head attention."""
        return {"self": self.n_layers} if self.body == "transformer" else {}

    @property
    def stacks(self) -> dict[str, StackSpec]:
        """Stacks of layers in the model, by the kind of their self-attention, such as `encoder`."""
        return {"self": self._stack()}

    def _stack(self, own: StackSettings = SHARED, section: str = "") -> StackSpec:
        """Return the resolved dimensions of a stack from its `own` settings, and from the shared
        ones for the rest."""
        sizes = {one.name: getattr(self, one.name) for one in fields(own)}
        sizes |= {name: value for name, value in vars(own).items() if value is not None}
        n_heads, n_kv_heads, d_head = sizes["n_heads"], sizes.pop("n_kv_heads"), sizes.pop("d_head")
        if d_head is None:
            d_head = self.d_model // max(1, n_heads)  # no heads are an error of `_check_sizes`
        return StackSpec(
            kv_heads=n_heads if n_kv_heads is None else n_kv_heads, head_width=d_head,
            section=section, own=own, **sizes,
        )  # fmt: skip

    def stack(self, kind: str = "self") -> StackSpec:
        """Return the stack that contains this kind of attention. Cross-attention is in the
        decoder."""
        stacks = self.stacks
        return stacks[kind] if kind in stacks else stacks["decoder"]

    def each(self, name: str) -> tuple[int, ...]:
        """Return the distinct values of one attribute of `StackSpec` over all stacks."""
        return tuple(dict.fromkeys(getattr(one, name) for one in self.stacks.values()))

    @property
    def size_facts(self) -> list[str]:
        """Short description of the model size, for display."""
        layers = " + ".join(str(one.n_layers) for one in self.stacks.values())
        if self.body != "transformer":
            return [f"{layers} layers of {self.body}", f"d {self.d_model}"]
        heads, left = " + ".join(map(str, self.each("n_heads"))), self.n_kept_heads
        some = "" if left == self.n_whole_heads else f" ({left} of {self.n_whole_heads} left)"
        return [f"{layers} layers × {heads} heads{some}", f"d {self.d_model}"]

    def heads_in(self, kind: str, layer: int) -> tuple[int, int]:
        """Return the numbers of query heads and of key/value heads in one attention layer after
        pruning."""
        stack = self.stack(kind)
        heads = self.kept_heads.of(kind, layer) or range(stack.n_heads)
        sharing = stack.n_heads // stack.kv_heads
        return len(heads), len({head // sharing for head in heads})

    @property
    def n_whole_heads(self) -> int:
        """Total number of heads before pruning. Layers that share weights count once."""
        layers = self.attention_layers.items()
        return sum(n_layers * self.stack(kind).n_heads for kind, n_layers in layers)

    @property
    def n_kept_heads(self) -> int:
        """Total number of heads after pruning. Layers that share weights count once."""
        return sum(
            self.heads_in(kind, layer)[0]
            for kind, n_layers in self.attention_layers.items()
            for layer in range(n_layers)
        )

    @property
    def kv_heads(self) -> int:
        """Number of key/value heads of the only stack or of the encoder. Those of the decoder are
        in `stack`."""
        return next(iter(self.stacks.values())).kv_heads

    @property
    def head_width(self) -> int:
        return next(iter(self.stacks.values())).head_width


BodySettingsT = TypeVar("BodySettingsT", bound=BodySettings)


def with_body(
    settings: BodySettingsT, body: str, single_head: str | None = "every"
) -> BodySettingsT:
    """Return settings with another `body` and the same sizes. Settings that this body ignores
    return to their defaults."""
    changes: dict[str, Any] = {"body": body}
    unread = ignored_by({"body": body, "single_head": single_head})
    for one in fields(settings):
        if one.name in unread:
            changes[one.name] = one.default
        elif one.name in INSTEAD and body != "transformer":
            changes[one.name] = INSTEAD[one.name]
    own = getattr(settings, "decoder", None)
    if own is not None:
        gone = {one.name: None for one in fields(own) if f"decoder.{one.name}" in unread}
        changes["decoder"] = replace(own, **gone)
    if changes.get("pooling") and getattr(settings, "causal", False):
        del changes["pooling"]  # its last token sees all others
    if settings.block_layout == "parallel":
        changes["block_layout"] = "pre"
    return replace(settings, **changes)
