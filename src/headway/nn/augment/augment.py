"""Image augmentation as configured in the settings of a run."""

from __future__ import annotations

from math import log

import torch
from torch import Tensor, nn

from headway.nn.augment.boxes import whole_boxes
from headway.nn.augment.geometry import shift
from headway.nn.augment.mixing import MixedImages, mix_images
from headway.nn.augment.rand_augment import draw_operation
from headway.settings.augment import AugmentSettings

ERASED = (0.02, 0.33)
"""Range of the erased area, as a fraction of the image (random erasing, Zhong et al. 2017)."""

ASPECT = 3.3
"""Maximum aspect ratio of the erased rectangle (Zhong et al. 2017)."""


class Augment(nn.Module):
    """Augmentation of images and videos (B T C Y X; uint8, or floats between 0 and 1). Returns
    floats between 0 and 1.

    It shifts and flips, applies random operations (RandAugment), then erases a rectangle. All
    frames of a video change in the same way. In evaluation mode, only the data type changes.
    """

    def __init__(self, settings: AugmentSettings) -> None:
        super().__init__()
        self.settings = settings

    def forward(self, images_BTCYX: Tensor) -> Tensor:
        settings = self.settings
        if not self.training:
            return to_floats(images_BTCYX)
        if settings.flip or settings.crop:
            images_BTCYX = self._placed(images_BTCYX)
        x_BTCYX = to_floats(images_BTCYX)
        for _ in range(settings.rand):
            x_BTCYX = draw_operation(x_BTCYX, settings.magnitude)
        return erase(x_BTCYX, settings.erase) if settings.erase else x_BTCYX

    @property
    def mixes(self) -> bool:
        return bool(self.settings.mixup or self.settings.cutmix)

    def mix(self, images_BTCYX: Tensor, targets_BC: Tensor) -> MixedImages:
        """Mix pairs of the images that `forward` returned, and mix their targets in the same
        proportion."""
        return mix_images(
            images_BTCYX,
            targets_BC,
            mixup=self.settings.mixup if self.training else 0.0,
            cutmix=self.settings.cutmix if self.training else 0.0,
        )

    def _placed(self, images_BTCYX: Tensor) -> Tensor:
        n_images, device = len(images_BTCYX), images_BTCYX.device
        most = self.settings.crop
        by_2B = torch.randint(-most, most + 1, (2, n_images), device=device)
        mirrored_B = torch.rand(n_images, device=device) < (0.5 if self.settings.flip else 0.0)
        return shift(images_BTCYX, by_2B[0], by_2B[1], mirrored_B)


def erase(x_BTCYX: Tensor, share: float) -> Tensor:
    """Replace a random rectangle of some images by noise (random erasing). `share`: fraction of the
    images. All frames of a video get the same noise."""
    n_images, _, _, height, width = x_BTCYX.shape
    draw_3B = torch.rand(3, n_images, device=x_BTCYX.device)
    least, most = ERASED
    area_B = least + draw_3B[0] * (most - least)
    aspect_B = ((2 * draw_3B[1] - 1) * log(ASPECT)).exp()
    box_BYX = whole_boxes(area_B, aspect_B, (height, width)) & (draw_3B[2] < share)[:, None, None]
    noise_B1CYX = torch.rand_like(x_BTCYX[:, :1])
    return torch.where(box_BYX[:, None, None], noise_B1CYX, x_BTCYX)


def to_floats(images_BTCYX: Tensor) -> Tensor:
    if images_BTCYX.dtype == torch.uint8:
        return images_BTCYX.float() / 255.0
    return images_BTCYX.float()
