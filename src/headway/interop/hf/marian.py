"""Marian of Hugging Face: the Transformer of 2017 with biases everywhere and two vocabularies if
need be."""

from headway.interop.hf.bart import BartFamily

MARIAN = BartFamily(
    "marian", "Marian", "MTModel", wiring="post", learned=False, two_vocabularies=True
)
