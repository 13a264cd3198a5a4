"""E2: in cross-attention, why do queries come from the decoder, and keys and values from the
encoder?

Attention returns one vector per query: a sum of values, which are selected by keys. The decoder
needs a vector for each target word, with information from the source. The roles can therefore not
be assigned differently.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headway.lab import datasets
from headway.lab.experiment import Citation, Experiment, SeedMeasurements, per_seed
from headway.lab.figures import BarChart, Figure, LineChart, interval_bars
from headway.lab.losses import score_continuations, score_pairs
from headway.lab.verdict import (
    Arm,
    Bounds,
    Control,
    Effect,
    OutcomeSentences,
    Verdict,
    VerdictLabel,
    all_of,
    decide,
)
from headway.lab.workspace import REVERSAL_SETTINGS, Workspace
from headway.models.parts.custom import Parts
from headway.nn.attention.attention import Attention, Memory
from headway.nn.block import Block, PreNorm
from headway.nn.cache import LayerCache
from headway.nn.feedforward import FeedForward
from headway.nn.layout import Layout

LENGTHS = range(3, 21)
"""Lengths of the strings in words.

With at most 9 words, attention to the mean of the source reached 100 % accuracy in 2,000 steps, so
selection was not needed.
"""

LETTERS = 8
"""Number of different words in the strings, which determines the accuracy of guessing."""

CHANCE = 100 / LETTERS
"""Accuracy of guessing in percent."""

FAR, NEAR = 10.0, 5.0
"""Thresholds for differences in accuracy, in percentage points.

A difference above `FAR` counts as far fewer correct words. Within `NEAR` of guessing, accuracy
counts as hardly better than chance.
"""

SCALE = Bounds(low=CHANCE, high=100.0, margin=1.0)
"""Range of the accuracy in percent. The margin is a tenth of the difference that counts."""


class ValuesFromDecoder(Attention):
    """Cross-attention whose values come from the decoder.

    Queries select positions by the keys of the encoder, but read the decoder's values at these
    positions, up to the current one. In a search step only the current token is available, so only
    losses are compared for this type.
    """

    def forward(
        self,
        x_ND: Tensor,
        layout: Layout,
        memory: Memory | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        assert memory is not None
        _, v_NHK = self.keys_of(Memory(x_ND, layout))
        if cache is not None:  # a CUDA graph of the search keeps no rows of the source
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
    """Cross-attention without queries, in which every target word gets the mean of all source
    values."""

    def _project_q(self, x_ND: Tensor) -> Tensor:
        return super()._project_q(x_ND) * 0


class Diagonal(Attention):
    """Cross-attention without selection, in which target word t gets the value of source word t, or
    of the last source word."""

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
        if cache is not None and tree is not None:  # padded: equally many cells per source
            lengths_B = tree.may_BTS[:, 0].sum(1)
        number_N = layout.numbers_N()  # its size is known on the host, which CUDA graphs need
        rows_N = torch.minimum(layout.positions_N.long(), lengths_B[number_N].long() - 1)
        return self.to_out(v_MHK[memory.layout.starts_B[number_N].long() + rows_N].flatten(1))


class OneHead(Attention):
    """Standard cross-attention with a single head."""


def in_grid(x_NHK: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
    """Return sequences as a padded batch, with the mask of positions that are not padding."""
    place_T = torch.arange(layout.longest, device=x_NHK.device)
    may_BT = place_T < layout.lengths_B[:, None]
    rows_BT = (layout.starts_B.long()[:, None] + place_T).clamp(max=len(x_NHK) - 1)
    return x_NHK[rows_BT], may_BT


def crossing(kind: type[Attention]) -> Parts:
    """Return model parts that replace the cross-attention of a standard block by attention of this
    class."""

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
    "diagonal": ("no selection: source word t for target word t", crossing(Diagonal)),
    "values": ("values from the decoder, too", crossing(ValuesFromDecoder)),
    "decoder-only": ("decoder only: source and target as one sequence", None),
}
FULL = ("one-head", "diagonal", "decoder-only")
"""Arms that only full runs include. The verdict does not depend on them, and the last one needs
more steps."""


class RolesExperiment(Experiment):
    hypothesis = (
        "Without queries from the decoder, far fewer words are predicted correctly; without "
        "values from the encoder, no more words than by guessing."
    )
    method = (
        "Small translators learn to reverse 3 to 20 words, so every target word has one source "
        "word to attend to. Their cross-attention is standard, has no queries (every target word "
        "gets the mean of the source values), or takes its values from the decoder. Full runs "
        "add a model with one head, a model with fixed attention, and a decoder that reads "
        "source and target as one sequence.",
        "Queries cannot come from the encoder: cross-attention would then return one vector per "
        "source word instead of one per target word.",
    )
    control = (
        "The standard translator must predict 95 % of the words correctly. For sources of three "
        "words, the model without queries must be far above chance; otherwise it would have "
        "another fault."
    )
    literature = (
        Citation("You, Sun, Iyyer 2020", "Fixed self-attention hardly affects translation "
                 "quality, while fixed cross-attention makes it much worse.", part="queries"),
        Citation("Bahdanau, Cho, Bengio 2015", "A single vector for the source limits the "
                 "quality for long sentences; attention for each target word removes this limit.",
                 part="queries"),
    )  # fmt: skip
    pieces = (3, 6)

    def measure(self, bench: Workspace) -> SeedMeasurements:
        bed = datasets.make_pairs(
            datasets.strings("reverse", LENGTHS[0], LENGTHS[-1], letters=LETTERS),
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
                        **REVERSAL_SETTINGS, "model.n_layers": 2, "complete.context": 48,
                        "model.positions": "sinusoidal", "train.batch_tokens": 1024,
                        "train.lr": 2e-3, "train.steps": 6000,
                    },
                )  # fmt: skip
                asked: Any = lambda pairs, run=run: score_continuations(  # noqa: E731
                    run, [(f"{one.source} =", one.target) for one in pairs]
                )
            else:
                run = bench.train(
                    arm, "translate", train, valid=valid, parts=own,
                    settings={**REVERSAL_SETTINGS, "train.steps": bench.choose(800, 2000)},
                )  # fmt: skip
                asked = lambda pairs, run=run: score_pairs(run, pairs)  # noqa: E731
            loss[arm], accuracy[arm] = asked(bed.valid)
            length[arm] = {str(n): asked(some).accuracy for n, some in by_length.items() if some}
        return {"accuracy": accuracy, "loss": loss, "length": length}

    def judge(self, found: Sequence[SeedMeasurements]) -> Verdict:
        def arm(name: str) -> Arm:
            return Arm(
                name=ARMS[name][0], scores=[100 * v for v in per_seed(found, "accuracy", name)]
            )

        effect = Effect.between(
            arm("standard"), arm("pooled"), SCALE, "words correct, standard minus without "
                                                   "queries",
            "points",
        )  # fmt: skip
        known = Effect.over(
            [100 * one["accuracy"]["values"] - CHANCE for one in found],
            "words correct, values from the decoder minus guessing", "points",
        )  # fmt: skip
        usual = per_seed(found, "accuracy", "standard")
        short = per_seed(found, "length", "pooled", str(LENGTHS[0]))
        controls = [
            Control(
                name="the standard model learns", passed=min(usual) >= 0.95,
                said=f"the standard translator predicts at least {100 * min(usual):.0f} % of the "
                     "words correctly.",
            ),
            Control(
                name="the mean helps with three words",
                passed=100 * min(short) > CHANCE + FAR,
                said="for sources of three words, the model without queries predicts at least "
                f"{100 * min(short):.0f} % of the words correctly; chance is {CHANCE:.1f} %.",
            ),
        ]  # fmt: skip
        named = {
            "values": "values from the decoder",
            "diagonal": "fixed attention", "one-head": "one cross-attention head",
            "decoder-only": "decoder only",
        }  # fmt: skip
        more = [known]
        more += [
            Effect.between(arm(key), arm("standard"), SCALE,
                           f"words correct, {name} minus standard", "points")
            for key, name in named.items() if key in found[0]["accuracy"]
        ]  # fmt: skip
        right = known.value + CHANCE
        parts: dict[str, VerdictLabel] = {"queries": effect.above(FAR), "values": known.below(NEAR)}
        if parts["queries"] == "refuted":
            refuted = "Queries matter less than claimed: the mean of the source is almost as good."
        elif parts["queries"] == "supported":
            refuted = (
                "Queries come from the decoder because each target word needs its own query. The "
                "claim was too strong, however: a model with values from the decoder still beats "
                "guessing."
            )
        else:
            refuted = "Values from the decoder are not useless: a model with them beats guessing."
        answers = OutcomeSentences(
            supported="Each target word needs its own query, so queries come from the decoder; the "
            "information is in the source, so keys and values come from the encoder.",
            refuted=refuted,
            numbers=f"With values from the decoder, {right:.0f} % of the words are correct; "
            f"chance is {CHANCE:.1f} %.",
            changes="The answer may differ for short sources, which fit into one vector, and for "
            "a decoder that reads the source itself. Attention weights also carry information "
            "about the source, because they depend on its keys.",
        )
        word = all_of(*parts.values())
        if parts["values"] == word != parts["queries"]:  # this part decides
            effect, more[0] = known, effect
        return decide(word, effect, answers, controls, more, parts)

    def figures(self, found: Sequence[SeedMeasurements]) -> Sequence[Figure]:
        bars = [(text, [100 * value for value in per_seed(found, "accuracy", arm)])
                for arm, (text, _) in ARMS.items() if arm in found[0]["accuracy"]]  # fmt: skip
        curves = []
        for arm in found[0]["accuracy"]:
            lengths = [
                n for n in map(str, LENGTHS) if all(n in one["length"][arm] for one in found)
            ]
            curves.append(
                (arm, [(float(n), 100 * sum(per_seed(found, "length", arm, n)) / len(found))
                       for n in lengths])
            )  # fmt: skip
        return [
            BarChart(
                title="Words right by assignment of the roles", bars=interval_bars(bars), unit="%",
                most=100.0, hint="Each word is predicted from the correct words before it; the "
                "thin line is the range over seeds.",
            ),
            LineChart(
                title="Words right by length", series=curves, x="words", y="% right",
                hint="The mean of the source is better for short strings than for long ones.",
            ),
        ]  # fmt: skip


EXPERIMENT = RolesExperiment()
