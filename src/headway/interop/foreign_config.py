"""Validated access to a foreign `config.json`.

A wrong type, an implausible number or an unsupported variant raises an error that names the key,
before any weight is read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal

from headway.errors import ConfigError, one_line
from headway.settings.body import Activation

ACTIVATIONS: dict[str, Activation] = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_fast": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "silu": "silu",
    "swish": "silu",
    "relu2": "relu2",
}
"""headway's activation function for each name in `transformers`."""

THEIR_ACTIVATIONS: dict[str, str] = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu-tanh": "gelu_new",
    "silu": "silu",
    "relu2": "relu2",
}
"""Name in `transformers` for each of headway's activation functions without a gate."""

MOST = 1 << 24
"""Maximum allowed value of each size in the configuration, so that products of sizes do not
overflow. Sizes are compared with the tensors later."""

LONGEST = 1 << 20
"""Maximum number of computed positions. Computed positions have no weights, so the size of the file
does not limit them."""

MOST_LAYERS = 2000
"""Maximum number of layers: many times that of the deepest published models, but few enough to list
all tensor names."""


PROBLEMS = ("single_label_classification", "multi_label_classification", "regression")

ClassifyAnswer = Literal["label", "labels", "number"]
"""Values of `classify.answer`."""

LABEL: ClassifyAnswer = "label"


class ForeignConfig:
    """Validated values of a `config.json`. Methods return the default if a key is absent."""

    def __init__(self, values: Mapping[str, Any], where: str = "config.json") -> None:
        self.values, self.where = values, where

    def integer(
        self, key: str, default: int | None = None, *, least: int = 1, most: int = MOST
    ) -> int:
        value = self._value(key, default)
        if type(value) is not int or not least <= value <= most:
            raise self.error(key, f"must be an integer from {least} to {most}")
        return value

    def number(
        self, key: str, default: float | None = None, *, least: float = 0.0, most: float = 1e9
    ) -> float:
        value = self._value(key, default)
        if type(value) not in (int, float) or not least <= value <= most:  # rejects nan, too
            raise self.error(key, f"must be a number from {least:g} to {most:g}")
        return float(value)

    def fraction(self, key: str, default: float | None = None) -> float:
        """Return a fraction from 0 to below 1, such as a dropout rate."""
        return self.number(key, default, most=0.999)

    def flag(self, key: str, default: bool | None = None) -> bool:
        value = self._value(key, default)
        if type(value) is not bool:
            raise self.error(key, "must be true or false")
        return value

    def string(self, key: str, default: str | None = None) -> str:
        value = self._value(key, default)
        if type(value) is not str:
            raise self.error(key, "must be a string")
        return value

    def activation(self, key: str, default: str | None = None) -> Activation:
        name = self.string(key, default)
        if name not in ACTIVATIONS:
            known = ", ".join(ACTIVATIONS)
            raise self.error(key, f"is not supported; it must be one of {known}")
        return ACTIVATIONS[name]

    def layers(self, key: str, names: Collection[str], default: int | None = None) -> int:
        """Return a number of layers.

        Each layer has tensors in the file, so the number of tensor names is the maximum.
        """
        n = self.integer(key, default, most=MOST_LAYERS)
        if n > len(names):
            raise self.error(key, f"is more than the number of tensors in the file ({len(names)})")
        return n

    def require(self, key: str, allowed: Any, reason: str) -> None:
        """Raise an error if the key is present with a value other than `allowed`, which is a value
        or a tuple of values."""
        value = self.values.get(key)
        fine = allowed if isinstance(allowed, tuple) else (allowed,)
        if value is not None and not any(value == one for one in fine):
            raise self.error(key, f"is not supported: {reason}")

    def nested(self, key: str) -> dict[str, Any]:
        """Return a nested object. An absent key gives an empty object."""
        value = self.values.get(key) or {}
        if not isinstance(value, dict):
            raise self.error(key, "must be a JSON object")
        return value

    def labels(self) -> tuple[str, ...]:
        """Return the names of classes or tags, in the order of their ids."""
        table = self.nested("id2label")
        if not table:
            n = self.integer("num_labels", 2, most=1 << 20)
            return tuple(f"LABEL_{i}" for i in range(n))
        try:
            named = {int(number): str(label) for number, label in table.items()}
        except (TypeError, ValueError) as error:
            raise self.error("id2label", "must map integer ids to names") from error
        if sorted(named) != list(range(len(named))) or len(set(named.values())) < len(named):
            raise self.error("id2label", "must map the ids 0, 1, 2, … to different names")
        return tuple(one_line(named[i], "id2label") for i in range(len(named)))

    def answer_and_labels(self) -> tuple[ClassifyAnswer, tuple[str, ...]]:
        """Return the kind of answer of a classification head, and its labels. Regression has no
        labels."""
        labels, problem = self.labels(), self.values.get("problem_type")
        self.require("problem_type", PROBLEMS, f"it must be one of {', '.join(PROBLEMS)}")
        if problem == "multi_label_classification":
            return "labels", labels
        if len(labels) == 1:
            return "number", ()
        if problem == "regression":
            raise self.error(
                "problem_type", f"needs exactly 1 label, but this model has {len(labels)}"
            )
        return "label", labels

    def architecture(self) -> str | None:
        """Return the name of the model class in `transformers`, or None if the configuration does
        not name one."""
        listed = self.values.get("architectures") or []
        if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
            raise self.error("architectures", "must be a list of class names")
        return listed[0] if listed else None

    def error(self, key: str, reason: str) -> ConfigError:
        shown = repr(self.values.get(key))
        shown = shown if len(shown) <= 80 else shown[:77] + "..."
        return ConfigError(f"{self.where}: {key} = {shown} {reason}.")

    def _value(self, key: str, default: Any) -> Any:
        value = self.values.get(key)
        if value is None and default is None:
            raise ConfigError(f"{self.where}: {key} is missing.")
        return default if value is None else value
