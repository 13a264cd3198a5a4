// @ts-check
// A browser of learned factors: a list, and details of the selected factor.

/** @type {[key: "here" | "fires" | "strength" | "effect", label: string][]} */
const SORTS = [
  ["here", "on this text"],
  ["fires", "frequency"],
  ["strength", "maximum activation"],
  ["effect", "effect"],
];

/** Most factors in the list. */
const LISTED = 25;

/** @param {[stack: string, layer: number]} site */
const siteName = ([stack, layer]) =>
  (stack === "self" ? "" : `${stack} `) + (layer ? `layer ${layer}` : "embedding");

/**
 * A context as running text: tokens coloured by activation, the strongest one framed.
 * @param {FeaturesSection} s
 * @param {number} f
 * @param {number} c
 * @param {number} high
 */
function contextLine(s, f, c, high) {
  const [, at, pieces, seen] = s.factors[f].contexts[c],
    values = sub(s.values, f, c);
  return el(
    "div",
    { class: "small context", "data-context": c },
    patch(seen),
    pieces.map((piece, i) => {
      const rgb = values[i] > 0 ? colour(values[i] / high, "oranges") : null,
        frame = i === at ? ";box-shadow:0 0 0 1.5px var(--ink)" : "";
      return [
        piece.startsWith(" ") && i ? " " : "",
        el(
          "span",
          {
            "data-value": values[i],
            title: number(values[i]),
            style: rgb
              ? `background:${css(rgb)};color:${ink(rgb)};border-radius:3px;padding:1px 2px${frame}`
              : null,
          },
          piece.trim(),
        ),
      ];
    }),
  );
}

/**
 * @param {Factor} factor
 * @param {string} word
 */
function matches(factor, word) {
  const text = [
    ...factor.contexts.map((c) => c[2].join("")),
    ...(factor.promotes || []).map((w) => w[0]),
  ]
    .join(" ")
    .toLowerCase();
  return text.includes(word);
}

/**
 * @param {HTMLElement} host
 * @param {string} title
 * @param {[word: string, logit: number][] | undefined} words
 * @param {string} colourOf
 */
function wordBars(host, title, words, colourOf) {
  if (!words) return;
  host.append(el("h3", {}, title));
  bars(
    host,
    words.slice(0, 6).map(([label, value]) => ({ label, value: Math.abs(value) })),
    { colour: colourOf },
  );
}

/**
 * @param {HTMLElement} host
 * @param {FeaturesSection} s
 * @param {Page} page
 * @param {number[]} order
 * @param {number} picked
 */
function listed(host, s, page, order, picked) {
  /** The text before the strongest token of a context. */
  const before = (/** @type {FactorContext} */ [, at, pieces]) =>
    `…${pieces.slice(Math.max(0, at - 3), at).join("")}${pieces[at].startsWith(" ") ? " " : ""}`;
  const rows = order.slice(0, LISTED).map((i) => {
    const f = s.factors[i],
      c = f.contexts.at(0);
    const where = c
      ? el(
          "span",
          {},
          el("span", { class: "soft" }, before(c)),
          patch(c[3]),
          el("b", {}, c[2][c[1]].trim()),
        )
      : el("span", { class: "soft" }, "never active");
    return [
      el("span", { class: "num", "data-factor": s.numbers[i] }, String(s.numbers[i])),
      100 * f.fires,
      f.effect ? f.effect.kl : null,
      where,
    ];
  });
  table(
    host,
    [
      "factor",
      { name: "fires %", digits: 2 },
      {
        name: "effect",
        digits: 3,
        title: "change of the output distribution when the factor is removed (KL, in nats)",
      },
      "strongest activation",
    ],
    rows,
    {
      onclick: (_, at) => page.set({ featuresFactor: s.numbers[order[at]] }),
      picked: order.indexOf(picked),
    },
  );
  if (order.length > LISTED)
    host.append(
      el(
        "p",
        { class: "small soft" },
        `and ${order.length - LISTED} more: search or change the order to see them`,
      ),
    );
  if (!order.length)
    host.append(
      el("p", { class: "empty" }, "No factor on this page has this word in its contexts."),
    );
}

/**
 * @param {HTMLElement} host
 * @param {FeaturesSection} s
 * @param {Page} page
 * @param {number} at
 */
function about(host, s, page, at) {
  const f = s.factors[at],
    unit = s.figures.unit,
    high = f.strength || 1;
  const body = frame(host, {
    title: `Factor ${s.numbers[at]}`,
    name: "factor",
    hint: `Active on ${number(100 * f.fires, 2)} % of the tokens in the layer where it is strongest (${siteName(s.sites[f.site])}). Maximum activation: ${number(f.strength)}, in units of the mean norm of centred states.`,
    csv: () => [
      ["context", "token", "activation"],
      ...f.contexts.flatMap(([, , pieces], c) =>
        pieces.map((p, i) => [c + 1, p.trim(), sub(s.values, at, c, i)]),
      ),
    ],
  });
  body.append(
    el("h3", {}, "Strongest activations"),
    el(
      "div",
      {},
      f.contexts.map((_, c) => contextLine(s, at, c, high)),
    ),
  );
  legend(body, { low: 0, high, map: "oranges", label: "activation" });
  const left = el("div"),
    right = el("div");
  body.append(el("div", { class: "grid2" }, left, right));
  left.append(el("h3", {}, "Mean activation by layer"));
  bars(
    left,
    f.profile.map((value, i) => ({ label: siteName(s.sites[i]), value, picked: i === f.site })),
  );
  /** @type {(value: number, sign?: boolean) => Node} */
  const exact = (value, sign) =>
    el(
      "b",
      { class: "num", "data-value": value },
      `${sign && value > 0 ? "+" : ""}${number(value)}`,
    );
  if (f.effect)
    left.append(
      el("h3", {}, "Effect of removing it from that layer"),
      el(
        "p",
        { class: "small", "data-effect": "" },
        "In its strongest contexts ",
        unit === "nats"
          ? [
              "the loss changes by ",
              exact(f.effect.nats, true),
              " nats and the output distribution by ",
              exact(f.effect.kl),
              " nats (KL).",
            ]
          : ["the vector of the text changes by ", exact(f.effect.nats), ` (${unit}).`],
      ),
    );
  wordBars(right, "Promoted in the last layer (the logit rises by)", f.promotes, "var(--s1)");
  wordBars(right, "Suppressed in the last layer (the logit falls by)", f.suppresses, "var(--s2)");
  if (!f.promotes)
    right.append(
      el(
        "p",
        { class: "small soft" },
        "No output head maps these states to words, so there is no list of promoted words.",
      ),
    );
}

PANELS.features = {
  title: "Features (dictionary learning)",
  draw(host, s, page) {
    const streams = Object.keys(s.here),
      n = s.factors.length,
      word = String(page.state.featuresFind ?? "").toLowerCase();
    const peaks = Array.from({ length: n }, (_, i) =>
      Math.max(...streams.map((name) => Math.max(...sub(s.here[name], i)))),
    );
    const by = SORTS.find(([k]) => k === page.state.featuresSort)?.[0] || "here";
    /** @type {Record<typeof by, (i: number) => number>} */
    const keys = {
      here: (i) => peaks[i],
      fires: (i) => s.factors[i].fires,
      strength: (i) => s.factors[i].strength,
      effect: (i) => s.factors[i].effect?.kl ?? -1,
    };
    const key = keys[by];
    const order = [...Array(n).keys()]
      .filter((i) => !word || matches(s.factors[i], word))
      .sort((a, b) => key(b) - key(a) || a - b);
    const asked = s.numbers.indexOf(page.state.featuresFactor ?? -1),
      picked = asked >= 0 ? asked : (order[0] ?? 0);
    const fg = s.figures,
      top = Math.max(...peaks) || 1;
    const text = frame(host, {
      title: "On this text",
      name: "features-text",
      hint: "The text, coloured by the activation of the selected factor. Click a token to list the factors that are active there, strongest first.",
      csv: () => [
        ["factor", ...streams.flatMap((name) => page.stream(name).pieces)],
        ...s.numbers.map((f, i) => [f, ...streams.flatMap((name) => [...sub(s.here[name], i)])]),
      ],
    });
    for (const name of streams) {
      const values = sub(s.here[name], picked),
        stream = page.stream(name);
      if (streams.length > 1) text.append(el("span", { class: "small soft" }, name));
      tokens(text, stream, {
        value: (i) => values[i],
        low: 0,
        high: Math.max(peaks[picked], 0.3 * top),
        map: "oranges",
        picked: page.state.featuresStream === name ? page.state.featuresToken : null,
        onclick: (i) =>
          page.set({
            featuresStream: name,
            featuresToken:
              page.state.featuresToken === i && page.state.featuresStream === name ? null : i,
          }),
      });
    }
    const place = page.state.featuresToken ?? -1,
      line =
        streams.find((name) => name === page.state.featuresStream) ?? streams[streams.length - 1];
    if (place >= 0 && place < page.stream(line).pieces.length) {
      const there = [...Array(n).keys()]
        .map((i) => ({ i, value: sub(s.here[line], i, place) }))
        .filter(({ value }) => value > 0)
        .sort((a, b) => b.value - a.value)
        .slice(0, 10);
      text.append(
        el(
          "p",
          { class: "small soft" },
          `Factors active at “${page.stream(line).pieces[place]}” (largest activation over all layers):`,
        ),
      );
      bars(
        text,
        there.map(({ i, value }) => ({
          label: `factor ${s.numbers[i]}`,
          value,
          picked: i === picked,
          factor: s.numbers[i],
          note: s.factors[i].contexts
            .slice(0, 3)
            .map((c) => c[2][c[1]].trim())
            .join(" · "),
        })),
        { onclick: (item) => page.set({ featuresFactor: item.factor }) },
      );
    }
    const two = el("div", { class: "grid2" }),
      left = el("div"),
      right = el("div");
    two.append(left, right);
    host.append(two);
    const list = frame(left, {
      title: `${s.total} factors`,
      name: "features",
      hint:
        `Learned directions whose sparse sums reconstruct the hidden states of all layers (${fg.method === "topk" ? "TopK autoencoder" : "sparse coding"} on a corpus).` +
        (s.total > n
          ? ` This page shows ${n}: those that are active on this text, then the most frequent.`
          : ""),
      csv: () => [
        ["factor", "fires", "strength", "layer", "kl", "nats"],
        ...s.factors.map((f, i) => [
          s.numbers[i],
          f.fires,
          f.strength,
          siteName(s.sites[f.site]),
          f.effect?.kl,
          f.effect?.nats,
        ]),
      ],
    });
    list.append(
      el("input", {
        type: "search",
        placeholder: "search contexts for a word",
        value: word || null,
        "data-search": "",
        "aria-label": "search factors by a word",
        onchange: (event) =>
          page.set({ featuresFind: event.target.value.trim() || null, featuresFactor: null }),
      }),
    );
    chips(
      list,
      SORTS.map(([k, label]) => ({ key: k, label })),
      by,
      (k) => page.set({ featuresSort: k, featuresFactor: null }),
    );
    listed(list, s, page, order, picked);
    list.append(
      el(
        "p",
        { class: "small soft" },
        `On held-out text the factors explain ${percent(fg.explained)} of the variance with ${number(fg.l0, 2)} active factors per token; ` +
          (fg.recovered === null
            ? ""
            : `with reconstructed states the model recovers ${percent(fg.recovered)} of its loss (0 %: states set to zero); `) +
          `${percent(fg.dead)} of the factors are never active.`,
      ),
    );
    if (n) about(right, s, page, picked);
  },
};
