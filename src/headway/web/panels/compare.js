// @ts-check
// Two looks side by side: where heads, maps and outputs differ, with one scale for both.

/** @typedef {{label: string, side: string, rows: string[], columns: string[], data: Numbers, scale: Scale}} SideMap */

/**
 * The kinds of attention of a look by name.
 * @param {Look} look
 * @returns {Record<string, AttentionKind>}
 */
const kindsOf = (look) =>
  Object.fromEntries((look.sections.attention?.kinds || []).map((kind) => [kind.name, kind]));

/**
 * Why two maps cannot be subtracted, or null.
 * @param {AttentionKind | undefined} a
 * @param {AttentionKind | undefined} b
 */
const misfit = (a, b) => {
  if (!a || !b) return "only one of the two looks has it";
  const [x, y] = [a, b].map((kind) => kind.block + " " + kind.layers.map((layer) => layer.shape));
  return x === y ? null : "their shapes differ";
};

/**
 * x − y with its largest absolute value, its mean absolute value and its scale.
 * @param {Floats<2>} x
 * @param {Floats<2>} y
 */
const less = (x, y) => {
  const data = Float32Array.from(x, (v, i) => v - y[i]),
    sizes = data.map(Math.abs);
  const most = sizes.reduce((a, b) => Math.max(a, b), 0);
  return {
    data,
    most,
    mean: sizes.reduce((a, b) => a + b, 0) / (x.length || 1),
    scale: /** @type {Scale} */ ({ low: -(most || 1), high: most || 1, map: "diverging" }),
  };
};

/**
 * @param {HTMLElement} host
 * @param {Record<string, number[][]>} kinds by kind, layer and head
 * @param {number} most
 * @param {Page} page
 */
const headCells = (host, kinds, most, page) =>
  host.append(
    el(
      "div",
      { class: "row kinds" },
      Object.entries(kinds).map(([name, layers]) => {
        const widest = layers.reduce((a, b) => (b.length > a.length ? b : a)),
          size = clamp(Math.floor(440 / widest.length), 16, 34),
          label = (/** @type {Child} */ text) => el("span", { class: "small soft num" }, text);
        return el(
          "div",
          { class: "scroll", style: `--size:${size}px` },
          el("h3", {}, name),
          el(
            "div",
            { class: "headrow" },
            label(""),
            widest.map((_, head) => label(head + 1)),
          ),
          layers
            .map((heads, layer) =>
              el(
                "div",
                { class: "headrow" },
                label(layer + 1),
                heads.map((value, head) => {
                  const here =
                      page.state.kind === name &&
                      page.state.layer === layer &&
                      page.state.head === head,
                    title = `${page.head(name, layer, head)}: mean |A − B| ${number(value)}`;
                  return el("button", {
                    "data-head": `${name}.${layer}.${head}`,
                    "data-value": value,
                    class: here ? "picked" : null,
                    title,
                    "aria-label": title,
                    style: "background:" + css(colour(value / (most || 1), "oranges")),
                    onclick: () => page.set({ kind: name, layer, head }),
                  });
                }),
              ),
            )
            .reverse(),
        );
      }),
    ),
  );

/**
 * Maps side by side, each with its scale below. All containers are created before the first map is
 * drawn, because a map is as wide as its container.
 * @param {HTMLElement} host
 * @param {SideMap[]} maps
 */
const sideBySide = (host, maps) => {
  const row = el(
    "div",
    { class: "row beside" },
    maps.map(({ label, side, columns }) =>
      el(
        "div",
        { "data-map": side, style: `flex:1 1 ${clamp(columns.length * 14 + 110, 270, 1100)}px` },
        el("h3", {}, label),
      ),
    ),
  );
  host.append(row);
  maps.forEach((map, i) => {
    heatmap(row.children[i], { ...map, size: 24 });
    legend(row.children[i], map.scale);
  });
};

/**
 * The maps of one head in both looks, and their difference.
 * @param {HTMLElement} host
 * @param {[a: AttentionKind, b: AttentionKind]} kinds
 * @param {Page} page
 * @param {Look} other
 */
const drawMaps = (host, [a, b], page, other) => {
  /** @type {(key: "layer" | "head", x: number, y: number) => number} */
  const at = (key, x, y) => clamp(page.state[key] || 0, 0, Math.min(x, y) - 1);
  const layer = at("layer", a.layers.length, b.layers.length),
    head = at("head", a.layers[layer].shape[0], b.layers[layer].shape[0]);
  const [x, y] = [a, b].map((kind) => sub(kind.layers[layer], head)),
    why = misfit(a, b),
    gap = why ? null : less(x, y);
  const body = frame(host, {
    title: page.head(a.name, layer, head) + " side by side",
    name: "compare-map",
    hint:
      "Attention weights on the same scale" +
      (why
        ? `. No difference is shown: ${why}.`
        : ", and their difference: orange where A is larger, blue where B is larger."),
    csv:
      gap &&
      (() => [
        ["row", "column", "A", "B", "A−B"],
        ...Array.from(gap.data, (v, i) => [
          Math.floor(i / x.shape[1]) + 1,
          (i % x.shape[1]) + 1,
          x[i],
          y[i],
          v,
        ]),
      ]),
  });
  /** @type {(label: string, side: string, look: Look, kind: AttentionKind, data: Numbers, scale: Scale) => SideMap} */
  const map = (label, side, look, kind, data, scale) => {
    const [rows, columns] = [kind.rows, kind.columns].map((name) => axisLabels(look, kind, name));
    return { label, side, data, scale, rows, columns };
  };
  if (gap) body.dataset.most = String(gap.most);
  const one = { low: 0, high: [...x, ...y].reduce((m, v) => Math.max(m, v), 0.01) };
  sideBySide(body, [
    map("A: " + page.look.label, "a", page.look, a, x, one),
    map("B: " + other.label, "b", other, b, y, one),
    ...(gap
      ? [map("A − B, at most " + number(gap.most), "difference", page.look, a, gap.data, gap.scale)]
      : []),
  ]);
};

/**
 * Logit lens: probability of the output at each layer, minus that of the other look.
 * @param {HTMLElement} host
 * @param {Page} page
 */
const drawLens = (host, page) => {
  const [a, b] = [page.section("lens"), page.otherSection("lens")];
  if (!a?.views.length || !b?.views.length || String(a.outputs) !== String(b.outputs)) return;
  const [x, y] = [a.views[0].chosen, b.views[0].chosen];
  if (String(x.shape) !== String(y.shape)) return;
  const { data, most, scale } = less(x, y),
    n = x.shape[1];
  const body = frame(host, {
    title: "Logit lens: probability of the output at each layer",
    name: "compare-lens",
    hint: "P(A) − P(B) of the final output, read at each layer. Orange: more probable in A; blue: more probable in B.",
    csv: () => [
      ["layer", ...a.outputs],
      ...a.layers.map((layer, l) => [layer, ...data.subarray(l * n, (l + 1) * n)]),
    ],
  });
  body.dataset.most = String(most);
  sideBySide(body, [
    {
      label: "at most " + number(most),
      side: "lens",
      data,
      rows: a.layers,
      columns: a.outputs,
      scale,
    },
  ]);
};

/**
 * @param {HTMLElement} host
 * @param {[a: ComparedOutput[], b: ComparedOutput[]]} outputs
 */
const drawOutputs = (host, [a, b]) => {
  const n = Math.max(a.length, b.length);
  if (!n) return;
  const rows = Array.from({ length: n }, (_, i) => {
    const [x, y] = [a.at(i), b.at(i)],
      p = [x, y].map((one) => (one ? Math.exp(one.log_prob) : null));
    return { x, y, p, gap: x && y && x.id === y.id ? x.log_prob - y.log_prob : null };
  });
  const columns = ["position", "A", "P(A)", "B", "P(B)", "difference"];
  const body = frame(host, {
    title: "Outputs, token by token",
    name: "compare-outputs",
    hint: "The outputs of both looks with their probabilities. The difference is log P(A) − log P(B) in nats, where both outputs are the same.",
    csv: () => [
      columns,
      ...rows.map(({ x, y, p, gap }, i) => [i + 1, x?.name, p[0], y?.name, p[1], gap]),
    ],
  });
  /** @type {(one: ComparedOutput | undefined, gap: number | null) => string | Node} */
  const cell = (one, gap) =>
    one
      ? el(
          "span",
          {
            class: gap === null ? "unlike" : null,
            title:
              "most probable: " + one.top.map(([word, p]) => `${word} ${percent(p)}`).join(", "),
          },
          one.name,
        )
      : "";
  table(
    body,
    columns,
    rows.map(({ x, y, p, gap }, i) => [i + 1, cell(x, gap), p[0], cell(y, gap), p[1], gap]),
  ).dataset.outputs = String(n);
  const gaps = rows.flatMap(({ gap }) => gap ?? []);
  body.append(
    el(
      "p",
      { class: "small soft" },
      `${gaps.length} of ${n} outputs are the same` +
        (gaps.length
          ? `; mean |difference| ${number(gaps.reduce((sum, gap) => sum + Math.abs(gap), 0) / gaps.length)} nats.`
          : "."),
    ),
  );
};

/**
 * Mean differences of all heads.
 * @param {HTMLElement} host
 * @param {CompareSection} section
 * @param {Page} page
 * @param {Record<string, AttentionKind>[]} kinds of both looks
 * @param {[look: Look, other: Look]} looks
 */
const drawHeads = (host, section, page, [a, b], [look, other]) => {
  const common = Object.keys(a).filter((name) => b[name]);
  const values = Object.fromEntries(
    common
      .filter((name) => !misfit(a[name], b[name]))
      .map((name) => [
        name,
        a[name].layers.map((layer, l) =>
          Array.from(
            { length: layer.shape[0] },
            (_, h) => less(sub(layer, h), sub(b[name].layers[l], h)).mean,
          ),
        ),
      ]),
  );
  const most = Math.max(0, ...Object.values(values).flat(2));
  const body = frame(host, {
    title: "Where heads differ",
    name: "compare-heads",
    hint: "Mean |A − B| over all pairs of tokens. Each square is one head, all on the same scale; layer 1 is at the bottom. Click a head to see its maps.",
    csv: () => [
      ["kind", "layer", "head", "mean |A−B|"],
      ...Object.entries(values).flatMap(([name, layers]) =>
        layers.flatMap((heads, l) => heads.map((v, h) => [name, l + 1, h + 1, v])),
      ),
    ],
  });
  body.append(
    el(
      "p",
      { class: "small" },
      el("b", {}, "A "),
      el("bdi", {}, look.label),
      " · ",
      el("b", {}, "B "),
      el("bdi", {}, other.label),
    ),
  );
  headCells(body, values, most, page);
  if (most) legend(body, { high: most, map: "oranges", label: "mean |A − B|" });
  for (const name of Object.keys({ ...a, ...b })) {
    const why = misfit(a[name], b[name]);
    if (why)
      body.append(
        el(
          "p",
          { class: "note", "data-misfit": name },
          `${name}: no difference can be shown: ${section.fits[name] || why}.`,
        ),
      );
  }
};

PANELS.compare = {
  title: "Compare",
  draw(host, section, page) {
    const { look, other } = page;
    if (!other) {
      const how = "Select what to compare with in the menu at the top of the page.";
      host.append(el("section", { class: "card empty" }, how));
      return;
    }
    const [a, b] = [look, other].map(kindsOf),
      common = Object.keys(a).filter((name) => b[name]);
    const outputsOf = (/** @type {Look} */ one) =>
      section.sides[page.data.looks.indexOf(one)].outputs;
    if (common.length) drawHeads(host, section, page, [a, b], [look, other]);
    const name = common.find((one) => one === page.state.kind) ?? common[0];
    if (name !== undefined) drawMaps(host, [a[name], b[name]], page, other);
    drawLens(host, page);
    drawOutputs(host, [outputsOf(look), outputsOf(other)]);
  },
};
