"""The architecture, held by tests because a document is forgotten."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "headway"
SOURCES = sorted(PACKAGE.rglob("*.py"))

LAYERS = (
    "errors",
    "progress",
    "storage",
    "web",
    "specs",
    "settings",
    "nn",
    "models",
    "tokens",
    "data",
)
LAYERS += (
    "metrics",
    "decode",
    "tasks",
    "training",
    "interop",
    "inside",
    "run",
    "api",
    "serve",
    "lab",
    "cli",
)
"""From the bottom up. A layer imports itself and what stands before it."""


def test_the_table_of_layers_is_in_contributing() -> None:
    text = (PACKAGE.parents[1] / "CONTRIBUTING.md").read_text()
    rows = [row.split("|")[1] for row in text.splitlines() if row.startswith("| `")]
    first = next(number for number, row in enumerate(rows) if f"`{LAYERS[-1]}`" in row)
    last = next(number for number, row in enumerate(rows) if f"`{LAYERS[0]}`" in row)
    rows = rows[first : last + 1]
    named = [name.strip(" `") for row in rows for name in row.split(",")]
    assert named == list(reversed(LAYERS))


def layer_of(module: str) -> int:
    """The package itself is below everything; `python -m headway` is the command line."""
    _, *inner = module.split(".")
    if not inner or inner == ["__init__"]:
        return -1
    return LAYERS.index("cli" if inner[0] == "__main__" else inner[0])


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)


def imported(tree: ast.AST, module: str) -> Iterator[tuple[int, str]]:
    """Every import of the package, inside functions too, with its line."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            up = module.split(".")[: -node.level] if node.level else []
            base = ".".join([*up, *filter(None, [node.module])])
            # `from headway import cli` imports a layer; `from headway import __version__` none.
            names = (
                [f"{base}.{alias.name}" for alias in node.names] if base == "headway" else [base]
            )
            names = [name for name in names if not name.endswith("__version__")]
        for name in names:
            if name.split(".")[0] == "headway":
                yield node.lineno, name


def upward(code: str, module: str) -> list[str]:
    return [
        f"line {line}: {module} imports {name}"
        for line, name in imported(ast.parse(code), module)
        if layer_of(name) > layer_of(module)
    ]


def test_imports_point_down() -> None:
    found = []
    for path in SOURCES:
        wrong = upward(path.read_text(), module_of(path))
        if module_of(path) == "headway.__init__":  # which imports nothing, but names what it offers
            offered = path.read_text().partition("if TYPE_CHECKING:")[2].partition("\n\n")[0]
            wrong = [one for one in wrong if one.split()[-1] not in offered]
        found += wrong
    assert found == []


@pytest.mark.parametrize(
    "code",
    [
        "import headway.cli.main",
        "from headway.cli import main",
        "from headway import cli",
        "from ..cli import main",
        "def f():\n    if True:\n        import headway.training.loop as loop",
    ],
)
def test_an_import_that_points_up_would_be_seen(code: str) -> None:
    assert upward(code, "headway.nn.block")
    assert not upward(code, "headway.cli.info")


def test_the_library_works_without_the_packages_that_only_its_edges_need() -> None:
    """A model can be built and saved where typer, rich, sacrebleu and triton are not installed."""
    modules = [
        module_of(path).removesuffix(".__init__")
        for path in SOURCES
        if layer_of(module_of(path)) <= LAYERS.index("models")
        and "kernels" not in path.parts  # Triton's own, loaded only beside CUDA
    ]
    assert "headway" in modules
    assert "headway.models.folder" in modules
    code = f"""
import importlib, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("typer", "rich", "sacrebleu", "triton"):
            raise ImportError(f"{{name}} is blocked")

sys.meta_path.insert(0, Blocked())
for module in {modules}:
    importlib.import_module(module)
from headway.settings.presets import preset
from headway.models.build import build_model
build_model(preset("transformer-test"))
try:
    import headway.cli.main
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stderr == ""
    assert done.stdout == "typer is blocked\n"  # it can fail


def test_importing_the_package_or_its_settings_loads_no_torch() -> None:
    modules = [
        module_of(path).removesuffix(".__init__")
        for path in SOURCES
        if layer_of(module_of(path)) <= LAYERS.index("settings")
    ]
    code = f"""
import importlib, sys
before = set(sys.modules)
import headway
print(*sorted(set(sys.modules) - before))
import headway.cli.main
print(*sorted({LATE} & set(sys.modules)))
for module in {modules}:
    importlib.import_module(module)
print("torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout == "headway\n\nFalse\n", done.stderr


LATE = {"headway.run", "headway.training.request", "headway.settings.presets", "torch", "numpy"}
"""What no `--help` waits for."""


MACHINE_PATH = re.compile(r"(?<![\w.$)/])/(?:home|root|Users|work|opt)/\w")
MARKER = re.compile(r"\b(?:TO[D]O|FIX[M]E|X[X]X)\b(?!\(#\d+\))")


def own_files() -> list[Path]:
    """What is or will be committed; nothing where there is no repository, as in an sdist."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    paths = [ROOT / name for name in listed.stdout.splitlines()]
    kinds = {".py", ".md", ".toml", ".json", ".txt", ".yml", ".html", ".js", ".ts", ".css", ""}
    return [path for path in paths if path.suffix in kinds and path.is_file()]


def test_no_file_holds_a_path_of_one_machine_or_a_marker_without_an_issue() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in own_files()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if MACHINE_PATH.search(line) or MARKER.search(line)
    ]
    assert found == []


def test_the_check_finds_a_planted_path_and_marker() -> None:
    for name in ("home", "work", "Users"):
        assert MACHINE_PATH.search(f'open("/{name}/someone/file")')
    assert MARKER.search("# " + "TO" + "DO: later")
    assert not MARKER.search("# " + "TO" + "DO(#12): later")
    assert not MACHINE_PATH.search("see docs/work/home/page.md")


def test_a_text_classifier_loads_few_modules() -> None:
    """The rest, such as data preparation and searches, is imported where it is used."""
    code = "import sys, headway.tasks.label; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = [name for name in done.stdout.split() if name.partition(".")[0] == "headway"]
    assert "headway.tasks.label" in loaded
    assert len(loaded) <= 150
