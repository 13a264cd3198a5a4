"""What prepared data follows from."""

from __future__ import annotations

from dataclasses import replace

from headway.data.fingerprint import data_inputs
from headway.settings.data import DataSettings
from headway.settings.run import RunSettings


def test_a_setting_that_came_later_does_not_make_older_data_another() -> None:
    """Runs whose data was prepared before `data.on_bad_row` go on, unless it is used."""
    settings = RunSettings(task="classify")
    assert "on_bad_row" not in data_inputs(settings)["data"]
    skips = replace(settings, data=DataSettings(on_bad_row="skip"))
    assert data_inputs(skips)["data"]["on_bad_row"] == "skip"
