"""ViT and DeiT of `transformers`: the same scores of the same images, and back again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from headway.errors import UserError
from headway.interop.exporting import export_run
from headway.interop.importing import import_run
from headway.interop.proof_inputs import proof_images
from headway.models.build import build_model
from headway.models.folder import model_weights, save_weights
from headway.settings.folder import CONFIG, load_run
from headway.settings.run import RunSettings, resolved_toml
from headway.settings.vision import ImageEncoderSettings, ImageSettings
from headway.storage import replace_text
from headway.tasks.loaded_run import open_plain

from .theirs import architecture, check, ours, reference, saved

VIT: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
VIT |= {"intermediate_size": 40, "image_size": 16, "patch_size": 4, "num_labels": 5}
NAMES = ["cat", "dog", "a bird", "fish", "éléphant"]

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "vit": ("ViTForImageClassification", VIT),
    "vit, odd sizes, grey, few biases": (
        "ViTForImageClassification",
        {**VIT, "image_size": [14, 21], "num_channels": 1, "qkv_bias": False, "patch_size": 5,
         "hidden_act": "gelu_new", "layer_norm_eps": 1e-5},
    ),
    "vit alone": ("ViTModel", VIT),
    "deit": ("DeiTForImageClassification", VIT),
    "deit with a teacher": ("DeiTForImageClassificationWithTeacher", {**VIT, "patch_size": 8}),
    "deit alone": ("DeiTModel", {**VIT, "qkv_bias": False}),
}  # fmt: skip


def images(theirs: Any, n: int, *, size: tuple[int, int] | None = None) -> Tensor:
    """Random ones (B T C Y X), of the model's own size if none is given."""
    own = theirs.config.image_size
    height, width = size or (own if isinstance(own, list | tuple) else (own, own))
    draw = torch.Generator().manual_seed(3)
    shape = (n, 1, theirs.config.num_channels, height, width)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=draw)


def prepared(x_BTCYX: Tensor) -> Tensor:
    return (x_BTCYX[:, 0] / 255 - 0.5) / 0.5


@torch.no_grad()
def our_output(model: Any, x_BTCYX: Tensor) -> Tensor:
    """By our model: scores of classes, or vectors of images."""
    given, layout = model.front.collate(list(x_BTCYX))
    x_ND = model(given, layout)
    return model.classes(x_ND, layout) if "classes" in model.heads else model.pooled(x_ND, layout)


@torch.no_grad()
def their_output(model: Any, pixels_BCYX: Tensor, **options: Any) -> Tensor:
    found = model(pixels_BCYX, **options)
    return found.logits if "logits" in found else found.pooler_output


def of_their_kind(name: str) -> Any:
    kind, sizes = MODELS[name]
    theirs = reference(kind, sizes)
    if not kind.startswith("DeiT"):
        return theirs
    # Its own beginning has zeros for the first rows and the positions.
    for part in ("cls_token", "distillation_token", "position_embeddings"):
        getattr(theirs.base_model.embeddings, part).data.normal_(0.0, 0.5)
    return theirs


@pytest.mark.parametrize("name", MODELS)
def test_the_scores_are_those_of_the_reference(name: str, tmp_path: Path) -> None:
    theirs = of_their_kind(name)
    mine = with_half(ours(saved(theirs, tmp_path)))
    x_BTCYX = images(theirs, 3)
    check(our_output(mine, x_BTCYX), their_output(theirs, prepared(x_BTCYX)))


def with_half(model: Any) -> Any:
    """DeiT's usual mean and deviation are others; here all are prepared alike."""
    for name in ("mean_C11", "std_C11"):
        setattr(model.front, name, torch.full((1, 1, 1), 0.5))
    return model


@pytest.mark.parametrize("name", ["vit", "deit with a teacher"])
@pytest.mark.parametrize("size", [(24, 24), (8, 32), (17, 30)])
def test_other_resolutions_interpolate_positions_as_the_reference(
    name: str, size: tuple[int, int], tmp_path: Path
) -> None:
    theirs = of_their_kind(name)
    mine = with_half(ours(saved(theirs, tmp_path)))
    x_BTCYX = images(theirs, 2, size=size)
    expected = their_output(theirs, prepared(x_BTCYX), interpolate_pos_encoding=True)
    check(our_output(mine, x_BTCYX), expected)


def test_images_of_several_sizes_in_one_batch_are_each_read_as_alone(tmp_path: Path) -> None:
    theirs = of_their_kind("vit")
    mine = with_half(ours(saved(theirs, tmp_path)))
    sizes = [(16, 16), (24, 8), (16, 16), (12, 20)]
    items = [images(theirs, n + 1, size=size)[n] for n, size in enumerate(sizes)]
    alone = [their_output(theirs, prepared(x[None]), interpolate_pos_encoding=True) for x in items]
    given, layout = mine.front.collate(items)
    with torch.no_grad():
        check(mine.classes(mine(given, layout), layout), torch.cat(alone))


def folder_of(tmp_path: Path, name: str, **preprocessor: Any) -> tuple[Path, Any]:
    theirs = of_their_kind(name)
    theirs.config.id2label = dict(enumerate(NAMES))
    theirs.config.label2id = {label: i for i, label in enumerate(NAMES)}
    folder = saved(theirs, tmp_path / "theirs")
    if preprocessor:
        (folder / "preprocessor_config.json").write_text(json.dumps(preprocessor))
    return folder, theirs


@pytest.mark.parametrize("name", ["vit", "vit alone", "deit with a teacher"])
def test_an_import_goes_back_with_the_same_bytes(name: str, tmp_path: Path) -> None:
    size = {"height": 16, "width": 16}
    kind = "DeiT" if "deit" in name else "ViT"
    facts = {"image_processor_type": f"{kind}ImageProcessor", "size": size, "do_resize": True}
    facts |= {"do_center_crop": False}
    facts |= {"image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.3, 0.25]}
    folder, _ = folder_of(tmp_path, name, **facts)
    done = import_run(str(folder), tmp_path / "run")
    assert (done.settings.task, done.settings.classify.modality) == ("classify", "image")
    assert done.settings.labels == (() if "alone" in name else tuple(NAMES))
    proof = export_run(str(tmp_path / "run"), "hf", tmp_path / "back")
    assert proof.passed, proof.text()
    assert any("image processor" in note for note in proof.notes)
    before, after = (load_file(path / "model.safetensors") for path in (folder, tmp_path / "back"))
    assert list(before) == list(after)
    assert all(torch.equal(before[key], after[key]) for key in before)
    for file in ("config.json", "preprocessor_config.json"):
        assert json.loads((folder / file).read_text()) == json.loads(
            (tmp_path / "back" / file).read_text()
        )


@pytest.mark.parametrize(
    ("facts", "mean", "std"),
    [
        ({"image_mean": [0.1, 0.2, 0.3], "image_std": [0.5, 0.4, 0.3]},
         (0.1, 0.2, 0.3), (0.5, 0.4, 0.3)),
        ({"do_normalize": False}, (0.0,), (1.0,)),
        ({"do_normalize": False, "rescale_factor": 1 / 127.5}, (0.0,), (0.5,)),
        ({"do_rescale": False, "image_mean": 127.5, "image_std": 127.5}, (0.5,), (0.5,)),
        ({}, (0.5,), (0.5,)),
    ],
)  # fmt: skip
def test_how_pixels_are_prepared_is_taken_over(
    facts: dict[str, Any], mean: tuple[float, ...], std: tuple[float, ...], tmp_path: Path
) -> None:
    folder, _ = folder_of(tmp_path, "vit", **facts)
    import_run(str(folder), tmp_path / "run")
    model = load_run(tmp_path / "run").model
    assert isinstance(model, ImageEncoderSettings)
    assert model.image.mean == pytest.approx(mean)
    assert model.image.std == pytest.approx(std)


def test_deit_without_a_file_has_the_mean_of_its_program(tmp_path: Path) -> None:
    folder, _ = folder_of(tmp_path, "deit")
    model = import_run(str(folder), tmp_path / "run").settings.model
    assert isinstance(model, ImageEncoderSettings)
    assert model.image.mean == (0.485, 0.456, 0.406)


def test_a_size_that_the_model_does_not_have_is_noted(tmp_path: Path) -> None:
    size = {"height": 32, "width": 24}
    folder, _ = folder_of(tmp_path, "vit", size=size, do_normalize=True)
    notes = import_run(str(folder), tmp_path / "run").notes
    assert any("32 × 24" in note and "16 × 16" in note for note in notes)


OURS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "plain": ("ViTForImageClassification", {}, {}),
    "grey, few biases": (
        "ViTForImageClassification",
        {"channels": 1, "mean": (0.3,), "std": (0.6,)},
        {"attention_bias": "", "ff_bias": False},
    ),
    "a teacher's row": (
        "DeiTForImageClassificationWithTeacher",
        {"distil_token": True, "mean": (0.4, 0.5, 0.6)},
        {"heads": ("classes", "distilled")},
    ),
}


def own_run(folder: Path, image: dict[str, Any], sizes: dict[str, Any]) -> Path:
    shape = ImageSettings(height=12, width=12, patch=4, **image)
    settings = ImageEncoderSettings(
        d_model=32, n_layers=2, n_heads=4, d_ff=40, n_labels=3, image=shape, **sizes
    )
    model = build_model(settings)
    torch.manual_seed(4)
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(0.0, 0.3)
    save_weights(folder, model_weights(model))
    run = RunSettings(task="classify", model=settings, labels=("a", "b", "c"))
    replace_text(folder / CONFIG, resolved_toml(run))
    return folder


@pytest.mark.parametrize("name", OURS)
def test_a_run_of_our_own_gives_the_same_scores_in_transformers(name: str, tmp_path: Path) -> None:
    kind, image, sizes = OURS[name]
    own_run(tmp_path / "run", image, sizes)
    proof = export_run(str(tmp_path / "run"), "hf", tmp_path / "out")
    assert proof.passed, proof.text()
    theirs = getattr(transformers, kind).from_pretrained(tmp_path / "out").eval()
    assert theirs.config.id2label == {0: "a", 1: "b", 2: "c"}
    run = open_plain(str(tmp_path / "run"))
    shape = run.shape
    assert isinstance(shape, ImageEncoderSettings)
    x_BTCYX = torch.from_numpy(np.stack(proof_images(shape.image, 3)))
    facts = json.loads((tmp_path / "out" / "preprocessor_config.json").read_text())
    mean, std = (torch.tensor(facts[f"image_{key}"])[:, None, None] for key in ("mean", "std"))
    pixels_BCYX = (x_BTCYX[:, 0] * facts["rescale_factor"] - mean) / std
    check(our_output(run.model, x_BTCYX), their_output(theirs, pixels_BCYX))


@pytest.mark.parametrize(
    ("image", "sizes", "word"),
    [
        ({"stride": 2}, {}, r"\bimage\.stride\b.*\b2\b"),
        ({"stem": "conv", "stem_width": 8}, {}, r"\bimage\.stem\b.*'conv'"),
        ({"positions": "sinusoidal"}, {}, r"\bimage\.positions\b.*'sinusoidal'"),
        ({"class_token": False}, {"pooling": "mean"}, r"\bclass_token\b"),
        ({}, {"pooling": "mean"}, r"\bmodel\.pooling\b.*'mean'.*'first'"),
        ({}, {"positions": "rotary"}, r"\bmodel\.positions\b.*'rotary'.*'none'"),
        ({"frames": 2}, {}, r"\bimage\.frames\b.*\b2\b"),
    ],
)
def test_a_model_without_an_architecture_is_an_error(
    image: dict[str, Any], sizes: dict[str, Any], word: str, tmp_path: Path
) -> None:
    own_run(tmp_path / "run", image, sizes)
    with pytest.raises(UserError, match=word):
        export_run(str(tmp_path / "run"), "hf", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_other_targets_are_an_error(tmp_path: Path) -> None:
    own_run(tmp_path / "run", {}, {})
    with pytest.raises(UserError, match=r"to=.ctranslate2..*\bimage-encoder\b.*to=.onnx."):
        export_run(str(tmp_path / "run"), "ctranslate2", tmp_path / "out")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"architectures": ["ViTForMaskedImageModeling"]},
            r"'ViTForMaskedImageModeling'.*\bViTForImageClassification\b.*\bViTModel\b",
        ),
        ({"image_size": 3}, r"\bpatch_size\b.*\b4\b.*\b3 × 3\b"),
        ({"image_size": "16"}, r"\bimage_size\b.*'16'.*\b1\b.*\b16384\b"),
        ({"patch_size": [4, 8]}, r"\bpatch_size\b.*\[4, 8\]"),
        ({"hidden_act": "mish"}, r"\bhidden_act\b.*'mish'"),
        ({"num_hidden_layers": 10**9}, r"\bnum_hidden_layers\b.*\b1000000000\b"),
        ({"id2label": {"0": "a", "2": "b"}}, r"\bid2label\b.*'2': 'b'"),
    ],
)
def test_what_is_not_supported_is_named(
    changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    saved(of_their_kind("vit"), tmp_path)
    with pytest.raises(UserError, match=reason):
        architecture(tmp_path, **changes)


def test_positions_of_another_grid_are_an_error(tmp_path: Path) -> None:
    folder, _ = folder_of(tmp_path, "vit")
    path = folder / "model.safetensors"
    tensors = load_file(path)
    name = "vit.embeddings.position_embeddings"
    save_file({**tensors, name: tensors[name][:, :-1].clone()}, path)
    with pytest.raises(UserError, match=r"\bvit\.embeddings\.position_embeddings\b.*\(1, 16, 32\)"):
        import_run(str(folder), tmp_path / "run")


def test_an_image_model_takes_no_tokenizer(tmp_path: Path) -> None:
    folder, _ = folder_of(tmp_path, "vit")
    with pytest.raises(UserError, match="tokenizer="):
        import_run(str(folder), tmp_path / "run", tokenizer=tmp_path)
