"""E7: can pretrained word vectors be reused?

A translator trained on few pairs has seen most words only once. Vectors from monolingual text
encode which words are similar. The experiment measures how much they help, and up to which number
of pairs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headway.lab import datasets
from headway.lab.averaging import Losses, checkpoints_of
from headway.lab.experiment import Citation, Experiment, SeedMeasurements, mean, per_seed
from headway.lab.figures import BarChart, Figure, LineChart, TableFigure, interval_bars
from headway.lab.verdict import Control, Effect, OutcomeSentences, Verdict, decide
from headway.lab.workspace import Workspace
from headway.models.parts.custom import Parts
from headway.nn.layout import Layout
from headway.nn.positions import Sinusoidal
from headway.storage import replace_text
from headway.training.checkpoint import Checkpoints

if TYPE_CHECKING:
    from headway.run import Run

WordVectors = Mapping[str, Tensor]

LEAST = 0.03
"""Minimum gain of pretrained vectors that counts, in nats per token."""

LOUD = 8.0
"""Scale factor of the arm whose word vectors are deliberately too large: they drown out the
positional encoding."""


class Loud(Sinusoidal):
    """Positional encoding added to word vectors that are deliberately much too large, as if they
    had not been rescaled after loading."""

    def forward(self, x_ND: Tensor, layout: Layout) -> Tensor:
        return super().forward(LOUD * x_ND, layout)


UNSCALED = Parts(name="lab-loud-words", positions=lambda s, width: Loud(width, s.max_len))

ARMS = {
    "random": "random initial "
        "vectors", "tuned": "pretrained, fine-tuned", "frozen": "pretrained, frozen",
    "shuffled": "pretrained, assigned to wrong "
        "words", "loud": f"pretrained, {LOUD:.0f} times too large",
    "taught": "from a translator trained on the largest set",
}  # fmt: skip


class EmbeddingsExperiment(Experiment):
    hypothesis = (
        "Word vectors pretrained on monolingual text improve a translator that is trained on few "
        "pairs."
    )
    method = (
        "Word vectors are computed from the sentences of both languages, without using the "
        "sentence alignment. Counts of neighbouring words are "
        "converted to positive pointwise mutual information, and a truncated singular value "
        "decomposition gives the vectors (similar to word2vec). Translators start from these "
        "vectors or from random vectors and are trained on 1,000 or more pairs. All of them take "
        "the same number of steps, and their lowest validation losses are compared.",
        "The source embeddings, the target embeddings and the output layer share one matrix, so "
        "freezing the vectors also freezes the output layer. The translators translate German to "
        "English, with whole words as tokens. Full runs use more steps and pairs.",
    )
    control = (
        "The same vectors assigned to the wrong words must not help. Vectors from a translator "
        "trained on the largest training set must help."
    )
    literature = (
        Citation("Qi et al. 2018", "Pretrained vectors improve translation by up to 20 BLEU with "
                 "little data, but hardly improve it with much data."),
        Citation("Levy, Goldberg 2014", "Skip-gram word vectors implicitly factorise a matrix of "
                 "shifted pointwise mutual information, so count-based vectors work as well.",
                 "context"),
    )  # fmt: skip
    pieces = (19, 25)

    def measure(self, bench: Workspace) -> SeedMeasurements:
        every, valid = pairs(bench)
        sizes = sorted(
            {min(n, len(every["source"])) for n in bench.choose((1000, 4000), (1000, 5000, 29_000))}
        )
        if bench.data is None and not bench.quick:
            sizes = [1000, 2500, len(every["source"])]
        width = bench.choose(64, 128)
        files = bench.folder / "vectors"
        counted = files / "counted.txt"
        taught = files / "taught.txt"
        shuffled = files / "shuffled.txt"

        def learn() -> int:
            texts = [*every["source"], *every["target"]]
            vectors = cooccurrence_vectors(texts, width)
            write_vectors(counted, vectors)
            write_vectors(shuffled, shuffle(vectors, bench.seed))
            return len(vectors)

        found: dict[str, Any] = {"words": bench.cached("vectors", learn), "sizes": sizes}
        most, least = sizes[-1], sizes[0]
        loss: dict[str, dict[str, float]] = {}
        drift: dict[str, float] = {}
        # Train on the largest data set first, because one arm reuses the vectors learned there.
        for n in reversed(sizes):
            arms = ["random", "tuned", "frozen"] + ["shuffled", "loud", "taught"] * (n == least)
            loss[str(n)] = {}
            for arm in arms:
                file = {"random": None, "taught": taught, "shuffled": shuffled}.get(arm, counted)
                run = bench.train(
                    f"{arm}-{n}",
                    "translate",
                    first(every, n),
                    valid=valid,
                    parts=UNSCALED if arm == "loud" else None,
                    settings=settings(bench, file, frozen=arm == "frozen"),
                )
                name = f"loss-{arm}-{n}"
                loss[str(n)][arm] = bench.cached(name, lambda run=run: lowest(run))  # type: ignore[misc]
                if arm == "random" and n == most:
                    write_vectors(taught, vectors_of(run))
                if arm == "tuned":
                    drift[str(n)] = relative_change(vectors_of(run), read_back(counted))
        return {**found, "loss": loss, "drift": drift}

    def judge(self, found: Sequence[SeedMeasurements]) -> Verdict:
        sizes = [str(n) for n in found[0]["sizes"]]
        few, all_ = sizes[0], sizes[-1]
        gain = {n: gain_over_random(found, n, "tuned") for n in sizes}
        effect = Effect.over(gain[few], f"gain of pretrained vectors, {int(few):,} pairs",
                             "nats per token")  # fmt: skip
        wrong, best = (
            gain_over_random(found, few, "shuffled"),
            gain_over_random(found, few, "taught"),
        )
        controls = [
            Control(
                name="vectors at wrong words do not help",
                passed=mean_of(wrong) < max(LEAST, mean_of(gain[few]) / 2),
                said="the gain of the same vectors assigned to the wrong words is "
                f"{mean_of(wrong):.3f} nats.",
            ),
            Control(
                name="good vectors help", passed=mean_of(best) > LEAST,
                said="the gain of vectors from a translator trained on the largest training set "
                f"is {mean_of(best):.2f} nats.",
            ),
        ]  # fmt: skip
        more = [
            *(Effect.over(gain[n], f"gain of pretrained vectors, {int(n):,} "
                "pairs", "nats per token")
              for n in sizes[1:]),
            *(Effect.over(gain_over_random(found, n, "frozen"),
            f"gain of frozen vectors, {int(n):,} "
                          "pairs", "nats per token") for n in sizes),
            Effect.over(gain_over_random(found, few, "loud"),
            f"gain of vectors {LOUD:.0f} times too large",
                        "nats per token"),
        ]  # fmt: skip
        much = mean_of(gain[all_])
        fades = "shrinks" if much < mean_of(gain[few]) / 2 else "does not shrink"
        answers = OutcomeSentences(
            supported="Yes: with few training pairs, a translator that starts from pretrained "
            f"word vectors learns more, and the gain {fades} with more pairs.",
            refuted="Hardly: pretrained word vectors improve a translator little, even with few "
            "training pairs.",
            undecided="These runs do not show whether pretrained word vectors improve a translator "
            "with few training pairs.",
            numbers=f"With {int(all_):,} pairs the gain is {much:.3f} nats per token.",
            changes="The gain may differ for vectors computed from far more text than a few "
            "thousand sentences, and for whole pretrained layers instead of word vectors alone.",
        )
        return decide(effect.above(LEAST), effect, answers, controls, more)

    def figures(self, found: Sequence[SeedMeasurements]) -> Sequence[Figure]:
        sizes = [str(n) for n in found[0]["sizes"]]
        few = sizes[0]
        return [
            LineChart(
                title="Loss by number of training pairs", log_x=True, x="pairs", y="nats per token",
                hint="Lowest validation loss of all checkpoints; lower is better.",
                series=[(ARMS[arm], [(float(n), mean(found, "loss", n, arm)) for n in sizes])
                        for arm in ("random", "tuned", "frozen")],
            ),
            BarChart(
                title=f"Gain of each kind of vectors with {int(few):,} "
                    "pairs", unit="nats per token",
                hint="Loss with random initial vectors minus loss with these; mean and range over "
                "seeds.",
                bars=interval_bars([(ARMS[arm], gain_over_random(found, few, arm))
                                    for arm in found[0]["loss"][few] if arm != "random"]),
            ),
            TableFigure(
                title="How far fine-tuned vectors move", columns=["pairs", "share of their length"],
                hint="Distance from the pretrained vectors, relative to their length.",
                rows=[[int(n), mean(found, "drift", n)] for n in sizes],
            ),
        ]  # fmt: skip


EXPERIMENT = EmbeddingsExperiment()


def gain_over_random(found: Sequence[SeedMeasurements], n: str, arm: str) -> list[float]:
    """Return, for each seed, how much lower the loss is than with random initial vectors."""
    pairs = zip(per_seed(found, "loss", n, "random"), per_seed(found, "loss", n, arm), strict=True)
    return [chance - reused for chance, reused in pairs]


def mean_of(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def pairs(bench: Workspace) -> tuple[datasets.TextColumns, datasets.TextColumns]:
    """Return training and validation pairs. The training pairs are shuffled by the seed, so that
    small data sets differ between seeds."""
    if bench.data is not None:
        train, valid = datasets.read_folder(bench.data)
        if len(train["source"]) < 1000:
            bench.doubt(
                f"{bench.data.name} has {len(train['source']):,} pairs, but 1,000 are needed"
            )
    else:
        train, valid = datasets.translations(5700, 300)
    order = list(range(len(train["source"])))
    Random(bench.seed).shuffle(order)
    return {side: [texts[i] for i in order] for side, texts in train.items()}, valid


def first(every: datasets.TextColumns, n: int) -> datasets.TextColumns:
    return {side: texts[:n] for side, texts in every.items()}


def settings(bench: Workspace, file: Path | None, *, frozen: bool) -> dict[str, Any]:
    steps = bench.choose(120, 1500)
    given: dict[str, Any] = {} if file is None else {"model.embeddings": str(file)}
    if frozen:
        given["model.tune_embeddings"] = False
    size = {} if bench.quick else {"model.d_model": 128, "model.d_ff": 512}
    return {
        "train.optimizer": "adam", "train.steps": steps, "train.save_every": steps // 5,
        "train.keep": 5, "train.lr": 2e-3, "train.warmup": steps // 10,
        "train.clip": 1.0, "train.batch_tokens": bench.choose(512, 2048), "decode.beam": 1,
        "model.dropout": 0.1,
        "tokenizer.lowercase": True, "tokenizer.vocab_size": bench.choose(2500, 8000),
        **size, **given,
    }  # fmt: skip


def lowest(run: Run) -> float:
    """Return the lowest validation loss among the checkpoints of a run."""
    loss = Losses(run)
    return min(loss(Checkpoints.weights(path)) for path in checkpoints_of(run))


# -- word vectors


def tokens(text: str) -> list[str]:
    """Split a text into words, approximately as the word tokenizer does. Each punctuation mark is a
    token."""
    spaced = "".join(sign if sign.isalnum() or sign.isspace() else f" {sign} " for sign in text)
    return spaced.lower().split()


def cooccurrence_vectors(
    texts: Iterable[str], width: int, window: int = 3, least: int = 2
) -> WordVectors:
    """Return word vectors that are computed from neighbouring words. They are the leading singular
    directions of the matrix of positive pointwise mutual information (PPMI)."""
    sentences = [tokens(text) for text in texts]
    counts = Counter(word for sentence in sentences for word in sentence)
    words = [word for word, count in counts.most_common(8000) if count >= least]
    number = {word: i for i, word in enumerate(words)}
    pairs: Counter[tuple[int, int]] = Counter()
    for sentence in sentences:
        known = [number.get(word) for word in sentence]
        for at, one in enumerate(known):
            for other in known[max(0, at - window) : at]:
                if one is not None and other is not None:
                    pairs[one, other] += 1
                    pairs[other, one] += 1
    near_VV = torch.zeros(len(words), len(words))
    for (one, other), count in pairs.items():
        near_VV[one, other] = count
    return dict(zip(words, directions(near_VV, width), strict=True))


def directions(near_VV: Tensor, width: int) -> Tensor:
    """Return a vector of `width` numbers for each word, given the counts of neighbouring words (V
    V)."""
    total, rows_V1, columns_1V = near_VV.sum(), near_VV.sum(1, True), near_VV.sum(0, True) ** 0.75
    columns_1V = columns_1V * total / columns_1V.sum().clamp(min=1)
    expected_VV = (rows_V1 * columns_1V / total.clamp(min=1)).clamp(min=1e-9)
    pmi_VV = (near_VV / expected_VV).clamp(min=1e-9).log().clamp(min=0)
    torch.manual_seed(0)
    wide_VC, size_C, _ = torch.svd_lowrank(pmi_VV, q=min(width + 8, len(pmi_VV)), niter=4)
    found_VC = wide_VC[:, :width] * size_C[:width].sqrt()
    return torch.nn.functional.pad(found_VC, (0, width - found_VC.shape[1]))


def shuffle(vectors: WordVectors, seed: int) -> WordVectors:
    """Return the same vectors, randomly reassigned to the words."""
    words, others = list(vectors), list(vectors.values())
    Random(seed).shuffle(others)
    return dict(zip(words, others, strict=True))


def write_vectors(path: Path, vectors: WordVectors) -> None:
    """Write vectors in the text format of word2vec and GloVe."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (f"{word} {' '.join(f'{x:.5g}' for x in vector.tolist())}\n"
             for word, vector in vectors.items())  # fmt: skip
    replace_text(path, "".join(lines))


def read_back(path: Path) -> WordVectors:
    rows = (line.split(" ") for line in path.read_text(encoding="utf-8").splitlines())
    return {word: torch.tensor([float(x) for x in numbers]) for word, *numbers in rows}


def vectors_of(run: Run) -> WordVectors:
    """Return the embeddings of a run by word."""
    front: Any = run.model.get_submodule("source_front")
    table_VD, tokenizer = front.tokens.weight.detach().cpu(), run.tokenizer
    known = [i for i in range(tokenizer.vocab_size) if i not in tokenizer.specials]
    words = tokenizer.whole_words(known)
    return {word: table_VD[i] for i, word in zip(known, words, strict=True) if word}


def relative_change(now: WordVectors, before: WordVectors) -> float:
    """Return the distance of vectors from their initial values, as a fraction of the norm of the
    initial vectors."""
    words = [word for word in now if word in before]
    now_WD, then_WD = (torch.stack([one[word] for word in words]) for one in (now, before))
    then_WD = then_WD * (
        then_WD.shape[1] ** -0.5 / then_WD.std()
    )  # the scale at which they were loaded
    return float((now_WD - then_WD).norm() / then_WD.norm())
