"""E9: what does beam search lose by pruning?

Beam search prunes by rank: a hypothesis that is not among the best of its step is dropped. An exact
search prunes only hypotheses that can no longer win, so it finds the most probable output. The
experiment compares the outputs of these two searches.
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
from headway.decode.logits_processors import SpecialTokens
from headway.decode.search.job import Hypothesis, Job
from headway.decode.search.searcher import Searcher
from headway.inside.capture.beam import search
from headway.inside.capture.beam_tree import BeamTree
from headway.lab import datasets
from headway.lab.experiment import Citation, Experiment, SeedMeasurements, mean, per_seed
from headway.lab.figures import BarChart, Figure, LineChart, TableFigure, interval_bars
from headway.lab.verdict import (
    Arm,
    Bounds,
    Control,
    Effect,
    OutcomeSentences,
    Verdict,
    all_of,
    decide,
    rounded,
)
from headway.lab.workspace import Workspace
from headway.metrics.translation import bleu, chrf
from headway.models.seq2seq import Seq2Seq
from headway.nn.attention.attention import Memory
from headway.nn.eval_mode import evaluating
from headway.nn.layout import Layout
from headway.tasks.loaded_run import LoadedRun

MODEL = "tatoeba-de-en"
BEAM = 4
"""Beam width on which the verdict is based."""

AT_ONCE = 64
"""Maximum number of hypotheses that the exact search expands in one batch."""

MIN_DIFFERENCE = 1.0
"""Minimum difference in chrF that counts. A smaller one is invisible in a test set of 1,000
sentences."""

CHRF = Bounds(low=0.0, high=100.0, margin=MIN_DIFFERENCE)

SAME = 1e-3
"""Minimum difference in nats at which the output of the exact search counts as more probable than
that of the beam search."""

NAMED = {"1": "greedy", "exact": "exact", "gnmt-0.6": "beam 4, α 0.6", "gnmt-1": "beam 4, α 1"}
THRESHOLDS = (1.0, 2.0, 4.0, 8.0)
"""Thresholds for pruning: maximum distances in nats from the best hypothesis of a step."""


class BeamExperiment(Experiment):
    hypothesis = (
        "Beam search of width 4 prunes hypotheses by rank, but almost none of the pruned "
        "hypotheses could still have won, and the most probable output is not a better "
        "translation."
    )
    method = (
        "The German-English translator shipped with headway translates unseen sentences with "
        "several beam widths. Each seed uses different sentences. With --data, a model is first "
        "trained on your pairs.",
        "An exact depth-first search (Stahlberg and Byrne 2019) finds the most probable output. "
        "Every further token lowers the probability of a hypothesis, so a hypothesis that is "
        "less probable than the best finished output can be dropped. The experiment counts how "
        "many hypotheses pruned by the beam could still have won.",
    )
    control = (
        "No beam search may find a more probable output than the exact search, and wider beams "
        "must find more probable outputs."
    )
    literature = (
        Citation("Stahlberg, Byrne 2019", "For more than half of long news sentences the most "
                 "probable output is empty, and beam search usually misses it.", "differs"),
        Citation("Koehn, Knowles 2017", "Translation quality is best with narrow beams and falls "
                 "with wide ones."),
        Citation("Freitag, Al-Onaizan 2017", "Dropping hypotheses that score far below the best "
                 "one makes the search up to 43 % faster without loss of quality."),
    )  # fmt: skip
    pieces = (1, 1)

    def measure(self, bench: Workspace) -> SeedMeasurements:
        run, pairs = self._model(bench)
        some = bench.choose(100, 400)
        pairs = sample_pairs(pairs, some, bench.seed)
        if len(pairs) < some:
            bench.doubt(f"seed {bench.seed + 1} has only {len(pairs)} of {some} sentences")
        widths = bench.choose((1, 2, 4, 16), (1, 2, 4, 8, 16, 64))
        most = bench.choose(2_000, 50_000)
        found: SeedMeasurements = bench.cached(
            "search", lambda: measure_run(run.opened, pairs, widths, most)
        )
        return found

    def _model(self, bench: Workspace) -> tuple[headway.Run, Sequence[tuple[str, str]]]:
        if bench.data is None:
            return headway.load(MODEL, device=bench.device), datasets.test_set_pairs()
        train, valid = datasets.read_folder(bench.data)
        if len(train["source"]) < 2_000:
            bench.doubt(f"{bench.data.name} has {len(train['source']):,} training pairs, but 2,000 "
                        "are needed")  # fmt: skip
        run = bench.train(
            "translator", "translate", train, valid=valid,
            settings={
                "tokenizer.kind": "bpe", "tokenizer.vocab_size": 4000, "model.d_model": 128,
                "model.d_ff": 512, "model.dropout": 0.1, "train.label_smoothing": 0.1,
                "train.batch_tokens": 4096, "train.epochs": bench.choose(2, 12),
            },
        )  # fmt: skip
        return run, list(zip(valid["source"], valid["target"], strict=True))

    def judge(self, found: Sequence[SeedMeasurements]) -> Verdict:
        beam = str(BEAM)
        exact_search, usual = (
            Arm(name=name, scores=per_seed(found, "quality", key))
            for name, key in (("the exact search", "exact"), (f"beam {BEAM}", beam))
        )
        effect = Effect.between(
            exact_search, usual, CHRF,
            f"chrF of the exact search minus that of beam {BEAM}", "points",
        )  # fmt: skip
        hopeless = Effect.over(
            [100 * value for value in per_seed(found, "cut", "hopeless")],
            "share of pruned hypotheses that could not have won", "%",
        )  # fmt: skip
        widths = sorted((k for k in found[0]["log_prob"] if k.isdecimal()), key=int)
        log_probs = [mean(found, "log_prob", width) for width in widths]
        exact = min(per_seed(found, "least_gain"))
        counted = all(one["accounted"] for one in found)
        solved = min(per_seed(found, "solved"))
        controls = [
            Control(
                name="the exact search is never worse",
                passed=exact > -1e-3,
                said="no beam found a more probable output than the exact search."
                if exact > -1e-3 else
                f"a beam found an output that is {-exact:.4f} nats more probable than that of the "
                "exact search.",
            ),
            Control(
                name="wider beams find more",
                passed=all(b > a - 1e-3 for a, b in pairwise(log_probs)),
                said="the mean log-probability of the outputs rises from "
                f"{rounded(log_probs[0])} (greedy) to {rounded(log_probs[-1])} nats (beam "
                f"{widths[-1]}).",
            ),
            Control(
                name="the trees add up", passed=counted,
                said="in every step, each scored continuation is ruled out, listed or counted "
                "with the rest." if counted
                else "some continuations of a step are not accounted for.",
            ),
            Control(
                name="the exact search finishes", passed=solved >= 0.9,
                said="in the worst seed, the exact search proved its output the most probable "
                    f"for {100 * solved:.0f} % of the sentences.",
            ),
        ]  # fmt: skip
        more = [
            hopeless,
            Effect.over([100 * (one["better"] - one["worse"]) for one in found],
                        "sentences that the exact search translates better (by chrF) minus "
                        "sentences that it translates worse", "%"),
            Effect.over([100 * v for v in per_seed(found, "missed", "1")],
                        "sentences whose most probable output is missed by greedy search", "%"),
            Effect.over([100 * v for v in per_seed(found, "by_length", "shorter")],
                        "the same for the shorter half of the sentences", "%"),
            Effect.over([100 * v for v in per_seed(found, "by_length", "longer")],
                        "the same for the longer half of the sentences", "%"),
            Effect.over([100 * v for v in per_seed(found, "missed", beam)],
                        f"sentences whose best output is missed by beam {BEAM}", "%"),
            Effect.over([100 * v for v in per_seed(found, "empty")],
                        "sentences whose best output is empty", "%"),
            Effect.over(per_seed(found, "worst_rank"),
            "worst rank of the final winner in any step"),
            Effect.over([one["quality"]["gnmt-0.6"] - one["quality"][beam] for one in found],
                        "change in chrF with a length penalty (α 0.6)", "points"),
        ]  # fmt: skip
        word = all_of(effect.below(MIN_DIFFERENCE), hopeless.above(80.0))
        answers = OutcomeSentences(
            supported="Nothing that matters: beam search misses the most probable output for some "
            "sentences, but these outputs would not be better translations.",
            refuted="It loses quality: an exact search gives better translations."
            if effect.below(MIN_DIFFERENCE) == "refuted"
            else "It drops many hypotheses that could still have won.",
            undecided="These sentences do not show whether pruning loses quality.",
            numbers=f"Beam search of width {BEAM} misses the most probable output of "
            f"{100 * mean(found, 'missed', beam):.0f} % of the sentences; {hopeless.value:.0f} % "
            "of the pruned hypotheses could not have won.",
            changes="The answer may differ for long sentences and uncertain models, whose most "
            "probable output is often empty or far too short.",
        )
        return decide(word, effect, answers, controls, more)

    def figures(self, found: Sequence[SeedMeasurements]) -> Sequence[Figure]:
        widths = sorted((k for k in found[0]["log_prob"] if k.isdecimal()), key=int)
        arms = [*widths, "exact"]
        quality = [*arms, *(one for one in found[0]["quality"] if one.startswith("gnmt"))]
        return [
            BarChart(
                title="Best outputs missed by each search", unit="% of sentences",
                hint="Sentences that have a more probable output than the one found; low and high "
                "are the range over seeds.",
                bars=interval_bars([(label(width), [100 * v for v in per_seed(found, "missed",
                width)])
                                    for width in widths]),
            ),
            TableFigure(
                title="Are more probable outputs better translations?",
                hint="Means over seeds. Length: tokens of the outputs divided by tokens of the "
                "references. α: outputs are ranked by log P divided by a power of their length.",
                columns=["search", "log P, nats", "chrF", "BLEU", "length"],
                rows=[[label(arm), mean(found, "log_prob", arm), mean(found, "quality", arm),
                       mean(found, "bleu", arm), mean(found, "length", arm)] for arm in quality],
            ),
            TableFigure(
                title="Kept and pruned hypotheses",
                hint=f"Search trees of beam {BEAM}. Could not win: already less probable than the "
                "best output. Fatal: a prefix of the best output.",
                columns=["", "share"],
                rows=[
                    ["kept", mean(found, "cut", "kept")],
                    ["pruned", 1 - mean(found, "cut", "kept")],
                    ["pruned: could not win", mean(found, "cut", "hopeless")],
                    ["pruned: could still have won", 1 - mean(found, "cut", "hopeless")],
                    ["pruned: fatal", mean(found, "cut", "fatal")],
                ],
            ),
            LineChart(
                title="Pruning by distance to the leader",
                hint="Share of a beam of 4's hypotheses that are further below the best of their "
                "step than this, and share of final winners that would be dropped with them.",
                series=[
                    (name, [(float(t), 100 * mean(found, "threshold", str(t), key))
                            for t in THRESHOLDS])
                    for name, key in (("hypotheses dropped", "spared"), ("winners lost", "lost"))
                ],
                x="nats below the best", y="%",
            ),
            TableFigure(
                title="Examples where the beam misses the best "
                    "output", columns=["source", f"beam {BEAM}", "exact"],
                hint="The first few; a more probable output is not always a better one.",
                rows=[row for one in found for row in one["examples"]][:6]
                or [["none", "", ""]],
            ),
        ]  # fmt: skip


EXPERIMENT = BeamExperiment()


def label(arm: str) -> str:
    return NAMED.get(arm, f"beam {arm}")


def sample_pairs(
    pairs: Sequence[tuple[str, str]], some: int, seed: int
) -> Sequence[tuple[str, str]]:
    """Return the sentences of one seed.

    Seeds share no sentences until all sentences are used. After that, the sentences are shuffled
    and used again.
    """
    parts = max(1, len(pairs) // some)
    order = list(pairs)
    if seed >= parts:
        random.Random(seed // parts).shuffle(order)
    return order[seed % parts * some : (seed % parts + 1) * some]


def measure_run(
    run: LoadedRun, pairs: Sequence[tuple[str, str]], widths: Sequence[int], most: int
) -> dict[str, Any]:
    """Decode these sentences with every search and return all measurements."""
    source, target = run.vocab.source, run.vocab.target
    items = [source.as_source(source.encode(german)) for german, _ in pairs]
    references = [english for _, english in pairs]
    plain = replace(run.settings.decode, length_penalty="none", n_best=1, sample=False)
    ways = {str(width): replace(plain, beam=width) for width in widths}
    for alpha in (0.6, 1.0):
        ways[f"gnmt-{alpha:g}"] = replace(
            plain, beam=BEAM, length_penalty="gnmt", length_penalty_alpha=alpha
        )
    specials = SpecialTokens.of(target)
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
        ask = next_log_probs(seq2seq(run), item, job)
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
        **count_pruned([tree for tree in trees if tree is not None], [exact[n] for n in sure]),
        "examples": [[pairs[n][0], texts[str(BEAM)][n], texts["exact"][n] or "(empty)"]
                     for n in differ[:3]],
    }  # fmt: skip


def seq2seq(run: LoadedRun) -> Seq2Seq:
    model = run.model
    assert isinstance(model, Seq2Seq)
    return model


def share(those: Sequence[bool]) -> float:
    return sum(those) / len(those) if those else float("nan")


# -- exact search for the most probable output


@dataclass(frozen=True)
class ExactResult:
    tokens: list[int]
    """Tokens of the most probable output, without the end token."""

    log_prob: float
    expanded: int
    """Number of hypotheses that the search expanded."""

    proved: bool
    """Whether the output is proved to be the most probable one. False if the search stopped at its
    limit."""


NextLogProbs = Callable[[Sequence[Sequence[int]]], Tensor]
"""Function that returns the log-probabilities of every next token (W V), given W hypotheses of
equal length."""


def exact_best(
    ask: NextLogProbs, eos: int, limit: int, first: Hypothesis | None, most: int
) -> ExactResult:
    """Find the most probable output by depth-first search.

    Hypotheses that are not more probable than the best finished output are dropped. `ask`: function
    that computes the log-probabilities. `limit`: maximum number of tokens, including the end token.
    `first`: finished output to start from; None if there is none. `most`: maximum number of
    hypotheses to expand.
    """
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
    return ExactResult(best[1], best[0], expanded, not left)


def next_log_probs(model: Seq2Seq, source: Sequence[int], job: Job) -> NextLogProbs:
    """Return a function that computes the log-probabilities of every next token under the rules of
    the beam search. The source is encoded only once."""
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
        job.logits_processors(scores_WV, past_WT, [0])
        return scores_WV

    return ask


def model_device(model: torch.nn.Module) -> torch.device:
    return next(model.parameters()).device


# -- search trees compared with the best output


def count_pruned(trees: Sequence[BeamTree], exact: Sequence[ExactResult]) -> dict[str, Any]:
    """Return the fraction of hypotheses that were kept, and the fractions of pruned hypotheses that
    could not have won (`hopeless`) or that began the best output (`fatal`)."""
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
        "threshold": {str(t): pruned_at_threshold(trees, t) for t in THRESHOLDS},
        "accounted": all(count.scored == count.ruled_out + count.listed + count.rest
                         for tree in trees for count in tree.counts),
    }  # fmt: skip


def pruned_at_threshold(trees: Sequence[BeamTree], threshold: float) -> dict[str, float]:
    """Simulate pruning of hypotheses that are further than a threshold from the best one of their
    step.

    Returns the fraction of continued hypotheses that this would drop (`spared`), and the fraction
    of best outputs that it would lose (`lost`).
    """
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
