"""What `headway predict --engine ctranslate2` loses of CTranslate2's own throughput.

CTranslate2 alone gets tokens and gives tokens, sorts and batches by itself, and has a worker a
core, its quickest way. headway gets lines and gives lines: tokens, batches, ranking and text are
its own work.
Both take turns in one process, on the same exported int8 model.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import alternating, save
from headway.data.files import open_lines
from headway.interop.ctranslate2 import export as to_ctranslate2
from headway.interop.ctranslate2.engine import Ctranslate2Engine
from headway.models.build import build_model
from headway.settings.decode import DecodeSettings
from headway.settings.folder import CONFIG, TOKENIZER
from headway.settings.presets import preset
from headway.settings.run import resolved_toml
from headway.tasks.loaded_run import LoadedRun, open_plain, open_run
from headway.tasks.seq2seq_answers import writer_of

SHIPPED = "tatoeba-de-en"
WRITTEN = 32
"""Tokens of every output of the model that is not trained, which does not know an end."""

Work = Callable[[], int]


def shipped() -> LoadedRun:
    return open_plain(SHIPPED)


def untrained(folder: Path, name: str) -> LoadedRun:
    """Of a preset's size and without training, beside the tokenizer of the shipped one."""
    run = open_plain(SHIPPED)
    model = replace(preset(name), vocab_size=run.shape.vocab_size)
    decode = replace(run.settings.decode, max_len=WRITTEN, min_len=WRITTEN)
    settings = replace(run.settings, model=model, decode=decode)
    (folder / CONFIG).write_text(resolved_toml(settings))
    run.vocab.save(folder / TOKENIZER)
    return LoadedRun.of(folder, settings, build_model(model).eval(), run.vocab)


def works(run: LoadedRun, out: Path, lines: list[str], threads: int) -> dict[str, Work]:
    """Both give the number of tokens they wrote, end tokens included."""
    to_ctranslate2.write(run, out, int8=True)
    # Both rank by n^alpha, so that both write the same.
    decode = replace(run.settings.decode, length_penalty="power")
    settings = replace(run.settings, decode=decode)
    engine = Ctranslate2Engine(out, settings)
    translator = writer_of(open_run(out, engine="ctranslate2"), settings.decode)

    def headway() -> int:
        before = translator.summary.tokens
        for _ in translator.write(lines):
            pass
        return translator.summary.tokens - before

    words, eos = engine.vocabulary("source"), run.vocab.source.eos
    sources = [
        [words[token] for token in [*ids, eos]] for ids in run.vocab.source.encode_batch(lines)
    ]
    return {"headway": headway, "CTranslate2": alone(out, sources, settings.decode, threads)}


def alone(out: Path, sources: list[list[str]], decode: DecodeSettings, threads: int) -> Work:
    import ctranslate2

    runner = ctranslate2.Translator(str(out), inter_threads=threads, intra_threads=1)
    torch.set_num_threads(threads)  # which it sets for this thread, too

    def work() -> int:
        found: list[Any] = runner.translate_batch(
            sources,
            max_batch_size=decode.batch_tokens // decode.beam,
            batch_type="tokens",
            beam_size=decode.beam,
            length_penalty=decode.length_penalty_alpha,
            max_decoding_length=decode.max_len or max(map(len, sources)) + decode.extra_len,
            min_decoding_length=decode.min_len,
            return_end_token=True,
        )
        return sum(len(result.hypotheses[0]) for result in found)

    return work


def measure(name: str, both: dict[str, Work], n_lines: int, rounds: int) -> dict[str, Any]:
    tokens = {system: work() for system, work in both.items()}
    # In int8 two outputs that are about as good may change places in another batch.
    assert max(tokens.values()) < 1.001 * min(tokens.values()), f"not the same work: {tokens}"
    times = alternating(both, torch.device("cpu"), rounds)
    rows = {
        system: {"tokens_per_s": tokens[system] / seconds, "sentences_per_s": n_lines / seconds}
        for system, seconds in times.items()
    }
    share = rows["headway"]["sentences_per_s"] / rows["CTranslate2"]["sentences_per_s"]
    print(f"{name}: {share:.1%} of CTranslate2's sentences / s")
    for system, row in rows.items():
        sentences, written = row["sentences_per_s"], row["tokens_per_s"]
        print(f"  {system:12s} {sentences:8,.1f} sent/s {written:9,.0f} tok/s")
    return rows


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--text", default="data/tatoeba/test.de", help="German, a sentence a line")
    parser.add_argument("--lines", type=int, default=2000)
    parser.add_argument("--base-lines", type=int, default=256, help="for the model of base size")
    parser.add_argument("--preset", default="transformer-base", help="the size of that model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--case", type=int, help="this case alone, from 0; nothing is saved")
    args = parser.parse_args(words)
    torch.set_num_threads(args.threads)
    lines = list(open_lines(args.text))[: args.lines]
    cases: dict[str, Any] = {}
    for number, n_lines in enumerate((args.lines, args.base_lines)):
        if args.case not in (None, number):
            continue
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as out:
            run = untrained(Path(folder), args.preset) if number else shipped()
            name = args.preset if number else SHIPPED
            both = works(run, Path(out), lines[:n_lines], args.threads)
            case = f"{name} int8, beam {run.settings.decode.beam}"
            cases[case] = measure(case, both, min(n_lines, len(lines)), args.rounds)
    if args.case is None:
        about = {"text": Path(args.text).name, "lines": args.lines, "base_lines": args.base_lines}
        print(save("engine-ctranslate2", torch.device("cpu"), {"work": about, "cases": cases}))


if __name__ == "__main__":
    main()
