"""Decoding, resampling and log-mel frames of audio, as multiples of real time.

`python -m benchmarks.audio_speed`. The recording is made here: a tone that glides, with noise, so
that no format has an easy time. The flat batch holds pieces of 1 to 15 seconds side by side; beside
it stands `torch.stft` over the same samples as one file, which has no pieces to keep apart. On the
CPU it is the time of one core that is counted, which others at work do not change much; on a GPU
only the frames are timed, by the clock: files are always decoded on the host.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch
from numpy.typing import NDArray

from benchmarks.machine import alternating, pick_device, save
from headway.data.media.audio import read_audio, stream_windows
from headway.data.media.resample import resample
from headway.models.parts.audio import AudioFront
from headway.nn.augment import SpecAugment
from headway.nn.mel import mel_filters
from headway.settings.audio import AudioSettings

RATE = 16_000
FORMATS = ("wav", "flac", "ogg", "mp3")


def recording(seconds: float, rate: int = RATE) -> NDArray[np.float32]:
    draw = np.random.default_rng(0)
    t_S = np.arange(round(seconds * rate)) / rate
    phase_S = 2 * np.pi * np.cumsum(300 + 200 * np.sin(t_S)) / rate
    loud_S = 0.3 * np.abs(np.sin(4 * t_S))
    return (loud_S * np.sin(phase_S) + 0.02 * draw.standard_normal(len(t_S))).astype(np.float32)


def pieces(samples_S: NDArray[np.float32]) -> list[NDArray[np.float32]]:
    lengths = np.random.default_rng(1).uniform(1, 15, len(samples_S) // RATE) * RATE
    cuts = np.cumsum(lengths.astype(int))
    return np.split(samples_S, cuts[cuts < len(samples_S)])


def plain(
    samples_S: torch.Tensor, filters_QF: torch.Tensor, window_W: torch.Tensor
) -> torch.Tensor:
    """Whisper's frames of one file, as one writes it."""
    spectrum = torch.stft(samples_S, 400, 160, window=window_W, return_complex=True)
    log = (filters_QF.T @ spectrum[:, :-1].abs().square()).clamp(min=1e-10).log10()
    return (torch.maximum(log, log.max() - 8.0) + 4.0) / 4.0


def write(path: Path, samples_S: NDArray[np.float32], rate: int) -> None:
    with soundfile.SoundFile(path, "w", rate, 1) as file:
        for first in range(0, len(samples_S), rate):  # libsndfile dies of a long Ogg in one piece
            file.write(samples_S[first : first + rate])


def reading(folder: Path, seconds: float) -> dict[str, Callable[[], object]]:
    systems: dict[str, Callable[[], object]] = {}
    samples_S = recording(seconds)
    for ending in FORMATS:
        path = folder / f"a.{ending}"
        write(path, samples_S, RATE)
        systems[f"decode {ending}"] = lambda path=path: read_audio(path, RATE)
    for rate in (8_000, 44_100, 48_000):
        other_S = recording(seconds, rate)
        systems[f"resample {rate} to 16000"] = lambda x=other_S, r=rate: resample(x, r, RATE)
    long = folder / "long.flac"
    write(long, samples_S[::2], RATE // 2)
    systems["stream flac, 8000 to 16000, windows of 30 s"] = lambda: list(
        stream_windows(long, RATE, 30.0)
    )
    return systems


def frames(device: torch.device, seconds: float) -> dict[str, Callable[[], object]]:
    samples_S = recording(seconds)
    front = AudioFront(AudioSettings(), 8).to(device)
    audio, _ = front.collate(pieces(samples_S), device)
    whole_S = torch.from_numpy(samples_S).to(device)
    filters_QF, window_W = mel_filters(RATE, 400, 80).to(device), torch.hann_window(400).to(device)
    mel_AF, masks = front.mel(audio), SpecAugment()
    return {
        "collate, flat batch": lambda: front.collate(pieces(samples_S), device),
        "log-mel, flat batch": lambda: front.mel(audio),
        "log-mel, torch.stft of one file": lambda: plain(whole_S, filters_QF, window_W),
        "SpecAugment, flat batch": lambda: masks(mel_AF, audio.number_A, audio.n_recordings),
    }


def on_one_core(systems: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median seconds of the processor, taking turns."""
    torch.set_num_threads(1)
    times: dict[str, list[float]] = {name: [] for name in systems}
    for number in range(rounds + 1):
        for name, work in systems.items():
            start = time.process_time()
            work()
            if number:  # the first warms up
                times[name].append(time.process_time() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args(words)
    device = pick_device()
    found: dict[str, Any] = {"seconds_of_audio": args.seconds}
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        systems = frames(device, args.seconds)
        if device.type == "cpu":
            systems = reading(Path(folder), args.seconds) | systems
            times = on_one_core(systems, args.rounds)
        else:
            times = alternating(systems, device, args.rounds)
        for name, took in times.items():
            found[name] = {"seconds": took, "times_real_time": args.seconds / took}
            print(f"{name}: {args.seconds / took:,.0f} × real time")
    print(save("audio-speed", device, found))


if __name__ == "__main__":
    main()
