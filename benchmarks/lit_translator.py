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
    """Sorted and padded, so many texts at a time."""

    def __init__(self, folder: str, together: int, beam: int, **more: Any) -> None:
        super().__init__(**more)
        self.folder, self.together, self.beam = folder, together, beam

    def setup(self, device: str) -> None:
        self.model = AutoModelForSeq2SeqLM.from_pretrained(self.folder).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(self.folder)

    def decode_request(self, request: dict[str, str]) -> tuple[str, int]:
        return request["input"], int(request["tokens"])

    @torch.inference_mode()
    def predict(self, asked: list[tuple[str, int]]) -> list[str]:
        order = sorted(range(len(asked)), key=lambda n: (asked[n][1], len(asked[n][0])))
        found = [""] * len(asked)
        for first in range(0, len(order), self.together):
            some = order[first : first + self.together]
            texts, lengths = zip(*(asked[n] for n in some), strict=True)
            given = self.tokenizer(list(texts), return_tensors="pt", padding=True)
            given.pop("token_type_ids", None)
            most = max(lengths)  # all are as long as the longest; the rest is cut off
            out = self.model.generate(
                **given, num_beams=self.beam, do_sample=False, min_new_tokens=most,
                max_new_tokens=most,
            )  # fmt: skip
            out = [ids[: 1 + length] for ids, length in zip(out, lengths, strict=True)]
            said = self.tokenizer.batch_decode(out, skip_special_tokens=True)
            for place, text in zip(some, said, strict=True):
                found[place] = text
        return found

    def encode_response(self, text: str) -> dict[str, str]:
        return {"text": text}


def main() -> None:
    folder, port, together, beam = sys.argv[1:]
    api = Translator(folder, int(together), int(beam), max_batch_size=64, batch_timeout=0.02)
    server = litserve.LitServer(api, accelerator="cpu", timeout=600)
    server.run(port=int(port), generate_client_file=False, log_level="error")


if __name__ == "__main__":
    main()
