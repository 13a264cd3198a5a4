"""The frame of `report.html`: its style for light and dark, and the script that shows values.

`{{title}}` and `{{body}}` are put in by `report.py`. The script is a comfort: the page says all it
has to say without it.
"""

from __future__ import annotations

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{title}} · training report</title>
<style>
:root {
  color-scheme: light dark;
  --page: #f6f7f9; --card: #fff; --ink: #1b1f24; --soft: #59636e; --line: #e3e7ec; --edge: #b8c0ca;
  --s1: #2a66c8; --s2: #c2570c; --s3: #0f8074; --good: #1a7f45; --warn: #9a6700; --bad: #c62828;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #0f1215; --card: #171b20; --ink: #e7eaee; --soft: #9ba6b2; --line: #29303a;
    --edge: #4a5460; --s1: #6ea8ff; --s2: #f0a05a; --s3: #4fd1c0; --good: #5fd08a;
    --warn: #e3b341; --bad: #ff8178;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 28px 20px 40px; max-width: 1180px; background: var(--page);
  color: var(--ink); font: 15px/1.5 system-ui, "Segoe UI", Roboto, "Noto Sans", sans-serif;
}
h1 { font-size: 24px; margin: 0 0 18px; overflow-wrap: anywhere; }
h1 small { font-size: 15px; font-weight: 400; color: var(--soft); margin-left: 8px; }
h2 { font-size: 17px; margin: 30px 0 10px; }
p { margin: 6px 0 10px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(160px, 1fr)); gap: 12px; }
.tiles div, figure, dl, details, .wide, .card {
  background: var(--card); border: 1px solid var(--line); border-radius: 8px;
}
.tiles div { padding: 12px 14px; }
.tiles span, .tiles small { display: block; color: var(--soft); font-size: 13px; }
.tiles b { display: block; font-size: 25px; line-height: 1.3; font-weight: 600; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr));
  gap: 14px; }
figure { margin: 0; padding: 12px 12px 6px; position: relative; }
figcaption { display: flex; flex-wrap: wrap; gap: 2px 16px; justify-content: space-between;
  margin: 0 4px 4px; font-size: 14px; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 14px; color: var(--soft); font-size: 13px; }
.key { display: inline-block; width: 18px; height: 0; border-top: 2.5px solid; margin-right: 6px;
  vertical-align: middle; }
svg { display: block; width: 100%; height: auto; touch-action: pan-y; }
svg text { fill: var(--soft); font-size: 12px; }
svg .end { text-anchor: end; } svg .mid { text-anchor: middle; }
svg .strong { fill: var(--ink); font-weight: 600; paint-order: stroke; stroke: var(--card);
  stroke-width: 4px; }
.grid { stroke: var(--line); } .axis, .tick { stroke: var(--edge); }
.line { fill: none; stroke-width: 1.8; stroke-linejoin: round; stroke-linecap: round; }
.s1 { stroke: var(--s1); border-color: var(--s1); }
.s2 { stroke: var(--s2); border-color: var(--s2); }
.s3 { stroke: var(--s3); border-color: var(--s3); }
circle.s1 { fill: var(--s1); } circle.s2 { fill: var(--s2); } circle.s3 { fill: var(--s3); }
.best { fill: none; stroke: var(--ink); stroke-width: 1.6; }
.cross { stroke: var(--edge); stroke-dasharray: 3 3; }
.tip { position: absolute; pointer-events: none; background: var(--card); color: var(--ink);
  border: 1px solid var(--edge); border-radius: 6px; padding: 5px 9px; font-size: 13px;
  white-space: nowrap; z-index: 1; box-shadow: 0 2px 8px #0003; }
.samples { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr));
  gap: 12px; }
dl { margin: 0; padding: 10px 14px; display: grid; grid-template-columns: max-content 1fr;
  gap: 3px 14px; align-content: start; }
dt { color: var(--soft); font-size: 13px; padding-top: 1px; }
dd { margin: 0; overflow-wrap: anywhere; }
dd em { color: var(--soft); }
.wide { overflow-x: auto; padding: 4px 6px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { text-align: left; color: var(--soft); font-size: 13px; font-weight: 500; }
th, td { padding: 5px 10px; border-bottom: 1px solid var(--line); vertical-align: top; }
tr:last-child td { border-bottom: 0; }
tr.kept td { font-weight: 600; }
th.num, td.num { text-align: right; }
.heat { overflow-x: auto; }
.heat table { width: auto; }
.heat td { border: 1px solid var(--line); min-width: 52px; }
.heat td.right { background: color-mix(in srgb, var(--s3) var(--share), transparent); }
.heat td.wrong { background: color-mix(in srgb, var(--s2) var(--share), transparent); }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr));
  gap: 14px; align-items: start; }
.column { display: grid; gap: 14px; grid-template-columns: minmax(0, 1fr); min-width: 0; }
.column.broad { grid-column: 1 / -1; }
.column.broad .heat table { width: 100%; }
.heat th img { display: block; width: 26px; height: 26px; object-fit: contain; margin: 0 0 2px auto;
  border-radius: 4px; image-rendering: pixelated; }
.heat tr > th:first-child img { display: inline-block; margin: 0 8px 0 0; vertical-align: middle; }
.gallery { grid-column: 1 / -1; padding: 4px 16px 16px; }
.gallery h3 { font-size: 15px; margin: 14px 0 8px; }
.pairs { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 340px), 1fr));
  gap: 14px 22px; }
.pair p { margin: 0 0 6px; } .pair small { display: block; color: var(--soft); font-size: 13px; }
.said { color: var(--s2); }
.strip { display: flex; flex-wrap: wrap; gap: 10px; }
.strip figure { border: 0; padding: 0; background: none; }
.strip img { display: block; width: 58px; height: 58px; object-fit: contain; border-radius: 6px;
  border: 1px solid var(--line); image-rendering: pixelated; background: var(--page); }
.strip figcaption { display: block; margin: 2px 0 0; max-width: 84px; font-size: 12px;
  line-height: 1.3; color: var(--soft); overflow-wrap: anywhere; }
.strip figcaption b { font-weight: 600; color: var(--ink); }
.strip.wide { border: 0; padding: 0; } .strip.wide img { width: 96px; height: 96px; }
.strip.wide figure { width: 190px; }
.strip.wide figcaption { max-width: 190px; font-size: 13px; }
.strip figcaption b.said { color: var(--s2); }
.bar { fill: var(--s1); }
details { margin-top: 16px; padding: 10px 14px; }
details .wide { border: 0; padding: 0; margin-top: 6px; }
summary { cursor: pointer; font-weight: 600; }
pre { overflow-x: auto; margin: 10px 0 2px; font: 13px/1.45 ui-monospace, Menlo, Consolas,
  "DejaVu Sans Mono", monospace; }
ul { margin: 0; padding: 10px 14px; list-style: none; background: var(--card);
  border: 1px solid var(--line); border-radius: 8px; }
li { padding: 3px 0; overflow-wrap: anywhere; }
li small { display: block; margin-left: 70px; color: var(--soft); font-size: 13px; }
.level { font-style: normal; font-size: 13px; font-weight: 600; color: var(--soft);
  display: inline-block; min-width: 66px; }
.level.warning { color: var(--warn); } .level.error { color: var(--bad); }
footer { margin-top: 34px; color: var(--soft); font-size: 13px; }
@media print { body { background: #fff; } figure, dl { break-inside: avoid; } }
</style>
</head>
<body>
<h1>{{title}}<small>training report</small></h1>
{{body}}
<script>
for (const svg of document.querySelectorAll("svg[data-series]")) {
  const series = JSON.parse(svg.dataset.series), high = +svg.dataset.high;
  const [left, right, top, bottom] = svg.dataset.frame.split(" ").map(Number);
  const box = svg.viewBox.baseVal;
  const cross = document.createElementNS(svg.namespaceURI, "line");
  const tip = document.createElement("div");
  cross.setAttribute("class", "cross");
  cross.setAttribute("y1", top); cross.setAttribute("y2", bottom);
  tip.className = "tip";
  const hide = () => { cross.remove(); tip.remove(); };
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("pointermove", event => {
    const frame = svg.getBoundingClientRect(), scale = box.width / frame.width;
    const at = ((event.clientX - frame.left) * scale - left) / (right - left) * high;
    let step = null;
    const lines = [];
    for (const [name, points] of series) {
      const known = points.filter(point => point[1] !== null);
      if (!known.length) continue;
      const near = known.reduce((a, b) => Math.abs(b[0] - at) < Math.abs(a[0] - at) ? b : a);
      if (step === null || Math.abs(near[0] - at) < Math.abs(step - at)) step = near[0];
      lines.push(name + ": " + near[1]);
    }
    if (step === null) return hide();
    const x = left + step / high * (right - left);
    cross.setAttribute("x1", x); cross.setAttribute("x2", x);
    svg.append(cross);
    tip.textContent = "step " + step.toLocaleString("en") + " · " + lines.join(" · ");
    svg.parentNode.append(tip);
    const room = svg.parentNode.clientWidth - tip.offsetWidth - 8;
    tip.style.left = Math.max(4, Math.min(room, x / scale - tip.offsetWidth / 2)) + "px";
    tip.style.top = "34px";
  });
}
</script>
</body>
</html>
"""
