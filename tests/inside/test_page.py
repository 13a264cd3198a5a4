"""One file that opens from disk, asks nobody for anything, and runs nothing but its own scripts."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headway.inside.page.sections import COMPARISON_SECTIONS, MEDIA_SECTIONS, SECTIONS
from headway.lab.page import PANELS as LAB
from headway.training.report import PANELS
from headway.web import html as pages
from headway.web.html import FOLDER, policy, scripts
from headway.web.pack import PackedArray, unpack
from tests.inside.browser import open_page, page

EVIL = "</script><img src=x onerror=\"document.title='hacked'\"><b>{{style}}</b>"

PANEL = """
PANELS.beam = {
  title: "Beam",
  draw(host, section, page) {
    const body = frame(host, { title: "A map", hint: "How to read it.", name: "map",
      csv: () => [["token", "x"], ['a,"b"', 0.5]] });
    heatmap(body, { data: sub(section.weights, 1), rows: section.tokens, columns: section.tokens,
      onclick: (r, c) => page.set({ row: r, column: c }) });
    tokens(body, { pieces: section.tokens },
      { value: (i) => sub(section.weights, 1, 0, i), onclick: (i) => page.set({ row: i }) });
    bars(body, [{ label: "up", value: 0.25 }, { label: "down", value: -0.5 }]);
    lines(body, { series: [{ name: "loss", points: [[0, 3], [1, 2.5]] }], x: "step", y: "nats" });
    table(body, ["word", "count"], [["a", 3], ["b", 12]]);
    const other = page.other ? page.other.label : "alone";
    body.append(el("p", { id: "look" }, page.look.label, " ", other));
    body.append(el("input", { type: "text", "data-search": "" }));
  },
  limits: () => ({ row: 3, layer: 4, head: 9 }),
};
"""


@pytest.fixture
def own_panels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The page's sources with panels of the test's own."""
    folder = tmp_path / "web"
    for path in FOLDER.rglob("*.*"):
        if "panels" not in path.parts:
            target = folder / path.relative_to(FOLDER)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    (folder / "panels").mkdir()
    (folder / "panels" / "beam.js").write_text(PANEL)
    monkeypatch.setattr(pages, "FOLDER", folder)
    return folder / "panels"


WEIGHTS = np.array([[[0, 1, 0]] * 3, [[0.5, 0.25, 0.25], [0, 1, 0], [0.1, 0.2, 0.7]]])


def look(label: str = "A", **sections: Any) -> dict[str, Any]:
    beam = {"weights": PackedArray(WEIGHTS, "f32"), "tokens": ["the", "cat", EVIL]}
    return {"label": label, "streams": {}, "sections": {"beam": beam, **sections}}


def made(*looks: dict[str, Any], **more: Any) -> str:
    return page("a title & <more>", looks or [look()], **more)


def test_the_file_refers_to_nothing_outside_it() -> None:
    html = made()
    assert not re.search(r"<(link|iframe|object|embed|base)\b", html)
    assert not re.search(r"""\b(src|href|action)\s*=\s*["'](?!data:)""", html)
    assert not re.search(r"\bhttps?://|@import|url\(", html)
    assert "&lt;more&gt;" in html


def test_no_script_makes_up_numbers_or_speaks_to_anybody() -> None:
    words = (r"Math\.random", r"https?://", r"\bfetch\b", r"XMLHttpRequest", r"WebSocket",
             r"innerHTML|outerHTML|insertAdjacentHTML", r"\beval\b|new Function", r"\bimport\b",
             r"sendBeacon", r"document\.write", r"crypto")  # fmt: skip
    for _, text in scripts([*SECTIONS, *PANELS]):
        for word in words:
            assert not re.search(word, text), word
    live = [text for _, text in scripts(SECTIONS, live=True) if "fetch(" in text]
    assert len(live) == 1  # it would be seen


def test_a_page_has_the_panels_and_the_style_of_its_sections_alone() -> None:
    html = made(look(lens={"x": 1}), shared={"compare": {"x": 1}})
    assert sorted(re.findall(r'data-panel="(\w+)"', html)) == ["beam", "compare", "lens"]
    assert ".lens" in html
    assert ".walk" not in html
    served = made(look(), live=True)  # it may be sent other sections later
    assert set(re.findall(r'data-panel="(\w+)"', served)) == {
        name for name in SECTIONS if name not in (*MEDIA_SECTIONS, *COMPARISON_SECTIONS)
    }


def test_every_panel_has_a_section_and_every_section_a_panel() -> None:
    panels = {path.stem for path in FOLDER.glob("panels/*.js")}
    assert panels == {*SECTIONS, *PANELS, *LAB}


def test_the_page_is_read_back_as_it_was_made() -> None:
    back = unpack(made())
    assert (back["looks"][0]["sections"]["beam"]["weights"] == WEIGHTS.astype("f4")).all()
    assert back["looks"][0]["sections"]["beam"]["tokens"][2] == EVIL
    assert back["title"] == "a title & <more>"


def test_a_page_may_connect_nowhere_and_a_served_one_to_its_server() -> None:
    assert "connect-src 'none'" in policy(["a"])
    assert "connect-src 'self'" in policy(["a"], live=True)
    assert "'unsafe-inline'" not in policy(["a"]).split("style-src")[0]
    assert "connect-src 'self'" in made(live=True)


def test_a_script_cannot_hold_the_end_of_its_element(own_panels: Path) -> None:
    (own_panels / "bad.js").write_text('PANELS.bad = "</script>";')
    with pytest.raises(ValueError, match="'bad'"):
        made(look(bad={"x": 1}))


def test_text_of_a_model_is_text(browser: Any, own_panels: Path, tmp_path: Path) -> None:
    shown = open_page(browser, made(look(EVIL)), tmp_path)
    assert shown.title() == "a title & <more>"
    assert shown.locator("img").count() == 0
    assert shown.locator(".token").nth(2).inner_text() == EVIL
    shown.close()


def test_nothing_else_can_run_in_the_page(browser: Any, own_panels: Path, tmp_path: Path) -> None:
    """Were HTML ever inserted, the browser would still refuse its scripts."""
    shown = open_page(browser, made(), tmp_path)
    shown.evaluate(
        """() => { const p = document.createElement("p");
        p["inner" + "HTML"] = '<img src="data:," onerror="document.title = 1">';
        document.body.append(p); const s = document.createElement("script");
        s.textContent = "document.title = 2"; document.body.append(s); }"""
    )
    shown.wait_for_timeout(100)
    assert shown.title() == "a title & <more>"
    assert any("Content Security Policy" in text for text in shown.complaints)


def test_arrays_of_every_kind_arrive_as_they_were_sent(
    browser: Any, own_panels: Path, tmp_path: Path
) -> None:
    (own_panels / "beam.js").write_text(
        "PANELS.beam = { title: 'x', draw(host, s) { "
        "for (const [kind, a] of Object.entries(s.all)) "
        "host.append(el('p', {id: kind, 'data-value': JSON.stringify([...a]), 'data-shape': "
        "JSON.stringify(sub(a, 1).shape), 'data-last': sub(a, 1, 2)})); } };"
    )
    values = np.array([[0.0, 1.5, 200.25], [65000, 1e-5, 3]])
    whole = np.array([[0, 1, 65535], [7, 8, 9]])
    sent = dict.fromkeys(("u8", "sqrt8", "f16", "f32"), values) | {"i32": whole - 3, "u16": whole}
    arrays = {kind: PackedArray(array, kind) for kind, array in sent.items()}
    html = made(look(beam={"all": arrays}))
    expected = unpack(html)["looks"][0]["sections"]["beam"]["all"]
    shown = open_page(browser, html, tmp_path)
    for kind in sent:
        node = shown.locator(f"#{kind}")
        got = np.array(eval(node.get_attribute("data-value"))).reshape(2, 3)
        assert np.allclose(got, expected[kind], rtol=1e-6), kind
        assert node.get_attribute("data-shape") == "[3]"
        assert float(node.get_attribute("data-last")) == pytest.approx(float(expected[kind][1, 2]))
    shown.close()


def test_a_panel_that_is_broken_takes_only_itself_down(
    browser: Any, own_panels: Path, tmp_path: Path
) -> None:
    (own_panels / "lens.js").write_text(
        "PANELS.lens = { title: 'Lens', draw() { throw new Error('oh no'); } };"
    )
    (own_panels / "walk.js").write_text("PANELS.walk = { this is no JavaScript `")
    shown = open_page(browser, made(look(lens={"x": 1}, walk={"x": 1})), tmp_path, state="tab=beam")
    assert shown.locator("canvas").count() == 1
    shown.tab("lens")
    assert "oh no" in shown.locator(".failed").inner_text()
    shown.tab("walk")
    assert "walk" in shown.locator(".failed").inner_text()
    shown.tab("beam")
    assert shown.locator("canvas").count() == 1
    assert any("oh no" in text for text in shown.complaints)


def test_the_address_brings_back_the_view(browser: Any, own_panels: Path, tmp_path: Path) -> None:
    shown = open_page(browser, made(), tmp_path)
    shown.locator(".token").nth(1).click()
    assert shown.state()["row"] == "1"
    shown.click_cell("canvas", 2, 0)
    state = shown.state()
    assert (state["row"], state["column"]) == ("2", "0")
    again = open_page(
        browser, made(), tmp_path, state="&".join(f"{k}={v}" for k, v in state.items())
    )
    assert again.state() == state
    again.evaluate("location.hash = '#row=0'")
    again.wait_for_function("location.hash === '#row=0'")
    shown.close()
    again.close()


def test_an_invalid_address_breaks_nothing(browser: Any, own_panels: Path, tmp_path: Path) -> None:
    odd = "row=2.5&layer=__proto__&head=toString&column=x&tab=constructor&__proto__=1&look=1e9"
    shown = open_page(browser, made(), tmp_path, state=odd + "&other=-1&kind=3")
    assert shown.state() == {"other": "-1", "kind": "3"}
    shown.keyboard.press("ArrowRight")
    assert shown.state()["row"] == "0"
    shown.close()


def test_keys_move_by_token_layer_head_and_tab(
    browser: Any, own_panels: Path, tmp_path: Path
) -> None:
    (own_panels / "lens.js").write_text(
        "PANELS.lens = { title: 'Lens', draw(host) { host.append('the lens'); } };"
    )
    shown = open_page(browser, made(look(lens={"x": 1})), tmp_path)
    press = shown.keyboard.press
    for key in ("ArrowRight", "ArrowRight", "ArrowRight", "ArrowRight", "ArrowUp", "ArrowUp", "7"):
        press(key)
    assert shown.state() == {"row": "2", "layer": "1", "head": "6"}  # rows end at 2
    press("ArrowLeft")
    press("ArrowDown")
    assert shown.state() == {"row": "1", "layer": "0", "head": "6"}
    press("]")
    assert shown.state()["tab"] == "lens"
    press("[")
    assert shown.state()["tab"] == "beam"
    press("/")
    assert shown.evaluate("document.activeElement.matches('[data-search]')")
    press("ArrowRight")  # in a field keys are the field's own
    assert shown.state()["row"] == "1"
    shown.evaluate("document.activeElement.blur()")
    press("?")
    assert "↑ ↓" in shown.locator("dialog").inner_text()
    press("Escape")
    shown.locator("dialog").wait_for(state="detached")
    shown.close()


def test_tabs_and_tokens_can_be_reached_without_a_mouse(
    browser: Any, own_panels: Path, tmp_path: Path
) -> None:
    shown = open_page(browser, made(), tmp_path)
    assert shown.locator("[role=tab][aria-selected=true]").get_attribute("data-tab") == "beam"
    assert shown.locator("main[role=tabpanel]").get_attribute("aria-labelledby") == "tab-beam"
    shown.locator(".token").nth(1).focus()
    shown.keyboard.press("Enter")
    assert shown.state()["row"] == "1"
    focused = "document.activeElement.dataset.place"
    assert shown.evaluate(focused) == "1"  # drawn anew, the focus stays
    nameless = shown.evaluate(
        "[...document.querySelectorAll('button, canvas, svg')].filter((n) => "
        "!n.textContent.trim() && !n.getAttribute('aria-label')).length"
    )
    assert nameless == 0
    shown.close()


def test_two_looks_have_a_switch_and_checkpoints_a_slider(
    browser: Any, own_panels: Path, tmp_path: Path
) -> None:
    shown = open_page(browser, made(look("one"), look("two")), tmp_path)
    assert shown.locator("#look").inner_text() == "one two"
    shown.locator(".looks .chip").nth(1).click()
    assert shown.locator("#look").inner_text() == "two one"
    shown.locator("select").select_option("-1")
    assert shown.locator("#look").inner_text().startswith("two ")
    assert "one" not in shown.locator("#look").inner_text().removeprefix("two ").split()
    shown.close()
    looks = [{**look(f"step {n}"), "step": n} for n in (10, 20, 30)]
    shown = open_page(browser, made(*looks), tmp_path)
    assert shown.locator("#look").inner_text().startswith("step 30 ")  # the finished one
    assert shown.locator("select").input_value() == "-1"
    shown.locator("input[type=range]").press("Home")
    assert shown.locator("#look").inner_text().startswith("step 10 ")
    assert shown.locator("select").input_value() == "-1"
    shown.locator("select").select_option("2")
    assert shown.locator("#look").inner_text() == "step 10 step 30"
    shown.close()


def test_a_panel_is_saved_as_numbers_and_as_images(
    browser: Any, own_panels: Path, tmp_path: Path
) -> None:
    shown = open_page(browser, made(), tmp_path)

    def saved(kind: str) -> bytes:
        shown.locator("summary").click()
        with shown.expect_download() as found:
            shown.locator(f"[data-export={kind}]").click()
        assert found.value.suggested_filename.endswith("." + kind)
        return Path(found.value.path()).read_bytes()

    assert saved("csv").decode() == 'token,x\r\n"a,""b""",0.5\r\n'
    drawing = saved("svg").decode()
    assert drawing.startswith("<svg")
    assert "data:image/png;base64" in drawing
    assert "&lt;/script&gt;&lt;img" in drawing
    assert saved("png")[:8] == b"\x89PNG\r\n\x1a\n"
    shown.close()


def test_an_image_of_a_long_panel_fits_a_canvas(
    browser: Any, own_panels: Path, tmp_path: Path
) -> None:
    (own_panels / "beam.js").write_text(
        "PANELS.beam = { title: 'x', draw(host) { frame(host, { title: 'x', name: 'x' })"
        ".append(el('div', { style: 'height:40000px' }, 'long')); } };"
    )
    shown = open_page(browser, made(), tmp_path)
    shown.locator("summary").click()
    with shown.expect_download() as found:
        shown.locator("[data-export=png]").click()
    head = Path(found.value.path()).read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    assert int.from_bytes(head[20:24], "big") == 16384  # the height
    shown.close()


def test_a_sorted_table_has_missing_numbers_last(
    browser: Any, own_panels: Path, tmp_path: Path
) -> None:
    (own_panels / "beam.js").write_text(
        "PANELS.beam = { title: 'x', draw(host) { table(host, ['loss'], "
        "[[2], [null], [-1], [3]]); } };"
    )
    shown = open_page(browser, made(), tmp_path)
    for expected in (["3", "2", "−1", ""], ["−1", "2", "3", ""]):
        shown.locator("th button").click()
        assert shown.locator("td").all_inner_texts() == expected
    shown.close()


def test_it_follows_the_theme_and_has_a_switch(
    browser: Any, own_panels: Path, tmp_path: Path
) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    light = open_page(browser, made(), tmp_path)
    dark = open_page(browser, made(), tmp_path, dark=True)
    assert light.evaluate(ground) != dark.evaluate(ground)
    dark.locator("[data-key=theme]").click()
    assert light.evaluate(ground) == dark.evaluate(ground)
    light.close()
    dark.close()


def test_print_is_on_white_without_the_tools(
    browser: Any, own_panels: Path, tmp_path: Path
) -> None:
    shown = open_page(browser, made(), tmp_path, dark=True)
    shown.emulate_media(media="print")
    shown.wait_for_selector("html[data-theme=light]")
    assert shown.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not shown.locator("nav").is_visible()
    assert shown.locator("h2").first.is_visible()
    shown.emulate_media(media="screen")
    shown.wait_for_selector("html[data-theme=dark]")
    shown.close()


def test_a_narrow_screen_needs_no_sideways_scrolling(
    browser: Any, own_panels: Path, tmp_path: Path
) -> None:
    shown = open_page(browser, made(), tmp_path, width=400)
    assert shown.evaluate("document.documentElement.scrollWidth") <= 400
    shown.close()


def test_a_long_title_leaves_the_menu_on_a_narrow_screen(
    browser: Any, own_panels: Path, tmp_path: Path
) -> None:
    (own_panels / "beam.js").write_text(PANEL.replace('"A map"', '"unbroken".repeat(12)'))
    shown = open_page(browser, made(), tmp_path, width=400)
    menu, card = (shown.locator(name).bounding_box() for name in (".menu", ".card"))
    assert menu["x"] + menu["width"] <= card["x"] + card["width"]
    shown.close()


def test_text_from_right_to_left_keeps_the_header_in_order(
    browser: Any, own_panels: Path, tmp_path: Path
) -> None:
    run = {"name": "מודל", "facts": ["תרגום", "שכבות", "d 256"]}
    shown = open_page(browser, made({**look(), "text": "שלום עולם!"}, run=run), tmp_path)
    places = [span.bounding_box()["x"] for span in shown.locator(".facts span").all()]
    assert places == sorted(places)
    mark, first = shown.evaluate(
        """() => [9, 0].map((i) => { const range = document.createRange();
        const text = document.querySelector(".text").firstChild;
        range.setStart(text, i); range.setEnd(text, i + 1);
        return range.getBoundingClientRect().x; })"""
    )
    assert mark < first  # it ends on the left
    shown.close()


def test_a_truth_is_counted_in_its_unit(browser: Any, own_panels: Path, tmp_path: Path) -> None:
    (own_panels / "beam.js").write_text(
        "PANELS.beam = { title: 'x', draw(host, s, page) { host.append(page.truth('a')); } };"
    )
    for unit, said in (("atoms", "7 atoms"), (None, "7 cases")):
        truth = {"maps": {"a": {"p1": 0.5, "n": 7}}} | ({"unit": unit} if unit else {})
        shown = open_page(browser, made({**look(), "truth": truth}), tmp_path)
        assert shown.locator("main").inner_text() == f"P@1 0.50, {said}"
        shown.close()


def test_it_works_in_a_sandboxed_frame_of_a_notebook(
    browser: Any, own_panels: Path, tmp_path: Path
) -> None:
    """There it has no address of its own and may keep nothing."""
    import html

    frame = f'<iframe srcdoc="{html.escape(made())}" sandbox="allow-scripts"></iframe>'
    (tmp_path / "page.html").write_text(frame * 2)
    context = browser.new_context()
    book = context.new_page()
    complaints: list[str] = []
    book.on("pageerror", lambda error: complaints.append(str(error)))
    book.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
    book.goto((tmp_path / "page.html").as_uri())
    for number in range(2):
        inside = book.frame_locator("iframe").nth(number)
        inside.locator(".token").nth(number).click()
        inside.locator("#root[data-drawn]").wait_for()
    assert complaints == []
    context.close()


def test_numbers_are_written_for_people(browser: Any, own_panels: Path, tmp_path: Path) -> None:
    shown = open_page(browser, made(), tmp_path)
    given = [0.1234, -3.14159, 1.23e-7, 12, 1234.5, 2.5e9, 0, None, 0.9996]
    found = shown.evaluate("(all) => all.map((x) => number(x))", given)
    assert found == ["0.123", "−3.14", "1.2e-7", "12", "1235", "2.5e9", "0", "–", "1.000"]
    shown.close()


def test_maps_of_colour_go_one_way_in_lightness(
    browser: Any, own_panels: Path, tmp_path: Path
) -> None:
    """So they can be read without seeing colours, and the ends of differences are told by hue."""
    shown = open_page(browser, made(), tmp_path)
    code = "(map) => Array.from({length: 33}, (_, i) => colour(i / 32, map))"
    for map in ("blues", "oranges"):
        light = [0.299 * r + 0.587 * g + 0.114 * b for r, g, b in shown.evaluate(code, map)]
        assert all(a > b for a, b in itertools.pairwise(light)), map
    ends = shown.evaluate(code, "diverging")
    assert ends[0][2] > ends[0][0]
    assert ends[-1][0] > ends[-1][2]
    assert max(ends[16]) - min(ends[16]) < 6  # nothing in the middle
    shown.close()


def test_cells_are_drawn_one_by_one_and_blocks_keep_their_largest(
    browser: Any, own_panels: Path, tmp_path: Path
) -> None:
    shown = open_page(browser, made(), tmp_path)
    got = shown.evaluate(
        """() => { const image = new ImageData(2, 2);
        drawCells(image, [0, 1, 2, -1], 2, 2, 0, 1, "blues");
        return [[...image.data], colour(0), colour(1)]; }"""
    )
    low, high = [*got[1], 255], [*got[2], 255]
    assert got[0] == low + high + high + low
    data = [0.0] * 64
    data[9], data[63] = 0.75, 0.5
    small = shown.evaluate(
        "(data) => { const b = blockMax(data, 8, 8, 2, 2); return [...b.data]; }", data
    )
    assert small == [0.75, 0, 0, 0.5]
    shown.close()
