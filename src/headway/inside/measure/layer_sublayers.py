"""Attention and feed-forward of one layer as steps of a walk, for one token."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headway.inside.measure.layer_steps import Step, Story, strongest
from headway.nn.attention.attention import Attention
from headway.nn.feedforward import FeedForward
from headway.nn.layout import Layout

TOKENS = 24
"""Whose keys and values are brought along; of the others the score, and their share together."""

NEURONS = 8
"""Of the feed-forward layer, those that add most; the others are one vector together."""


@dataclass(frozen=True)
class HeadAt:
    """One head of one attention at one token, and what the trace has of it."""

    kind: str
    attention: Attention
    head: int
    row: int

    read_SD: Tensor
    """What keys and values are made of: the same, or the memory."""

    weights_HS: Tensor
    """Of all heads at this token."""

    values_SGK: Tensor
    off: frozenset[int]
    """Heads that are switched off."""

    @property
    def group(self) -> int:
        """The key and value head that the head shares with others."""
        return self.head // (self.attention.n_heads // self.attention.n_kv_heads)

    @property
    def focus(self) -> int:
        """The column that it attends to most."""
        return int(self.weights_HS[self.head].argmax())

    def matrix(self, part: str) -> tuple[Tensor, Tensor | None]:
        """Rows of the weights, and of the bias if there is one, that make `q`, `k` or `v`."""
        attention, number = self.attention, "qkv".index(part)
        first = attention.d_head * (self.head if part == "q" else self.group)
        here = slice(first, first + attention.d_head)
        before = sum(attention.sizes[:number])
        rows = slice(before + first, before + first + attention.d_head)
        bias_E = attention.to_qkv.bias
        if part in attention.some_bias:
            return attention.to_qkv.weight[rows], attention.some_bias[part][here]
        return attention.to_qkv.weight[rows], None if bias_E is None else bias_E[rows]


def attention_steps(story: Story, at: HeadAt, source: str) -> str:
    """From the vector `source` of a token to what all heads add to it."""
    kind, number = at.kind, at.focus + 1
    q = _project(story, at, "q", source, (f"{kind}.q", "q"), f"Query of head {at.head + 1}",
                   "The token asks: its vector times the query matrix of this head.")  # fmt: skip
    q = _place(story, at, q, "q", at.row)
    read = story.vector((f"{kind}.m", f"m{sub(number)}"), at.read_SD[at.focus])
    k = _project(story, at, "k", read, (f"{kind}.k", f"k{sub(number)}"), f"Key of token {number}",
                   "The token that it looks at most offers a key, to be found by …")  # fmt: skip
    _place(story, at, k, f"k{sub(number)}", at.focus)
    _project(story, at, "v", read, (f"{kind}.v", f"v{sub(number)}"), f"Value of token {number}",
               "… and a value: what it hands over to those who find it.")  # fmt: skip
    return _out(story, at, _attend(story, at, q))


def _project(
    story: Story, at: HeadAt, part: str, source: str, out: tuple[str, str], title: str, words: str
) -> str:
    weight_KD, bias_K = at.matrix(part)
    true_K = nn.functional.linear(story.vectors[source], weight_KD, bias_K)
    return story.linear(source, (weight_KD, bias_K), out, true_K, title, words)


def _place(story: Story, at: HeadAt, name: str, label: str, place: int) -> str:
    """Norm and rotation of a query or a key, where the model has them."""
    norm = at.attention.norm_q if label == "q" else at.attention.norm_k
    if norm is not None:
        words = "Queries and keys of this model are brought to one size."
        name = story.norm(norm, name, (f"{name}n", label), words)
    rotary = at.attention.rotary
    if rotary is None:
        return name
    x_P1K = story.vectors[name].expand(place + 1, 1, -1)
    made = story.vector((f"{name}r", label), rotary(x_P1K, Layout.of([place + 1]))[place, 0])
    words = "Pairs of numbers turn by an angle that grows with the place: scores see distances."
    numbers = {"cos": rotary.cos_PI[place], "sin": rotary.sin_PI[place]}
    title = f"Turn {label} by its place ({place + 1})"
    return story.add(Step("rotary", title, words, (name,), made, numbers))


def _keys(at: HeadAt) -> Tensor:
    """Of this head, as the model makes them. (S K)"""
    weight_KD, bias_K = at.matrix("k")
    k_SK = nn.functional.linear(at.read_SD, weight_KD, bias_K)
    if at.attention.norm_k is not None:
        k_SK = at.attention.norm_k(k_SK)
    rotary = at.attention.rotary
    return k_SK if rotary is None else rotary(k_SK[:, None], Layout.of([len(k_SK)]))[:, 0]


def _attend(story: Story, at: HeadAt, q: str) -> str:
    """Scores, weights, and the mixture of the values."""
    kind, weights_S = at.kind, at.weights_HS[at.head]
    seen_S = weights_S.nonzero().squeeze(1)
    shown_S = seen_S[strongest(weights_S[seen_S], TOKENS)]
    hidden_S = torch.tensor([s for s in seen_S.tolist() if s not in set(shown_S.tolist())]).long()
    order_S = torch.cat([shown_S, hidden_S])
    keys_SK, scale = _keys(at), at.attention.scope.scale_for(at.attention.d_head)
    bias_S = _bias(at, order_S)
    scores_S = keys_SK[order_S] @ story.vectors[q] * scale + bias_S
    scores = story.vector((f"{kind}.scores", "score"), scores_S)
    words = "Query and key of every token that may be seen are multiplied: how well do they fit?"
    tokens = {"columns": order_S, "shown": len(shown_S)}
    numbers = {**tokens, "keys": keys_SK[shown_S], "scale": scale, "bias": bias_S}
    title = "Scores: query times keys"
    scores = story.add(Step("scores", title, words, (q,), scores, numbers))
    weights = story.vector((f"{kind}.weights", "α"), weights_S[order_S])
    words = "Scores become shares: all positive, together 1."
    story.add(Step("softmax", "Softmax: scores become weights", words, (scores,), weights, tokens))
    shares = story.vector((f"{kind}.shares", "α"), weights_S[shown_S])
    v_SK = at.values_SGK[:, at.group]
    gate = 0.0 if at.head in at.off else 1.0
    rest_K = gate * (weights_S[hidden_S] @ v_SK[hidden_S])
    about = ("Mix the values", "Each token hands over its value, times its weight.")
    if not gate:
        about = ("Mix the values", "This head is switched off: whatever it mixes counts as zero.")
    true_K = gate * (weights_S @ v_SK)
    return story.mix(shares, gate * v_SK[shown_S], rest_K, (f"{kind}.z", "z"), true_K, about,
                     columns=shown_S, others=len(hidden_S))  # fmt: skip


def _bias(at: HeadAt, order_S: Tensor) -> Tensor:
    """What the scores of this head get by distance."""
    bias = at.attention.scope.bias
    if bias is None or at.kind == "cross":
        return torch.zeros(len(order_S))
    distance_1S = order_S[None] - at.row
    return bias(distance_1S)[at.head, 0].detach().float()


def _out(story: Story, at: HeadAt, z: str) -> str:
    attention, kind = at.attention, at.kind
    values_SHK = at.values_SGK.repeat_interleave(attention.n_heads // attention.n_kv_heads, 1)
    mixed_HK = torch.einsum("hs,shk->hk", at.weights_HS, values_SHK)
    mixed_HK[sorted(at.off)] = 0
    all_D = attention.to_out(mixed_HK.flatten()[None])[0]
    columns = slice(at.head * attention.d_head, (at.head + 1) * attention.d_head)
    weight_DK = attention.to_out.weight[:, columns]
    true_D = weight_DK @ mixed_HK[at.head]
    words = "The output matrix takes what this head found back to the width of the token."
    one = story.linear(
        z, (weight_DK, None), (f"{kind}.one", "o"), true_D, "Back to the stream", words
    )
    rest = attention.n_heads - 1
    others = story.vector((f"{kind}.others", "others"), all_D - true_D)
    bias = " and the bias" if attention.to_out.bias is not None else ""
    words = f"The other {rest} heads{bias} have done the same, and all are added up."
    label = "c" if kind == "cross" else "a"
    return story.plus((one, others), (f"{kind}.a", label), "All heads together", words)


def feed_forward_steps(story: Story, part: FeedForward, source: str) -> str:
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
        f"The feed-forward layer has {len(hidden_F):,} neurons, which each look for one pattern in "
        f"the token. Here are the {len(picked_R)} that will add most."
    )
    u = story.linear(source, matrix, ("u", "u"), before_E[rows_R], "Feed-forward: neurons", words)
    story.steps[-1].numbers["from_rows"] = rows_R
    h = story.vector(("h", "h"), hidden_F[picked_R])
    words = "Only neurons that found their pattern go on."
    title = f"Activation: {part.name}"
    numbers = {"activation": part.name, "neurons": picked_R}
    story.add(Step("activation", title, words, (u,), h, numbers))
    out_D = part.to_out(hidden_F[None])[0]
    chosen_RD = down_DF[:, picked_R].T
    about = (
        "What the neurons add",
        "Each neuron adds its own vector, times how strongly it fires.",
    )
    rest_D = out_D - hidden_F[picked_R] @ chosen_RD
    return story.mix(h, chosen_RD, rest_D, ("f", "f"), out_D, about,
                     neurons=picked_R, others=len(hidden_F) - len(picked_R))  # fmt: skip


def sub(number: int) -> str:
    """A number written below the line."""
    return "".join("₀₁₂₃₄₅₆₇₈₉"[int(digit)] for digit in str(number))
