"""Attention and feed-forward of one layer as steps of a walkthrough for one token."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headway.inside.measure.layer_steps import WalkBuilder, WalkStep, strongest
from headway.nn.attention.attention import Attention
from headway.nn.feedforward import FeedForward
from headway.nn.layout import Layout

TOKENS = 24
"""Tokens whose keys and values are stored; for the others only scores and weights are."""

NEURONS = 8
"""Neurons of the feed-forward layer that are shown, those that add most; the others are summed."""


@dataclass(frozen=True)
class HeadAtToken:
    """One head of an attention layer at one token, with its values from the trace."""

    kind: str
    attention: Attention
    head: int
    row: int

    read_SD: Tensor
    """Input of the keys and values: the same stream, or the memory."""

    weights_HS: Tensor
    """Attention weights of all heads at this token."""

    values_SGK: Tensor
    off: frozenset[int]
    """Heads that are switched off."""

    @property
    def group(self) -> int:
        """Index of the key and value head, which several query heads may share."""
        return self.head // (self.attention.n_heads // self.attention.n_kv_heads)

    @property
    def focus(self) -> int:
        """Column with the largest attention weight."""
        return int(self.weights_HS[self.head].argmax())

    def matrix(self, part: str) -> tuple[Tensor, Tensor | None]:
        """Rows of the weights, and of the bias if any, that compute `q`, `k` or `v`."""
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
    """Add the steps from the vector `source` of a token to the sum of all heads."""
    kind, number = at.kind, at.focus + 1
    q = _project(story, at, "q", source, (f"{kind}.q", "q"), f"Query of head {at.head + 1}",
                   "The token's vector times the query matrix of this head.")  # fmt: skip
    q = _place(story, at, q, "q", at.row)
    read = story.vector((f"{kind}.m", f"m{subscript(number)}"), at.read_SD[at.focus])
    k = _project(story, at, "k", read, (f"{kind}.k", f"k{subscript(number)}"),
    f"Key of token {number}",
                   "The key of the token with the largest attention weight.")  # fmt: skip
    _place(story, at, k, f"k{subscript(number)}", at.focus)
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


def _place(story: WalkBuilder, at: HeadAtToken, name: str, label: str, place: int) -> str:
    """Add norm and rotation of a query or a key, where the model has them."""
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
    """Keys of this head as the model computes them (S K)."""
    weight_KD, bias_K = at.matrix("k")
    k_SK = nn.functional.linear(at.read_SD, weight_KD, bias_K)
    if at.attention.norm_k is not None:
        k_SK = at.attention.norm_k(k_SK)
    rotary = at.attention.rotary
    return k_SK if rotary is None else rotary(k_SK[:, None], Layout.of([len(k_SK)]))[:, 0]


def _attend(story: WalkBuilder, at: HeadAtToken, q: str) -> str:
    """Add scores, weights, and the weighted sum of the values."""
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
    """Bias of the scores of this head by distance."""
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
    """Format a number in subscript digits."""
    return "".join("₀₁₂₃₄₅₆₇₈₉"[int(digit)] for digit in str(number))
