"""Iterator over the predictions of loaded runs, in input order, which several threads can use at
once.

The lock of the models is held while a predictor computes, but not while it waits for more input.
Concurrent callers therefore take turns, and the iterator that supplies the inputs may use the same
models.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace

from headway.decode.batching import FIRST_WINDOW
from headway.errors import DataError, UserError
from headway.settings.run import media_settings
from headway.tasks.answers import Answer
from headway.tasks.inputs import ParsedInput
from headway.tasks.media_answers import FIRST_WINDOW as FIRST_MEDIA
from headway.tasks.task import InferenceRequest, Predictor, find_task


class AnswerStream(Iterator[Answer]):
    """Iterator over the answers to `questions`.

    Args:
        keep: Yield an answer with an error for each input that cannot be answered. False: raise the
            first error.
        again: Retry the inputs of a failed batch one by one, so that one input cannot fail the
            others.
        live: Yield each answer as soon as it is available.
    """

    def __init__(
        self,
        use: InferenceRequest,
        questions: Iterable[ParsedInput],
        *,
        keep: bool = False,
        again: bool = True,
        live: bool = False,
    ) -> None:
        self.use, self.keep, self.again, self.live = use, keep, again, live
        if not live:
            use = replace(use, between=self._release_lock)
        with use.opened.lock:  # some predictors already run the model in their constructor
            self.predictor: Predictor = find_task(use.settings).predictor(use)
        self._source = iter(questions)
        self._size = FIRST_WINDOW if media_settings(use.settings) is None else FIRST_MEDIA
        self._ready: deque[ParsedInput] = deque()
        self._pending: deque[ParsedInput] = deque()
        """Inputs that were passed to the predictor and have no answer yet."""

        self._failed: deque[tuple[int, ParsedInput]] = deque()
        """Invalid inputs, each with its index among all inputs."""

        self._n_answered = self._n_read = 0
        self._input_error: Exception | None = None
        self._answers = self._run()

    def __next__(self) -> Answer:
        return next(self._answers)

    def close(self) -> None:
        self._answers.close()  # type: ignore[attr-defined]

    def summary(self) -> str:
        """Return a one-line, human-readable summary of the inputs processed so far."""
        return self.predictor.summary()

    def _release_lock(self, done: int, total: int) -> None:
        self.use.opened.release_lock()
        self.use.between(done, total)

    def _run(self) -> Iterator[Answer]:
        answers = self.predictor.answers(self._feed(), self.live)
        while True:
            try:
                with self.use.opened.lock:
                    answer = next(answers, None)
            except UserError:
                if not (self.keep and self.again):
                    raise
                yield from self._one_by_one()
                answers = self.predictor.answers(self._feed(), self.live)
                continue
            yield from self._errors()
            if answer is None:
                break
            asked = self._pending.popleft() if self._pending else ParsedInput(None)
            yield self._finish(answer, asked)
        yield from self._errors()
        if self._input_error is not None:
            raise self._input_error

    def _one_by_one(self) -> Iterator[Answer]:
        """Yield the answers to the inputs of a failed batch, which are predicted one by one."""
        while self._pending:
            yield from self._errors()
            asked = self._pending.popleft()
            try:
                with self.use.opened.lock:
                    answer = next(iter(self.predictor.answers([asked.value])))
            except UserError as error:
                answer = Answer(error=str(error))
            yield self._finish(answer, asked)

    def _finish(self, answer: Answer, asked: ParsedInput) -> Answer:
        if answer.error and not self.keep:
            raise DataError(answer.error)
        self._n_answered += 1
        if asked.id is None and asked.row is None:
            return answer
        return replace(answer, id=asked.id, row=asked.row)

    def _errors(self) -> Iterator[Answer]:
        """Yield the error answers of the invalid inputs that precede the next valid input."""
        while self._failed and self._failed[0][0] == self._n_answered:
            _, asked = self._failed.popleft()
            self._n_answered += 1
            yield Answer(error=str(asked.error), id=asked.id, row=asked.row)

    def _feed(self) -> Iterator[object]:
        while True:
            if not self._ready:
                self._wait()
            if not self._ready:
                return
            asked = self._ready.popleft()
            self._pending.append(asked)
            yield asked.value

    def _wait(self) -> None:
        """Read more inputs without holding the lock, so that other callers can compute. In `live`
        mode a separate thread reads, which does not hold the lock anyway."""
        lock = self.use.opened.lock
        if self.live:
            self._fill(1)
            return
        lock.release()
        try:
            self._fill(self._size)
        finally:
            lock.acquire()

    def _fill(self, size: int) -> None:
        if self._input_error is not None:
            return
        while len(self._ready) < size:
            try:
                asked = next(self._source)
            except StopIteration:
                return
            except Exception as error:  # raised after the answers to the inputs before it
                self._input_error = error
                return
            self._n_read += 1
            if asked.error is None:
                self._ready.append(asked)
            elif self.keep:
                self._failed.append((self._n_read - 1, asked))
            else:
                self._input_error = asked.error
                return
