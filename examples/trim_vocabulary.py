"""An encoder of the transformers format with fewer pieces in its vocabulary.

`python examples/trim_vocabulary.py MODEL TEXT… --keep 20000 --out FOLDER`, then `headway import
FOLDER`. Of the WordPiece vocabulary stay the special tokens, single letters and signs, and those
pieces that the texts use most. A word whose piece went is read as shorter pieces, which all stay.
Most of a small model is its vocabulary, and a language needs only a part of what came with it.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file
from tokenizers import Tokenizer

TABLE = "embeddings.word_embeddings.weight"
SHORT = 1
"""Letters of a piece that stays whatever the texts are."""


def letters(piece: str) -> int:
    return len(piece.removeprefix("##"))


def chosen(model: Path, texts: Iterable[Path], keep: int) -> list[str]:
    """The pieces that stay, in the order of the old vocabulary."""
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    counts: Counter[int] = Counter()
    for path in texts:
        with path.open(encoding="utf-8") as lines:
            while some := [line for line, _ in zip(lines, range(10_000), strict=False)]:
                for found in tokenizer.encode_batch(some, add_special_tokens=False):
                    counts.update(found.ids)
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    special = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    sure = {
        piece
        for piece, number in vocabulary
        if piece in special or (letters(piece) <= SHORT and (piece.isascii() or counts[number]))
    }
    by_use = sorted(vocabulary, key=lambda item: -counts[item[1]])
    others = [piece for piece, number in by_use if piece not in sure and counts[number]]
    wanted = sure | set(others[: max(0, keep - len(sure))])
    return [piece for piece, _ in vocabulary if piece in wanted]


def trim(model: Path, pieces: list[str], out: Path) -> None:
    """The same model with this vocabulary alone."""
    shutil.copytree(model, out)
    old = json.loads((model / "tokenizer.json").read_text(encoding="utf-8"))
    numbers = {piece: number for number, piece in enumerate(pieces)}
    before: dict[str, int] = old["model"]["vocab"]
    old["model"]["vocab"] = numbers
    for token in old["added_tokens"]:
        token["id"] = numbers[token["content"]]
    for token in _special(old.get("post_processor") or {}):
        token["ids"] = [numbers[piece] for piece in token["tokens"]]
    (out / "tokenizer.json").write_text(json.dumps(old, ensure_ascii=False), encoding="utf-8")
    (out / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces), encoding="utf-8")
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    config |= {"vocab_size": len(pieces), "pad_token_id": numbers["[PAD]"]}
    (out / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    with safe_open(model / "model.safetensors", "pt") as file:
        weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    rows = [before[piece] for piece in pieces]
    weights = {
        name: tensor[rows].contiguous() if name.endswith(TABLE) else tensor
        for name, tensor in weights.items()
    }
    save_file(weights, out / "model.safetensors", {"format": "pt"})


def _special(processor: dict[str, Any]) -> Iterable[dict[str, Any]]:
    return list(processor.get("special_tokens", {}).values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("model", type=Path)
    parser.add_argument("texts", type=Path, nargs="+")
    parser.add_argument("--keep", type=int, default=20_000)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    pieces = chosen(options.model, options.texts, options.keep)
    trim(options.model, pieces, options.out)
    print(f"{options.out}: {len(pieces):,} pieces")


if __name__ == "__main__":
    main()
