"""Search with CUDA graphs, which are captured once and reused for later batches.

A decoding step of a small batch consists of hundreds of kernels that take a few microseconds each,
so launching them dominates the time. A CUDA graph launches all of them at once, but needs tensors
with fixed shapes and addresses. `StaticSearch` is a search on fixed tensors, and `StaticModel` is
the model in such a search. The code works without CUDA graphs, too, on any device.

No step synchronizes with the device, so the step number, the finished sources and the parents of
hypotheses are tensors. `Job.between_steps` is not called here, because a graph contains addresses
of tables that another search may replace. A search with CUDA graphs takes well below a second.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from headway.decode.logits_processors import always_banned
from headway.decode.search.beam import BeamCandidates, Beams, grow, hypotheses
from headway.decode.search.greedy import Paths, TokenCallback
from headway.decode.search.job import Hypothesis, Job, top_k
from headway.decode.search.sample import make_random_numbers, make_token_drawer
from headway.decode.steps import encode_sources, prefill
from headway.models.decoder import Decoder
from headway.models.parts.output_heads import LMHead
from headway.models.seq2seq import Seq2Seq
from headway.nn.attention.attention import Memory
from headway.nn.cache import Cache
from headway.nn.layout import Layout, Tree
from headway.nn.positions import extend_positions, max_positions

SOURCES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""Batch sizes for which graphs are captured. Other batches are padded to the next larger size."""

LENGTHS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
"""Output lengths for which graphs are captured."""

SOURCE_LENGTHS = (16, 32, 64, 128, 256, 512, 768, 1024, 1536, 2048, 3072, 4096)
"""Source lengths for which graphs are captured. The sizes are closer together than those of
outputs, because padding long sources costs more."""

FEWEST = 8
"""Smallest batch size to which a search shrinks as sources finish. Steps of smaller batches are not
faster."""

LOOK_EVERY = 8
"""Number of steps between checks for finished sources. Each check waits for the device."""

WARM_UPS = 2
"""Number of calls before a graph is captured, in which libraries allocate persistent memory."""


class CudaGraphSearcher:
    """Searcher for one model and one set of decoding settings, which uses CUDA graphs on a GPU."""

    def __init__(self, model: Seq2Seq | Decoder) -> None:
        self.model = model
        self.front = model.front if isinstance(model, Decoder) else model.source_front
        self.weights: tuple[int, ...] = ()
        """Memory addresses of the weights. Graphs contain these addresses, so a change invalidates
        all graphs."""

        self.free = True
        """Whether no search is running. All searches share their state, so a search started by a
        `watch` callback must not use CUDA graphs."""

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
        """Decode a batch. `numbers`, `prefix` and `watch` have the same meaning as in
        `Searcher.__call__`."""
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
        """Continue the unfinished sources in a search with a smaller batch size."""
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
    """Capture the next step as a CUDA graph.

    The warm-up calls change the tensors in `places`, so their values are restored afterwards.
    """
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
    """Create a memory pool that all graphs share."""
    return torch.cuda.graph_pool_handle() if torch.cuda.is_available() else None


def notify_callback(
    search: StaticSearch, numbers: Sequence[int], seen: int, watch: TokenCallback
) -> None:
    """Call `watch` for each token after the first `seen` ones. A hypothesis that it stops is
    truncated and marked as done."""
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
    """Return the current outputs of all sources by index. Outputs of unfinished sources are
    replaced later."""
    state = search.state.cpu()
    if isinstance(state, Beams):
        n_best, penalty = job.settings.n_best, job.penalty
        return {
            number: hypotheses(state, place, n_best, penalty)
            for place, number in enumerate(numbers)
        }
    return {number: state.hypotheses(place, job) for place, number in enumerate(numbers)}


def round_up_to_size(sizes: Sequence[int], wanted: int) -> int:
    """Return the smallest size that is at least `wanted`, or `wanted` itself if all sizes are
    smaller."""
    place = bisect_left(sizes, wanted)
    return sizes[place] if place < len(sizes) else wanted


class StaticCache(Cache):
    """KV cache of fixed size for CUDA graphs. Tensors determine where new keys are written and
    which keys attention sees."""

    def __init__(self, n_layers: int, n_sources: int, capacity: int, device: torch.device) -> None:
        super().__init__(n_layers, n_sources, capacity)
        self.at_1 = torch.zeros(1, dtype=torch.long, device=device)
        self.rows_W = self.at_1
        """Cache positions at which the next keys of each source are written."""

        self.used = self.capacity
        """Number of cache positions that attention reads, equal for all sources."""

        unknown = Layout.in_cache([0] * self.n_rows, self.capacity, device)
        self.keys = replace(unknown, lengths=None)

    def keys_with(self, new: Layout) -> Layout:
        return replace(self.keys, longest=self.used, tree=self.tree)

    def write(self, grid_BSGK: Tensor, fresh_NGK: Tensor, new: Layout) -> None:
        grid_BSGK.index_copy_(1, self.rows_W, fresh_NGK.unflatten(0, (self.n_rows, -1)))

    def advance(self, new: Layout) -> None:
        pass

    def take_over(self, other: StaticCache, index_B: Tensor) -> None:
        """Copy the cache entries of some sources from another cache."""
        self.at_1.copy_(other.at_1)
        for mine, theirs in zip(self.layers, other.layers, strict=True):
            for name, grid_BS in theirs.cells.items():
                mine.cells[name] = _into(mine.cells.get(name), grid_BS[index_B])
            if theirs.memory is not None:
                old = mine.memory or (None, None)
                fresh = [
                    x.unflatten(0, (other.n_rows, -1))[index_B].flatten(0, 1) for x in theirs.memory
                ]
                mine.memory = (_into(old[0], fresh[0]), _into(old[1], fresh[1]))


class StaticSearch:
    """Greedy search, sampling or beam search on tensors of fixed shape, for CUDA graphs.

    Call `begin`, then `advance` until all sources are done.
    """

    def __init__(self, model: Seq2Seq | Decoder, shape: StaticShape, job: Job) -> None:
        self.model, self.shape, self.job = model, shape, job
        self.device = next(model.parameters()).device
        n_sources, width = shape.n_sources, shape.width
        self.body = static_model_of(model, shape, job.specials.bos, self.device)
        self.front = self.body.front
        size = self.front + shape.room * width
        self.cache = StaticCache(len(self.body.blocks), n_sources, size, self.device)
        self.tokens_BW = torch.zeros(n_sources, width, dtype=torch.long, device=self.device)
        self.may_BWS = torch.zeros(n_sources, width, size, dtype=torch.bool, device=self.device)
        self.offset_B = torch.zeros(n_sources, dtype=torch.long, device=self.device)
        self.position_B1S = torch.zeros(n_sources, 1, size, dtype=torch.long, device=self.device)
        self.own_WW = torch.eye(width, dtype=torch.bool, device=self.device)
        self.new_W = torch.arange(width, device=self.device)
        self.draw = make_token_drawer(job.settings) if job.settings.sample else None
        self.chances_BWT = torch.zeros(
            (n_sources, width, shape.room if self.draw else 0),
            dtype=torch.double, device=self.device,
        )  # fmt: skip
        self.penalty = job.settings.repetition_penalty
        head: LMHead = model.head  # type: ignore[assignment]
        n_words = 0 if self.penalty == 1.0 else head.linear.out_features
        self.used_BWV = torch.zeros(
            n_sources, width, n_words, dtype=torch.bool, device=self.device
        )  # tokens in each hypothesis, for the repetition penalty
        self.never_first_K = torch.tensor(
            job.specials.never_first, dtype=torch.long, device=self.device
        )
        limit_B = torch.ones(n_sources, dtype=torch.long, device=self.device)
        self.state: Beams | Paths = self._start(limit_B)
        self.base = Layout.of([width] * n_sources, self.device)

    def _start(self, limit_B: Tensor) -> Beams | Paths:
        walks = self.draw is not None or self.shape.width == 1
        start = Paths.start if walks else Beams.start
        return start(limit_B, self.shape.width, self.shape.room)

    def begin(
        self,
        sources: Sequence[Any],
        limits: Sequence[int],
        numbers: Sequence[Sequence[int]] | None = None,
        prefix: Cache | None = None,
    ) -> None:
        """Load a batch that fits the shape of this search.

        `numbers`: keys of the sources for random draws. `prefix`: cache of a prefix that all
        prompts share.
        """
        lack = self.shape.n_sources - len(sources)
        start = self.body.load(sources, self.cache, prefix)
        self.tokens_BW.copy_(torch.tensor(start.tokens)[:, None].expand_as(self.tokens_BW))
        self.offset_B.copy_(torch.tensor(start.offsets))
        cell_S = torch.arange(self.cache.capacity, device=self.device)
        step_S = (cell_S - self.front).div(self.shape.width, rounding_mode="floor")
        before_BS = cell_S < self.offset_B[:, None].clamp(max=self.front)
        self.may_BWS.copy_(before_BS[:, None].expand_as(self.may_BWS))
        position_BS = torch.where(cell_S < self.front, cell_S, self.offset_B[:, None] + step_S)
        self.position_B1S.copy_(position_BS[:, None])
        self.used_BWV.zero_()
        if self.penalty != 1.0 and self.job.prompts is not None:
            for place, prompt in enumerate(sources):
                self.used_BWV[place, :, torch.tensor(prompt, device=self.device)] = True
        if self.draw is not None and numbers is not None:
            drawn_NWT = make_random_numbers(self.job.settings, numbers, self.shape.room)
            self.chances_BWT[: len(sources)] = drawn_NWT.to(self.device)
        limit_B = torch.tensor([*limits, *[1] * lack], device=self.device)
        copy_state(self.state, self._start(limit_B))
        # Slots without a source are done from the start.
        self.done[len(sources) :] = True
        self.cache.at_1.zero_()

    def advance(self, used: int) -> None:
        """Run one step. `used`: upper bound on the number of output tokens per hypothesis after
        this step."""
        state, at_1, eos = self.state, self.cache.at_1, self.job.specials.eos
        scores_RV = self._scores(used)
        self._rules(scores_RV)
        if isinstance(state, Paths):
            log_prob_BW, token_BW = self._picked(scores_RV)
            self.tokens_BW.copy_(token_BW)
            copy_state(state, state.after(token_BW, log_prob_BW, at_1, eos))
        else:
            candidates = top_k(scores_RV, min(2 * self.shape.width, scores_RV.shape[1]))
            values, tokens = (x.unflatten(0, self.tokens_BW.shape) for x in candidates)
            found = BeamCandidates.of(state.log_prob_BW, values, tokens, None)
            grown, parents_BW = grow(
                state, found, at_1, eos=eos, penalty=self.job.penalty,
                stop_at=self.job.settings.n_best,
            )  # fmt: skip
            self.tokens_BW.copy_(grown.tokens_BWT.index_select(2, at_1).squeeze(2))
            copy_state(state, grown)
            past_BWS = self.may_BWS[:, :, self.front : self._cells(used)]
            for past in (past_BWS, self.used_BWV):
                past.copy_(past.gather(1, parents_BW[:, :, None].expand_as(past)))
        if self.penalty != 1.0:
            self.used_BWV.scatter_(2, self.tokens_BW[:, :, None], True)
        at_1 += 1

    def _picked(self, scores_RV: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-probability and the token that are chosen for each hypothesis."""
        if self.draw is None:
            log_prob_R1, token_R1 = top_k(scores_RV, 1)
        else:
            chance_BW = self.chances_BWT.index_select(2, self.cache.at_1).squeeze(2)
            token_R1 = self.draw(scores_RV, chance_BW.flatten())[:, None]
            log_prob_R1 = scores_RV.gather(1, token_R1)
        return log_prob_R1.view_as(self.tokens_BW), token_R1.view_as(self.tokens_BW)

    def _cells(self, used: int) -> int:
        return self.front + used * self.shape.width

    def _scores(self, used: int) -> Tensor:
        width, at_1, cells = self.shape.width, self.cache.at_1, self._cells(used)
        by_step_BWTW = self.may_BWS[:, :, self.front :].unflatten(2, (-1, width))
        own_BW1W = self.own_WW[:, None].expand(len(by_step_BWTW), -1, -1, -1)
        by_step_BWTW.index_copy_(2, at_1, own_BW1W.contiguous())
        self.cache.used = cells
        self.cache.rows_W = at_1 * width + (self.front + self.new_W)
        self.cache.tree = Tree(self.may_BWS[:, :, :cells], self.position_B1S[:, :, :cells])
        position_B, reach = self.offset_B + at_1, self.front + used
        if self.body.reach is not None:
            # Finished sources are still computed, so their positions must stay within the range of
            # the model.
            position_B, reach = position_B.clamp(max=self.body.reach - 1), self.body.reach
        position_N = position_B[:, None].expand_as(self.tokens_BW).flatten()
        layout = replace(self.base, positions_N=position_N, reach=reach, memo={})
        x_ND = self.body.hidden_states(self.tokens_BW.flatten(), layout, self.cache)
        return self.model.scores(x_ND).float().log_softmax(-1)

    def _rules(self, scores_RV: Tensor) -> None:
        settings, specials = self.job.settings, self.job.specials
        for token in always_banned(settings, specials):
            scores_RV[:, token] = -torch.inf
        if settings.min_len:
            too_early_1 = self.cache.at_1 < settings.min_len
            scores_RV[:, specials.eos].masked_fill_(too_early_1, -torch.inf)
        if self.penalty != 1.0:
            used_RV = self.used_BWV.flatten(0, 1)
            scores_RV.copy_(torch.where(used_RV, scores_RV * self.penalty, scores_RV))
        begin = begin_of(self.job)
        if len(self.never_first_K):
            first_1 = self.cache.at_1 == (0 if begin is None else 1)
            banned_RK = scores_RV.index_select(1, self.never_first_K)
            banned_RK = banned_RK.masked_fill(first_1, -torch.inf)
            scores_RV.index_copy_(1, self.never_first_K, banned_RK)
        if begin is not None:  # this token is fixed, so its probability is 1
            begins_1 = self.cache.at_1 == 0
            scores_RV.masked_fill_(begins_1, -torch.inf)
            scores_RV[:, begin].masked_fill_(begins_1, 0.0)

    def changing(self) -> list[Tensor]:
        """Return the tensors with one row per source that a step changes.

        Keys and values are excluded, because steps only append to them.
        """
        state = [getattr(self.state, field.name) for field in fields(self.state)]
        return [*state, self.tokens_BW, self.may_BWS, self.used_BWV]

    def _lasting(self) -> list[Tensor]:
        return [self.offset_B, self.position_B1S, self.chances_BWT, *self.body.per_source()]

    def take_over(self, other: StaticSearch, places: Sequence[int]) -> None:
        """Continue some sources of another search, whose shape may differ only in the number of
        sources."""
        lack = self.shape.n_sources - len(places)
        index_B = torch.tensor([*places, *[places[0]] * lack], device=self.device)
        ours = self.changing() + self._lasting()
        for mine, theirs in zip(ours, other.changing() + other._lasting(), strict=True):
            mine.copy_(theirs[index_B])
        self.done[len(places) :] = True
        self.cache.take_over(other.cache, index_B)

    @property
    def done(self) -> Tensor:
        return self.state.done_BW if isinstance(self.state, Paths) else self.state.done_B


def supports_static_search(job: Job) -> bool:
    """Return whether a search of one model with fixed shapes supports this job."""
    settings = job.settings
    plain = settings.sample or (settings.groups == 1 and not settings.coverage)
    begin = begin_of(job)
    asked = any(
        wish.required or wish.banned or wish.prefix != (() if begin is None else (begin,))
        for wish in job.constraints
    )
    return plain and not settings.no_repeat_ngram and not asked


def begin_of(job: Job) -> int | None:
    """Return the token that starts every output. Return None for prompts, which already contain
    it."""
    return job.specials.target_begin if job.prompts is None else None


def width_of(job: Job) -> int:
    """Return the number of hypotheses per source."""
    return job.settings.n_best if job.settings.sample else job.settings.beam


def _into(old: Tensor | None, new: Tensor) -> Tensor:
    """Copy new values into an existing tensor, because CUDA graphs contain its address. If there is
    none, return a copy of the new values."""
    return new.clone() if old is None else old.copy_(new)


def copy_state(old: Beams | Paths, new: Beams | Paths) -> None:
    for field in fields(old):
        before, after = getattr(old, field.name), getattr(new, field.name)
        if before is not after:
            before.copy_(after)


@dataclass(frozen=True)
class StaticShape:
    """Sizes of all tensors in the CUDA graph of a decoding step."""

    n_sources: int
    width: int
    source_room: int
    """Maximum length of a source in encoder positions, or of a prompt in tokens."""

    room: int
    """Maximum number of tokens of an output, including the end token."""


@dataclass(frozen=True)
class FirstTokens:
    """First token that the search passes to the decoder for each source, with its position."""

    tokens: list[int]
    """Begin token or, for a prompt, its last token."""

    offsets: list[int]
    """Position of this token for each source, which is the number of tokens already processed."""


class StaticModel(Protocol):
    blocks: list[Any]
    front: int
    """Number of cache entries before those of the outputs."""

    reach: int | None
    """Maximum number of positions; None if there is no limit."""

    def load(self, sources: Sequence[Any], cache: Cache, prefix: Cache | None) -> FirstTokens:
        """Process a batch of sources or prompts and fill the cache. Return the first token that the
        search must process for each source."""

    def hidden_states(self, tokens_N: Tensor, layout: Layout, cache: Cache) -> Tensor: ...

    def per_source(self) -> list[Tensor]:
        """Return the tensors with one row per source, except those of the cache."""


class StaticSeq2Seq:
    """Encoder-decoder in a search with fixed shapes. It encodes the sources and caches their keys
    and values for cross-attention."""

    def __init__(self, model: Seq2Seq, shape: StaticShape, bos: int, device: torch.device) -> None:
        self.model, self.shape, self.bos, self.device = model, shape, bos, device
        self.blocks = list(model.decoder.blocks)  # type: ignore[arg-type]
        self.front, self.reach = 0, max_positions(model.target_front)
        n_sources, room = shape.n_sources, shape.source_room
        self.sees_BWS = torch.zeros(n_sources, shape.width, room, dtype=torch.bool, device=device)
        tree = Tree(self.sees_BWS, torch.zeros(room, device=device))
        in_memory = Layout.in_cache([room] * n_sources, room, device, tree)
        self.memory = Memory(torch.empty(0, device=device), replace(in_memory, lengths=None))

    def load(self, sources: Sequence[Any], cache: Cache, prefix: Cache | None) -> FirstTokens:
        room, n_sources = self.shape.source_room, self.shape.n_sources
        memory = encode_sources(self.model, sources, self.device, room)
        lack = n_sources - len(sources)
        lengths = memory.layout.known_lengths()
        lengths_B = torch.tensor([*lengths, *[1] * lack], device=self.device)
        cell_S = torch.arange(room, device=self.device)
        self.sees_BWS.copy_((cell_S < lengths_B[:, None])[:, None].expand_as(self.sees_BWS))
        for layer, block in zip(cache.layers, self.blocks, strict=True):
            block.begin(memory, layer)
            if block.cross is None:
                continue
            fresh = block.cross.keys_of(memory)
            if layer.memory is None:
                k_MGK, v_MGK = (x.new_zeros(n_sources * room, *x.shape[1:]) for x in fresh)
                layer.memory = (k_MGK, v_MGK)
            for old, new in zip(layer.memory, fresh, strict=True):
                old[: len(new)] = new
        return FirstTokens([self.bos] * n_sources, [0] * n_sources)

    def hidden_states(self, tokens_N: Tensor, layout: Layout, cache: Cache) -> Tensor:
        return self.model.decode(tokens_N, layout, self.memory, cache)

    def per_source(self) -> list[Tensor]:
        return [self.sees_BWS]


class StaticDecoder:
    """Language model in a search with fixed shapes.

    The keys of the prompts come first in the cache. The last token of a prompt is the first token
    that the search processes.
    """

    def __init__(self, model: Decoder, shape: StaticShape, device: torch.device) -> None:
        self.model, self.shape, self.device = model, shape, device
        self.blocks = list(model.stack.blocks)  # type: ignore[arg-type]
        self.front, self.reach = shape.source_room, max_positions(model.front)

    def load(
        self, sources: Sequence[Sequence[int]], cache: Cache, prefix: Cache | None
    ) -> FirstTokens:
        lack = self.shape.n_sources - len(sources)
        lengths = [len(source) - 1 for source in sources]
        longest = max(lengths)
        if prefix is None:
            prompts = Cache(len(self.blocks), len(sources), max(longest, 1))
        else:
            prompts = prefix.repeated(len(sources), longest)
        prefill(self.model, [source[:-1] for source in sources], prompts, self.device)
        for mine, read in zip(cache.layers, prompts.layers, strict=True):
            for name, fresh_BS in read.cells.items():
                begins = fresh_BS.shape[1] - prompts.capacity
                if name not in mine.cells:
                    size = (cache.n_rows, cache.capacity + begins, *fresh_BS.shape[2:])
                    mine.cells[name] = fresh_BS.new_zeros(size)
                mine.cells[name][: len(sources), : longest + begins] = fresh_BS[
                    :, : longest + begins
                ]
        return FirstTokens(
            [*(source[-1] for source in sources), *[0] * lack], [*lengths, *[0] * lack]
        )

    def hidden_states(self, tokens_N: Tensor, layout: Layout, cache: Cache) -> Tensor:
        return self.model(tokens_N, layout, cache)

    def per_source(self) -> list[Tensor]:
        return []


def static_model_of(
    model: Seq2Seq | Decoder, shape: StaticShape, bos: int, device: torch.device
) -> StaticModel:
    if isinstance(model, Decoder):
        return StaticDecoder(model, shape, device)
    return StaticSeq2Seq(model, shape, bos, device)
