"""E2: why do queries come from the decoder, and keys and values from the encoder?

Attention gives one row for each query, made of values, chosen by keys. The decoder needs a row for
each word it writes, and what the source says: so the roles cannot be dealt out otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headway.lab import beds
from headway.lab.bench import PAIRS, Bench
from headway.lab.experiment import Experiment, Measured, Source, over
from headway.lab.figures import Bars, Figure, Lines, interval_bars
from headway.lab.nats import behind, of_pairs
from headway.lab.verdict import (
    Answers,
    Arm,
    Bounds,
    Control,
    Effect,
    Verdict,
    Word,
    all_of,
    decide,
)
from headway.models.parts.custom import Parts
from headway.nn.attention.attention import Attention, Memory
from headway.nn.block import Block, PreNorm
from headway.nn.cache import LayerCache
from headway.nn.feedforward import FeedForward
from headway.nn.layout import Layout

LENGTHS = range(3, 21)
"""With up to 9 words a mean of the source is enough: it reached 100 % in 2,000 steps."""

LETTERS = 8
CHANCE = 100 / LETTERS
"""Of a hundred words, those that are right by guessing."""

FAR, NEAR = 10.0, 5.0
"""Words of a hundred: far fewer are right, and hardly more than by guessing."""

SCALE = Bounds(low=CHANCE, high=100.0, margin=1.0)
"""Words right of a hundred; the margin is a tenth of the difference that counts."""


class ValuesFromDecoder(Attention):
    """Queries of the decoder choose by keys of the encoder, but get rows of the decoder: of its own
    past, as far as there is a row under the same number.

    A search step has one row alone, which then is its own past; only losses are compared here."""

    def forward(
        self,
        x_ND: Tensor,
        layout: Layout,
        memory: Memory | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        assert memory is not None
        _, v_NHK = self.keys_of(Memory(x_ND, layout))
        if cache is not None:  # a recorded search keeps no rows of the source
            return self.to_out(v_NHK.flatten(1))
        q_NHK = self._project_q(x_ND)
        k_MHK, _ = self.keys_of(memory)
        q_BTHK, may_BT = in_grid(q_NHK, layout)
        v_BTHK, _ = in_grid(v_NHK, layout)
        k_BSHK, may_BS = in_grid(k_MHK, memory.layout)
        size = min(q_BTHK.shape[1], k_BSHK.shape[1])
        score_BHTS = torch.einsum("bthk,bshk->bhts", q_BTHK, k_BSHK[:, :size])
        may_TS = torch.ones(q_BTHK.shape[1], size, device=x_ND.device).tril().bool()
        may_BTS = may_TS & may_BS[:, None, :size] & may_BT[:, None, :size]
        score_BHTS = (score_BHTS * self.d_head**-0.5).masked_fill(~may_BTS[:, None], -1e9)
        out_BTHK = torch.einsum("bhts,bshk->bthk", score_BHTS.softmax(-1), v_BTHK[:, :size])
        return self.to_out(out_BTHK[may_BT].flatten(1))


class Pooled(Attention):
    """No query: every word gets the mean of all values of the source."""

    def _project_q(self, x_ND: Tensor) -> Tensor:
        return super()._project_q(x_ND) * 0


class Diagonal(Attention):
    """Nothing is chosen: word number t of the target gets the value of word number t of the
    source, or of its last."""

    def forward(
        self,
        x_ND: Tensor,
        layout: Layout,
        memory: Memory | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        assert memory is not None
        _, v_MHK = self._project_memory(memory, cache)
        lengths_B, tree = memory.layout.lengths_B, memory.layout.tree
        if cache is not None and tree is not None:  # as many cells for every source, not all filled
            lengths_B = tree.may_BTS[:, 0].sum(1)
        number_N = layout.numbers_N()  # of a size that the host knows: a GPU can record it
        rows_N = torch.minimum(layout.positions_N.long(), lengths_B[number_N].long() - 1)
        return self.to_out(v_MHK[memory.layout.starts_B[number_N].long() + rows_N].flatten(1))


class OneHead(Attention):
    """As usual, with a single head."""


def in_grid(x_NHK: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
    """Sequences as rows of a grid, and where it is filled."""
    place_T = torch.arange(layout.longest, device=x_NHK.device)
    may_BT = place_T < layout.lengths_B[:, None]
    rows_BT = (layout.starts_B.long()[:, None] + place_T).clamp(max=len(x_NHK) - 1)
    return x_NHK[rows_BT], may_BT


def crossing(kind: type[Attention]) -> Parts:
    """The usual block with another cross attention."""

    def block(
        attention: Attention, feed_forward: FeedForward, norm: Callable[[], nn.Module], *,
        cross: Attention | None = None, dropout: float = 0.0,
    ) -> Block:  # fmt: skip
        if cross is not None:
            heads = 1 if kind is OneHead else cross.n_heads
            width = cross.to_out.weight.shape[0]
            cross = kind(width, heads, d_head=cross.d_head, scope=cross.scope)
        return PreNorm(attention, feed_forward, norm, cross=cross, dropout=dropout)

    return Parts(name=f"lab-{kind.__name__.lower()}", block=block)


ARMS: dict[str, tuple[str, Parts | None]] = {
    "standard": ("queries from the decoder, keys and values from the encoder", None),
    "one-head": ("the same with one head", crossing(OneHead)),
    "pooled": ("no queries: the mean of the source", crossing(Pooled)),
    "diagonal": ("no choice: word t of the source for word t", crossing(Diagonal)),
    "values": ("values from the decoder too", crossing(ValuesFromDecoder)),
    "decoder-only": ("one stream: source and target behind each other", None),
}
FULL = ("one-head", "diagonal", "decoder-only")
"""Arms of a full run alone: the verdict does not rest on them, and the last needs more steps."""


class Roles(Experiment):
    hypothesis = (
        "The target needs a row for each of its words, so queries come from there; what is said "
        "comes from the source, so values and the keys that choose among them come from there. "
        "Without queries that choose far fewer words are right, and without values of the source "
        "no more than by guessing."
    )
    method = (
        "Small translators learn to turn 3 to 20 words round, so that every word of the target has "
        "one word of the source to look at, and none of them stands where it stood.",
        "They differ in their cross attention alone: the usual one; without queries (every word "
        "gets the mean of the source); with values that come from the decoder; and, in full, with "
        "one head or with a fixed look at the same number. Queries from the encoder have no place "
        "in it: they would give a row for each word of the source, not of the target.",
        "In full a decoder alone also reads source and target as one text: there all three come "
        "from one stream, which holds the source.",
    )
    control = (
        "The usual translator must learn the task (95 % of words right); and the mean of the "
        "source must be worth something for three words, or that model would simply be broken."
    )
    literature = (
        Source("You, Sun, Iyyer 2020", "Fixed self-attention hardly changes translations, fixed "
               "cross attention makes them much worse; one learned cross head recovers most.",
               part="queries"),
        Source("Raganato, Scherrer, Tiedemann 2020", "All but one head of an encoder can be fixed "
               "without loss.", "context"),
        Source("Bahdanau, Cho, Bengio 2015", "A single vector for the source limits long "
               "sentences; letting each word look for its own removes the limit.", part="queries"),
    )  # fmt: skip
    pieces = (3, 6)

    def measure(self, bench: Bench) -> Measured:
        bed = beds.bed(
            beds.strings("reverse", LENGTHS[0], LENGTHS[-1], letters=LETTERS),
            bench.choose(4000, 20_000), 300, bench.seed,
        )  # fmt: skip
        train, valid = bed.columns()
        by_length = {n: [one for one in bed.valid if len(one.source.split()) == n] for n in LENGTHS}
        accuracy: dict[str, float] = {}
        loss: dict[str, float] = {}
        length: dict[str, dict[str, float]] = {}
        for arm, (_, own) in ARMS.items():
            if arm in FULL and bench.quick:
                continue
            if arm == "decoder-only":
                both = {"text": [f"{one.source} = {one.target}" for one in bed.train]}
                held = {"text": [f"{one.source} = {one.target}" for one in bed.valid]}
                run = bench.train(
                    arm, "complete", both, valid=held,
                    settings={
                        **PAIRS, "model.n_layers": 2, "complete.context": 48,
                        "model.positions": "sinusoidal", "train.batch_tokens": 1024,
                        "train.lr": 2e-3, "train.steps": 6000,
                    },
                )  # fmt: skip
                asked: Any = lambda pairs, run=run: behind(  # noqa: E731
                    run, [(f"{one.source} =", one.target) for one in pairs]
                )
            else:
                run = bench.train(
                    arm, "translate", train, valid=valid, parts=own,
                    settings={**PAIRS, "train.steps": bench.choose(800, 2000)},
                )  # fmt: skip
                asked = lambda pairs, run=run: of_pairs(run, pairs)  # noqa: E731
            loss[arm], accuracy[arm] = asked(bed.valid)
            length[arm] = {str(n): asked(some).accuracy for n, some in by_length.items() if some}
        return {"accuracy": accuracy, "loss": loss, "length": length}

    def judge(self, found: Sequence[Measured]) -> Verdict:
        def arm(name: str) -> Arm:
            return Arm(name=ARMS[name][0], scores=[100 * v for v in over(found, "accuracy", name)])

        effect = Effect.between(
            arm("standard"), arm("pooled"), SCALE, "words right, usual less without queries",
            "points",
        )  # fmt: skip
        known = Effect.over(
            [100 * one["accuracy"]["values"] - CHANCE for one in found],
            "words right, values from the decoder less guessing", "points",
        )  # fmt: skip
        usual = over(found, "accuracy", "standard")
        short = over(found, "length", "pooled", str(LENGTHS[0]))
        controls = [
            Control(
                name="the usual one learns", passed=min(usual) >= 0.95,
                said=f"with the usual roles at least {100 * min(usual):.0f} % of words are right.",
            ),
            Control(
                name="the mean is worth something for three words",
                passed=100 * min(short) > CHANCE + FAR,
                said=f"of three words the mean of the source gets {100 * min(short):.0f} % right, "
                f"guessing {CHANCE:.1f} %.",
            ),
        ]  # fmt: skip
        named = {
            "values": "values from the decoder",
            "diagonal": "a fixed look", "one-head": "one cross head",
            "decoder-only": "a decoder alone",
        }  # fmt: skip
        more = [known]
        more += [
            Effect.between(arm(key), arm("standard"), SCALE,
                           f"words right, {name} less the usual", "points")
            for key, name in named.items() if key in found[0]["accuracy"]
        ]  # fmt: skip
        right = known.value + CHANCE
        answers = Answers(
            supported=f"The usual roles get {effect} more words right than a mean of the source; "
            f"with values of the decoder {right:.0f} % are right, and guessing has {CHANCE:.1f} %.",
            refuted=f"Not both parts hold: the usual roles get {effect} more words right than a "
            f"mean of the source, and with values of the decoder {right:.0f} % are right, where "
            f"guessing has {CHANCE:.1f} %.",
            undecided=f"The seeds do not agree well: the usual roles get {effect} more words "
            f"right than a mean of the source, and with values of the decoder {right:.0f} % are "
            f"right, where guessing has {CHANCE:.1f} %.",
            changes="Short sources, which one vector holds; an encoder that brings each word to "
            "the place where it will be looked for, which makes even a fixed look work; weights "
            "that tell of the source what its values do not, since its keys make them; or a "
            "decoder that reads the source itself, where one stream plays all roles.",
        )
        parts: dict[str, Word] = {"queries": effect.above(FAR), "values": known.below(NEAR)}
        word = all_of(*parts.values())
        if parts["values"] == word != parts["queries"]:  # that part decides
            effect, more[0] = known, effect
        return decide(word, effect, answers, controls, more, parts)

    def figures(self, found: Sequence[Measured]) -> Sequence[Figure]:
        bars = [(text, [100 * value for value in over(found, "accuracy", arm)])
                for arm, (text, _) in ARMS.items() if arm in found[0]["accuracy"]]  # fmt: skip
        curves = []
        for arm in found[0]["accuracy"]:
            lengths = [
                n for n in map(str, LENGTHS) if all(n in one["length"][arm] for one in found)
            ]
            curves.append(
                (arm, [(float(n), 100 * sum(over(found, "length", arm, n)) / len(found))
                       for n in lengths])
            )  # fmt: skip
        return [
            Bars(
                title="Words right, by who plays which role", bars=interval_bars(bars), unit="%",
                most=100.0, hint="Each word given the right ones before it; the thin line spans "
                "the seeds.",
            ),
            Lines(
                title="By length", series=curves, x="words", y="% right",
                hint="A mean of the source serves short strings better than long ones.",
            ),
        ]  # fmt: skip


EXPERIMENT = Roles()
