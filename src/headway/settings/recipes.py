"""Recipes: named TOML files with settings that reach a published result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headway.errors import ConfigError, suggest
from headway.settings.data import FILES
from headway.settings.run import load_run_settings

FOLDER = Path(__file__).parent / "recipes"


def recipe_names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def recipe_path(name: str) -> Path:
    """Return the path of a recipe, given as the name of a shipped recipe or as the path of a TOML
    file."""
    path = Path(name)
    if path.suffix == ".toml" and path.is_file():
        return path
    if name not in recipe_names():
        raise ConfigError(f"unknown recipe {name!r}.{suggest(name, recipe_names())}")
    return FOLDER / f"{name}.toml"


def about(path: Path) -> str:
    """Return the description of a recipe, which is its first comment line."""
    first = path.read_text(encoding="utf-8").split("\n", 1)[0]
    return first.removeprefix("#").strip()


def in_folder(path: Path, data: Path) -> dict[str, Any]:
    """Return the data settings of a recipe with the paths of its files inside a folder."""
    settings = load_run_settings(path, [], is_recipe=True).data
    files = {name: getattr(settings, name) for name in FILES}
    found = {
        f"data.{name}": [str(data / file) for file in of_side]
        for name, of_side in files.items()
        if of_side
    }
    missing = [file for names in found.values() for file in names if not Path(file).exists()]
    if missing:
        raise ConfigError(
            f"the recipe {path.stem} needs {', '.join(Path(m).name for m in missing)}, which "
            f"{'is' if len(missing) == 1 else 'are'} not in {data}."
        )
    return found
