// @ts-check
// Logit lens: layers by outputs, with the most probable word in each cell.

const range = (/** @type {number} */ n) => [...Array(n).keys()];

/** @type {(array: Floats<2> | Ints<2>, l: number, r: number) => number} */
const at = (array, l, r) => array[l * array.shape[1] + r];

/**
 * The name of a layer in a short form.
 * @type {(section: LensSection, l: number) => string}
 */
const named = ({ layers }, l) => layers[l].replace(/^layer |^with /, "");

/**
 * The output that is decided in the highest layer.
 * @param {(number | null)[]} decided
 */
const latest = (decided) => {
  const layers = decided.map((l) => l ?? -1);
  return layers.indexOf(Math.max(...layers));
};

/**
 * The most probable words at a layer and an output.
 * @param {LensSection} section
 * @param {LensView} view
 * @param {number} l
 * @param {number} r
 */
function top(section, { top: ids, probability }, l, r) {
  const [, R, K] = ids.shape,
    first = (l * R + r) * K;
  return range(K).map((k) => ({
    label: section.words[ids[first + k]],
    value: probability[first + k],
  }));
}

/**
 * The text beside the pointer.
 * @param {LensSection} section
 * @param {LensView} view
 * @param {number} l
 * @param {number} r
 */
function told(section, view, l, r) {
  return [
    section.layers[l],
    ...top(section, view, l, r).map((one) => `${number(one.value).padEnd(8)} ${one.label}`),
    `final output “${section.outputs[r]}”: rank ${at(view.rank, l, r)}, probability ${number(at(view.chosen, l, r))}`,
    `KL to the final prediction: ${number(at(view.kl, l, r))} nats`,
  ].join("\n");
}

/**
 * @param {LensSection} section
 * @param {LensView} view
 * @param {boolean} ranks
 * @param {Page} page
 * @param {[layer: number, output: number]} picked
 */
function grid(section, view, ranks, page, picked) {
  const { layers, outputs, reads } = section,
    turned = outputs.length > 14,
    most = Math.log(Math.max(2, ...view.rank));
  const cell = (/** @type {number} */ l, /** @type {number} */ r) => {
    const [first] = top(section, view, l, r),
      rank = at(view.rank, l, r),
      rgb = colour(0.85 * (ranks ? 1 - Math.log(rank) / most : first.value));
    return el(
      "td",
      {
        class: (rank === 1 ? "final" : "") + (l === picked[0] && r === picked[1] ? " picked" : ""),
        style: `background:${css(rgb)};color:${ink(rgb)}`,
        "data-layer": l,
        "data-output": r,
        "data-value": ranks ? rank : first.value,
        "data-word": first.label,
      },
      ranks ? rank : first.label,
    );
  };
  const heads = [...layers.map((name) => el("th", {}, name)), el("th", {}, "decided at")];
  const names = outputs.map((name, r) =>
    el(
      "th",
      { class: r < section.n_given - 1 && "given" },
      reads[r] && reads[r] + " → ",
      el("b", {}, name),
    ),
  );
  const cells = outputs.map((_, r) => {
    const decided = view.decided[r];
    return [
      ...layers.map((__, l) => cell(l, r)),
      el(
        "td",
        { class: "soft", "data-decided": r, "data-value": decided ?? "" },
        decided === null ? "never" : named(section, decided),
      ),
    ];
  });
  const rows = turned
    ? [[el("th"), heads], ...names.map((name, r) => [name, cells[r]])]
    : [[el("th"), names], ...heads.map((name, l) => [name, cells.map((column) => column[l])])];
  /** @type {<E extends Event>(act: (event: E, l: number, r: number) => void) => (event: On<E>) => void} */
  const on = (act) => (event) => {
    const { layer, output } = event.target.dataset;
    return layer ? act(event, Number(layer), Number(output)) : tip(null);
  };
  return el(
    "div",
    { class: "scroll" },
    el(
      "table",
      {
        class: "lens",
        onpointerleave: () => tip(null),
        onpointermove: on((event, l, r) => tip(event, told(section, view, l, r))),
        onclick: on(
          (_, l, r) => l > 0 && page.set({ layer: l - 1, row: page.look.outputs[r].row ?? r }),
        ),
      },
      el(
        "tbody",
        {},
        rows.map((row) => el("tr", {}, row)),
      ),
    ),
  );
}

/**
 * @param {HTMLElement} host
 * @param {LensSection} section
 * @param {Page} page
 */
function curves(host, section, page) {
  const other = page.otherSection("lens")?.views.at(0),
    { fitted } = section,
    L = section.layers.length;
  const list = (/** @type {number[]} */ values) => values.map((x) => number(x, 2)).join(", ");
  const body = frame(host, {
    title: "Logit lens by layer, over all outputs",
    name: "lens-curves",
    hint:
      "First chart: mean KL divergence from the final prediction. Second: fraction of outputs for which the layer already predicts the final output." +
      (fitted
        ? ` The tuned lens was fitted on ${fitted.lines} lines. On ${fitted.held_out} held-out lines its divergence by layer is ${list(fitted.tuned)} nats; that of the plain logit lens is ${list(fitted.plain)}.`
        : ""),
  });
  const views = [
      ...section.views,
      ...(other && page.other ? [{ ...other, name: page.other.label }] : []),
    ],
    pair = el("div", { class: "grid2" }, el("div"), el("div"));
  body.append(pair);
  /** @type {AxisOptions} */
  const x = {
    label: "layer",
    ticks: range(L)
      .filter((l) => L < 16 || l % 2 === 0)
      .map((l) => [l, named(section, l)]),
  };
  /** @type {(value: (view: LensView, l: number, r: number) => number) => Series[]} */
  const series = (value) =>
    views.map((view) => {
      const [n, R] = view.rank.shape,
        mean = (/** @type {number} */ l) =>
          range(R).reduce((sum, r) => sum + value(view, l, r), 0) / R;
      return { name: view.name, points: range(n).map((l) => [l, mean(l)]) };
    });
  lines(pair.children[0], {
    series: series((view, l, r) => at(view.kl, l, r)),
    x,
    y: { label: "KL to the final prediction (nats)", low: 0 },
  });
  lines(pair.children[1], {
    series: series((view, l, r) => Number(at(view.rank, l, r) === 1)),
    x,
    y: { label: `fraction of ${section.outputs.length} outputs`, low: 0, high: 1 },
  });
}

PANELS.lens = {
  title: "Logit lens",
  draw(host, section, page) {
    const { layers, outputs, reads, cosine, how } = section;
    if (cosine) {
      bars(
        frame(host, {
          title: "Similarity of each layer to the final vector",
          name: "lens",
          csv: () => [["layer", "cosine"], ...layers.map((name, l) => [name, cosine[l]])],
          hint: `${section.what || "This model outputs a vector. 1 means that the vector read after this layer has the same direction."} ${how}`,
        }),
        layers.map((label, l) => ({ label, value: cosine[l] })),
        { max: 1 },
      );
      return;
    }
    const view =
        section.views.find((one) => one.name === page.state.lens) ||
        section.views[section.views.length - 1],
      ranks = page.state.lensmode === "rank";
    const { row } = page.state,
      l = clamp((page.state.layer ?? layers.length) + 1, 0, layers.length - 1),
      spot = row === undefined ? -1 : page.look.outputs.findIndex((one) => (one.row ?? 0) >= row);
    const r = spot < 0 ? latest(view.decided) : spot,
      first = view.decided[r];
    const body = frame(host, {
      title: "Logit lens: the prediction at each layer",
      name: "lens",
      hint:
        (ranks
          ? "Rank of the final output at each layer: 1 is the most probable. Colours use a log scale. "
          : "The most probable output when the prediction is read at each layer. Stronger colours are higher probabilities. Bold: the final output. ") +
        how,
      csv: () => [
        [
          "layer",
          "output",
          "word",
          "probability",
          "rank of the final output",
          "its probability",
          "KL",
        ],
        ...layers.flatMap((name, i) =>
          outputs.map((out, j) => [
            name,
            out,
            ...Object.values(top(section, view, i, j)[0]),
            at(view.rank, i, j),
            at(view.chosen, i, j),
            at(view.kl, i, j),
          ]),
        ),
      ],
    });
    const choice = el("div", { class: "row" });
    chips(
      choice,
      [{ key: "words" }, { key: "rank", label: "rank of the final output" }],
      ranks ? "rank" : "words",
      (lensmode) => page.set({ lensmode }),
    );
    if (section.views.length > 1)
      chips(
        choice,
        section.views.map(({ name }) => ({ key: name, label: name + " lens" })),
        view.name,
        (lens) => page.set({ lens }),
      );
    body.append(
      choice,
      grid(section, view, ranks, page, [l, r]),
      el("h3", {}, layers[l] + (reads[r] ? `, at “${reads[r]}”` : "")),
    );
    bars(
      body,
      top(section, view, l, r).map((one) => ({ ...one, picked: one.label === outputs[r] })),
      { max: 1 },
    );
    body.append(
      el(
        "p",
        {},
        `“${outputs[r]}” has rank ${at(view.rank, l, r)} here`,
        first === null
          ? " and never stays the top prediction: the search, neighbouring tags or the given text decided."
          : `; it stays the top prediction from ${layers[first]} on.`,
      ),
    );
    curves(host, section, page);
  },
  limits: ({ layers }, page) => ({
    row: 1 + (page.look.outputs.at(-1)?.row ?? 0),
    layer: layers.length - 1,
  }),
};
