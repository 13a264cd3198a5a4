"""Writers of tiny datasets into the working folder, with the same bytes on every machine."""

from __future__ import annotations

import json
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .integers import below, choice, choices, whole_numbers

Settings = dict[str, Any]
"""By dotted keys."""

RATE = 8000
WORDS = ("film", "plot", "the", "a", "actor", "music", "scene", "and", "of", "long")
MOODS = {"neg": "awful", "pos": "great", "so": "ok"}
NAMES = ("Ada", "Lovelace", "Grace", "Hopper", "Alan", "Turing")
PLACES = ("Paris", "Rome", "Lagos", "Lima")
COLOURS = {"red": (220, 30, 30), "green": (30, 200, 30), "blue": (40, 40, 230)}
SIDES = ("left", "right", "top")
TONES = {"a": 16, "b": 10, "c": 6, "d": 4}
"""Half a period of each letter's tone, in samples."""

N = 48


def sentences(name: str = "texts") -> list[tuple[str, str]]:
    """Texts with a label that depends on one of their words."""
    found = []
    for i in range(N):
        label = tuple(MOODS)[i % 3]
        own = f"{name} {i}"
        words = choices(WORDS, own, 2 + below(7, f"{own} length", 1)[0])
        words.insert(below(len(words) + 1, f"{own} place", 1)[0], MOODS[label])
        found.append((" ".join(words), label))
    return found


def lines(path: str, every: list[str]) -> list[str]:
    Path(path).write_text("".join(f"{line}\n" for line in every), encoding="utf-8")
    return [path]


def objects(path: str, every: list[dict[str, Any]]) -> list[str]:
    return lines(path, [json.dumps(one) for one in every])


def pairs() -> Settings:
    """Translate by removing the first letter of every word."""
    texts = [text for text, _ in sentences()]
    other = [" ".join(word[1:] or word for word in text.split()) for text in texts]
    return {"data.source": lines("a.txt", texts), "data.target": lines("b.txt", other)}


def texts() -> Settings:
    return {"data.text": lines("texts.txt", [text for text, _ in sentences()])}


def labelled() -> Settings:
    return {"data.text": lines("labelled.tsv", ["\t".join(row) for row in sentences()])}


def tagged() -> Settings:
    found = []
    for i in range(N):
        plain = choices(("went", "saw", "and", "then", "the", "river"), f"tags {i}", 1 + i % 3)
        first, last = choices(NAMES, f"names {i}", 2)
        place = choice(PLACES, f"place {i}")
        sentence = [(word, "O") for word in plain] + [("mister", "O"), (first, "B-per")]
        sentence += [(last, "I-per"), ("in", "O"), (place, "B-loc")]
        found.append("".join(f"{word}\t{tag}\n" for word, tag in sentence))
    Path("tagged.conll").write_text("\n".join(found), encoding="utf-8")
    return {"data.text": ["tagged.conll"]}


def two_columns() -> Settings:
    unique = dict.fromkeys(text for text, _ in sentences())
    return {"data.pairs": lines("two.tsv", [f"{text}\t{text[::-1]}" for text in unique])}


def noise(name: str, shape: tuple[int, ...], most: int) -> NDArray[np.uint8]:
    drawn = whole_numbers(name, int(np.prod(shape))) % np.uint64(most)
    return drawn.reshape(shape).astype(np.uint8)


def images() -> Settings:
    """Images of which one half is bright, in one folder per class."""
    from PIL import Image

    halves: dict[str, Any] = {"left": np.s_[:, :4], "right": np.s_[:, 4:], "top": np.s_[:4]}
    for number in range(N):
        side = SIDES[number % len(SIDES)]
        pixels = noise(f"picture {number}", (8, 8), 60)  # the seed of the stored numbers
        pixels[halves[side]] += 150
        folder = Path("images") / side
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / f"{number:02}.png")
    return {"data.media": ["images"]}


def videos() -> Settings:
    """Videos that become brighter or darker."""
    stack, every = [], []
    for number in range(N):
        light = np.array([0, 60, 120, 180], np.uint8)[:: 1 if number % 2 else -1]
        stack.append(noise(f"video {number}", (4, 8, 8), 60) + light[:, None, None])
        label = "brighter" if number % 2 else "darker"
        every.append({"path": "videos.npy", "index": number, "label": label})
    np.save("videos.npy", np.stack(stack))
    return {"data.media": objects("videos.jsonl", every)}


def scenes() -> Settings:
    """Images of two coloured squares, with captions that name both."""
    stack, every = [], []
    for number in range(N):
        one, other = choices(tuple(COLOURS), f"scene {number}", 2)
        image = noise(f"ground {number}", (8, 8, 3), 20)
        image[2:6, :4] += np.array(COLOURS[one], np.uint8)
        image[2:6, 4:] += np.array(COLOURS[other], np.uint8)
        stack.append(image)
        every.append({"path": "scenes.npy", "index": number, "text": f"{one} left of {other}"})
    np.save("scenes.npy", np.stack(stack))
    return {"data.media": objects("scenes.jsonl", every)}


def tone(half: int, n: int, name: str) -> NDArray[np.int64]:
    """A triangle wave with a little noise. Integers only: sines depend on the processor."""
    phase = np.arange(n) % (2 * half)
    wave_n = 9000 * np.abs(phase - half) // half * 2 - 9000
    return wave_n + noise(name, (n,), 200).astype(np.int64) - 100


def write_wav(path: str, samples: NDArray[np.int64]) -> None:
    with wave.open(path, "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes(samples.astype("<i2").tobytes())


def speakers() -> Settings:
    """Recordings in one folder per speaker, each speaker with a tone of their own."""
    for n, name in enumerate("abcdef"):
        folder = Path("speakers") / name
        folder.mkdir(parents=True, exist_ok=True)
        for take in range(8):
            own = f"{name} {take}"
            write_wav(str(folder / f"{take}.wav"), tone(4 + 3 * n, 800 + 80 * (take % 4), own))
    return {"data.media": ["speakers"]}


def audio_of(text: str) -> NDArray[np.int64]:
    """Audio of a text: every letter is a tone, every space a pause."""
    parts = [np.zeros(240, np.int64)]
    for number, letter in enumerate(text):
        own = f"{text} {number}"
        n = 420 + below(120, own, 1)[0]
        parts.append(tone(TONES[letter], n, own) if letter in TONES else np.zeros(n, np.int64))
    return np.concatenate([*parts, np.zeros(240, np.int64)])


def transcripts() -> list[str]:
    """Texts without repeated letters, which CTC could not separate."""
    found = []
    for number in range(36):
        text = ""
        for place, letter in enumerate(choices("abcd ", f"said {number}", 9)):
            if letter != text[-1:] and (letter != " " or place not in (0, 8)):
                text += letter
        found.append(text.strip())
    return found


def speech() -> Settings:
    every, audio, at = [], [], 0
    for text in transcripts():
        audio.append(audio_of(text))
        end = at + len(audio[-1])
        every.append({"path": "said.wav", "start": at / RATE, "end": end / RATE, "text": text})
        at = end
    write_wav("said.wav", np.concatenate(audio))
    return {"data.media": objects("said.jsonl", every)}


WRITERS: dict[str, Callable[[], Settings]] = {
    "pairs": pairs, "texts": texts, "labelled": labelled, "tagged": tagged,
    "two columns": two_columns, "image": images, "video": videos, "scenes": scenes,
    "speakers": speakers, "speech": speech,
}  # fmt: skip
