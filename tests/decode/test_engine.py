"""Code around an engine: windows begun ahead, order, errors and unsupported features."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from headway.decode.batching import LAST_WINDOW, prefetch_one
from headway.decode.engine import BackgroundSearch, Engine, SearchedBatch, TokenLists
from headway.decode.logits_processors import SpecialTokens, TokenConstraints
from headway.decode.search.job import Hypothesis
from headway.decode.writer import Writer
from headway.errors import UserError
from headway.settings.decode import DecodeSettings

from .test_writer import vocab

SPECIALS = SpecialTokens(1, 2, 0)


class Echo:
    """Gives every source back, and notes when it was asked and when it answered."""

    context = None

    def __init__(self) -> None:
        self.events: list[str] = []

    def __call__(self, sources: TokenLists, *_: Any) -> list[list[Hypothesis]]:
        return [[Hypothesis(list(source[:-1]), -1.0, -1.0, [], True)] for source in sources]

    def begin(
        self, sources: TokenLists, wishes: Sequence[TokenConstraints]
    ) -> Iterator[SearchedBatch]:
        assert len(sources) == len(wishes)
        self.events.append("begin")
        return self._ended(sources)

    def _ended(self, sources: TokenLists) -> Iterator[SearchedBatch]:
        """In two batches, the second half first."""
        self.events.append("end")
        places, half = range(len(sources)), len(sources) // 2
        yield places[half:], self(sources[half:])
        yield places[:half], self(sources[:half])


class EchoEngine(Engine):
    name = "echo"

    def __init__(self) -> None:
        self.search = Echo()

    def searcher(self, settings: DecodeSettings, specials: SpecialTokens, **_: Any) -> Echo:
        return self.search


def translator(**more: Any) -> tuple[Writer, Echo]:
    engine = EchoEngine()
    return Writer([], vocab(), engine=engine, **more), engine.search


def test_the_next_window_is_begun_before_the_last_is_waited_for() -> None:
    assert isinstance(Echo(), BackgroundSearch)
    found, search = translator()
    lines = ["ba de", "", "go"] * (LAST_WINDOW // 2)
    assert [one.text for one in found.write(lines)] == lines
    assert search.events == ["begin", "begin", "end", "end"]
    assert found.summary.sources == len(lines)
    assert found.summary.tokens == 5 * (LAST_WINDOW // 2)


def test_interactive_input_is_answered_at_once() -> None:
    found, search = translator()
    asked: list[str] = []

    def typed() -> Any:
        for line in ("ba", "de"):
            asked.append(line)
            yield line

    assert [one.text for one in found.write(typed(), live=True)] == ["ba", "de"]
    assert search.events in (["begin", "end"], ["begin", "end", "begin", "end"])


def test_an_error_comes_after_what_was_begun_before_it() -> None:
    found, _ = translator(max_len=3, on_long="error")
    lines = ["ba"] * LAST_WINDOW + ["ba de fi go ko"]
    outputs = found.write(lines)
    assert [next(outputs).text for _ in range(LAST_WINDOW)] == lines[:-1]
    with pytest.raises(UserError, match=rf"\b{LAST_WINDOW + 1:,}\b.*\b5\b.*\b3\b"):
        next(outputs)


def test_one_ahead_keeps_order_and_count() -> None:
    made: list[int] = []

    def numbers() -> Any:
        for n in range(3):
            made.append(n)
            yield n

    seen = [(n, len(made)) for n in prefetch_one(numbers())]
    assert seen == [(0, 2), (1, 3), (2, 3)]
    assert list(prefetch_one([])) == []


def test_unsupported_features_of_an_engine_are_an_error_with_its_name() -> None:
    engine = Engine()
    engine.name = "abacus"
    for call, option in (
        (lambda: engine.searcher(DecodeSettings(), SPECIALS), ""),
        (lambda: engine.attention([], [], 1), "alignments=True"),
        (lambda: engine.model(), ""),
    ):
        with pytest.raises(UserError, match=rf"engine=.abacus..*{option}.*engine=.torch."):
            call()
