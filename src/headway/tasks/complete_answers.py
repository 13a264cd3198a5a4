"""Predictors that generate text with a language model: from plain prompts, few-shot prompts, and
documents with fields."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from headway.data.causal_lm import FieldMarks
from headway.data.predict_input import Question
from headway.decode.completer import Completer, Prompt
from headway.decode.continuous import BatchMember, ContinuousBatch
from headway.decode.output import GenerationResult
from headway.decode.stream import OnOutputPiece
from headway.errors import DataError, Option, UserError, suggest
from headway.models.decoder import Decoder
from headway.settings.decode import DecodeSettings
from headway.settings.effects import CallFacts, check_options
from headway.settings.folder import run_folder
from headway.settings.listed import ensure_list
from headway.settings.task_rows import spec_of
from headway.tasks.answers import Answer, ContinuationAnswer, FieldAnswer, LabelAnswer
from headway.tasks.causal_lm import check_language, context_of
from headway.tasks.fewshot import FewShotClassifier, FewShotExamples
from headway.tasks.loaded_run import LoadedRun, open_run
from headway.tasks.seq2seq_answers import answer_of
from headway.tasks.task import InferenceRequest, Predictor
from headway.tokens.tokenizer import Tokenizer

TextCallback = Callable[[str], None]


def predictor(use: InferenceRequest) -> Predictor:
    fields = bool(use.settings.data.fields)
    chooses = not fields and chooses_labels(use.options)
    check_options(
        CallFacts(
            row=spec_of(use.settings), options=use.options, fields=fields, chooses_labels=chooses
        )
    )
    if fields:
        return FieldPredictor(use)
    return LabelChoicePredictor(use) if chooses else CausalLMPredictor(use)


def chooses_labels(options: Mapping[str, Any]) -> bool:
    """Return whether the options request few-shot classification, which chooses one of several
    labels for each line."""
    if options.get("labels"):
        return True
    return bool(options.get("shots")) and bool(shots_of(options["shots"]).after)


def shots_of(given: str | Path | Sequence[Mapping[str, str]]) -> FewShotExamples:
    """Return few-shot examples, read from a file or from mappings with the same keys as the lines
    of a file."""
    return (
        FewShotExamples.read(given) if isinstance(given, str | Path) else FewShotExamples.of(given)
    )


def one_stream(decode: DecodeSettings, options: Mapping[str, Any]) -> TextCallback | None:
    """Return the callback that prints the text during generation, or None without `--stream`."""
    write: TextCallback | None = options.get("stream") or None
    searches = decode.beam > 1 and not decode.sample
    if write is not None and (searches or decode.n_best > 1):
        raise UserError(
            f"{Option('stream')} prints one text as it is generated, without beam search. Use "
            f"{Option('beam', 1)} and {Option('n_best', 1)}."
        )
    return write


def detail_of(options: Mapping[str, object]) -> bool:
    """Return whether the output needs the log-probability of every token."""
    return bool(options.get("json") or options.get("scores"))


def completer_of(
    opened: LoadedRun,
    settings: DecodeSettings | None = None,
    *,
    draft: str | Path | None = None,
    detail: bool = False,
) -> Completer:
    """Return the object that generates continuations with loaded runs.

    Args:
        opened: Runs of language models; several are an ensemble.
        settings: Decoding settings. None: those of the first run.
        draft: Draft run for speculative decoding. It is opened once and cached.
        detail: Compute the log-probability of every token.
    """
    check_language(opened)
    small = None
    if draft is not None:
        name = run_folder(draft)
        small = opened.cached(("draft", name), lambda: _draft(opened, name))
    return Completer(
        [model for model in opened.writers if isinstance(model, Decoder)],
        opened.vocab.target,
        opened.settings.decode if settings is None else settings,
        context=min(map(context_of, opened.runs)),
        draft=None if small is None else cast(Decoder, small.writers[0]),
        draft_context=None if small is None else context_of(small.settings),
        detail=detail,
        engine=opened.engine,
        search_cache=opened.search_cache,
    )


class ContinuousBatching:
    """Base class that implements `ContinuousBatchingPredictor` for predictors that generate
    text."""

    completer: Completer

    @property
    def can_batch(self) -> bool:
        """Whether continuous batching is possible. It does not support beam search, draft models or
        engines other than torch."""
        one = self.completer
        return one.engine is None and one.draft is None and one.settings.walks

    def new_batch(self) -> ContinuousBatch:
        one = self.completer
        return ContinuousBatch(one.models, one.tokenizer, one.context)


def _draft(opened: LoadedRun, folder: Path) -> LoadedRun:
    found = open_run(folder, device=str(opened.device), precision=opened.precision)
    check_language(found)
    if found.vocab.target.to_json() != opened.vocab.target.to_json():
        raise UserError(
            f"the vocabulary of the draft model {folder} differs from that of {opened.folder}. "
            f"Distil a draft model from {opened.folder}, or train one with the same tokenizer."
        )
    return found


class CausalLMPredictor(ContinuousBatching):
    """Predictor that continues each input line."""

    def __init__(self, use: InferenceRequest) -> None:
        settings, options = use.settings, use.options
        decode = settings.decode
        self.shots = shots_of(options["shots"]) if options.get("shots") else None
        if self.shots is not None and not decode.stop:
            decode = replace(decode, stop=("\n",))  # one line per answer, as in the examples
        self.completer = completer_of(
            use.opened, decode, draft=options.get("draft"), detail=detail_of(options)
        )
        self.write = one_stream(decode, options)
        self.echo, self.between = options.get("echo", True), use.between

    def member(
        self, growing: ContinuousBatch, question: Prompt, *, on_piece: OnOutputPiece | None = None,
        top: int = 0, number: int = 0,
    ) -> BatchMember:  # fmt: skip
        if self.shots is not None and isinstance(question, str):
            question = self.shots.prompt(question)
        return growing.member(
            self.completer.ids(question), self.completer.settings, numbers=(number,),
            on_piece=on_piece, top=top,
        )  # fmt: skip

    def finished_answer(self, question: Prompt, member: BatchMember) -> Answer:
        assert member.outputs is not None
        text = question if isinstance(question, str) else self.completer.tokenizer.decode(question)
        if self.shots is not None:
            text = self.shots.prompt(text)
        return self._answer(GenerationResult(text, member.outputs))

    def answers(self, lines: Iterable[str], live: bool = False) -> Iterator[Answer]:
        lines = ensure_list(lines)
        if self.shots is not None:
            shots = self.shots
            prompts: Iterable[str] = (shots.prompt(line) for line in lines)
            found = self.completer.complete(
                prompts, on_token=self.write, shared=shots.prefix, live=live,
                on_progress=self.between,
            )  # fmt: skip
            return map(self._answer, found)
        if self.write is not None:
            return self._streamed(lines)
        completions = self.completer.complete(lines, live=live, on_progress=self.between)
        return map(self._answer, completions)

    def _streamed(self, lines: Iterable[str]) -> Iterator[Answer]:
        assert self.write is not None
        for line in lines:
            if self.echo:
                self.write(line)
            for completion in self.completer.complete([line], on_token=self.write):
                yield self._answer(completion)

    def _answer(self, found: GenerationResult) -> Answer:
        # Do not repeat a prompt that contains few-shot examples before its answer.
        prompted = self.shots is None
        return answer_of(found.outputs, ContinuationAnswer, source=found.source, prompted=prompted)

    def summary(self) -> str:
        return self.completer.summary.text("prompt", digits=1)


class LabelChoicePredictor:
    """Few-shot classifier that chooses the most likely of several labels for each line."""

    def __init__(self, use: InferenceRequest) -> None:
        settings, options = use.settings, use.options
        completer = completer_of(use.opened, settings.decode, detail=detail_of(options))
        shots = shots_of(options["shots"]) if options.get("shots") else FewShotExamples(())
        named = options.get("labels") or ""
        labels = [one.strip() for one in named.split(",")] if isinstance(named, str) else named
        self.chooser = FewShotClassifier(completer, shots, [label for label in labels if label])
        self.n_answered = 0

    def answers(self, lines: Iterable[str], live: bool = False) -> Iterator[Answer]:
        for choice in self.chooser(lines, live=live):
            self.n_answered += 1
            shares = choice.probabilities
            yield LabelAnswer.of(
                tuple(shares), shares.values(), source=choice.text,
                log_probs=tuple(choice.log_probs.values()),
            )  # fmt: skip

    def summary(self) -> str:
        return f"{self.n_answered:,} line{'s' * (self.n_answered != 1)}"


class FieldPredictor(ContinuousBatching):
    """Predictor that generates one field of a document from its other fields, which an input line
    gives as JSON."""

    def __init__(self, use: InferenceRequest) -> None:
        settings, options = use.settings, use.options
        self.fields = settings.data.fields
        self.field = options.get("field") or self.fields[-1]
        if self.field not in self.fields:
            raise UserError(
                f"unknown value {self.field!r} for "
                f"{Option('field')}.{suggest(self.field, self.fields)}"
            )
        self.completer = completer_of(use.opened, settings.decode, detail=detail_of(options))
        self.write = one_stream(settings.decode, options)

    def member(
        self, growing: ContinuousBatch, question: Question, *,
        on_piece: OnOutputPiece | None = None,
        top: int = 0, number: int = 0,
    ) -> BatchMember:  # fmt: skip
        _, end = FieldMarks.of(self.field, self.completer.tokenizer)
        return growing.member(
            self.prompt(self._given(question, number + 1)), self.completer.settings, end=end,
            numbers=(number,), on_piece=on_piece, top=top,
        )  # fmt: skip

    def finished_answer(self, question: Question, member: BatchMember) -> Answer:
        assert member.outputs is not None
        text = self.completer.tokenizer.decode(member.prompt)
        return self._answer(self._given(question, 1), GenerationResult(text, member.outputs))

    def answers(self, lines: Iterable[Question], live: bool = False) -> Iterator[Answer]:
        waiting: deque[dict[str, str]] = deque()

        def prompts() -> Iterator[list[int]]:
            for number, line in enumerate(ensure_list(lines), 1):
                given = self._given(line, number)
                waiting.append(given)
                yield self.prompt(given)

        _, end = FieldMarks.of(self.field, self.completer.tokenizer)
        for completion in self.completer.complete(
            prompts(), end=end, on_token=self.write, live=live
        ):
            yield self._answer(waiting.popleft(), completion)

    def _answer(self, given: Mapping[str, str], completion: GenerationResult) -> Answer:
        # Drop the leading space that some vocabularies put before words, because a field starts a
        # new text.
        outputs = [
            replace(output, text=output.text.removeprefix(" ")) for output in completion.outputs
        ]
        return answer_of(
            outputs, FieldAnswer, source=completion.source, prompted=False, field=self.field,
            document={**given, self.field: outputs[0].text},
        )  # fmt: skip

    def prompt(self, given: Mapping[str, str]) -> list[int]:
        known = {name: given.get(name, "") for name in self.fields}
        return field_prompt(known, self.field, self.completer.tokenizer)

    def _given(self, line: Question, number: int) -> dict[str, str]:
        if not isinstance(line, str):  # a row of a file; drop the field that is to be generated
            named = zip(self.fields, line, strict=True)
            return {name: text for name, text in named if text and name != self.field}
        example = json.dumps({self.fields[0]: "…"}, ensure_ascii=False)
        try:
            found = json.loads(line) if line.strip() else {}
        except ValueError as error:
            raise DataError(
                f"line {number:,} is not valid JSON ({error}). A document with fields looks like "
                f"{example}."
            ) from error
        if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
            raise DataError(
                f"line {number:,} must be a JSON object with string values, such as {example}."
            )
        for name in found:
            if name not in self.fields:
                raise DataError(
                    f"line {number:,} has an unknown field {name!r}.{suggest(name, self.fields)}"
                )
        if found.get(self.field):
            raise DataError(
                f"line {number:,} already has the field {self.field!r}, which is to be generated. "
                "Remove the field from the line, or generate another field: "
                f"{Option('field', next(f for f in self.fields if f != self.field))}"
            )
        return found

    def summary(self) -> str:
        return self.completer.summary.text("prompt", digits=1)


def field_prompt(given: Mapping[str, str], wanted: str | None, tokenizer: Tokenizer) -> list[int]:
    """Return the token ids of a prompt: the known fields between their marks, then the opening mark
    of the field to generate."""
    ids = [*tokenizer.prompt_ends[0]]
    for name, text in given.items():
        if text:
            before, behind = FieldMarks.of(name, tokenizer)
            ids += [before, *tokenizer.encode(text), behind]
    return ids if wanted is None else [*ids, FieldMarks.of(wanted, tokenizer).open]
