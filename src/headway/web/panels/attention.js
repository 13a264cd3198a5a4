// @ts-check
// All heads as small tiles, and one of them as a large map with the lines of one row.

/** @typedef {"raw" | "mean" | "max"} HeadsMap */

/**
 * @typedef {object} View
 * @property {AttentionKind} [twin] the same kind of the other look
 * @property {boolean} fits whether both have the same tokens and heads
 * @property {boolean} [difference]
 * @property {Required<Scale>} scale
 * @property {(layer: number, head: number, map: HeadsMap) => Float32Array} of
 */

/** Number of the strongest weights that are always drawn and listed, and the least of the others. */
const FEW = 5,
  WEAK = 0.05;

/**
 * The largest number of heads in a layer.
 * @param {AttentionKind} kind
 */
const most = (kind) => Math.max(1, ...kind.layers.map((layer) => layer.shape[0]));

/**
 * The selected kind, layer, head and map.
 * @param {AttentionSection} section
 * @param {Page} page
 * @returns {{kind: AttentionKind, layer: number, head: number, map: HeadsMap}}
 */
function pick(section, { state }) {
  const kind = section.kinds.find((one) => one.name === state.kind) || section.kinds[0],
    n = kind.layers.length;
  const layer = clamp(state.layer ?? n - 1, 0, n - 1),
    head = clamp(state.head ?? 0, 0, Math.max(0, kind.layers[layer].shape[0] - 1));
  return {
    kind,
    layer,
    head,
    map: state.map === "mean" || state.map === "max" ? state.map : "raw",
  };
}

/**
 * Attention weights of one head, or the mean or maximum over the heads of the layer.
 * @param {AttentionKind} kind
 * @param {number} layer
 * @param {number} head
 * @param {HeadsMap} map
 * @returns {Float32Array}
 */
function matrix(kind, layer, head, map) {
  const all = kind.layers[layer],
    [H, T, S] = all.shape;
  if (map === "raw" && H) return sub(all, head);
  const out = new Float32Array(T * S);
  all.forEach((x, i) => {
    const at = i % (T * S);
    out[at] = map === "max" ? Math.max(out[at], x) : out[at] + x / H;
  });
  return out;
}

/**
 * The weights of A, or A − B where both have the same tokens. Differences have one scale for all heads
 * of a kind.
 * @param {Page} page
 * @param {AttentionKind} kind
 * @returns {View}
 */
function viewOf(page, kind) {
  const twin = page.otherSection("attention")?.kinds.find((one) => one.name === kind.name);
  const shapes = (/** @type {AttentionKind} */ one) =>
    one.layers.map((layer) => layer.shape).join(";");
  const fits = twin !== undefined && shapes(kind) === shapes(twin);
  if (!fits || page.state.attention_view !== "difference")
    return {
      twin,
      fits,
      of: (...which) => matrix(kind, ...which),
      scale: { low: 0, high: 1, map: "blues" },
    };
  let high = 0;
  kind.layers.forEach((layer, l) =>
    layer.forEach((x, i) => {
      high = Math.max(high, Math.abs(x - twin.layers[l][i]));
    }),
  );
  high = high || 1;
  return {
    twin,
    fits,
    difference: true,
    scale: { low: -high, high, map: "diverging" },
    of(...which) {
      const b = matrix(twin, ...which);
      return matrix(kind, ...which).map((x, i) => x - b[i]);
    },
  };
}

/**
 * @param {Page} page
 * @param {string} kind
 * @param {number} layer
 * @param {number} head
 */
function roleOf(page, kind, layer, head) {
  const { heads = [] } = page.section("heads") || {},
    found = heads.find((one) => one.kind === kind && one.layer === layer && one.head === head);
  return found ? found.roles.join(", ") : "";
}

/**
 * Tiles of each kind, cached so that selecting another head does not draw them again.
 * @type {WeakMap<AttentionKind, {key: string, tiles: HTMLCanvasElement[][]}>}
 */
const kept = new WeakMap();

/**
 * @param {AttentionKind} kind
 * @param {View} view
 */
function tilesOf(kind, view) {
  const key = [view.difference && view.scale.high, themeName()].join(),
    old = kept.get(kind);
  if (old?.key === key) return old.tiles;
  const { low, high, map } = view.scale;
  const tiles = kind.layers.map(({ shape: [H, T, S] }, l) =>
    Array.from({ length: H }, (_, h) => {
      const canvas = el("canvas");
      thumbnail(canvas, view.of(l, h, "raw"), T, S, low, high, map);
      return canvas;
    }),
  );
  kept.set(kind, { key, tiles });
  return tiles;
}

/**
 * @param {HTMLElement} host
 * @param {Page} page
 * @param {AttentionKind} kind
 * @param {ReturnType<typeof pick>} now
 */
function drawGrid(host, page, kind, now) {
  const tiles = tilesOf(kind, viewOf(page, kind)),
    H = most(kind);
  const tile = (/** @type {number} */ l, /** @type {number} */ h) => {
    const here = kind === now.kind && l === now.layer && (now.map !== "raw" || h === now.head);
    return el(
      "button",
      {
        class: here && "picked",
        tabindex: here ? 0 : -1,
        "data-head": `${kind.name}.${l}.${h}`,
        title: [page.head(kind.name, l, h), roleOf(page, kind.name, l, h)]
          .filter(Boolean)
          .join(", "),
        onclick: () => page.set({ kind: kind.name, layer: l, head: h, map: null }),
      },
      tiles[l][h],
    );
  };
  host.append(
    el(
      "div",
      { style: `flex:${H} 1 ${44 * H}px;max-width:${76 * H + 24}px` },
      el(
        "h3",
        {},
        kind.name,
        el("span", { class: "soft small plain" }, `  ${kind.rows} → ${kind.columns}`),
      ),
      el(
        "div",
        { class: "heads small soft", style: `grid-template-columns:16px repeat(${H},1fr)` },
        el("i"),
        Array.from({ length: H }, (_, h) => el("i", {}, h + 1)),
        tiles
          .map((row, l) => [
            el("i", {}, l + 1),
            Array.from({ length: H }, (_, h) => (row[h] ? tile(l, h) : el("i"))),
          ])
          .reverse(),
      ),
    ),
  );
}

/**
 * Two columns of tokens, and a function that draws the lines of one row.
 * @param {HTMLElement} host
 * @param {string[]} rows
 * @param {string[]} columns
 * @param {(row: number) => void} onpick
 * @returns {(r: number, row: [size: number, column: number][]) => void}
 */
function drawLines(host, rows, columns, onpick) {
  const height = 18 * Math.max(rows.length, columns.length) + 8,
    width = 300,
    drawn = svg("g"),
    y = (/** @type {number} */ i) => 18 * i + 17;
  const marks = rows.map((label, i) =>
    svg("text", { x: 110, y: y(i), class: "end pick", onclick: () => onpick(i) }, shortText(label)),
  );
  host.append(
    svg(
      "svg",
      {
        class: "lines",
        width,
        height,
        viewBox: `0 0 ${width} ${height}`,
        role: "img",
        "aria-label": "attention of one token",
      },
      drawn,
      marks,
      columns.map((label, i) => svg("text", { x: 190, y: y(i) }, shortText(label))),
    ),
  );
  return (r, row) => {
    marks.forEach((mark, i) => mark.classList.toggle("strong", i === r));
    drawn.replaceChildren(
      ...row
        .filter(([size], rank) => Math.abs(size) >= WEAK || rank < FEW)
        .map(([size, c]) =>
          svg("line", {
            x1: 115,
            y1: y(r) - 4,
            x2: 185,
            y2: y(c) - 4,
            "data-value": size,
            "data-column": c,
            style: `stroke:var(${size < 0 ? "--s2" : "--s1"});stroke-width:${1 + 4 * Math.abs(size)};opacity:${clamp(0.15 + Math.abs(size), 0, 1)}`,
          }),
        ),
    );
  };
}

/**
 * Target words with the source word that their tokens attend to most, in Pharaoh's format `i-j`.
 * @param {Float32Array} data
 * @param {Page} page
 * @param {AttentionKind} kind
 */
function pharaoh(data, page, kind) {
  const source = page.stream(kind.columns).words,
    target = page.stream(kind.rows).words.slice(1);
  const sums = Array.from(
    { length: Math.max(...target) + 1 },
    () => new Float32Array(Math.max(...source) + 1),
  );
  target.forEach((y, t) =>
    source.forEach((x, s) => {
      if (x >= 0 && y >= 0) sums[y][x] += data[t * source.length + s];
    }),
  );
  return sums.map((row, y) => `${row.indexOf(Math.max(...row))}-${y}`).join(" ");
}

/**
 * @param {HTMLElement} host
 * @param {AttentionKind} kind
 * @param {number} layer
 * @param {number} head
 * @param {Page} page
 */
function drawPinned(host, kind, layer, head, page) {
  const { pinned = [], exact = [] } = kind;
  pinned.forEach((row, i) => {
    const weights = sub(exact[layer], head, i);
    host.append(el("h3", {}, `Pinned token ${row + 1}: ${page.stream(kind.rows).pieces[row]}`));
    tokens(host, page.stream(kind.columns), {
      value: (c) => weights[c],
      high: Math.max(...weights),
    });
  });
}

PANELS.attention = {
  title: "Attention",
  limits(section, page) {
    const now = pick(section, page),
      [head, row] = now.kind.layers[now.layer].shape;
    return {
      layer: now.kind.layers.length,
      head,
      row,
      now: { kind: now.kind.name, layer: now.layer, head: now.head },
    };
  },
  draw(host, section, page) {
    const now = pick(section, page),
      { kind, layer, head, map } = now,
      view = viewOf(page, kind),
      cross = kind.rows !== kind.columns,
      { block } = kind;
    page.shown = { kind: kind.name, layer, head };
    const grid = frame(host, {
      title: "All heads",
      name: "heads-grid",
      hint: "Each tile is one head. Rows are the tokens that attend (queries), columns are the tokens attended to (keys). Layer 1 is at the bottom. Click a tile to enlarge it.",
    }).appendChild(el("div", { class: "row" }));
    for (const one of section.kinds) drawGrid(grid, page, one, now);

    const data = view.of(layer, head, map),
      rows = axisLabels(page.look, kind, kind.rows),
      columns = axisLabels(page.look, kind, kind.columns),
      C = columns.length;
    const name =
      map === "raw"
        ? page.head(kind.name, layer, head)
        : `${kind.name} ${layer + 1}, ${map} over heads`;
    const one = block > 1 ? `a block of ${block} tokens` : "a token";
    const body = frame(host, {
      title: name,
      name: name.replace(/\W+/g, "-"),
      hint: `Each row is ${one} ${cross ? `being generated, each column ${one} of the source` : `(query), each column ${one} that it attends to (key)`}. ${view.difference ? "Orange: more attention than in the other look; blue: less. " : block === 1 ? "Rows sum to 1. " : kind.pinned?.length ? "Rows of pinned tokens are exact. " : ""}Attention weights show where a head looks, not what is important for the output.`,
      csv: () => [
        ["", ...columns],
        ...rows.map((label, r) => [label, ...data.subarray(r * C, (r + 1) * C)]),
      ],
    });
    const bar = body.appendChild(el("div", { class: "row noexport" }));
    chips(
      bar,
      [
        { key: "raw", label: "this head" },
        { key: "mean", label: "mean of heads" },
        { key: "max", label: "max of heads" },
      ],
      map,
      (key) => page.set({ map: key === "raw" ? null : key }),
    );
    if (view.fits && page.other)
      chips(
        bar,
        [
          { key: null, label: page.look.label },
          { key: "difference", label: `minus ${page.other.label}` },
        ],
        view.difference ? "difference" : null,
        (key) => page.set({ attention_view: key }),
      );
    else if (view.twin)
      bar.append(
        el("span", { class: "soft small" }, "No difference is shown because the tokens differ."),
      );
    /** @type {(key: "layer" | "head", count: number, value: number) => void} */
    const select = (key, count, value) =>
      bar.append(
        el(
          "label",
          { class: "small soft" },
          key + " ",
          el(
            "select",
            {
              "data-key": key,
              onchange: (event) => page.set({ kind: kind.name, [key]: Number(event.target.value) }),
            },
            Array.from({ length: count }, (_, i) =>
              el("option", { value: i, selected: i === value }, i + 1),
            ),
          ),
        ),
      );
    select("layer", kind.layers.length, layer);
    select("head", kind.layers[layer].shape[0], head);
    const role = map === "raw" && roleOf(page, kind.name, layer, head);
    body.append(
      el(
        "p",
        { class: "small soft" },
        role && [el("b", { "data-role": "" }, role), " · "],
        "measured accuracy: ",
        el(
          "span",
          { "data-truth": "" },
          page.truth(`${kind.name}.${layer}.${map === "raw" ? head : map}`),
        ),
        block > 1 && ` · each cell is the largest weight of ${block} × ${block} tokens`,
      ),
    );
    const left = el("div", { class: "map" }),
      right = el("div"),
      said = el("p", { class: "says", role: "status" });
    body.append(el("div", { class: "row" }, left, right), said);
    const lines =
      Math.max(rows.length, C) <= 80 && drawLines(right, rows, columns, (row) => page.set({ row }));
    const home = clamp(
      page.state.row ?? (cross ? 0 : page.stream(kind.rows).special.indexOf(false)),
      0,
      rows.length - 1,
    );
    const say = (/** @type {number} */ r) => {
      const weights = Array.from(data.subarray(r * C, (r + 1) * C));
      const row = weights
        .map((size, c) => /** @type {[size: number, column: number]} */ ([size, c]))
        .filter(([size]) => size)
        .sort((a, b) => Math.abs(b[0]) - Math.abs(a[0]));
      if (lines) lines(r, row);
      const words = page.stream(kind.rows).pieces.slice(r * block, (r + 1) * block);
      const read = ` (${block > 1 ? "" : "after "}“${words.join(" ")}”)`;
      said.replaceChildren();
      fill(said, null, [
        el("b", {}, rows[r]),
        cross || block > 1 ? read : "",
        row.length ? " attends to " : ": all weights are zero",
        row
          .slice(0, FEW)
          .map(([size, c], i) => [
            i ? ", " : "",
            columns[c] + " ",
            el("span", { class: "num soft", "data-column": c, "data-value": size }, number(size)),
          ]),
      ]);
    };
    heatmap(left, {
      data,
      rows,
      columns,
      scale: view.scale,
      row: home,
      width: body.clientWidth - (body.clientWidth > 760 && lines ? 330 : 0),
      label: `${name}: weights of ${rows.length} by ${C} tokens`,
      onhover: (r) => say(r ?? home),
      onclick: (r) => page.set({ row: r }),
    });
    legend(left, {
      ...view.scale,
      label: view.difference ? "difference of attention weights" : "attention weight",
    });
    say(home);
    if (block > 1) drawPinned(body, kind, layer, head, page);
    else if (cross && !view.difference && !page.stream(kind.columns).short) {
      const text = pharaoh(data, page, kind);
      body.append(
        el(
          "p",
          { class: "small" },
          el("span", { class: "soft" }, "word alignment (source-target, counted from 0): "),
          el("code", { "data-pharaoh": "" }, text),
          " ",
          el(
            "button",
            {
              class: "chip noexport",
              onclick: () => save(new Blob([text + "\n"]), "alignment.txt"),
            },
            "Save as Pharaoh",
          ),
        ),
      );
    }
  },
};
