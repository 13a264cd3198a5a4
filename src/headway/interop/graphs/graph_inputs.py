"""Inputs of exported graphs, and their conversion to padded batches for the model.

Normalization of pixels and the mel spectrogram of audio are part of the graph. Callers pass decoded
8-bit pixels in the size of the model, and audio as a waveform.
"""

from __future__ import annotations

from math import pi, prod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.models.parts.audio import WIDE, AudioBatch, AudioFront
from headway.models.parts.output_heads import ModelInput
from headway.models.parts.text import TextFront
from headway.models.parts.vision import ImageBatch, ImageFront
from headway.nn.attention.padded import PaddedLayout
from headway.nn.mel import FLOOR, LogMel
from headway.settings.text import SHAPES
from headway.tasks.masked_media import masked_image

IDS, MASK, SEGMENTS = "input_ids", "attention_mask", "token_type_ids"
PIXELS, WAVEFORM, LENGTHS, HIDDEN_ROWS = "pixel_values", "waveform", "lengths", "bool_masked_pos"


class GraphInputs(nn.Module):
    """Base class for the inputs of an exported graph. `batch` converts them to the input of the
    model."""

    example: dict[str, Tensor]
    """Example inputs by name. Different axes have different sizes, so that `torch.export` can tell
    them apart."""

    axes: dict[str, dict[int, str]]
    """Names of the dynamic axes of each input. Axes with the same name have the same size."""

    about: dict[str, str]
    """Descriptions of the inputs by name, for `graphs.json`."""

    def batch(self, *inputs: Tensor) -> ModelInput:
        """Convert the inputs of the graph to a model input with a `PaddedLayout`. The arguments are
        in the order of `example`."""
        raise NotImplementedError


class TextInputs(GraphInputs):
    """Token ids and an attention mask. Padding may be on the left or on the right."""

    def __init__(self, front: TextFront, length: str = "length") -> None:
        """`length`: name of the axis that counts token positions."""
        super().__init__()
        self.about = {
            IDS: "token ids; any id where the mask is 0",
            MASK: "1 for a token, 0 for padding, on either side",
            SEGMENTS: _about_segments(front),
        }
        names = [IDS, MASK] + [SEGMENTS] * (front.segments is not None)
        size = 3 if length == "length" else 5
        self.example = {name: torch.full((2, size), int(name == MASK)) for name in names}
        self.axes = {name: {0: "batch", 1: length} for name in names}

    def batch(self, *inputs: Tensor) -> ModelInput:
        ids_BT, real_BT, *segments = inputs
        check_equal_sizes(*inputs)
        layout = PaddedLayout.over(real_BT)
        segments_N = segments[0].flatten() if segments else None
        return ModelInput(ids_BT.flatten(), layout, segments_N)


def _about_segments(front: TextFront) -> str:
    if front.segments is None or front.segments.num_embeddings != len(SHAPES):
        return "0 for the first text of a pair, 1 for the second"
    listed = ", ".join(f"{shape.value} {what}" for shape, what in SHAPES.items())
    return f"kind of word of each token: {listed}; 0 around a sentence"


class ImageInputs(GraphInputs):
    """Pixels of images or videos, at the size that the model was trained on."""

    def __init__(self, front: ImageFront) -> None:
        super().__init__()
        shape = front.shape
        self.front = (
            front,
        )  # in a tuple, so that it is not a submodule: its weights keep one name, that of the model
        size: tuple[int, ...] = (shape.channels, shape.height, shape.width)
        self.is_video = shape.frames > 1
        if self.is_video:
            size = (shape.frames, *size)
        self.example = {PIXELS: torch.zeros(2, *size, dtype=torch.uint8)}
        self.axes = {PIXELS: {0: "batch"}}
        axes = "frames × " * self.is_video + "channels × height × width"
        colours = "red, green and blue" if shape.channels == 3 else "grey"
        self.about = {
            PIXELS: f"{colours} as stored, 0 to 255 (batch × {axes}); the graph scales them"
        }
        if front.mask is not None:
            self.example[HIDDEN_ROWS] = torch.zeros(2, prod(shape.grid), dtype=torch.bool)
            self.axes[HIDDEN_ROWS] = {0: "batch"}
            self.about[HIDDEN_ROWS] = "true for patches to mask"

    def batch(self, *inputs: Tensor) -> ModelInput:
        (front,), (pixels, *hidden) = self.front, inputs
        group = pixels if self.is_video else pixels[:, None]
        n_rows = front.shape.extra + prod(front.shape.grid)
        layout = PaddedLayout.over(torch.ones(pixels.shape[0], n_rows, dtype=torch.long))
        if not hidden:
            return ModelInput(ImageBatch((group,)), layout)
        hidden_N = F.pad(hidden[0], (front.shape.extra, 0)).flatten()
        if front.stem is not None:
            group = masked_image(group, hidden_N, front)
        return ModelInput(ImageBatch((group,), masked_N=hidden_N), layout)


class AudioInputs(GraphInputs):
    """Waveforms, and their lengths in samples. The values of padding samples do not matter."""

    def __init__(self, front: AudioFront) -> None:
        super().__init__()
        self.shape = shape = front.shape
        self.least = max(1, round(shape.pad_s * shape.rate))
        self.mel = PaddedMel(front.log_mel, self.least, 2 * prod(shape.strides))
        size = max(2 * self.least, 4 * shape.n_fft)
        self.example = {WAVEFORM: torch.zeros(2, size), LENGTHS: torch.tensor([size, self.least])}
        self.axes = {WAVEFORM: {0: "batch", 1: "samples"}, LENGTHS: {0: "batch"}}
        self.about = {
            WAVEFORM: f"one channel, {shape.rate} samples per second, from -1 to 1; padded on "
            "the right",
            LENGTHS: "number of samples of each recording without padding",
        }
        if front.mask is not None:
            self.example[HIDDEN_ROWS] = torch.zeros(2, 7, dtype=torch.bool)
            self.axes[HIDDEN_ROWS] = {0: "batch", 1: "hidden_rows"}
            self.about[HIDDEN_ROWS] = (
                f"true for frames ({1000 * shape.row_seconds:g} ms each) to mask; the last value "
                "applies to all further frames"
            )

    def batch(self, *inputs: Tensor) -> ModelInput:
        waveform_BS, lengths_B, *hidden = inputs
        rows_B = (lengths_B.clamp(min=self.least) // self.shape.hop).clamp(min=1)
        mel_BFA = self.mel(waveform_BS, lengths_B, rows_B)
        n_rows = mel_BFA.shape[2]
        if hidden:  # before the convolutions, which would read masked frames from their neighbours
            frame_A = torch.arange(n_rows) // prod(self.shape.strides)
            mel_BFA = mel_BFA.masked_fill(_spread(hidden[0], frame_A)[:, None], 0.0)
        taps = []
        for stride in self.shape.strides:
            taps.append(_taps(rows_B, n_rows, stride))
            rows_B, n_rows = (rows_B + (stride - 1)) // stride, (n_rows + (stride - 1)) // stride
        layout = PaddedLayout.over(_first(rows_B, n_rows).long())
        none = torch.empty(0)  # the samples: the mel frames are given instead
        mel_AF = mel_BFA.transpose(1, 2).flatten(0, 1)
        hidden_N = _spread(hidden[0], torch.arange(n_rows)).flatten() if hidden else None
        audio = AudioBatch(
            none, none, none, none, none, tuple(taps), 0, mel_AF=mel_AF, masked_N=hidden_N
        )
        return ModelInput(audio, layout)


class PaddedMel(nn.Module):
    """Log-mel spectrogram of padded audio, computed without Fourier transforms for use in graphs.

    `LogMel` applies a Fourier transform to each frame. Runtimes compute this slowly if the size is
    not a power of two, or do not support it. Here the spectrum is a convolution with cosine and
    sine waves. Reflection padding is applied at the end of each recording, after any silence that
    the model requires, so the padding of the batch does not change the result.
    """

    waves_Q1W: Tensor
    filters_FQ1: Tensor

    def __init__(self, mel: LogMel, least: int, fewest_frames: int) -> None:
        """Compute the constant filters of the convolutions.

        Args:
            mel: Spectrogram settings and filters of the model.
            least: Number of samples to which shorter recordings are padded with silence.
            fewest_frames: Minimum number of frames, because `torch.export` treats a size of one as
                a constant.
        """
        super().__init__()
        self.n_fft, self.hop, self.scale = mel.n_fft, mel.hop, mel.scale
        self.least, self.room = least, max(least, fewest_frames * mel.hop)
        turn_QW = torch.arange(self.n_fft // 2 + 1)[:, None] * torch.arange(self.n_fft)
        angle_QW = turn_QW.remainder(self.n_fft).double() * (2 * pi / self.n_fft)
        waves_QW = torch.cat([angle_QW.cos(), angle_QW.sin()]) * mel.window_W.double()
        self.register_buffer("waves_Q1W", waves_QW[:, None].float())
        self.register_buffer("filters_FQ1", mel.filters_QF.T[:, :, None].contiguous())

    def forward(self, waveform_BS: Tensor, lengths_B: Tensor, frames_B: Tensor) -> Tensor:
        """Return the log-mel frames of all recordings, including padding (recordings, frames,
        bands)."""
        n_samples = waveform_BS.shape[1]
        room = torch.sym_max(n_samples, self.room)
        # Reflection at both ends repeats with a period of 2 (n - 1) for n samples.
        round_B1 = (2 * (lengths_B.clamp(min=self.least) - 1)).clamp(min=1)[:, None]
        at_E = torch.arange(room + self.n_fft) - self.n_fft // 2
        place_BE = at_E.remainder(round_B1)
        place_BE = torch.minimum(place_BE, round_B1 - place_BE)
        heard_BE = waveform_BS.gather(1, place_BE.clamp(max=n_samples - 1))
        heard_BE = heard_BE.masked_fill(place_BE >= lengths_B[:, None], 0.0)
        both_BQA = F.conv1d(heard_BE[:, None], self.waves_Q1W, stride=self.hop)
        real_BQA, imaginary_BQA = both_BQA.chunk(2, dim=1)
        power_BFA = F.conv1d(real_BQA.square() + imaginary_BQA.square(), self.filters_FQ1)
        return self._scaled(power_BFA.clamp(min=FLOOR), frames_B)

    def _scaled(self, power_BFA: Tensor, frames_B: Tensor) -> Tensor:
        """Return the logarithm of the mel power, normalized for each recording as in `nn.mel`."""
        real_B1A = _first(frames_B, power_BFA.shape[2])[:, None]
        if self.scale == "whisper":
            log_BFA = power_BFA.log10()
            top_B11 = log_BFA.masked_fill(~real_B1A, -torch.inf).amax((1, 2), keepdim=True)
            return (torch.maximum(log_BFA, top_B11 - 8.0) + 4.0) / 4.0
        log_BFA = power_BFA.log()
        # Subtracting the first frame makes the mean of a constant band exact.
        off_BFA = (log_BFA - log_BFA[:, :, :1]).masked_fill(~real_B1A, 0.0)
        count_B11 = frames_B[:, None, None].to(off_BFA.dtype)
        centred_BFA = off_BFA - off_BFA.sum(2, keepdim=True) / count_B11
        centred_BFA = centred_BFA.masked_fill(~real_B1A, 0.0)
        variance_BF1 = centred_BFA.square().sum(2, keepdim=True) / count_B11
        return centred_BFA * variance_BF1.clamp(min=1e-6).rsqrt()


def _taps(rows_B: Tensor, n_rows: int, stride: int) -> Tensor:
    """Return the indices of the frames that each output of a strided convolution reads, as in
    `AudioBatch.taps`.

    The frames of the B recordings are padded to `n_rows` each and concatenated. The index B ·
    `n_rows` means a frame outside the recording.
    """
    n_results = (n_rows + (stride - 1)) // stride
    reads_TW = torch.arange(n_results)[:, None] * stride + torch.arange(WIDE) - WIDE // 2
    inside_BTW = (reads_TW >= 0) & (reads_TW < rows_B[:, None, None])
    n_recordings = rows_B.shape[0]
    starts_B11 = torch.arange(n_recordings)[:, None, None] * n_rows
    return torch.where(inside_BTW, starts_B11 + reads_TW, n_recordings * n_rows).flatten(0, 1)


def check_equal_sizes(first_BT: Tensor, *more: Tensor) -> None:
    """Declare to `torch.export` that the first two axes of these inputs have equal sizes. Otherwise
    the graph would check this in every call."""
    for other_BT in more:
        for axis in (0, 1):
            torch._check(first_BT.shape[axis] == other_BT.shape[axis])


def _first(lengths_B: Tensor, size: int) -> Tensor:
    """Return a boolean mask (batch, `size`) that is true at the first `lengths_B` positions of each
    item."""
    return torch.arange(size)[None] < lengths_B[:, None]


def _spread(hidden_BR: Tensor, place_T: Tensor) -> Tensor:
    """Return the values of `hidden_BR` at the indices `place_T`. Indices beyond the end read the
    last value."""
    return hidden_BR.index_select(1, place_T.clamp(max=hidden_BR.shape[1] - 1))


def inputs_for(front: nn.Module, length: str = "length") -> GraphInputs:
    if isinstance(front, ImageFront):
        return ImageInputs(front)
    if isinstance(front, AudioFront):
        return AudioInputs(front)
    assert isinstance(front, TextFront)
    return TextInputs(front, length)
