"""Few-shot prompting (GPT-3, Brown et al. 2020), and classification by the likelihood of each
label."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from headway.data.files import open_lines
from headway.decode.batching import batches, windows
from headway.decode.completer import Completer, shared_length
from headway.decode.search.searcher import SharedPrefix, too_long
from headway.decode.steps import prefill_prompts
from headway.errors import DataError, Option, UserError
from headway.nn.eval_mode import evaluating
from headway.nn.linear import packing
from headway.settings.listed import ensure_list

KINDS = {("text", "label"): ("Text: ", "\nLabel:"), ("prompt", "answer"): ("", "")}
"""Prompt format of each kind of few-shot examples. Key: names of the two fields. Value: text before
and after the input."""

BETWEEN = "\n\n"
"""Separator between two examples, as in GPT-3."""


@dataclass(frozen=True)
class FewShotExamples:
    """Few-shot examples that precede the input in the prompt.

    The model continues `prompt(text)`. All prompts begin with `prefix`.
    """

    examples: tuple[tuple[str, str], ...]
    """Pairs of input text and answer, in prompt order."""

    before: str = "Text: "
    after: str = "\nLabel:"

    @classmethod
    def read(cls, path: str | Path) -> FewShotExamples:
        """Read examples from a JSONL file whose lines are {"text": …, "label": …} or {"prompt": …,
        "answer": …}."""
        lines = ((f"{path}, line {n:,}", one) for n, one in enumerate(open_lines(str(path)), 1))
        return cls._of(str(path), ((at, _parsed(one, at)) for at, one in lines if one.strip()))

    @classmethod
    def of(cls, examples: Iterable[Mapping[str, str]]) -> FewShotExamples:
        """Build from examples in memory, which have the same fields as the lines of a file."""
        numbered = enumerate(ensure_list(examples), 1)
        return cls._of("shots", ((f"shot {number:,}", one) for number, one in numbered))

    @classmethod
    def _of(cls, path: str, found: Iterable[tuple[str, object]]) -> FewShotExamples:
        examples: list[tuple[str, str]] = []
        kind: tuple[str, str] | None = None
        for where, one in found:
            example, names = _example(one, where)
            if kind is not None and names != kind:
                raise DataError(
                    f"{where} has {names[0]!r} and {names[1]!r}, but the lines before it have "
                    f"{kind[0]!r} and {kind[1]!r}. Use the same names on every line."
                )
            kind = names
            examples.append(example)
        if kind is None:
            raise DataError(
                f"{path} contains no examples. It needs lines such as "
                f'{{"text": "…", "label": "…"}}.'
            )
        return cls(tuple(examples), *KINDS[kind])

    @property
    def labels(self) -> tuple[str, ...]:
        """Distinct answers, in order of first appearance."""
        return tuple(dict.fromkeys(answer for _, answer in self.examples))

    @property
    def prefix(self) -> str:
        """Text of all examples with their answers."""
        return "".join(f"{self.question(text)} {answer}{BETWEEN}" for text, answer in self.examples)

    def question(self, text: str) -> str:
        return f"{self.before}{text}{self.after}"

    def prompt(self, text: str) -> str:
        """Return the examples followed by the text, after which the model generates the answer."""
        return self.prefix + self.question(text)


@dataclass(frozen=True)
class FewShotPrediction:
    """Label that was chosen for a text."""

    text: str
    label: str
    log_probs: dict[str, float]
    """Log-probability of each label given the prompt, summed over its tokens. The label with the
    highest sum is chosen."""

    @property
    def probabilities(self) -> dict[str, float]:
        """Probability of each label, normalized over the labels."""
        shares = torch.tensor(list(self.log_probs.values()), dtype=torch.double).softmax(0)
        return dict(zip(self.log_probs, shares.tolist(), strict=True))


class FewShotClassifier:
    """Classifies texts by the label that the model finds most likely after the prompt.

    The examples are processed once for all texts, and each text once for all labels.
    """

    def __init__(
        self, completer: Completer, shots: FewShotExamples, labels: Sequence[str] = ()
    ) -> None:
        """Prepare the classifier. `labels`: labels to choose from; empty: those of the examples."""
        self.shots, self.labels = shots, tuple(labels) or shots.labels
        if len(set(self.labels)) < 2 or not all(self.labels):
            raise UserError(
                f"few-shot classification needs at least two different, non-empty labels, but got: "
                f"{', '.join(map(repr, self.labels))}."
            )
        if len(completer.models) != 1:
            engine = completer.engine
            other = "an ensemble" if engine is None else f"{Option('engine', engine.name)}"
            raise UserError(
                f"few-shot classification ({Option('labels')}, {Option('shots')}) needs a single "
                f"model with {Option('engine', 'torch')}, not {other}."
            )
        self.completer, self.model = completer, completer.models[0]
        self.prefix: SharedPrefix | None = None

    def __call__(self, texts: Iterable[str], *, live: bool = False) -> Iterator[FewShotPrediction]:
        """Yield a prediction per text, in order. `live`: predict immediately instead of waiting for
        texts that fill a batch."""
        first = 0
        with packing([self.model]):
            for window in windows(texts, live=live):
                prompts = [self.shots.prompt(text) for text in window]
                asked = [self._asked(prompt) for prompt in prompts]
                self._check(asked, first)
                first += len(window)
                shared = self._shared([ids for ids, _ in asked])
                found: dict[int, list[list[float]]] = {}
                room = max(1, self.completer.settings.batch_tokens // len(self.labels))
                known = 0 if shared is None else len(shared.tokens)
                for group in batches([len(ids) - known for ids, _ in asked], room):
                    scored = self._scored([asked[place] for place in group], shared)
                    found |= dict(zip(group, scored, strict=True))
                for place, text in enumerate(window):
                    logs = dict(zip(self.labels, map(sum, found[place]), strict=True))
                    yield FewShotPrediction(text, max(logs, key=lambda label: logs[label]), logs)

    def _asked(self, prompt: str) -> tuple[list[int], list[list[int]]]:
        """Return the tokens of the prompt, and the tokens of each label after it.

        Prompt and label are tokenized together, as in training. The tokens that all labels share
        count as the prompt.
        """
        tokenizer = self.completer.tokenizer
        whole = tokenizer.encode_batch([f"{prompt} {label}" for label in self.labels])
        whole = [tokenizer.as_open_prompt(tokens) for tokens in whole]
        if not shared_length(whole):  # there must be a token before the labels
            whole = [[tokenizer.bos, *tokens] for tokens in whole]
        n = min(shared_length(whole), max(1, len(self.completer.ids(prompt))))
        n = min(n, *(len(tokens) - 1 for tokens in whole))
        return whole[0][:n], [tokens[n:] for tokens in whole]

    def _check(self, asked: Sequence[tuple[list[int], list[list[int]]]], first: int) -> None:
        context = self.completer.context
        for number, (ids, answers) in enumerate(asked, first + 1):
            n_tokens = len(ids) + max(map(len, answers)) - 1
            if context is not None and n_tokens > context:
                what = f"text {number:,} with its {len(self.shots.examples):,} examples"
                raise too_long(what, n_tokens, context)

    def _shared(self, prompts: Sequence[list[int]]) -> SharedPrefix | None:
        if self.prefix is None or not all(map(self.prefix.is_prefix_of, prompts)):
            examples = self.completer.ids(self.shots.prefix)
            n = min(shared_length([*prompts, examples]), *(len(ids) - 1 for ids in prompts))
            self.prefix = SharedPrefix([self.model], prompts[0][:n]) if n else None
        return self.prefix

    @torch.no_grad()
    def _scored(
        self, asked: Sequence[tuple[list[int], list[list[int]]]], shared: SharedPrefix | None
    ) -> list[list[list[float]]]:
        """Return the log-probability of each token of each label given the prompt, for each
        text."""
        n_labels = len(self.labels)
        with evaluating([self.model]):
            longest = max(len(answer) for _, answers in asked for answer in answers)
            cache, last_BD = prefill_prompts(
                self.model,
                [ids for ids, _ in asked],
                longest,
                None if shared is None else shared.caches[0],
            )
            first_BV = self.model.scores(last_BD).float().log_softmax(-1)
            cache.select([row for row in range(len(asked)) for _ in range(n_labels)])
            rests = [answer[:-1] for _, answers in asked for answer in answers]
            layout = cache.layout([len(rest) for rest in rests], first_BV.device)
            rows: list[Tensor] = [first_BV.new_zeros(0, first_BV.shape[1])] * len(rests)
            if layout.n_rows:
                tokens_N = torch.tensor([t for rest in rests for t in rest], device=first_BV.device)
                x_ND = self.model(tokens_N, layout, cache)
                rows = layout.split(self.model.scores(x_ND).float().log_softmax(-1))
        return [
            [
                _picked(first_BV[number], rows[number * n_labels + place], answer)
                for place, answer in enumerate(answers)
            ]
            for number, (_, answers) in enumerate(asked)
        ]


def _picked(first_V: Tensor, rest_TV: Tensor, answer: Sequence[int]) -> list[float]:
    rest = [float(row_V[token]) for row_V, token in zip(rest_TV, answer[1:], strict=True)]
    return [float(first_V[answer[0]]), *rest]


def _parsed(line: str, where: str) -> object:
    try:
        return json.loads(line)
    except ValueError as error:
        raise DataError(f"{where} is not valid JSON: {error}.") from error


def _example(found: object, where: str) -> tuple[tuple[str, str], tuple[str, str]]:
    """Return the input and the answer of a few-shot example, and the names of their two fields."""
    for names in KINDS:
        if isinstance(found, Mapping) and all(isinstance(found.get(name), str) for name in names):
            return (found[names[0]], found[names[1]]), names
    raise DataError(
        f'{where} must be an object such as {{"text": "…", "label": "…"}} or '
        '{"prompt": "…", "answer": "…"}, with strings as values.'
    )
