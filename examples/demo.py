"""Two minutes on two cores: train a German to English translator from plain text and try it.

Run by `make demo`. Trains on a bundled slice of Tatoeba (see examples/data/README.md), then sets
its translations beside those of an untrained model and of the model that comes with headway.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import headway

PAIRS = Path(__file__).parent / "data" / "tatoeba-de-en.tsv.gz"
SENTENCES = (
    "Ich habe Hunger.",
    "Wo wohnst du?",
    "Das ist nicht mein Buch.",
    "Sie hat gestern einen Brief geschrieben.",
    "Kannst du mir bitte helfen?",
)


def command(*words: str) -> None:
    """Run the command and show it, as one would type it. It has said itself what went wrong, if
    anything did."""
    print(f"\n$ headway {' '.join(words)}", flush=True)
    code = subprocess.run([sys.executable, "-m", "headway.cli.main", *words]).returncode
    if code:
        sys.exit(code)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", default="2m")
    parser.add_argument("--out", type=Path, default=Path("runs/demo"))
    args = parser.parse_args()
    command("train", "translate", "--pairs", str(PAIRS), "--out", str(args.out),
            "--budget", args.budget)  # fmt: skip
    show(args.out)


def show(folder: Path) -> None:
    """The same sentences before and after, and by the shipped model."""
    from headway.decode.writer import Writer
    from headway.models.build import build_model

    run = headway.load(folder)
    untrained = Writer([build_model(run.settings.model).eval()], run.opened.vocab)
    outputs = {
        "before training": [said.text for said in untrained.write(SENTENCES)],
        "after": run(SENTENCES).texts,
    }
    if "tatoeba-de-en" in headway.available():
        outputs["shipped model"] = headway.load("tatoeba-de-en")(SENTENCES).texts
    for number, sentence in enumerate(SENTENCES):
        print(f"\n{sentence}")
        for name, texts in outputs.items():
            print(f"  {name:16} {texts[number][:60]}")
    entries = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    print("", *(entry["text"] for entry in entries if entry["kind"] == "end"), sep="\n")
    print(f"Curves, samples and settings: {folder / 'report.html'}")
    print(f"Next: headway predict {folder} < your.txt")


if __name__ == "__main__":
    main()
