"""What Tab offers, as the shells ask for it, and without torch."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from headway.cli.main import main
from headway.settings.presets import PRESETS
from headway.settings.recipes import recipe_names
from headway.specs.tasks import SPECS

PROGRAM = """
import sys
from headway.cli.main import main
try:
    main()
finally:
    assert "torch" not in sys.modules
"""


class Tab:
    """The offers for the last of the words, as a shell asks for them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.monkeypatch, self.capsys = monkeypatch, capsys

    def __call__(self, *words: str, shell: str = "bash") -> list[str]:
        line = ["headway", *words]
        asked = {
            "COMP_WORDS": "\n".join(line), "COMP_CWORD": str(len(words)),
            "_TYPER_COMPLETE_ARGS": " ".join(line), "_TYPER_COMPLETE_FISH_ACTION": "get-args",
            "_HEADWAY_COMPLETE": f"complete_{shell}",
        }  # fmt: skip
        for name, value in asked.items():
            self.monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit):
            main([])
        return [one.partition("\t")[0] for one in self.capsys.readouterr().out.split("\n") if one]


@pytest.fixture
def tab(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Tab:
    monkeypatch.chdir(tmp_path)
    return Tab(monkeypatch, capsys)


def test_tasks_recipes_presets_and_families(tab: Tab) -> None:
    assert set(SPECS) <= set(tab("train", ""))
    assert tab("check", "transl") == ["translate"]
    assert tab("train", "--recipe", "") == recipe_names()
    assert tab("recipes", "wnut") == ["wnut17"]
    assert tab("train", "classify", "model.preset", "=", "bert-") == [
        name for name in PRESETS if name.startswith("bert-")
    ]
    assert "gpt2" in tab("info", "gp")
    assert tab("presets", "--family", "enc") == ["encoder"]


def test_runs_that_come_with_headway_and_folders(tab: Tab, tmp_path: Path) -> None:
    (tmp_path / "runs" / "shop").mkdir(parents=True)
    (tmp_path / "runs" / "shop" / "config.toml").write_text("")
    (tmp_path / "shop.txt").write_text("")
    for words in (["predict"], ["train", "classify", "--from"], ["look", "digits", "--against"],
                  ["average"], ["predict", "tatoeba-de-en", "--with"]):  # fmt: skip
        assert tab(*words, "sh") == ["shapes", "shop"], words
    assert tab("predict", "runs/") == ["runs/shop"]
    assert tab("predict", "ru") == ["runs/"]
    assert tab("predict", "stories,tatoeba-e") == ["stories,tatoeba-en-de"]


def test_settings_that_the_task_reads_with_their_values(tab: Tab) -> None:
    keys = [one.removesuffix("=") for one in tab("train", "transcribe", "tr")]
    assert "train.lr" in keys
    assert "transcribe.ctc" in tab("train", "transcribe", "transcribe.")[0]
    assert not tab("train", "transcribe", "classify.")
    assert not tab("train", "classify", "decode.bea")
    assert "model.audio.bands=" in tab("train", "transcribe", "model.audio.b")
    assert all(key.startswith(("train.", "transcribe.")) for key in keys)
    assert set(tab("train", "classify", "train.schedule", "=", "co")) == {"cosine", "constant"}
    assert tab("train", "classify", "train.schedule=cos", shell="fish") == ["train.schedule=cosine"]
    assert len(tab("train", "classify", "train.lr")) == 2  # so that no space is put behind it
    assert tab("predict", "stories", "decode.samp") == [
        "decode.sample=", "decode.sample=true", "decode.sample=false",
    ]  # fmt: skip


def test_completion_offers_files_and_settings(tab: Tab, tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("")
    found = tab("train", "classify", "train.")
    assert "train.tsv" in found
    assert "train.lr=" in found
    assert tab("predict", "stories", "tra") == ["train.tsv"]


def test_options_that_the_run_has_with_their_choices(tab: Tab) -> None:
    assert "--on-long" in tab("predict", "tatoeba-de-en", "--o")
    assert "--on-long" not in tab("predict", "stories", "--o")
    assert tab("predict", "tatoeba-de-en", "--on-long", "") == ["split", "cut", "error"]
    assert tab("predict", "stories", "--engine", "ct") == ["ctranslate2"]


def test_an_answer_comes_without_torch_and_bash_takes_it(tmp_path: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash")
    program = tmp_path / "headway"
    script = (
        'eval "$(headway --show-completion bash)"; complete -p headway; '
        "COMP_WORDS=(headway train classify model.preset = minil); COMP_CWORD=5; "
        '_headway_completion headway; echo "${COMPREPLY[@]}"'
    )
    program.write_text(f"#!{sys.executable}\n{PROGRAM}")
    program.chmod(0o755)
    done = subprocess.run(
        [bash, "--norc", "-c", script], capture_output=True, text=True, timeout=120,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}",
             "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
    )  # fmt: skip
    assert done.stdout.endswith("-F _headway_completion headway\nminilm-l6\n"), done.stderr


def test_it_is_installed_for_the_shell(tmp_path: Path) -> None:
    words = [sys.executable, "-c", PROGRAM, "--install-completion"]
    done = subprocess.run(
        [*words, "bash"], capture_output=True, text=True, timeout=120,
        env={**os.environ, "HOME": str(tmp_path),
             "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert str(tmp_path) in done.stdout
    assert ".bash_completions" in (tmp_path / ".bashrc").read_text()
