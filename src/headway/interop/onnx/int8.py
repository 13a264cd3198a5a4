"""Dynamic quantisation of ONNX graphs: matrices of products in 8 bits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from headway.errors import needs


def quantise(whole: Path, path: Path, *, large: bool, leave: Collection[str] = ()) -> None:
    """Quantise weights to 8 bits with one scale per column; activations are quantised at run time.

    Weights are unsigned, because signed products overflow on CPUs without VNNI. Embeddings, norms,
    products inside attention, and the operators in `leave` are not quantised.
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
    """Replace Gemm with a stored matrix by MatMul and Add, with a transposed copy of the matrix.

    The quantiser also does this, but transposes the matrix in place, although embeddings may share
    it.
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
