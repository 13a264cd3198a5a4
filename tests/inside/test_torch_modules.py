"""Modules of torch, copied and recorded: the output is theirs, and so are the attention weights."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from headway.errors import UserError
from headway.inside.capture.torch_modules import from_torch
from headway.inside.capture.trace import FACTS, TENSORS, Trace
from headway.inside.page.look import look
from headway.web.pack import unpack

from .browser import browser as browser
from .browser import open_page

D, HEADS, FF = 24, 4, 40


def randomised(module: nn.Module) -> nn.Module:
    """Every weight random, also those that start as zero or one."""
    torch.manual_seed(0)
    with torch.no_grad():
        for name, weight in module.named_parameters():
            if weight.ndim > 1:
                weight.normal_(0.0, weight.shape[1] ** -0.5)
            else:
                weight.normal_(float(name.endswith("weight")), 0.3)
    return module.eval()


def layer(kind: type[nn.Module], **given: object) -> nn.Module:
    options = {"dropout": 0.1, "batch_first": True, **given}
    return randomised(kind(D, HEADS, FF, **options))


def later(n: int) -> Tensor:
    return torch.ones(n, n, dtype=torch.bool).triu(1)


def x(length: int, seed: int = 1) -> Tensor:
    return torch.randn(length, D, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_an_encoder_layer_gives_its_output_and_its_weights(
    norm_first: bool, activation: str, bias: bool, causal: bool
) -> None:
    module = layer(
        nn.TransformerEncoderLayer, norm_first=norm_first, activation=activation, bias=bias
    )
    x_TD = x(6)
    found = from_torch(module, x_TD, causal=causal)
    mask = later(6) if causal else None
    torch.testing.assert_close(found.scores_RC, module(x_TD, src_mask=mask), atol=1e-5, rtol=0)
    seen = module.norm1(x_TD) if norm_first else x_TD
    _, weights_1HTS = module.self_attn(
        *[seen[None]] * 3, attn_mask=mask, average_attn_weights=False
    )
    torch.testing.assert_close(found.attention["self"][0], weights_1HTS[0], atol=1e-6, rtol=0)
    assert list(found.states) == ["self"]
    assert found.hidden["self"][0].shape == (6, FF)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")  # of the module's maker
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_a_whole_transformer_gives_its_output(batch_first: bool, causal: bool) -> None:
    module = randomised(
        nn.Transformer(D, HEADS, 2, 3, FF, activation="gelu", batch_first=batch_first)
    )
    source_SD, target_TD = x(5), x(7, seed=2)
    found = from_torch(module, source_SD, target_TD, causal=causal)
    axis = 0 if batch_first else 1
    theirs = module(
        source_SD.unsqueeze(axis),
        target_TD.unsqueeze(axis),
        tgt_mask=later(7) if causal else None,
    )
    torch.testing.assert_close(found.scores_RC, theirs.squeeze(axis), atol=1e-5, rtol=0)
    shapes = {kind: [tuple(w.shape) for w in layers] for kind, layers in found.attention.items()}
    assert shapes == {
        "encoder": [(HEADS, 5, 5)] * 2,
        "decoder": [(HEADS, 7, 7)] * 3,
        "cross": [(HEADS, 7, 5)] * 3,
    }
    assert [len(states) for states in found.states.values()] == [3, 4]
    assert list(found.reading.streams) == ["source", "target"]
    # What an encoder hands over is what cross attention reads: its values follow from it.
    memory_SD = module.encoder(source_SD.unsqueeze(axis)).squeeze(axis)
    cross = module.decoder.layers[0].multihead_attn
    values = nn.functional.linear(
        memory_SD, cross.in_proj_weight[2 * D :], cross.in_proj_bias[2 * D :]
    )
    torch.testing.assert_close(found.values["cross"][0].flatten(1), values, atol=1e-5, rtol=0)


def test_a_gpt_shaped_stack_of_encoder_layers_is_causal() -> None:
    one = layer(nn.TransformerEncoderLayer, norm_first=True, activation="gelu")
    module = randomised(
        nn.TransformerEncoder(one, 3, norm=nn.LayerNorm(D), enable_nested_tensor=False)
    )
    x_1TD = x(9)[None]
    found = from_torch(module, x_1TD, labels=list("headways!"), causal=True)
    theirs = module(x_1TD, mask=later(9))
    torch.testing.assert_close(found.scores_RC, theirs[0], atol=1e-5, rtol=0)
    assert all(weights.triu(1).abs().max() == 0 for weights in found.attention["self"])
    assert found.reading.streams["text"].pieces == tuple("headways!")
    # The states are before the last norm, the output behind it.
    torch.testing.assert_close(
        module.norm(found.states["self"][-1]), found.scores_RC, atol=1e-5, rtol=0
    )


def test_a_decoder_alone_takes_its_target_and_its_memory() -> None:
    one = layer(nn.TransformerDecoderLayer)
    module = randomised(nn.TransformerDecoder(one, 2))
    target_TD, memory_SD = x(4), x(6, seed=2)
    found = from_torch(module, target_TD, memory_SD, labels=[list("abcd"), list("uvwxyz")])
    theirs = module(target_TD, memory_SD)
    torch.testing.assert_close(found.scores_RC, theirs, atol=1e-5, rtol=0)
    assert found.attention["cross"][1].shape == (HEADS, 4, 6)
    assert found.reading.streams["source"].pieces == tuple("uvwxyz")
    assert found.reading.last.name == "target"
    single = from_torch(one, target_TD, memory_SD, causal=True)
    theirs = one(target_TD, memory_SD, tgt_mask=later(4))
    torch.testing.assert_close(single.scores_RC, theirs, atol=1e-5, rtol=0)


def test_the_module_is_left_as_it_was() -> None:
    module = layer(nn.TransformerEncoderLayer).double().train()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    found = from_torch(module, x(3).double())
    assert module.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert found.scores_RC is not None
    assert found.scores_RC.dtype == torch.float32


def test_a_trace_of_a_module_can_be_saved_and_loaded(tmp_path: Path) -> None:
    found = from_torch(layer(nn.TransformerEncoderLayer), x(3), labels=["a", "b", "<i>"])
    found.save(tmp_path)
    again = Trace.load(tmp_path)
    assert again.reading == found.reading
    assert torch.equal(again.attention["self"][0], found.attention["self"][0])
    assert torch.equal(again.scores_RC, found.scores_RC)


class Doubled(nn.TransformerEncoderLayer):
    def forward(self, *given: Tensor, **more: object) -> Tensor:
        return 2 * super().forward(*given, **more)


class Gated(nn.TransformerEncoderLayer):
    def __init__(self, *given: int, **more: object) -> None:
        super().__init__(*given, **more)
        self.activation = torch.tanh


class Mixed(nn.TransformerEncoderLayer):
    def __init__(self, *given: int, **more: object) -> None:
        super().__init__(*given, **more)
        self.norm1 = nn.GroupNorm(1, D)


def narrow() -> nn.Module:
    module = layer(nn.TransformerDecoderLayer)
    module.multihead_attn = nn.MultiheadAttention(D, HEADS, kdim=8, vdim=8, batch_first=True)
    return module


def custom() -> nn.Module:
    return nn.Transformer(D, HEADS, custom_encoder=nn.Linear(D, D), dim_feedforward=FF).eval()


@pytest.mark.parametrize(
    ("module", "inputs", "message"),
    [
        (nn.Linear(D, D), [x(3)], "(?=.*Linear)(?=.*TransformerDecoderLayer)"),
        (layer(Doubled), [x(3)], "Doubled"),
        (layer(Gated), [x(3)], r"(?=.*\btanh\b)(?=.*\blayer 1\b)"),
        (layer(Mixed), [x(3)], "GroupNorm"),
        (narrow(), [x(3), x(3)], "kdim"),
        (custom(), [x(3), x(3)], r"^(?!.*Decoder)(?=.*Linear)(?=.*TransformerEncoder\b)"),
        (layer(nn.TransformerEncoderLayer), [x(3), x(3)], r"TransformerEncoderLayer.*\b1\b.*\b2\b"),
        (layer(nn.TransformerEncoderLayer), [x(4).reshape(2, 2, D)], r"\(2, 2, 24\)"),
        (layer(nn.TransformerEncoderLayer), [torch.randn(3, 5)], r"\(3, 5\).*\b24\b"),
        (layer(nn.TransformerEncoderLayer), [torch.zeros(0, D)], r"\(0, 24\)"),
        (layer(nn.TransformerEncoderLayer), [torch.ones(3, D).long()], "tensor"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_copied_is_refused(
    module: nn.Module, inputs: list[Tensor], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        from_torch(module, *inputs)


@pytest.mark.parametrize("labels", ["abc", ["a", "b"], [["a", "b", "c"], ["d"]]])
def test_labels_must_fit(labels: object) -> None:
    with pytest.raises(UserError, match="labels"):
        from_torch(layer(nn.TransformerEncoderLayer), x(3), labels=labels)


def test_a_trace_that_another_program_wrote_is_shown(tmp_path: Path) -> None:
    """The schema of docs/look/page.md, with nothing in it that is not needed."""
    weights_HTS = torch.rand(2, 3, 3).softmax(-1)
    save_file({"attention.self.0": weights_HTS}, tmp_path / "trace.safetensors")
    facts = {
        "version": 1,
        "reading": {
            "text": "a b c",
            "task": "vectors",
            "streams": {
                "text": {
                    "ids": [5, 6, 7],
                    "pieces": ["a", "b", "<b>c"],
                    "words": [0, 1, 2],
                    "special": [False, False, False],
                }
            },
            "outputs": [],
        },
        "beam": None,
        "meta": {},
    }
    (tmp_path / "trace.json").write_text(json.dumps(facts))
    shown = unpack(look(Trace.load(tmp_path)).html)
    seen = shown["looks"][0]
    assert seen["streams"]["text"]["pieces"] == ["a", "b", "<b>c"]
    (kind,) = seen["sections"]["attention"]["kinds"]
    np.testing.assert_allclose(kind["layers"][0], weights_HTS, atol=1 / 255)


def test_a_module_without_a_run_has_the_panels_that_need_none(browser: Any, tmp_path: Path) -> None:
    one = layer(nn.TransformerEncoderLayer)
    module = randomised(nn.TransformerEncoder(one, 2))
    found = from_torch(module, x(4), labels=["the", "cat", "sat", "<img src=x>"])
    page = open_page(browser, look(found).html, tmp_path)
    for name in [node.get_attribute("data-tab") for node in page.locator("[data-tab]").all()]:
        page.tab(name)
        assert page.locator(".failed").count() == 0, name
    page.tab("attention")
    assert page.locator("img").count() == 0
    page.close()


@pytest.mark.parametrize(
    ("tensors", "changes", "message"),
    [
        ({"attention.self.0": (2, 3, 4)}, {}, r"attention\.self\.0.*\(2, 3, 4\).*3 × 3"),
        ({"attention.self.0": (3, 3)}, {}, r"attention\.self\.0.*\(3, 3\)"),
        ({"attention.mine.0": (2, 3, 3)}, {}, r"attention\.mine.*encoder"),
        ({"attention.cross.0": (2, 3, 3)}, {}, r"'target'.*\btext\b"),
        ({"states.self.0": (3, 5)}, {}, r"^(?!.*states\.self)(?=.*attention\.)"),
        ({"attention.self.0": (2, 3, 3), "states.self.1": (3, 5)}, {}, "KeyError"),
        (
            {"attention.self.0": (2, 3, 3), "states.self.0": (4, 5)},
            {},
            r"states\.self\.0.*\(4, 5\).*3 ×",
        ),
        ({"attention.self.0": (2, 3, 3)}, {"words": [0]}, r"\b3 pieces.*\b1 words"),
        ({"attention.self.0": (2, 3, 3)}, {"pieces": [1, 2, 3]}, r"^(?!.*3 pieces).*\bpieces\b"),
        ({"attention.self.0": (2, 3, 3), "scores": (2, 9)}, {}, r"scores.*\(2, 9\).*\b1\b"),
        ({"attention.self.0": (2, 3, 3), "scores": (1, 2)}, {}, r"scores.*\b2\b.*\b7\b"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_inconsistent_trace_is_an_error(
    tmp_path: Path, tensors: dict[str, tuple[int, ...]], changes: dict[str, Any], message: str
) -> None:
    save_file({name: torch.ones(shape) for name, shape in tensors.items()}, tmp_path / TENSORS)
    stream = {"ids": [5, 6, 7], "pieces": list("abc"), "words": [0, 1, 2], "special": [False] * 3}
    reading = {
        "text": "a b c",
        "task": "complete",
        "streams": {"text": stream | changes},
        "outputs": [{"row": 0, "id": 7, "name": "c"}],
    }
    facts = {"version": 1, "reading": reading, "beam": None, "meta": {}}
    (tmp_path / FACTS).write_text(json.dumps(facts))
    with pytest.raises(UserError, match=message):
        Trace.load(tmp_path)


def test_what_the_documentation_shows_is_true(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (Path(__file__).parents[2] / "docs/look/page.md").read_text()
    program, printed = re.findall(r"```python\n([^`]*)```\n\n```text\n([^`]*)```", text)[0]
    monkeypatch.chdir(tmp_path)
    exec(compile(program, "look.md", "exec"), {})
    assert capsys.readouterr().out == printed
    assert (tmp_path / "module.html").is_file()
    (facts,) = re.findall(r"```json\n([^`]*)```", text)
    (tmp_path / FACTS).write_text(facts)
    tensors = {"attention.self.0": torch.rand(2, 3, 3), "scores": torch.rand(1, 10)}
    save_file(tensors, tmp_path / TENSORS)
    assert Trace.load(tmp_path).reading.outputs[0].name == "down"
