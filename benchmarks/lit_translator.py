"""LitServe around `generate`, as its documentation has it: `python -m benchmarks.lit_translator`.

A process of its own: LitServe sends the class to its workers, who import it from here.
"""

from __future__ import annotations

import sys
from typing import Any

import litserve
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer


class Translator(litserve.LitAPI):  # type: ignore[misc]
    """Sorted and padded, a batch at a time."""

    def __init__(self, folder: str, tokens: int, beam: int, **more: Any) -> None:
        super().__init__(**more)
        self.folder, self.tokens, self.beam = folder, tokens, beam

    def setup(self, device: str) -> None:
        self.model = AutoModelForSeq2SeqLM.from_pretrained(self.folder).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(self.folder)

    def decode_request(self, request: dict[str, str]) -> str:
        return request["input"]

    @torch.inference_mode()
    def predict(self, texts: list[str]) -> list[str]:
        order = sorted(range(len(texts)), key=lambda n: len(texts[n]))
        given = self.tokenizer([texts[n] for n in order], return_tensors="pt", padding=True)
        given.pop("token_type_ids", None)
        out = self.model.generate(
            **given, num_beams=self.beam, do_sample=False, min_new_tokens=self.tokens,
            max_new_tokens=self.tokens,
        )  # fmt: skip
        said = self.tokenizer.batch_decode(out, skip_special_tokens=True)
        found = [""] * len(texts)
        for place, text in zip(order, said, strict=True):
            found[place] = text
        return found

    def encode_response(self, text: str) -> dict[str, str]:
        return {"text": text}


def main() -> None:
    folder, port, tokens, beam = sys.argv[1:]
    api = Translator(folder, int(tokens), int(beam), max_batch_size=64, batch_timeout=0.02)
    server = litserve.LitServer(api, accelerator="cpu", timeout=600)
    server.run(port=int(port), generate_client_file=False, log_level="error")


if __name__ == "__main__":
    main()
