"""Search with CUDA graphs, which are captured once and reused for later batches.

A step of a small batch is hundreds of kernels of a few microseconds each, so launching them
dominates its time. A CUDA graph is launched at once. The host rarely synchronises with the device.

`Job.between_steps` is not called here: a graph contains addresses of tables that another search may
replace, and a search with CUDA graphs takes well below a second.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from headway.decode.search.beam_step import Beams, hypotheses
from headway.decode.search.greedy import Paths, TokenCallback
from headway.decode.search.hypothesis import Hypothesis
from headway.decode.search.job import Job
from headway.decode.search.static_search import StaticSearch, StaticShape, width_of
from headway.models.decoder import Decoder
from headway.models.seq2seq import Seq2Seq
from headway.nn.cache import Cache
from headway.nn.positions import extend_positions

SOURCES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""Batch sizes for which graphs are captured; other batches are padded to the next size."""

LENGTHS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
"""Output lengths for which graphs are captured."""

SOURCE_LENGTHS = (16, 32, 64, 128, 256, 512, 768, 1024, 1536, 2048, 3072, 4096)
"""Source lengths for which graphs are captured. Steps are finer, because padding long sources costs
more."""

FEWEST = 8
"""Smallest batch to which remaining sources are moved; smaller ones take as long."""

LOOK_EVERY = 8
"""Steps between checks for finished sources."""

WARM_UPS = 2
"""Calls before capturing a graph, in which libraries allocate persistent memory."""


class CudaGraphSearcher:
    """Searches of one model with one set of decoding settings. On a CPU no graphs are used."""

    def __init__(self, model: Seq2Seq | Decoder) -> None:
        self.model = model
        self.front = model.front if isinstance(model, Decoder) else model.source_front
        self.weights: tuple[int, ...] = ()
        """Addresses of the weights, which the graphs contain."""

        self.free = True
        """False while a search runs. Its state is shared, so a search started from its `watch`
        callback must not use CUDA graphs."""

        self.searches: dict[StaticShape, StaticSearch] = {}
        self.graphs: dict[tuple[StaticShape, int], torch.cuda.CUDAGraph] = {}
        self.pool = new_graph_pool()

    def search(
        self,
        sources: Sequence[Any],
        job: Job,
        numbers: Sequence[Sequence[int]] | None = None,
        *,
        prefix: Cache | None = None,
        watch: TokenCallback | None = None,
    ) -> list[list[Hypothesis]]:
        """Decode a batch; `numbers`, `prefix` and `watch` are those of `Searcher`."""
        self.free = False
        try:
            return self._searched(sources, job, numbers, prefix, watch)
        finally:
            self.free = True

    def _searched(
        self,
        sources: Sequence[Any],
        job: Job,
        numbers: Sequence[Sequence[int]] | None,
        prefix: Cache | None,
        watch: TokenCallback | None,
    ) -> list[list[Hypothesis]]:
        shape = StaticShape(
            n_sources=round_up_to_size(SOURCES, len(sources)),
            width=width_of(job),
            source_room=round_up_to_size(SOURCE_LENGTHS, max(map(self.front.rows, sources))),
            room=round_up_to_size(LENGTHS, max(job.limits)),
        )
        extend_positions(self.model, shape.source_room + shape.room)
        held = [*self.model.parameters(), *self.model.buffers()]
        weights = tuple(weight.data_ptr() for weight in held)
        if weights != self.weights:  # the weights moved, so all graphs are invalid
            self.weights = weights
            self.searches.clear()
            self.graphs.clear()
            self.pool = new_graph_pool()  # a pool without graphs cannot be reused
        search = self._search(shape, job)
        search.begin(sources, job.limits, numbers, prefix)
        going = list(range(len(sources)))
        results: dict[int, list[Hypothesis]] = {}
        last, seen = max(job.limits), 0
        for n in range(1, last + 1):
            self._advance(search, round_up_to_size(LENGTHS, n))
            if n % LOOK_EVERY and n != last:
                continue
            if watch is not None:
                notify_callback(search, going, seen, watch)
                seen = n
            done = search.state.done_B.tolist()
            staying = [place for place in range(len(going)) if not done[place]]
            if not staying or n == last:
                break
            smaller = round_up_to_size(SOURCES, max(len(staying), FEWEST))
            if 2 * smaller <= search.shape.n_sources:
                results |= _taken(search, going, job)
                going = [going[place] for place in staying]
                search = self._moved(search, smaller, staying, job)
        results |= _taken(search, going, job)
        return [results[number] for number in range(len(sources))]

    def _search(self, shape: StaticShape, job: Job) -> StaticSearch:
        if shape not in self.searches:
            self.searches[shape] = StaticSearch(self.model, shape, job)
        return self.searches[shape]

    def _moved(
        self, search: StaticSearch, n_sources: int, going: Sequence[int], job: Job
    ) -> StaticSearch:
        """Continue the remaining sources in a search with a smaller batch."""
        old = search.shape
        smaller = self._search(StaticShape(n_sources, old.width, old.source_room, old.room), job)
        smaller.take_over(search, going)
        return smaller

    def _advance(self, search: StaticSearch, used: int) -> None:
        used = min(used, search.shape.room)
        if search.device.type != "cuda":
            search.advance(used)
            return
        key = (search.shape, used)
        if key not in self.graphs:
            places = [*search.changing(), search.cache.at_1]
            self.graphs[key] = capture_graph(lambda: search.advance(used), places, self.pool)
        self.graphs[key].replay()


def capture_graph(
    advance: Callable[[], None], places: Sequence[Tensor], pool: Any
) -> torch.cuda.CUDAGraph:
    """Capture the next step as a CUDA graph. The values in `places` are restored after warm-up."""
    before = [place.clone() for place in places]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UPS):
            advance()
            for place, value in zip(places, before, strict=True):
                place.copy_(value)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        advance()
    return graph


def new_graph_pool() -> Any:
    """Create a memory pool that the graphs share."""
    return torch.cuda.graph_pool_handle() if torch.cuda.is_available() else None


def notify_callback(
    search: StaticSearch, numbers: Sequence[int], seen: int, watch: TokenCallback
) -> None:
    """Call `watch` for the tokens after `seen`; a hypothesis that it stops is truncated and
    done."""
    state = search.state
    assert isinstance(state, Paths), "a beam search cannot be watched: its outputs may change"
    tokens, lengths = state.tokens_BWT[:, :, seen:].tolist(), state.length_BW.tolist()
    for place, number in enumerate(numbers):
        for w, length in enumerate(lengths[place]):
            new = tokens[place][w][: max(0, length - seen)]
            ended = next((i for i, token in enumerate(new) if watch(number, w, token)), None)
            if ended is not None:
                state.length_BW[place, w] = seen + ended + 1
                state.done_BW[place, w] = True


def _taken(search: StaticSearch, numbers: Sequence[int], job: Job) -> dict[int, list[Hypothesis]]:
    """Current outputs; those of sources that continue are replaced later."""
    state = search.state.cpu()
    if isinstance(state, Beams):
        n_best, penalty = job.settings.n_best, job.penalty
        return {
            number: hypotheses(state, place, n_best, penalty)
            for place, number in enumerate(numbers)
        }
    return {number: state.hypotheses(place, job) for place, number in enumerate(numbers)}


def round_up_to_size(sizes: Sequence[int], wanted: int) -> int:
    """Return the smallest sufficient size, or `wanted` itself if it exceeds all of them."""
    place = bisect_left(sizes, wanted)
    return sizes[place] if place < len(sizes) else wanted
