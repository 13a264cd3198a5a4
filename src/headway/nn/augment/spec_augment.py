"""SpecAugment (Park et al. 2019): random masks over mel bands and time spans of log-mel frames."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headway.nn.mel import means_of_recordings


@dataclass(frozen=True)
class SpecAugment:
    """Replaces random mel bands and time spans of each recording by the mean of the recording (Park
    et al. 2019).

    Widths and starts of the masks are drawn independently for each recording, on the device of the
    frames.
    """

    bands: int = 2
    """Number of masks over mel bands per recording."""

    band_width: int = 27
    """Maximum width of a mask over mel bands, in bands."""

    spans: int = 2
    span_width: int = 40
    """Maximum width of a mask over time, in frames."""

    most: float = 0.2
    """Maximum width of a mask over time, as a fraction of the recording."""

    def __call__(self, mel_AF: Tensor, number_A: Tensor, n_recordings: int) -> Tensor:
        """Return the masked frames.

        `number_A`: index of the recording that each frame belongs to, in ascending order.
        """
        number_A = number_A.long()
        every_B = torch.arange(n_recordings, device=mel_AF.device)
        first_B = torch.searchsorted(number_A, every_B)
        length_B = torch.searchsorted(number_A, every_B, right=True) - first_B
        place_A = torch.arange(len(mel_AF), device=mel_AF.device) - first_B[number_A]
        n_bands = mel_AF.shape[1]
        whole_B = torch.full_like(length_B, n_bands)
        masks_BF = _drawn(
            torch.arange(n_bands, device=mel_AF.device).expand(n_recordings, -1),
            *_masks(whole_B, self.bands, whole_B.clamp(max=self.band_width)),
        )
        widest_B = (length_B * self.most).long().clamp(max=self.span_width)
        first_BM, width_BM = _masks(length_B, self.spans, widest_B)
        masks_A = _drawn(place_A[:, None], first_BM[number_A], width_BM[number_A])
        hidden_AF = masks_BF[number_A] | masks_A
        mean_B1 = means_of_recordings(mel_AF, number_A, n_recordings).mean(1, keepdim=True)
        return torch.where(hidden_AF, mean_B1[number_A], mel_AF)


def _masks(length_B: Tensor, n_masks: int, widest_B: Tensor) -> tuple[Tensor, Tensor]:
    """Draw the starts and widths (B M) of M masks for each recording. `length_B`: length that the
    masks of a recording must not exceed. `widest_B`: maximum width of a mask."""
    draw_2BM = torch.rand(2, len(length_B), n_masks, device=length_B.device)
    width_BM = (draw_2BM[0] * (widest_B[:, None] + 1)).long()
    first_BM = (draw_2BM[1] * (length_B[:, None] - width_BM + 1)).long()
    return first_BM, width_BM


def _drawn(place_BP: Tensor, first_BM: Tensor, width_BM: Tensor) -> Tensor:
    """Return whether each index is covered by one of the masks of its recording."""
    distance_BPM = place_BP[:, :, None] - first_BM[:, None]
    return ((distance_BPM >= 0) & (distance_BPM < width_BM[:, None])).any(-1)
