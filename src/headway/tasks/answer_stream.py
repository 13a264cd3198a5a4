"""Stream of predictions of opened runs, in the order of the inputs, also with concurrent callers.

The lock of the models is held while a predictor computes, but not while it waits for more input.
Callers therefore take turns, and the iterator that supplies the inputs may use the same models.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace

from headway.decode.batching import FIRST_WINDOW
from headway.errors import DataError, UserError
from headway.settings.run import media_settings
from headway.tasks.answers import Answer
from headway.tasks.inputs import Asked
from headway.tasks.media_answers import FIRST_WINDOW as FIRST_MEDIA
from headway.tasks.task import Predictor, Use, find_task


class Stream(Iterator[Answer]):
    """Iterator of answers to `questions`.

    `keep`: an input that cannot be answered yields an answer with its error; otherwise the first
    error is raised. `again`: if one input makes a whole batch fail, the inputs of that batch are
    tried again one by one. `live`: yield each answer as soon as it is available."""

    def __init__(
        self,
        use: Use,
        questions: Iterable[Asked],
        *,
        keep: bool = False,
        again: bool = True,
        live: bool = False,
    ) -> None:
        self.use, self.keep, self.again, self.live = use, keep, again, live
        if not live:
            use = replace(use, between=self._give_way)
        with use.opened.lock:  # some predictors already run the model in their constructor
            self.predictor: Predictor = find_task(use.settings).predictor(use)
        self._source = iter(questions)
        self._size = FIRST_WINDOW if media_settings(use.settings) is None else FIRST_MEDIA
        self._ready: deque[Asked] = deque()
        self._asked: deque[Asked] = deque()
        """Inputs passed to the predictor that are not answered yet."""

        self._failed: deque[tuple[int, Asked]] = deque()
        """Invalid inputs with their indices."""

        self._given = self._taken = 0
        self._ended: Exception | None = None
        self._answers = self._run()

    def __next__(self) -> Answer:
        return next(self._answers)

    def close(self) -> None:
        self._answers.close()  # type: ignore[attr-defined]

    def summary(self) -> str:
        """A line for people about the inputs that were processed so far."""
        return self.predictor.summary()

    def _give_way(self, done: int, total: int) -> None:
        self.use.opened.give_way()
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
            asked = self._asked.popleft() if self._asked else Asked(None)
            yield self._given_out(answer, asked)
        yield from self._errors()
        if self._ended is not None:
            raise self._ended

    def _one_by_one(self) -> Iterator[Answer]:
        """Answers to the inputs of a batch that failed, each predicted separately."""
        while self._asked:
            yield from self._errors()
            asked = self._asked.popleft()
            try:
                with self.use.opened.lock:
                    answer = next(iter(self.predictor.answers([asked.question])))
            except UserError as error:
                answer = Answer(error=str(error))
            yield self._given_out(answer, asked)

    def _given_out(self, answer: Answer, asked: Asked) -> Answer:
        if answer.error and not self.keep:
            raise DataError(answer.error)
        self._given += 1
        if asked.id is None and asked.row is None:
            return answer
        return replace(answer, id=asked.id, row=asked.row)

    def _errors(self) -> Iterator[Answer]:
        """Answers with the errors of the invalid inputs before the next answer."""
        while self._failed and self._failed[0][0] == self._given:
            _, asked = self._failed.popleft()
            self._given += 1
            yield Answer(error=str(asked.error), id=asked.id, row=asked.row)

    def _feed(self) -> Iterator[object]:
        while True:
            if not self._ready:
                self._wait()
            if not self._ready:
                return
            asked = self._ready.popleft()
            self._asked.append(asked)
            yield asked.question

    def _wait(self) -> None:
        """Read more inputs while other callers may compute. In `live` mode a separate thread reads,
        which does not hold the lock."""
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
        if self._ended is not None:
            return
        while len(self._ready) < size:
            try:
                asked = next(self._source)
            except StopIteration:
                return
            except Exception as error:  # raised after the answers to the inputs before it
                self._ended = error
                return
            self._taken += 1
            if asked.error is None:
                self._ready.append(asked)
            elif self.keep:
                self._failed.append((self._taken - 1, asked))
            else:
                self._ended = asked.error
                return
