"""The minimal GPT: short, made of `headway.nn` alone, causal, and able to learn."""

from __future__ import annotations

import ast
import collections
import math
import sys
from pathlib import Path

import minimal
import pytest
import torch

from headway.nn.cache import Cache
from headway.nn.layout import Layout

SOURCE = Path(minimal.__file__).read_text(encoding="utf-8")
TEXT = "the cat sat on the mat and the dog sat on the log.\n" * 60


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"D_MODEL": 32, "D_FF": 64, "N_LAYERS": 2, "CONTEXT": 32}.items():
        monkeypatch.setattr(minimal, name, value)
    torch.manual_seed(0)


def imported() -> set[str]:
    modules = set()
    for node in ast.walk(ast.parse(SOURCE)):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            modules.add(str(node.module))
    return modules


def test_it_is_short_and_needs_only_the_building_blocks() -> None:
    assert len(SOURCE.splitlines()) <= 200
    others = {name for name in imported() if name.split(".")[0] not in sys.stdlib_module_names}
    parts = {name for name in others if name.startswith("headway.nn.")}
    assert others - parts == {"headway", "torch", "torch.nn.functional"}


def test_torch_is_loaded_with_threads_that_sleep() -> None:
    names = [alias.name for node in ast.parse(SOURCE).body if isinstance(node, ast.Import)
             for alias in node.names]  # fmt: skip
    assert names.index("headway") < names.index("torch")


def test_a_character_does_not_change_the_logits_before_it() -> None:
    model = learned()
    tokens_N = torch.randint(20, (16,))
    changed_N = tokens_N.clone()
    changed_N[8] = (tokens_N[8] + 1) % 20
    layout = Layout.of([16])
    same_N = (model(tokens_N, layout) - model(changed_N, layout)).abs().amax(-1) < 1e-5
    assert same_N.tolist() == [True] * 8 + [False] * 8


def test_a_shorter_window_needs_no_padding() -> None:
    model = learned()
    text_N = torch.randint(20, (50,))
    inputs_N, targets_N, layout = minimal.windows(text_N, [0, 32])
    assert layout.lengths == (32, 17)
    assert targets_N.tolist() == text_N[1:33].tolist() + text_N[33:].tolist()
    alone = model(inputs_N[32:], Layout.of([17]))
    torch.testing.assert_close(model(inputs_N, layout)[32:], alone)


def test_the_cache_gives_the_logits_of_one_pass() -> None:
    model = learned()
    tokens_N = torch.randint(20, (12,))
    cache = Cache(minimal.N_LAYERS, n_rows=1, capacity=12)
    steps = [model(token, cache.layout(1), cache) for token in tokens_N.split(1)]
    torch.testing.assert_close(torch.cat(steps), model(tokens_N, Layout.of([12])))


def test_it_learns_more_than_frequencies_of_characters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text").write_text(TEXT)
    words = ["minimal", "--text", str(tmp_path / "text"), "--steps", "100"]
    monkeypatch.setattr(sys, "argv", words)
    minimal.main()
    printed = capsys.readouterr().out.splitlines()
    (line,) = [line for line in printed if line.startswith("validation loss")]
    counts = collections.Counter(TEXT)
    entropy = -sum(n / len(TEXT) * math.log(n / len(TEXT)) for n in counts.values())
    assert float(line.split()[2]) < entropy - 1.0
    written = "\n".join(printed[printed.index(line) + 2 :])
    assert len(written) == 401  # the prompt and what follows it
    assert set(written) <= set(TEXT)


def test_sampling_never_leaves_the_trained_context(monkeypatch: pytest.MonkeyPatch) -> None:
    model = learned()
    reaches: list[tuple[int, int]] = []
    forward = model.forward

    def watched(tokens_N: torch.Tensor, layout: Layout, cache: Cache) -> torch.Tensor:
        reaches.append((len(tokens_N), layout.reach))
        return forward(tokens_N, layout, cache)

    monkeypatch.setattr(model, "forward", watched)
    written = minimal.sample(model, torch.tensor([3]), n_new=70)
    assert written[0] == 3
    assert len(written) == 71
    assert max(reach for _, reach in reaches) == minimal.CONTEXT
    assert [n for n, _ in reaches if n > 1] == [16] * 3


def learned() -> minimal.GPT:
    """Return a model after some steps: attention of a fresh one adds nothing yet."""
    model = minimal.GPT(20)
    minimal.train(model, torch.randint(20, (400,)), steps=5)
    return model.eval()
