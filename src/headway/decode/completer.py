"""Text completion with one language model or an ensemble."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence

from headway.decode.batching import batches, windows
from headway.decode.engine import Engine, Search
from headway.decode.logits_processors import SpecialTokens
from headway.decode.output import GenerationResult, Output, WritingSummary
from headway.decode.search.searcher import SearchCache, Searcher, SharedPrefix, too_long
from headway.decode.search.speculative import SpeculativeSearcher
from headway.decode.stream import OnToken, OutputAssembler
from headway.errors import ConfigError, Option, UserError
from headway.models.decoder import Decoder
from headway.nn.linear import packing
from headway.progress import OnProgress, no_progress
from headway.settings.decode import DecodeSettings
from headway.tokens.tokenizer import Tokenizer

Prompt = str | Sequence[int]
"""Text, or token ids that include the begin token."""

MIN_SHARED_TOKENS = 16
"""Minimum length in tokens of a shared prompt prefix that is computed only once. Shorter prefixes
save too little."""

USUAL = 128
"""Assumed number of new tokens per prompt when prompts are grouped into batches."""


class Completer:
    """Continues prompts in batches of similar length. Results are in input order."""

    def __init__(
        self,
        models: Sequence[Decoder],
        tokenizer: Tokenizer,
        settings: DecodeSettings = DecodeSettings(),
        *,
        context: int | None = None,
        draft: Decoder | None = None,
        draft_context: int | None = None,
        detail: bool = False,
        engine: Engine | None = None,
        search_cache: SearchCache | None = None,
    ) -> None:
        """Create a completer. Several models form an ensemble.

        `context`: maximum number of tokens that the models read; None: no limit. `draft`: model
        that proposes tokens (speculative decoding), which is faster and leaves the output
        distribution unchanged. `engine`: runtime that replaces `models`. `detail`: passed to the
        engine. `search_cache`: cache of searches of these models, shared with other completers.
        """
        self.models, self.tokenizer, self.settings = models, tokenizer, settings
        self.summary = WritingSummary()
        self.asked = 0
        """Number of prompts in all windows read so far. A prompt's index and the seed determine its
        random draws, which therefore do not depend on the batch."""

        if "" in settings.stop:
            raise ConfigError(
                "decode.stop contains an empty string, which would end every output. Remove it."
            )
        if draft is not None and len(models) > 1:
            raise UserError(
                f"a draft model cannot be used with an ensemble. Remove {Option('draft')}, or use "
                "a single model."
            )
        if draft is not None and engine is not None:
            raise UserError(
                f"a draft model cannot be combined with {Option('engine', engine.name)}. Remove "
                "one of the two."
            )
        self.context, self.draft, self.draft_context = context, draft, draft_context
        self.engine, self.detail = engine, detail
        self.search_cache = SearchCache() if search_cache is None else search_cache
        self.prefix: SharedPrefix | None = None
        self.searchers: dict[int, Search] = {}
        self._searcher(tokenizer.eos)  # raise errors about incompatible settings at once

    def complete(
        self,
        prompts: Iterable[Prompt],
        *,
        on_token: OnToken | None = None,
        shared: Prompt = "",
        end: int | None = None,
        live: bool = False,
        on_progress: OnProgress = no_progress,
    ) -> Iterator[GenerationResult]:
        """Yield one completion per prompt, in order. An empty prompt starts a new text.

        `on_token`: called with new text of an output once it is final; prompts are then processed
        one by one. `shared`: prefix of all prompts that is computed once; if it is not given, it is
        detected for each batch. `end`: token that ends an output, instead of the end-of-text token.
        `live`: do not wait for more prompts to fill a batch. `on_progress`: called after each batch
        of a window.
        """
        common = self.ids(shared) if shared else None
        with packing(self.models):
            for window in windows(prompts, live=live):
                start = time.perf_counter()
                first, self.asked = self.asked, self.asked + len(window)
                found = self._window(window, first, on_token, common, end, on_progress)
                for completion in found:
                    self.summary.seconds += time.perf_counter() - start
                    yield completion
                    start = time.perf_counter()

    def ids(self, prompt: Prompt) -> list[int]:
        """Return the tokens of a prompt, including the begin token."""
        if not isinstance(prompt, str):
            return list(prompt)
        return self.tokenizer.as_prompt(self.tokenizer.encode(prompt) if prompt else [])

    def _window(
        self,
        prompts: Sequence[Prompt],
        first: int,
        on_token: OnToken | None,
        common: list[int] | None,
        end: int | None,
        on_progress: OnProgress,
    ) -> Iterator[GenerationResult]:
        """Yield completions in order. Each is yielded as soon as it and all before it are done."""
        ids = [self.ids(prompt) for prompt in prompts]
        self._check(prompts, ids, first)
        end = self.tokenizer.eos if end is None else end
        searcher = self._searcher(end)
        prefix = self._shared(ids, common)
        if on_token is not None:
            groups: Iterable[list[int]] = ([place] for place in range(len(ids)))
        else:
            lengths = [len(tokens) + min(self.settings.max_len or USUAL, USUAL) for tokens in ids]
            groups = batches(lengths, max(1, self.settings.batch_tokens // self.settings.width))
        done: dict[int, list[Output]] = {}
        given = 0
        for group in groups:
            some = [ids[place] for place in group]
            reading = OutputAssembler(self.tokenizer, self.settings, some, end, on_token)
            numbers = [[first + place] for place in group]
            found = searcher(reading.prompts, None, numbers, prefix=prefix, watch=reading.watch)
            done |= dict(zip(group, reading.outputs(found), strict=True))
            on_progress(given + len(done), len(ids))
            while given in done:
                yield self._completion(prompts[given], done.pop(given))
                given += 1
        if isinstance(searcher, SpeculativeSearcher):
            self.summary.proposed = searcher.proposed
            self.summary.accepted = searcher.accepted

    def _completion(self, prompt: Prompt, outputs: list[Output]) -> GenerationResult:
        self.summary.sources += 1
        self.summary.tokens += sum(len(output.tokens) + output.finished for output in outputs)
        self.summary.unfinished += not (outputs[0].finished or outputs[0].stopped_by)
        text = prompt if isinstance(prompt, str) else self.tokenizer.decode(prompt)
        return GenerationResult(text, outputs)

    def _check(self, prompts: Sequence[Prompt], ids: Sequence[list[int]], first: int) -> None:
        context = self._searcher(self.tokenizer.eos).context
        for number, (prompt, tokens) in enumerate(zip(prompts, ids, strict=True), first + 1):
            if context is not None and len(tokens) > context:
                text = prompt if isinstance(prompt, str) else self.tokenizer.decode(prompt)
                raise too_long(f"prompt {number:,} ({text[:40]!r}…)", len(tokens), context)

    def _searcher(self, end: int) -> Search:
        if end not in self.searchers:
            specials = SpecialTokens.of(self.tokenizer, end)
            made: Search
            if self.engine is not None:
                made = self.engine.searcher(
                    self.settings, specials, context=self.context, detail=self.detail
                )
            elif self.draft is None:
                made = self.search_cache(
                    ("complete", self.settings, specials, self.context),
                    lambda: Searcher(self.models, self.settings, specials, self.context),
                )
            else:
                made = SpeculativeSearcher(
                    self.models[0], self.draft, self.settings, specials, self.context,
                    self.draft_context,
                )  # fmt: skip
            self.searchers[end] = made
        return self.searchers[end]

    def _shared(self, ids: Sequence[list[int]], common: list[int] | None) -> SharedPrefix | None:
        """Return the computed prefix that all prompts share. The prefix of the previous batch is
        reused if it is the same."""
        if self.engine is not None:
            return None
        known = self.prefix
        if known is not None and not all(known.is_prefix_of(tokens) for tokens in ids):
            known = None
        n = 0
        if len(ids) > 1 or common is not None:
            n = shared_length([*ids, *([] if common is None else [common])])
            n = min(n, *(len(tokens) - 1 for tokens in ids))
        if known is not None and 2 * len(known.tokens) >= n:
            self.summary.shared += len(known.tokens) * len(ids)
            return known
        if n < MIN_SHARED_TOKENS:
            return None
        self.prefix = SharedPrefix(self.models, ids[0][:n])
        self.summary.shared += n * (len(ids) - 1)
        return self.prefix


def shared_length(texts: Sequence[list[int]]) -> int:
    """Return the length of the longest common prefix of token lists."""
    least, most = (
        min(texts),
        max(texts),
    )  # smallest and largest in list order share the prefix of all
    n = 0
    while n < min(len(least), len(most)) and least[n] == most[n]:
        n += 1
    return n
