"""Dictionary of features (transformer factors), which are directions whose sparse sums approximate
the states of all layers.

The states of each layer are centred and scaled to a mean norm of one, with statistics of that
layer. One dictionary can therefore serve all layers, and no layer dominates.
"""

from __future__ import annotations

import copy
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from headway.errors import DataError, FolderError
from headway.inside.capture.corpus import Corpus
from headway.inside.capture.examples import Passage, passages
from headway.inside.capture.states import Site
from headway.inside.measure.features.learn import (
    TOKENS_PER_FEATURE,
    DictionaryLearning,
    chosen_sites,
    sample_states,
)
from headway.inside.measure.features.sparse_coders import Coder, SparseCoder, TopKCoder, fit_coder
from headway.settings.load import from_dict
from headway.storage import replace_file, replace_text
from headway.tasks.loaded_run import LoadedRun

TENSORS, FACTS = "factors.safetensors", "factors.json"
VERSION = 1
"""Version of the file format."""

HELD_OUT = 10
"""Distance between held-out passages: every tenth passage is used for measurements, and not for
learning."""

Note = Callable[[str], None]


@dataclass(frozen=True)
class FeatureDictionary:
    settings: DictionaryLearning
    sites: tuple[Site, ...]
    """Sites (stack and layer) from whose states the features were learned. Profiles have one number
    per site."""

    coder: Coder
    mean_SD: Tensor
    scale_S: Tensor
    figures: dict[str, Any] = field(default_factory=dict)
    """Measurements on held-out text: explained variance, active features per token, dead features
    and recovered loss."""

    entries: tuple[dict[str, Any], ...] = ()
    """Browsable data of each feature, made by `browse.py`; empty before `browse`."""

    run: dict[str, Any] = field(default_factory=dict)
    """Facts that identify the model in which the features were learned."""

    @property
    def atoms_AD(self) -> Tensor:
        return self.coder.atoms_AD.detach()

    @property
    def n(self) -> int:
        return len(self.coder.atoms_AD)

    def codes(self, x_ND: Tensor, site: Site) -> Tensor:
        """Return the activations of all features for states of one site."""
        s = self.sites.index(site)
        return self.coder.codes((x_ND.float() - self.mean_SD[s]) / self.scale_S[s])

    def reconstruct(self, code_NA: Tensor, site: Site) -> Tensor:
        s = self.sites.index(site)
        return self.coder.reconstruct(code_NA) * self.scale_S[s] + self.mean_SD[s]

    def contribution(self, factor: int, code_N: Tensor, site: Site) -> Tensor:
        """Return the vectors that a feature with activations `code_N` adds to the states of a
        site."""
        s = self.sites.index(site)
        return code_N[:, None] * self.atoms_AD[factor] * self.scale_S[s]

    def to_cpu(self) -> FeatureDictionary:
        mean_SD, scale_S = self.mean_SD.cpu(), self.scale_S.cpu()
        return replace(self, coder=self.coder.to("cpu"), mean_SD=mean_SD, scale_S=scale_S)

    def check_fits(self, run: LoadedRun) -> None:
        if self.run != identity(run):
            raise FolderError(
                f"these factors were learned from another model ({self.run.get('name')}: "
                f"{self.run.get('task')}, width {self.run.get('d_model')}), not from "
                f"{run.folder.name}. Learn new ones: headway factors {run.folder.name} FILES"
            )

    def most_effective(self, n: int) -> list[int]:
        """Return the indices of the features with the largest effect on the output.

        They alternate between layers: first the most effective feature of each layer, then the
        second of each layer, and so on.
        """
        strong = [a for a, entry in enumerate(self.entries) if entry["effect"] is not None]
        strong.sort(key=lambda a: -self.entries[a]["effect"]["kl"])
        seen: Counter[int] = Counter()
        ranked = []
        for factor in strong:
            site = self.entries[factor]["site"]
            seen[site] += 1
            ranked.append((seen[site], site, factor))
        return [factor for _, _, factor in sorted(ranked)[:n]]

    def save(self, folder: Path) -> None:
        tensors = {"atoms": self.atoms_AD, "mean": self.mean_SD, "scale": self.scale_S}
        if isinstance(self.coder, TopKCoder):
            tensors |= {"reader": self.coder.reader_AD, "bias": self.coder.bias_A}
        facts = {
            "version": VERSION,
            "run": self.run,
            "settings": asdict(self.settings),
            "l1": getattr(self.coder, "l1", None),
            "sites": [list(site) for site in self.sites],
            "figures": self.figures,
            "factors": list(self.entries),
        }
        plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            replace_file(folder / TENSORS, lambda part: save_file(plain, part))
            (folder / TENSORS).chmod(0o644)
            replace_text(folder / FACTS, json.dumps(facts, ensure_ascii=False) + "\n")
        except OSError as error:
            raise FolderError(f"cannot write factors to {folder}: {error.strerror}.") from error

    @classmethod
    def load(cls, folder: Path) -> FeatureDictionary:
        try:
            facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
            tensors = load_file(folder / TENSORS)
            settings = DictionaryLearning(**facts["settings"])
            coder: Coder
            if settings.method == "sparse":
                coder = SparseCoder(tensors["atoms"], facts["l1"])
            else:
                parts = (tensors[name] for name in ("atoms", "reader", "bias"))
                coder = TopKCoder.of(*parts, k=int(settings.k))
            return cls(
                settings,
                tuple((str(stack), int(layer)) for stack, layer in facts["sites"]),
                coder,
                tensors["mean"],
                tensors["scale"],
                facts["figures"],
                tuple(facts["factors"]),
                facts["run"],
            )
        except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
            raise FolderError(
                f"cannot read factors from {folder} ({type(error).__name__}: {error}). "
                f"`headway factors RUN FILES --out {folder}` writes {TENSORS} and {FACTS}."
            ) from error


def identity(run: LoadedRun) -> dict[str, Any]:
    model = run.shape
    size = sum(parameter.numel() for parameter in run.model.parameters())
    return {
        "name": run.folder.name,
        "task": run.settings.task,
        "d_model": model.d_model,
        "vocab_size": getattr(model, "vocab_size", 0),  # models without words have no vocabulary
        "parameters": size,
    }


def factors(
    run: LoadedRun,
    lines: Corpus | Iterable[str],
    *,
    device: torch.device | str = "cpu",
    note: Note = lambda text: None,
    **settings: Any,
) -> FeatureDictionary:
    """Learn a dictionary of features (factors) of a run's hidden states, and evaluate it.

    Args:
        run: The run, opened by `load`.
        lines: Texts, or a `Corpus`. Every tenth passage is held out for evaluation.
        device: Device for the computation, such as `cuda`.
        note: Function that receives messages about the progress.
        **settings: Fields of `DictionaryLearning`: method, n, k, l1, layers, steps and more.

    Example:
        found = factors(load("stories"), Path("stories.txt").read_text().splitlines(), n=256)
    """
    from headway.inside.measure.features.browse import browse

    learning = from_dict(DictionaryLearning, settings)
    corpus = lines if isinstance(lines, Corpus) else Corpus.of_lines(lines)
    if torch.device(device).type != "cpu":
        run = run.with_model(copy.deepcopy(run.model).to(device))
    sites = chosen_sites(run, learning.layers)
    texts = passages(run, corpus, learning.tokens)
    n_tokens = sum(text.n_tokens for text in texts)
    if n_tokens < learning.needed or len(texts) < HELD_OUT:
        raise _too_small(corpus, n_tokens, len(texts), learning)
    rows = "tokens" if corpus.lines else "positions"
    layers = f"{len(sites)} layers of {_stacks(sites)}"
    note(f"{n_tokens:,} {rows} in {len(texts):,} {corpus.unit}, {layers}")
    test = texts[HELD_OUT - 1 :: HELD_OUT]
    train = [text for number, text in enumerate(texts) if number % HELD_OUT != HELD_OUT - 1]
    found = learn_dictionary(run, train, sites, learning, note)
    return browse(run, found, texts, test, note).to_cpu()


def _too_small(
    corpus: Corpus, n_tokens: int, n_texts: int, learning: DictionaryLearning
) -> DataError:
    fewer = n_tokens // (2 * TOKENS_PER_FEATURE)
    way = f", or use fewer factors: n={fewer}" if fewer >= 8 and n_texts >= HELD_OUT else ""
    rows, unit = ("tokens", "texts") if corpus.lines else ("positions", corpus.unit)
    more = "text" if corpus.lines else unit
    return DataError(
        f"{corpus.name} is too small for {learning.n:,} factors: it has {n_tokens:,} {rows} in "
        f"{n_texts:,} {unit}, but at least {learning.needed:,} {rows} and {HELD_OUT} {unit} are "
        f"needed. Give more {more}{way}."
    )


def learn_dictionary(
    run: LoadedRun,
    texts: Sequence[Passage],
    sites: Sequence[Site],
    learning: DictionaryLearning,
    note: Note = lambda text: None,
) -> FeatureDictionary:
    """Learn the dictionary, without measuring it or collecting browsable data."""
    rows_RD, site_R = sample_states(run, texts, sites, learning)
    mean_SD, scale_S = moments(rows_RD, site_R, len(sites))
    rows_RD.sub_(mean_SD[site_R]).div_(scale_S[site_R, None])
    device = next(run.model.parameters()).device
    note(
        f"learning {learning.n:,} factors from {len(rows_RD):,} states in "
        f"{learning.n_steps:,} steps"
    )
    started = time.monotonic()

    def heard(step: int, coder: Coder, code_NA: Tensor) -> bool:
        if (step + 1) % max(1, learning.n_steps // 5) == 0:
            active = float((code_NA > 0).sum(1).float().mean())
            note(f"step {step + 1:,}: {active:.1f} active factors on average")
        spent = (time.monotonic() - started) / 60
        return learning.minutes is not None and spent > learning.minutes

    def begin(atoms_AD: Tensor) -> Coder:
        if learning.method == "topk":
            return TopKCoder(atoms_AD, int(learning.k))
        return SparseCoder(atoms_AD) if learning.l1 is None else SparseCoder(atoms_AD, learning.l1)

    aim = learning.k if learning.l1 is None else None
    coder = fit_coder(
        rows_RD.to(device),
        begin,
        learning.n,
        k=aim,
        steps=learning.n_steps,
        seed=learning.seed,
        batch=256 if learning.method == "sparse" else 512,
        note=heard,
    )
    return FeatureDictionary(
        learning, tuple(sites), coder, mean_SD.to(device), scale_S.to(device), run=identity(run)
    )


def moments(rows_RD: Tensor, site_R: Tensor, n_sites: int) -> tuple[Tensor, Tensor]:
    """Return the mean state of each site, and the mean norm of its centred states."""
    mean_SD = torch.zeros(n_sites, rows_RD.shape[1])
    scale_S = torch.ones(n_sites)
    for site in range(n_sites):
        own_RD = rows_RD[site_R == site]
        if len(own_RD):
            mean_SD[site] = own_RD.mean(0)
            scale_S[site] = (own_RD - mean_SD[site]).norm(dim=1).mean().clamp(min=1e-6)
    return mean_SD, scale_S


def _stacks(sites: Sequence[Site]) -> str:
    return " and ".join(dict.fromkeys(stack for stack, _ in sites))
