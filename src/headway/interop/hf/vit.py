"""Conversion of ViT from and to `transformers`, and of DeiT, which has a distillation token after
the class token."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from headway.errors import UserError
from headway.interop.convertible import BIASES, check_round_trip, label_config, their_activation
from headway.interop.families import Architecture, Config
from headway.interop.foreign_config import LABEL, ForeignConfig
from headway.interop.name_pairs import NamePair, TensorTransform, stacked, weight_and_bias
from headway.settings.run import RunSettings
from headway.settings.vision import ImageEncoderSettings, ImageSettings

LARGEST = 1 << 14
"""Maximum height and width in pixels, far above those of published models."""

HIDDEN = {
    r"(?:\w+\.)?embeddings\.mask_token": "embedding of masked patches; nothing is masked "
    "in this task"
}


@dataclass(frozen=True)
class VitFamily:
    model_type: str
    cls: str
    body: str
    """Prefix of the encoder's tensor names in models with a head."""

    heads: Mapping[str, Mapping[str, str]]
    """headway's heads and the names of their layers in the file, for each suffix of a class
    name."""

    distils: bool = False
    """Whether there is a distillation token after the class token."""

    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)
    """Standard deviation of the pixel values if no preprocessor file sets it."""

    def read(self, config: Config, names: Collection[str], generation: Config) -> Architecture:
        given = ForeignConfig(config)
        prefix = f"{self.body}." if any(n.startswith(f"{self.body}.") for n in names) else ""
        kind = self._kind(given, names)
        heads = dict(self.heads[kind])
        if f"{prefix}pooler.dense.weight" in names:
            heads["pooled"] = f"{prefix}pooler.dense"
            given.require("pooler_act", "tanh", "the pooler always ends with tanh")
        answer, labels = given.answer_and_labels() if "classes" in heads else (LABEL, ())
        model = ImageEncoderSettings(
            d_model=given.integer("hidden_size"),
            n_layers=given.layers("num_hidden_layers", names),
            n_heads=given.integer("num_attention_heads"),
            d_ff=given.integer("intermediate_size"),
            activation=given.activation("hidden_act", "gelu"),
            norm_eps=given.number("layer_norm_eps", 1e-12, least=1e-30),
            attention_bias="qkvo" if given.flag("qkv_bias", True) else "o",
            dropout=given.fraction("hidden_dropout_prob", 0.0),
            attention_dropout=given.fraction("attention_probs_dropout_prob", 0.0),
            image=self._image(given),
            heads=tuple(heads),  # type: ignore[arg-type]
            n_labels=max(1, len(labels)),
        )
        notes = () if "classes" in heads else (
            "the model has no classes: train them with `headway train classify --from RUN`",
        )  # fmt: skip
        return Architecture(
            task="classify",
            model=model,
            pairs=[*front_pairs(model.image, prefix), *_layers(model, prefix)]
            + [
                pair for ours, name in heads.items() for pair in weight_and_bias(name, _place(ours))
            ],
            ignored=HIDDEN,
            labels=labels,
            answer=answer,
            notes=notes,
        )

    def write(self, settings: RunSettings) -> tuple[dict[str, Any], Architecture]:
        ours = settings.model
        if not isinstance(ours, ImageEncoderSettings):
            raise UserError(
                f"{self.cls} needs an image encoder, and the model of this run has none (task "
                f"{settings.task}). Export to onnx or torch, or use a run of an image task."
            )
        kind = self._kind_of(ours)
        config: dict[str, Any] = {
            "model_type": self.model_type,
            "architectures": [f"{self.cls}{kind}"],
            "hidden_size": ours.d_model,
            "num_hidden_layers": ours.n_layers,
            "num_attention_heads": ours.n_heads,
            "intermediate_size": ours.d_ff,
            "hidden_act": their_activation(ours.activation),
            "layer_norm_eps": ours.norm_eps,
            "hidden_dropout_prob": ours.dropout,
            "attention_probs_dropout_prob": ours.attention_dropout,
            "image_size": _side(ours.image),
            "patch_size": ours.image.patch,
            "num_channels": ours.image.channels,
            "qkv_bias": bool(set("qkv") & set(ours.attention_bias)),
        }
        if "classes" in ours.heads:
            config |= label_config(settings)
        names = [f"{self.body}.{number}" for number in range(ours.n_layers)]
        if kind == "Model":
            names = [*map(str, range(ours.n_layers)), "pooler.dense.weight"]
        said = self.read(config, names, {})
        assert isinstance(said.model, ImageEncoderSettings)
        check_image(ours.image, said.model.image, self.cls)
        check_round_trip(ours, said.model, self.cls, wider=BIASES, free={"image", "max_len"})
        return config, said

    def _kind(self, given: ForeignConfig, names: Collection[str]) -> str:
        """Return the suffix of the class name. If no class is named, it is derived from the
        tensors."""
        name = given.architecture()
        if name is None:
            layers = {kind: {f"{n}.weight" for n in heads.values()} or {"embeddings"}
                      for kind, heads in self.heads.items()}  # fmt: skip
            return next((kind for kind, own in layers.items() if own <= set(names)), "Model")
        kind = name.removeprefix(self.cls)
        if kind not in self.heads or name == kind:
            known = ", ".join(self.cls + kind for kind in self.heads)
            raise given.error("architectures", f"is not supported; it must be one of {known}")
        return kind

    def _kind_of(self, ours: ImageEncoderSettings) -> str:
        wanted = set(ours.heads)
        for kind, heads in self.heads.items():
            has = set(heads) if heads else {"pooled"}
            if has == wanted:
                return kind
        raise UserError(
            f"transformers has no {self.cls} class for a model with model.heads={list(ours.heads)}."
        )

    def _image(self, given: ForeignConfig) -> ImageSettings:
        height, width = _sides(given, "image_size", 224)
        patch, other = _sides(given, "patch_size", 16)
        if patch != other:
            raise given.error("patch_size", "is not supported: patches must be square")
        if patch > min(height, width):
            raise given.error("patch_size", f"is larger than the image ({height} × {width} pixels)")
        channels = given.integer("num_channels", 3)
        usual = channels == len(self.mean)
        return ImageSettings(
            height=height,
            width=width,
            channels=channels,
            patch=patch,
            distil_token=self.distils,
            mean=self.mean if usual else VIT.mean,
            std=self.std if usual else VIT.std,
        )


def _sides(given: ForeignConfig, key: str, default: int) -> tuple[int, int]:
    """Return height and width in pixels from a number or a pair."""
    value = given.values.get(key, default)
    if isinstance(value, list | tuple) and len(value) == 2:
        height, width = value
    else:
        height = width = value
    if any(type(side) is not int or not 1 <= side <= LARGEST for side in (height, width)):
        raise given.error(
            key, f"must be an integer from 1 to {LARGEST} (pixels), or a list of height and width"
        )
    return height, width


def _side(image: ImageSettings) -> int | list[int]:
    square = image.height == image.width
    return image.height if square else [image.height, image.width]


def check_image(ours: ImageSettings, said: ImageSettings, name: str) -> None:
    """Raise an error if the format cannot represent the input layer of an image model.

    `ours` are the settings of the run, `said` those that the format would give.
    """
    if ours.step != ours.patch:
        raise UserError(
            f"{name} does not support model.image.stride = {ours.stride}; the stride must equal "
            f"model.image.patch = {ours.patch}."
        )
    for key in ("stem", "positions", "class_token", "distil_token", "frames", "tubelet"):
        here, there = getattr(ours, key), getattr(said, key)
        if here != there:
            raise UserError(
                f"{name} does not support model.image.{key} = {here!r}, only {there!r}."
            )


def front_pairs(image: ImageSettings, prefix: str) -> list[NamePair]:
    """Return the name pairs of the patch embedding, the special tokens, and their joint position
    table."""
    front, extra = f"{prefix}embeddings", image.extra
    _, n_lines, n_columns = image.grid
    channels, patch = image.channels, image.patch

    def as_patch(weight: Tensor) -> Tensor:
        return weight.unflatten(1, (channels, patch, patch))

    firsts = [f"{front}.cls_token", f"{front}.distillation_token"][:extra]
    projection = f"{front}.patch_embeddings.projection"
    of_first = TensorTransform(lambda t: t[0, :extra], lambda t: t[None])
    of_grid = TensorTransform(
        lambda t: t[0, extra:].unflatten(0, (n_lines, n_columns)),
        lambda t: t.flatten(0, 1)[None],
    )
    positions = f"{front}.position_embeddings"
    return [
        *(NamePair(name, "front.first.weight", slice(i, i + 1),
               TensorTransform(lambda t: t[0], lambda t: t[None])) for i,
               name in enumerate(firsts)),
        NamePair(f"{projection}.weight", "front.to_stream.weight",
             change=TensorTransform(lambda t: t.flatten(1), as_patch)),
        NamePair(f"{projection}.bias", "front.to_stream.bias"),
        NamePair(positions, "front.first_places.weight", change=of_first, concat_axis=1),
        NamePair(positions, "front.places.table_YXD", change=of_grid, concat_axis=1),
    ]  # fmt: skip


def _layers(model: ImageEncoderSettings, prefix: str) -> list[NamePair]:
    pairs: list[NamePair] = []
    for number in range(model.n_layers):
        layer, block = f"{prefix}encoder.layer.{number}", f"stack.blocks.{number}"
        own = [f"{layer}.attention.attention.{name}" for name in ("query", "key", "value")]
        bias = "q" in model.attention_bias
        pairs += stacked(own, f"{block}.attention.to_qkv", [model.d_model] * 3, bias=bias)
        pairs += weight_and_bias(f"{layer}.attention.output.dense", f"{block}.attention.to_out")
        pairs += weight_and_bias(f"{layer}.layernorm_before", f"{block}.norm_attention")
        pairs += weight_and_bias(f"{layer}.intermediate.dense", f"{block}.feed_forward.to_hidden")
        pairs += weight_and_bias(f"{layer}.output.dense", f"{block}.feed_forward.to_out")
        pairs += weight_and_bias(f"{layer}.layernorm_after", f"{block}.norm_feed_forward")
    return [*pairs, *weight_and_bias(f"{prefix}layernorm", "stack.final_norm")]


def _place(head: str) -> str:
    return "heads.pooled.dense" if head == "pooled" else f"heads.{head}.linear"


VIT = VitFamily(
    "vit",
    "ViT",
    "vit",
    heads={"ForImageClassification": {"classes": "classifier"}, "Model": {}},
)

DEIT = VitFamily(
    "deit",
    "DeiT",
    "deit",
    heads={
        "ForImageClassificationWithTeacher": {
            "classes": "cls_classifier",
            "distilled": "distillation_classifier",
        },
        "ForImageClassification": {"classes": "classifier"},
        "Model": {},
    },
    distils=True,
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
)
"""DeiT: ViT with an additional token that is trained by distillation from a teacher."""
