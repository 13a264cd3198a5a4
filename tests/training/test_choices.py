"""What nobody chose: the choices, the budget, the memory."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from headway.cli.main import main
from headway.errors import ConfigError
from headway.models.summary import count_parameters, meta_model
from headway.settings.defaults import TABLE, default_rows
from headway.settings.facts import DatasetStats, DeviceInfo
from headway.settings.model import Seq2SeqSettings
from headway.settings.presets import preset
from headway.settings.run import Resolved, RunSettings, load_run_settings
from headway.tasks.parent_run import parent_of
from headway.training.budget import Decision
from headway.training.estimate import (
    Timing,
    memory_needed,
    seconds,
    smaller_steps,
    step_time,
    with_steps,
)
from headway.training.resolve import micro_tokens, resolve
from headway.training.run import _what_fits
from headway.training.schedule import learning_rate, peak_lr
from headway.training.trainer import Trainer
from tests.data.conftest import sentences

CPU = DeviceInfo()
GPU = DeviceInfo(type="cuda", free_bytes=80 << 30, bf16=True)


def planned(
    *words: str, n_pairs: int = 5000, source: int = 300, target: int = 300, on: DeviceInfo = CPU
) -> Resolved:
    """Of so many pairs of ten tokens and an end."""
    settings = load_run_settings(None, ["task=translate", *words])
    facts = DatasetStats(
        n=n_pairs,
        n_tokens=11 * n_pairs,
        vocab_size=target,
        source_vocab_size=0 if source == target else source,
        parent=parent_of(settings),
    )
    return resolve(settings, facts, on)


def model_of(settings: RunSettings) -> Seq2SeqSettings:
    assert isinstance(settings.model, Seq2SeqSettings)
    return settings.model


def test_every_setting_gets_a_value() -> None:
    train = planned().train
    for name in ("steps", "batch_tokens", "micro_tokens", "eval_every", "save_every"):
        assert getattr(train, name) is not None
    assert train.precision == "fp32"
    assert train.save_every == train.eval_every == -(-train.steps // 20)


def test_small_data_gets_defaults_that_suit_it() -> None:
    settings = planned()
    model, train = model_of(settings), settings.train
    tiny = preset("transformer-tiny")
    assert (model.d_model, model.n_layers) == (tiny.d_model, tiny.n_layers)
    assert model.block_layout == "pre"
    assert (train.optimizer, train.schedule, train.clip) == ("muon", "linear", 1.0)
    assert train.batch_tokens == train.micro_tokens == 2048
    # 60 epochs of 5000 pairs of 10 tokens and an end
    assert train.steps == 60 * round(5000 * 11 / 2048)


@pytest.mark.parametrize(
    ("n_pairs", "name", "batch_tokens", "epochs"),
    [
        (10_000, "transformer-tiny", 2048, 60),
        (90_000, "transformer-tiny", 2048, 40),
        (300_000, "transformer-small", 4096, 20),
        (1_500_000, "transformer-small", 4096, 10),
    ],
)
def test_more_data_gets_a_larger_model_and_fewer_epochs(
    n_pairs: int, name: str, batch_tokens: int, epochs: int
) -> None:
    settings = planned(n_pairs=n_pairs)
    assert model_of(settings).d_model == preset(name).d_model
    assert model_of(settings).n_layers == preset(name).n_layers
    assert settings.train.batch_tokens == batch_tokens
    assert settings.train.steps == epochs * round(n_pairs * 11 / batch_tokens)


@pytest.mark.parametrize(
    ("n_pairs", "name"),
    [
        (20_000, "transformer-tiny"),
        (200_000, "transformer-iwslt"),
        (5_000_000, "transformer-base"),
    ],
)
def test_a_gpu_gets_more(n_pairs: int, name: str) -> None:
    settings = planned(n_pairs=n_pairs, on=GPU)
    assert model_of(settings).d_ff == preset(name).d_ff
    assert settings.train.batch_tokens == (8192 if n_pairs < 1_000_000 else 25_000)
    assert (settings.train.precision, settings.train.bucket_steps) == ("bf16", 1)


def test_a_few_pairs_still_get_some_steps() -> None:
    assert planned(n_pairs=5).train.steps == 200


# The paper


def test_the_base_model_means_the_paper() -> None:
    settings = planned("model.preset=transformer-base", n_pairs=100, source=37_000, target=37_000)
    model, train = model_of(settings), settings.train
    assert replace(model, max_len=preset("transformer-base").max_len) == preset("transformer-base")
    assert (train.steps, train.batch_tokens, train.average) == (100_000, 25_000, 5)
    assert (train.optimizer, train.beta1, train.beta2, train.eps) == ("adam", 0.9, 0.98, 1e-9)
    assert (train.weight_decay, train.clip) == (0.0, 0.0)
    assert (train.label_smoothing, train.label_smoothing_kind, train.schedule) == (
        0.1,
        "paper",
        "noam",
    )
    rate = learning_rate(train, 100_000, model.d_model)
    assert rate(4000) == pytest.approx(512**-0.5 * 4000**-0.5)
    assert rate(100) == pytest.approx(512**-0.5 * 100 * 4000**-1.5)
    assert rate(90_000) == pytest.approx(512**-0.5 * 90_000**-0.5)
    assert peak_lr(train, 100_000, 512) == pytest.approx(6.99e-4, rel=1e-3)
    assert (
        settings.decode.beam,
        settings.decode.length_penalty_alpha,
        settings.decode.extra_len,
    ) == (4, 0.6, 50)
    assert train.micro_tokens == 2048  # accumulated: the effective batch stays


def test_the_big_model_means_the_paper() -> None:
    settings = planned("model.preset=transformer-big")
    train, model = settings.train, model_of(settings)
    assert (train.steps, train.average, train.keep, model.dropout) == (300_000, 20, 20, 0.3)
    assert train.batch_tokens == 25_000


def test_another_preset_has_the_papers_optimiser_but_steps_for_the_data() -> None:
    train = planned("model.preset=transformer-tiny").train
    assert (train.optimizer, train.schedule) == ("adam", "noam")
    assert train.steps == 60 * round(5000 * 11 / 2048)


# What was asked for wins


@pytest.mark.parametrize("first", [[], ["model.preset=transformer-base"]])
@pytest.mark.parametrize(
    "word",
    [
        "train.steps=77",
        "train.batch_tokens=900",
        "train.micro_tokens=90",
        "train.average=2",
        "train.optimizer=adamw",
        "train.schedule=cosine",
        "train.lr=0.5",
        "train.clip=3.0",
        "train.eval_every=3",
        "train.save_every=4",
        "train.precision=bf16",
    ],
)
def test_user_settings_are_kept(word: str, first: list[str]) -> None:
    name, value = word.removeprefix("train.").split("=")
    assert str(getattr(planned(*first, word).train, name)) == value


def test_a_change_to_the_model_is_made_to_the_chosen_one() -> None:
    model = model_of(planned("model.n_layers=3", "model.block_layout=post", "model.dropout=0.25"))
    assert (model.n_layers, model.block_layout, model.dropout) == (3, "post", 0.25)
    assert model.d_model == preset("transformer-tiny").d_model


@pytest.mark.parametrize("name", ["vocab_size", "source_vocab_size"])
@pytest.mark.parametrize("first", [[], ["model.preset=transformer-base"]])
def test_the_vocabulary_is_the_tokenizers(name: str, first: list[str]) -> None:
    with pytest.raises(ConfigError, match=rf"model\.{name}\b.*tokenizer\.vocab_size"):
        planned(*first, f"model.{name}=37000")


def test_one_vocabulary_for_both_sides_is_tied() -> None:
    model = model_of(planned(source=123, target=123))
    assert (model.vocab_size, model.source_vocab, model.tie) == (123, 123, "all")


def test_two_vocabularies_make_two_tables() -> None:
    model = model_of(planned(source=111, target=222))
    assert (model.source_vocab, model.vocab_size, model.tie) == (111, 222, "target-softmax")
    assert model_of(planned("model.tie=none", source=111, target=222)).tie == "none"
    with pytest.raises(ConfigError, match=r"tie='all'.*\b111\b.*\b222\b"):
        planned("model.tie=all", source=111, target=222)


def test_the_model_is_long_enough_for_the_data_and_its_output() -> None:
    assert model_of(planned("data.max_len=5000")).max_len == 5000 + 1 + 50
    assert model_of(planned("data.max_len=5000", "model.max_len=6000")).max_len == 6000
    ample = preset("transformer-tiny").max_len
    assert model_of(planned("data.max_len=10")).max_len == ample


def test_a_model_of_another_family_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"(?=.*\bseq2seq\b)(?=.*\bgpt2\b)(?=.*transformer-base)"):
        planned("model.preset=gpt2")


# Time


@pytest.mark.parametrize(
    ("text", "value"),
    [("90s", 90), ("10m", 600), ("2h", 7200), ("1h30m", 5400), ("1h1m1s", 3661), (" 5m ", 300)],
)
def test_a_length_of_time_is_understood(text: str, value: int) -> None:
    assert seconds(text) == value


@pytest.mark.parametrize("text", ["", "10", "m", "10 minutes", "-5m", "0s", "1.5h", "5m2h", "ten"])
def test_an_invalid_duration_is_an_error(text: str) -> None:
    with pytest.raises(ConfigError, match=rf"{re.escape(text)}.*\b10m\b"):
        seconds(text)


FIRST = Decision(step=0, steps=1800, until=90, examples=500, progress=0.0)


@pytest.mark.parametrize(
    ("words", "eval_every", "save_every"),
    [
        ([], 90, 90),
        (["train.eval_every=7"], 7, 7),
        (["train.save_every=9"], 90, 9),
        (["train.steps=5"], 90, 90),
    ],
)
def test_the_first_plan_of_a_budget_decides_over_a_recipes_steps(
    words: list[str], eval_every: int, save_every: int
) -> None:
    train = with_steps(planned(*words), FIRST).train
    assert (train.steps, train.eval_every, train.save_every) == (1800, eval_every, save_every)


def test_where_few_steps_fit_they_become_smaller_and_then_the_model() -> None:
    settings = planned()
    assert (settings.train.batch_tokens, model_of(settings).n_layers) == (2048, 4)
    assert smaller_steps(settings, 300) == settings
    half = smaller_steps(settings, 200)
    assert (half.train.batch_tokens, half.train.micro_tokens) == (1024, 1024)
    assert half.model == settings.model
    least = smaller_steps(settings, 14)
    assert (least.train.batch_tokens, model_of(least).n_layers) == (512, 2)


@pytest.mark.parametrize(
    "words",
    [
        ["train.batch_tokens=2048", "model.n_layers=4"],
        ["train.batch_tokens=512", "model.preset=transformer-tiny"],
    ],
)
def test_user_settings_are_not_reduced(words: list[str]) -> None:
    assert smaller_steps(planned(*words), 3) == planned(*words)


@dataclass
class Trial:
    """Steps of parts of 100 tokens that take so long, and the very first part longer."""

    part_s: float
    parts: int = 1
    first_s: float = 0.0
    finish_s: float = 0.0
    t: float = 0.0
    made: int = 0
    agreed: list[bool] = field(default_factory=list)

    def run_parts(self, late: Callable[[], bool]) -> tuple[int, int]:
        for n in range(1, self.parts + 1):
            self.t += self.part_s + (0.0 if self.made else self.first_s)
            self.made += 1
            if n < self.parts and late():
                break
        return 100 * n, 100 * self.parts

    def finish(self) -> None:
        self.t += self.finish_s

    def agree(self, mine: bool) -> bool:
        self.agreed.append(mine)
        return mine

    def time(self, for_s: float, *, prepares: bool = False) -> tuple[float, float]:
        return step_time(
            self.run_parts, self.finish, for_s, lambda: self.t, self.agree, prepares=prepares
        )


def test_time_is_measured_after_the_first_step() -> None:
    trial = Trial(0.01, first_s=0.3)
    step_s, tokens_per_s = trial.time(0.095)
    assert step_s == pytest.approx(0.01)
    assert tokens_per_s == pytest.approx(100 / 0.01)
    assert trial.agreed == [False] + [True] * 10 + [False]


def test_a_step_that_takes_longer_than_a_trial_is_judged_by_some_of_its_parts() -> None:
    trial = Trial(1.0, parts=20, finish_s=0.5)
    step_s, tokens_per_s = trial.time(3.0)
    assert step_s == pytest.approx(20.5)
    assert tokens_per_s == pytest.approx(2000 / 20.5)
    assert trial.t < 10.0


def test_one_part_is_enough_where_it_took_very_long() -> None:
    trial = Trial(16.0, parts=13)
    assert trial.time(3.0)[0] == pytest.approx(13 * 16.0)
    assert trial.made == 1


def test_a_step_that_only_prepares_the_others_does_not_count() -> None:
    trial = Trial(0.01, first_s=30.0)
    assert trial.time(0.5, prepares=True)[0] == pytest.approx(0.01)


# Memory


def test_memory_is_that_of_weights_moments_and_activations() -> None:
    settings = planned("model.preset=transformer-test")
    n = count_parameters(meta_model(model_of(settings)))
    needed = memory_needed(settings)
    assert 16 * n < needed < 16 * n + (1 << 30)
    fewer = replace(settings, train=replace(settings.train, micro_tokens=1024))
    assert (memory_needed(fewer) - 16 * n) / (needed - 16 * n) == pytest.approx(0.5, rel=0.1)
    half = replace(settings, train=replace(settings.train, precision="bf16"))
    assert memory_needed(half) - 16 * n == pytest.approx((needed - 16 * n) / 2)


def test_a_full_gpu_gets_smaller_parts() -> None:
    model = preset("transformer-test")

    def with_free(mib: float) -> int:
        return micro_tokens(model, 25_000, replace(GPU, free_bytes=int(mib * 2**20)))

    sizes = [with_free(mib) for mib in (8000, 100, 50, 1)]
    assert sizes[0] == 25_000
    assert sizes[0] > sizes[1] > sizes[2] > sizes[3]
    assert 256 <= sizes[3] <= 512


# The dry run


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """On data of 400 pairs, and a machine of known speed."""
    for name, side in zip(("de", "en"), zip(*sentences(), strict=True), strict=True):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in side), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    timing = Timing(step_s=0.5, example_s=0.2, tokens_per_s=4000.0)
    monkeypatch.setattr(Trainer, "time", lambda self, for_s, now: timing)
    files = ["--source", "de", "--target", "en", "--device", "cpu"]
    return ["train", "translate", *files, "tokenizer.kind=words", "data.valid_size=10"]


def test_a_dry_run_prints_the_plan_and_writes_nothing(
    tmp_path: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(tmp_path.iterdir())
    assert main([*command, "train.lr=0.002", "train.steps=100", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert sorted(tmp_path.iterdir()) == before
    facts = "\n".join(line for line in out.splitlines() if line.startswith("# "))
    for pattern in (
        r"\b400\b",
        r"\bMiB\b",
        r"4,000 tokens/s.*\b0\.5 s\b",
        r"\b100\b.*\b20\b.*\b1m 30s\b",
        r"\b0\.002\b.*\b10\b",
    ):
        assert re.search(pattern, facts), pattern
    rows = dict(re.findall(r"^(\w+) = .*# chosen: .* \[([\w.-]+)\]$", out, re.MULTILINE))
    assert (rows["optimizer"], rows["d_model"]) == ("training.from-scratch", "translate.model-cpu")
    assert set(rows.values()) <= {row.name for row in default_rows()}
    assert str(TABLE) in facts


def numbers(text: str) -> set[str]:
    """The whole numbers in a text."""
    return set(re.findall(r"\d[\d,]*\d|\d", text))


def test_a_trial_that_took_long_is_not_made_again(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    timing, made = Timing(12.0, 0.001, 170.0, long=True), list[float]()

    def time(self: Trainer, for_s: float, now: object) -> Timing:
        made.append(for_s)
        return timing

    monkeypatch.setattr(Trainer, "time", time)
    words = [*command, "model.preset=transformer-test", "--budget", "1m", "--dry-run"]
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert any({"512", "2,048"} <= numbers(line) for line in err.splitlines())
    assert re.search(r"tokens/s.*\b3 s\b", out)
    assert len(made) == 1


def test_only_reduced_settings_are_reported() -> None:
    before = planned("train.batch_tokens=2048")
    fewer = replace(before, model=replace(model_of(before), n_layers=2))
    assert numbers(_what_fits(before, fewer)) == {"2", "4"}
    both = replace(fewer, train=replace(before.train, batch_tokens=512))
    assert numbers(_what_fits(before, both)) == {"512", "2,048", "2", "4"}


def printed(words: list[str], capsys: pytest.CaptureFixture[str], to: Path) -> RunSettings:
    """Run the command and read what it printed."""
    assert main([*words, "--dry-run"]) == 0
    to.write_text(capsys.readouterr().out)
    return load_run_settings(to, [])


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["model.preset=transformer-test", "--budget", "10m"],
        ["model.n_layers=1", "model.tie=none", "tokenizer.joint=false", "train.lr=0.002"],
    ],
)
def test_what_a_dry_run_prints_is_a_recipe_for_the_same_run(
    tmp_path: Path, command: list[str], capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    first = printed([*command, *words], capsys, tmp_path / "plan.toml")
    if "--budget" in words:
        assert first.asked["budget"] == "10m"
        assert 500 < first.train.steps < 1200
    again = printed(["train", "--recipe", "plan.toml", "--device", "cpu"], capsys, tmp_path / "b")
    assert (again.model, again.train, again.data) == (first.model, first.train, first.data)
    assert (again.tokenizer, again.decode) == (first.tokenizer, first.decode)
    changed = ["train", "--recipe", "plan.toml", "--device", "cpu", "model.d_ff=24"]
    assert model_of(printed(changed, capsys, tmp_path / "c")).d_ff == 24


def test_a_translator_that_starts_from_another_is_fine_tuned() -> None:
    """The paper's schedule would climb to a rate at which it forgets what it knows."""
    tuned = planned("start.run=tatoeba-de-en").train
    assert (tuned.optimizer, tuned.schedule, tuned.lr) == ("adamw", "linear", 3e-4)
    assert planned("start.run=tatoeba-de-en", "train.lr=1e-3").train.lr == 1e-3
    assert tuned.label_smoothing == planned().train.label_smoothing
