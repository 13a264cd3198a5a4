from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from headway.nn.augment import Augment, mix_images
from headway.nn.augment.augment import erase
from headway.nn.augment.geometry import shift, to_turn, warp
from headway.nn.augment.mixing import beta
from headway.nn.augment.rand_augment import BLEND, OPERATIONS, SHEAR, apply_operations
from headway.settings.augment import AugmentSettings

ALL = AugmentSettings(flip=True, crop=3, rand=2, erase=0.5, mixup=0.4, cutmix=1.0)


def random_images(n: int, frames: int = 1, channels: int = 3, size: int = 12) -> Tensor:
    """Smooth ones, so that a pixel resembles its neighbours."""
    generator = torch.Generator().manual_seed(n)
    coarse = torch.rand(n * frames, channels, 4, 4, generator=generator)
    fine = torch.nn.functional.interpolate(coarse, size=(size, size), mode="bilinear")
    return (fine * 255).round().to(torch.uint8).unflatten(0, (n, frames))


def floats(n: int, **shape: int) -> Tensor:
    return random_images(n, **shape).float() / 255


@settings(max_examples=25, deadline=None)
@given(
    flip=st.booleans(),
    crop=st.integers(0, 5),
    rand=st.integers(0, 3),
    magnitude=st.floats(0, 10),
    erase=st.floats(0, 0.9),
    frames=st.integers(1, 3),
    channels=st.sampled_from([1, 3]),
    size=st.integers(2, 9),
)
def test_whatever_is_set_images_stay_images(
    flip: bool,
    crop: int,
    rand: int,
    magnitude: float,
    erase: float,
    frames: int,
    channels: int,
    size: int,
) -> None:
    options = AugmentSettings(flip=flip, crop=crop, rand=rand, magnitude=magnitude, erase=erase)
    images = random_images(4, frames, channels, size)
    result = Augment(options)(images)
    assert result.shape == images.shape
    assert result.dtype == torch.float32
    assert 0.0 <= float(result.min()) <= float(result.max()) <= 1.0


def test_the_same_seed_makes_the_same_images() -> None:
    augment, images = Augment(ALL), random_images(8)
    targets = torch.eye(8)

    def run(seed: int) -> tuple[Tensor, Tensor]:
        torch.manual_seed(seed)
        result = augment.mix(augment(images), targets)
        return result.images_BTCYX, result.targets_BC

    first, again, other = run(1), run(1), run(2)
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[0], other[0])


def test_nothing_changes_at_magnitude_zero_nor_in_evaluation() -> None:
    images = random_images(40)
    same = images.float() / 255
    assert torch.equal(Augment(AugmentSettings(rand=3, magnitude=0.0))(images), same)
    assert torch.equal(Augment(AugmentSettings())(images), same)
    still = Augment(ALL).eval()
    assert torch.equal(still(images), same)
    assert torch.equal(still.mix(same, torch.eye(40)).images_BTCYX, same)


def test_all_frames_of_a_video_change_alike() -> None:
    frame = random_images(30)
    video = frame.expand(-1, 4, -1, -1, -1)
    result = Augment(ALL)(video)
    assert not torch.equal(result[:, 0], frame[:, 0].float() / 255)
    torch.testing.assert_close(result, result[:, :1].expand_as(result), rtol=0, atol=1e-6)


def test_moved_images_are_slices_of_padded_ones() -> None:
    images = random_images(6, frames=2)
    down, right = torch.tensor([0, 2, -3, 5, 0, -1]), torch.tensor([0, -2, 3, 1, 4, 20])
    mirrored = torch.tensor([False, True, False, True, True, False])
    result = shift(images, down, right, mirrored)
    for i in range(6):
        padded = torch.nn.functional.pad(images[i], (20, 20, 20, 20))
        y, x = 20 - int(down[i]), 20 - int(right[i])
        cut = padded[..., y : y + 12, x : x + 12]
        expected = cut.flip(-1) if mirrored[i] else cut
        assert torch.equal(result[i], expected)


def test_a_quarter_turn_is_exact_and_a_shear_moves_lines_apart() -> None:
    images = floats(2)
    turned = warp(images, to_turn(torch.full((2,), np.pi / 2), 12, 12))
    torch.testing.assert_close(turned, images.rot90(1, (-2, -1)), rtol=0, atol=1e-5)
    number = torch.full((2,), OPERATIONS.index("shear-x"))
    bars = torch.zeros(2, 1, 1, 40, 40)
    bars[..., 18:22] = 1.0
    sheared = apply_operations(bars, number, torch.ones(2))
    middle = (sheared[0, 0, 0] * torch.arange(40.0)).sum(1) / sheared[0, 0, 0].sum(1)
    steps = middle[4:36].diff()
    torch.testing.assert_close(steps, torch.full_like(steps, -SHEAR), rtol=0, atol=1e-2)


PILLOW: dict[str, Callable[[Image.Image], Image.Image]] = {
    "brightness": lambda image: ImageEnhance.Brightness(image).enhance(1 + BLEND * 0.5),
    "contrast": lambda image: ImageEnhance.Contrast(image).enhance(1 + BLEND * 0.5),
    "colour": lambda image: ImageEnhance.Color(image).enhance(1 + BLEND * 0.5),
    "sharpness": lambda image: ImageEnhance.Sharpness(image).enhance(1 + BLEND * 0.5),
    "posterize": lambda image: ImageOps.posterize(image, 6),
    "solarize": lambda image: ImageOps.solarize(image, 128),
}


@pytest.mark.parametrize("name", PILLOW)
def test_colours_change_as_they_do_in_pillow(name: str) -> None:
    """Half as strong as possible. Pillow rounds in between, so by a level or two."""
    torch.manual_seed(0)
    images = torch.randint(0, 256, (5, 1, 3, 24, 24), dtype=torch.uint8)
    result = apply_operations(
        images.float() / 255, torch.full((5,), OPERATIONS.index(name)), torch.full((5,), 0.5)
    )
    for image, changed in zip(images, result, strict=True):
        pillow = PILLOW[name](Image.fromarray(image[0].permute(1, 2, 0).numpy()))
        expected = torch.from_numpy(np.array(pillow)).permute(2, 0, 1).float()
        assert (changed[0] * 255 - expected).abs().max() <= 2.5


@pytest.mark.parametrize(
    ("name", "pillow"), [("stretch", ImageOps.autocontrast), ("equalize", ImageOps.equalize)]
)
def test_full_contrast_is_that_of_pillow(
    name: str, pillow: Callable[[Image.Image], Image.Image]
) -> None:
    images = random_images(5, size=96)
    result = apply_operations(
        images.float() / 255, torch.full((5,), OPERATIONS.index(name)), torch.ones(5)
    )
    for image, changed in zip(images, result, strict=True):
        found = pillow(Image.fromarray(image[0].permute(1, 2, 0).numpy()))
        expected = torch.from_numpy(np.array(found)).permute(2, 0, 1).float()
        # Pillow's equalize rounds the pixels that make a level to a whole number.
        assert (changed[0] * 255 - expected).abs().mean() <= (1 if name == "stretch" else 5)
        assert changed.min() == 0
        assert changed.max() > 0.98


def test_uniform_images_do_not_cause_a_division_by_zero() -> None:
    even = torch.full((len(OPERATIONS), 1, 3, 8, 8), 0.5)
    result = apply_operations(even, torch.arange(len(OPERATIONS)), torch.ones(len(OPERATIONS)))
    assert result.isfinite().all()
    names = ("stretch", "equalize", "contrast", "colour", "sharpness")
    for name in names:
        torch.testing.assert_close(result[OPERATIONS.index(name)], even[0])


def test_an_image_changes_alike_in_any_batch() -> None:
    """With its draw given, none of the others matters."""
    images = floats(len(OPERATIONS))
    numbers, strength = torch.arange(len(OPERATIONS)), torch.full((len(OPERATIONS),), -0.7)
    together = apply_operations(images, numbers, strength)
    alone = [
        apply_operations(images[i : i + 1], numbers[i : i + 1], strength[:1])
        for i in range(len(images))
    ]
    torch.testing.assert_close(together, torch.cat(alone), rtol=0, atol=1e-6)


def test_parts_of_a_batch_are_changed_as_often_as_the_whole() -> None:
    image = random_images(1).expand(400, -1, -1, -1, -1)
    augment = Augment(AugmentSettings(flip=True, crop=2, rand=1, erase=0.3))
    torch.manual_seed(0)
    whole = augment(image)
    parts = torch.cat([augment(part) for part in image.split(50)])
    for value in (lambda x: x.mean((1, 2, 3, 4)), lambda x: x.var((1, 2, 3, 4))):
        a, b = value(whole), value(parts)
        spread = (a.var() / 400 + b.var() / 400).sqrt()
        assert (a.mean() - b.mean()).abs() < 4 * spread


def test_rectangles_are_erased_from_the_given_share_of_images() -> None:
    torch.manual_seed(0)
    black = torch.zeros(500, 1, 1, 20, 20)
    changed = erase(black, 0.25).flatten(1) > 0
    share = changed.any(1).float().mean()
    assert 0.18 < share < 0.32
    area = changed[changed.any(1)].float().mean(1)
    assert 0.01 <= area.min() < area.max() <= 0.42


@settings(max_examples=20, deadline=None)
@given(
    mixup=st.sampled_from([0.0, 0.05, 1.0]),
    cutmix=st.sampled_from([0.0, 0.2, 1.0]),
    n=st.integers(1, 9),
)
def test_labels_follow_pixels(mixup: float, cutmix: float, n: int) -> None:
    """Image k is even and as bright as k says, so its pixels tell what it was made of."""
    bright = torch.arange(n) / n
    images = bright[:, None, None, None, None].expand(n, 1, 1, 10, 10)
    result = mix_images(images, torch.eye(n), mixup=mixup, cutmix=cutmix)
    torch.testing.assert_close(result.targets_BC.sum(1), torch.ones(n))
    assert (result.targets_BC >= 0).all()
    assert sorted(result.partner_B.tolist()) == list(range(n))
    torch.testing.assert_close(result.targets_BC @ bright, result.images_BTCYX.mean((1, 2, 3, 4)))
    own = torch.eye(n) * result.weight_B[:, None]
    partner = torch.eye(n)[result.partner_B] * (1 - result.weight_B)[:, None]
    torch.testing.assert_close(result.targets_BC, own + partner)


@pytest.mark.parametrize("alpha", [0.1, 1.0, 4.0])
def test_weights_have_the_moments_of_a_beta_distribution(alpha: float) -> None:
    torch.manual_seed(0)
    weights = beta(alpha, 20_000, torch.device("cpu"))
    assert weights.isfinite().all()
    assert float(weights.mean()) == pytest.approx(0.5, abs=0.02)
    assert float(weights.var()) == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.05)


@pytest.mark.gpu
def test_everything_can_be_recorded_as_a_graph_and_differs_when_replayed() -> None:
    augment, images = Augment(ALL), random_images(16).cuda()
    targets = torch.eye(16, device="cuda")

    def step() -> Tensor:
        return augment.mix(augment(images), targets).images_BTCYX

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = step()
    graph.replay()
    first = result.clone()
    graph.replay()
    assert not torch.equal(first, result)
    assert 0.0 <= float(result.min()) <= float(result.max()) <= 1.0
