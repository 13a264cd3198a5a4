"""Looking at images, videos and recordings: named rows, the same answers, the same schema."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from headway.decode.logits_processors import SpecialTokens
from headway.decode.search.searcher import Searcher
from headway.decode.speech.recognizer import recognizer_of
from headway.errors import FolderError, UserError
from headway.inside import look, trace
from headway.inside.capture.forward import run_reading
from headway.inside.capture.interventions import Intervention
from headway.inside.capture.media import MediaInput, check_input_kind, open_media
from headway.inside.capture.reading import GenerationOptions, read
from headway.inside.capture.trace import Trace
from headway.inside.page.live import LivePage, initial_request
from headway.inside.page.look import LookOptions
from headway.inside.page.terminal import format_trace, ticks
from headway.models.encoder import Encoder
from headway.models.seq2seq import Seq2Seq

from ..interop.padded_runs import tiny_run
from .media_runs import AUDIO, IMAGE, RATE, item_for, looked, media_for, media_run, page

TASKS = ("see", "watch", "hear", "caption", "captioned-video", "identify", "transcribe",
         "transcribe-joint", "transcribe-ctc")  # fmt: skip


def test_patches_and_stretches_of_audio_are_named_by_their_place() -> None:
    image = MediaInput.of("x.png", np.zeros((1, 3, 24, 32), np.uint8), IMAGE)
    stream = image.stream("image")
    assert len(stream) == 1 + 3 * 4
    assert stream.pieces[:3] == ("class", "row 1, column 1", "row 1, column 2")
    assert stream.pieces[-1] == "row 3, column 4"
    assert stream.special[:2] == (True, False)
    assert image.short_names()[-1] == "3·4"
    video = media_for(media_run("watch"))
    assert video.stream("image").pieces[-1] == "frame 3, row 2, column 2"
    audio = MediaInput.of("x.wav", np.zeros(RATE, np.float32), AUDIO)
    assert audio.stream("source").pieces[12] == "0.24 s"
    assert audio.n_rows == 50


@pytest.mark.parametrize("task", TASKS)
def test_looking_does_not_change_the_answer(task: str) -> None:
    run = media_run(task)
    media = media_for(run)
    found = trace(run, media, gradients=True)
    model, item = run.model, item_for(run)
    with torch.no_grad():
        if isinstance(model, Seq2Seq):
            if task == "transcribe-joint":
                searcher = recognizer_of(model, run.vocab.target, run.settings.decode, 0.3).searcher
            else:
                searcher = Searcher(
                    [model], run.settings.decode, SpecialTokens.of(run.vocab.target)
                )
            tokens = searcher([item])[0][0].tokens
            assert [o.id for o in found.reading.outputs][: len(tokens)] == tokens
            x_ND = model(*model.source_front.collate([item]),
                         *model.target_front.collate([list(found.reading.last.ids)]))  # fmt: skip
            plain = model.scores(x_ND)
        else:
            assert isinstance(model, Encoder)
            given, layout = model.front.collate([item])
            x_ND = model(given, layout)
            if task == "transcribe-ctc":
                rows = [output.row for output in found.reading.outputs]
                plain = model.head_named("ctc")(x_ND[rows])
            else:
                plain = model.classes(x_ND, layout)
                assert found.reading.outputs[0].id == int(plain[0].argmax())
    assert torch.allclose(found.scores_RC, plain, atol=1e-5)
    for layers in found.attention.values():
        for weights_HTS in layers:
            assert torch.allclose(weights_HTS.sum(-1), torch.ones(1), atol=1e-5)


@pytest.mark.parametrize("task", ["watch", "captioned-video", "identify", "transcribe-ctc"])
def test_every_kind_of_run_has_a_page_with_its_own_panel(task: str) -> None:
    run = looked(task).run
    seen = page(task)
    sections = seen.looks[0]["sections"]
    own = "audio" if task.startswith(("transcribe", "identify")) else "image"
    assert {"overview", own, "walk", "attention", "lens", "neurons", "heads"} <= set(sections)
    writes = isinstance(run.model, Seq2Seq)
    assert ("beam" in sections) == writes
    assert not {"saliency", "features", "neighbours"} & set(sections)
    assert seen.looks[0]["streams"]["source" if writes else own]["short"]


@pytest.mark.parametrize("task", ["see", "caption", "transcribe"])
def test_a_trace_of_media_comes_back_from_its_folder(task: str, tmp_path: Path) -> None:
    run = media_run(task)
    found = trace(run, media_for(run))
    found.save(tmp_path)
    again = Trace.load(tmp_path)
    assert again.reading == found.reading
    assert again.reading.media is not None
    assert (again.reading.media.item == item_for(run)).all()
    kind = "self" if task == "see" else "cross"
    assert torch.equal(again.attention[kind][0], found.attention[kind][0])
    own = "audio" if task == "transcribe" else "image"
    assert own in look(again).looks[0]["sections"]
    facts = json.loads((tmp_path / "trace.json").read_text())
    facts["reading"]["streams"] = {"odd": facts["reading"]["streams"].popitem()[1]}
    (tmp_path / "trace.json").write_text(json.dumps(facts))
    with pytest.raises(FolderError, match=r"\bodd\b"):
        Trace.load(tmp_path)


@pytest.mark.parametrize("task", ["see", "caption", "transcribe-ctc"])
def test_a_hidden_patch_is_attended_to_by_no_other(task: str) -> None:
    run = media_run(task)
    media = media_for(run)
    stream = "source" if task == "caption" else "image" if task == "see" else "audio"
    found = trace(run, media, change=Intervention(hidden=frozenset({(stream, 3)})))
    kind = "cross" if task == "caption" else "self"
    for weights_HTS in found.attention[kind]:
        others = [t for t in range(weights_HTS.shape[1]) if t != 3 or kind == "cross"]
        assert float(weights_HTS[:, others, 3].max()) == 0.0
    off = trace(run, media, change=Intervention(disabled_heads=frozenset({(kind, 1, 2)})))
    assert not torch.allclose(off.scores_RC[0], trace(run, media).scores_RC[0])


def test_an_answer_can_be_given_to_a_captioner_and_not_to_a_viewer() -> None:
    run = media_run("caption")
    reading = read(run, media_for(run), GenerationOptions(output="a red circle"))
    assert [output.name for output in reading.outputs[:3]] == ["▁a", "▁red", "▁circle"]
    assert run_reading(run, reading).log_probs_R.shape == (4,)
    with pytest.raises(UserError, match="classify"):
        read(media_run("see"), media_for(media_run("see")), GenerationOptions(output="cat"))


def test_input_of_another_kind_is_an_error_that_names_the_option(tmp_path: Path) -> None:
    seer, hearer = media_run("see"), media_run("transcribe")
    with pytest.raises(UserError, match=r"\bsee\b.*file="):
        check_input_kind(seer, "a text", None)
    with pytest.raises(UserError, match="file="):
        check_input_kind(hearer, None, None)
    from headway.tasks.loaded_run import open_plain

    texts = open_plain(tiny_run(tmp_path / "run", "classify"))
    with pytest.raises(UserError, match=r"\brun\b.*text="):
        check_input_kind(texts, None, Path("x.png"))
    with pytest.raises(UserError, match=r"\brun\b"):
        read(texts, Path("x.png"))
    with pytest.raises(UserError, match=r"^(?!.*\bsee\b)(?=.*\btext\b)(?=.*\bfile\b)"):
        look(seer, "a text", file="x.png")
    (tmp_path / "x.txt").write_text("a text")
    with pytest.raises(UserError, match=r"x\.txt.*\.npy"):
        look(seer, media_for(seer), corpus=tmp_path / "x.txt")
    with pytest.raises(UserError, match=r"missing\.png"):
        open_media(seer, tmp_path / "missing.png")


def test_a_file_is_opened_as_the_model_reads_it(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    run = media_run("see")
    image.fromarray(np.full((60, 80, 3), 200, np.uint8)).save(tmp_path / "grey.png")
    media = open_media(run, tmp_path / "grey.png")
    assert media.name == "grey.png"
    assert media.item.shape == (1, 3, 24, 32)
    assert media.item.mean() == 200
    stack = np.zeros((4, 24, 32, 3), np.uint8)
    stack[2] = 7
    np.save(tmp_path / "stack.npy", stack)
    assert open_media(run, f"{tmp_path}/stack.npy:2").item.max() == 7
    lines = [{"path": "stack.npy", "index": i, "label": "cat"} for i in (0, 2)]
    (tmp_path / "all.jsonl").write_text("\n".join(map(json.dumps, lines)))
    media = open_media(run, f"{tmp_path}/all.jsonl:2")
    assert (media.name, media.item.max()) == ("all.jsonl:2", 7)
    with pytest.raises(UserError, match=r"all\.jsonl.*\b9\b"):
        open_media(run, f"{tmp_path}/all.jsonl:9")


def test_seconds_are_above_a_map_of_audio() -> None:
    media = MediaInput.of("x.wav", np.zeros(4 * RATE, np.float32), AUDIO)  # 200 rows
    _, line = ticks(media, 4, 1, 60)
    assert line == "0 s         1 s          2 s         3 s"  # 12.5 columns a second


@pytest.mark.parametrize("task", ["see", "caption"])
def test_the_terminal_and_the_server_show_media_too(task: str) -> None:
    seen = looked(task)
    found = format_trace(seen, width=100, ink="ascii")
    assert "example" in found
    # 4 patches per row, in cells of 2.
    [ruler] = [line for line in found.splitlines() if line.split() == ["1,1", "2,1", "3,1"]]
    assert ruler.index("2,1") - ruler.index("1,1") == 8
    assert "row,column" in found
    live = LivePage.of(seen.run, GenerationOptions(), LookOptions(), media_for(seen.run))
    # A request cannot name another file.
    served = live.page(initial_request("/etc/passwd", GenerationOptions(), Intervention()))
    assert served.looks[0]["text"] == "example"
    assert served.shared["live"]["media"]
    outputs = [output.name.strip("▁") for output in seen.trace.reading.outputs]
    assert [output["name"] for output in served.looks[0]["outputs"]] == outputs
