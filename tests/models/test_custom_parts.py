"""Parts of one's own: one seam, through which a run is trained, goes on and is opened again."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headway
from headway.errors import ConfigError, FolderError, Stopped, UserError
from headway.models.build import build_model
from headway.models.parts import custom
from headway.models.parts.custom import Parts, register_parts
from headway.nn.attention.scope import AttentionSpec
from headway.nn.block import PreNorm
from headway.nn.layout import Layout
from headway.settings.model import DecoderSettings

SHAPE = DecoderSettings(vocab_size=11, d_model=8, n_layers=2, n_heads=2, d_ff=16, max_len=32)
TEXTS = [f"the {one} sat by the {other} door" for one in "abcdefg" for other in "hijklm"]
SETTINGS: dict[str, Any] = {
    "model.d_model": 16, "model.n_layers": 1, "model.n_heads": 2, "model.d_ff": 32,
    "model.dropout": 0.1, "tokenizer.kind": "characters", "train.steps": 8, "train.eval_every": 4,
    "train.batch_tokens": 256, "train.threads": 1, "complete.context": 32, "data.valid_size": 4,
}  # fmt: skip


class NoSkip(PreNorm):
    def forward(self, x_ND: Tensor, layout: Layout, *more: Any) -> Tensor:
        return self.feed_forward(self.attention(self.norm_attention(x_ND), layout))


class Nowhere(nn.Module):
    def forward(self, x_ND: Tensor, layout: Layout) -> Tensor:
        return x_ND * 0


@pytest.fixture(autouse=True)
def unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test begins in a process that was given none."""
    monkeypatch.setattr(custom, "REGISTERED", {})


def teach(out: Path, **more: Any) -> headway.Run:
    given = {"settings": SETTINGS, "device": "cpu", "quiet": True} | more
    return headway.train("complete", {"text": TEXTS}, out=out, **given)


def test_each_part_takes_the_place_of_the_usual_one() -> None:
    places = []

    def scope(usual: AttentionSpec, kind: str, layer: int) -> AttentionSpec:
        places.append((kind, layer))
        return replace(usual, scale=0.5 + layer)

    register_parts(Parts(name="own", block=NoSkip, positions=lambda *_: Nowhere(), scope=scope))
    model: Any = build_model(replace(SHAPE, parts="own"))
    assert [type(block) for block in model.stack.blocks] == [NoSkip, NoSkip]
    assert [block.attention.scope.scale for block in model.stack.blocks] == [0.5, 1.5]
    assert model.stack.blocks[0].attention.scope.causal
    assert places == [("self", 0), ("self", 1)]
    tokens_N, layout = torch.tensor([1, 2, 3]), Layout.of([3])
    assert not model.front(tokens_N, layout).any()
    usual: Any = build_model(SHAPE)
    assert type(usual.stack.blocks[0]) is PreNorm
    assert usual.front(tokens_N, layout).any()


def test_a_run_keeps_the_name_and_needs_its_parts_to_resume(tmp_path: Path) -> None:
    parts = Parts(name="no-skip", block=NoSkip)
    whole = teach(tmp_path / "whole", parts=parts)
    assert type(whole.model.stack.blocks[0]) is NoSkip  # type: ignore[union-attr,index]
    assert 'parts = "no-skip"' in (whole.folder / "config.toml").read_text()

    def stop(row: Any) -> None:
        if row["kind"] == "valid":
            os.kill(os.getpid(), signal.SIGINT)

    out = tmp_path / "run"
    with pytest.raises(Stopped):
        teach(out, parts=parts, on=stop)
    with pytest.raises(
        FolderError, match=r'(?s)model\.parts.*"no-skip".*headway\.train\(.*parts=…'
    ):
        teach(out)
    with pytest.raises(FolderError, match=r"headway.train\(…, parts=…, out="):
        headway.load(out)
    again = teach(out, parts=parts)
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, again.model.state_dict()[name]), name
    assert again("the", max_len=3).text == whole("the", max_len=3).text

    custom.REGISTERED.clear()
    with pytest.raises(UserError, match=r"'no-skip'.*headway\.load\(.*parts=…"):
        headway.load(out).model  # noqa: B018
    with pytest.raises(FolderError, match=r"\brun\b.*'no-skip'.*'x'"):
        headway.load(out, parts=Parts(name="x"))
    assert type(headway.load(out, parts=parts).model.stack.blocks[0]) is NoSkip  # type: ignore[union-attr,index]


def test_invalid_parts_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"NoSkip.*headway\.Parts"):
        teach(tmp_path, parts=NoSkip)
    with pytest.raises(ConfigError, match="name=' '"):
        Parts(name=" ")
    with pytest.raises(ConfigError, match=r"model\.parts\b(?!=).*\bparts="):
        teach(tmp_path, parts=Parts(name="a"), settings={**SETTINGS, "model.parts": "a"})
    with pytest.raises(UserError, match=r"model\.parts='a'.*parts=…"):
        teach(tmp_path / "by-word", settings={**SETTINGS, "model.parts": "a"})
