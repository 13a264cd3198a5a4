// Small charts and lists that several panels share.
function legend(host, { low = 0, high = 1, map = "blues", label = "" }) {
  const stops = Array.from({ length: 9 }, (_, i) => css(colour(i / 8, map))).join(",");
  host.append(el("div", { class: "legend small soft" }, label && el("span", {}, label), number(low, 2),
    el("i", { class: "strip", style: `background:linear-gradient(90deg,${stops})` }), number(high, 2)));
}

function bars(host, items, { max, unit = "", digits = 3, onclick, colour: fillColour } = {}) {
  const most = max ?? (Math.max(...items.map((item) => Math.abs(item.value)), 0) || 1);
  const signed = items.some((item) => item.value < 0);
  const list = el("div", { class: "bars", role: "list" }, items.map((item, i) => {
    const share = 100 * clamp(Math.abs(item.value) / most, 0, 1), half = share / 2;
    const place = signed ? (item.value < 0 ? `right:50%;width:${half}%` : `left:50%;width:${half}%`) : `left:0;width:${share}%`;
    const paint = item.colour || fillColour || (item.value < 0 ? "var(--s2)" : "var(--s1)");
    return el(onclick ? "button" : "div", {
      class: "bar" + (item.picked ? " picked" : ""), role: "listitem", title: item.title,
      "data-value": item.value, onclick: onclick && (() => onclick(item, i)),
    },
    el("span", { class: "name" }, item.label),
    el("span", { class: "track" + (signed ? " signed" : "") }, el("i", { style: `${place};background:${paint}` })),
    el("span", { class: "num" }, number(item.value, digits) + unit),
    item.note != null && el("span", { class: "soft small note" }, item.note));
  }));
  host.append(list);
  return list;
}

function niceTicks(low, high, count) {
  const rough = (high - low) / Math.max(1, count), power = 10 ** Math.floor(Math.log10(rough || 1));
  const step = [1, 2, 5, 10].map((by) => by * power).find((by) => by >= rough) || power;
  const ticks = [];
  for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-6; at += step) ticks.push([Number(at.toPrecision(12)), null]);
  return ticks;
}

function axisOf(given, values) {
  const axis = typeof given === "string" ? { label: given } : { ...(given || {}) };
  const known = values.filter(Number.isFinite);
  axis.low ??= known.length ? Math.min(...known) : 0;
  axis.high ??= known.length ? Math.max(...known) : 1;
  if (axis.high === axis.low) axis.high = axis.low + 1;
  return axis;
}

function lines(host, { series: all, x, y, height = 240, onclick, mark = null }) {
  const width = clamp(host.clientWidth || 640, 280, 860), [left, right, top, bottom] = [52, 14, 12, 40];
  const points = all.flatMap((one) => one.points);
  const across = axisOf(x, points.map((p) => p[0])), up = axisOf(y, points.map((p) => p[1]));
  const X = (v) => left + ((v - across.low) / (across.high - across.low)) * (width - left - right);
  const Y = (v) => height - bottom - ((v - up.low) / (up.high - up.low)) * (height - top - bottom);
  const xs = across.ticks || niceTicks(across.low, across.high, width / 90), ys = up.ticks || niceTicks(up.low, up.high, height / 50);
  const cross = svg("line", { class: "cross", y1: top, y2: height - bottom, visibility: "hidden" });
  const drawing = svg("svg", { class: "lines", width, height, viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": `${up.label || ""} by ${across.label || ""}: ${all.map((one) => one.name).join(", ")}` },
  ys.map(([v, text]) => [svg("line", { class: "gridline", x1: left, x2: width - right, y1: Y(v), y2: Y(v) }),
    svg("text", { x: left - 7, y: Y(v) + 4, class: "end" }, text ?? number(v, 2))]),
  xs.map(([v, text]) => svg("text", { x: X(v), y: height - bottom + 17, class: "mid" }, text ?? number(v, 2))),
  svg("line", { class: "axis", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom }),
  svg("text", { x: (left + width - right) / 2, y: height - 5, class: "mid" }, across.label || ""),
  svg("text", { x: -(top + height - bottom) / 2, y: 13, class: "mid", transform: "rotate(-90)" }, up.label || ""),
  mark !== null && svg("line", { class: "mark", x1: X(mark), x2: X(mark), y1: top, y2: height - bottom }),
  cross,
  all.map((one, i) => {
    const shown = one.points.filter((p) => Number.isFinite(p[1]));
    return svg("g", { "data-series": one.name },
      svg("polyline", { class: "line", style: `stroke:${one.colour || series(i)}`, points: shown.map((p) => `${X(p[0]).toFixed(1)},${Y(p[1]).toFixed(1)}`).join(" ") }),
      shown.length < 40 && shown.map((p) => svg("circle", { cx: X(p[0]), cy: Y(p[1]), r: 2.6, style: `fill:${one.colour || series(i)}`, "data-value": p[1] })));
  }));
  const nearest = (event) => {
    const box = drawing.getBoundingClientRect(), at = ((event.clientX - box.left) / box.width) * width;
    return [...new Set(points.map((p) => p[0]))].sort((a, b) => Math.abs(X(a) - at) - Math.abs(X(b) - at))[0];
  };
  drawing.addEventListener("pointermove", (event) => {
    const v = nearest(event);
    if (v === undefined) return;
    cross.setAttribute("x1", X(v));
    cross.setAttribute("x2", X(v));
    cross.setAttribute("visibility", "visible");
    const said = all.map((one) => [one.name, one.points.find((p) => p[0] === v)]).filter((pair) => pair[1]);
    tip(event, `${across.label || "x"} ${number(v)}\n` + said.map(([name, p]) => `${name}: ${number(p[1])}`).join("\n"));
  });
  drawing.addEventListener("pointerleave", () => { tip(null); cross.setAttribute("visibility", "hidden"); });
  if (onclick) drawing.addEventListener("click", (event) => onclick(nearest(event)));
  host.append(drawing, all.length > 1 && el("div", { class: "keys small" }, all.map((one, i) =>
    el("span", {}, el("i", { style: `background:${one.colour || series(i)}` }), one.name))) || "");
  return drawing;
}

function table(host, columns, rows, { onclick, picked } = {}) {
  const heads = columns.map((column) => (typeof column === "object" ? column : { name: column }));
  const numeric = heads.map((_, c) => rows.length > 0 && rows.every((row) => row[c] === null || typeof row[c] === "number"));
  const order = rows.map((_, i) => i);
  let [by, down] = [null, true];
  const body = el("tbody");
  const line = (i) => el("tr", {
    class: picked === i ? "picked" : null, tabindex: onclick ? 0 : null,
    onclick: onclick && (() => onclick(rows[i], i)), onkeydown: onclick && ((event) => event.key === "Enter" && onclick(rows[i], i)),
  }, rows[i].map((cell, c) => el("td", numeric[c] ? { class: "num", "data-value": cell } : {},
    typeof cell === "number" ? number(cell, heads[c].digits) : cell)));
  const show = () => body.replaceChildren(...order.map(line));
  const sort = (c) => {
    down = by === c ? !down : true;
    by = c;
    const key = (i) => (rows[i][c] instanceof Node ? rows[i][c].textContent : rows[i][c]);
    order.sort((a, b) => (numeric[c] ? key(a) - key(b) : String(key(a)).localeCompare(String(key(b)))) * (down === numeric[c] ? -1 : 1));
    show();
  };
  show();
  host.append(el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, heads.map((head, c) =>
    el("th", { class: numeric[c] ? "num" : null, title: head.title, scope: "col" },
      el("button", { onclick: () => sort(c) }, head.name))))), body)));
  return body;
}

// What stands beside a map. A row of cross attention is the token that is being written, elsewhere
// the token that was read; a block of tokens is named by its places, "3–4".
function axisLabels(look, { columns, block }, name) {
  const { pieces, words, short } = look.streams[name], written = name !== columns && look.outputs, n = pieces.length;
  if (block > 1) return Array.from({ length: Math.ceil(n / block) }, (_, b) => [...new Set([b * block + 1, Math.min(n, (b + 1) * block)])].join("–"));
  if (short) return short;
  return pieces.map((piece, i) => (written?.[i] ? written[i].name
    : (i && words[i] >= 0 && words[i] === words[i - 1] && /^[\p{L}\p{N}]/u.test(piece) ? "·" : "") + piece));
}

// A patch of a picture with those beside it, where there is one to see.
const patch = (seen) => seen && el("img", { class: "patch", src: seen, alt: "" });

function tokens(host, stream, { value, map = "blues", low = 0, high = 1, onhover, onclick, picked, title, digits } = {}) {
  const nodes = stream.pieces.map((piece, i) => {
    const v = value ? value(i) : null, known = v != null;
    const rgb = known ? colour((v - low) / (high - low || 1), map) : null;
    const joined = i > 0 && stream.words && stream.words[i] >= 0 && stream.words[i] === stream.words[i - 1];
    return el(onclick ? "button" : "span", {
      class: "token" + (joined ? " joined" : "") + (stream.special && stream.special[i] ? " special" : "") + (picked === i ? " picked" : ""),
      "aria-pressed": onclick ? String(picked === i) : null, "data-place": i, "data-value": known ? v : null,
      title: title ? title(i) : known ? `${piece}: ${number(v, digits)}` : null,
      style: rgb ? `background:${css(rgb)};color:${ink(rgb)}` : null,
      onclick: onclick && (() => onclick(i)), onpointerenter: onhover && (() => onhover(i)), onpointerleave: onhover && (() => onhover(null)), onfocus: onhover && (() => onhover(i)),
    }, piece);
  });
  host.append(el("div", { class: "tokens" }, nodes));
  return nodes;
}

function chips(host, items, picked, onpick) {
  host.append(el("div", { class: "chips", role: "group" }, items.map((item) => el("button", {
    class: "chip", "aria-pressed": String(item.key === picked), title: item.title, "data-key": item.key,
    onclick: () => onpick(item.key),
  }, item.label ?? item.key, item.note && el("small", {}, item.note)))));
}
