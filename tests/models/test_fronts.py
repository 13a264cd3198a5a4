"""Fronts of images and recordings: a flat batch gives what each item gives alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from headway.models.build import build_model
from headway.models.parts.audio import AudioFront, FlatConv, collate_audio
from headway.models.parts.vision import ImageFront, collate_images
from headway.nn.mel import log_mel
from headway.settings.model import (
    AudioEncoderSettings,
    AudioSettings,
    ImageEncoderSettings,
    ImageSettings,
)

IMAGE = ImageSettings(height=8, width=12, patch=4, stem_width=6)
AUDIO = AudioSettings(rate=800, n_fft=40, hop=16, bands=6, max_rows=64)
STEMS = ["patches", "conv", "grid"]


def image(seed: int, size: tuple[int, int] = (8, 12), frames: int = 1) -> NDArray[np.uint8]:
    draw = np.random.default_rng(seed)
    return draw.integers(0, 256, (frames, 3, *size), dtype=np.uint8)


def recording(seed: int, length: int) -> NDArray[np.int16]:
    draw = np.random.default_rng(seed)
    return draw.integers(-9000, 9000, length).astype(np.int16)


def viewer(shape: ImageSettings) -> Any:
    pooling = "first" if shape.class_token else "mean"
    return build_model(
        ImageEncoderSettings(
            d_model=16, n_layers=2, n_heads=2, d_ff=24, image=shape, n_labels=5, pooling=pooling
        )
    ).eval()


def listener(shape: AudioSettings = AUDIO) -> Any:
    return build_model(
        AudioEncoderSettings(d_model=16, n_layers=2, n_heads=2, d_ff=24, audio=shape)
    ).eval()


def answers(model: Any, items: list[Any]) -> torch.Tensor:
    read, layout = model.front.collate(items)
    with torch.no_grad():
        return model.classes(model(read, layout), layout)


@pytest.mark.parametrize("stem", STEMS)
@pytest.mark.parametrize("class_token", [True, False])
def test_images_of_several_sizes_in_one_batch_are_seen_as_alone(
    stem: str, class_token: bool
) -> None:
    model = viewer(replace(IMAGE, stem=stem, class_token=class_token))
    sizes = [(8, 12), (16, 12), (8, 12), (8, 20), (16, 12)]
    items = [image(number, size) for number, size in enumerate(sizes)]
    together = answers(model, items)
    alone = torch.cat([answers(model, [item]) for item in items])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=0)
    assert (alone[0] - alone[2]).abs().max() > 1e-4  # they differ, so that order means something


def test_a_neighbour_of_the_same_size_changes_nothing_bit_for_bit() -> None:
    model = viewer(IMAGE)
    first = answers(model, [image(1), image(2)])[0]
    assert torch.equal(first, answers(model, [image(1), image(3)])[0])


def test_patches_are_those_of_a_convolution() -> None:
    """The matrix over patches is the convolution that ViT is published with, in its order."""
    shape = ImageSettings(height=9, width=13, patch=4, stride=3, class_token=False)
    front = ImageFront(replace(shape, positions="none"), 16)
    assert front.to_stream is not None
    group = torch.from_numpy(np.stack([image(1, (9, 13)), image(2, (9, 13))]))
    weight = front.to_stream.weight.unflatten(1, (3, 4, 4))
    expected = F.conv2d(front.pixels(group)[:, 0], weight, front.to_stream.bias, stride=3)
    read, layout = front.collate([image(1, (9, 13)), image(2, (9, 13))])
    got = front(read, layout)
    torch.testing.assert_close(got, expected.flatten(2).transpose(1, 2).flatten(0, 1))
    assert layout.longest == shape.rows_of(1, 9, 13) == 8


def test_tubelets_are_those_of_a_convolution_in_space_and_time() -> None:
    shape = ImageSettings(
        height=8, width=8, patch=4, frames=4, tubelet=2, class_token=False, positions="none"
    )
    front = ImageFront(shape, 16)
    assert front.to_stream is not None
    video = image(1, (8, 8), frames=4)
    weight = front.to_stream.weight.unflatten(1, (3, 2, 4, 4))
    pixels = front.pixels(torch.from_numpy(video)[None]).transpose(1, 2)
    expected = F.conv3d(pixels, weight, front.to_stream.bias, stride=(2, 4, 4))
    read, layout = front.collate([video])
    torch.testing.assert_close(front(read, layout), expected[0].flatten(1).T)


def test_time_matters_in_videos() -> None:
    shape = replace(IMAGE, frames=4, tubelet=2, positions="sinusoidal")
    model = viewer(shape)
    video = image(1, frames=4)
    assert not torch.allclose(answers(model, [video]), answers(model, [video[::-1].copy()]))


def test_the_class_token_is_first_and_the_distillation_token_second() -> None:
    shape = replace(IMAGE, distil_token=True)
    front = ImageFront(shape, 16)
    read, layout = front.collate([image(1), image(2)])
    x_ND = front(read, layout)
    assert front.first is not None
    assert front.first_places is not None
    first_ED = front.first.weight + front.first_places.weight
    for start in layout.starts_B.tolist():
        torch.testing.assert_close(x_ND[start : start + 2], first_ED)


def test_hidden_rows_know_their_place_and_nothing_else() -> None:
    front = ImageFront(replace(IMAGE, class_token=False), 16, masks=True)
    one, layout = front.collate([image(1)])
    other, _ = front.collate([image(2)])
    hidden_N = torch.zeros(layout.n_rows, dtype=torch.bool)
    hidden_N[[1, 4]] = True
    seen = [front(replace(read, masked_N=hidden_N), layout) for read in (one, other)]
    assert torch.equal(seen[0][hidden_N], seen[1][hidden_N])
    assert not torch.equal(seen[0][1], seen[0][4])
    assert (seen[0][~hidden_N] != seen[1][~hidden_N]).any(1).all()


def test_floats_and_bytes_are_the_same_image() -> None:
    front = ImageFront(IMAGE, 16)
    group = torch.from_numpy(image(1))[None]
    assert torch.equal(front.pixels(group), front.pixels(group.float() / 255))


def test_black_images_fill_a_batch_up() -> None:
    images, lengths = collate_images([image(1)], IMAGE, n_sequences=3)
    assert lengths == [7]
    assert images.groups[0].shape == (3, 1, 3, 8, 12)
    assert not images.groups[0][1:].any()


LENGTHS = [300, 1, 160, 77, 800]


def test_recordings_of_any_length_in_one_batch_are_heard_as_alone() -> None:
    model = listener()
    items = [recording(n, n) for n in LENGTHS]
    alone = torch.cat([answers(model, [item]) for item in items])
    torch.testing.assert_close(answers(model, items), alone, atol=1e-5, rtol=0)


def test_the_frames_of_a_batch_are_those_of_each_recording() -> None:
    front = AudioFront(AUDIO, 16)
    items = [recording(n, n) for n in LENGTHS]
    audio, _ = front.collate(items)
    kind = {"rate": 800, "n_fft": 40, "hop": 16, "bands": 6}
    expected = [log_mel(torch.from_numpy(item / np.float32(32768)), **kind) for item in items]
    torch.testing.assert_close(front.mel(audio), torch.cat(expected), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("strides", [(1, 2), (2, 2), (4,), (1, 1, 3)])
def test_convolutions_stay_within_a_recording(strides: tuple[int, ...]) -> None:
    """As torch's convolution with a zero on either side, of each recording by itself."""
    shape = replace(AUDIO, strides=strides)
    items = [recording(n, n) for n in LENGTHS]
    audio, lengths = collate_audio(items, shape)
    frames = [shape.frames_of(n) for n in LENGTHS]
    x_AD = torch.randn(sum(frames), 6)
    expected = list(x_AD.split(frames))
    for number, (stride, taps) in enumerate(zip(strides, audio.taps, strict=True)):
        layer = FlatConv(6, 6)
        weight = layer.linear.weight.unflatten(1, (3, 6)).transpose(1, 2)
        x_AD = layer(x_AD, taps)
        expected = [
            F.gelu(F.conv1d(part.T, weight, layer.linear.bias, stride=stride, padding=1)).T
            for part in expected
        ]
        torch.testing.assert_close(x_AD, torch.cat(expected), msg=f"layer {number}")
    assert lengths == [len(part) for part in expected]
    assert lengths == [shape.rows_of(n) for n in LENGTHS]


def test_recordings_are_padded_with_silence_if_the_model_requires_it() -> None:
    shape = replace(AUDIO, pad_s=1.0)
    item = recording(1, 300)
    audio, lengths = collate_audio([item], shape)
    assert len(audio.samples_S) == 800
    assert lengths == [25] == [shape.rows_of(300)]
    filled = np.pad(item, (0, 500))
    assert torch.equal(audio.samples_S, collate_audio([filled], AUDIO)[0].samples_S)


def test_changed_frames_are_taken_as_they_are() -> None:
    front = AudioFront(AUDIO, 16)
    audio, layout = front.collate([recording(1, 300)])
    same = front(replace(audio, mel_AF=front.mel(audio)), layout)
    assert torch.equal(front(audio, layout), same)
    changed = front(replace(audio, mel_AF=torch.zeros_like(front.mel(audio))), layout)
    assert not torch.allclose(same, changed)


def test_the_hidden_states_have_the_requested_type() -> None:
    for model, item in ((viewer(IMAGE), image(1)), (listener(), recording(1, 300))):
        model.front.dtype = torch.bfloat16
        read, layout = model.front.collate([item])
        assert model(read, layout).dtype == torch.bfloat16


def test_a_recording_heard_quicker_is_shorter_and_higher() -> None:
    """A tone of 100 Hz heard a quarter quicker is one of 125 Hz, and lasts 1.6 s of 2."""
    shape = replace(AUDIO, bands=12, n_fft=80)
    front = AudioFront(shape, 16)
    wave = np.sin(2 * np.pi * 100 * np.arange(1600) / 800).astype(np.float32)
    higher = np.sin(2 * np.pi * 125 * np.arange(1280) / 800).astype(np.float32)
    (quick, quick_rows), (plain, rows) = (
        collate_audio([wave], shape, [1.25]),
        collate_audio([higher], shape),
    )
    assert quick_rows == rows == [40]
    bands = [front.mel(audio)[4:-4].argmax(1) for audio in (quick, plain)]
    assert torch.equal(*bands)
    usual = front.mel(collate_audio([wave], shape)[0])[4:-4].argmax(1)
    assert (usual[: len(bands[0])] < bands[0]).all()


def test_the_usual_speed_changes_nothing() -> None:
    front = AudioFront(AUDIO, 16)
    items = [recording(n, n) for n in LENGTHS]
    plain, lengths = collate_audio(items, AUDIO)
    usual, same = collate_audio(items, AUDIO, [1.0] * len(items))
    assert lengths == same
    torch.testing.assert_close(front.mel(usual), front.mel(plain))
