"""Settings of dictionary learning, and a random sample of hidden states of bounded size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from headway.errors import ConfigError
from headway.inside.capture.examples import Passage
from headway.inside.capture.states import Site, batches, sites_of, states_of, stream_of
from headway.specs.values import check_values
from headway.tasks.loaded_run import LoadedRun

TOKENS_PER_FEATURE = 8
"""Minimum required number of corpus tokens per feature, a heuristic: with fewer, a feature has
hardly any data to be learned from."""


@dataclass(frozen=True, kw_only=True)
class DictionaryLearning:
    method: Literal["sparse", "topk"] = "sparse"
    """Method: `sparse` is the sparse coding of Yun et al. 2021, `topk` a TopK sparse
    autoencoder."""

    n: int = 512
    """Number of features."""

    k: float = 16.0
    """Number of active features per state: exactly `k` for topk; for sparse the desired average,
    unless `l1` is given."""

    l1: float | None = None
    """Weight of the L1 penalty of sparse coding, for states with a mean norm of one. None: adapted
    to `k`."""

    layers: str = "all"
    """Layers to learn from: layer numbers (0 is the embedding) and stack names, separated by
    commas, or `all` or `last`."""

    tokens: int = 60_000
    """Maximum number of corpus tokens that are read."""

    rows: int = 60_000
    """Maximum number of states to learn from, which are a random sample over layers and tokens."""

    browse: int | None = None
    """Number of tokens searched for example contexts of each feature. None: 12,000 (sparse) or
    40,000 (topk)."""

    steps: int | None = None
    """Number of learning steps. None: 400 (sparse) or 2,000 (topk)."""

    minutes: float | None = None
    """Time limit for learning in minutes; None: no limit. With a limit, the result depends on the
    speed of the machine."""

    seed: int = 1

    def __post_init__(self) -> None:
        check_values(self)
        for name in ("n", "rows", "tokens"):
            if getattr(self, name) < 2:
                raise ConfigError(f"{name}={getattr(self, name)} must be at least 2.")
        if not 1 <= self.k <= self.n:
            raise ConfigError(f"k={self.k:g} must be between 1 and n={self.n}.")
        if self.method == "topk" and (self.l1 is not None or self.k != int(self.k)):
            raise ConfigError(
                f"method=topk needs an integer k and does not accept l1, but k={self.k:g} and "
                f"l1={self.l1}."
            )
        for name in ("l1", "minutes", "steps", "browse"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ConfigError(f"{name}={value:g} must be positive.")

    @property
    def n_steps(self) -> int:
        return self.steps or {"sparse": 400, "topk": 2000}[self.method]

    @property
    def n_browse(self) -> int:
        return self.browse or {"sparse": 12_000, "topk": 40_000}[self.method]

    @property
    def needed(self) -> int:
        """Minimum number of corpus tokens for this number of features."""
        return TOKENS_PER_FEATURE * self.n


def chosen_sites(run: LoadedRun, layers: str) -> list[Site]:
    """Return the sites selected by a string such as `all`, `last`, `0,3,5`, `decoder` or
    `decoder,2`."""
    every = sites_of(run.model)
    stacks = list(dict.fromkeys(name for name, _ in every))
    top = {name: max(layer for stack, layer in every if stack == name) for name in stacks}
    names, numbers = set[str](), set[int]()
    found = [] if layers == "last" else every
    for word in [] if layers in ("all", "last") else layers.split(","):
        if word.strip() in stacks:
            names.add(word.strip())
        elif word.strip().isdecimal() and int(word) <= max(top.values()):
            numbers.add(int(word))
        else:
            raise ConfigError(
                f"layers={layers!r}: this model has no {word.strip()!r}. Give stacks "
                f"({', '.join(stacks)}), layers from 0 to {max(top.values())} (0: the embedding), "
                "or all."
            )
    if layers == "last":
        found = [(name, layer) for name, layer in every if layer == top[name]]
    return [
        site
        for site in found
        if (not names or site[0] in names) and (not numbers or site[1] in numbers)
    ]


class Reservoir:
    """Reservoir sampling: a uniform random sample of vectors from a stream of unknown length."""

    def __init__(self, size: int, seed: int) -> None:
        self.size, self.seen = size, 0
        self.random = torch.Generator().manual_seed(seed)
        self.rows_RD = torch.zeros(0)
        self.site_R = torch.zeros(0, dtype=torch.long)

    def add(self, x_ND: Tensor, site: int) -> None:
        x_ND = x_ND.float().cpu()
        if not len(x_ND):
            return
        if not len(self.rows_RD):
            self.rows_RD = torch.zeros(self.size, x_ND.shape[1])
            self.site_R = torch.zeros(self.size, dtype=torch.long)
        # Vector number t replaces a random one of the first t vectors, if that one is in the
        # sample.
        number_N = self.seen + torch.arange(len(x_ND))
        drawn_N = torch.rand(len(x_ND), generator=self.random, dtype=torch.float64)
        place_N = (drawn_N * (number_N + 1)).long()
        place_N = torch.where(number_N < self.size, number_N, place_N)
        kept_N = place_N < self.size
        rows = torch.nonzero(kept_N).flatten().tolist()
        for row, place in zip(rows, place_N[kept_N].tolist(), strict=True):
            self.rows_RD[place] = x_ND[row]
            self.site_R[place] = site
        self.seen += len(x_ND)

    def sample(self) -> tuple[Tensor, Tensor]:
        n = min(self.seen, self.size)
        return self.rows_RD[:n], self.site_R[:n]


@torch.no_grad()
def sample_states(
    run: LoadedRun, texts: Sequence[Passage], sites: Sequence[Site], learning: DictionaryLearning
) -> tuple[Tensor, Tensor]:
    """Return a sample of states of ordinary tokens at these sites, and the index of each state's
    site."""
    reservoir = Reservoir(learning.rows, learning.seed)
    for batch in batches(run, texts):
        states = states_of(run.model, batch)
        for number, site in enumerate(sites):
            stream = stream_of(run.model, site)
            words_N = batch.ordinary(run, stream)
            reservoir.add(states[site][words_N], number)
    return reservoir.sample()
