"""Export to ONNX (`headway export --to onnx`): write graphs for onnxruntime and other programs that
read ONNX."""

from __future__ import annotations

import json
import logging
import shutil
import warnings
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram

from headway import __version__
from headway.errors import needs
from headway.interop.graphs.graphs import Graph, graphs_of
from headway.interop.graphs.padded_batches import prove_padded
from headway.interop.graphs.record import describe, export_program, named, quickly
from headway.interop.hf.tokenizer import write_library_tokenizer
from headway.interop.onnx.session import Session
from headway.interop.proof import Proof
from headway.metrics.multilabel import THRESHOLD
from headway.models.parts.audio import AudioFront
from headway.models.parts.vision import ImageFront
from headway.settings.folder import CONFIG
from headway.settings.model import AudioEncoderSettings, AudioSeq2SeqSettings
from headway.tasks.loaded_run import LoadedRun

OPSET = 20
"""Version of the ONNX operator set. onnxruntime supports it since version 1.17."""

MADE_BY = "pkg.torch.onnx.class_hierarchy"
"""Metadata key in which torch's exporter stores the module classes that an operator was exported
from."""

ONE_FILE = 1_800_000_000
"""Maximum size in bytes of the weights inside the `.onnx` file.

Larger weights get a separate file, because the format is limited to 2 GB.
"""


def write(run: LoadedRun, out: Path, *, int8: bool) -> None:
    """Write one file per graph, and the settings and tokenizer for `--engine onnx`."""
    for package in ("onnx", "onnxruntime", "onnxscript"):
        needs(package, "onnx")
    made = [(graph, export_program(graph)) for graph in graphs_of(run.model, run.settings)]
    for graph, program in made:
        _write_graph(graph, program, _facts(run, graph), out / f"{graph.name}.onnx", int8)
    describe(out, made, run.settings)
    shutil.copyfile(run.folder / CONFIG, out / CONFIG)
    if run.words is not None:
        write_library_tokenizer(run, out)


def prove(run: LoadedRun, out: Path, sentences: Sequence[str], *, int8: bool) -> Proof:
    runtime = needs("onnxruntime", "onnx")
    return prove_padded(
        "onnx",
        run,
        sentences,
        {path.stem: Session(path).call for path in out.glob("*.onnx")},
        by=f"onnxruntime {runtime.__version__}",
        int8=int8,
    )


def _facts(run: LoadedRun, graph: Graph) -> dict[str, str]:
    """Return the metadata that is stored in an ONNX file."""
    facts: dict[str, Any] = {"headway_version": __version__, "task": run.settings.task}
    if run.settings.labels:
        facts["labels"] = json.dumps(run.settings.labels, ensure_ascii=False)
    if run.spec.is_multi_label:
        facts["threshold"] = f"{run.settings.classify.threshold or THRESHOLD:g}"
    if isinstance(run.shape, AudioEncoderSettings | AudioSeq2SeqSettings):
        facts["sample_rate"] = str(run.shape.audio.rate)
    if graph.max_positions is not None:
        facts["max_positions"] = str(graph.max_positions)
    return facts


def _write_graph(
    graph: Graph, recording: ExportedProgram, facts: Mapping[str, str], path: Path, int8: bool
) -> None:
    optimizer = needs("onnxscript.optimizer", "onnx")
    with _quiet(), quickly():
        program = torch.onnx.export(
            recording,
            input_names=list(graph.example),
            output_names=list(graph.outputs),
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
        assert program is not None
        # The encoder and the decoder graph use different rows of the cross-attention matrices.
        optimizer.fold_constants(program.model, input_size_limit=2**62, output_size_limit=2**62)
        optimizer.remove_unused_nodes(program.model)
        _name_axes(program.model, graph)
        fronts = _of_fronts(program.model)
        for holder in (program.model.graph, *program.model.graph):
            holder.metadata_props.clear()  # torch's traces of the origin of each operator
        program.model.metadata_props.update(facts)
        large = _n_bytes(graph) > ONE_FILE
        if not int8:
            program.save(path, external_data=large)
            return
        with TemporaryDirectory(dir=path.parent) as beside:
            whole = Path(beside) / path.name
            program.save(whole, external_data=large)
            quantise(whole, path, large=large, leave=fronts)


def _of_fronts(model: Any) -> list[str]:
    """Return the names of the operators in the input layers for images and audio."""
    names = [cls.__qualname__ for cls in (ImageFront, AudioFront)]
    made_by = {node.name: node.metadata_props.get(MADE_BY, "") for node in model.graph}
    return [node for node, classes in made_by.items() if any(name in classes for name in names)]


def _n_bytes(graph: Graph) -> int:
    tensors = {id(x): x for x in graph.module.state_dict(keep_vars=True).values()}
    return sum(x.numel() * x.element_size() for x in tensors.values())


def _name_axes(model: Any, graph: Graph) -> None:
    """Rename dynamic axes from torch's numbered symbols to the names in the graph."""
    names: dict[str, str] = {}
    for value in model.graph.inputs:
        for axis, name in graph.axes[value.name].items():
            names[str(value.shape[axis])] = name

    for value in [*model.graph.inputs, *model.graph.outputs, *_inner(model)]:
        if value.shape is not None:
            value.shape = type(value.shape)([named(_plain(size), names) for size in value.shape])


def _inner(model: Any) -> Iterator[Any]:
    return (value for node in model.graph for value in node.outputs)


def _plain(size: Any) -> Any:
    return size if isinstance(size, int) else size.value


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence log messages and warnings of torch's exporter within the context."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir", "root")]
    before = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


def quantise(whole: Path, path: Path, *, large: bool, leave: Collection[str] = ()) -> None:
    """Quantize weights to 8 bits with one scale per column. Activations are quantized at run time.

    Weights are unsigned, because signed products overflow on CPUs without VNNI. Embeddings, norms,
    products inside attention, and the operators in `leave` are not quantized.
    """
    library = needs("onnxruntime.quantization", "onnx")
    model = needs("onnx", "onnx").load(whole)
    del model.graph.value_info[:]  # it has the shapes of matrices that are transposed here
    _plain_products(model.graph)
    library.quantize_dynamic(
        model,
        path,
        op_types_to_quantize=["MatMul"],
        per_channel=True,
        weight_type=library.QuantType.QUInt8,
        use_external_data_format=large,
        nodes_to_exclude=list(leave),
        extra_options={"MatMulConstBOnly": True},
    )


def _plain_products(graph: Any) -> None:
    """Replace Gemm operators with a stored matrix by MatMul and Add, with a transposed copy of the
    matrix.

    The quantizer would transpose the matrix in place, although the embeddings may share it.
    """
    helper, arrays = needs("onnx.helper", "onnx"), needs("onnx.numpy_helper", "onnx")
    stored = {tensor.name: tensor for tensor in graph.initializer}
    nodes, turned = [], {}
    for node in graph.node:
        if node.op_type != "Gemm" or node.input[1] not in stored:
            nodes.append(node)
            continue
        assert {a.name: helper.get_attribute_value(a) for a in node.attribute}.get("transB") == 1
        x, weight, *bias = node.input
        if weight not in turned:
            matrix = np.ascontiguousarray(arrays.to_array(stored[weight]).T)
            turned[weight] = arrays.from_array(matrix, f"{weight}.turned")
        product = f"{node.output[0]}.product" if bias else node.output[0]
        nodes.append(helper.make_node("MatMul", [x, f"{weight}.turned"], [product], node.name))
        if bias:
            nodes.append(helper.make_node("Add", [product, *bias], [node.output[0]]))
    del graph.node[:]
    graph.node.extend(nodes)
    used = Counter(name for node in nodes for name in node.input)
    kept = [tensor for tensor in graph.initializer if used[tensor.name]]
    del graph.initializer[:]
    graph.initializer.extend([*kept, *turned.values()])
