"""The fronts in plain operations on padded batches: raw input becomes rows, and which are real.

Everything between a file's pixels or samples and the first layer is in here, and so in the graphs:
who calls one needs no preparation of ours. Pixels go in as they are stored, samples as a waveform;
what can be one is a convolution, which every runtime has, and which `--int8` leaves as it is.
"""

from __future__ import annotations

from math import pi, prod
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.interop.graphs.positions import added_positions
from headway.models.parts.audio import WIDE, FlatConv, SoundFront
from headway.models.parts.text import TextFront
from headway.models.parts.vision import PictureFront
from headway.nn.mel import FLOOR

IDS, MASK, SEGMENTS = "input_ids", "attention_mask", "token_type_ids"
PIXELS, WAVEFORM, LENGTHS, HIDDEN_ROWS = "pixel_values", "waveform", "lengths", "bool_masked_pos"


class Rows(NamedTuple):
    x_BTD: Tensor
    positions_BT: Tensor
    real_BT: Tensor
    """1 for rows that are of an item, 0 for padding."""


class PlainFront(nn.Module):
    """Called with its inputs in their order; gives `Rows`."""

    example: dict[str, Tensor]
    """Inputs by name, in sizes that are all different."""

    axes: dict[str, dict[int, str]]
    """Which axes of each input may have any size, by name; the same name is the same size."""

    about: dict[str, str]
    """What each input is, for people."""

    reach: int | None = None
    """The most rows that it knows positions for, if there is an end."""


class TextRows(PlainFront):
    """Token numbers and their mask; padding may be on either side."""

    def __init__(self, front: TextFront, reach: int, length: str = "length") -> None:
        """`length`: the name of that axis. `reach`: the most positions, where the model itself
        knows no end."""
        super().__init__()
        self.front = front
        self.about = {
            IDS: "token numbers; any number where the mask is 0",
            MASK: "1 for a token, 0 for padding, on either side",
            SEGMENTS: "0 for the first text of a pair, 1 for the second",
        }
        self.code = added_positions(front.positions, reach)
        if self.code is not None:
            self.reach = self.code.num_embeddings
        names = [IDS, MASK] + [SEGMENTS] * (front.segments is not None)
        size = 3 if length == "length" else 5
        self.example = {name: torch.full((2, size), int(name == MASK)) for name in names}
        self.axes = {name: {0: "batch", 1: length} for name in names}

    def forward(self, ids_BT: Tensor, real_BT: Tensor, segments_BT: Tensor | None = None) -> Rows:
        positions_BT = (real_BT.cumsum(1) - 1).clamp(min=0)
        return Rows(self.embedded(ids_BT, positions_BT, segments_BT), positions_BT, real_BT)

    def embedded(
        self, ids_BT: Tensor, positions_BT: Tensor, segments_BT: Tensor | None = None
    ) -> Tensor:
        front = self.front
        x_BTD = F.embedding(ids_BT, front.tokens.weight)
        if front.scale != 1.0:
            x_BTD = x_BTD * front.scale
        if front.segments is not None:
            numbers_BT = torch.zeros_like(ids_BT) if segments_BT is None else segments_BT
            x_BTD = x_BTD + front.segments(numbers_BT)
        if self.code is not None:
            x_BTD = x_BTD + self.code(positions_BT)
        if front.norm is not None:
            x_BTD = front.norm(x_BTD)
        return x_BTD if front.to_stream is None else front.to_stream(x_BTD)


class ImageRows(PlainFront):
    """Pixels of images or videos of the size that the model was made for."""

    code_RD: Tensor | None

    def __init__(self, front: PictureFront) -> None:
        super().__init__()
        self.front, shape = front, front.shape
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
            self.about[HIDDEN_ROWS] = "true for patches that are hidden from the model"
        if front.to_stream is not None:
            inner = shape.stem_width if shape.stem == "conv" else shape.channels
            weight = front.to_stream.weight
            assert isinstance(weight, Tensor)
            cut = (inner, shape.tubelet, shape.patch, shape.patch)
            self.cut = nn.Parameter(weight.detach().unflatten(1, cut))
        code_RD = None
        if front.places is not None:
            whole = (1, shape.frames, shape.channels, shape.height, shape.width)
            code_RD = front._code(torch.empty(whole, device="meta"))[0].detach()
        self.register_buffer("code_RD", code_RD)

    def forward(self, pixels: Tensor, hidden_BP: Tensor | None = None) -> Rows:
        front, shape = self.front, self.front.shape
        group = pixels if self.is_video else pixels[:, None]
        x_BTCYX = front.pixels(group)
        if hidden_BP is not None and front.stem is not None:
            x_BTCYX = x_BTCYX.masked_fill(self._cells(hidden_BP), 0.0)
        if front.stem is not None:
            x_BTCYX = front.stem(x_BTCYX.flatten(0, 1)).unflatten(0, (-1, shape.frames))
        if front.to_stream is not None:
            x_BRD = self._patches(x_BTCYX)
        else:
            x_BRD = x_BTCYX.permute(0, 1, 3, 4, 2).flatten(1, 3)
        if hidden_BP is not None and front.mask is not None:
            x_BRD = torch.where(hidden_BP[:, :, None], front.mask.weight, x_BRD)
        if front.first is not None:
            first_BED = front.first.weight.expand(x_BRD.shape[0], -1, -1)
            x_BRD = torch.cat([first_BED, x_BRD], dim=1)
        if self.code_RD is not None:
            x_BRD = x_BRD + self.code_RD
        n_rows = shape.extra + prod(shape.grid)
        position_1R = torch.arange(n_rows)[None]
        real_BR = torch.ones_like(x_BRD[:, :, 0], dtype=torch.long)
        return Rows(x_BRD, position_1R * real_BR, real_BR)

    def _patches(self, x_BTCYX: Tensor) -> Tensor:
        """A matrix for each patch or tubelet is a convolution that steps from one to the next."""
        shape, linear = self.front.shape, self.front.to_stream
        bias = getattr(linear, "bias", None)
        if shape.tubelet == 1:
            x_MDyx = F.conv2d(x_BTCYX.flatten(0, 1), self.cut[:, :, 0], bias, shape.step)
            x_BTDyx = x_MDyx.unflatten(0, (-1, shape.frames))
        else:
            steps = (shape.tubelet, shape.step, shape.step)
            x_BDtyx = F.conv3d(x_BTCYX.transpose(1, 2), self.cut, bias, steps)
            x_BTDyx = x_BDtyx.transpose(1, 2)
        return x_BTDyx.permute(0, 1, 3, 4, 2).flatten(1, 3)

    def _cells(self, hidden_BP: Tensor) -> Tensor:
        """Hidden pixels (B T 1 Y X): convolutions would see a hidden patch from the one beside it.
        What is behind the last whole patch is never hidden."""
        shape = self.front.shape
        cells = hidden_BP.unflatten(1, shape.grid)
        for axis, size in ((1, shape.tubelet), (2, shape.patch), (3, shape.patch)):
            cells = cells.repeat_interleave(size, axis)
        rest = [shape.width - cells.shape[3], shape.height - cells.shape[2]]
        return F.pad(cells, (0, rest[0], 0, rest[1]))[:, :, None]


class AudioRows(PlainFront):
    """Waveforms, each with its number of samples; what stands behind them does not matter.

    The spectrum is a convolution with waves of each frequency. Recordings reflect at their own ends
    (and are filled up with silence, where the model wants that), so that padding changes nothing.
    """

    waves_Q1W: Tensor
    filters_FQ1: Tensor

    def __init__(self, front: SoundFront, reach: int) -> None:
        super().__init__()
        # The front itself stays outside: what is in here of its weights has another form.
        self.shape, self.mask, shape = front.shape, front.mask, front.shape
        self.least = max(1, round(shape.pad_s * shape.rate))
        size = max(2 * self.least, 4 * shape.n_fft)
        self.example = {WAVEFORM: torch.zeros(2, size), LENGTHS: torch.tensor([size, self.least])}
        self.axes = {WAVEFORM: {0: "batch", 1: "samples"}, LENGTHS: {0: "batch"}}
        self.about = {
            WAVEFORM: f"one channel, {shape.rate} samples a second, from -1 to 1; padded behind",
            LENGTHS: "how many samples of each recording are real",
        }
        if front.mask is not None:
            self.example[HIDDEN_ROWS] = torch.zeros(2, 7, dtype=torch.bool)
            self.axes[HIDDEN_ROWS] = {0: "batch", 1: "hidden_rows"}
            self.about[HIDDEN_ROWS] = (
                f"true for rows ({1000 * shape.row_seconds:g} ms each) that are hidden from the "
                "model; the last value stands for all rows behind it"
            )
        self.code = added_positions(front.positions, reach)
        if self.code is not None:
            self.reach = self.code.num_embeddings
        mel = front.log_mel
        turn_QW = torch.arange(shape.n_fft // 2 + 1)[:, None] * torch.arange(shape.n_fft)
        angle_QW = turn_QW.remainder(shape.n_fft).double() * (2 * pi / shape.n_fft)
        waves_QW = torch.cat([angle_QW.cos(), angle_QW.sin()]) * mel.window_W.double()
        self.register_buffer("waves_Q1W", waves_QW[:, None].float())
        self.register_buffer("filters_FQ1", mel.filters_QF.T[:, :, None].contiguous())
        self.convolutions = nn.ModuleList(
            _convolution(part, stride)
            for part, stride in zip(front.convolutions, shape.strides, strict=True)
        )

    def forward(
        self, waveform_BS: Tensor, lengths_B: Tensor, hidden_BR: Tensor | None = None
    ) -> Rows:
        shape = self.shape
        n_B = lengths_B.clamp(min=self.least)
        frames_B = (n_B // shape.hop).clamp(min=1)
        power_BFA = self._power(waveform_BS, lengths_B, n_B)
        rows_B, real_BT = frames_B, _first(frames_B, power_BFA.shape[2])
        x_BDT = self._scaled(power_BFA.clamp(min=FLOOR), frames_B, real_BT)
        if hidden_BR is not None:  # the convolutions would see a hidden frame from the one beside
            each = prod(shape.strides)
            frame_A = torch.arange(x_BDT.shape[2]) // each
            x_BDT = x_BDT.masked_fill(_spread(hidden_BR, frame_A)[:, None], 0.0)
        for convolution, stride in zip(self.convolutions, shape.strides, strict=True):
            x_BDT = F.gelu(convolution(x_BDT.masked_fill(~real_BT[:, None], 0.0)))
            rows_B = (rows_B + (stride - 1)) // stride
            real_BT = _first(rows_B, x_BDT.shape[2])
        positions_BT = torch.arange(x_BDT.shape[2])[None] * real_BT
        # Row by row: on a turned grid `torch.export` asks how many rows there are.
        x_ND = x_BDT.transpose(1, 2).flatten(0, 1)
        if hidden_BR is not None and self.mask is not None:
            hidden_BT = _spread(hidden_BR, torch.arange(x_BDT.shape[2]))
            x_ND = torch.where(hidden_BT.flatten()[:, None], self.mask.weight, x_ND)
        if self.code is not None:
            x_ND = x_ND + self.code(positions_BT.flatten())
        x_BTD = x_ND.unflatten(0, (x_BDT.shape[0], x_BDT.shape[2]))
        return Rows(x_BTD, positions_BT, real_BT.long())

    def _power(self, waveform_BS: Tensor, lengths_B: Tensor, n_B: Tensor) -> Tensor:
        """Of each band in each frame, those of padding among them (B F A)."""
        shape = self.shape
        n_samples = waveform_BS.shape[1]
        # Room for two rows at least: `torch.export` takes a size of one for a constant.
        room = torch.sym_max(n_samples, max(self.least, 2 * prod(shape.strides) * shape.hop))
        # A walk to and fro over a recording of n samples comes back after 2 (n - 1) steps.
        round_B1 = (2 * (n_B - 1)).clamp(min=1)[:, None]
        at_E = torch.arange(room + shape.n_fft) - shape.n_fft // 2
        place_BE = at_E.remainder(round_B1)
        place_BE = torch.minimum(place_BE, round_B1 - place_BE)
        heard_BE = waveform_BS.gather(1, place_BE.clamp(max=n_samples - 1))
        heard_BE = heard_BE.masked_fill(place_BE >= lengths_B[:, None], 0.0)
        both_BQA = F.conv1d(heard_BE[:, None], self.waves_Q1W, stride=shape.hop)
        real_BQA, imaginary_BQA = both_BQA.chunk(2, dim=1)
        return F.conv1d(real_BQA.square() + imaginary_BQA.square(), self.filters_FQ1)

    def _scaled(self, power_BFA: Tensor, frames_B: Tensor, real_BA: Tensor) -> Tensor:
        """As `nn.mel` has it: a recording by itself."""
        real_B1A = real_BA[:, None]
        if self.shape.scale == "whisper":
            log_BFA = power_BFA.log10()
            top_B11 = log_BFA.masked_fill(~real_B1A, -torch.inf).amax((1, 2), keepdim=True)
            return (torch.maximum(log_BFA, top_B11 - 8.0) + 4.0) / 4.0
        log_BFA = power_BFA.log()
        # From the first frame on: a band that never changes then has a mean without any rounding.
        off_BFA = (log_BFA - log_BFA[:, :, :1]).masked_fill(~real_B1A, 0.0)
        count_B11 = frames_B[:, None, None].to(off_BFA.dtype)
        centred_BFA = off_BFA - off_BFA.sum(2, keepdim=True) / count_B11
        centred_BFA = centred_BFA.masked_fill(~real_B1A, 0.0)
        variance_BF1 = centred_BFA.square().sum(2, keepdim=True) / count_B11
        return centred_BFA * variance_BF1.clamp(min=1e-6).rsqrt()


def _convolution(part: nn.Module, stride: int) -> nn.Conv1d:
    """A matrix over three rows, as what it is."""
    assert isinstance(part, FlatConv)
    weight_OWI = part.linear.weight.detach().unflatten(1, (WIDE, -1))
    made = nn.Conv1d(weight_OWI.shape[2], len(weight_OWI), WIDE, stride, WIDE // 2)
    with torch.no_grad():
        made.weight.copy_(weight_OWI.transpose(1, 2))
        assert made.bias is not None
        made.bias.copy_(part.linear.bias)
    return made


def _first(lengths_B: Tensor, size: int) -> Tensor:
    """True for the first so many of `size` places (B T)."""
    return torch.arange(size)[None] < lengths_B[:, None]


def _spread(hidden_BR: Tensor, place_T: Tensor) -> Tensor:
    """Of each place the value of its row; rows that were not given are as the last one."""
    return hidden_BR.index_select(1, place_T.clamp(max=hidden_BR.shape[1] - 1))
