"""`headway info`: the architecture of a model, its parameters and its memory use."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from safetensors import safe_open

from headway.cli import completion
from headway.cli.data_arguments import JsonOption
from headway.cli.print_table import show_table
from headway.errors import FolderError
from headway.settings.effects import ignored_by
from headway.settings.folder import WEIGHTS, file_in, find_settings, run_folder
from headway.settings.model import (
    AudioEncoderSettings,
    AudioSeq2SeqSettings,
    DecoderSettings,
    ImageEncoderSettings,
    ImageSeq2SeqSettings,
    ModelSettings,
    Seq2SeqSettings,
    TextSettings,
    family_of,
)

if TYPE_CHECKING:
    from headway.models.summary import Summary

InfoRow = tuple[str, str, str]


def info(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A preset, a run folder or shipped model, or a .toml file.",
            autocompletion=completion.models,
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Changed settings, such as model.n_layers=4."),
    ] = None,
    as_json: JsonOption = False,
    batch_tokens: Annotated[
        int, typer.Option(min=1, max=1 << 24, help="Tokens in a training batch.")
    ] = 4096,
) -> None:
    """Show the architecture, parameters and memory use of a model."""
    settings = find_settings(model, overrides or [])  # mistakes surface here, before torch loads
    if isinstance(settings, DecoderSettings) and settings.is_counted:
        _counted(model, settings, as_json=as_json)
        return
    from headway.models.summary import summarise

    summary = summarise(settings, batch_tokens)
    if as_json:
        facts = {"family": family_of(settings), "settings": asdict(settings), **summary.facts()}
        print(json.dumps(facts, indent=2))
        return
    show_table(["model", model, ""], _shape_rows(settings), set())
    print()
    show_table(["part", "parameters", ""], _part_rows(summary), {"parameters"})
    print()
    show_table(["memory", "size", ""], _memory_rows(settings, summary), {"size"})


def _counted(model: str, settings: DecoderSettings, *, as_json: bool) -> None:
    """Print the sizes of an n-gram model. The number of n-grams is known only for a trained run."""
    n_grams = n_bytes = None
    with suppress(FolderError):
        weights = file_in(run_folder(model), WEIGHTS)
        n_bytes = weights.stat().st_size
        with safe_open(weights, framework="np") as file:
            n_grams = settings.vocab_size + file.get_slice("head.table.keys_J").get_shape()[0]
    if as_json:
        facts = {"family": family_of(settings), "settings": asdict(settings)}
        print(json.dumps({**facts, "n_grams": n_grams, "weights_bytes": n_bytes}, indent=2))
        return
    rows: list[InfoRow] = [
        ("family", family_of(settings), ""),
        ("body", settings.body, f"n-grams of up to {settings.order} tokens"),
        ("vocabulary", f"{settings.vocab_size:,}", ""),
    ]
    if n_grams is not None and n_bytes is not None:
        rows += [
            ("n-grams", f"{n_grams:,}", "counted during training"),
            ("size", _size(n_bytes), ""),
        ]
    show_table(["model", model, ""], rows, set())


def _shape_rows(settings: ModelSettings) -> list[InfoRow]:
    """Return table rows with the settings that define the architecture, and explanations of
    them."""
    stacks = settings.stacks.values()
    layers = " + ".join(str(stack.n_layers) for stack in stacks)
    heads = f"{' and '.join(map(str, settings.each('head_width')))} wide"
    if any(stack.kv_heads != stack.n_heads for stack in stacks):
        heads += f", {' and '.join(map(str, settings.each('kv_heads')))} for keys and values"
    if settings.n_kept_heads != settings.n_whole_heads:
        heads += f"; {settings.n_kept_heads} of {settings.n_whole_heads} left after pruning"
    hidden = " + ".join(f"{number:,}" for number in settings.each("d_ff"))
    activations = dict.fromkeys(stack.activation for stack in stacks)
    kinds = [name + ", gated" * ("glu" in name) for name in activations]
    rows = [
        ("family", family_of(settings), ""),
        ("layers", layers, "encoder, decoder" * (len(stacks) > 1)),
        ("width", f"{settings.d_model:,}", ""),
        ("heads", " + ".join(map(str, settings.each("n_heads"))), heads),
        ("feed-forward", hidden, " and ".join(kinds)),
        *_front(settings),
        ("block layout", settings.block_layout, f"{settings.norm} norm"),
        ("dropout", f"{settings.dropout:g}", f"attention {settings.attention_dropout:g}"),
    ]
    if settings.body == "transformer":
        return rows
    unread, of = ignored_by(vars(settings)), {"heads": "n_heads", "feed-forward": "d_ff"}
    if "attention_dropout" in unread:
        rows[-1] = ("dropout", f"{settings.dropout:g}", "")
    if "activation" in unread:
        rows = [(name, value, "" if name == "feed-forward" else why) for name, value, why in rows]
    rows.insert(1, ("body", settings.body, _of_body(settings)))
    return [row for row in rows if of.get(row[0], "") not in unread]


def _of_body(settings: ModelSettings) -> str:
    """Return a summary of the settings that only some model types have."""
    unread, said = ignored_by({"body": settings.body}), []
    if "bidirectional" not in unread and not settings.causal:
        said.append("both directions" if settings.bidirectional else "one direction")
    if "kernel" not in unread:
        said.append(f"kernel {settings.kernel}, dilation {settings.dilation}")
    if isinstance(settings, Seq2SeqSettings) and "source_attention" not in unread:
        said.append(f"source attention {settings.source_attention}")
    if isinstance(settings, DecoderSettings) and "single_head" not in unread:
        layers = {"every": "a head in every layer", "second-last": "one head", "none": "no head"}
        said.append(layers[settings.single_head])
    return ", ".join(said)


def _front(settings: ModelSettings) -> list[InfoRow]:
    """Return table rows about the input: vocabulary, image or audio format, and positions."""
    n_words = getattr(settings, "vocab_size", None)
    rows: list[InfoRow] = [] if n_words is None else [("vocabulary", f"{n_words:,}", "")]
    if isinstance(settings, ImageEncoderSettings | ImageSeq2SeqSettings):
        shape = settings.image
        many = f"{shape.frames} frames of " if shape.frames > 1 else ""
        size = f"{many}{shape.height} × {shape.width}"
        n_rows = shape.rows_of(shape.frames, shape.height, shape.width)
        rows.append(
            ("images", size, f"{shape.stem}, {n_rows:,} tokens, {shape.positions} positions")
        )
    if isinstance(settings, AudioEncoderSettings | AudioSeq2SeqSettings):
        audio = settings.audio
        heard = f"{audio.bands} bands, one vector per {1000 * audio.row_seconds:g} ms"
        rows.append(("audio", f"{audio.rate:,} Hz", heard))
    if isinstance(settings, TextSettings) or settings.positions != "none":
        rows.append(("positions", settings.positions, f"up to {settings.max_len:,}"))
    return rows


def _part_rows(summary: Summary) -> list[InfoRow]:
    rows: list[InfoRow] = []
    for child in dict.fromkeys(part.child for part in summary.parts):
        inside = [part for part in summary.parts if part.child == child]
        size = sum(part.parameters for part in inside)
        rows.append((child, f"{size:,}", f"{size / summary.parameters:.1%}"))
        for part in inside:
            note = f"shared with {part.shared_with}" if part.shared_with else ""
            rows.append((f"  {part.kind}", f"{part.parameters:,}", note))
    return [*rows, ("total", f"{summary.parameters:,}", "")]


def _memory_rows(settings: ModelSettings, summary: Summary) -> list[InfoRow]:
    kept = summary.activations
    batch = f"{kept.sequences * kept.length:,} tokens in sequences of {kept.length:,}"
    if isinstance(settings, Seq2SeqSettings):
        batch = batch.replace(" tokens", " source and as many target tokens")
    rows: list[InfoRow] = [
        ("training", _size(summary.training_bytes), "fp32 weights, gradients, Adam's two moments"),
        ("  and activations", _size(kept.fused_bytes), batch),
    ]
    if settings.attention_dropout:
        note = "on a CPU, where attention dropout stores the attention weights"
        rows.append(("  or", _size(kept.written_out_bytes), note))
    rows.append(("inference", _size(4 * summary.parameters), "fp32 weights"))
    rows.append(("", _size(2 * summary.parameters), "bf16 weights"))
    if summary.cache_numbers:
        rows += [
            (name, _size(n_bytes * summary.cache_numbers), kind + _of_source(summary, n_bytes))
            for name, kind, n_bytes in (("cache per token", "fp32", 4), ("", "bf16", 2))
        ]
    return rows


def _of_source(summary: Summary, n_bytes: int) -> str:
    """Return a note on the cache size per source token, which follows the size per target token in
    the table. Empty if there is no source."""
    if not summary.memory_numbers:
        return ""
    same = summary.memory_numbers == summary.cache_numbers
    size = "as much" if same else _size(n_bytes * summary.memory_numbers)
    return f", and {size} per source token"


def _size(n_bytes: int) -> str:
    size, units = float(n_bytes), ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{size:.1f} {units[0]}" if units[0] != "bytes" else f"{n_bytes} bytes"
