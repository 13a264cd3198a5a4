"""Check of the data as training would prepare it, with a report of what is unusual."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headway.progress import Progress
from headway.settings.data import GIVEN
from headway.settings.task_rows import spec_of
from headway.storage import work_folder

if TYPE_CHECKING:
    from headway.data.check_report import Report
    from headway.training.request import RequestedRun


def data_report(request: RequestedRun, *, quiet: bool = False, steps: bool = False) -> Report:
    """Prepare the data in a temporary folder, as training would, and return a report of what is
    unusual.

    `steps`: include one example at each stage from its file to a batch.
    """
    from headway.data.binding_table import TrainingTables
    from headway.data.source import with_files
    from headway.data.store import ImpossibleData
    from headway.tasks.modality import decided
    from headway.tasks.pretrained import with_pretrained
    from headway.tasks.task import make_task

    with work_folder() as folder:
        changes: dict[str, Any] = {}
        for part, one in request.tables.items():
            one.write(folder / GIVEN, part)
            changes |= one.settings(folder / GIVEN, part)
        tuples: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in changes.items()
        }
        settings = request.settings
        data = replace(settings.data, **tuples)
        with Progress(enabled=not quiet) as progress:
            run = decided(with_pretrained(replace(with_files(settings), data=data)))
            try:
                prepared = make_task(spec_of(run)).prepare(run, folder, progress)
            except ImpossibleData as error:
                found: Report = error.report
            else:
                found = replace(prepared.report, fingerprint=prepared.fingerprint)
                if steps:
                    from headway.training.example_stages import steps_of

                    found = replace(found, steps=steps_of(run, prepared))
        tables = TrainingTables.of(run, spec_of(run), request.tables)
        found = replace(found, columns=tables.columns, tables=tables.lines(found))
    return found
