"""The kernels become machine code for a GPU, also where there is none: the interpreter takes what a
compiler does not, such as a variable that changes its shape in a loop."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from headway.nn.kernels import short_attention

numbers = dict(REPEATS=2, HEADS=4, WIDTH=64, WIDE=64, TILE=64, ROWS=64, CAUSAL=True, WINDOW=9,
               DROPOUT=True, PRECISION="tf32", LOWER=32)
kernel = getattr(short_attention, sys.argv[1])

def kind(name):
    if name in numbers:
        return "constexpr"
    if name.endswith(("_starts", "_lengths")):
        return "*i32"
    if name in ("sums_ptr", "slopes_ptr"):
        return "*fp32"
    if name.endswith("_ptr"):
        return "*i64" if name == "seed_ptr" else "*bf16"
    return "fp32" if name in ("scale", "dropout") else "i32"

source = ASTSource(
    fn=kernel,
    signature={name: kind(name) for name in kernel.arg_names},
    constexprs={(kernel.arg_names.index(name),): value for name, value in numbers.items()},
)
made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_stages": 1})
print(len(made.asm["ptx"]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "kernel",
    ["_forward", "_backward", "_long_forward", "_long_backward_rows", "_long_backward_keys"],
)
def test_a_kernel_compiles_for_a_gpu(kernel: str) -> None:
    pytest.importorskip("triton")
    outside = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, kernel]
    done = subprocess.run(command, env=outside, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) > 10_000
