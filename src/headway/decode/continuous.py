"""Continuous batching: prompts join between two decoding steps, and outputs leave as soon as they
are done.

Each step adds one token to every text, however long the other texts are. All texts of a model share
one cache, in which each text has one row. An output depends only on its own prompt, settings and
seed, never on other rows.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headway.decode.logits_processors import SpecialTokens, always_banned
from headway.decode.output import Output
from headway.decode.search.cuda_graphs import (
    LENGTHS,
    SOURCES,
    StaticCache,
    capture_graph,
    new_graph_pool,
    round_up_to_size,
)
from headway.decode.search.greedy import hypothesis, most_likely
from headway.decode.search.job import Hypothesis, Job
from headway.decode.search.sample import make_random_numbers, make_token_drawer
from headway.decode.search.searcher import check_prompted, too_long
from headway.decode.steps import prefill, prefill_prompts
from headway.decode.stream import OnOutputPiece, OutputAssembler
from headway.errors import UserError
from headway.models.decoder import Decoder
from headway.nn.cache import Cache, LayerCache
from headway.nn.eval_mode import evaluating, is_compiled
from headway.nn.layout import Layout, Tree
from headway.nn.positions import extend_positions, max_positions
from headway.settings.decode import DecodeSettings
from headway.tokens.tokenizer import Tokenizer

MOST_ROWS = 64
"""Maximum number of texts in a batch. More texts would slow down every step."""

READ_AT_ONCE = {"cpu": 512, "cuda": 4096}
"""Maximum number of prompt tokens that are processed between two steps, while all running texts
wait. On two cores, 512 tokens take about a second with a model of GPT-2's size."""

SPARED = 4
"""Divisor of the maximum number of rows. The result is the number of rows that stay free for
callers without a running text."""

FIRST_ROOM = 64
"""Initial cache capacity in tokens per text. The capacity doubles when it is exhausted."""


@dataclass(eq=False)
class BatchMember:
    """Prompt in a continuous batch, with the outputs that are generated for it."""

    prompt: list[int]
    settings: DecodeSettings
    job: Job
    assembler: OutputAssembler
    numbers: Sequence[int] = (0,)
    """Keys that, together with the seed, determine the random draws for this prompt."""

    on_piece: OnOutputPiece | None = None
    top: int = 0
    """Number of most likely tokens to record at each step; 0: none."""

    tokens: list[list[int]] = field(default_factory=list)
    log_probs: list[list[float]] = field(default_factory=list)
    top_log_probs: list[list[list[tuple[int, float]]]] = field(default_factory=list)
    """Most likely tokens (id, log-probability), for each output and step."""

    scores_prompt: bool = False
    """Whether to record the log-probabilities of the tokens of the prompt."""

    generates: bool = True
    """Whether to generate text. False: the member is done once its prompt is processed."""

    prompt_log_probs: list[float | None] = field(default_factory=list)
    """Log-probability of each prompt token. None for the first token, which has no context."""

    prompt_top_log_probs: list[list[tuple[int, float]]] = field(default_factory=list)
    """Most likely tokens (id, log-probability) at each prompt position except the first. Empty if
    `top` is 0."""

    owner: object = None
    """Caller that sent the prompt. Callers take turns, so that a caller with many prompts does not
    block others. None: the prompt counts as a caller of its own."""

    cancelled: bool = False
    """Whether the caller cancelled the prompt. Cancelled members are removed at the next step."""

    error: Exception | None = None
    """Error that ended the generation; None if there was none."""

    outputs: list[Output] | None = None
    """Outputs, best first; None until all outputs are done."""

    order: list[int] = field(default_factory=list)
    """Index of each of `outputs` in the order of generation, because `outputs` are sorted by
    score."""

    n_open: int = 0
    random_WT: Tensor | None = None

    @property
    def width(self) -> int:
        return self.settings.width

    @property
    def done(self) -> bool:
        return self.outputs is not None or self.error is not None

    @property
    def limit(self) -> int:
        return self.job.limits[0]

    @property
    def needs_all_states(self) -> bool:
        """Whether the hidden states of all prompt tokens are needed, not only that of the last
        token."""
        return self.scores_prompt or not self.generates

    def record_prompt_scores(self, scores_NV: Tensor) -> None:
        """Record the log-probabilities of prompt tokens.

        `scores_NV`: log-probabilities of the next token after each of the N prompt tokens that were
        processed last.
        """
        if not self.prompt_log_probs:
            self.prompt_log_probs.append(None)
        first = len(self.prompt_log_probs)
        following = self.prompt[first : first + len(scores_NV)]
        if not following:
            return
        scores_NV = scores_NV[: len(following)]
        index_N1 = torch.tensor(following, device=scores_NV.device)[:, None]
        self.prompt_log_probs += scores_NV.gather(1, index_N1).squeeze(1).tolist()
        if self.top:
            values_NK, ids_NK = scores_NV.topk(min(self.top, scores_NV.shape[1]))
            rows = zip(ids_NK.tolist(), values_NK.tolist(), strict=True)
            self.prompt_top_log_probs += [[*zip(ids, values, strict=True)] for ids, values in rows]

    def end_empty(self) -> None:
        """End the member with empty outputs, whose `finished` is False."""
        self.tokens = [[] for _ in range(self.width)]
        self.log_probs = [[] for _ in range(self.width)]
        self.top_log_probs = [[] for _ in range(self.width)]
        self.n_open, self.order = 0, [*range(self.width)]
        empty = Hypothesis([], 0.0, 0.0, [], finished=False)
        [self.outputs] = self.assembler.outputs([[empty] * self.width])

    def begin(self) -> None:
        self.tokens = [[] for _ in range(self.width)]
        self.log_probs = [[] for _ in range(self.width)]
        self.top_log_probs = [[] for _ in range(self.width)]
        self.n_open = self.width
        if self.settings.sample:
            self.random_WT = make_random_numbers(self.settings, [self.numbers], self.limit)[0]

    def append_token(self, w: int, token: int, log_prob: float) -> bool:
        """Append a token to an output. Return whether the output is now finished."""
        self.tokens[w].append(token)
        self.log_probs[w].append(log_prob)
        ended = token == self.job.specials.eos or len(self.tokens[w]) >= self.limit
        if self.assembler.watch is not None and self.assembler.watch(0, w, token):
            ended = True
        if ended:
            self.n_open -= 1
            self.assembler.flush(w)
            if not self.n_open:
                self._finish()
        return ended

    def _finish(self) -> None:
        pairs = zip(self.tokens, self.log_probs, strict=True)
        found: list[Hypothesis] = [hypothesis(ids, values, self.job) for ids, values in pairs]
        self.order = sorted(range(len(found)), key=lambda w: -found[w].score)
        [self.outputs] = self.assembler.outputs([[found[w] for w in self.order]])


@dataclass(eq=False)
class LongPrompt:
    """Long prompt that is processed in chunks, one per step, so that running texts wait only
    briefly."""

    member: BatchMember
    caches: Sequence[Cache]
    """KV cache of each model, filled with the chunks of the prompt processed so far."""


class ContinuousBatch:
    """Batch for continuous batching. Each step adds one token to every text in it. Several models
    form an ensemble."""

    def __init__(
        self,
        models: Sequence[Decoder],
        tokenizer: Tokenizer,
        context: int | None,
        most_rows: int = MOST_ROWS,
        *,
        fixed: bool | None = None,
    ) -> None:
        """Create an empty batch.

        `context`: maximum number of tokens that the models read. `fixed`: whether tensors keep
        their shapes and addresses, as CUDA graphs need; None: only on a GPU.
        """
        self.models, self.tokenizer = models, tokenizer
        ends = [context, *(max_positions(model.front) for model in models)]
        self.context = min((end for end in ends if end is not None), default=None)
        self.most_rows = most_rows
        self.device = next(models[0].parameters()).device
        self.waiting: list[BatchMember] = []
        self.long: LongPrompt | None = None
        self.read_at_once = READ_AT_ONCE.get(self.device.type, READ_AT_ONCE["cpu"])
        self.rows: list[tuple[BatchMember, int]] = []
        """Contents of the cache rows: the member in each row, and the index of its output."""

        counts = any(model.is_counted for model in models)  # n-gram lookups need sizes on the host
        fixed = self.device.type == "cuda" if fixed is None else fixed
        self.fixed = fixed and not counts
        self._make_caches()
        self.compiled = any(map(is_compiled, models))
        self.draws: dict[Hashable, Callable[[Tensor, Tensor], Tensor]] = {}
        self.never: dict[Hashable, Tensor] = {}

    def _make_caches(self) -> None:
        lasting = round_up_to_size(SOURCES, self.most_rows) if self.fixed else 0
        self.caches = [RowCache(len(model.stack.blocks), lasting) for model in self.models]  # type: ignore[arg-type]
        self.steps = [
            StaticRowSteps(model, cache, self.device)
            for model, cache in zip(self.models, self.caches, strict=True)
            if self.fixed
        ]

    def member(
        self,
        prompt: Sequence[int],
        settings: DecodeSettings,
        *,
        end: int | None = None,
        numbers: Sequence[int] = (0,),
        on_piece: OnOutputPiece | None = None,
        top: int = 0,
    ) -> BatchMember:
        """Create a member for a prompt. Raises `UserError` for requests that cannot be answered.

        `end`: token that ends an output, instead of the end-of-text token.
        """
        check_prompted(settings)
        assert settings.walks, "a beam search is not a matter of single steps"
        if self.context is not None and len(prompt) > self.context:
            raise too_long("the prompt", len(prompt), self.context)
        if settings.width > self.most_rows:
            raise UserError(
                f"{settings.width} outputs per prompt exceed the batch size of {self.most_rows}. "
                "Request fewer outputs."
            )
        ids = list(prompt)
        end = self.tokenizer.eos if end is None else end
        job = Job.completing(settings, SpecialTokens.of(self.tokenizer, end), [ids], self.context)
        reading = OutputAssembler(self.tokenizer, settings, [ids], end, None, on_piece)
        return BatchMember(ids, settings, job, reading, tuple(numbers), on_piece, top)

    def join(self, member: BatchMember) -> None:
        self.waiting.append(member)

    @property
    def is_empty(self) -> bool:
        return not self.rows and not self.waiting and self.long is None

    @property
    def members(self) -> list[BatchMember]:
        """Return all running and waiting members."""
        read = [] if self.long is None else [self.long.member]
        return [*dict.fromkeys(member for member, _ in self.rows), *read, *self.waiting]

    def clear(self) -> None:
        """Remove all running and waiting members."""
        self.rows, self.waiting, self.long = [], [], None
        self._make_caches()

    @torch.no_grad()
    def step(self) -> list[BatchMember]:
        """Add one token to each text. Return the members that finished or were cancelled in this
        step."""
        with self._evaluating():
            gone = self._leave()
            vectors = [self._next(), self._read_new(), self._read_long()]
            if self.long is not None and self.long.member.done:
                gone.append(self.long.member)
                self.long = None
            if not self.rows:
                return gone
            return gone + self._grow(self._scores([some for some in vectors if some]))

    def _evaluating(self) -> AbstractContextManager[None]:
        """Return a context manager for evaluation mode. It changes the models only if necessary,
        because checking all modules takes a tenth of the time of a step."""
        if self.compiled or any(model.training for model in self.models):
            return evaluating(self.models)
        return nullcontext()

    def _leave(self) -> list[BatchMember]:
        """Remove cancelled members and return them."""
        gone = [member for member in self.members if member.cancelled]
        if gone:
            self.waiting = [member for member in self.waiting if not member.cancelled]
            if self.long is not None and self.long.member.cancelled:
                self.long = None
            self._drop([row for row, (member, _) in enumerate(self.rows) if member.cancelled])
        return gone

    def _drop(self, rows: Sequence[int]) -> None:
        """Remove cache rows. The last rows are moved into the gaps, because this copies the least
        memory."""
        if not rows:
            return
        out, n = set(rows), len(self.rows) - len(rows)
        kept = list(range(n))
        movers = iter(row for row in range(n, len(self.rows)) if row not in out)
        for row in sorted(out):
            if row < n:
                kept[row] = next(movers)
        self.rows = [self.rows[row] for row in kept]
        for cache in self.caches:
            cache.select(kept)

    def _next(self) -> list[Tensor]:
        """Return the hidden states after the last token of each row, one tensor per model."""
        if not self.rows:
            return []
        last = [member.tokens[w][-1] for member, w in self.rows]
        if self.fixed:
            return [step(last) for step in self.steps]
        tokens_N = torch.tensor(last, device=self.device)
        return [
            model(tokens_N, cache.layout(1, self.device), cache)
            for model, cache in zip(self.models, self.caches, strict=True)
        ]

    def _read_new(self) -> list[Tensor]:
        """Process as many waiting prompts as fit, in one flat batch. Return the hidden states of
        their last tokens, one tensor per model."""
        some = self._admitted()
        if not some:
            return []
        prompts = [member.prompt for member in some]
        found = []
        for model, cache in zip(self.models, self.caches, strict=True):
            read, last_BD = prefill_prompts(model, prompts, 0)
            found.append(self._admit(cache, read, last_BD, some))
        self._begin(some)
        return found

    def _read_long(self) -> list[Tensor]:
        """Process the next chunk of a long prompt. After the last chunk, return the hidden state of
        the prompt's last token, one tensor per model."""
        if self.long is None:
            return []
        member, caches = self.long.member, self.long.caches
        part = member.prompt[: caches[0].lengths[0] + self.read_at_once]
        vectors, lasts = [], []
        for model, read in zip(self.models, caches, strict=True):
            x_ND, layout = prefill(model, [part], read, self.device)
            vectors.append(x_ND)
            lasts.append(x_ND[layout.last_N().long()])
        if member.scores_prompt:
            member.record_prompt_scores(self._scores([vectors]))
        if len(part) < len(member.prompt):
            return []
        if not member.generates:
            member.end_empty()
            return []
        self.long = None
        own = zip(self.caches, caches, lasts, strict=True)
        found = [self._admit(cache, read, last_BD, [member]) for cache, read, last_BD in own]
        self._begin([member])
        return found

    def _admit(
        self, cache: RowCache, read: Cache, last_BD: Tensor, some: Sequence[BatchMember]
    ) -> Tensor:  # fmt: skip
        """Add processed prompts to the cache of a model, with one row for each output."""
        repeats = [row for row, member in enumerate(some) for _ in range(member.width)]
        if len(repeats) > len(some):
            read.select(repeats)
            last_BD = last_BD[torch.tensor(repeats, device=self.device)]
        cache.admit(read)
        return last_BD

    def _begin(self, some: Sequence[BatchMember]) -> None:
        for member in some:
            member.begin()
            self.rows += [(member, w) for w in range(member.width)]

    def _admitted(self) -> list[BatchMember]:
        """Take as many waiting members from the queue as fit.

        Callers with the fewest rows come first. Callers that already have rows leave some free for
        new callers. At most one long prompt is started at a time.
        """
        some: list[BatchMember] = []
        rows, tokens = len(self.rows), 0
        held = Counter(_caller(member) for member, _ in self.rows)
        if self.long is not None:
            rows += self.long.member.width
            held[_caller(self.long.member)] += self.long.member.width
        if rows >= self.most_rows or not self.waiting:
            return some
        lines: dict[object, deque[BatchMember]] = {}
        taken: set[BatchMember] = set()
        for member in self.waiting:
            lines.setdefault(_caller(member), deque()).append(member)
        while lines:
            caller = min(lines, key=held.__getitem__)  # on a tie, the caller that came first
            member = lines[caller][0]
            left = self.most_rows - rows - (self.most_rows // SPARED if held[caller] else 0)
            is_long = len(member.prompt) > self.read_at_once or member.needs_all_states
            if (member.width > left and held[caller]) or (is_long and self.long is not None):
                del lines[caller]
                continue
            tokens += 0 if is_long else len(member.prompt)
            if member.width > left or (some and tokens > self.read_at_once):
                break
            lines[caller].popleft()
            if is_long:
                self.long = self._begin_long(member)
            else:
                some.append(member)
            taken.add(member)
            rows += member.width
            held[caller] += member.width
            if not lines[caller]:
                del lines[caller]
        self.waiting = [member for member in self.waiting if member not in taken]
        return some

    def _begin_long(self, member: BatchMember) -> LongPrompt:
        room = len(member.prompt)
        caches = [Cache(len(model.stack.blocks), 1, room) for model in self.models]  # type: ignore[arg-type]
        return LongPrompt(member, caches)

    def _scores(self, vectors: Sequence[Sequence[Tensor]]) -> Tensor:
        """Return the log-probabilities of the next token of each row (R V). In an ensemble, the
        probabilities of the models are averaged."""
        total_RV: Tensor | None = None
        for model, parts in zip(self.models, zip(*vectors, strict=True), strict=True):
            x_RD = parts[0] if len(parts) == 1 else torch.cat(parts)
            scores_RV = model.scores(x_RD).float().log_softmax(-1)
            if total_RV is None:
                total_RV = scores_RV
            else:
                torch.logaddexp(total_RV, scores_RV, out=total_RV)
        assert total_RV is not None
        if len(self.models) > 1:
            total_RV.sub_(torch.tensor(len(self.models)).log().item())
        return total_RV

    def _grow(self, scores_RV: Tensor) -> list[BatchMember]:
        token_R = self._chosen(scores_RV)
        log_prob_R = scores_RV.gather(1, token_R[:, None]).squeeze(1)
        tokens, log_probs = token_R.tolist(), log_prob_R.tolist()
        for row, (member, w) in enumerate(self.rows):
            if member.top:
                values, ids = scores_RV[row].topk(min(member.top, scores_RV.shape[1]))
                member.top_log_probs[w].append(
                    list(zip(ids.tolist(), values.tolist(), strict=True))
                )
        ended, done = [], []
        for row, (member, w) in enumerate(self.rows):
            if member.append_token(w, tokens[row], log_probs[row]):
                ended.append(row)
                if member.done:
                    done.append(member)
        self._drop(ended)
        return done

    def _chosen(self, scores_RV: Tensor) -> Tensor:
        """Return the next token of each row. Rows with equal settings are processed together."""
        groups: dict[Hashable, list[int]] = {}
        for row, (member, _) in enumerate(self.rows):
            groups.setdefault(_sampling_key(member), []).append(row)
        token_R = torch.zeros(len(self.rows), dtype=torch.long, device=self.device)
        for rows in groups.values():
            member = self.rows[rows[0]][0]
            all_of_them = len(rows) == len(self.rows)
            index_R = None if all_of_them else torch.tensor(rows, device=self.device)
            mine_RV = scores_RV if index_R is None else scores_RV[index_R]
            if _is_plain(member):
                mine_RV.index_fill_(1, self._never(member), -torch.inf)
            else:
                so_far = [member.tokens[self.rows[row][1]] for row in rows]
                tokens_RT = torch.tensor(so_far, dtype=torch.long, device=self.device)
                member.job.logits_processors(mine_RV, tokens_RT.view(len(rows), -1), [0])
            picked_R = self._picked(mine_RV, rows, member)
            if index_R is None:
                return picked_R
            scores_RV[index_R] = mine_RV
            token_R[index_R] = picked_R
        return token_R

    def _picked(self, mine_RV: Tensor, rows: Sequence[int], member: BatchMember) -> Tensor:
        if not member.settings.sample:
            return most_likely(mine_RV, 0, ())
        chances = []
        for row in rows:
            one, w = self.rows[row]
            assert one.random_WT is not None
            chances.append(one.random_WT[w, len(one.tokens[w])])
        key = _draw_key(member.settings)
        if key not in self.draws:
            if len(self.draws) > MOST_ROWS:
                self.draws.clear()
            self.draws[key] = make_token_drawer(member.settings)
        return self.draws[key](mine_RV, torch.stack(chances).to(self.device))

    def _never(self, member: BatchMember) -> Tensor:
        key = member.settings.unknown, member.job.specials
        if key not in self.never:
            found = always_banned(member.settings, member.job.specials)
            self.never[key] = torch.tensor(found, dtype=torch.long, device=self.device)
        return self.never[key]


def _caller(member: BatchMember) -> object:
    return member if member.owner is None else member.owner


def _is_plain(member: BatchMember) -> bool:
    """Return whether the settings ban only a fixed set of tokens and have no other rules."""
    settings = member.settings
    return not (
        settings.min_len
        or settings.repetition_penalty != 1.0
        or settings.no_repeat_ngram
        or member.job.specials.never_first
    )


def _draw_key(settings: DecodeSettings) -> Hashable:
    return settings.temperature, settings.top_k, settings.top_p, settings.min_p


def _sampling_key(member: BatchMember) -> Hashable:
    """Return a key of the settings by which tokens are chosen. Members with equal keys are
    processed together."""
    if not _is_plain(member):
        return id(member)
    settings = member.settings
    how = _draw_key(settings) if settings.sample else ()
    return settings.sample, how, settings.unknown, member.job.specials


class CacheBuffer(NamedTuple):
    """Cache tensor of a layer with spare rows, so that sequences can be added without moving the
    tensor."""

    grid_BS: Tensor
    begins: int
    """Number of cache entries before those of the tokens: one for a recurrent state, zero for keys
    and values."""


class RowCache(Cache):
    """Cache for continuous batching. Sequences are added and removed while the cache tensors stay
    at their addresses as far as possible."""

    def __init__(self, n_layers: int, lasting: int = 0) -> None:
        """Create an empty cache.

        `lasting`: number of rows that stay allocated even if they are unused, because CUDA graphs
        contain their addresses. 0: memory is freed when the last sequence leaves.
        """
        super().__init__(n_layers, 0, FIRST_ROOM)
        self.lasting = lasting
        self.moves = 0
        """Number of times that a cache tensor was moved to a new address. Each move invalidates
        CUDA graphs."""

        self.stores: list[dict[str, CacheBuffer]] = [{} for _ in range(n_layers)]

    def clear(self) -> None:
        """Remove all sequences and free their memory."""
        self.stores = [{} for _ in self.layers]
        self.layers = [LayerCache(self) for _ in self.layers]
        self.n_rows, self.capacity, self.lengths, self._keys = 0, FIRST_ROOM, (), None

    def admit(self, other: Cache) -> None:
        """Append the sequences of another cache."""
        used, first = max(other.lengths), self.n_rows
        self.n_rows = first + other.n_rows
        self.reserve(used)
        for mine, theirs in zip(self.stores, other.layers, strict=True):
            for name, fresh_BS in theirs.cells.items():
                begins = fresh_BS.shape[1] - other.capacity
                store = mine.get(name) or CacheBuffer(fresh_BS[:0, :0], begins)
                if len(store.grid_BS) < self.n_rows:
                    store = self._larger(store)
                mine[name] = store
                store.grid_BS[first : self.n_rows, : used + begins] = fresh_BS[:, : used + begins]
        self.lengths = (*self.lengths, *other.lengths)
        self._show()

    def keys_with(self, new: Layout) -> Layout:
        self.reserve(max(self.lengths, default=0) + new.longest)
        return super().keys_with(new)

    def select(self, rows: Sequence[int]) -> None:
        super().select(rows)
        if not rows and not self.lasting:
            self.clear()
            return
        self._show()

    def reserve(self, used: int) -> None:
        """Increase the capacity to at least `used` tokens per row."""
        if used <= self.capacity:
            return
        while used > self.capacity:
            self.capacity *= 2
        for stores in self.stores:
            for name, store in stores.items():
                stores[name] = self._larger(store)
        self._show()

    def _larger(self, store: CacheBuffer) -> CacheBuffer:
        old_BS = store.grid_BS
        self.moves += 1
        n = max(4, self.lasting, len(old_BS))
        while n < self.n_rows:
            n *= 2
        larger_BS = old_BS.new_zeros(n, self.capacity + store.begins, *old_BS.shape[2:])
        larger_BS[: len(old_BS), : old_BS.shape[1]] = old_BS
        return CacheBuffer(larger_BS, store.begins)

    def _show(self) -> None:
        """Update the tensors that layers read: views of the rows in use."""
        self._keys = None
        for layer, stores in zip(self.layers, self.stores, strict=True):
            for name, store in stores.items():
                layer.cells[name] = store.grid_BS[: self.n_rows]


class StaticRows(StaticCache):
    """View of the first rows of a `RowCache`, in which each row continues at its own position."""

    def __init__(self, rows: RowCache, n_rows: int, device: torch.device) -> None:
        super().__init__(len(rows.layers), n_rows, rows.capacity, device)
        self.rows_W = torch.arange(n_rows, device=device)
        self.at_R = torch.zeros(n_rows, dtype=torch.long, device=device)
        for layer, stores in zip(self.layers, rows.stores, strict=True):
            layer.cells = {name: store.grid_BS[:n_rows] for name, store in stores.items()}

    def write(self, grid_BSGK: Tensor, fresh_NGK: Tensor, new: Layout) -> None:
        grid_BSGK[self.rows_W, self.at_R] = fresh_NGK


class StaticStep:
    """One decoding step with a fixed number of rows, whose texts may differ in length. Unused rows
    are computed, but their results are ignored."""

    def __init__(self, model: Decoder, rows: RowCache, n_rows: int, used: int) -> None:
        """Prepare the tensors of the step.

        `used`: upper bound on the number of tokens in a row, including the token of this step.
        """
        self.model, self.used, self.end = model, used, max_positions(model.front)
        device = next(model.parameters()).device
        self.cache = StaticRows(rows, n_rows, device)
        self.base = Layout.of([1] * n_rows, device)
        self.cell_S = torch.arange(used, device=device)
        self.given_2R = torch.zeros(2, n_rows, dtype=torch.long, device=device)
        self.cache.at_R = self.given_2R[1]
        self.cache.used = used
        self.x_RD: Tensor | None = None
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, tokens: Sequence[int], lengths: Sequence[int], pool: Any) -> Tensor:
        lack = [0] * (self.given_2R.shape[1] - len(tokens))
        self.given_2R.copy_(torch.tensor([[*tokens, *lack], [*lengths, *lack]]))
        if self.given_2R.is_cuda:
            if self.graph is None:
                # The warm-up calls write the same keys to the same cache entries as the step
                # itself, so nothing has to be restored.
                self.graph = capture_graph(self.advance, (), pool)
            self.graph.replay()
        else:
            self.advance()
        assert self.x_RD is not None
        return self.x_RD[: len(tokens)]

    def advance(self) -> None:
        token_R, at_R = self.given_2R
        may_R1S = (self.cell_S <= at_R[:, None])[:, None]
        self.cache.tree = Tree(may_R1S, self.cell_S)
        reach = self.used if self.end is None else self.end
        layout = replace(self.base, positions_N=at_R, reach=reach, memo={})
        self.x_RD = self.model(token_R, layout, self.cache)


class StaticRowSteps:
    """Computes the hidden states of the next token of every row. A few fixed shapes are used, so
    that CUDA graphs can be reused."""

    def __init__(self, model: Decoder, rows: RowCache, device: torch.device) -> None:
        self.model, self.rows, self.device = model, rows, device
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.steps: dict[tuple[int, int], StaticStep] = {}
        self.pool = new_graph_pool()  # a pool without graphs cannot be reused
        self.moves = self.rows.moves

    def __call__(self, tokens: Sequence[int]) -> Tensor:
        rows = self.rows
        used = max(rows.lengths) + 1
        rows.reserve(used)
        if self.rows.moves != self.moves:
            extend_positions(self.model, rows.capacity)
            self._begin_anew()
        shape = (
            round_up_to_size(SOURCES, len(tokens)),
            min(round_up_to_size(LENGTHS, used), rows.capacity),
        )
        if shape not in self.steps:
            self.steps[shape] = StaticStep(self.model, rows, *shape)
        x_RD = self.steps[shape](tokens, rows.lengths, self.pool)
        rows.lengths = tuple(length + 1 for length in rows.lengths)
        return x_RD
