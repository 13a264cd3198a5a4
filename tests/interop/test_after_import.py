"""After an import everything works as on a run of our own: predict, train --from, export."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from headway.cli.main import main
from headway.interop.importing import import_run
from headway.interop.proof_inputs import proof_texts
from headway.tasks.loaded_run import open_plain

from .test_hf_decoders import DECODERS
from .test_hf_seq2seq import PAIRS
from .test_round_trip import write_words
from .theirs import reference, saved

LINES = ["a b c", "w1 w2 d e f", "7 z"]
LIMITS = {"num_beams": 1, "no_repeat_ngram_size": 2, "eos_token_id": 1, "pad_token_id": 0}
SOURCE = {**LIMITS, "max_length": 12, "min_length": 4, "decoder_start_token_id": 0}
PROMPT = {**LIMITS, "max_new_tokens": 9, "min_new_tokens": 3, "bos_token_id": 1}
GENERATION = {
    "bart": {**SOURCE, "forced_bos_token_id": 3, "bad_words_ids": [[0]]},
    "marian": {**SOURCE, "bad_words_ids": [[0]]},
    "t5 1.1": {**SOURCE, "bad_words_ids": [[0]]},
    "gpt2": PROMPT,
    "llama": PROMPT,
}


@pytest.mark.parametrize("name", GENERATION)
@torch.no_grad()
def test_predict_writes_what_generate_writes(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the options of the folder's generation_config.json on both sides."""
    theirs = reference(*(DECODERS | PAIRS)[name])
    source = saved(theirs, tmp_path / "theirs")
    write_words(source)
    (source / "generation_config.json").write_text(json.dumps(GENERATION[name]))
    import_run(str(source), tmp_path / "run")
    run = open_plain(str(tmp_path / "run"))
    model: Any = type(theirs).from_pretrained(source)
    expected = []
    for ids, *_ in proof_texts(run, LINES):
        [out] = model.generate(torch.tensor([ids]), do_sample=False).tolist()
        expected.append(run.vocab.target.decode(out).split())  # it drops unknown tokens
    (tmp_path / "in.txt").write_text("".join(f"{line}\n" for line in LINES))
    capsys.readouterr()
    assert main(["predict", str(tmp_path / "run"), str(tmp_path / "in.txt")]) == 0
    found = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [[word for word in words if word != "<unk>"] for words in found] == expected


@pytest.mark.parametrize("name", ["bart", "llama"])
def test_an_import_is_trained_further_and_exported(name: str, tmp_path: Path) -> None:
    source = saved(reference(*(DECODERS | PAIRS)[name]), tmp_path / "theirs")
    write_words(source)
    import_run(str(source), tmp_path / "run")
    draw = random.Random(1)
    for side in ("a", "b"):
        lines = [" ".join(draw.choices("abcdefgh", k=draw.randint(2, 6))) for _ in range(60)]
        (tmp_path / side).write_text("".join(f"{line}\n" for line in lines))
    task, files = "complete", ["--text", str(tmp_path / "a")]
    if name in PAIRS:
        task, files = (
            "translate",
            ["--source", str(tmp_path / "a"), "--target", str(tmp_path / "b")],
        )
    few = ["train.steps=2", "train.batch_tokens=64", "train.eval_every=2", "train.save_every=2"]
    few += ["data.valid_size=2"] if name in PAIRS else []
    out = tmp_path / "tuned"
    words = ["train", task, *files, "--from", str(tmp_path / "run"), "--out", str(out), *few]
    assert main(words) == 0
    assert main(["export", str(out), "--to", "hf", "--out", str(tmp_path / "hf")]) == 0
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config["model_type"] == name
