"""What weights of eight bits cost in quality, with the shipped models: BLEU and outputs that stay
the same for the translators, bits per byte for the stories."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import save
from headway.metrics.translation import bleu, compare_bleu
from headway.settings.data import DataSettings
from headway.settings.folder import load_run, run_folder
from headway.tasks.loaded_run import open_run
from headway.tasks.seq2seq_answers import writer_of
from headway.tasks.task import InferenceRequest, find_task

CPU = torch.device("cpu")


def translated(name: str, sources: list[str], precision: Any) -> list[str]:
    folder = run_folder(name)
    settings = replace(load_run(folder).decode, precision=precision)
    opened = open_run(folder, device="cpu", precision=precision)
    return [found.text for found in writer_of(opened, settings).write(sources)]


def translator(name: str, sources: list[str], references: list[str]) -> dict[str, Any]:
    wide, small = (translated(name, sources, precision) for precision in ("fp32", "int8"))
    same = sum(a == b for a, b in zip(wide, small, strict=True)) / len(wide)
    values = {"fp32": bleu(wide, references).value, "int8": bleu(small, references).value}
    p_value = compare_bleu(wide, small, references).p_value
    return {"score": "BLEU", "texts": len(wide), **values, "same": same, "p_value": p_value}


def storyteller(path: Path) -> dict[str, Any]:
    values = {}
    for precision in ("fp32", "int8"):
        opened = open_run("stories", device="cpu", precision=precision)
        files = DataSettings(text=(str(path),))
        found = find_task(opened.settings).evaluation(
            InferenceRequest(opened, opened.settings), files
        )
        values[precision] = found["bits_per_byte"]
    n_texts = path.read_text().count("<|endoftext|>")
    return {"score": "bits per byte", "texts": n_texts, **values}


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("data"), help="of tatoeba and stories")
    parser.add_argument("--sentences", type=int, default=1000)
    args = parser.parse_args(words)
    sides = {
        side: (args.data / f"tatoeba/test.{side}").read_text().splitlines()[: args.sentences]
        for side in ("de", "en")
    }
    rows = {
        "tatoeba-de-en": translator("tatoeba-de-en", sides["de"], sides["en"]),
        "tatoeba-en-de": translator("tatoeba-en-de", sides["en"], sides["de"]),
        "stories": storyteller(args.data / "stories/test.txt"),
    }
    for name, row in rows.items():
        print(name, row)
    print(save("int8-quality", CPU, {"quality": rows}))


if __name__ == "__main__":
    main()
