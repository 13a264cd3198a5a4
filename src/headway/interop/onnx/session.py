"""Inference with an ONNX file in onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from headway.errors import FolderError, needs
from headway.interop.graphs.padded_batches import GraphArray


class Session:
    """An ONNX graph: arrays by name in, all outputs by name out."""

    def __init__(self, path: Path) -> None:
        runtime = needs("onnxruntime", "onnx")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        try:
            self.session = runtime.InferenceSession(
                path, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # the runtime has its own class for each kind of error
            raise FolderError(
                f"{path} is damaged or not an ONNX file ({error}). Export the model again."
            ) from error
        self.inputs = {value.name: value.shape for value in self.session.get_inputs()}
        self.outputs = {value.name: value.shape for value in self.session.get_outputs()}

    def call(self, inputs: Mapping[str, GraphArray]) -> dict[str, GraphArray]:
        """Run the graph. Inputs that it does not have are ignored: no output depends on them."""
        known = {name: x for name, x in inputs.items() if name in self.inputs}
        return dict(zip(self.outputs, self.session.run(list(self.outputs), known), strict=True))

    @property
    def facts(self) -> dict[str, str]:
        found: dict[str, str] = self.session.get_modelmeta().custom_metadata_map
        return found

    @property
    def heads(self) -> dict[str, tuple[int, int]]:
        """Number and width of the heads, by names of the past inputs of the graph."""
        return {
            name: (shape[1], shape[3])
            for name, shape in self.inputs.items()
            if name.startswith("past.")
        }

    @property
    def n_positions(self) -> int | None:
        """Maximum number of tokens of a text. None: no limit."""
        end = self.facts.get("max_positions")
        return None if end is None else int(end)
