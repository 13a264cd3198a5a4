"""E9: how does beam search prune, and what does it lose?

Beam search cuts by rank: what is not among the best of a step is gone. The most probable output of
all is found by a search that cuts only what can no longer win, and then both are compared.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

import headway
from headway.decode.search.hypothesis import Hypothesis, Specials
from headway.decode.search.limits import Job
from headway.decode.search.searcher import Searcher
from headway.inside.capture.beam import search
from headway.inside.capture.beam_tree import BeamTree
from headway.lab import beds
from headway.lab.bench import Bench
from headway.lab.experiment import Experiment, Measured, Source, mean, over
from headway.lab.figures import Bars, Figure, Lines, Table, interval_bars
from headway.lab.verdict import (
    Answers,
    Arm,
    Bounds,
    Control,
    Effect,
    Verdict,
    all_of,
    decide,
    said,
)
from headway.metrics.translation import bleu, chrf
from headway.models.seq2seq import Seq2Seq
from headway.nn.attention.attention import Memory
from headway.nn.eval_mode import evaluating
from headway.nn.layout import Layout
from headway.tasks.opened import Opened

MODEL = "tatoeba-de-en"
BEAM = 4
"""The width that the question is asked of."""

AT_ONCE = 64
"""Hypotheses that the exact search looks at together."""

LITTLE = 1.0
"""Points of chrF: less than that cannot be seen in a test set of a thousand sentences."""

CHRF = Bounds(low=0.0, high=100.0, margin=LITTLE)

SAME = 1e-3
"""Nats by which the best must be better than what a beam found for the beam to have missed it."""

NAMED = {"1": "greedy", "exact": "exact", "gnmt-0.6": "beam 4, α 0.6", "gnmt-1": "beam 4, α 1"}
THRESHOLDS = (1.0, 2.0, 4.0, 8.0)


class Beam(Experiment):
    hypothesis = (
        "A beam of 4 cuts by rank, yet nearly all that it cuts was hopeless, and to find the most "
        "probable output of all makes no better translations: what is wrong is the model's."
    )
    method = (
        "A trained translator (German to English, comes with headway) searches for translations "
        "of sentences that it never saw: greedily, and with beams of 2, 4 and 16 (full: up to "
        "64) that rank by plain log-probability.",
        "The most probable output of all is found depth first (Stahlberg and Byrne 2019): what has "
        "less probability than the best finished output is left, for every further token only "
        "takes some away. The beam's output is the first best, so little has to be looked at.",
        "The tree of each beam of 4 is then judged with the truth in hand: which of the hypotheses "
        "that were cut could still have won, and which were the beginning of the best output? And "
        "how far behind the leader was the later winner, at its worst?",
        "Sentences differ from seed to seed; the model is the same. With --data a model is trained "
        "on your pairs first.",
    )
    control = (
        "No beam may find more probability than the exact search, wider beams must find more on "
        "average, and every hypothesis of a tree must be accounted for; else one of the searches "
        "is broken."
    )
    literature = (
        Source("Stahlberg, Byrne 2019", "The most probable output is empty for more than half of "
               "long news sentences, and beams miss it mostly: good translations are due to search "
               "errors.", "differs"),
        Source("Koehn, Knowles 2017", "Quality peaks at narrow beams and falls with wide ones."),
        Source("Freitag, Al-Onaizan 2017", "To drop what is far behind the leader makes search up "
               "to 43 % faster at no loss."),
    )  # fmt: skip
    pieces = (1, 1)

    def measure(self, bench: Bench) -> Measured:
        run, pairs = self._model(bench)
        some = bench.choose(100, 400)
        pairs = drawn(pairs, some, bench.seed)
        if len(pairs) < some:
            bench.doubt(f"there are {len(pairs)} sentences for seed {bench.seed + 1} of {some}")
        widths = bench.choose((1, 2, 4, 16), (1, 2, 4, 8, 16, 64))
        most = bench.choose(2_000, 50_000)
        found: Measured = bench.once("search", lambda: measured(run.opened, pairs, widths, most))
        return found

    def _model(self, bench: Bench) -> tuple[headway.Run, Sequence[tuple[str, str]]]:
        if bench.data is None:
            return headway.load(MODEL, device=bench.device), beds.unseen()
        train, valid = beds.folder(bench.data)
        if len(train["source"]) < 2_000:
            bench.doubt(f"{bench.data.name} has {len(train['source']):,} pairs to train on, and "
                        "2,000 are needed")  # fmt: skip
        run = bench.train(
            "translator", "translate", train, valid=valid,
            settings={
                "tokenizer.kind": "bpe", "tokenizer.vocab_size": 4000, "model.d_model": 128,
                "model.d_ff": 512, "model.dropout": 0.1, "train.smoothing": 0.1,
                "train.batch_tokens": 4096, "train.epochs": bench.choose(2, 12),
            },
        )  # fmt: skip
        return run, list(zip(valid["source"], valid["target"], strict=True))

    def judge(self, found: Sequence[Measured]) -> Verdict:
        beam = str(BEAM)
        exact_search, usual = (
            Arm(name=name, scores=over(found, "quality", key))
            for name, key in (("the exact search", "exact"), (f"beam {BEAM}", beam))
        )
        effect = Effect.between(
            exact_search, usual, CHRF,
            f"what the exact search adds to the chrF of beam {BEAM}", "points",
        )  # fmt: skip
        hopeless = Effect.over(
            [100 * value for value in over(found, "cut", "hopeless")],
            "hypotheses that were hopeless, of those that were cut", "%",
        )  # fmt: skip
        widths = sorted((k for k in found[0]["log_prob"] if k.isdecimal()), key=int)
        log_probs = [mean(found, "log_prob", width) for width in widths]
        exact = min(over(found, "least_gain"))
        counted = all(one["accounted"] for one in found)
        solved = min(over(found, "solved"))
        controls = [
            Control(
                name="the exact search is never worse",
                passed=exact > -1e-3,
                said="no beam found more than the exact search."
                if exact > -1e-3 else
                f"a beam found {-exact:.4f} nats more than the exact search.",
            ),
            Control(
                name="wider beams find more",
                passed=all(b > a - 1e-3 for a, b in pairwise(log_probs)),
                said=f"log P of a sentence rises from {said(log_probs[0])} (greedy) to "
                f"{said(log_probs[-1])} nats (beam {widths[-1]}).",
            ),
            Control(
                name="the trees add up", passed=counted,
                said="every continuation that was scored is ruled out, listed or left, in every "
                "step." if counted else "some continuations of a step are not accounted for.",
            ),
            Control(
                name="the exact search comes to an end", passed=solved >= 0.9,
                said=f"it proved its answer for at least {100 * solved:.0f} % of the sentences.",
            ),
        ]  # fmt: skip
        more = [
            hopeless,
            Effect.over([100 * (one["better"] - one["worse"]) for one in found],
                        "sentences that the exact search makes better (by chrF), less those that "
                        "it makes worse", "%"),
            Effect.over([100 * v for v in over(found, "missed", "1")],
                        "sentences whose best output greedy search misses", "%"),
            Effect.over([100 * v for v in over(found, "by_length", "shorter")],
                        "the same of the shorter half of the sentences", "%"),
            Effect.over([100 * v for v in over(found, "by_length", "longer")],
                        "the same of the longer half", "%"),
            Effect.over([100 * v for v in over(found, "missed", beam)],
                        f"sentences whose best output beam {BEAM} misses", "%"),
            Effect.over([100 * v for v in over(found, "empty")],
                        "sentences whose best output is empty", "%"),
            Effect.over(over(found, "worst_rank"), "worst rank of a later winner on its way"),
            Effect.over([one["quality"]["gnmt-0.6"] - one["quality"][beam] for one in found],
                        "what ranking by length (α 0.6) adds to chrF", "points"),
        ]  # fmt: skip
        word = all_of(effect.below(LITTLE), hopeless.above(80.0))
        answers = Answers(
            supported=f"A beam of {BEAM} misses the best output of "
            f"{100 * mean(found, 'missed', beam):.0f} % of the sentences and loses nothing worth "
            "naming by it: the exact search adds {effect} of chrF; "
            f"{hopeless.value:.0f} % of what is cut was hopeless.",
            refuted="Pruning does lose something: the exact search adds {effect} of chrF, and "
            f"{hopeless.value:.0f} % of what beam {BEAM} cuts was hopeless.",
            undecided="These sentences cannot tell whether pruning loses anything: the exact "
            f"search adds {{effect}} of chrF; {hopeless.value:.0f} % of what is cut was hopeless.",
            changes="Long sentences and unsure models: there the best output is often far too "
            "short or empty, wide beams come near it, and quality falls.",
        )
        return decide(word, effect, answers, controls, more)

    def figures(self, found: Sequence[Measured]) -> Sequence[Figure]:
        widths = sorted((k for k in found[0]["log_prob"] if k.isdecimal()), key=int)
        arms = [*widths, "exact"]
        quality = [*arms, *(one for one in found[0]["quality"] if one.startswith("gnmt"))]
        return [
            Bars(
                title="What each search misses", unit="% of sentences",
                hint="Sentences for which a more probable output than the one found exists; low "
                "and high are the seeds.",
                bars=interval_bars([(label(width), [100 * v for v in over(found, "missed", width)])
                                    for width in widths]),
            ),
            Table(
                title="More probability, better translation?",
                hint="Means over seeds. Length: tokens of the outputs by those of references. α "
                "ranks outputs by log P divided by a power of their length.",
                columns=["search", "log P, nats", "chrF", "BLEU", "length"],
                rows=[[label(arm), mean(found, "log_prob", arm), mean(found, "quality", arm),
                       mean(found, "bleu", arm), mean(found, "length", arm)] for arm in quality],
            ),
            Table(
                title="What became of the hypotheses",
                hint=f"Trees of beam {BEAM}. Hopeless: less probable already than the best output "
                "in the end. Fatal: the beginning of that output itself.",
                columns=["", "share"],
                rows=[
                    ["kept", mean(found, "cut", "kept")],
                    ["cut", 1 - mean(found, "cut", "kept")],
                    ["of those cut: hopeless", mean(found, "cut", "hopeless")],
                    ["of those cut: could still have won", 1 - mean(found, "cut", "hopeless")],
                    ["of those cut: fatal", mean(found, "cut", "fatal")],
                ],
            ),
            Lines(
                title="Drop what is far behind the leader",
                hint="Of the hypotheses that a beam of 4 follows: the share that is further behind "
                "the best of its step than this, and the share of winners that are lost with them.",
                series=[
                    (name, [(float(t), 100 * mean(found, "threshold", str(t), key))
                            for t in THRESHOLDS])
                    for name, key in (("work spared", "spared"), ("winners lost", "lost"))
                ],
                x="nats behind", y="%",
            ),
            Table(
                title="Where beam and best differ", columns=["source", f"beam {BEAM}", "exact"],
                hint="The first few; more probability is not more truth.",
                rows=[row for one in found for row in one["examples"]][:6]
                or [["none", "", ""]],
            ),
        ]  # fmt: skip


EXPERIMENT = Beam()


def label(arm: str) -> str:
    return NAMED.get(arm, f"beam {arm}")


def drawn(pairs: Sequence[tuple[str, str]], some: int, seed: int) -> Sequence[tuple[str, str]]:
    """Sentences of a seed: those that the seeds before it have left, and when all have been taken,
    all again in another order."""
    parts = max(1, len(pairs) // some)
    order = list(pairs)
    if seed >= parts:
        random.Random(seed // parts).shuffle(order)
    return order[seed % parts * some : (seed % parts + 1) * some]


def measured(
    run: Opened, pairs: Sequence[tuple[str, str]], widths: Sequence[int], most: int
) -> dict[str, Any]:
    """All numbers of these sentences."""
    source, target = run.vocab.source, run.vocab.target
    items = [source.as_source(source.encode(german)) for german, _ in pairs]
    references = [english for _, english in pairs]
    plain = replace(run.settings.decode, length_penalty="none", n_best=1, sample=False)
    ways = {str(width): replace(plain, beam=width) for width in widths}
    for alpha in (0.6, 1.0):
        ways[f"gnmt-{alpha:g}"] = replace(plain, beam=BEAM, length_penalty="gnmt", alpha=alpha)
    specials = Specials.of(target)
    outputs: dict[str, list[Hypothesis]] = {}
    for name, settings in ways.items():
        found = Searcher([seq2seq(run)], settings, specials)(items)
        outputs[name] = [best[0] for best in found]
    searcher = Searcher([seq2seq(run)], plain, specials)
    exact = []
    for number, item in enumerate(items):
        known = [outputs[str(width)][number] for width in widths]
        first = max((h for h in known if h.finished), key=lambda h: h.log_prob, default=None)
        job = searcher.job([item])
        ask = asker(seq2seq(run), item, job)
        exact.append(exact_best(ask, specials.eos, job.limits[0], first, most))
    outputs["exact"] = [Hypothesis(one.tokens, one.log_prob, one.log_prob, [], True)
                        for one in exact]  # fmt: skip
    sure = [number for number, one in enumerate(exact) if one.proved]
    texts = {name: [target.decode(h.tokens) for h in found] for name, found in outputs.items()}
    lengths = [len(target.encode(text)) for text in references]
    missed = {
        str(width): share([exact[n].log_prob > outputs[str(width)][n].log_prob + SAME
                           for n in sure])
        for width in widths
    }  # fmt: skip
    half = sorted(sure, key=lambda n: len(items[n]))
    halves = {"shorter": half[: len(half) // 2], "longer": half[len(half) // 2 :]}
    gains = [
        chrf([texts["exact"][n]], [references[n]]).value
        - chrf([texts[str(BEAM)][n]], [references[n]]).value
        for n in sure
    ]
    differ = [n for n in sure if texts["exact"][n] != texts[str(BEAM)][n]
              and exact[n].log_prob > outputs[str(BEAM)][n].log_prob + SAME]  # fmt: skip
    trees = [search(run, items[n], ways[str(BEAM)], record=True)[1] for n in sure]
    return {
        "missed": missed,
        "by_length": {
            name: share([exact[n].log_prob > outputs["1"][n].log_prob + SAME for n in some])
            for name, some in halves.items()
        },
        "better": share([gain > 0.01 for gain in gains]),
        "worse": share([gain < -0.01 for gain in gains]),
        "solved": len(sure) / len(items),
        "expanded": sum(one.expanded for one in exact) / len(items),
        "empty": share([not exact[n].tokens for n in sure]),
        "least_gain": min(exact[n].log_prob - outputs[str(width)][n].log_prob
                          for n in sure for width in widths if outputs[str(width)][n].finished),
        "log_prob": {name: sum(h.log_prob for h in found) / len(found)
                     for name, found in outputs.items()},
        "quality": {name: chrf(found, references).value for name, found in texts.items()},
        "bleu": {name: bleu(found, references).value for name, found in texts.items()},
        "length": {name: sum(len(h.tokens) for h in found) / max(sum(lengths), 1)
                   for name, found in outputs.items()},
        **judged([tree for tree in trees if tree is not None], [exact[n] for n in sure]),
        "examples": [[pairs[n][0], texts[str(BEAM)][n], texts["exact"][n] or "(empty)"]
                     for n in differ[:3]],
    }  # fmt: skip


def seq2seq(run: Opened) -> Seq2Seq:
    model = run.model
    assert isinstance(model, Seq2Seq)
    return model


def share(those: Sequence[bool]) -> float:
    return sum(those) / len(those) if those else float("nan")


# -- the most probable output of all


@dataclass(frozen=True)
class Exact:
    tokens: list[int]
    """Without the end token."""

    log_prob: float
    expanded: int
    """Hypotheses whose next tokens were asked for."""

    proved: bool
    """Whether nothing better can be left; False where too many had to be looked at."""


Ask = Callable[[Sequence[Sequence[int]]], Tensor]
"""Of hypotheses of one length the log-probabilities of every next token (W V)."""


def exact_best(ask: Ask, eos: int, limit: int, first: Hypothesis | None, most: int) -> Exact:
    """Depth first: the deepest hypotheses go on, the most probable before the others, and what is
    not above the best finished one is left for good.

    `limit`: most tokens, the end token counted. `first`: a finished output that is known already.
    `most`: hypotheses to look at before it gives up."""
    best = (-float("inf"), []) if first is None else (first.log_prob, list(first.tokens))
    levels: list[list[tuple[float, list[int]]]] = [[(0.0, [])]]  # by their number of tokens
    expanded = 0
    while levels and expanded < most:
        level = levels[-1]
        some: list[tuple[float, list[int]]] = []
        while level and len(some) < AT_ONCE and -level[0][0] > best[0]:
            some.append(heapq.heappop(level))
        if not some:
            levels.pop()
            continue
        expanded += len(some)
        total_WV = ask([tokens for _, tokens in some])
        total_WV += torch.tensor([-minus for minus, _ in some])[:, None]
        for log_prob, (_, tokens) in zip(total_WV[:, eos].tolist(), some, strict=True):
            if log_prob > best[0]:
                best = (log_prob, tokens)
        if len(levels) < limit:  # the end token needs a place, too
            total_WV[:, eos] = -torch.inf
            rows, words = (total_WV > best[0]).nonzero(as_tuple=True)
            found = zip(rows.tolist(), words.tolist(), total_WV[rows, words].tolist(), strict=True)
            next_level = [(-log_prob, [*some[row][1], word]) for row, word, log_prob in found]
            heapq.heapify(next_level)
            if next_level:
                levels.append(next_level)
    left = any(-node[0] > best[0] for level in levels for node in level)
    return Exact(best[1], best[0], expanded, not left)


def asker(model: Seq2Seq, source: Sequence[int], job: Job) -> Ask:
    """Log-probabilities of every next token behind hypotheses of one length, as the rules of the
    search leave them: the source is read once, the hypotheses side by side."""
    with torch.no_grad(), evaluating([model]):
        given, layout = model.source_front.collate([list(source)], model_device(model))
        memory_SD = model.encode(given, layout).x_MD
    n_source = len(memory_SD)

    @torch.no_grad()
    def ask(hypotheses: Sequence[Sequence[int]]) -> Tensor:
        n, length = len(hypotheses), len(hypotheses[0])
        past_WT = torch.tensor(hypotheses, dtype=torch.long).reshape(n, length)
        inputs_WT = torch.cat([torch.full((n, 1), job.specials.bos), past_WT], 1)
        device = memory_SD.device
        memory = Memory(memory_SD.repeat(n, 1), Layout.of([n_source] * n, device))
        with evaluating([model]):
            x_ND = model.decode(
                inputs_WT.flatten().to(device), Layout.of([length + 1] * n, device), memory
            )
            last_WD = x_ND.unflatten(0, (n, length + 1))[:, -1]
            scores_WV = model.scores(last_WD).float().log_softmax(-1).cpu()
        job.filters(scores_WV, past_WT, [0])
        return scores_WV

    return ask


def model_device(model: torch.nn.Module) -> torch.device:
    return next(model.parameters()).device


# -- the trees, with the truth in hand


def judged(trees: Sequence[BeamTree], exact: Sequence[Exact]) -> dict[str, Any]:
    """What became of every hypothesis, and whether it had deserved it."""
    kept = cut = hopeless = fatal = 0
    ranks = []
    for tree, best in zip(trees, exact, strict=True):
        kept += tree.kept
        cut += tree.cut
        for node in tree.nodes[1:]:
            if node.fate in ("cut", "lost", "starved"):
                hopeless += node.log_prob <= best.log_prob + 1e-6
                own = node.tokens == tuple(best.tokens[: len(node.tokens)])
                fatal += own and node.fate == "cut"
        ranks.append(max(node.rank for node in tree.path(tree.best)))
    gone = sum(node.fate in ("cut", "lost", "starved") for tree in trees for node in tree.nodes[1:])
    return {
        "cut": {"kept": kept / max(kept + cut, 1), "hopeless": hopeless / max(gone, 1),
                "fatal": fatal / max(gone, 1)},
        "worst_rank": sum(ranks) / max(len(ranks), 1),
        "threshold": {str(t): behind(trees, t) for t in THRESHOLDS},
        "accounted": all(count.scored == count.ruled_out + count.listed + count.rest
                         for tree in trees for count in tree.counts),
    }  # fmt: skip


def behind(trees: Sequence[BeamTree], threshold: float) -> dict[str, float]:
    """What dropping hypotheses this far behind the leader of their step would spare, and how many
    winners it would lose."""
    n = spared = lost = 0
    for tree in trees:
        leader: dict[int, float] = {}
        for node in tree.nodes[1:]:
            leader[node.step] = max(leader.get(node.step, -float("inf")), node.log_prob)
        out: set[int] = set()
        for node in tree.nodes[1:]:
            if node.parent in out or node.log_prob < leader[node.step] - threshold:
                out.add(node.id)
        going = [node for node in tree.nodes[1:] if node.next]
        n += len(going)
        spared += sum(node.id in out for node in going)
        lost += tree.best.id in out
    return {"spared": spared / max(n, 1), "lost": lost / max(len(trees), 1)}
