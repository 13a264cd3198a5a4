// @ts-check
// One token through one layer. Each step is recomputed here from the values that are shown
// and compared with the values of the model.

/**
 * Component `i` of the output vector, which is number `r` of the recomputed values.
 * @template {keyof WalkStep} K
 * @typedef {{s: StepWith<K>, x: Float32Array[], i: number, r: number, all: string[], from: string}} Place
 */

/**
 * @template {keyof WalkStep} K
 * @typedef {[compute: (s: StepWith<K>, x: Float32Array[]) => number[], formula: (at: Place<K>) => string]} Kind
 */

/**
 * A number as a subscript.
 * @param {number} n
 */
const below = (n) => String(n).replace(/\d/g, (digit) => "₀₁₂₃₄₅₆₇₈₉"[Number(digit)]);

/**
 * The dot product of `b` and the part of `a` that begins at `at`.
 * @type {(a: Numbers, b: Numbers, at?: number) => number}
 */
const dot = (a, b, at = 0) => {
  let sum = 0;
  for (let i = 0; i < b.length; i++) sum += a[at + i] * b[i];
  return sum;
};

/**
 * The index of the value that is furthest from zero.
 * @param {number[] | Float32Array} list
 */
const largest = (list) => {
  let best = 0;
  for (let i = 1; i < list.length; i++) if (Math.abs(list[i]) > Math.abs(list[best])) best = i;
  return best;
};

/**
 * The three largest products, as text.
 * @param {{a: number, b?: number, name: string}[]} pairs
 */
const times = (pairs) =>
  pairs
    .sort((p, q) => Math.abs(q.a * (q.b ?? 1)) - Math.abs(p.a * (p.b ?? 1)))
    .slice(0, 3)
    .map(({ a, name }) => `${number(a)}·${name}`)
    .join(" + ");

/**
 * The error function, to five digits (Abramowitz and Stegun, 7.1.25).
 * @param {number} x
 */
function erf(x) {
  const t = 1 / (1 + 0.47047 * Math.abs(x));
  return Math.sign(x) * (1 - t * (0.3480242 - t * (0.0958798 - t * 0.7478556)) * Math.exp(-x * x));
}

const gelu = (/** @type {number} */ x) => (x * (1 + erf(x / Math.SQRT2))) / 2,
  silu = (/** @type {number} */ x) => x / (1 + Math.exp(-x)),
  relu = (/** @type {number} */ x) => Math.max(0, x);

/**
 * GELU with tanh.
 * @param {number} x
 */
const near = (x) => (x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3)))) / 2;

/** @type {Record<string, (x: number) => number>} */
const ACTS = {
  relu,
  relu2: (x) => relu(x) ** 2,
  gelu,
  silu,
  "gelu-tanh": near,
  swiglu: silu,
  geglu: gelu,
  "geglu-tanh": near,
};

/**
 * By kind of step: the result computed from the inputs, and the formula for its largest value.
 * @type {Record<string, [compute: (s: any, x: Float32Array[]) => number[], formula: (at: any) => string]>}
 */
const KINDS = {
  norm: /** @type {Kind<"weight" | "eps">} */ ([
    (s, [x]) => {
      const n = x.length,
        mean = s.centred ? x.reduce((a, b) => a + b) / n : 0,
        spread = Math.sqrt(x.reduce((a, b) => a + (b - mean) ** 2, 0) / n + s.eps);
      Object.assign(s, { mean, spread });
      return Array.from(
        x,
        (value, i) => ((value - mean) / spread) * s.weight[i] + (s.bias ? s.bias[i] : 0),
      );
    },
    ({ s, x: [x], i, from }) =>
      `(${from}[${i + 1}] − mean) / spread · w + b = (${number(x[i])} − ${number(s.mean)}) / ${number(s.spread)} · ${number(s.weight[i])} + ${number(s.bias ? s.bias[i] : 0)}`,
  ]),
  linear: /** @type {Kind<"rows" | "weight">} */ ([
    (s, [x]) =>
      Array.from(s.rows, (_, r) => dot(s.weight, x, r * x.length) + (s.bias ? s.bias[r] : 0)),
    ({ s, x: [x], r, from }) =>
      `row ${(s.from_rows || s.rows)[r] + 1} of W · ${from} = ${times(Array.from(x, (b, j) => ({ a: s.weight[r * x.length + j], b, name: number(b) })))} + … (${x.length} products${s.bias ? " and a bias" : ""})`,
  ]),
  rotary: /** @type {Kind<"cos" | "sin">} */ ([
    (s, [x]) => {
      const half = x.length / 2;
      return Array.from(x, (_, i) =>
        i < half
          ? x[i] * s.cos[i] - x[i + half] * s.sin[i]
          : x[i] * s.cos[i - half] + x[i - half] * s.sin[i - half],
      );
    },
    ({ s, x: [x], i }) => {
      const half = x.length / 2,
        k = i % half,
        [sign, other] = i < half ? ["−", i + half] : ["+", k];
      return `${number(x[i])}·${number(s.cos[k])} ${sign} ${number(x[Number(other)])}·${number(s.sin[k])}`;
    },
  ]),
  scores: /** @type {Kind<"shown" | "keys" | "scale" | "bias" | "columns">} */ ([
    (s, [q]) =>
      Array.from({ length: s.shown }, (_, t) => dot(s.keys, q, t * q.length) * s.scale + s.bias[t]),
    ({ s, x: [q], r }) => {
      const n = q.length,
        root = Math.abs(s.scale * Math.sqrt(n) - 1) < 1e-6,
        by = root ? `/ √${n}` : `× ${number(s.scale)}`;
      return `q·k${below(s.columns[r] + 1)} ${by} + bias = ${number(dot(s.keys, q, r * n))} ${by} + ${number(s.bias[r])}`.replace(
        / \+ (bias|0$)/g,
        s.bias[r] ? "$&" : "",
      );
    },
  ]),
  softmax: /** @type {Kind<never>} */ ([
    (s, [x]) => {
      const top = Math.max(...x),
        parts = Array.from(x, (value) => Math.exp(value - top)),
        all = parts.reduce((a, b) => a + b);
      return parts.map((part) => part / all);
    },
    ({ x: [x], r }) => `e^${number(x[r])} / (sum of e^score over ${x.length} tokens)`,
  ]),
  mix: /** @type {Kind<"rest" | "vectors">} */ ([
    (s, [shares]) =>
      Array.from(s.rest, (rest, i) =>
        shares.reduce((sum, share, t) => sum + share * s.vectors[t * s.rest.length + i], rest),
      ),
    ({ s, x: [shares] }) =>
      times(
        Array.from(shares, (a, t) => ({
          a,
          name: (s.neurons ? "w" : "v") + below((s.neurons ?? s.columns ?? [])[t] + 1),
        })),
      ) + " + …",
  ]),
  activation: /** @type {Kind<"activation" | "neurons">} */ ([
    (s, [u]) =>
      Array.from(
        s.neurons,
        (_, i) =>
          ACTS[s.activation](u[i]) * (u.length > s.neurons.length ? u[s.neurons.length + i] : 1),
      ),
    ({ s, x: [u], r }) =>
      `${s.activation}(${number(u[r])}${u.length > s.neurons.length ? ", " + number(u[s.neurons.length + r]) : ""})`,
  ]),
  add: /** @type {Kind<never>} */ ([
    (s, parts) => Array.from(parts[0], (_, i) => parts.reduce((sum, part) => sum + part[i], 0)),
    ({ x, i, all }) =>
      `${all.map((name) => `${name}[${i + 1}]`).join(" + ")} = ${x.map((part) => number(part[i])).join(" + ")}`,
  ]),
};

/**
 * Draws a vector as a strip of colours.
 * @param {Element} box
 * @param {string} name
 * @param {Float32Array} values
 * @param {number} [from]
 * @param {number} [count]
 * @param {string | null} [note]
 */
function strip(box, name, values, from = 0, count = values.length, note = null) {
  const part = values.subarray(from, from + count),
    size = Math.abs(part[largest(part)]) || 1;
  const canvas = el("canvas", {
    width: count,
    height: 1,
    role: "img",
    "aria-label": name,
    onpointerleave: () => tip(null),
    onpointermove: (event) => {
      const i = clamp(Math.floor((event.offsetX / canvas.clientWidth) * count), 0, count - 1);
      tip(event, `${name}[${i + 1}] = ${number(part[i], 4)}`);
    },
  });
  const brush = brushOf(canvas),
    image = brush.createImageData(count, 1);
  drawCells(image, part, 1, count, -size, size, "diverging");
  brush.putImageData(image, 0, 0);
  box.append(
    el("span", { title: name }, name),
    canvas,
    el("span", { class: "num soft" }, note ?? "±" + number(size, 2)),
  );
}

/**
 * Recomputes all steps and compares them with the values of the model.
 * @param {WalkSection} section
 */
function check(section) {
  return section.steps.map((s) => {
    const x = s.inputs.map((name) => section.vectors[name]),
      real = section.vectors[s.out],
      size = Math.abs(real[largest(real)]) || 1;
    const [compute, formula] = KINDS[s.kind] ?? [];
    const values = compute?.(s, x) ?? [],
      rows = s.rows || [...values.keys()];
    return {
      x,
      values,
      rows,
      formula,
      worst: Math.max(0, ...values.map((value, i) => Math.abs(value - real[rows[i]]))) / size,
    };
  });
}

/**
 * @param {WalkSection} section
 * @param {Page} page
 * @param {WalkStep} s
 * @param {number} n
 * @param {ReturnType<typeof check>[number]} found
 */
function drawStep(
  { vectors: v, labels, streams },
  page,
  s,
  n,
  { x, values, rows, formula, worst },
) {
  const box = el("div", { class: "vec" }),
    body = el(
      "div",
      { class: "step" },
      el("b", {}, `${n + 1}. ${s.title}`),
      el("p", { class: "soft" }, s.words),
      box,
    );
  const { keys, vectors, neurons, others, rest, shown = 0, columns = [] } = s,
    out = v[s.out];
  const named = streams[s.out.split(".")[0]],
    token = (/** @type {number} */ t) =>
      `${columns[t] + 1} ${page.stream(named[1]).pieces[columns[t]]}`;
  if (keys) {
    const width = keys.shape[1];
    for (let t = 0; t < shown; t++) strip(box, token(t), keys, t * width, width, number(out[t]));
  } else if (vectors) {
    const width = vectors.shape[1];
    x[0].forEach((share, t) => {
      const name = neurons ? `neuron ${neurons[t] + 1}` : token(t);
      strip(box, name, vectors, t * width, width, "× " + number(share));
    });
  } else if (s.kind !== "softmax") s.inputs.forEach((name) => strip(box, labels[name], v[name]));
  if (others && rest) strip(box, `${others} others`, rest);
  if (s.kind === "softmax")
    bars(
      body,
      Array.from({ length: shown }, (_, t) => ({ label: token(t), value: out[t] })),
      { max: 1 },
    );
  else if (!keys) strip(box, labels[s.out], out);
  if (shown && shown < columns.length)
    body.append(
      el("p", { class: "small soft" }, `… and ${columns.length - shown} tokens with less weight.`),
    );
  if (!formula || !values.length) return body;
  const r = largest(values),
    i = rows[r],
    all = s.inputs.map((name) => labels[name]),
    place = s.kind === "mix" ? "" : shown ? below(columns[r] + 1) : `[${i + 1}]`;
  body.append(
    el(
      "div",
      { class: "sum num" },
      `${labels[s.out]}${place} = ${formula({ s, x, i, r, all, from: all[0] })}${place && " = " + number(values[r])}`,
    ),
    el(
      "span",
      { class: "small soft", "data-step": s.out, "data-value": worst },
      `${values.length} of ${out.length} values recomputed; largest relative difference ${number(worst, 1)}`,
    ),
  );
  return body;
}

/**
 * Menus for the token, which a served page can follow, or the command for it.
 * @param {WalkSection} section
 * @param {Page} page
 */
function choices({ at, n_heads, streams }, page) {
  const { live } = page;
  if (!live || !page.data.shared.live)
    return el(
      "p",
      { class: "small soft" },
      `Same as --walk ${at.kind}.${at.layer + 1}.${at.head + 1}.${at.row + 1} (kind, layer, head, token).`,
    );
  const count = (/** @type {number} */ n) => Array.from({ length: n }, (_, i) => String(i + 1)),
    pieces = (/** @type {string} */ kind) => page.stream(streams[kind][0]).pieces;
  /** @type {[key: "kind" | "layer" | "head" | "row", names: string[]][]} */
  const lists = [
    ["kind", Object.keys(n_heads)],
    ["layer", count(n_heads[at.kind].length)],
    ["head", count(n_heads[at.kind][at.layer])],
    ["row", pieces(at.kind).map((piece, i) => `${i + 1} ${piece}`)],
  ];
  return el(
    "div",
    { class: "row" },
    lists.map(([key, names]) =>
      el(
        "label",
        { class: "small soft" },
        key + " ",
        el(
          "select",
          {
            "data-walk": key,
            onchange: ({ target }) => {
              const wish = { ...at, [key]: key === "kind" ? target.value : Number(target.value) },
                all = n_heads[wish.kind],
                layer = Math.min(wish.layer, all.length - 1);
              live.look(page, {
                walk: [
                  wish.kind,
                  layer,
                  Math.min(wish.head, all[layer] - 1),
                  Math.min(wish.row, pieces(wish.kind).length - 1),
                ],
              });
            },
          },
          names.map((name, i) =>
            el(
              "option",
              {
                value: key === "kind" ? name : i,
                selected: at[key] === (key === "kind" ? name : i),
              },
              name,
            ),
          ),
        ),
      ),
    ),
  );
}

PANELS.walk = {
  title: "Walk",
  draw(host, section, page) {
    const { at, steps, heads } = section,
      found = check(section),
      worst = Math.max(...found.map((one) => one.worst));
    page.shown = at;
    const body = frame(host, {
      title: `Walkthrough: one token through layer ${at.layer + 1}${section.stack === "self" ? "" : " of the " + section.stack}`,
      name: "walk",
      hint: "The values of the model, from top to bottom. Each strip is a vector: blue is negative, orange is positive. Hover over a strip to read its values.",
      csv: () => [
        ["step", "vector", "number", "model", "page"],
        ...steps.flatMap((s, i) =>
          found[i].values.map((x, j) => [
            i + 1,
            s.out,
            found[i].rows[j] + 1,
            section.vectors[s.out][found[i].rows[j]],
            x,
          ]),
        ),
      ],
    });
    body.append(
      el(
        "p",
        {},
        "Token ",
        el("b", {}, `“${section.token}”`),
        ` (position ${at.row + 1})`,
        section.says
          ? ["; the output of the model here is ", el("b", {}, `“${section.says}”`)]
          : "",
        ". This page recomputes every step. The largest difference from the model, relative to the largest value of a vector, is ",
        el(
          "b",
          {
            class: "num",
            "data-walk": "worst",
            "data-value": worst,
            style: `color:var(--${worst < 1e-3 ? "good" : "bad"})`,
          },
          number(worst, 1),
        ),
        ".",
      ),
      choices(section, page),
    );
    const list = el("div", { class: "walk" });
    steps.forEach((s, i) => {
      const kind = s.out.split(".")[0];
      if (s.out === "u" || s.out === kind + ".q")
        list.append(
          el(
            "h3",
            {},
            kind === "u"
              ? "Feed-forward"
              : `${kind === "cross" ? "Cross attention" : "Self-attention"}, head ${heads[kind] + 1}`,
          ),
        );
      list.append(drawStep(section, page, s, i, found[i]));
    });
    body.append(list);
  },
};
