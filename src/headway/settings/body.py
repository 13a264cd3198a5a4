"""The shape of the stacks that every family shares. Symbols follow "Attention Is All You Need".

Nothing here imports torch: settings are read, checked and refused before anything slow happens.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from typing import Any, Literal, TypeVar

from headway.errors import ConfigError, suggest
from headway.settings.kept_heads import ALL_HEADS, KeptHeads
from headway.settings.value_types import check_least, setting_types, without_none

Activation = Literal["relu", "gelu", "gelu-tanh", "silu", "relu2", "swiglu", "geglu", "geglu-tanh"]
Norm = Literal["layer", "rms"]
Wiring = Literal["post", "pre", "parallel"]
Positions = Literal[
    "sinusoidal", "sinusoidal-halves", "learned", "rotary", "alibi", "relative", "none"
]
Scheme = Literal["paper", "gpt2", "bert", "small"]
Pooling = Literal["first", "mean", "last"]
Body = Literal["transformer", "lstm", "gru", "convolution", "sha-rnn", "ngram"]
HeadIn = Literal["every", "second-last", "none"]

TRAINED: dict[str, dict[str, Any]] = {
    "sha-rnn": {"optimizer": "lamb", "lr": 2e-3, "schedule": "cosine", "clip": 0.25},
}
"""How a body is trained from scratch where nobody asks: as its paper does, if it says."""

ADDED_POSITIONS = ("sinusoidal", "sinusoidal-halves", "learned", "none")
"""Those that a front adds, which any body can have; the others work inside attention."""

OF_ATTENTION = frozenset({
    "n_heads", "n_kv_heads", "d_head", "kept_heads", "d_ff", "activation", "rope", "relative",
    "window", "scale_attention", "attention_bias", "ff_bias", "qk_norm", "attention_dropout",
    "ff_dropout", "n_decoder_heads", "n_decoder_kv_heads", "d_decoder_head", "d_decoder_ff",
    "decoder_activation",
})  # fmt: skip
"""Settings of attention and of the feed-forward network behind it."""

UNREAD: dict[str, frozenset[str]] = {
    "transformer": frozenset(
        {"bidirectional", "memory", "kernel", "dilation", "order", "single_head"}
    ),
    "lstm": OF_ATTENTION | {"kernel", "dilation", "order", "single_head"},
    "gru": OF_ATTENTION | {"kernel", "dilation", "order", "single_head"},
    "convolution": OF_ATTENTION | {"bidirectional", "order", "single_head"},
    "sha-rnn": (OF_ATTENTION - {"d_ff", "window", "attention_dropout", "ff_dropout"})
    | {"bidirectional", "memory", "kernel", "dilation", "order"},
    "ngram": OF_ATTENTION
    | {
        "bidirectional",
        "memory",
        "kernel",
        "dilation",
        "d_model",
        "n_layers",
        "dropout",
        "norm",
        "norm_eps",
        "wiring",
        "positions",
        "init",
        "embedding_scale",
        "embedding_norm",
        "head_bias",
        "embeddings",
        "tune_embeddings",
        "tie",
        "pooling",
        "n_labels",
        "tag_transitions",
        "single_head",
    },
}
"""What each body does not read: refused where it is asked for, dropped where it is a choice of
ours."""

OF_SINGLE_HEAD = frozenset({"window", "attention_dropout"})
"""What a SHA-RNN without its head does not read either."""

INSTEAD: dict[str, Any] = {"positions": "none", "init": "paper", "pooling": "mean"}
"""What bodies other than the Transformer have where nobody asks: they know the order of tokens by
themselves, and no first token sees all others."""


def check_values(settings: Any) -> None:
    """Refuse what no field of its type can hold, also where no loader looked at it."""
    for name, hint in setting_types(type(settings)).items():
        value = getattr(settings, name)
        if type(None) in typing.get_args(hint):
            if value is None:
                continue
            hint = without_none(hint)
        several = typing.get_origin(hint) is tuple
        choices = typing.get_args(typing.get_args(hint)[0] if several else hint)
        if (several and choices) or typing.get_origin(hint) is Literal:
            for word in value if several else [value]:
                if word not in choices:
                    close = get_close_matches(str(word), choices)
                    near = suggest(str(word), choices) if close else ""
                    listed = ", ".join(choices)
                    raise ConfigError(f"{name} has no choice {word!r}. It has: {listed}.{near}")
        elif hint is int and type(value) is not int:
            raise ConfigError(f"{name}={value!r} must be a whole number.")
        elif hint is float and not isinstance(value, int | float):
            raise ConfigError(f"{name}={value!r} must be a number.")
        elif hint is float and not math.isfinite(value):
            raise ConfigError(f"{name}={value!r} must be a number that is not infinite.")


@dataclass(frozen=True, kw_only=True)
class RopeSettings:
    """Rotary positions; read only with `positions = "rotary"`."""

    base: float = 10_000.0
    """The slowest pair of a head turns once in about 2π times this many positions."""

    scaling: Literal["none", "linear", "ntk", "llama3"] = "none"
    """How a context longer than the trained one is reached."""

    factor: float = 1.0
    """How many times longer."""

    trained_len: int = 8192
    """Context before scaling; read by `llama3`."""

    def __post_init__(self) -> None:
        check_values(self)
        check_least(self, 1, "trained_len", of="rope.")
        if self.scaling != "llama3" and self.trained_len != 8192:
            raise ConfigError(
                f"rope.trained_len={self.trained_len} has no effect with "
                f"rope.scaling={self.scaling!r}. Only llama3 reads it."
            )
        if self.base <= 0:
            raise ConfigError(
                f"rope.base={self.base:g} must be positive. The usual value is 10000."
            )
        if self.scaling == "none" and self.factor != 1.0:
            raise ConfigError(
                f"rope.factor={self.factor:g} has no effect with rope.scaling='none'. "
                "Choose rope.scaling=linear, ntk or llama3, or leave the factor out."
            )
        if self.factor < 1.0:
            raise ConfigError(
                f"rope.factor={self.factor:g} would shorten the context. Use 1 or more."
            )


@dataclass(frozen=True, kw_only=True)
class RelativeSettings:
    """T5's relative buckets; read only with `positions = "relative"`."""

    buckets: int = 32
    """Distances are told apart by so many: half look back, half ahead."""

    max_distance: int = 128
    """All that are farther share the last bucket."""

    def __post_init__(self) -> None:
        if self.buckets < 4 or self.buckets % 4:
            raise ConfigError(
                f"relative.buckets={self.buckets} must be a multiple of 4: half of them look back, "
                "half ahead, and half of each are exact distances. T5 uses 32."
            )
        if self.max_distance <= self.buckets // 2:
            raise ConfigError(
                f"relative.max_distance={self.max_distance} must exceed half of "
                f"relative.buckets={self.buckets}, which are exact distances already."
            )


@dataclass(frozen=True, kw_only=True)
class Side:
    """The numbers of one stack: what its settings come to."""

    n_layers: int
    n_heads: int
    kv_heads: int
    head_width: int
    d_ff: int
    activation: Activation
    norm_eps: float


@dataclass(frozen=True, kw_only=True)
class BodySettings:
    """What every family has. The defaults are those of the 2017 Transformer (base)."""

    body: Body = "transformer"
    """How tokens learn of each other: by attention, by a recurrence that reads one after another,
    by convolutions over neighbours, by a recurrence and a single head of attention, or, in `ngram`,
    not at all: it counts what followed the last few tokens."""

    d_model: int = 512
    """Width of the residual stream."""

    n_layers: int = 6
    """Layers. This, heads and `d_ff` are of both sides of an encoder-decoder, unless its decoder
    has its own."""

    n_heads: int = 8
    """Attention heads."""

    n_kv_heads: int | None = None
    """Key/value heads; fewer than `n_heads` saves cache memory. None: same as `n_heads`."""

    d_head: int | None = None
    """Width of a head. None: `d_model / n_heads`."""

    kept_heads: KeptHeads = ALL_HEADS
    """Which of the `n_heads` heads each layer still has; `headway prune` takes some out."""

    d_ff: int = 2048
    """Width inside the feed-forward network."""

    max_len: int = 1024
    """The longest sequence. Only learned positions have parameters that depend on it."""

    activation: Activation = "relu"
    """`swiglu`, `geglu` and `geglu-tanh` multiply a gate with a value: three matrices, not two."""

    norm: Norm = "layer"
    """Layer norm, or RMS norm."""

    norm_eps: float = 1e-6
    """What a norm adds to the variance."""

    wiring: Wiring = "post"
    """Where the norm stands: after the add (2017), before the sub-layer (GPT-2), or one norm
    for attention and feed-forward side by side. `pre` and `parallel` end with a final norm."""

    positions: Positions = "sinusoidal"
    """How a model knows where a token stands: the first three are added to embeddings, the next
    three work inside attention."""

    rope: RopeSettings = RopeSettings()
    """With `rotary`."""

    relative: RelativeSettings = RelativeSettings()
    """With `relative`."""

    window: int | None = None
    """Self-attention reaches only keys nearer than this. None: all."""

    scale_attention: bool = True
    """Divide attention scores by the root of the head's width. T5 does not."""

    attention_bias: str = ""
    """Which projections have a bias: letters of `qkvo`."""

    ff_bias: bool = True
    """Biases in the feed-forward network."""

    qk_norm: bool = False
    """RMS-normalise queries and keys per head before they meet."""

    dropout: float = 0.1
    """On the embedding sum and on each sub-layer's output before it is added."""

    attention_dropout: float = 0.0
    """On attention weights."""

    ff_dropout: float = 0.0
    """Inside the feed-forward network."""

    init: Scheme = "paper"
    """How weights start: the paper's, or as those families do it."""

    bidirectional: bool = True
    """With `lstm` and `gru`: an encoder reads forwards and backwards, with half of its width each.
    """

    kernel: int = 3
    """With `convolution`: tokens that a layer sees at once. An encoder sees as many on either side,
    a decoder itself and those before."""

    dilation: int = 1
    """With `convolution`: each layer reaches so many times as far as the one before, for five
    layers, then again. 1: stacked; 2: ByteNet's."""

    parts: str | None = None
    """The name of parts that a program passes (`headway.train(…, parts=…)`), without which this
    model cannot be built. None: all are headway's."""

    def __post_init__(self) -> None:
        check_values(self)
        self._check_body()
        self._check_sizes()
        self._check_heads()
        self._check_positions()
        unknown = set(self.attention_bias) - set("qkvo")
        if unknown or len(set(self.attention_bias)) != len(self.attention_bias):
            raise ConfigError(
                f"attention_bias={self.attention_bias!r} must be letters out of 'qkvo', each once; "
                "'' is none and 'qkvo' is all."
            )

    def _check_body(self) -> None:
        """Refuse what this body does not read, or cannot be."""
        body = self.body
        usual = {one.name: one.default for one in fields(self)}
        asked = {"body": body, "single_head": getattr(self, "single_head", "every")}
        for name in sorted(unread_by(asked) & usual.keys()):
            if getattr(self, name) != usual[name] and not self._reads_anyway(name):
                if name not in UNREAD[body]:
                    raise ConfigError(
                        f"{name} has no effect with single_head='none': there is no attention "
                        "then. Leave it out, or choose another single_head."
                    )
                readers = [other for other in UNREAD if name not in UNREAD[other]]
                raise ConfigError(
                    f"{name} has no effect with body={body!r}: it is of {' and '.join(readers)}. "
                    "Leave it out, or choose that body."
                )
        if body == "transformer":
            return
        if self.wiring == "parallel":
            raise ConfigError(
                "wiring='parallel' sets attention beside a feed-forward network; with "
                f"body={body!r} one part follows another. Use wiring=pre or wiring=post."
            )
        if self.positions not in ADDED_POSITIONS:
            raise ConfigError(
                f"positions={self.positions!r} work inside attention, and body={body!r} knows the "
                f"order of tokens without. Use positions=none, or one of "
                f"{', '.join(ADDED_POSITIONS[:-1])}."
            )
        check_least(self, 1, "kernel", "dilation")
        self._check_encoder()

    def _reads_anyway(self, name: str) -> bool:
        """Whether a part beside the body reads a setting of its own."""
        return name == "activation" and "words" in getattr(self, "heads", ()) and not self.causal

    def _check_encoder(self) -> None:
        """Refuse what an encoder of this body cannot be."""
        if self.body == "sha-rnn" and self.d_ff % self.d_model:
            near = self.d_model * max(1, round(self.d_ff / self.d_model))
            raise ConfigError(
                f"a SHA-RNN adds up pieces of d_ff={self.d_ff}, which must be a multiple of "
                f"d_model={self.d_model}. Try d_ff={near}."
            )
        if self.causal:
            if not self.bidirectional:
                raise ConfigError(
                    "bidirectional=false has no effect in a decoder, which always reads from left "
                    "to right. Leave it out."
                )
            return
        if self.body in ("sha-rnn", "ngram"):
            raise ConfigError(
                f"body={self.body!r} only goes on with a text: it is for the decoder family "
                "(headway train complete). Use lstm, gru or convolution here."
            )
        if self.body in ("lstm", "gru") and self.bidirectional and self.d_model % 2:
            raise ConfigError(
                f"each direction has half of d_model={self.d_model}, which must be even. "
                f"Try d_model={self.d_model + 1}, or bidirectional=false."
            )
        if self.body == "convolution" and not self.kernel % 2:
            raise ConfigError(
                f"an encoder's kernel={self.kernel} has a middle, so it must be odd. "
                f"Try kernel={self.kernel + 1}."
            )
        pooling = getattr(self, "pooling", "mean")
        one_way = self.body in ("lstm", "gru") and not self.bidirectional
        if "classes" in getattr(self, "heads", ()) and (
            (pooling == "first" and (one_way or self.body == "convolution"))
            or (pooling == "last" and self.body == "convolution")
        ):
            raise ConfigError(
                f"pooling={pooling!r} reads classes from one row, which has not seen the others "
                f"with body={self.body!r}{' and bidirectional=false' * one_way}. Use pooling=mean"
                f"{' or pooling=last' * one_way}."
            )

    def _check_sizes(self) -> None:
        own = (self.key(side, name) for side in self.sides for name in ("n_layers", "n_heads",
               "d_head", "d_ff"))  # fmt: skip
        for name in ("d_model", "max_len", *own):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name}={value} must be at least 1.")
        for name in ("dropout", "attention_dropout", "ff_dropout"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ConfigError(
                    f"{name}={getattr(self, name):g} must be at least 0 and below 1: "
                    "it is the share of values set to zero."
                )
        for side in self.sides:
            name = self.key(side, "norm_eps")
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name}={getattr(self, name):g} must be positive. Try 1e-6.")
        if self.window is not None and self.window < 1:
            raise ConfigError(f"window={self.window} leaves no key to attend to. Use 1 or more.")

    def _check_heads(self) -> None:
        for side in self.sides:
            heads, groups = self.key(side, "n_heads"), self.key(side, "n_kv_heads")
            shape = self.side(side)
            has_heads = self.body == "transformer"
            if has_heads and self._derives_width(side) and self.d_model % shape.n_heads:
                raise ConfigError(
                    f"d_model={self.d_model} does not divide into {heads}={shape.n_heads}. "
                    f"Try d_model={self._nearest_width()}, or another {heads}."
                )
            if shape.kv_heads < 1 or shape.n_heads % shape.kv_heads:
                fits = [g for g in range(1, shape.n_heads + 1) if shape.n_heads % g == 0]
                own = self.own_key(side, "n_kv_heads")
                apart = f" for {own}" if own != groups else ""
                raise ConfigError(
                    f"{heads}={shape.n_heads} must be a multiple of {groups}={shape.kv_heads}. "
                    f"Try one of {', '.join(map(str, fits))}{apart}."
                )
        sides = {kind: self.side(kind) for kind in self.attention_layers}
        heads_of = {kind: (side.n_heads, side.kv_heads) for kind, side in sides.items()}
        self.kept_heads.check(self.attention_layers, heads_of)

    def _derives_width(self, side: str) -> bool:
        return getattr(self, self.key(side, "d_head")) is None

    def _nearest_width(self) -> int:
        """The width nearest to `d_model` that heads and positions can have."""
        derived = [self.side(side).n_heads for side in self.sides if self._derives_width(side)]
        step = math.lcm(*derived)
        needs_pairs = self.positions.startswith("sinusoidal") and step % 2
        if needs_pairs or (self.positions == "rotary" and derived):
            step *= 2
        return step * max(1, round(self.d_model / step))

    def _check_positions(self) -> None:
        for side in self.sides if self.positions == "rotary" else ():
            width, wanted = self.side(side).head_width, self.own_key(side, "d_head")
            if self.rope.scaling == "ntk" and width < 4:
                raise ConfigError(
                    f"rope.scaling='ntk' slows down all pairs of a head but the first, and a head "
                    f"{width} wide has only one. Set {wanted} to 4 or more."
                )
            if width % 2:
                heads = self.key(side, "n_heads")
                raise ConfigError(
                    f"rotary positions turn pairs of numbers, so the head width must be even; "
                    f"d_model={self.d_model} and {heads}={getattr(self, heads)} give {width}. "
                    f"Set {wanted} to an even number."
                )
        if self.positions.startswith("sinusoidal") and self.d_model % 2:
            raise ConfigError(
                f"sinusoidal positions are pairs of sine and cosine, so d_model={self.d_model} "
                f"must be even. Try d_model={self._nearest_width()}."
            )
        if self.positions != "rotary" and self.rope != RopeSettings():
            raise ConfigError(
                f"the rope settings have no effect with positions={self.positions!r}. "
                "Set positions=rotary, or leave them out."
            )
        if self.positions != "relative" and self.relative != RelativeSettings():
            raise ConfigError(
                f"the relative settings have no effect with positions={self.positions!r}. "
                "Set positions=relative, or leave them out."
            )

    @property
    def counts(self) -> bool:
        """Whether it is counted from the training data, and nothing is learned in steps."""
        return self.body == "ngram"

    @property
    def causal(self) -> bool:
        """Whether it only reads what came before, in its one stack."""
        return False

    @property
    def attention_layers(self) -> dict[str, int]:
        """Kinds of attention with heads, and how many layers have a weight of their own in each."""
        return {"self": self.n_layers} if self.body == "transformer" else {}

    @property
    def sides(self) -> tuple[str, ...]:
        """Its stacks, by the kind of their attention to themselves."""
        return ("self",)

    def own_key(self, kind: str, name: str) -> str:
        """The setting that says `name` (as `n_heads`) of the stack with this kind of attention
        alone."""
        return name

    def key(self, kind: str, name: str) -> str:
        """The setting that it goes by: its own, or where that is left open that of both sides."""
        own = self.own_key(kind, name)
        return name if getattr(self, own) is None else own

    def side(self, kind: str = "self") -> Side:
        """The numbers of the stack with this kind of attention."""
        own = {name: getattr(self, self.key(kind, name)) for name in ("n_layers", "n_heads",
               "n_kv_heads", "d_head", "d_ff", "activation", "norm_eps")}  # fmt: skip
        n_heads, n_kv_heads, d_head = own["n_heads"], own.pop("n_kv_heads"), own.pop("d_head")
        return Side(
            kv_heads=n_heads if n_kv_heads is None else n_kv_heads,
            head_width=self.d_model // n_heads if d_head is None else d_head,
            **own,
        )

    def each(self, name: str) -> tuple[int, ...]:
        """A number of `Side` for each stack; only one where they have the same."""
        return tuple(dict.fromkeys(getattr(self.side(side), name) for side in self.sides))

    @property
    def size_facts(self) -> list[str]:
        """How large it is, for people."""
        layers = " + ".join(str(self.side(side).n_layers) for side in self.sides)
        if self.body != "transformer":
            return [f"{layers} layers of {self.body}", f"d {self.d_model}"]
        heads, left = " + ".join(map(str, self.each("n_heads"))), self.n_kept_heads
        some = "" if left == self.n_whole_heads else f" ({left} of {self.n_whole_heads} left)"
        return [f"{layers} layers × {heads} heads{some}", f"d {self.d_model}"]

    def heads_in(self, kind: str, layer: int) -> tuple[int, int]:
        """How many are left in this attention, and of how many keys and values."""
        side = self.side(kind)
        heads = self.kept_heads.of(kind, layer) or range(side.n_heads)
        sharing = side.n_heads // side.kv_heads
        return len(heads), len({head // sharing for head in heads})

    @property
    def n_whole_heads(self) -> int:
        """In all layers with a weight of their own, before any was taken out ..."""
        layers = self.attention_layers.items()
        return sum(n_layers * self.side(kind).n_heads for kind, n_layers in layers)

    @property
    def n_kept_heads(self) -> int:
        """... and those that are left."""
        return sum(
            self.heads_in(kind, layer)[0]
            for kind, n_layers in self.attention_layers.items()
            for layer in range(n_layers)
        )

    @property
    def kv_heads(self) -> int:
        """Of the encoder, where there is a decoder too; `side` tells of either."""
        return self.side(self.sides[0]).kv_heads

    @property
    def head_width(self) -> int:
        return self.side(self.sides[0]).head_width


Settings = TypeVar("Settings", bound=BodySettings)


def unread_by(model: Mapping[str, Any]) -> frozenset[str]:
    """What a model of these settings does not read, by its body."""
    unread = UNREAD.get(str(model.get("body", "transformer")), frozenset())
    # On a command line the word none is no word yet.
    headless = model.get("single_head", "every") in ("none", None)
    return unread | OF_SINGLE_HEAD if headless else unread


def with_body(settings: Settings, body: str, single_head: str | None = "every") -> Settings:
    """The same sizes with another body: what that one does not read is as if nobody had asked."""
    changes: dict[str, Any] = {"body": body}
    unread = unread_by({"body": body, "single_head": single_head})
    for one in fields(settings):
        if one.name in unread:
            changes[one.name] = one.default
        elif one.name in INSTEAD and body != "transformer":
            changes[one.name] = INSTEAD[one.name]
    if changes.get("pooling") and getattr(settings, "causal", False):
        del changes["pooling"]  # its last row has seen all
    if settings.wiring == "parallel":
        changes["wiring"] = "pre"
    return replace(settings, **changes)
