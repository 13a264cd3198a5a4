"""Where a row does not keep the contract yet. This list must only become shorter: a test that is
named here and passes fails, so that its line is taken out."""

from __future__ import annotations

GAPS: dict[str, str] = {
    "test_an_option_changes_something_or_is_an_error[transcribe-audio-groups]":
        "one text is shown, which groups of a beam rarely change; accepted all the same",
    "test_an_option_changes_something_or_is_an_error[transcribe-audio-diversity]":
        "as with groups",
    "test_an_option_changes_something_or_is_an_error[transcribe-audio-extra_len]":
        "CTC writes at most one token per row, so no output gets longer; accepted all the same",
    "test_an_option_changes_something_or_is_an_error[transcribe-audio-unknown]":
        "a doubtful sample is replaced by a search, so no unknown word is ever shown",
    "test_a_row_takes_the_settings_that_it_reads_and_no_others[fill-audio]":
        "changes of recordings are accepted and not made where hidden parts are rebuilt",
}  # fmt: skip
"""By the names of tests, with what is missing."""
