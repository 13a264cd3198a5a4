"""Examples in the prompt: the text they make, and labels by likelihood."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from headway.errors import DataError, UserError
from headway.nn.layout import Layout
from headway.settings.decode import DecodeSettings
from headway.tasks.fewshot import FewShotClassifier, FewShotExamples

from ..decode.writing import completer, tokenizer, writer
from ..facts import missing

GREEDY = DecodeSettings(beam=1, max_len=8, stop=("\n",))
SHOTS = FewShotExamples((("good", "up"), ("bad", "down")))
TEXTS = ["good", "bad", "the cat", "good bad", "one"]


def test_the_prompt_is_examples_then_the_text(tmp_path: Path) -> None:
    path = tmp_path / "shots.jsonl"
    path.write_text('{"text": "good", "label": "up"}\n\n{"text": "bad", "label": "down"}\n')
    assert FewShotExamples.read(path) == SHOTS
    assert SHOTS.labels == ("up", "down")
    assert SHOTS.prompt("good") == (
        "Text: good\nLabel: up\n\nText: bad\nLabel: down\n\nText: good\nLabel:"
    )
    path.write_text('{"prompt": "Q: 1+1\\nA:", "answer": "2"}\n')
    assert FewShotExamples.read(path).prompt("Q: 2+2\nA:") == "Q: 1+1\nA: 2\n\nQ: 2+2\nA:"
    [found] = completer(GREEDY).complete([SHOTS.prompt("good")], shared=SHOTS.prefix)
    assert found.text == " up"


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("{", ("1", "JSON")),
        ('{"text": "a"}', ("1", '"text"', '"label"', '"prompt"', '"answer"')),
        ('{"text": "a", "label": 3}', ("1", '"text"', '"label"', '"prompt"', '"answer"')),
        ("\n", ('"text"', '"label"')),
        (
            '{"text": "a", "label": "b"}\n{"prompt": "a", "answer": "b"}',
            ("2", "'prompt'", "'answer'", "'text'", "'label'"),
        ),
    ],
)
def test_errors_in_examples_name_the_line(
    tmp_path: Path, text: str, facts: tuple[str, ...]
) -> None:
    path = tmp_path / "shots.jsonl"
    path.write_text(text)
    with pytest.raises(DataError) as caught:
        FewShotExamples.read(path)
    assert not missing(caught.value, str(path), *facts)


def log_prob(prompt: str, label: str) -> float:
    """In one pass over everything."""
    inner = tokenizer()
    before, ids = inner.encode(prompt), inner.encode(f"{prompt} {label}")
    assert ids[: len(before)] == before
    tokens = torch.tensor([inner.bos, *ids])
    with torch.no_grad():
        x_ND = writer()(tokens, Layout.of([len(tokens)]))
        logs_NV = writer().scores(x_ND).log_softmax(-1)
    places = range(len(before), len(ids))
    return sum(float(logs_NV[i, ids[i]]) for i in places)


def test_labels_are_scored_as_in_one_pass() -> None:
    labels = ("up", "down", "quite another")
    found = list(FewShotClassifier(completer(GREEDY), SHOTS, labels)(TEXTS))
    assert [choice.text for choice in found] == TEXTS
    for choice in found:
        for label in labels:
            total = log_prob(SHOTS.prompt(choice.text), label)
            assert choice.log_probs[label] == pytest.approx(total, abs=1e-3)
        assert choice.label == max(labels, key=lambda label: choice.log_probs[label])
        assert sum(choice.probabilities.values()) == pytest.approx(1.0)
    assert found[0].label == "up"


def test_the_examples_are_read_once_and_a_text_once_for_all_labels() -> None:
    rows: list[int] = []
    hook = writer().stack.register_forward_hook(lambda part, inputs, out: rows.append(len(out)))
    chooser = FewShotClassifier(completer(GREEDY), SHOTS)
    list(chooser(TEXTS))
    inner = tokenizer()
    n = len(inner.encode(SHOTS.prefix)) + 1
    queries = sum(len(inner.encode(SHOTS.prompt(text))) + 1 - n for text in TEXTS)
    sizes = [len(inner.encode(f"Label: {label}")) for label in SHOTS.labels]
    answers = len(TEXTS) * sum(size - len(inner.encode("Label:")) - 1 for size in sizes)
    shared = rows[0]
    assert 0 <= shared - n <= 2  # what all texts begin with belongs to it
    assert rows[1] == queries - (shared - n) * len(TEXTS)
    assert rows[2] == answers
    rows.clear()
    list(chooser(["good"]))
    hook.remove()
    assert rows[0] == len(inner.encode(SHOTS.prompt("good"))) + 1 - shared


def test_a_choice_needs_two_labels_and_texts_that_fit() -> None:
    with pytest.raises(UserError, match="'up'"):
        FewShotClassifier(completer(GREEDY), SHOTS, ["up"])
    with pytest.raises(UserError, match=r"\b1\b.*\b2\b.*\b211\b.*\b96\b"):
        list(FewShotClassifier(completer(GREEDY, context=96), SHOTS)(["the cat " * 60]))
