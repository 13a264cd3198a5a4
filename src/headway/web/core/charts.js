// @ts-check
// Small charts and lists that several panels share.

/**
 * The colours of a scale as a strip with its ends.
 * @param {Element} host
 * @param {Scale & {label?: string | false | null}} scale
 */
function legend(host, { low = 0, high = 1, map = "blues", label = "" }) {
  const stops = Array.from({ length: 9 }, (_, i) => css(colour(i / 8, map))).join(",");
  host.append(
    el(
      "div",
      { class: "legend small soft" },
      label && el("span", {}, label),
      number(low, 2),
      el("i", { class: "strip", style: `background:linear-gradient(90deg,${stops})` }),
      number(high, 2),
    ),
  );
}

/**
 * A list of values as bars; bars of negative values grow to the left.
 * @template {Bar} B
 * @param {Element} host
 * @param {B[]} items
 * @param {BarsOptions<B>} [options]
 */
function bars(host, items, { max, unit = "", digits = 3, onclick, colour: fillColour } = {}) {
  const most = max ?? (Math.max(...items.map((item) => Math.abs(item.value)), 0) || 1);
  const signed = items.some((item) => item.value < 0);
  const list = el(
    "div",
    { class: "bars", role: "list" },
    items.map((item, i) => {
      const share = 100 * clamp(Math.abs(item.value) / most, 0, 1),
        half = share / 2;
      const place = signed
        ? item.value < 0
          ? `right:50%;width:${half}%`
          : `left:50%;width:${half}%`
        : `left:0;width:${share}%`;
      const paint = item.colour || fillColour || (item.value < 0 ? "var(--s2)" : "var(--s1)");
      return el(
        onclick ? "button" : "div",
        {
          class: "bar" + (item.picked ? " picked" : ""),
          role: "listitem",
          title: item.title,
          "data-value": item.value,
          onclick: onclick && (() => onclick(item, i)),
        },
        el("span", { class: "name" }, item.label),
        el(
          "span",
          { class: "track" + (signed ? " signed" : "") },
          el("i", { style: `${place};background:${paint}` }),
          item.range && !signed && whisker(item.range, most),
        ),
        el("span", { class: "num" }, (item.shown ?? number(item.value, digits)) + unit),
        item.note != null && el("span", { class: "soft small note" }, item.note),
      );
    }),
  );
  host.append(list);
  return list;
}

/**
 * The interval of a value, drawn over the end of its bar.
 * @param {[low: number, high: number]} range
 * @param {number} most
 */
function whisker([low, high], most) {
  const [from, to] = [low, high].map((value) => 100 * clamp(value / most, 0, 1));
  return el("i", {
    class: "range",
    "data-low": low,
    "data-high": high,
    style: `left:${from}%;width:${to - from}%`,
  });
}

/**
 * Tiles with the most important numbers.
 * @param {Element} host
 * @param {Tile[]} items
 */
function tiles(host, items) {
  host.append(
    el(
      "div",
      { class: "tiles" },
      items.map(({ name, value, note }) =>
        el(
          "div",
          {},
          el("span", {}, name),
          el("b", { "data-number": name }, value),
          el("small", {}, note),
        ),
      ),
    ),
  );
}

/**
 * A number beside an axis: 0.5, 12k, 3.5M, 5e-4.
 * @param {number} x
 */
function short(x) {
  const size = Math.abs(x),
    sign = x < 0 ? "−" : "",
    digits = (/** @type {number} */ y) => String(Number(y.toPrecision(4)));
  if (size >= 999999.5) return `${sign}${digits(size / 1e6)}M`;
  if (size >= 10000) return `${sign}${digits(size / 1e3)}k`;
  return size && size < 0.001
    ? sign + size.toExponential().replace(/(\.\d\d)\d+/, "$1")
    : sign + digits(size);
}

/**
 * Ticks at round numbers between two ends.
 * @param {number} low
 * @param {number} high
 * @param {number} count
 * @returns {Tick[]}
 */
function niceTicks(low, high, count) {
  const rough = (high - low) / Math.max(1, count),
    power = 10 ** Math.floor(Math.log10(rough || 1));
  const step = [1, 2, 5, 10].map((by) => by * power).find((by) => by >= rough) || power;
  /** @type {Tick[]} */
  const ticks = [];
  for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-6; at += step)
    ticks.push([Number(at.toPrecision(12)), null]);
  return ticks;
}

/**
 * Ticks at 1, 2 and 5 times powers of ten around the values; only at powers if those are too many.
 * @param {number} low
 * @param {number} high
 */
function logTicks(low, high) {
  const [first, last] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))],
    powers = Array.from({ length: last - first + 1 }, (_, i) => first + i);
  const all = powers.flatMap((power) => [1, 2, 5].map((by) => Number(`${by}e${power}`)));
  const fine = all.slice(
    all.findLastIndex((v) => v <= low * 1.001),
    all.findIndex((v) => v >= high * 0.999) + 1,
  );
  return fine.length > 7
    ? powers
        .filter((_, i) => i % Math.ceil((last - first) / 6) === 0)
        .map((power) => Number(`1e${power}`))
    : fine;
}

/** Smallest ratio of the ends for a log scale: below it a linear scale is easier to read. */
const WORTH_LOG = 5;

/** @type {(x: number | null | undefined) => x is number} */
const isFiniteNumber = (x) => Number.isFinite(x);

/**
 * An axis with its ends and ticks. An end that is not given is the next round number beyond the values,
 * or the last value if `tight`.
 * @param {string | AxisOptions | null | undefined} given
 * @param {(number | null)[]} values
 * @param {number} count
 * @param {boolean} [tight]
 * @returns {Axis}
 */
function axisOf(given, values, count, tight) {
  /** @type {AxisOptions} */
  const options = typeof given === "string" ? { label: given } : given || {};
  const { most } = options;
  const known = values.filter(isFiniteNumber).filter((v) => !options.log || v > 0),
    open = { low: options.low == null, high: options.high == null };
  /** @type {Axis} */
  const axis = {
    label: options.label,
    low: options.low ?? (known.length ? known.reduce((a, b) => Math.min(a, b)) : 0),
    high: options.high ?? (known.length ? known.reduce((a, b) => Math.max(a, b)) : 1),
    ticks: options.ticks || [],
    share: (v) =>
      axis.log
        ? Math.log(v / axis.low) / Math.log(axis.high / axis.low)
        : (v - axis.low) / (axis.high - axis.low),
  };
  axis.log = Boolean(options.log) && axis.high >= WORTH_LOG * axis.low;
  if (axis.high - axis.low <= 1e-9 * Math.abs(axis.high)) {
    const room = tight ? 1 : Math.abs(axis.low) / 2 || 0.5;
    if (open.high) axis.high += room;
    if (open.low && !tight) axis.low -= room;
  }
  if (!options.ticks && !tight && !axis.log) {
    const [[first], [second]] = niceTicks(0, axis.high - axis.low, count),
      step = second - first;
    if (open.low) axis.low = Number((Math.floor(axis.low / step + 1e-9) * step).toPrecision(12));
    if (open.high) axis.high = Number((Math.ceil(axis.high / step - 1e-9) * step).toPrecision(12));
  }
  if (open.high && most != null && known.every((v) => v <= most))
    axis.high = Math.min(axis.high, most);
  if (axis.log) {
    const ticks = logTicks(axis.low, axis.high);
    if (!options.ticks) axis.ticks = ticks.map((v) => [v, null]);
    [axis.low, axis.high] = [Math.min(axis.low, ...ticks), Math.max(axis.high, ...ticks)];
  } else if (!options.ticks) axis.ticks = niceTicks(axis.low, axis.high, count);
  return axis;
}

/**
 * The frame of a chart: a drawing with both axes, and functions that map values to positions.
 * @param {Element} host
 * @param {AxesOptions} options
 */
function axes(host, { x, y, xs = [], ys = [], height = 240, tight = true, label }) {
  const width = clamp(host.clientWidth || 640, 280, 860),
    [right, top, bottom] = [14, 12, 40];
  const across = axisOf(x, xs, width / 90, tight),
    up = axisOf(y, ys, height / 50);
  const widest = Math.max(...up.ticks.map(([v, text]) => String(text ?? short(v)).length));
  const left = 52 + 7 * clamp(widest - 4, 0, 8); // room for 1e-10 beside the name of the axis
  const X = (/** @type {number} */ v) => left + across.share(v) * (width - left - right),
    Y = (/** @type {number} */ v) => height - bottom - up.share(v) * (height - top - bottom);
  const drawing = svg(
    "svg",
    {
      class: "lines",
      width,
      height,
      viewBox: `0 0 ${width} ${height}`,
      role: "img",
      "aria-label": label,
    },
    up.ticks.map(([v, text]) => [
      svg("line", { class: "gridline", x1: left, x2: width - right, y1: Y(v), y2: Y(v) }),
      svg("text", { x: left - 7, y: Y(v) + 4, class: "end" }, text ?? short(v)),
    ]),
    across.ticks.map(([v, text]) =>
      svg("text", { x: X(v), y: height - bottom + 17, class: "mid" }, text ?? short(v)),
    ),
    svg("line", {
      class: "axis",
      x1: left,
      x2: width - right,
      y1: height - bottom,
      y2: height - bottom,
    }),
    svg("text", { x: (left + width - right) / 2, y: height - 5, class: "mid" }, across.label || ""),
    svg(
      "text",
      { x: -(top + height - bottom) / 2, y: 13, class: "mid", transform: "rotate(-90)" },
      up.label || "",
    ),
  );
  host.append(drawing);
  return {
    drawing,
    X,
    Y,
    across,
    up,
    width,
    left,
    right: width - right,
    top,
    bottom: height - bottom,
  };
}

/**
 * The path of a line. Points that are not shown interrupt it.
 * @param {Point[]} points
 * @param {(x: number) => number} X
 * @param {(y: number) => number} Y
 * @param {(point: Point) => point is [x: number, y: number]} isShown
 */
function pathOf(points, X, Y, isShown) {
  let begun = false;
  return points
    .map((p) => {
      const sign = begun ? "L" : "M";
      begun = isShown(p);
      return isShown(p) ? `${sign}${X(p[0]).toFixed(1)},${Y(p[1]).toFixed(1)}` : "";
    })
    .join("");
}

/**
 * A line chart. The pointer shows the values of all lines at the nearest x.
 * @param {Element} host
 * @param {LinesOptions} options
 */
function lines(
  host,
  { series: all, x, y, height = 240, onclick, mark = null, best = null, levels = [] },
) {
  const points = all.flatMap((one) => one.points),
    names = all.map((one) => one.name).join(", "),
    label = (/** @type {string | AxisOptions} */ axis) =>
      typeof axis === "string" ? axis : axis.label || "";
  const { drawing, X, Y, across, up, left, right, top, bottom } = axes(host, {
    x,
    y,
    height,
    xs: points.map((p) => p[0]),
    ys: [...points.map((p) => p[1]), ...levels.map((level) => level[1])],
    label: `${label(y)} by ${label(x)}: ${names}`,
  });
  /** @type {(p: Point) => p is [x: number, y: number]} */
  const isShown = (p) => isFiniteNumber(p[1]) && (!up.log || p[1] > 0);
  /** @type {(one: Series, i: number) => string} */
  const paint = (one, i) => one.colour || series(i);
  const cross = svg("line", { class: "cross", y1: top, y2: bottom, visibility: "hidden" });
  fill(drawing, null, [
    mark !== null && svg("line", { class: "mark", x1: X(mark), x2: X(mark), y1: top, y2: bottom }),
    cross,
    ...levels.map(([name, v]) =>
      svg(
        "g",
        {},
        svg("line", {
          class: "cross",
          x1: left,
          x2: right,
          y1: Y(v),
          y2: Y(v),
          "data-level": name,
          "data-value": v,
        }),
        svg("text", { x: right, y: Y(v) + (up.share(v) > 0.9 ? 14 : -4), class: "end" }, name),
      ),
    ),
    ...all.map((one, i) => {
      const shown = one.points.filter(isShown);
      return svg(
        "g",
        { "data-series": one.name },
        svg("path", {
          class: "line",
          style: `stroke:${paint(one, i)}`,
          d: pathOf(one.points, X, Y, isShown),
        }),
        shown.length < 40 &&
          shown.map((p) =>
            svg("circle", {
              cx: X(p[0]),
              cy: Y(p[1]),
              r: 2.6,
              style: `fill:${paint(one, i)}`,
              "data-value": p[1],
            }),
          ),
      );
    }),
    best &&
      svg(
        "g",
        {},
        svg("circle", { class: "best", cx: X(best[0]), cy: Y(best[1]), r: 6 }),
        svg(
          "text",
          {
            class: "strong " + (across.share(best[0]) > 0.7 ? "end" : "mid"),
            x: X(best[0]),
            y: Y(best[1]) + (up.share(best[1]) > 0.85 ? 22 : -11),
          },
          best[2],
        ),
      ),
  ]);
  /** @type {(event: MouseEvent) => number | undefined} */
  const nearest = (event) => {
    const box = drawing.getBoundingClientRect(),
      at = ((event.clientX - box.left) / box.width) * drawing.viewBox.baseVal.width;
    return points
      .map((p) => p[0])
      .reduce((a, b) => (Math.abs(X(b) - at) < Math.abs(X(a) - at) ? b : a), points[0]?.[0]);
  };
  drawing.addEventListener("pointermove", (event) => {
    const v = nearest(event);
    if (v === undefined) return;
    cross.setAttribute("x1", String(X(v)));
    cross.setAttribute("x2", String(X(v)));
    cross.setAttribute("visibility", "visible");
    const values = all
      .map((one) => ({ name: one.name, shown: one.points.filter(isShown) }))
      .filter(({ shown }) => shown.length)
      .map(({ name, shown }) => {
        const p = shown.reduce((a, b) => (Math.abs(a[0] - v) <= Math.abs(b[0] - v) ? a : b));
        return `${name}: ${number(p[1])}${p[0] === v ? "" : ` (at ${number(p[0])})`}`;
      });
    tip(event, `${across.label || "x"} ${number(v)}\n${values.join("\n")}`);
  });
  drawing.addEventListener("pointerleave", () => {
    tip(null);
    cross.setAttribute("visibility", "hidden");
  });
  drawing.addEventListener("click", (event) => {
    const v = nearest(event);
    if (onclick && v !== undefined) onclick(v);
  });
  host.append(
    (all.length > 1 &&
      el(
        "div",
        { class: "keys small" },
        all.map((one, i) =>
          el("span", {}, el("i", { style: `background:${paint(one, i)}` }), one.name),
        ),
      )) ||
      "",
  );
  return drawing;
}

/**
 * A waveform: lowest and highest sample of each column, from −1 to 1.
 * @param {Numbers} lows
 * @param {Numbers} highs
 * @param {number} width
 * @param {number} height
 * @param {string} label
 */
function wave(lows, highs, width, height, label) {
  const n = highs.length;
  /** @type {(v: number, i: number) => string} */
  const point = (v, i) =>
    `${(((i + 0.5) / n) * width).toFixed(1)},${((height / 2) * (1 - v * 0.96)).toFixed(1)}`;
  const there = Array.from(highs, point),
    back = Array.from(lows, point).reverse();
  return svg(
    "svg",
    { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label },
    svg("path", { d: `M${[...there, ...back].join("L")}Z`, style: "fill:var(--s1);opacity:.75" }),
  );
}

/**
 * A table that sorts by a column when its heading is clicked.
 * @template {(Cell | Node)[]} R
 * @param {Element} host
 * @param {(string | Column)[]} columns
 * @param {R[]} rows
 * @param {TableOptions<R>} [options]
 */
function table(host, columns, rows, { onclick, picked } = {}) {
  const heads = columns.map((column) => (typeof column === "object" ? column : { name: column }));
  const numeric = heads.map(
    (_, c) => rows.length > 0 && rows.every((row) => row[c] === null || typeof row[c] === "number"),
  );
  const order = rows.map((_, i) => i);
  /** @type {number | null} */
  let by = null;
  let down = true;
  const body = el("tbody");
  const line = (/** @type {number} */ i) =>
    el(
      "tr",
      {
        class: picked === i ? "picked" : null,
        tabindex: onclick ? 0 : null,
        onclick: onclick && (() => onclick(rows[i], i)),
        onkeydown: onclick && ((event) => event.key === "Enter" && onclick(rows[i], i)),
      },
      rows[i].map((cell, c) =>
        el(
          "td",
          numeric[c] ? { class: "num", "data-value": cell } : {},
          typeof cell === "number" ? number(cell, heads[c].digits) : cell,
        ),
      ),
    );
  const show = () => body.replaceChildren(...order.map(line));
  const textOf = (/** @type {Cell | Node} */ cell) =>
    String(cell instanceof Node ? cell.textContent : cell);
  const sort = (/** @type {number} */ c) => {
    down = by === c ? !down : true;
    by = c;
    const sign = down === numeric[c] ? -1 : 1;
    order.sort((a, b) => {
      const [x, y] = [rows[a][c], rows[b][c]];
      if (!numeric[c]) return sign * textOf(x).localeCompare(textOf(y));
      if (x === null || y === null) return Number(x === null) - Number(y === null);
      return sign * (Number(x) - Number(y));
    });
    show();
  };
  show();
  host.append(
    el(
      "div",
      { class: "scroll" },
      el(
        "table",
        {},
        el(
          "thead",
          {},
          el(
            "tr",
            {},
            heads.map((head, c) =>
              el(
                "th",
                { class: numeric[c] ? "num" : null, title: head.title, scope: "col" },
                el("button", { onclick: () => sort(c) }, head.name),
              ),
            ),
          ),
        ),
        body,
      ),
    ),
  );
  return body;
}

/**
 * Labels of one side of a map. A row of cross attention is the token being generated, other rows are
 * tokens that were read; a block of tokens is named by its positions, "3–4".
 * @param {Look} look
 * @param {{columns: string, block: number}} kind
 * @param {string} name
 * @returns {string[]}
 */
function axisLabels(look, { columns, block }, name) {
  const { pieces, words, short } = look.streams[name],
    written = name === columns ? [] : look.outputs,
    n = pieces.length;
  if (block > 1)
    return Array.from({ length: Math.ceil(n / block) }, (_, b) =>
      [...new Set([b * block + 1, Math.min(n, (b + 1) * block)])].join("–"),
    );
  if (short) return short;
  return pieces.map((piece, i) =>
    written[i]
      ? written[i].name
      : (i && words[i] >= 0 && words[i] === words[i - 1] && /^[\p{L}\p{N}]/u.test(piece)
          ? "·"
          : "") + piece,
  );
}

/**
 * A patch of an image with its neighbours; nothing without an image.
 * @param {string | null | undefined} seen
 */
const patch = (seen) => seen && el("img", { class: "patch", src: seen, alt: "" });

/**
 * Pieces of text in a row, coloured by their values.
 * @param {Element} host
 * @param {Tokens} stream
 * @param {TokensOptions} [options]
 */
function tokens(
  host,
  stream,
  { value, map = "blues", low = 0, high = 1, onhover, onclick, picked, title, digits } = {},
) {
  const nodes = stream.pieces.map((piece, i) => {
    const v = value ? value(i) : null,
      known = v != null;
    const rgb = known ? colour((v - low) / (high - low || 1), map) : null;
    const joined =
      i > 0 && stream.words && stream.words[i] >= 0 && stream.words[i] === stream.words[i - 1];
    return el(
      onclick ? "button" : "span",
      {
        class:
          "token" +
          (joined ? " joined" : "") +
          (stream.special && stream.special[i] ? " special" : "") +
          (picked === i ? " picked" : ""),
        "aria-pressed": onclick ? String(picked === i) : null,
        "data-place": i,
        "data-value": known ? v : null,
        title: title ? title(i) : known ? `${piece}: ${number(v, digits)}` : null,
        style: rgb ? `background:${css(rgb)};color:${ink(rgb)}` : null,
        onclick: onclick && (() => onclick(i)),
        onpointerenter: onhover && (() => onhover(i)),
        onpointerleave: onhover && (() => onhover(null)),
        onfocus: onhover && (() => onhover(i)),
      },
      piece,
    );
  });
  host.append(el("div", { class: "tokens" }, nodes));
  return nodes;
}

/**
 * A choice of one of a few options.
 * @template {string | number | null} K
 * @param {Element} host
 * @param {Chip<K>[]} items
 * @param {K} picked
 * @param {(key: K) => unknown} onpick
 */
function chips(host, items, picked, onpick) {
  host.append(
    el(
      "div",
      { class: "chips", role: "group" },
      items.map((item) =>
        el(
          "button",
          {
            class: "chip",
            "aria-pressed": String(item.key === picked),
            title: item.title,
            "data-key": item.key,
            onclick: () => onpick(item.key),
          },
          item.label ?? item.key,
          item.note && el("small", {}, item.note),
        ),
      ),
    ),
  );
}

/**
 * Charts from Python, in two columns.
 * @param {Element} host
 * @param {Chart[]} charts
 */
function drawCharts(host, charts) {
  const grid = el("div", { class: "grid2 charts" });
  host.append(grid);
  // All cards are created before the first chart is drawn, because a chart is as wide as its card.
  const bodies = charts.map(({ title, better, series: all }) =>
    frame(grid, {
      title,
      name: title.toLowerCase().replace(/\W+/g, "-"),
      hint: better && `${better} is better`,
      csv: () => [
        ["line", "step", "value"],
        ...all.flatMap((one) => one.points.map((point) => [one.name, ...point])),
      ],
    }),
  );
  charts.forEach(({ series: all, log, zero, most, best, levels }, i) =>
    lines(bodies[i], {
      series: all,
      x: { label: "step", low: 0 },
      y: { log, low: zero ? 0 : null, most },
      best,
      levels,
      height: 250,
    }),
  );
}
