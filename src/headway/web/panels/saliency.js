// @ts-check
// What an output depends on: the selected map, drawn over the tokens.

/**
 * @typedef {object} MapView
 * @property {string} key
 * @property {string} label
 * @property {string} how
 * @property {number} first the first layer that the page has
 * @property {number} layers
 * @property {number} [layer] the only layer that can be shown
 * @property {Head} [at]
 * @property {string[]} [names]
 * @property {boolean} [signed]
 * @property {string} [unit]
 * @property {(number[] | null)[]} shares
 * @property {(number | null)[]} [agree]
 * @property {{steps?: number, error?: number}} facts
 * @property {(layer: number) => string} name
 * @property {(layer: number, output: number) => Record<string, Float32Array>} row weights by stream
 */

/**
 * Names of the streams on the page.
 * @type {Record<string, string>}
 */
const NAMES = { source: "source", target: "prefix", text: "text" };

/**
 * A line of tokens with its label; the tokens are put into the second node.
 * @param {string} label
 * @param {string} name
 * @param {string | number} key
 */
const line = (label, name, key) =>
  el(
    "div",
    { class: "sides" },
    el("span", { class: "small soft" }, label),
    el("div", { [`data-${name}`]: key }),
  );

/**
 * A map of the section.
 * @type {(section: SaliencySection, one: SaliencyMethod) => MapView}
 */
const stored = (section, one) => ({
  ...one,
  layers: one.names.length,
  name: (l) => one.names[l - one.first],
  row(l, r) {
    const all = sub(one.weights, l - one.first, r);
    let from = 0;
    return Object.fromEntries(
      section.columns.map(([stream, n]) => [stream, all.subarray(from, (from += n))]),
    );
  },
});

/**
 * The map of one head, from the data of the attention panel. An output of the whole text is read at
 * the first token, the last one, or all.
 * @param {SaliencySection} section
 * @param {Page} page
 * @returns {(MapView & {heads: number}) | null}
 */
function single(section, page) {
  const attention = page.section("attention"),
    wanted = section.columns.length > 1 ? "cross" : "self";
  const kind = attention && attention.kinds.find((one) => one.name === wanted);
  if (!kind || kind.block > 1) return null;
  const best = (page.truths?.best?.name || "").split(".").map(Number),
    layers = kind.layers.length;
  const layer = clamp(page.state.layer ?? best[1] ?? layers - 1, 0, layers - 1),
    heads = kind.layers[layer].shape[0],
    head = clamp(page.state.head ?? best[2] ?? 0, 0, heads - 1);
  return {
    key: "head",
    label: `Head ${page.head(wanted, layer, head)}`,
    how: "The attention of one head. Keys 1–9 select it.",
    first: 0,
    layers,
    layer,
    heads,
    at: { kind: wanted, layer, head },
    shares: [],
    facts: {},
    name: (l) => `${wanted}.${l}.${head}`,
    row(l, r) {
      const data = sub(kind.layers[l], head),
        T = data.shape[0],
        row = page.look.outputs[r].row,
        out = new Float32Array(data.shape[1]);
      const rows =
        row !== null
          ? [row]
          : section.pooling === "mean"
            ? [...Array(T).keys()]
            : [section.pooling === "last" ? T - 1 : 0];
      for (const t of rows)
        sub(data, t).forEach((w, s) => {
          out[s] += w / rows.length;
        });
      return { [kind.columns]: out };
    },
  };
}

/**
 * Draws the tokens coloured by the weights for an output.
 * @param {HTMLElement} host
 * @param {SaliencySection} section
 * @param {MapView} map
 * @param {number} layer
 * @param {number} r
 * @param {Page} page
 */
function lit(host, section, map, layer, r, page) {
  const parts = Object.entries(map.row(layer, r)),
    row = page.look.outputs[r].row,
    [last] = section.columns[section.columns.length - 1];
  /** @type {(stream: string, i: number) => boolean} */
  const later = (stream, i) => section.causal && stream === last && row !== null && i > row;
  const all = parts.flatMap(([stream, w]) =>
    [...w].map((value, i) => ({ stream, i, value })).filter((one) => !later(stream, one.i)),
  );
  const most = Math.max(...all.map((one) => Math.abs(one.value)), 1e-12),
    low = map.signed ? -most : 0;
  /** @type {ColourMap} */
  const scheme = map.signed ? "diverging" : "blues";
  host.replaceChildren();
  for (const [stream, w] of parts) {
    const into = line(NAMES[stream], "stream", stream);
    tokens(into.children[1], page.stream(stream), {
      value: (i) => (later(stream, i) ? null : w[i]),
      low,
      high: most,
      map: scheme,
    }).forEach((node, i) => {
      if (later(stream, i)) node.style.opacity = "0.35";
    });
    host.append(into);
  }
  const top = all.sort((a, b) => Math.abs(b.value) - Math.abs(a.value)).slice(0, 6);
  host.append(
    el(
      "p",
      { class: "small soft" },
      `Tokens on which “${page.look.outputs[r].name}” depends most, ${map.unit || "by weight"}:`,
    ),
  );
  bars(
    host,
    top.map((one) => ({
      label: page.stream(one.stream).pieces[one.i],
      value: one.value,
      note: parts.length > 1 ? NAMES[one.stream] : "",
      colour: map.signed ? css(colour(one.value < 0 ? 0.15 : 0.85, scheme)) : null,
    })),
    { max: most },
  );
  legend(host, { low, high: most, map: scheme, label: map.signed ? "against … for" : "weight" });
}

/**
 * @param {HTMLElement} host
 * @param {MapView[]} maps
 * @param {MapView} map
 * @param {number} layer
 * @param {Page} page
 */
function shares(host, maps, map, layer, page) {
  const by = [
    map,
    ...["integrated", "occlusion", "gradxinput", "norm"].map((key) =>
      maps.find((one) => one.key === key),
    ),
  ].find((one) => one && one.shares.some(Boolean));
  if (!by) return;
  const at = by.shares[clamp(layer - by.first, 0, by.shares.length - 1)] ?? [],
    names = page.look.outputs.map((out) => out.name);
  const body = frame(host, {
    title: "Source or prefix?",
    name: "shares",
    hint: `The fraction of each output that depends on the source, by ${by.label.toLowerCase()}; the rest depends on the prefix. A low fraction may mean that a word is hallucinated.`,
    csv: () => [["output", "source", "prefix"], ...at.map((x, r) => [names[r], x, 1 - x])],
  });
  bars(
    body,
    at.map((x, r) => ({ label: names[r], value: x, picked: r === page.state.row })),
    { max: 1, digits: 2, onclick: (_, r) => page.set({ row: r }) },
  );
}

/**
 * @param {HTMLElement} host
 * @param {SaliencySection} section
 * @param {MapView[]} maps
 * @param {MapView} map
 * @param {number} layer
 * @param {Page} page
 */
function agreement(host, section, maps, map, layer, page) {
  const rows = maps.flatMap((one) => {
    const { agree, names = [] } = one;
    if (!agree) return [];
    return names.map((name, i) => ({
      one,
      layer: one.first + i,
      cells: [
        one.label + (names.length > 1 ? `, layer ${one.first + i + 1}` : ""),
        one.key === "occlusion" ? 1 : agree[i],
        page.truth(name),
      ],
    }));
  });
  const body = frame(host, {
    title: "Do the maps agree?",
    name: "agreement",
    hint: "Rank correlation with occlusion, which tests the model directly: 1 is the same order of tokens, 0 is chance. Agreement does not prove that a map is right. “Measured” is the accuracy of a map where the truth is known.",
    csv: () => [["map", "agreement", "measured"], ...rows.map((row) => row.cells)],
  });
  table(
    body,
    ["map", { name: "agreement", digits: 2 }, "measured"],
    rows.map((row) => row.cells),
    {
      onclick: (_, i) => page.set({ saliencyMap: rows[i].one.key, layer: rows[i].layer }),
      picked: rows.findIndex((row) => row.one === map && (map.layers < 2 || row.layer === layer)),
    },
  );
  for (const [label, why] of section.skipped)
    body.append(el("p", { class: "small soft" }, `${label}: ${why}.`));
}

PANELS.saliency = {
  title: "Saliency",
  limits(section, page) {
    const head = single(section, page);
    return {
      row: page.look.outputs.length,
      layer: head ? head.layers : 1,
      head: head ? head.heads : 1,
    };
  },
  draw(host, section, page) {
    const head = single(section, page),
      maps = section.methods.map((one) => stored(section, one));
    if (head) maps.unshift(head);
    const [map = maps[0]] = [page.state.saliencyMap, "occlusion", "rollout", "gradxinput"].flatMap(
      (key) => maps.find((one) => one.key === key) ?? [],
    );
    const layerOf = (/** @type {MapView} */ one) =>
      one.layer ?? clamp(page.state.layer ?? Infinity, one.first, one.first + one.layers - 1);
    const layer = layerOf(map),
      outputs = page.look.outputs,
      picked = clamp(page.state.row ?? outputs.length >> 1, 0, outputs.length - 1);
    page.shown = map.at;
    const body = frame(host, {
      title: "What an output depends on",
      name: "saliency",
      hint: "Hover over an output to colour the tokens by the selected map. Click an output to keep it selected.",
      csv: () => [
        ["output", "stream", "token", "weight"],
        ...outputs.flatMap((out, r) =>
          Object.entries(map.row(layer, r)).flatMap(([stream, w]) =>
            [...w].map((x, i) => [out.name, stream, page.stream(stream).pieces[i], x]),
          ),
        ),
      ],
    });
    chips(
      body,
      maps.map((one) => ({
        key: one.key,
        label: one.label,
        title: `${one.how} ${page.truth(one.name(layerOf(one)))}`,
      })),
      map.key,
      (key) => page.set({ saliencyMap: key }),
    );
    const place =
      map.layers > 1 ? ` Layer ${layer + 1} of ${map.first + map.layers}: keys ↑ ↓.` : "";
    const error =
      map.facts.error === undefined
        ? ""
        : ` Integrated in ${map.facts.steps} steps; the sums are off by at most ${percent(map.facts.error)}.`;
    body.append(
      el("p", { class: "small" }, map.how + place + error),
      el(
        "p",
        { class: "note small" },
        el(
          "b",
          { "data-truth": map.name(layer) },
          `Measured accuracy: ${page.truth(map.name(layer))}. `,
        ),
        section.caution,
      ),
    );
    const [last] = section.columns[section.columns.length - 1];
    const view = el("div", {}),
      show = (/** @type {number | null} */ r) => lit(view, section, map, layer, r ?? picked, page),
      into = line("output", "outputs", outputs.length);
    tokens(
      into.children[1],
      {
        pieces: outputs.map((out) => out.name),
        words: section.causal && page.stream(last).words.slice(1),
      },
      { picked, onclick: (r) => page.set({ row: r }), onhover: show },
    );
    body.append(into, view);
    show(picked);
    const below = el("div", { class: section.columns.length > 1 ? "grid2" : "" });
    host.append(below);
    if (section.columns.length > 1) shares(below, maps, map, layer, page);
    agreement(below, section, maps, map, layer, page);
  },
};
