// @ts-check
// Positional encodings: the table as an image, its similarity kernel, shifts, slow dimensions and use.

/** @type {Record<PositionKind, string>} */
const KINDS = {
  learned: "A trained vector for each position, added to the token embedding",
  sinusoidal:
    "Alternating sines and cosines, from high frequency (left) to low (right), added to the token embedding",
  "sinusoidal-halves":
    "All sines, then all cosines, each from high to low frequency, added to the token embedding",
  rotary:
    "Cosines (left half) and sines (right half) of the angles by which queries and keys are rotated",
  alibi: "A penalty that grows with the distance, with a different slope for each head",
  relative: "A trained bias for each head and distance",
};

/**
 * A matrix as an image, with its values beside the pointer.
 * @param {Element} host
 * @param {Floats<2>} data
 * @param {number} size
 * @param {number} tall
 * @param {string} across
 * @param {string} down
 */
function codeImage(host, data, size, tall, across, down) {
  const [R, C] = data.shape,
    small = { class: "small soft", style: "margin:0" };
  /** @type {(offset: number, whole: number, n: number) => number} */
  const cell = (offset, whole, n) => clamp(Math.floor((offset / whole) * n), 0, n - 1);
  const canvas = el("canvas", {
    width: C,
    height: R,
    role: "img",
    "aria-label": `${down} by ${across}`,
    class: "code",
    style: `max-width:${C * 7}px;height:${R * tall}px`,
    onpointermove: (event) => {
      const c = cell(event.offsetX, canvas.clientWidth, C),
        r = cell(event.offsetY, canvas.clientHeight, R);
      tip(event, `${down} ${r + 1}, ${across} ${c + 1}: ${number(data[r * C + c])}`);
    },
    onpointerleave: () => tip(null),
  });
  const brush = brushOf(canvas),
    image = brush.createImageData(C, R);
  drawCells(image, data, R, C, -size, size, "diverging");
  brush.putImageData(image, 0, 0);
  host.append(el("p", small, `${across} 1 … ${C} →`), canvas, el("p", small, `↑ ${down} 1 … ${R}`));
}

/**
 * @param {string} name
 * @param {number | string} value
 * @param {string} text
 */
const fact = (name, value, text) =>
  el(
    "p",
    {},
    text,
    el(
      "b",
      { class: "num", "data-fact": name, "data-value": value },
      typeof value === "number" ? number(value) : value,
    ),
  );

/** @param {string} text */
const said = (text) => el("p", { class: "small soft" }, text);

/** @type {(values: Float32Array, from?: number) => Point[]} */
const points = (values, from = 1) => Array.from(values, (y, i) => [i + from, y]);

/**
 * @param {HTMLElement} host
 * @param {PositionBias} code
 * @param {string} name
 */
function biases(host, { bias, distances, kind }, name) {
  /** @type {Series[]} */
  const heads = Array.from({ length: bias.shape[0] }, (_, h) => ({
    name: "head " + (h + 1),
    points: distances.map((d, i) => [d, sub(bias, h, i)]),
  }));
  const body = frame(host, {
    title: `Positional encoding${name}`,
    name: "positions",
    hint: `${KINDS[kind]}. It is added to the attention scores: distances with larger values get more attention.`,
    csv: () => [
      ["distance", ...heads.map((head) => head.name)],
      ...distances.map((d, i) => [d, ...heads.map((head) => head.points[i][1])]),
    ],
  });
  lines(body, {
    series: heads,
    x: "distance (key position − query position)",
    y: "added to the score",
    height: 280,
  });
}

/**
 * @param {Element} host
 * @param {PositionTable} code
 */
function shifts(host, { turn, shifts: all }) {
  /** @type {(name: string, title: string) => Column} */
  const column = (name, title) => ({ name, title });
  const one = all.at(0),
    exact = turn ? [column("turned", "largest error of the rotation, in fp32")] : [];
  if (!one) return;
  host.append(el("h3", {}, "Is a shift by k positions one fixed matrix?"));
  table(
    host,
    [
      "k",
      ...exact,
      column("fitted", "relative error of a least-squares fit, on the positions of the fit"),
      column("next positions", "relative error of the same matrix on the positions that follow"),
      ...(turn
        ? [
            column(
              "in 2×2 blocks",
              "relative error of a fit for each pair, on the positions that follow",
            ),
          ]
        : []),
    ],
    all.map(({ k, exact: error, fitted, tested, blocks }) =>
      turn ? [k, error, fitted, tested, blocks] : [k, fitted, tested],
    ),
  );
  host.append(
    said(
      turn
        ? `Yes: code(p + 1) = R·code(p) for every position p, with an error of at most ${number(one.exact, 1)}. But an unconstrained fit, which is accurate on its own positions, is off by ${percent(one.tested)} on the next ones, because pairs of low frequency look alike.`
        : `A matrix fitted on the first positions is off by ${percent(one.tested)} on the next ones.`,
    ),
  );
  if (turn) {
    host.append(
      said(
        "R for a shift by one position, pairs of the highest frequency: each pair is rotated by its own angle.",
      ),
    );
    codeImage(host, turn, 1, 7, "column", "row");
  }
}

/**
 * @param {HTMLElement} host
 * @param {PositionTable} code
 * @param {string} name
 */
function tables(host, code, name) {
  const { colours: size, spread, kernel, use, use_spearman: rho } = code,
    rotary = code.kind === "rotary";
  const body = frame(host, {
    title: `Positional encoding${name}`,
    name: "positions",
    hint: `${KINDS[code.kind]}. Rows are positions, columns are dimensions.`,
    csv: () =>
      Array.from({ length: code.image.shape[0] }, (_, r) => Array.from(sub(code.image, r))),
  });
  codeImage(body, code.image, size, 5, "dimension", "position");
  legend(body, { low: -size, high: size, map: "diverging" });
  const pair = el("div", { class: "grid2" }, el("div"), el("div"));
  frame(host, {
    title: "Similarity of two positions",
    name: "kernel",
    hint: "Cosine similarity of two encodings by distance. A good encoding falls steadily and does not rise again.",
    csv: () => [
      ["distance", "cosine", "spread"],
      ...Array.from(kernel, (k, d) => [d, k, spread[d]]),
    ],
  }).append(pair);
  /** @type {(label: string, by: number) => Series} */
  const curve = (label, by) => ({
    name: label,
    points: points(
      kernel.map((k, d) => k + by * spread[d]),
      0,
    ),
  });
  lines(pair.children[0], {
    series: [
      curve("mean over all positions", 0),
      ...(Math.max(...spread) > 0.01
        ? [curve("plus one standard deviation", 1), curve("minus one standard deviation", -1)]
        : []),
    ],
    x: "distance in positions",
    y: "cosine",
  });
  pair.children[0].append(
    fact(
      "twin",
      code.twin,
      `The two most similar positions are ${code.twin_apart} apart. Distance of their unit vectors: `,
    ),
    fact(
      "spearman",
      code.kernel_spearman,
      "Rank correlation of distance in positions and distance of vectors (1: similarity always falls with distance): ",
    ),
  );
  shifts(pair.children[1], code);
  const third = frame(host, {
    title: rotary ? "Frequencies used by queries and keys" : "Dimensions that are free for meaning",
    name: "use",
    hint: rotary
      ? "Product of the norms of query and key weights, and the frequency of each pair."
      : "Dimensions in which the encoding hardly changes are free. The lines show the variance of the encoding and of the token embeddings.",
    csv: () => [
      ["dimension", "code", "use"],
      ...Array.from(use, (u, i) => [i + 1, code.code_use[i], u]),
    ],
  });
  third.append(
    fact(
      "slow",
      percent(code.slow_here),
      `Dimensions that change by less than a tenth over ${code.n_places} positions: `,
    ),
    said(
      "By length: " + code.slow.map(([n, share]) => `${percent(share)} at ${n}`).join(", ") + ".",
    ),
  );
  const [one, other, unit] = rotary
    ? ["frequency", "queries × keys", "pair"]
    : ["variance of the encoding", "variance of the embeddings", "dimension"];
  lines(third, {
    series: [
      { name: one, points: points(code.code_use) },
      { name: other, points: points(use) },
    ],
    x: `${unit} 1 … ${use.length}`,
    y: "fraction of the maximum",
  });
  third.append(
    fact(
      "use",
      rho,
      "Rank correlation of the two lines (1: they rise and fall together, −1: opposite): ",
    ),
    said(
      Math.abs(rho) < 0.2
        ? "No clear pattern."
        : rotary
          ? `Pairs of ${rho < 0 ? "low" : "high"} frequency are used more.`
          : rho < 0
            ? "The embeddings use mostly dimensions in which the encoding changes little."
            : "Both vary in the same dimensions.",
    ),
  );
}

PANELS.positions = {
  title: "Positions",
  draw(host, section) {
    for (const code of section.codes) {
      const name = code.stacks.length > 1 || code.stacks[0] === "self" ? "" : `, ${code.stacks[0]}`;
      if (code.bias) biases(host, code, name);
      else tables(host, code, name);
    }
  },
};
