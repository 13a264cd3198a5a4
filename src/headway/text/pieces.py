"""Pieces of a vocabulary as people can read them."""

from __future__ import annotations

SPACE_MARK = "▁"


def _byte_characters() -> dict[str, int]:
    """Byte-level tokenizers write each byte as a visible character; this is the way back.

    Printable Latin-1 stands for itself, and the rest in order for what follows U+0100.
    """
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in kept]
    return {chr(byte): byte for byte in kept} | {
        chr(256 + n): byte for n, byte in enumerate(others)
    }


_BYTES = _byte_characters()


def readable(piece: str) -> str:
    """A piece of a byte-level vocabulary: `▁` is a space, `<0xe4>` a byte of a character."""
    if not all(c in _BYTES for c in piece):
        return piece
    text = bytes(_BYTES[c] for c in piece).decode("utf-8", errors="surrogateescape")
    shown = (f"<0x{ord(c) - 0xDC00:02x}>" if "\udc80" <= c <= "\udcff" else c for c in text)
    return "".join(shown).replace(" ", SPACE_MARK)
