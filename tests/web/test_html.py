"""Scripts and styles in a page do the same as their sources, in fewer bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.web import html

SOURCE = """\
// Why it is here.
/**
 * @param {number} x twice a
 *   line ** long
 */
function half(x) {
  const note = "// kept"; // kept as well

  /* one line */
  return /** @type {number} */ (x) / 2; /* kept */
}
    // last
"""

PACKED = """\
function half(x) {
const note = "// kept"; // kept as well
return /** @type {number} */ (x) / 2; /* kept */
}"""


def test_scripts_lose_comments_on_their_own_lines_and_indentation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("core/one.js", "panels/beam.js", "live.js", "main.js"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(SOURCE)
    monkeypatch.setattr(html, "FOLDER", tmp_path)
    assert html.scripts(["beam"], live=True) == [
        ("", f'"use strict";\n{PACKED}'),
        ("beam", f'"use strict";\n{{\n{PACKED}\n}}'),
        ("", f'"use strict";\n{PACKED}'),
        ("", f'"use strict";\n{PACKED}'),
    ]


@pytest.mark.parametrize("kind", ["js", "css"])
def test_no_string_of_the_sources_spans_lines(kind: str) -> None:
    """Removing the indentation would change such a string."""
    lines = [
        (path.name, line)
        for path in html.FOLDER.rglob(f"*.{kind}")
        if path.parent.name != "serve"  # served as they are
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    assert lines
    assert [one for one in lines if one[1].count("`") % 2 or one[1].endswith("\\")] == []
