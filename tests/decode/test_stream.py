"""Text that comes piece by piece is the text, and no piece is taken back."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from headway.decode.stream import BROKEN, TextStream

from .writing import SENTENCES, tokenizer


def pieces(stream: TextStream, ids: list[int]) -> list[str]:
    return [*(stream.push(token) for token in ids), stream.finish()]


def test_pieces_are_the_text_after_any_prompt() -> None:
    inner = tokenizer()
    for prompt in ("", "the cat", "日本"):
        for text in SENTENCES:
            before = [inner.bos, *inner.encode(prompt)]
            whole = inner.encode(f"{prompt} {text}".strip())
            ids = whole[len(before) - 1 :]
            stream = TextStream(inner, before)
            found = pieces(stream, ids)
            assert prompt + "".join(found) == f"{prompt} {text}".strip()
            assert stream.text == "".join(found)
            assert not any(BROKEN in piece for piece in found)
            assert sum(bool(piece) for piece in found) > len(ids) // 3


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(3, 299), max_size=90), st.lists(st.integers(3, 299), max_size=30))
def test_any_bytes_give_what_decoding_gives(ids: list[int], prompt: list[int]) -> None:
    inner = tokenizer()
    ids = [token for token in ids if token < inner.vocab_size]
    prompt = [token for token in prompt if token < inner.vocab_size]
    while prompt and inner.decode(prompt).endswith(BROKEN):  # a prompt is whole text
        prompt.pop()
    whole = inner.decode(prompt + ids)[len(inner.decode(prompt)) :]
    assert "".join(pieces(TextStream(inner, prompt), ids)) == whole


def test_a_character_of_several_tokens_comes_whole() -> None:
    inner = tokenizer()
    [first, *rest] = inner.encode("𝄞")[-4:]
    stream = TextStream(inner, [inner.bos])
    assert [stream.push(token) for token in [first, *rest]][:-1] == [""] * len(rest)
    assert stream.text.strip() == "𝄞"
    broken = TextStream(inner, [inner.bos])
    assert broken.push(first) == ""
    assert broken.finish() == BROKEN


@settings(deadline=None)
@given(
    st.text("ab.", max_size=14),
    st.lists(st.text("ab.", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_a_stop_string_ends_the_text_and_is_not_part_of_it(text: str, stops: list[str]) -> None:
    inner = tokenizer()
    stream = TextStream(inner, [inner.bos], stops)
    found = pieces(stream, inner.encode(text))
    places = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    assert "".join(found) == stream.text == (text[: min(places)[1]] if places else text)
    assert (stream.stopped_by is not None) == bool(places)
    if stream.stopped_by is not None:
        assert text[len(stream.text) :].startswith(stream.stopped_by)


def test_what_may_begin_a_stop_string_waits() -> None:
    inner = tokenizer()
    ids = {c: inner.encode(f"x{c}")[-1] for c in "abc."}
    stream = TextStream(inner, [inner.bos, *inner.encode("x")], ["ab."])
    assert [stream.push(ids[c]) for c in "cabab"] == ["c", "", "", "ab", ""]
    assert stream.push(ids["."]) == ""
    assert (stream.text, stream.stopped_by, stream.n_tokens) == ("cab", "ab.", 6)
    assert stream.push(ids["c"]) == stream.finish() == ""
