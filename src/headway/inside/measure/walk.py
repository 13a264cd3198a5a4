"""Walkthrough of one token through one layer, with all the numbers that the model computed.

A walkthrough is a list of steps, each with input vectors, an output vector and the weights between
them, so that a page can recompute the step. The block layouts of `nn/block.py` are repeated here,
because each needs its own explanations, and because a norm that is fused with a sum has no tap. The
result is checked against the trace, so that the two implementations cannot diverge.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from headway.errors import UserError
from headway.inside.capture.anatomy import Anatomy, StackPart
from headway.inside.capture.trace import Trace
from headway.nn.attention.attention import Attention
from headway.nn.block import Block, Parallel, PostNorm
from headway.nn.feedforward import FeedForward
from headway.nn.layout import Layout
from headway.nn.norms import LayerNorm
from headway.tasks.loaded_run import LoadedRun

WEIGHTS = 48_000
"""Maximum number of weights that a walkthrough stores, which is about 100 kB of a page."""

WalkRequest = tuple[str, int | None, int | None, int | None]
"""Kind of attention, layer, head and position to follow, counted from 0. None selects the
default."""


@dataclass(frozen=True)
class WalkPosition:
    kind: str
    layer: int
    head: int
    row: int


@dataclass(frozen=True)
class LayerWalk:
    at: WalkPosition
    stack: str
    heads: dict[str, int]
    """Index of the attention head to follow, for each kind of attention in the layer."""

    focus: dict[str, int]
    """Position with the largest attention weight of the followed head, for each kind of
    attention."""

    vectors: dict[str, Tensor]
    """Vectors by name, with the values that the model computed."""

    labels: dict[str, str]
    """Symbol of each vector in formulas, by the vector's name."""

    steps: list[WalkStep]


@torch.no_grad()
def walk(run: LoadedRun, found: Trace, at: WalkRequest | None = None) -> LayerWalk:
    """Return the walkthrough of one token through one layer.

    By default, it follows the last output token, the middle layer, and the head with the largest
    weight on another word.
    """
    anatomy = Anatomy.of(run.model)
    place = _place(anatomy, found, at)
    part = next(p for p in anatomy.stacks if p.stream == anatomy.kind(place.kind).rows)
    block = part.blocks[place.layer]
    kinds = [part.name] if block.cross is None else [part.name, "cross"]
    heads = {
        kind: place.head if kind == place.kind else _sharpest(anatomy, found, kind, place)
        for kind in kinds
    }
    brought = NEURONS * (3 if block.feed_forward.is_gated else 2) * run.shape.d_model
    tour = _LayerTour(
        WalkBuilder((WEIGHTS - brought) // (4 * len(kinds))), found, place, part, heads
    )
    tour.whole(block, _memory(anatomy, found, block))
    story = tour.story
    true_D = found.states[part.name][place.layer + 1][place.row]
    error = (story.vectors["end"] - true_D).abs().max()
    assert error <= 1e-4 * true_D.abs().max().clamp(min=1), "the walkthrough differs from the trace"
    return LayerWalk(place, part.name, heads, tour.focus, story.vectors, story.labels, story.steps)


def _place(anatomy: Anatomy, found: Trace, at: WalkRequest | None) -> WalkPosition:
    name, layer, head, row = (anatomy.kinds[-1].name, None, None, None) if at is None else at
    kind = anatomy.kind(name)
    layer = len(kind.layers) // 2 if layer is None else layer
    anatomy.head(name, layer, head or 0)
    rows = found.reading.streams[kind.rows]
    if row is None:
        row = _last_word(found) if kind.rows == found.reading.last.name else len(rows) // 2
    if not 0 <= row < len(rows):
        raise UserError(f"the {rows.name} has {len(rows)} tokens, so there is no token {row + 1}.")
    first = WalkPosition(name, layer, 0, row)
    return WalkPosition(
        name, layer, _sharpest(anatomy, found, name, first) if head is None else head, row
    )


def _last_word(found: Trace) -> int:
    """Return the position of the last output token before the end token; without outputs, of the
    last word of the text."""
    reading = found.reading
    rows = [output.row for output in reading.outputs if output.row is not None]
    if rows:
        ends = reading.writes and reading.finished and len(rows) > 1
        return rows[-2] if ends else rows[-1]
    plain = [row for row, apart in enumerate(reading.last.special) if not apart]
    return plain[-1] if plain else 0


def _sharpest(anatomy: Anatomy, found: Trace, kind: str, place: WalkPosition) -> int:
    """Return the head with the largest attention weight on a word other than the token itself."""
    columns = anatomy.kind(kind).columns
    weights_HS = found.attention[kind][place.layer][:, place.row].clone()
    weights_HS[:, list(found.reading.streams[columns].special)] = 0
    if kind != "cross":
        weights_HS[:, place.row] = 0
    return int(weights_HS.amax(1).argmax())


def _memory(anatomy: Anatomy, found: Trace, block: Block) -> Tensor | None:
    if block.cross is None:
        return None
    norm, last_SD = anatomy.stack("encoder").stack.final_norm, found.states["encoder"][-1]
    return last_SD if norm is None else norm(last_SD)


class _LayerTour:
    """Builds the steps of a token through a layer in its block layout (pre-norm, post-norm or
    parallel)."""

    def __init__(
        self,
        story: WalkBuilder,
        found: Trace,
        place: WalkPosition,
        part: StackPart,
        heads: dict[str, int],
    ) -> None:
        self.story, self.found, self.place, self.part, self.heads = story, found, place, part, heads
        self.x_TD = found.states[part.name][place.layer]
        self.focus: dict[str, int] = {}

    def whole(self, block: Block, memory_SD: Tensor | None) -> None:
        x = self.story.vector(("x", "x"), self.x_TD[self.place.row])
        came = "output of the previous layer" if self.place.layer else "embedding and position"
        words = f"The hidden state of the token before this layer: {came}."
        self.story.add(WalkStep("start", "Input of the layer", words, (), x))
        methods = {Parallel: self._parallel, PostNorm: self._post}
        methods.get(type(block), self._pre)(block, memory_SD)

    def _pre(self, block: Block, memory_SD: Tensor | None) -> None:
        words = "A norm precedes each part of the layer, so that its inputs have a fixed scale."
        n = self.story.norm(block.norm_attention, "x", ("n", "n"), words)
        x = self._add("x", self._own(block, n, block.norm_attention(self.x_TD)), ("x1", "x′"))
        if memory_SD is not None and block.norm_cross is not None:
            n = self.story.norm(block.norm_cross, x, ("n1", "n′"), words)
            x = self._add(x, self._cross(block, n, memory_SD), ("x2", "x″"))
        assert block.norm_feed_forward is not None
        n = self.story.norm(block.norm_feed_forward, x, ("n2", "m"), words)
        self._add(x, feed_forward_steps(self.story, block.feed_forward, n), ("end", "y"))

    def _post(self, block: Block, memory_SD: Tensor | None) -> None:
        words = "A norm follows each part of the layer, so that its outputs have a fixed scale."
        s = self._add("x", self._own(block, "x", self.x_TD), ("s1", "s"))
        x = self.story.norm(block.norm_attention, s, ("x1", "x′"), words)
        if memory_SD is not None and block.norm_cross is not None:
            s = self._add(x, self._cross(block, x, memory_SD), ("s2", "s′"))
            x = self.story.norm(block.norm_cross, s, ("x2", "x″"), words)
        f = feed_forward_steps(self.story, block.feed_forward, x)
        assert block.norm_feed_forward is not None
        self.story.norm(block.norm_feed_forward, self._add(x, f, ("s3", "t")), ("end", "y"), words)

    def _parallel(self, block: Block, memory_SD: Tensor | None) -> None:
        words = "The parts of this layer work in parallel on the output of one norm."
        n = self.story.norm(block.norm_attention, "x", ("n", "n"), words)
        parts = ["x", self._own(block, n, block.norm_attention(self.x_TD))]
        if memory_SD is not None:
            parts.append(self._cross(block, n, memory_SD))
        parts.append(feed_forward_steps(self.story, block.feed_forward, n))
        words = "Residual connection: the results of all parts are added to the input."
        self.story.plus(tuple(parts), ("end", "y"), "Add all parts to x", words)

    def _add(self, x: str, added: str, out: tuple[str, str]) -> str:
        words = "Residual connection: the result is added to the token's previous state."
        return self.story.plus((x, added), out, f"Add to {self.story.labels[x]}", words)

    def _own(self, block: Block, source: str, x_TD: Tensor) -> str:
        return self._attention(self.part.name, block, source, x_TD)

    def _cross(self, block: Block, source: str, memory_SD: Tensor) -> str:
        return self._attention("cross", block, source, memory_SD)

    def _attention(self, kind: str, block: Block, source: str, read_SD: Tensor) -> str:
        attention = block.cross if kind == "cross" else block.attention
        assert attention is not None
        layer, row = self.place.layer, self.place.row
        off = (name.split(".") for name in self.found.meta.get("off", ()))
        at = HeadAtToken(
            kind=kind,
            attention=attention,
            head=self.heads[kind],
            row=row,
            read_SD=read_SD,
            weights_HS=self.found.attention[kind][layer][:, row],
            values_SGK=self.found.values[kind][layer],
            off=frozenset(int(head) for name, at, head in off if (name, int(at)) == (kind, layer)),
        )
        self.focus[kind] = at.focus
        return attention_steps(self.story, at, source)


TOKENS = 24
"""Number of tokens whose keys and values are stored. For the other tokens, only attention scores
and weights are stored."""

NEURONS = 8
"""Number of feed-forward neurons that are shown, namely those with the largest contributions. The
others are summed."""


@dataclass(frozen=True)
class HeadAtToken:
    """One attention head at one token, with its values from the trace."""

    kind: str
    attention: Attention
    head: int
    row: int

    read_SD: Tensor
    """Input of the keys and values: states of the token's own stream, or the encoder output in
    cross-attention."""

    weights_HS: Tensor
    """Attention weights of all heads at this token."""

    values_SGK: Tensor
    off: frozenset[int]
    """Indices of the disabled heads."""

    @property
    def group(self) -> int:
        """Index of the key-value head, which several query heads may share."""
        return self.head // (self.attention.n_heads // self.attention.n_kv_heads)

    @property
    def focus(self) -> int:
        """Position with the largest attention weight of this head."""
        return int(self.weights_HS[self.head].argmax())

    def matrix(self, part: str) -> tuple[Tensor, Tensor | None]:
        """Return the weights and the bias (or None) that compute the queries, keys or values of
        this head.

        `part`: `q`, `k` or `v`.
        """
        attention, number = self.attention, "qkv".index(part)
        first = attention.d_head * (self.head if part == "q" else self.group)
        here = slice(first, first + attention.d_head)
        before = sum(attention.sizes[:number])
        rows = slice(before + first, before + first + attention.d_head)
        bias_E = attention.to_qkv.bias
        if part in attention.some_bias:
            return attention.to_qkv.weight[rows], attention.some_bias[part][here]
        return attention.to_qkv.weight[rows], None if bias_E is None else bias_E[rows]


def attention_steps(story: WalkBuilder, at: HeadAtToken, source: str) -> str:
    """Add the steps of an attention layer, from the vector of a token to the sum of all heads."""
    kind, number = at.kind, at.focus + 1
    q = _project(story, at, "q", source, (f"{kind}.q", "q"), f"Query of head {at.head + 1}",
                   "The token's vector times the query matrix of this head.")  # fmt: skip
    q = _normed_and_rotated(story, at, q, "q", at.row)
    read = story.vector((f"{kind}.m", f"m{subscript(number)}"), at.read_SD[at.focus])
    k = _project(story, at, "k", read, (f"{kind}.k", f"k{subscript(number)}"),
    f"Key of token {number}",
                   "The key of the token with the largest attention weight.")  # fmt: skip
    _normed_and_rotated(story, at, k, f"k{subscript(number)}", at.focus)
    _project(story, at, "v", read, (f"{kind}.v", f"v{subscript(number)}"),
    f"Value of token {number}",
               "The value of the same token, which attention adds to the result.")  # fmt: skip
    return _out(story, at, _attend(story, at, q))


def _project(
    story: WalkBuilder,
    at: HeadAtToken,
    part: str,
    source: str,
    out: tuple[str, str],
    title: str,
    words: str,
) -> str:
    weight_KD, bias_K = at.matrix(part)
    true_K = nn.functional.linear(story.vectors[source], weight_KD, bias_K)
    return story.linear(source, (weight_KD, bias_K), out, true_K, title, words)


def _normed_and_rotated(
    story: WalkBuilder, at: HeadAtToken, name: str, label: str, place: int
) -> str:
    """Add steps for the norm and the rotation of a query or a key, if the model has them."""
    norm = at.attention.norm_q if label == "q" else at.attention.norm_k
    if norm is not None:
        words = "This model normalizes queries and keys."
        name = story.norm(norm, name, (f"{name}n", label), words)
    rotary = at.attention.rotary
    if rotary is None:
        return name
    x_P1K = story.vectors[name].expand(place + 1, 1, -1)
    made = story.vector((f"{name}r", label), rotary(x_P1K, Layout.of([place + 1]))[place, 0])
    words = "Pairs of components are rotated in proportion to the position of the token."
    numbers = {"cos": rotary.cos_PI[place], "sin": rotary.sin_PI[place]}
    title = f"Rotary encoding of {label} (position {place + 1})"
    return story.add(WalkStep("rotary", title, words, (name,), made, numbers))


def _keys(at: HeadAtToken) -> Tensor:
    """Return the keys of this head as the model computes them (S K)."""
    weight_KD, bias_K = at.matrix("k")
    k_SK = nn.functional.linear(at.read_SD, weight_KD, bias_K)
    if at.attention.norm_k is not None:
        k_SK = at.attention.norm_k(k_SK)
    rotary = at.attention.rotary
    return k_SK if rotary is None else rotary(k_SK[:, None], Layout.of([len(k_SK)]))[:, 0]


def _attend(story: WalkBuilder, at: HeadAtToken, q: str) -> str:
    """Add steps for the attention scores, the softmax weights, and the weighted sum of the
    values."""
    kind, weights_S = at.kind, at.weights_HS[at.head]
    seen_S = weights_S.nonzero().squeeze(1)
    shown_S = seen_S[strongest(weights_S[seen_S], TOKENS)]
    hidden_S = torch.tensor([s for s in seen_S.tolist() if s not in set(shown_S.tolist())]).long()
    order_S = torch.cat([shown_S, hidden_S])
    keys_SK, scale = _keys(at), at.attention.scope.scale_for(at.attention.d_head)
    bias_S = _bias(at, order_S)
    scores_S = keys_SK[order_S] @ story.vectors[q] * scale + bias_S
    scores = story.vector((f"{kind}.scores", "score"), scores_S)
    words = "Scaled dot product of the query and the key of every visible token."
    tokens = {"columns": order_S, "shown": len(shown_S)}
    numbers = {**tokens, "keys": keys_SK[shown_S], "scale": scale, "bias": bias_S}
    title = "Scores: query times keys"
    scores = story.add(WalkStep("scores", title, words, (q,), scores, numbers))
    weights = story.vector((f"{kind}.weights", "α"), weights_S[order_S])
    words = "The softmax turns scores into positive weights that sum to 1."
    story.add(
        WalkStep("softmax", "Softmax: scores become weights", words, (scores,), weights, tokens)
    )
    shares = story.vector((f"{kind}.shares", "α"), weights_S[shown_S])
    v_SK = at.values_SGK[:, at.group]
    gate = 0.0 if at.head in at.off else 1.0
    rest_K = gate * (weights_S[hidden_S] @ v_SK[hidden_S])
    about = ("Weighted sum of the values", "Each value is multiplied by its attention weight.")
    if not gate:
        about = (
            "Weighted sum of the values",
            "This head is switched off: its result is set to zero.",
        )
    true_K = gate * (weights_S @ v_SK)
    return story.mix(shares, gate * v_SK[shown_S], rest_K, (f"{kind}.z", "z"), true_K, about,
                     columns=shown_S, others=len(hidden_S))  # fmt: skip


def _bias(at: HeadAtToken, order_S: Tensor) -> Tensor:
    """Return the bias that this head adds to the attention scores by relative position."""
    bias = at.attention.scope.bias
    if bias is None or at.kind == "cross":
        return torch.zeros(len(order_S))
    distance_1S = order_S[None] - at.row
    return bias(distance_1S)[at.head, 0].detach().float()


def _out(story: WalkBuilder, at: HeadAtToken, z: str) -> str:
    attention, kind = at.attention, at.kind
    values_SHK = at.values_SGK.repeat_interleave(attention.n_heads // attention.n_kv_heads, 1)
    mixed_HK = torch.einsum("hs,shk->hk", at.weights_HS, values_SHK)
    mixed_HK[sorted(at.off)] = 0
    all_D = attention.to_out(mixed_HK.flatten()[None])[0]
    columns = slice(at.head * attention.d_head, (at.head + 1) * attention.d_head)
    weight_DK = attention.to_out.weight[:, columns]
    true_D = weight_DK @ mixed_HK[at.head]
    words = "The output matrix maps the result of this head back to the model width."
    one = story.linear(
        z, (weight_DK, None), (f"{kind}.one", "o"), true_D, "Output projection", words
    )
    rest = attention.n_heads - 1
    others = story.vector((f"{kind}.others", "others"), all_D - true_D)
    bias = " and the bias" if attention.to_out.bias is not None else ""
    words = f"The results of the other {rest} heads{bias} are added."
    label = "c" if kind == "cross" else "a"
    return story.plus((one, others), (f"{kind}.a", label), "Sum of all heads", words)


def feed_forward_steps(story: WalkBuilder, part: FeedForward, source: str) -> str:
    x_D = story.vectors[source]
    before_E = part.to_hidden(x_D[None])[0]
    gate_F, value_F = before_E.chunk(2) if part.is_gated else (before_E, None)
    hidden_F = part.activation(gate_F) if value_F is None else part.activation(gate_F) * value_F
    down_DF = part.to_out.weight.detach()
    picked_R = strongest(hidden_F * down_DF.norm(dim=0), NEURONS)
    rows_R = picked_R if value_F is None else torch.cat([picked_R, picked_R + len(gate_F)])
    bias = part.to_hidden.bias
    matrix = (part.to_hidden.weight[rows_R], None if bias is None else bias[rows_R])
    words = (
        f"The feed-forward layer has {len(hidden_F):,} neurons, each of which detects a pattern in "
        f"the token. These are the {len(picked_R)} with the largest contributions."
    )
    u = story.linear(source, matrix, ("u", "u"), before_E[rows_R], "Feed-forward: neurons", words)
    story.steps[-1].numbers["from_rows"] = rows_R
    h = story.vector(("h", "h"), hidden_F[picked_R])
    words = "The activation function suppresses neurons whose pattern is absent."
    title = f"Activation: {part.name}"
    numbers = {"activation": part.name, "neurons": picked_R}
    story.add(WalkStep("activation", title, words, (u,), h, numbers))
    out_D = part.to_out(hidden_F[None])[0]
    chosen_RD = down_DF[:, picked_R].T
    about = (
        "Sum of the neurons",
        "Each neuron adds its own output vector, times its activation.",
    )
    rest_D = out_D - hidden_F[picked_R] @ chosen_RD
    return story.mix(h, chosen_RD, rest_D, ("f", "f"), out_D, about,
                     neurons=picked_R, others=len(hidden_F) - len(picked_R))  # fmt: skip


def subscript(number: int) -> str:
    """Return a number in subscript digits."""
    return "".join("₀₁₂₃₄₅₆₇₈₉"[int(digit)] for digit in str(number))


ROUGH = 3e-4
"""Maximum allowed error from storing weights in 16 bits, relative to the largest value of a vector.
Above it, weights have 32 bits."""

VectorName = tuple[str, str]
"""Name of a vector, and its symbol in formulas."""


@dataclass(frozen=True)
class WalkStep:
    kind: str
    """Kind of step: start, norm, linear, rotary, scores, softmax, mix, activation or add."""

    title: str
    words: str
    """Explanation of the step for the user, in one sentence."""

    inputs: tuple[str, ...]
    out: str
    numbers: dict[str, Any] = field(default_factory=dict)
    """Tensors and plain values by name, from which the page recomputes the step. Weights may have
    16 bits."""


@dataclass
class WalkBuilder:
    """Collects the vectors of a walkthrough, as the model computed them, and the steps between
    them."""

    room: int
    """Maximum number of weights stored of one matrix. For a larger matrix, only the rows with the
    strongest outputs are stored."""

    vectors: dict[str, Tensor] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    steps: list[WalkStep] = field(default_factory=list)

    def vector(self, named: VectorName, values: Tensor) -> str:
        name, label = named
        assert name not in self.vectors, name
        self.vectors[name], self.labels[name] = values.detach().float(), label
        return name

    def add(self, step: WalkStep) -> str:
        assert all(name in self.vectors for name in (*step.inputs, step.out))
        self.steps.append(step)
        return step.out

    def norm(self, norm: nn.Module, source: str, out: VectorName, words: str) -> str:
        """Add a step for the norm of a layer, or of a head's queries or keys."""
        made = self.vector(out, norm(self.vectors[source][None])[0])
        parts = {name: value.detach() for name, value in norm.named_parameters()}
        centred = isinstance(norm, LayerNorm)
        title = "Layer norm: mean 0, variance 1" if centred else "RMS norm: mean square 1"
        numbers = {"centred": centred, "eps": norm.eps, **parts}
        return self.add(WalkStep("norm", title, words, (source,), made, numbers))

    def linear(
        self, source: str, matrix: tuple[Tensor, Tensor | None], out: VectorName, true_E: Tensor,
        title: str, words: str,
    ) -> str:  # fmt: skip
        """Add a step for a matrix with an optional bias.

        `true_E`: result that the model computed. For a large matrix, only the rows with the
        strongest outputs are stored; the other outputs are taken from `true_E`.
        """
        weight_ED, bias_E = (None if part is None else part.detach().float() for part in matrix)
        assert weight_ED is not None
        made, x_D = self.vector(out, true_E), self.vectors[source]
        rows_R = strongest(true_E, max(1, self.room // len(x_D)))
        kept_RD = weight_ED[rows_R].half()
        if not _fine(kept_RD.float() @ x_D, weight_ED[rows_R] @ x_D, true_E):
            rows_R = strongest(true_E, max(1, self.room // (2 * len(x_D))))
            kept_RD = weight_ED[rows_R]
        numbers: dict[str, Any] = {"rows": rows_R, "weight": kept_RD}
        if bias_E is not None:
            numbers["bias"] = bias_E[rows_R]
        return self.add(WalkStep("linear", title, words, (source,), made, numbers))

    def mix(self, shares: str, vectors_SD: Tensor, rest_D: Tensor, out: VectorName, true_D: Tensor,
            about: tuple[str, str], **numbers: Any) -> str:  # fmt: skip
        """Add a step for a weighted sum of vectors.

        `vectors_SD`: stored vectors. `rest_D`: weighted sum of the vectors that are not stored.
        """
        made, shares_S = self.vector(out, true_D), self.vectors[shares]
        kept_SD = vectors_SD.detach().half()
        if not _fine(shares_S @ kept_SD.float(), shares_S @ vectors_SD, true_D):
            kept_SD = vectors_SD.detach().float()
        numbers |= {"vectors": kept_SD, "rest": rest_D.detach().float()}
        return self.add(WalkStep("mix", *about, (shares,), made, numbers))

    def plus(self, sources: tuple[str, ...], out: VectorName, title: str, words: str) -> str:
        made = self.vector(out, torch.stack([self.vectors[name] for name in sources]).sum(0))
        return self.add(WalkStep("add", title, words, sources, made))


def strongest(values_E: Tensor, most: int) -> Tensor:
    """Return the sorted indices of the `most` values with the largest magnitude."""
    if len(values_E) <= most:
        return torch.arange(len(values_E))
    return values_E.abs().topk(most).indices.sort().values


def _fine(near: Tensor, true: Tensor, all_E: Tensor) -> bool:
    return bool((near - true).abs().max() <= ROUGH * all_E.abs().max())
