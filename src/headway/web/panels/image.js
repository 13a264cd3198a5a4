// @ts-check
// An image or a video with the map of each word over it. Maps are interpolated; numbers are those of
// the patches.

/** @typedef {"light" | "fog" | "heat"} Style */

/**
 * Canvases of the frames, by their data.
 * @type {WeakMap<Floats<4>, HTMLCanvasElement[]>}
 */
const images = new WeakMap();

/**
 * The frames as canvases. Only the last look contains them, not the checkpoints.
 * @param {Page} page
 * @returns {HTMLCanvasElement[]}
 */
function framesOf(page) {
  const [frames] = page.data.looks.flatMap((look) => look.sections.image?.frames ?? []).slice(-1);
  const known = images.get(frames);
  if (known) return known;
  const [T, Y, X, C] = frames.shape;
  const made = Array.from({ length: T }, (_, t) => {
    const canvas = el("canvas", { width: X, height: Y }),
      brush = brushOf(canvas),
      image = brush.createImageData(X, Y),
      from = t * Y * X * C;
    for (let i = 0; i < Y * X; i++)
      for (let c = 0; c < 4; c++)
        image.data[4 * i + c] = c === 3 ? 255 : frames[from + i * C + Math.min(c, C - 1)];
    brush.putImageData(image, 0, 0);
    return canvas;
  });
  images.set(frames, made);
  return made;
}

/**
 * The selected layer, head and map, and the index of the selected word.
 * @param {ImageSection} section
 * @param {Page} page
 */
function pick(section, page) {
  const { state } = page,
    { first, heads, maps, groups } = section;
  const layer = clamp(state.layer ?? first.layer, 0, Math.max(0, heads.length - 1)),
    head = clamp(state.head ?? first.head, 0, (heads[layer]?.shape[0] ?? 1) - 1);
  const known = [...(heads.length ? ["head", "mean", "max"] : []), ...maps.map(({ key }) => key)];
  const isFirst = (state.layer === undefined && state.head === undefined) || !heads.length;
  const map = known.find((one) => one === state.imageMap) ?? (isFirst ? first.map : "head");
  const at = groups.findIndex(({ rows }) =>
    rows.some((r) => (page.look.outputs[r].row ?? 0) >= (state.row ?? 0)),
  );
  return { layer, head, map, at: state.row === undefined ? bestWord(groups) : Math.max(0, at) };
}

/**
 * The first word with more than two letters: short words are rarely informative.
 * @param {WordGroup[]} groups
 */
const bestWord = (groups) =>
  Math.max(
    0,
    groups.findIndex(({ name, word }) => word >= 0 && name.length > 2),
  );

/**
 * The map of a word: the mean over its pieces, one weight per special row, then one per patch.
 * @param {ImageSection} section
 * @param {{map: string, layer: number, head: number}} now
 * @param {number} at
 */
function weightsOf(section, { map, layer, head }, at) {
  const { rows } = section.groups[at],
    whole = section.maps.find(({ key }) => key === map)?.weights,
    all = section.heads[layer];
  const [H, R] = whole ? [0, 0] : all.shape,
    S = whole ? whole.shape[1] : all.shape[2];
  const out = new Float32Array(S);
  for (const r of rows) {
    for (let s = 0; s < S; s++) {
      let x = whole ? whole[r * S + s] : map === "head" ? all[(head * R + r) * S + s] : 0;
      if (map === "mean" || map === "max")
        for (let h = 0; h < H; h++) {
          const y = all[(h * R + r) * S + s];
          x = map === "max" ? Math.max(x, y) : x + y / H;
        }
      out[s] += x / rows.length;
    }
  }
  return out;
}

/**
 * The cells interpolated by a cubic in each direction (Catmull and Rom), never below zero.
 * @param {Float32Array} cells
 * @param {number} Y
 * @param {number} X
 * @param {number} size
 */
function smooth(cells, Y, X, size) {
  /** @type {(n: number, at: number) => [weight: number, cell: number][]} */
  const line = (n, at) => {
    const place = clamp(at * n - 0.5, 0, n - 1),
      i = Math.floor(place),
      t = place - i;
    const w = [
      -t + 2 * t * t - t ** 3,
      2 - 5 * t * t + 3 * t ** 3,
      t + 4 * t * t - 3 * t ** 3,
      t ** 3 - t * t,
    ];
    return w.map((x, k) => [x / 2, clamp(i + k - 1, 0, n - 1)]);
  };
  const across = Array.from({ length: size }, (_, x) => line(X, (x + 0.5) / size)),
    out = new Float32Array(size * size);
  for (let y = 0; y < size; y++) {
    const down = line(Y, (y + 0.5) / size);
    for (let x = 0; x < size; x++) {
      let sum = 0;
      for (const [a, r] of down) for (const [b, c] of across[x]) sum += a * b * cells[r * X + c];
      out[y * size + x] = Math.max(0, sum);
    }
  }
  return out;
}

/**
 * Draws the outline of the weights of at least `level`; white on dark, so that it is visible on any
 * image.
 * @param {CanvasRenderingContext2D} brush
 * @param {Float32Array} field
 * @param {number} n
 * @param {number} level
 * @param {number[]} box left, top, width and height
 * @param {number} thick
 */
function outline(brush, field, n, level, [left, top, wide, tall], thick) {
  const path = new Path2D(),
    at = (/** @type {number} */ x, /** @type {number} */ y) => field[y * n + x] - level;
  for (let y = 0; y < n - 1; y++) {
    for (let x = 0; x < n - 1; x++) {
      const corners = [
        [x, y],
        [x + 1, y],
        [x + 1, y + 1],
        [x, y + 1],
      ];
      /** @type {[x: number, y: number][]} */
      const hits = [];
      corners.forEach(([a, b], i) => {
        const [c, d] = corners[(i + 1) % 4],
          p = at(a, b),
          q = at(c, d),
          t = p / (p - q);
        if (p >= 0 !== q >= 0)
          hits.push([
            left + ((a + t * (c - a) + 0.5) / n) * wide,
            top + ((b + t * (d - b) + 0.5) / n) * tall,
          ]);
      });
      for (let i = 0; i + 1 < hits.length; i += 2) {
        path.moveTo(...hits[i]);
        path.lineTo(...hits[i + 1]);
      }
    }
  }
  for (const { wider, paint } of [
    { wider: 3, paint: "#10141c" },
    { wider: 1, paint: "#fff" },
  ]) {
    brush.lineWidth = thick * wider;
    brush.strokeStyle = paint;
    brush.stroke(path);
  }
}

/** Colours over the image. */
const VEIL = { light: [8, 10, 14], fog: [236, 240, 246] };

/**
 * Draws one frame with its map: clear where weights are large and dark or foggy elsewhere, or warm
 * colours there.
 * @param {HTMLCanvasElement} canvas
 * @param {HTMLCanvasElement} image
 * @param {Float32Array} cells
 * @param {ImageSection} section
 * @param {{width: number, high: number, style: Style, strength: number}} options
 */
function overlay(canvas, image, cells, section, { width, high, style, strength }) {
  const [, Y, X] = section.grid,
    { origin, step } = section.cells,
    sharp = window.devicePixelRatio || 1,
    fine = width > 150 ? 96 : 40;
  const height = Math.round((width * image.height) / image.width),
    brush = brushOf(canvas);
  [canvas.width, canvas.height] = [width * sharp, height * sharp];
  Object.assign(canvas.style, { width: width + "px", height: height + "px" });
  brush.imageSmoothingEnabled = image.width >= 128;
  brush.drawImage(image, 0, 0, canvas.width, canvas.height);
  const veil = el("canvas", { width: fine, height: fine }),
    veiled = brushOf(veil).createImageData(fine, fine),
    field = smooth(cells, Y, X, fine);
  field.forEach((x, i) => {
    const share = clamp(x / (high || 1), 0, 1),
      rgb = style === "heat" ? colour(0.35 + 0.5 * share, "oranges") : VEIL[style];
    veiled.data.set(
      [...rgb, 255 * strength * (style === "heat" ? Math.sqrt(share) : 1 - share)],
      4 * i,
    );
  });
  brushOf(veil).putImageData(veiled, 0, 0);
  brush.imageSmoothingEnabled = true;
  brush.imageSmoothingQuality = "high";
  const [left, top, wide, tall] = [origin[1], origin[0], step[1] * X, step[0] * Y].map(
    (x, i) => x * (i % 2 ? canvas.height : canvas.width),
  );
  if (style !== "heat" && (left || top || wide < canvas.width - 1 || tall < canvas.height - 1)) {
    brush.fillStyle = `rgba(${VEIL[style]},${strength})`; // pixels that no patch covers
    brush.fillRect(0, 0, canvas.width, top);
    brush.fillRect(0, top + tall, canvas.width, canvas.height);
    brush.fillRect(0, top, left, tall);
    brush.fillRect(left + wide, top, canvas.width, tall);
  }
  brush.drawImage(veil, left, top, wide, tall);
  if (strength && high > 0)
    outline(
      brush,
      field,
      fine,
      high / 2,
      [left, top, wide, tall],
      sharp * (width > 150 ? 1.5 : 0.8),
    );
}

/** @param {Float32Array} cells */
const most = (cells) => cells.reduce((a, b) => Math.max(a, b), 0);

/**
 * @param {ImageSection} section
 * @param {number} t
 */
const timeOf = ({ tubelet: n }, t) =>
  n > 1 ? `frames ${t * n + 1}–${(t + 1) * n}` : `frame ${t + 1}`;

PANELS.image = {
  title: "Image",
  frames: framesOf,
  limits(section, page) {
    const { layer, head, at } = pick(section, page),
      last = page.look.outputs.at(-1)?.row ?? 0;
    return {
      layer: section.heads.length,
      head: section.heads[layer]?.shape[0] ?? 0,
      row: last + 1,
      now: {
        kind: section.kind,
        layer,
        head,
        row: page.look.outputs[section.groups[at].rows[0]].row ?? 0,
      },
    };
  },
  draw(host, section, page) {
    const now = pick(section, page),
      { layer, head, map, at } = now,
      { kind, grid, extra, groups, maps } = section,
      [T, Y, X] = grid,
      frames = framesOf(page);
    const styles = /** @type {Style[]} */ (["light", "fog", "heat"]),
      style = styles.find((one) => one === page.state.imageStyle) ?? section.style,
      opacity = clamp(Number(page.state.imageOpacity ?? 75) || 0, 0, 100),
      look = { style, strength: opacity / 100 };
    const whole = maps.find(({ key }) => key === map),
      word = groups[at].name,
      writes = groups.length > 1 || groups[0].word >= 0;
    const name = whole
      ? whole.label
      : map === "head"
        ? page.head(kind, layer, head)
        : `${kind} ${layer + 1}, ${map} over heads`;
    const key = whole ? map : `${kind}.${layer}.${map === "head" ? head : map}`,
      pieces = page.stream(kind === "cross" ? "source" : "image").pieces;
    if (!whole) page.shown = { kind, layer, head };
    const weights = weightsOf(section, now, at),
      cells = weights.subarray(extra),
      high = most(cells);
    const body = frame(host, {
      title: writes
        ? `Image regions used for “${word}”`
        : `Image regions used for the prediction “${word}”`,
      name: "image",
      hint: `${style === "heat" ? "Warm colours mark" : "Clear areas have"} the largest weights, interpolated between patches. The outline encloses weights of at least half the maximum. Hover over the image for values. ${T > 1 ? "Each frame represents one part of the video." : ""}`,
      csv: () => [
        ["word", "patch", "weight"],
        ...groups.flatMap((group, g) =>
          [...weightsOf(section, now, g)].map((x, i) => [group.name, pieces[i], x]),
        ),
      ],
    });
    const sides = body.appendChild(el("div", { class: "row" })),
      strip = el("div", { class: "frames" }),
      side = el("div", { class: "beside" });
    sides.append(strip, side);
    const room = Math.min(host.clientWidth - 34, 900),
      wide =
        T > 1
          ? clamp(Math.floor(Math.min(room, 620) / Math.min(T, room < 500 ? 2 : 4)) - 8, 90, 210)
          : Math.min(room, 400);
    const says = el("p", { class: "says num small", role: "status" }),
      best = cells.indexOf(high);
    const tell = (/** @type {number} */ i) =>
      says.replaceChildren(
        pieces[extra + i] + " ",
        el("b", { "data-value": cells[i], "data-place": extra + i }, number(cells[i], 4)),
      );
    frames.forEach((image, t) => {
      const canvas = el("canvas", {
        class: "seen",
        role: "img",
        "aria-label": `${T > 1 ? timeOf(section, t) + " of the video" : "the image"} with the map ${name} of ${word}`,
        "data-frame": t,
      });
      strip.append(
        el(
          "figure",
          {},
          canvas,
          T > 1 && el("figcaption", { class: "small soft" }, timeOf(section, t)),
        ),
      );
      overlay(canvas, image, cells.subarray(t * Y * X, (t + 1) * Y * X), section, {
        width: wide,
        high,
        ...look,
      });
      canvas.onpointermove = (event) => {
        const box = canvas.getBoundingClientRect(),
          cell = (/** @type {number} */ share, /** @type {0 | 1} */ axis) =>
            Math.floor((share - section.cells.origin[axis]) / section.cells.step[axis]),
          y = cell((event.clientY - box.top) / box.height, 0),
          x = cell((event.clientX - box.left) / box.width, 1);
        if (x < 0 || y < 0 || x >= X || y >= Y) return tip(null);
        const i = (t * Y + y) * X + x;
        tell(i);
        return tip(event, `${pieces[extra + i]}  ${number(cells[i], 4)}`);
      };
      canvas.onpointerleave = () => {
        tip(null);
        tell(best);
      };
    });
    if (writes) {
      tokens(
        side,
        {
          pieces: groups.map((group) => group.name),
          special: groups.map((group) => group.word < 0),
        },
        { picked: at, onclick: (g) => page.set({ row: page.look.outputs[groups[g].rows[0]].row }) },
      );
    }
    const ofHeads = [
      { key: "head", label: "one head" },
      { key: "mean", label: "mean of heads" },
      { key: "max", label: "max of heads" },
    ];
    chips(
      side,
      [
        ...(section.heads.length ? ofHeads : []),
        ...maps.map((one) => ({ key: one.key, label: one.label, title: one.how })),
      ],
      map,
      (imageMap) => page.set({ imageMap }),
    );
    const bar = side.appendChild(el("div", { class: "row noexport small soft" }));
    /** @type {(label: "layer" | "head", count: number, value: number) => void} */
    const select = (label, count, value) =>
      bar.append(
        el(
          "label",
          {},
          label + " ",
          el(
            "select",
            {
              "data-key": label,
              onchange: (event) =>
                page.set({
                  kind,
                  [label]: Number(event.target.value),
                  imageMap: label === "head" || whole ? "head" : map,
                }),
            },
            Array.from({ length: count }, (_, i) =>
              el("option", { value: i, selected: i === value }, i + 1),
            ),
          ),
        ),
      );
    if (!whole) select("layer", section.heads.length, layer);
    if (map === "head") select("head", section.heads[layer].shape[0], head);
    chips(
      bar,
      styles.map((one) => ({ key: one })),
      style,
      (imageStyle) => page.set({ imageStyle }),
    );
    bar.append(
      el(
        "label",
        {},
        "strength ",
        el("input", {
          type: "range",
          min: 0,
          max: 100,
          value: opacity,
          "data-key": "opacity",
          oninput: (event) => page.set({ imageOpacity: event.target.value }),
        }),
      ),
    );
    tell(best);
    const first = weights.subarray(0, extra).reduce((a, b) => a + b, 0),
      sum = weights.reduce((a, b) => a + b, 0);
    side.append(
      el(
        "p",
        { class: "small" },
        whole ? whole.how : `${name}.`,
        " Maximum: ",
        el("b", {}, pieces[extra + best]),
        `, ${number(high, 3)} of ${number(sum, 3)} in total.`,
        extra > 0 && first > 0
          ? ` The special tokens before the patches have ${percent(first / sum)}.`
          : "",
      ),
      says,
      el(
        "p",
        { class: "note small" },
        el("b", { "data-truth": key }, `Measured accuracy: ${page.truth(key)}. `),
        section.first.measured &&
          /** @type {const} */ (["map", "layer", "head"]).every(
            (one) => now[one] === section.first[one],
          )
          ? "This map is shown first because its measured accuracy is the highest on this page. "
          : "",
        section.caution,
      ),
    );
    if (section.skipped.length)
      side.append(
        el(
          "p",
          { class: "small soft" },
          section.skipped.map(([label, why]) => `${label}: ${why}. `),
        ),
      );

    /** @type {(cells: Float32Array, label: string, picked: boolean, onclick: () => void, width?: number) => HTMLElement} */
    const small = (cells, label, picked, onclick, width = 104) => {
      const canvas = el("canvas", { "aria-hidden": "true" }),
        sums = Array.from({ length: T }, (_, t) =>
          cells.subarray(t * Y * X, (t + 1) * Y * X).reduce((a, b) => a + b, 0),
        ),
        t = sums.indexOf(Math.max(...sums));
      overlay(canvas, frames[t], cells.subarray(t * Y * X, (t + 1) * Y * X), section, {
        width,
        high: most(cells),
        ...look,
      });
      return el(
        "button",
        {
          class: picked ? "picked" : null,
          "aria-pressed": String(picked),
          onclick,
          title: T > 1 ? timeOf(section, t) : null,
        },
        canvas,
        el("span", { class: "small" }, label),
      );
    };
    if (groups.length > 1) {
      const grid = frame(host, {
        title: "Word by word",
        name: "words",
        hint: `The map “${name}” for each word, each on its own scale. ${T > 1 ? "For a video, the frame with the largest total weight is shown. " : ""}Click a map to enlarge it.`,
      }).appendChild(el("div", { class: "seengrid" }));
      groups.forEach((group, g) =>
        grid.append(
          small(weightsOf(section, now, g).subarray(extra), group.name, g === at, () =>
            page.set({ row: page.look.outputs[group.rows[0]].row }),
          ),
        ),
      );
    }
    if (!section.heads.length) return;
    const all = frame(host, {
        title: "All heads",
        name: "image-heads",
        hint: `Attention of “${word}” in every head of every layer (last layer on top). Click a map to enlarge it.`,
      }),
      n = Math.max(...section.heads.map(({ shape }) => shape[0])),
      side2 = clamp(Math.floor((host.clientWidth - 60) / n) - 8, 34, 96);
    const table2 = all.appendChild(el("div", { class: "scroll" })).appendChild(
      el("div", {
        class: "seengrid heads",
        style: `grid-template-columns:16px repeat(${n},${side2}px)`,
      }),
    );
    section.heads
      .map(({ shape }, l) => [
        el("i", { class: "small soft" }, l + 1),
        ...Array.from({ length: n }, (_, h) =>
          h < shape[0]
            ? small(
                weightsOf(section, { map: "head", layer: l, head: h }, at).subarray(extra),
                "",
                map === "head" && l === layer && h === head,
                () => page.set({ kind, layer: l, head: h, imageMap: "head" }),
                side2,
              )
            : el("i"),
        ),
      ])
      .reverse()
      .forEach((row) => {
        row.slice(1).forEach((node, h) => {
          node.title = page.head(kind, Number(row[0].textContent) - 1, h);
          node.setAttribute("aria-label", node.title);
        });
        table2.append(...row);
      });
  },
};
