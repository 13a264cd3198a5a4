"""`headway.load`, and `Run`: a trained model that predicts, evaluates, inspects and exports.

A `Run` is immutable. Its settings are read when it is created, its models on first use. Options of
one call, such as a beam size, do not affect the next call.
"""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from html import escape
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, overload

from headway.errors import DataError, UserError, columns_by_option, suggest
from headway.progress import SILENT, Progress
from headway.settings.data import FILES, INPUTS, DataSettings
from headway.settings.decode import DecodeSettings
from headway.settings.effects import unused_option
from headway.settings.ensemble import check_device_and_precision, check_ensemble
from headway.settings.folder import (
    CONFIG,
    RUNS,
    TOKENIZER,
    WEIGHTS,
    file_in,
    load_run,
    run_folders,
    shipped_names,
)
from headway.settings.listed import ensure_list
from headway.settings.renamed import check_together, current, report
from headway.settings.run import Resolved, RunSettings, media_settings
from headway.settings.synonyms import OF_RUN, OF_USE, PROBABILITIES, setting_here
from headway.settings.task_rows import spec_of
from headway.specs.metrics import METRICS, Metric, custom_metrics_of
from headway.specs.needs import Need
from headway.specs.options import OPTIONS
from headway.tasks.engines import check_engine

if TYPE_CHECKING:
    import torch
    from torch import nn

    from headway.inside.capture.media import MediaInput
    from headway.inside.page.look import Page
    from headway.interop.proof import Proof
    from headway.models.parts.custom import Parts
    from headway.tasks.answer_stream import AnswerStream
    from headway.tasks.answers import Answer, Answers
    from headway.tasks.history import History
    from headway.tasks.inputs import ParsedInput
    from headway.tasks.loaded_run import LoadedRun
    from headway.tasks.scores import Scores
    from headway.tasks.task import InferenceRequest, Predictor
    from headway.tokens.tokenizer import Tokenizer

ErrorMode = Literal["raise", "keep"]
SingleInput = str | bytes | PathLike[str] | Mapping[str, object]
"""Types that are always one input. A list, for example, is several inputs or one, depending on the
task."""


COMMAND_OPTIONS = frozenset(one.name for one in OPTIONS.values() if one.command)
"""Names of prediction options that exist only on the command line. Python has methods and arguments
instead, such as `Run.choose`."""

CONSTRAINTS = frozenset({"prefix", "required", "banned"})
"""Options that constrain an output: texts that it must begin with (`prefix`), contain (`required`)
or not contain (`banned`)."""

GENERATION = {"output": "output", "begin": "prefix", "new": "max_new_tokens"}
"""Fields of `GenerationOptions`, by the corresponding argument of `Run.look`."""


class OptionError(UserError, TypeError):
    """Error for an option that a run does not have, or whose value is invalid."""


def load(
    *names: str | PathLike[str],
    device: str = "auto",
    precision: str = "auto",
    engine: str = "torch",
    parts: Parts | None = None,
) -> Run:
    """Load a finished run, or a model that comes with headway.

    Only settings are read now; weights are read on first use.

    Args:
        *names: Folders or names of runs. Several runs form an ensemble.
        device: `"cpu"`, `"cuda"` or `"cuda:1"`. `"auto"` uses a GPU if there is one.
        precision: `"fp32"`, `"bf16"` or `"int8"`. `"auto"` uses the precision set in the run.
        engine: `"torch"`. For an exported folder, `"onnx"` or `"ctranslate2"`.
        parts: The custom `headway.Parts` that the run was trained with. None if it has none.

    Returns:
        A `Run`, which predicts when it is called.

    Example:
        >>> headway.load("tatoeba-de-en")("Guten Morgen.").text
        'Good morning.'
    """
    if not names:
        known = ", ".join(available()) or "none"
        raise UserError(
            f"load() needs a run folder or the name of a model. Available models: {known}."
        )
    for name in names:
        if not isinstance(name, str | PathLike) or not str(name):
            raise UserError(
                f"{name!r} is neither a run folder nor the name of a model. Pass several runs as "
                "separate arguments: load(one, other)."
            )
    run = Run(names, device=device, precision=precision, engine=engine)
    if parts is not None:
        from headway.models.parts.custom import register_parts

        register_parts(parts, run.settings.model.parts, run.name)
    return run


def available() -> list[str]:
    """List the names of the models that `load` finds.

    Returns:
        Names of the models that come with headway and of the finished runs in `runs/`, sorted.

    Example:
        >>> headway.available()
        ['base-en', 'digits', 'shapes', 'stories', 'tatoeba-de-en', 'tatoeba-en-de']
    """
    own = [path.parent for path in RUNS.glob(f"*/{CONFIG}") if (path.parent / WEIGHTS).is_file()]
    return sorted({*shipped_names(), *(folder.name for folder in own)})


@dataclass(frozen=True)
class Export:
    """Result of `Run.export`: the new folder, and the comparison with the original model."""

    path: Path
    """Folder of the exported model."""

    proof: Proof
    """Measured differences between the outputs of the exported and the original model."""


class Run:
    """A trained model, or an ensemble of several models. `run("a text")` returns a prediction."""

    __slots__ = ("_held", "_lock", "_options", "folders", "names", "settings")

    names: tuple[str, ...]
    folders: tuple[Path, ...]
    """Folders of the models; several if the run is an ensemble."""

    settings: Resolved
    """Settings of the first model."""

    _options: dict[str, str]
    _lock: threading.RLock
    _held: LoadedRun | None

    def __init__(
        self,
        names: Sequence[str | PathLike[str]],
        *,
        device: str = "auto",
        precision: str = "auto",
        engine: str = "torch",
        settings: Resolved | None = None,
    ) -> None:
        """Open one run or an ensemble. Use `headway.load`, which checks the arguments first.

        Args:
            names: Folders or names of runs.
            device: Device of the models, as in `load`.
            precision: Number format of the weights, as in `load`.
            engine: Program that computes predictions, as in `load`.
            settings: Settings to use for the first model. None: those stored in its folder.
        """
        check_device_and_precision(device, precision)
        check_engine(engine)
        known = tuple(map(str, names))
        folders = tuple(run_folders(known))
        settings = load_run(folders[0]) if settings is None else settings
        check_ensemble(folders, [settings, *map(load_run, folders[1:])])
        for folder in folders:
            if engine == "torch":
                file_in(folder, WEIGHTS)
            if media_settings(settings) is None:
                file_in(folder, TOKENIZER)
        options = {"device": device, "precision": precision, "engine": engine}
        values = (None, threading.RLock(), options, folders, known, settings)
        for name, value in zip(self.__slots__, values, strict=True):
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(
            f"a run is immutable: {name!r} cannot be set. Pass options to calls instead."
        )

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a run is immutable: {name!r} cannot be deleted.")

    def __getattr__(self, name: str) -> NoReturn:
        """Raise an error for an unknown attribute. If it is a method name of another library, such
        as `predict`, the error gives the equivalent in headway."""
        if hasattr(type(self), name):  # a property failed: its own error explains more
            object.__getattribute__(self, name)
        here = OF_RUN.get(name)
        hint = "" if here is None else f" In headway: {here}."
        raise AttributeError(f"a run has no attribute {name!r}.{hint}", name=name, obj=self)

    # -- properties that need no weights

    @property
    def name(self) -> str:
        """Name of the run; for an ensemble, the names joined by `+`."""
        return "+".join(Path(name).name for name in self.names)

    @property
    def folder(self) -> Path:
        """Folder of the first model."""
        return self.folders[0]

    @property
    def task(self) -> str:
        """Name of the task, such as `translate`."""
        return self.settings.task

    @property
    def needs(self) -> tuple[Need, ...]:
        """Inputs that a prediction needs, such as a text, a pair of texts or an image."""
        spec, data = spec_of(self.settings), self.settings.data
        found = tuple(
            need for need in spec.needs
            if need.role == "input"
            and (not need.optional or bool(getattr(data, f"{need.name}_field", None)))
        )  # fmt: skip
        return found[:1] if spec.reads_views else found  # the other sides are for training

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of a classifier or tagger; empty for other tasks."""
        return self.settings.labels

    @property
    def history(self) -> History:
        """Losses and scores that were recorded during training."""
        from headway.tasks.history import read_history

        return read_history(self.folder)

    @property
    def scores(self) -> dict[str, float]:
        """Scores on the validation set at the end of training; empty if they were not recorded."""
        history = self.history
        for entry in (history.kept_scores, *reversed(history.valid)):
            found = {k: entry[k] for k in self._metrics() if isinstance(entry.get(k), float)}
            if found:
                return found
        return {}

    def _metrics(self) -> dict[str, Metric]:
        return METRICS | custom_metrics_of(self.settings.asked)

    # -- models, loaded on first use

    @property
    def opened(self) -> LoadedRun:
        """The loaded models with their vocabulary and device. They are loaded on first use."""
        with self._lock:
            if self._held is None:
                from headway.tasks.loaded_run import open_run

                said = self._options
                held = open_run(
                    *self.folders, device=said["device"], precision=said["precision"],
                    engine=said["engine"], settings=self.settings,
                )  # fmt: skip
                object.__setattr__(self, "_held", held)
                return held
            return self._held

    @property
    def model(self) -> nn.Module:
        """The model as a torch module; in an ensemble, the first model."""
        return self.opened.model

    @property
    def tokenizer(self) -> Tokenizer:
        """Tokenizer of the generated text, or of the input if the task generates no text."""
        words = self.opened.words
        if words is None:
            raise AttributeError(
                f"{self.name} has no tokenizer, because it neither reads nor writes text."
            )
        return words.target

    @property
    def device(self) -> torch.device:
        """Torch device on which the models compute."""
        return self.opened.device

    def to(self, device: str) -> Run:
        """Return a copy of the run on another device. The run itself stays on its device.

        Args:
            device: `"cpu"`, `"cuda"` or `"cuda:1"`.

        Example:
            >>> run.to("cpu").device
            device(type='cpu')
        """
        return _rebuild(self.names, {**self._options, "device": device})

    def with_settings(self, settings: Resolved) -> Run:
        """Return a copy of the run with other settings.

        The copy shares the loaded models, unless its precision differs.

        Args:
            settings: Complete settings, usually those of this run with some changes.

        Example:
            >>> from dataclasses import replace
            >>> greedy = replace(run.settings.decode, beam=1)
            >>> run.with_settings(replace(run.settings, decode=greedy)).settings.decode.beam
            1
        """
        run, held = _rebuild(self.names, self._options, settings), self._held
        if held is not None and held.precision == settings.decode.precision:
            object.__setattr__(run, "_held", held)
        return run

    def close(self) -> None:
        """Free the memory of the models. The next use loads them again.

        Example:
            >>> with headway.load("tatoeba-de-en") as run:
            ...     run("Danke.").text
            'Thanks.'
        """
        with self._lock:
            object.__setattr__(self, "_held", None)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Callable[..., Run], tuple[object, ...]]:
        return _rebuild, (self.names, self._options)

    # -- predictions

    @overload
    def __call__(self, x: list[object] | tuple[object, ...], /, **options: object) -> Answers: ...
    @overload
    def __call__(self, x: SingleInput, /, **options: object) -> Answer: ...
    @overload
    def __call__(self, x: object, /, **options: object) -> Answer | Answers: ...
    def __call__(self, x: object, /, **options: object) -> Answer | Answers:
        """Predict for one input or for several. An input that cannot be read raises an error.

        Args:
            x: One input, or a list, tuple, array or table of inputs. `run.needs` describes the
                inputs of the task.
            **options: Task options, as listed by `run.options()`. If `x` is a table,
                column names can be given as well, such as `text="review"`.

        Returns:
            An `Answer` for one input. For several inputs, `Answers` in the same order.

        Example:
            >>> run("Ich habe Hunger.", beam=8).text
            "I'm hungry."
            >>> run(["Danke.", "Guten Tag."]).texts
            ['Thanks.', 'Good day.']
        """
        from headway.tasks.answers import Answers
        from headway.tasks.inputs import is_several

        several = is_several(x, self.settings)
        found = self._stream(x, options, several=several)
        return Answers(found) if several else next(found)

    def stream(
        self, xs: Iterable[object], /, *, errors: ErrorMode = "raise", **options: object
    ) -> AnswerStream:
        """Predict for any number of inputs, with only a few of them in memory at a time.

        Args:
            xs: Any iterable of inputs, such as an open file or a table. If an input is a mapping
                with an `id`, its answer has the same `id`.
            errors: What to do with an input that cannot be read. `"raise"` raises an error.
                `"keep"` returns an answer with the message in `error`, and continues.
            **options: Options as in `run(x)`.

        Returns:
            An iterator of answers, in the order of the inputs.

        Example:
            >>> for answer in run.stream([{"id": 7, "source": "Danke."}]):
            ...     print(answer.id, answer.text)
            7 Thanks.
        """
        from headway.data.table import has_columns

        one = isinstance(xs, str | bytes | PathLike | Mapping) or not hasattr(xs, "__iter__")
        if one and not has_columns(xs):
            raise TypeError(
                f"stream() needs an iterable of inputs, not a single input ({type(xs).__name__}). "
                "Use run(x), or run.stream([x])."
            )
        if errors not in ("raise", "keep"):
            raise UserError(
                f"errors={errors!r} is not supported.{suggest(str(errors), ('raise', 'keep'))}"
            )
        return self._stream(xs, options, keep=errors == "keep")

    def write(self, x: object, /, **options: object) -> Iterator[str]:
        """Continue a text, and yield the continuation in pieces while it is generated.

        Args:
            x: The text to continue.
            **options: Options as in `run(x)`.

        Returns:
            An iterator over pieces of text. Joined, they form the continuation.

        Example:
            >>> stories = headway.load("stories")
            >>> "".join(stories.write("Once upon a time", max_len=5, sample=False))
            ', there was a little'
        """
        self._check_option("stream", "write() needs a task that streams its output")
        decode = {"beam": 1, "n_best": 1} if not self.settings.decode.sample else {"n_best": 1}
        pieces: queue.Queue[str | BaseException | None] = queue.Queue()
        left = threading.Event()

        def put(piece: str) -> None:
            if left.is_set():
                raise GeneratorExit
            pieces.put(piece)

        use = self.use({**decode, **options}, {"stream": put, "echo": False})
        found = self._stream([x], {}, use=use)

        def work() -> None:
            try:
                next(found)
                pieces.put(None)
            except BaseException as error:
                pieces.put(error)

        def read() -> Iterator[str]:
            worker = threading.Thread(target=work, daemon=True)
            worker.start()
            try:
                while (piece := pieces.get()) is not None:
                    if isinstance(piece, BaseException):
                        raise piece
                    yield piece
            finally:
                left.set()

        return read()

    def choose(self, x: object, /, among: Sequence[str], **options: object) -> Answer | Answers:
        """Choose the most likely of several given continuations of a text.

        Args:
            x: One text, or a list of texts.
            among: Two or more different continuations.
            **options: Options as in `run(x)`.

        Returns:
            For one text, an `Answer` with the chosen continuation as its `label`, and the
            `probabilities` of all. For several texts, `Answers`.

        Example:
            >>> headway.load("stories").choose("Tom was sad. He began to", ["cry", "fly"]).label
            'cry'
        """
        self._check_option("labels", "choose() needs a run that continues text")
        if isinstance(among, str) or not isinstance(among, Iterable):
            raise UserError(f"among={among!r} must be a list of strings: among=[…].")
        among = list(among)
        if len(set(among)) < 2 or not all(isinstance(one, str) and one for one in among):
            raise UserError(
                f"among={among!r} must contain at least two different strings and no empty string."
            )
        from headway.tasks.answers import Answers
        from headway.tasks.inputs import is_several

        several = is_several(x, self.settings)
        use = self.use(options, {"labels": among})
        found = self._stream(x, {}, several=several, use=use)
        return Answers(found) if several else next(found)

    def _check_option(self, name: str, what: str) -> None:
        if name not in spec_of(self.settings).options:
            raise UserError(f"{what}, but the task of {self.name} is {self.task}.")

    def _stream(
        self, x: Any, options: Mapping[str, object], *, several: bool = True, keep: bool = False,
        use: InferenceRequest | None = None,
    ) -> AnswerStream:  # fmt: skip
        """Return an iterator of answers to the inputs in `x`, or to `x` itself unless `several`.
        If `x` is a table, options may name its columns."""
        from headway.data.predict_input import input_words
        from headway.tasks.answer_stream import AnswerStream
        from headway.tasks.inputs import Inputs, is_rows

        needs: dict[str, str] = {}
        if several and is_rows(x):
            words = input_words(self.settings) - set(self.options())
            needs = {name: str(one) for name, one in options.items() if name in words}
            options = {name: one for name, one in options.items() if name not in words}
        inputs = Inputs(self.settings, self.folder)
        asked = inputs.parse_all(x, needs) if several else iter([inputs.parse(x)])
        return AnswerStream(use or self.use(options), asked, keep=keep)

    # -- for servers, which batch the inputs of many callers

    def question(self, x: object) -> ParsedInput:
        """Convert one input to the form that `predictor` accepts.

        Args:
            x: One input.

        Returns:
            The parsed input. If it cannot be read, the result contains the error.
        """
        from headway.tasks.inputs import Inputs

        return Inputs(self.settings, self.folder).parse(x)

    # -- for the command line, which reads files and has its own options

    def ask(
        self, questions: Iterable[object], options: Mapping[str, object], *,
        progress: Progress = SILENT, live: bool = False,
    ) -> AnswerStream:  # fmt: skip
        """Predict for the inputs of a file or a pipe, as `headway predict` does.

        Args:
            questions: Inputs. If one cannot be read, its answer contains the error.
            options: Command-line options by name.
            progress: Progress display.
            live: Yield each answer as soon as it is ready.

        Returns:
            An iterator of answers.
        """
        from headway.data.predict_input import InputRow
        from headway.tasks.answer_stream import AnswerStream
        from headway.tasks.inputs import ParsedInput
        from headway.tasks.task import InferenceRequest

        use = InferenceRequest(self.opened, self.settings, options, progress)
        asked = (
            ParsedInput(one.question, row=one.row)
            if isinstance(one, InputRow)
            else ParsedInput(one)
            for one in questions
        )
        return AnswerStream(use, asked, keep=True, again=False, live=live)

    def predictor(self, options: Mapping[str, object]) -> Predictor:
        """Return the predictor of the task, for callers that batch inputs themselves.

        Args:
            options: Command-line options by name.
        """
        from headway.tasks.task import InferenceRequest, find_task

        return find_task(self.settings).predictor(
            InferenceRequest(self.opened, self.settings, options)
        )

    def score(
        self, files: DataSettings, options: Mapping[str, object], progress: Progress = SILENT
    ) -> Scores:
        """Evaluate on files, as `headway evaluate` does.

        Args:
            files: Data settings that name the files.
            options: Command-line options by name.
            progress: Progress display.

        Returns:
            Scores by metric name.
        """
        from headway.tasks.task import InferenceRequest, find_task

        use = InferenceRequest(self.opened, self.settings, options, progress)
        with use.opened.lock:
            return find_task(self.settings).evaluation(use, files)

    # -- options

    def options(self) -> tuple[str, ...]:
        """List the names of all options that `run(x)` accepts.

        Example:
            >>> "n_best" in run.options()
            True
        """
        spec = spec_of(self.settings)
        decode = (
            {field.name for field in fields(DecodeSettings)} if spec.decode is None else spec.decode
        )
        own = spec.options - COMMAND_OPTIONS
        if "constraints" in own:
            own = own - {"constraints"} | CONSTRAINTS
        return tuple(sorted((decode - {"precision"}) | own))

    def use(
        self, options: Mapping[str, object], more: Mapping[str, object] | None = None
    ) -> InferenceRequest:
        """Check the options of one call and combine them with the settings of the run.

        Args:
            options: Options as in `run(x)`.
            more: Options for internal use, which are not checked.

        Returns:
            The request that the task's predictor and evaluation read.
        """
        from headway.tasks.task import InferenceRequest

        options, known = _current_options(options), self.options()
        for name in options:
            if name == "precision":
                raise OptionError(
                    "precision= cannot be set in a call. Set it when you load the run: "
                    "headway.load(…, precision=…)."
                )
            if name not in known:
                near = suggest(name, known) if known else " This task has no options."
                here = (setting_here(name) or "").removeprefix("decode.")
                if here in known:
                    near = f" Use {here}=."
                if name in OF_USE and OF_USE[name] == PROBABILITIES:
                    raise OptionError(f"{name}= is not needed: {OF_RUN['predict_proba']}.")
                unused = unused_option(name, spec_of(self.settings))
                if unused is not None:
                    raise OptionError(f"{unused}")
                raise OptionError(
                    f"{name}= is not an option of {self.name}, whose task is {self.task}.{near}"
                )
        names = {field.name for field in fields(DecodeSettings)}
        decode: dict[str, Any] = {name: one for name, one in options.items() if name in names}
        if "beam" in decode:  # an explicit beam asks for beam search, even if the run samples
            decode.setdefault("sample", False)
        if "stop" in decode:
            decode["stop"] = _texts("stop", decode["stop"])
        settings = self.settings
        if decode:
            settings = replace(settings, decode=replace(settings.decode, **decode))
        rest = {name: one for name, one in options.items() if name not in names}
        wish = {name: rest.pop(name) for name in CONSTRAINTS & rest.keys()}
        if wish:
            rest["wish"] = _constraint(wish)
        for name in ("draft",):
            if rest.get(name) is not None:
                rest[name] = str(getattr(rest[name], "folder", rest[name]))
        return InferenceRequest(self.opened, settings, {"json": True, **rest, **(more or {})})

    # -- scores, pages, exports

    def evaluate(self, data: object = None, /, **options_and_needs: object) -> Scores:
        """Evaluate the run on a test set, and compare it with baselines.

        Args:
            data: Test set, as a path or a table. If neither `data` nor files are given, the
                validation set of the run is used.
            **options_and_needs: Options as in `run(x)`, and column names of `data`, such as
                `text="review"`. Without `data`, test files, named as in training:
                `source=…, target=…`.

        Returns:
            Scores by metric name.

        Example:
            >>> test = [{"source": "Danke.", "target": "Thanks."}]
            >>> round(run.evaluate(test)["chrf"])
            100
        """
        known = self.options()
        needs: dict[str, Any] = {k: v for k, v in options_and_needs.items() if k not in known}
        options = {name: one for name, one in options_and_needs.items() if name in known}
        from headway.data.named_data import as_files
        from headway.tasks.task import find_task

        use = self.use(options)
        use = replace(use, progress=Progress(enabled=False, on_update=use.opened.release_lock))
        task = find_task(self.settings)
        if data is not None:
            usual, what = self.settings.data, spec_of(self.settings).modality
            files = as_files(self.task, data, needs, usual, what)
            with columns_by_option(True), files as found, use.opened.lock:
                return task.evaluation(use, test_set(usual, found))
        for name in needs:
            if name not in INPUTS:
                raise OptionError(
                    f"{name}= is neither an option of {self.name} nor an argument that takes files."
                    f"{suggest(name, (*INPUTS, *known))}"
                )
        if not needs:
            return self._validated(use)
        with use.opened.lock:
            return task.evaluation(use, test_files(self.settings, (), needs))

    def _validated(self, use: InferenceRequest) -> Scores:
        """Return the scores on the validation set that is stored with the run."""
        import torch

        from headway.tasks.dataset import EvalPass
        from headway.tasks.task import find_task

        if len(self.folders) > 1 or not (self.folder / "data").is_dir():
            raise UserError(
                f"no validation set is stored for {self.name}. Pass a test set: "
                'run.evaluate("test.tsv").'
            )
        task = find_task(self.settings)
        asked = replace(self.settings, decode=use.settings.decode)
        objective = task.objective(asked, task.load_prepared(self.folder))
        with use.opened.lock, torch.no_grad():
            return objective.evaluate(
                EvalPass(use.opened.model, use.opened.device, on_progress=use.opened.release_lock)
            )

    def look(self, x: object = None, /, **ask: object) -> Page:
        """Show what the model computes for one input, such as attention and the logit lens.

        Args:
            x: The input. None: the example that comes with the model.
            **ask: `output`: text that the model is forced to generate. `begin`: text that the
                output must begin with. `new`: number of tokens to generate. Further options are
                those of `headway.inside.look`.

        Returns:
            A page, which notebooks display and `.save("look.html")` writes to a file.

        Example:
            >>> run.look("Wo wohnst du?").save("look.html")
        """
        from headway.inside.capture.reading import GenerationOptions
        from headway.inside.page.look import LookOptions, look

        known = [*GENERATION, *(field.name for field in fields(LookOptions))]
        for name in ask:
            if name not in (*known, "against", "against_text"):
                raise OptionError(f"{name}= is not an option of look().{suggest(name, known)}")
        said: dict[str, Any] = {GENERATION[k]: one for k, one in ask.items() if k in GENERATION}
        rest: dict[str, Any] = {name: one for name, one in ask.items() if name not in GENERATION}
        with self.opened.lock:
            twin = self.opened.inspection_copy()
        return look(twin, self._subject(x, twin), GenerationOptions(**said), **rest)

    def _subject(self, x: object, twin: LoadedRun) -> str | MediaInput:
        """Return the input of `look` as a text or a `MediaInput`. None: the model's example."""
        from headway.inside.capture.media import MediaInput, example_input, open_media
        from headway.tasks.inputs import Inputs
        from headway.tasks.media_inputs import found_file

        if x is None:
            example = example_input(twin)
            if example is None:
                raise UserError(f"{self.name} has no example input. Pass an input: run.look(x).")
            return example
        front = media_settings(self.settings)
        if front is None:
            if isinstance(x, Mapping):
                return self._line(x)
            if not isinstance(x, str):
                raise DataError(
                    f"look() needs one text as a string or a mapping, not {type(x).__name__}."
                )
            return x
        if not isinstance(x, str | PathLike):
            x = Inputs(self.settings, self.folder).parse_or_raise(x).value
        if isinstance(x, str | PathLike):
            return open_media(twin, found_file(str(x), self.folder))
        return MediaInput.of("input", x.values, front)  # type: ignore[attr-defined]

    def _line(self, x: Mapping[str, object]) -> str:
        """Return an input mapping as one text: a text pair separated by a tab, or named fields as
        JSON."""
        from headway.tasks.inputs import Inputs

        question = Inputs(self.settings, self.folder).parse_or_raise(x).value
        if isinstance(question, str):
            return question
        if names := self.settings.data.fields:
            pairs = zip(names, question, strict=True)
            return json.dumps({name: text for name, text in pairs if text}, ensure_ascii=False)
        between = " " if spec_of(self.settings).reads_sentences else "\t"
        return between.join(" ".join(text.split()) for text in question)

    def export(
        self,
        to: str,
        out: str | PathLike[str],
        *,
        int8: bool = False,
        sentences: Sequence[str] = (),
    ) -> Export:
        """Export the model for another program, and compare its outputs with those of this run.

        Args:
            to: Target format: `"hf"`, `"ctranslate2"`, `"onnx"` or `"torch"`.
            out: Folder to create.
            int8: Store weights in 8 bits (ctranslate2 and onnx).
            sentences: Additional texts for the comparison.

        Returns:
            An `Export` with the `path` of the folder, and a `proof` with the measured differences.

        Example:
            print(run.export("onnx", "translator-onnx").proof.text())
        """
        from headway.interop.exporting import export_run

        if len(self.folders) > 1:
            raise UserError(
                f"an ensemble of {len(self.folders)} runs cannot be exported. Load and export each "
                "run separately."
            )
        proof = export_run(self.opened, to, Path(out), int8=int8, sentences=sentences)
        return Export(Path(out), proof)

    def train(self, data: object = None, *, out: str | PathLike[str], **same: object) -> Run:
        """Fine-tune this run on other data. Calls `headway.train` with this run as `start`.

        Args:
            data: Training data, as a path, a list of paths, or a table in memory.
            out: Folder of the new run.
            **same: Further arguments of `headway.train`.

        Returns:
            The fine-tuned run.

        Example:
            more = run.train("more.tsv", out="runs/more", epochs=1)
        """
        import headway

        more: dict[str, Any] = dict(same)
        return headway.train(self.task, data, out=out, start=self.folder, **more)

    # -- display

    def __repr__(self) -> str:
        names = ", ".join(map(repr, self.names))
        more = [f"{k}={v!r}" for k, v in self._options.items() if v not in ("auto", "torch")]
        return f"headway.load({', '.join([names, *more])})"

    def _repr_html_(self) -> str:
        rows = {"task": self.task, "folder": ", ".join(map(str, self.folders))}
        rows["takes"] = ", ".join(need.name for need in self.needs)
        if self.labels:
            shown = ", ".join(self.labels[:12])
            rows["labels"] = f"{len(self.labels):,}: {shown}{' …' * (len(self.labels) > 12)}"
        if self.scores:
            known = self._metrics()
            rows["scores"] = ", ".join(
                f"{known[name].label} {known[name].shown(one)}" for name, one in self.scores.items()
            )
        rows["options"] = ", ".join(self.options())
        body = "".join(
            f'<tr><th style="text-align:left">{name}</th>'
            f'<td style="text-align:left">{escape(value)}</td></tr>'
            for name, value in rows.items()
        )
        return f"<b>{escape(self.name)}</b><table>{body}</table>"


def test_set(data: DataSettings, found: Mapping[str, object]) -> DataSettings:
    """Return data settings that read a test set in the same way as the training data.

    Unlike in training, an invalid row is an error, because skipping it would change the score.
    `found`: the settings of the test files, by name.
    """
    none: dict[str, object] = dict.fromkeys(FILES, ())
    changes: dict[str, Any] = {"on_bad_row": "error", **none, **found}
    changes = {k: tuple(v) if isinstance(v, list) else v for k, v in changes.items()}
    return replace(data, **changes)


def test_files(
    settings: RunSettings, paths: Sequence[str], needs: Mapping[str, Any]
) -> DataSettings:
    """Return data settings that read test files in the same way as the training data. `needs` names
    the columns of the files in `paths`. If `paths` is empty, it names the files themselves, such as
    `source=…, target=…`."""
    from headway.data.named_data import bind_data, named_files

    if not paths:
        return test_set(settings.data, named_files(needs))
    found = bind_data(settings.task, paths, needs, settings.data, what=spec_of(settings).modality)
    return test_set(settings.data, found.settings(Path()))


def _rebuild(
    names: tuple[str, ...], options: Mapping[str, str], settings: Resolved | None = None
) -> Run:
    return Run(
        names, device=options["device"], precision=options["precision"], engine=options["engine"],
        settings=settings,
    )  # fmt: skip


def _current_options(options: Mapping[str, object]) -> Mapping[str, object]:
    """Return the options of a call, with earlier names of decoding settings replaced by current
    ones."""
    section = "decode."
    check_together(section + name for name in options)
    report((section + name for name in options), {}, "options of a call")
    return {current(section + name).removeprefix(section): one for name, one in options.items()}


def _texts(name: str, value: object) -> tuple[str, ...]:
    """Return the texts of an option that accepts one text or several, as a tuple."""
    found = (value,) if isinstance(value, str) else value
    if not isinstance(found, Iterable) or not all(
        isinstance(one, str) for one in ensure_list(found)
    ):
        raise OptionError(f"{name}={value!r} must be a string or a list of strings: {name}=[…].")
    return tuple(found)


def _constraint(wish: Mapping[str, object]) -> object:
    from headway.decode.logits_processors import TextConstraints

    prefix = wish.get("prefix") or ""
    if not isinstance(prefix, str):
        raise OptionError(f"prefix={prefix!r} must be a string.")
    required, banned = (_texts(name, wish.get(name) or ()) for name in ("required", "banned"))
    return TextConstraints(prefix=prefix, required=required, banned=banned)
