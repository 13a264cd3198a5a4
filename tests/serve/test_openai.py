"""OpenAI's own client, unchanged, against the server: streaming and not."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import torch

import headway
from headway.nn.layout import Layout
from headway.run import Run
from headway.serve.chat import template_values
from headway.settings.folder import SHIPPED

from .conftest import Here, serving

PROMPT = "Once upon a time"


@pytest.fixture
def client(here: Here) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{here.url}/v1", api_key="none", max_retries=0) as found:
        yield found


def test_models(client: openai.OpenAI) -> None:
    assert {one.id for one in client.models.list()} >= {"stories", "tatoeba-de-en"}
    assert client.models.retrieve("stories").owned_by == "headway"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-17")


def greedy(run: Run, prompt: str, n: int) -> str:
    return run(prompt, beam=1, sample=False, max_len=n).text


def test_completions(client: openai.OpenAI, runs: dict[str, Run]) -> None:
    found = client.completions.create(
        model="stories", prompt=[PROMPT, "The dog"], max_tokens=9, temperature=0, n=2, logprobs=2
    )
    assert [one.index for one in found.choices] == [0, 1, 2, 3]
    want = [greedy(runs["stories"], prompt, 9) for prompt in (PROMPT, "The dog")]
    assert [one.text for one in found.choices] == [want[0], want[0], want[1], want[1]]
    assert {one.finish_reason for one in found.choices} == {"length"}
    probs = found.choices[0].logprobs
    assert probs is not None
    assert "".join(probs.tokens or []) == want[0]
    assert len(probs.top_logprobs or []) == len(probs.tokens or []) == 9
    assert found.usage is not None
    assert found.usage.completion_tokens == 4 * 9
    assert found.usage.total_tokens == found.usage.prompt_tokens + found.usage.completion_tokens
    assert found.object == "text_completion"
    assert found.system_fingerprint


def test_tokens_echo_and_stop(client: openai.OpenAI, runs: dict[str, Run]) -> None:
    run = runs["stories"]
    ids = run.tokenizer.as_prompt(run.tokenizer.encode(PROMPT))
    result: dict[str, Any] = {"model": "stories", "temperature": 0, "max_tokens": 30}
    found = client.completions.create(prompt=ids, **result)
    assert found.choices[0].text == greedy(run, PROMPT, 30)
    stopped = client.completions.create(prompt=PROMPT, stop=["there"], echo=True, **result)
    assert stopped.choices[0].text == PROMPT + greedy(run, PROMPT, 30).partition("there")[0]
    assert stopped.choices[0].finish_reason == "stop"


def test_what_is_drawn_is_drawn_again_by_its_seed(client: openai.OpenAI) -> None:
    def drawn(**said: Any) -> list[str]:
        found = client.completions.create(
            model="stories", prompt=PROMPT, max_tokens=12, temperature=1.0, n=3, **said
        )
        return [one.text for one in found.choices]

    assert drawn(seed=5) == drawn(seed=5)
    assert len(set(drawn(seed=5))) > 1
    assert drawn() != drawn()


@pytest.mark.parametrize(("n", "echo"), [(1, False), (2, False), (2, True)])
def test_a_stream_equals_the_whole_answer(client: openai.OpenAI, n: int, echo: bool) -> None:
    found: dict[str, Any] = {
        "model": "stories", "prompt": PROMPT, "max_tokens": 12, "temperature": 0.8, "seed": 3,
        "n": n, "stop": ["."], "echo": echo,
    }  # fmt: skip
    whole = client.completions.create(**found)
    texts, reasons, usage = [""] * n, [""] * n, None
    more = {"stream": True, "stream_options": {"include_usage": True}}
    for chunk in client.completions.create(**found, **more):
        for one in chunk.choices:
            texts[one.index] += one.text
            reasons[one.index] = one.finish_reason or ""
        usage = chunk.usage or usage
    assert texts == [one.text for one in whole.choices]
    assert reasons == [one.finish_reason for one in whole.choices]
    assert usage == whole.usage
    assert all(text.startswith(PROMPT) == echo for text in texts)


@pytest.mark.parametrize(("echo", "stop"), [(False, None), (True, None), (False, ["there"])])
def test_probabilities_come_with_their_tokens(
    client: openai.OpenAI, echo: bool, stop: list[str] | None
) -> None:
    result: dict[str, Any] = {
        "model": "stories", "prompt": PROMPT, "max_tokens": 12, "temperature": 0, "logprobs": 2,
        "echo": echo, "stop": stop, "n": 2,
    }  # fmt: skip
    [choice, same] = client.completions.create(**result).choices
    whole: Any = choice.logprobs
    assert whole == same.logprobs
    shown = "".join(whole.tokens).lstrip()
    assert choice.text.lstrip().removeprefix(shown) == (" " if stop else "")  # of " there" no part
    for token, at in zip(whole.tokens, whole.text_offset, strict=True):
        assert choice.text[at:].startswith(token) or at == 0
    written = [value is not None for value in whole.token_logprobs]
    assert all(written)  # the prompt's tokens, too: what comes before them is a token
    assert [one is not None for one in whole.top_logprobs] == written
    tokens: list[list[str]] = [[], []]
    for chunk in client.completions.create(**result, stream=True):
        [one] = chunk.choices
        found: Any = one.logprobs
        tokens[one.index] += found.tokens
        if found.tokens and not one.finish_reason:
            assert one.text.lstrip().removeprefix("".join(found.tokens).lstrip()).strip() == ""
    assert tokens == [whole.tokens, whole.tokens]


@pytest.mark.parametrize(
    "said", [{"temperature": 1e-3}, {"temperature": 1e-9}, {"top_p": 0}, {"stop": ""}]
)
def test_what_has_a_clear_meaning_is_taken(
    client: openai.OpenAI, runs: dict[str, Run], said: dict[str, Any]
) -> None:
    found = client.completions.create(
        **{"model": "stories", "prompt": PROMPT, "max_tokens": 6, "temperature": 0.0, **said}
    )
    assert found.choices[0].text == greedy(runs["stories"], PROMPT, 6)
    drawn: Any = {"model": "stories", "prompt": PROMPT, "max_tokens": 6, "temperature": 1.0}
    once, again = (
        client.completions.create(**drawn, seed=-1, n=2, best_of=2).choices for _ in range(2)
    )
    assert [one.text for one in once] == [one.text for one in again]


def test_a_null_equals_a_missing_field(client: openai.OpenAI) -> None:
    found = client.completions.create(
        model="stories", prompt=PROMPT, temperature=0, extra_body={"max_tokens": None, "n": None}
    )
    assert found.usage is not None
    assert found.usage.completion_tokens == 16


@pytest.mark.parametrize(
    ("said", "error", "message"),
    [
        ({"n": 9}, openai.BadRequestError, r"\bn\b.*\b8\b"),
        ({"max_tokens": 10**9}, openai.BadRequestError, r"max_tokens.*\b2,048\b"),
        ({"max_tokens": -1}, openai.BadRequestError, r"max_tokens.*\b2,048\b"),
        ({"temperature": 2.1}, openai.BadRequestError, r"temperature.*\b2\b"),
        ({"prompt": "a " * 9000}, openai.BadRequestError, r"\b9,002\b.*\b512\b"),
        ({"prompt": "a" * 20_001}, openai.BadRequestError, r"\b20,001\b.*\b20,000\b"),
        ({"temperature": -1}, openai.BadRequestError, r"temperature.*\b2\b"),
        ({"logprobs": 6}, openai.BadRequestError, r"logprobs.*\b5\b"),
        ({"best_of": 3}, openai.BadRequestError, r"best_of.*\bn\b"),
        ({"top_p": 2, "temperature": 0}, openai.BadRequestError, r"top_p.*\b1\b"),
        ({"seed": 2**60}, openai.BadRequestError, "seed.*9,007,199,254,740,992"),
        ({"prompt": 5}, openai.BadRequestError, r"\bprompt\b"),
        ({"prompt": {"text": "a"}}, openai.BadRequestError, r"\bprompt\b"),
        ({"presence_penalty": 1}, openai.BadRequestError, "presence_penalty"),
        ({"prompt": [99_999_999]}, openai.BadRequestError, r"\b2,048\b"),
        ({"prompt": ["a"] * 99}, openai.APIStatusError, r"\b32\b"),
        ({"model": "gpt-4"}, openai.NotFoundError, "'gpt-4'"),
        ({"model": "tatoeba-de-en"}, openai.NotFoundError, "'tatoeba-de-en'.*stories"),
        ({"extra_body": {"foo": 1}}, openai.BadRequestError, "'foo'"),
    ],
)
def test_mistakes_are_errors_of_the_client(
    client: openai.OpenAI, said: dict[str, Any], error: type[Exception], message: str
) -> None:
    asked: Any = {"model": "stories", "prompt": "a", "max_tokens": 2, **said}
    with pytest.raises(error, match=message):
        client.completions.create(**asked)


def test_errors_name_the_field_as_it_was_sent(here: Here) -> None:
    asked = {"model": "stories", "prompt": "a" * 20_001}
    assert here.post("/v1/completions", asked).json()["error"]["param"] == "prompt"
    asked = {"model": "base-en", "input": "a" * 20_001}
    assert here.post("/v1/embeddings", asked).json()["error"]["param"] == "input"


def test_embeddings_of_tokens(client: openai.OpenAI, runs: dict[str, Run]) -> None:
    texts = ["a small house", "a tree"]
    ids = [runs["base-en"].tokenizer.encode(text) for text in texts]
    want = client.embeddings.create(model="base-en", input=texts)
    found = client.embeddings.create(model="base-en", input=ids)
    [one] = client.embeddings.create(model="base-en", input=ids[0]).data
    assert [row.embedding for row in found.data] == [row.embedding for row in want.data]
    np.testing.assert_allclose(one.embedding, want.data[0].embedding, atol=1e-5)
    assert found.usage == want.usage
    for wrong in ([[10**9]], [], 5, [True]):
        with pytest.raises(openai.BadRequestError):
            client.embeddings.create(model="base-en", input=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("form", ["float", "base64"])
def test_embeddings(client: openai.OpenAI, runs: dict[str, Run], form: Any) -> None:
    texts = ["a small house", "ein Haus"]
    found = client.embeddings.create(model="base-en", input=texts, encoding_format=form)
    usual = client.embeddings.create(model="base-en", input=texts)
    for one, same, text in zip(found.data, usual.data, texts, strict=True):
        value = one.embedding
        if isinstance(value, str):  # which the client leaves as it is where it was asked for so
            import base64

            value = np.frombuffer(base64.b64decode(value), "<f4").tolist()
        np.testing.assert_allclose(value, runs["base-en"](text).vector, atol=1e-5)
        np.testing.assert_allclose(same.embedding, value, atol=1e-6)
    assert usual.usage.prompt_tokens > 4
    with pytest.raises(openai.BadRequestError, match=r"dimensions.*\b384\b"):
        client.embeddings.create(model="base-en", input="a", dimensions=7)


WAV = SHIPPED / "digits/example.wav"
SAID = "three eight six eight four"


def test_transcriptions(client: openai.OpenAI, runs: dict[str, Run]) -> None:
    made = client.audio.transcriptions.create
    with WAV.open("rb") as file:
        assert made(model="digits", file=file).text == SAID
    data = ("example.wav", WAV.read_bytes())
    assert made(model="digits", file=data, response_format="text", language="en") == SAID + "\n"
    srt: Any = made(model="digits", file=data, response_format="srt")
    assert srt.startswith("1\n00:00:00,")
    assert SAID in srt
    vtt: Any = made(model="digits", file=data, response_format="vtt")
    assert vtt.startswith("WEBVTT")
    whole: Any = made(
        model="digits", file=data, response_format="verbose_json",
        timestamp_granularities=["word", "segment"],
    )  # fmt: skip
    assert [word.word for word in whole.words] == SAID.split()
    assert whole.words[0].start < whole.words[0].end <= whole.words[1].start
    [segment] = whole.segments
    assert segment.text == SAID
    heard = runs["digits"](str(WAV))
    assert segment.avg_logprob == pytest.approx(heard.segments[0].log_prob, abs=1e-5)
    assert segment.avg_logprob == pytest.approx(heard.log_prob, abs=1e-5)
    assert segment.compression_ratio == pytest.approx(len(SAID) / len(zlib.compress(SAID.encode())))
    tokenizer = runs["digits"].opened.vocab.target
    assert tokenizer.decode(segment.tokens).strip() == SAID
    # This model has no token for windows without speech.
    assert "no_speech_prob" not in segment.model_dump(exclude_unset=True)
    assert 4 < whole.duration < 5
    with pytest.raises(openai.BadRequestError, match=r"\ba\.wav\b"):
        made(model="digits", file=("a.wav", b"RIFF"))
    with pytest.raises(openai.NotFoundError, match=r"'stories'.*\bdigits\b"):
        made(model="stories", file=data)


MESSAGES: Any = [{"role": "user", "content": "Tell me a story."}]


def test_a_chat_needs_a_template(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match=r"'stories'.*/v1/predict"):
        client.chat.completions.create(model="stories", messages=MESSAGES)


def test_a_chat_by_the_template_of_the_run(tmp_path: Path) -> None:
    import shutil

    folder = tmp_path / "chatty"
    shutil.copytree(SHIPPED / "stories", folder)
    template = (
        "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        "{% if add_generation_prompt %}assistant:{% endif %}"
    )
    (folder / "chat_template.jinja").write_text(template)
    run = headway.load(folder, device="cpu")
    want = greedy(run, "user: Tell me a story.\nassistant:", 8)
    with serving(run) as here, openai.OpenAI(
        base_url=f"{here.url}/v1", api_key="none", max_retries=0
    ) as client:  # fmt: skip
        result: Any = {"model": "chatty", "messages": MESSAGES, "max_tokens": 8, "temperature": 0}
        found = client.chat.completions.create(**result, logprobs=True, top_logprobs=2)
        assert found.choices[0].message.content == want
        assert found.choices[0].logprobs is not None
        assert len(found.choices[0].logprobs.content or []) == 8
        text, roles = "", []
        for chunk in client.chat.completions.create(**result, stream=True):
            text += chunk.choices[0].delta.content or ""
            roles.append(chunk.choices[0].delta.role)
        assert text == want
        assert roles[0] == "assistant"
        assert not any(roles[1:])
        parts: Any = [{"type": "text", "text": "Tell me "}, {"type": "text", "text": "a story."}]
        again = {**result, "messages": [{"role": "user", "content": parts}]}
        assert client.chat.completions.create(**again).choices[0].message.content == want
        long: Any = [{"role": "user", "content": "a" * 30_000}]
        with pytest.raises(openai.APIStatusError, match=r"\b30,000\b.*\b20,000\b"):
            client.chat.completions.create(**{**result, "messages": long})
        wrong: Any = [{"role": "system", "content": "x"}]
        with pytest.raises(openai.BadRequestError, match="no system"):
            client.chat.completions.create(**{**result, "messages": wrong})
        developer = {"role": "developer", "content": "Be short."}
        with pytest.raises(openai.BadRequestError, match="no system"):  # its name in this template
            client.chat.completions.create(**{**result, "messages": [developer, *MESSAGES]})
        many = client.chat.completions.create(**result, logprobs=True, top_logprobs=20)
        assert many.choices[0].logprobs is not None
        assert [len(one.top_logprobs) for one in many.choices[0].logprobs.content or []] == [20] * 8
        for wrong in ({"logprobs": True, "top_logprobs": 21}, {"top_logprobs": 2},
                      {"messages": [{"role": "robot", "content": "a"}]}):  # fmt: skip
            with pytest.raises(openai.BadRequestError):
                client.chat.completions.create(**{**result, **wrong})


def test_developer_is_a_role_of_templates_that_know_it(tmp_path: Path) -> None:
    import shutil

    folder = tmp_path / "chatty"
    shutil.copytree(SHIPPED / "stories", folder)
    path = folder / "chat_template.jinja"
    message = [{"role": "developer", "content": "Be short."}]
    for text, role in (("{{ messages }}", "system"), ("{# developer #}", "developer")):
        path.write_text(text)
        run = headway.load(folder, device="cpu")
        assert template_values(run, message)["messages"][0]["role"] == role


def log_probs_of(run: Run, ids: list[int]) -> torch.Tensor:
    """Log-probabilities of the next token at each position, in one pass."""
    model: Any = run.opened.models[0]
    with torch.no_grad():
        x_ND = model(torch.tensor(ids), Layout.of([len(ids)]))
        return model.scores(x_ND).float().log_softmax(-1)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 2])
def test_log_probabilities_of_a_prompt(
    client: openai.OpenAI, runs: dict[str, Run], stream: bool, n: int
) -> None:
    """Programs measure perplexity and score choices with `echo` and `max_tokens` 0."""
    run, prompt = runs["stories"], PROMPT + " there was a little dog."
    ids = run.tokenizer.as_prompt(run.tokenizer.encode(prompt))
    known = log_probs_of(run, ids)
    found: Any = {"model": "stories", "prompt": prompt, "max_tokens": 0, "echo": True,
                 "logprobs": 3, "n": n}  # fmt: skip
    if stream:
        made = [one for chunk in client.completions.create(**found, stream=True)
                for one in chunk.choices]  # fmt: skip
        assert len(made) == n
    else:
        whole = client.completions.create(**found)
        made = list(whole.choices)
        assert whole.usage is not None
        assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (
            len(ids),
            0,
        )
    for choice in made:
        probs: Any = choice.logprobs
        assert (choice.text, choice.finish_reason) == (prompt, "length")
        want = [float(known[at, token]) for at, token in enumerate(ids[1:])]
        assert probs.token_logprobs == pytest.approx(want, abs=1e-4)
        assert "".join(probs.tokens).strip() == prompt
        best = known[:-1].max(-1).values.tolist()
        assert [max(one.values()) for one in probs.top_logprobs] == pytest.approx(best, abs=1e-4)
        assert {len(one) for one in probs.top_logprobs} == {3}


def test_without_new_tokens_a_text_is_empty(client: openai.OpenAI) -> None:
    found = client.completions.create(model="stories", prompt=[PROMPT, "a"], max_tokens=0)
    assert [(one.text, one.finish_reason) for one in found.choices] == [("", "length")] * 2
    assert found.choices[0].logprobs is None


def test_streams_are_described_as_streams(here: Here) -> None:
    paths = here.get("/openapi.json").json()["paths"]
    for path in ("/v1/completions", "/v1/chat/completions", "/v1/predict"):
        found = paths[path]["post"]["responses"]["200"]["content"]
        assert set(found) == {"application/json", "text/event-stream"}
        schema = found["text/event-stream"]["schema"]
        assert schema["format"] == "event-stream"
        assert schema["x-event"]["type"] == "object"
        assert schema["example"].endswith("data: [DONE]\n\n")
    for path, codes in (("/v1/completions", {"400"}), ("/v1/predict", {"400", "422"})):
        assert {"400", "422"} & set(paths[path]["post"]["responses"]) == codes
