"""Mixup (Zhang et al. 2017) and CutMix (Yun et al. 2019): mix pairs of images and their targets."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributions import Gamma

from headway.nn.augment.boxes import box_masks


class MixedImages(NamedTuple):
    images_BTCYX: Tensor
    targets_BC: Tensor
    """Targets mixed in the same proportion as the images."""

    partner_B: Tensor
    """Index of the other image that each image is mixed with."""

    weight_B: Tensor
    """Weight of each image itself, from 0 to 1. The image with index `partner_B` has the remaining
    weight."""


def mix_images(
    images_BTCYX: Tensor, targets_BC: Tensor, *, mixup: float, cutmix: float
) -> MixedImages:
    """Mix pairs of images with values between 0 and 1.

    `mixup`, `cutmix`: parameter alpha of the Beta distribution of the mixing weights; 0 disables
    the method. If both are enabled, each image gets one of them with equal probability.
    """
    n_images, device = len(images_BTCYX), images_BTCYX.device
    partner_B = torch.rand(n_images, device=device).argsort()
    others_BTCYX = images_BTCYX.index_select(0, partner_B)
    weight_B = torch.ones(n_images, device=device)
    result_BTCYX = images_BTCYX
    if mixup:
        weight_B = beta(mixup, n_images, device)
        result_BTCYX = torch.lerp(others_BTCYX, images_BTCYX, weight_B[:, None, None, None, None])
    if cutmix:
        cut_BYX = cut_boxes(beta(cutmix, n_images, device), images_BTCYX)
        cut_BTCYX = torch.where(cut_BYX[:, None, None], others_BTCYX, images_BTCYX)
        chosen_B = torch.rand(n_images, device=device) < (0.5 if mixup else 1.0)
        chosen = chosen_B[:, None, None, None, None]
        result_BTCYX = torch.where(chosen, cut_BTCYX, result_BTCYX)
        own_B = 1.0 - cut_BYX.float().mean((1, 2))
        weight_B = torch.where(chosen_B, own_B, weight_B)
    share_B1 = weight_B[:, None].to(targets_BC.dtype)
    others_BC = targets_BC.index_select(0, partner_B)
    targets_BC = torch.lerp(others_BC, targets_BC, share_B1)
    return MixedImages(result_BTCYX, targets_BC, partner_B, weight_B)


def beta(alpha: float, n: int, device: torch.device) -> Tensor:
    """Sample from Beta(alpha, alpha). Two gamma variates are computed as logarithms, because they
    would underflow for a small alpha."""
    one = torch.ones(2, n, device=device)
    above_2B = Gamma((alpha + 1) * one, one, validate_args=False).sample()
    # A Gamma(a) sample is a Gamma(a + 1) sample times U^(1/a). 1 - U is never zero, so its
    # logarithm is finite.
    log_2B = above_2B.log() + (1.0 - torch.rand_like(one)).log() / alpha
    return torch.sigmoid(log_2B[0] - log_2B[1])


def cut_boxes(own_B: Tensor, images_BTCYX: Tensor) -> Tensor:
    """Return masks of the rectangles that CutMix pastes, with area 1 − `own_B`. They may extend
    beyond the image."""
    height, width = images_BTCYX.shape[-2:]
    side_B = (1.0 - own_B).sqrt()
    at_2B = torch.rand(2, len(own_B), device=own_B.device)
    return box_masks(
        height * at_2B[0], width * at_2B[1], height * side_B, width * side_B, (height, width)
    )
