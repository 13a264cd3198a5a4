"""Whisper on a CPU: how long a second of speech takes, beside other programs with the same weights.

    headway import data/tiny.en.pt --tokenizer data/gpt2-tokenizer --out runs/whisper-tiny
    python -m benchmarks.asterisk data/asterisk --out data/asterisk16k
    python -m benchmarks.whisper_speed runs/whisper-tiny data/asterisk16k

Two kinds of work, from samples to text, greedily, one recording after another: prompts as they are
(each is filled up to Whisper's 30 seconds, so most of the work is silence), and prompts joined
until they fill 30 seconds. The real-time factor is seconds of computing for a second of audio. All
take turns in one process; the median of several rounds. transformers, CTranslate2 and
faster-whisper take part where they are installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.asterisk import RATE, words
from benchmarks.machine import alternating, save
from headway.decode.logits_processors import SpecialTokens
from headway.decode.search.searcher import Searcher
from headway.interop.hf.export import write
from headway.nn.mel import log_mel
from headway.tasks.loaded_run import LoadedRun, cast_weights, open_plain

Wave = np.ndarray[Any, np.dtype[np.int16]]
Transcribe = Callable[[Wave], str]

GAP_S = 0.4
"""Silence between prompts that are joined."""


def recordings(folder: Path, n: int, seconds: float) -> dict[str, list[Wave]]:
    """Every so many-th prompt, and the same ones joined to windows that are nearly full."""
    samples = np.load(folder / "prompts.npy", mmap_mode="r")
    lines = (folder / "all.tsv").read_text(encoding="utf-8").splitlines()[1:]
    places = [line.split("\t")[1:3] for line in lines]
    spread = [places[i * len(places) // n] for i in range(n)]
    prompts = [
        np.array(samples[round(float(a) * RATE) : round(float(b) * RATE)]) for a, b in spread
    ]
    joined: list[Wave] = []
    for prompt in prompts:
        parts = [joined[-1], np.zeros(round(GAP_S * RATE), np.int16), prompt] if joined else []
        if parts and sum(map(len, parts)) <= seconds * RATE:
            joined[-1] = np.concatenate(parts)
        else:
            joined.append(prompt)
    return {"prompts": prompts, "full windows": joined[:-1] or joined}


def ours(run: LoadedRun, precision: str) -> Transcribe:
    loaded = open_plain(str(run.folder))
    cast_weights(loaded.model, precision)
    target: Any = loaded.vocab.target
    settings = replace(loaded.settings.decode, beam=1, precision=precision)  # type: ignore[arg-type]
    search = Searcher([loaded.model], settings, SpecialTokens.of(target))  # type: ignore[list-item]

    longest = round(loaded.shape.audio.pad_s * RATE)  # type: ignore[union-attr]

    def transcribe(wave: Wave) -> str:
        [[best, *_]] = search([wave[:longest]])  # one window, as the others read
        return str(target.decode(best.tokens)).strip()

    return transcribe


def hugging_face(folder: Path) -> Transcribe:
    import transformers

    transformers.logging.set_verbosity_error()
    model: Any = transformers.WhisperForConditionalGeneration.from_pretrained(folder).eval()
    hear = transformers.WhisperFeatureExtractor.from_pretrained(folder)
    tokens = transformers.AutoTokenizer.from_pretrained(folder)

    @torch.no_grad()
    def transcribe(wave: Wave) -> str:
        floats = wave.astype(np.float32) / 32768
        given = hear(floats, sampling_rate=RATE, return_tensors="pt").input_features
        ids = model.generate(given)[0]
        return str(tokens.decode(ids, skip_special_tokens=True)).strip()

    return transcribe


def converted(folder: Path, out: Path, run: LoadedRun) -> Path:
    """A folder for CTranslate2 and faster-whisper, by CTranslate2's own converter."""
    from ctranslate2.converters import TransformersConverter

    kept = [name for name in ("tokenizer.json",) if (folder / name).exists()]
    TransformersConverter(str(folder), copy_files=kept).convert(str(out), force=True)
    return out


def ctranslate2(folder: Path, run: LoadedRun, kind: str, threads: int) -> Transcribe:
    import ctranslate2 as library

    model = library.models.Whisper(str(folder), compute_type=kind, intra_threads=threads)
    target = run.vocab.target
    specials = SpecialTokens.of(target)
    begin = [target.bos, *([specials.target_begin] if specials.target_begin is not None else [])]
    audio = run.shape.audio  # type: ignore[union-attr]

    def transcribe(wave: Wave) -> str:
        floats = np.zeros(round(audio.pad_s * RATE), np.float32)
        floats[: len(wave)] = wave / np.float32(32768)
        frames_AF = log_mel(torch.from_numpy(floats), bands=audio.bands)
        given = library.StorageView.from_array(frames_AF.T[None].contiguous().numpy())
        [found] = model.generate(
            given, [begin], beam_size=1, max_length=min(448, run.shape.max_len),
            suppress_tokens=[*specials.banned], suppress_blank=True,
        )  # fmt: skip
        return str(target.decode(found.sequences_ids[0])).strip()

    return transcribe


def faster_whisper(folder: Path, kind: str, threads: int) -> Transcribe:
    from faster_whisper import WhisperModel

    model = WhisperModel(str(folder), device="cpu", compute_type=kind, cpu_threads=threads)

    def transcribe(wave: Wave) -> str:
        found, _ = model.transcribe(
            wave.astype(np.float32) / 32768, beam_size=1, language="en", temperature=0.0,
            without_timestamps=True, condition_on_previous_text=False, vad_filter=False,
        )  # fmt: skip
        return " ".join(part.text.strip() for part in found)

    return transcribe


def systems(run: LoadedRun, folder: Path, threads: int) -> dict[str, Transcribe]:
    """Those that are installed here."""
    found = {"headway fp32": ours(run, "fp32"), "headway int8": ours(run, "int8")}
    write(run, folder)
    if importlib.util.find_spec("transformers"):
        found["transformers fp32"] = hugging_face(folder)
    if importlib.util.find_spec("ctranslate2") and importlib.util.find_spec("transformers"):
        other = converted(folder, folder / "ct2", run)
        for kind in ("float32", "int8"):
            name = kind.replace("float", "fp")
            found[f"CTranslate2 {name}"] = ctranslate2(other, run, kind, threads)
            if importlib.util.find_spec("faster_whisper"):
                found[f"faster-whisper {name}"] = faster_whisper(other, kind, threads)
    return found


def same(texts: Sequence[str], others: Sequence[str]) -> float:
    pairs = zip(texts, others, strict=True)
    return sum(words(a) == words(b) for a, b in pairs) / max(1, len(texts))


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run")
    parser.add_argument("data", type=Path, help="a folder that benchmarks.asterisk made")
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args(words)
    torch.set_num_threads(args.threads)
    run = open_plain(args.run)
    window = run.shape.audio.pad_s  # type: ignore[union-attr]
    results: dict[str, Any] = {"threads": args.threads}
    with tempfile.TemporaryDirectory() as name:
        found = systems(run, Path(name), args.threads)
        for what, waves in recordings(args.data, args.prompts, window).items():
            seconds = sum(map(len, waves)) / RATE
            texts = {key: [read(wave) for wave in waves] for key, read in found.items()}
            works = {
                key: (lambda read=read, waves=waves: [read(wave) for wave in waves])
                for key, read in found.items()
            }
            times = alternating(works, torch.device("cpu"), args.rounds)
            reference = texts.get("transformers fp32", texts["headway fp32"])
            table = {
                key: {
                    "real_time_factor": time_s / seconds,
                    "seconds_a_recording": time_s / len(waves),
                    "same_words_as_transformers": same(texts[key], reference),
                }
                for key, time_s in times.items()
            }
            results[what] = {"recordings": len(waves), "seconds": seconds, "systems": table}
            print(f"{what}: {len(waves)} recordings, {seconds:.0f} s")
            for key, row in table.items():
                print(
                    f"  {key:20s} real-time factor {row['real_time_factor']:.4f}, "
                    f"{row['seconds_a_recording']:.3f} s each, "
                    f"{row['same_words_as_transformers']:.0%} the same words as transformers"
                )
    print(save("whisper-speed", torch.device("cpu"), results))


if __name__ == "__main__":
    main()
