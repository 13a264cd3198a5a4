// @ts-check
// Quality of the predictions: confusion matrix, calibration, examples.

/** Most labels of a confusion matrix: with more, the most frequent mistakes are listed. */
const MOST_LABELS = 40;

/** @type {(x: number | undefined) => string} */
const share = (x) => (isFiniteNumber(x) ? (100 * x).toFixed(1) : "–");

/** @param {number} x */
const whole = (x) => x.toLocaleString("en");

/** @type {(x: number) => string} */
const sure = (x) => (Number.isFinite(x) ? x.toFixed(2) : "");

/**
 * The image of an example, or the outline of its recording. Only media that the page itself contains
 * is shown.
 * @param {ShownMedia} one
 * @param {string} title
 */
function seen(one, title) {
  if (Array.isArray(one.wave) && one.wave.every(Number.isFinite))
    return wave(
      one.wave.map((x) => -x / 100),
      one.wave.map((x) => x / 100),
      150,
      44,
      title,
    );
  const src = one.image ?? one.picture ?? ""; // the key in older runs
  if (!/^data:image\/png;base64,[A-Za-z0-9+/]+={0,2}$/.test(src)) throw new Error("no image");
  return el("img", { src, alt: title, title });
}

/**
 * @template T
 * @param {T[] | undefined} all
 * @returns {T[]}
 */
const listed = (all) =>
  Array.isArray(all) ? all.filter((one) => one && typeof one === "object") : [];

/**
 * The result of `make`, or null if it fails: damaged entries are left out one by one.
 * @template T
 * @param {() => T} make
 */
function attempt(make) {
  try {
    return make();
  } catch {
    return null;
  }
}

/**
 * What `make` makes of each entry, without those that are damaged.
 * @template T, R
 * @param {T[] | undefined} all
 * @param {(one: T) => R} make
 */
const those = (all, make) =>
  listed(all)
    .map((one) => attempt(() => make(one)))
    .flatMap((made) => made ?? []);

/**
 * @param {HTMLElement} host
 * @param {ConfusionFigure} figure
 * @param {AnswerFigures} figures
 */
function drawConfusion(host, { labels, counts }, figures) {
  const n = labels.length,
    sums = counts.map((row) => row.reduce((a, b) => a + b, 0));
  if (counts.length !== n || counts.some((row) => row.length !== n || !row.every(Number.isInteger)))
    throw new Error("damaged");
  const mistakes = counts
    .flatMap((row, i) =>
      row.map((count, j) => ({ i, j, count })).filter((one) => one.count && i !== one.j),
    )
    .sort((a, b) => b.count - a.count)
    .map(({ i, j, count }) => [labels[i], labels[j], count]);
  host.classList.toggle("broad", n > 8);
  const body = frame(host, {
    title: "Confusion matrix",
    name: "confusion",
    hint:
      n > MOST_LABELS
        ? "The most frequent mistakes."
        : "Rows are true classes, columns are predicted classes. Colours show fractions of the row.",
    csv: () => [["true", ...labels], ...counts.map((row, i) => [labels[i], ...row])],
  });
  if (n > MOST_LABELS) {
    table(body, ["true", "predicted", "count"], mistakes.slice(0, 20));
    return;
  }
  const name = (/** @type {string} */ label) => {
    const icon = listed(figures.examples?.classes).find((one) => one.true === label);
    return [icon && attempt(() => seen(icon, "")), label];
  };
  const wrap = el("div", { class: "scroll heat" });
  body.append(wrap);
  wrap.append(
    el(
      "table",
      {},
      el(
        "tr",
        {},
        el("th", {}, "true ↓ predicted →"),
        labels.map((label) => el("th", { class: "num", dir: "auto" }, name(label))),
      ),
      counts.map((row, i) =>
        el(
          "tr",
          {},
          el("th", { dir: "auto" }, name(labels[i])),
          row.map((count, j) => {
            const rgb = colour(count / (sums[i] || 1), i === j ? "blues" : "oranges");
            return el(
              "td",
              {
                class: "num",
                "data-value": count,
                style: `background:${css(rgb)};color:${ink(rgb)}`,
                title: `${labels[i]} predicted as ${labels[j]}: ${share(count / (sums[i] || 1))} %`,
              },
              whole(count),
            );
          }),
        ),
      ),
    ),
  );
}

/**
 * @param {HTMLElement} host
 * @param {CalibrationFigure} figure
 */
function drawReliability(host, { bins, ece, ece_after: after, temperature }) {
  const known = bins.filter((one) => one.count > 0);
  if (
    !known.length ||
    ![
      ece,
      ...known.flatMap(({ low, high, confidence, accuracy }) => [low, high, confidence, accuracy]),
    ].every(Number.isFinite)
  )
    throw new Error("damaged");
  const most = Math.max(...known.map((one) => one.count));
  const body = frame(host, {
    title: "Calibration (reliability diagram)",
    name: "reliability",
    hint: `Accuracy of the predictions in each range of probability. On the diagonal the probabilities are well calibrated. Expected calibration error (ECE): ${share(ece)} %${isFiniteNumber(after) && isFiniteNumber(temperature) ? `; with temperature ${temperature.toFixed(2)}: ${share(after)} %` : ""}.`,
    csv: () => [
      ["low", "high", "predictions", "probability", "accuracy"],
      ...known.map((one) => [one.low, one.high, one.count, one.confidence, one.accuracy]),
    ],
  });
  const { drawing, X, Y } = axes(body, {
    x: { label: "predicted probability", low: 0, high: 1 },
    y: { label: "accuracy", low: 0, high: 1 },
    height: 280,
    label: "reliability diagram",
  });
  drawing.append(
    ...known.flatMap(({ low, high, count, confidence, accuracy }) => [
      svg(
        "rect",
        {
          x: X(low) + 1,
          y: Y(accuracy),
          width: Math.max(1, X(high) - X(low) - 2),
          height: Y(0) - Y(accuracy),
          style: "fill:var(--s1)",
          opacity: 0.25 + (0.75 * count) / most,
          "data-value": accuracy,
        },
        svg(
          "title",
          {},
          `probability ${confidence.toFixed(2)}, accuracy ${share(accuracy)} %, ${whole(count)} predictions`,
        ),
      ),
      svg("circle", { class: "best", cx: X(confidence), cy: Y(accuracy), r: 3 }),
    ]),
    svg("line", { class: "cross", x1: X(0), x2: X(1), y1: Y(0), y2: Y(1) }),
  );
}

/**
 * @param {HTMLElement} host
 * @param {ClassScores[]} classes
 */
function drawClasses(host, classes) {
  const rows = listed(classes).map((one) => [
    String(one.label),
    ...[one.precision, one.recall, one.f1].map((score) =>
      Number.isFinite(score) ? 100 * score : null,
    ),
    one.support ?? null,
  ]);
  if (!rows.length) throw new Error("none");
  const heads = ["class", "precision, %", "recall, %", "F1, %", "support"];
  const body = frame(host, {
    title: "Scores of each class",
    name: "classes",
    hint: "Click a column heading to sort.",
    csv: () => [heads, ...rows],
  });
  table(body, heads, rows);
}

/**
 * @param {HTMLElement} host
 * @param {[truth: number, predicted: number][]} points
 */
function drawNumbers(host, points) {
  if (!points.length || !points.flat().every(Number.isFinite)) throw new Error("damaged");
  const body = frame(host, {
    title: "Predicted and true values",
    name: "numbers",
    hint: `${whole(points.length)} validation examples. Correct predictions are on the diagonal.`,
    csv: () => [["true", "predicted"], ...points],
  });
  const all = points.flat(),
    { drawing, X, Y, across, up } = axes(body, {
      x: "true",
      y: "predicted",
      xs: all,
      ys: all,
      tight: false,
      height: 360,
      label: "predicted and true values",
    });
  const [low, high] = [Math.max(across.low, up.low), Math.min(across.high, up.high)];
  drawing.append(
    svg("line", { class: "cross", x1: X(low), x2: X(high), y1: Y(low), y2: Y(high) }),
    ...points.map(([x, y]) =>
      svg(
        "circle",
        { cx: X(x), cy: Y(y), r: 2.8, style: "fill:var(--s1)", opacity: 0.55, "data-value": y },
        svg("title", {}, `true ${number(x)}, predicted ${number(y)}`),
      ),
    ),
  );
}

/**
 * A table of names and texts.
 * @param {HTMLElement} host
 * @param {string} title
 * @param {string} name
 * @param {string[]} heads
 * @param {string[][]} rows
 */
function drawFacts(host, title, name, heads, rows) {
  const body = frame(host, { title, name, csv: () => [heads, ...rows] });
  table(body, heads, rows);
}

/**
 * @param {HTMLElement} host
 * @param {VerificationFigure} figure
 */
const drawVerification = (host, { eer, threshold, same, other }) =>
  drawFacts(
    host,
    "Speaker verification",
    "verification",
    ["", "do two recordings have the same speaker?"],
    [
      ["equal error rate", `${(100 * eer).toFixed(2)} %`],
      ["threshold for the same speaker (cosine)", threshold.toFixed(3)],
      ["same-speaker pairs", whole(same)],
      ["different-speaker pairs", whole(other)],
    ],
  );

/**
 * @param {HTMLElement} host
 * @param {DistilledFigure} found
 */
const drawDistilled = (host, found) =>
  drawFacts(
    host,
    "Student and teacher",
    "distilled",
    ["", "parameters", "batches/s", found.metric],
    /** @type {const} */ (["teacher", "student"]).map((role) => [
      role,
      whole(found[role].parameters),
      number(found[role].batches_per_s),
      number(found[role].scores[found.metric], 4),
    ]),
  );

/**
 * @param {ShownMedia} one
 * @param {string} title
 * @param {...Child} under
 */
const figure = (one, title, ...under) =>
  el("figure", {}, seen(one, title), el("figcaption", {}, under));

/** @param {ExampleFigure} one */
const told = (one) => `true: ${one.true}, predicted: ${one.said}`;

/**
 * @param {HTMLElement} host
 * @param {ExampleFigures} found
 */
function drawExamples(host, found) {
  const gallery = (/** @type {Node[]} */ nodes) => el("div", { class: "gallery" }, nodes);
  const confused = those(found.confused, (one) => {
    const shown = those(one.examples, (example) =>
      figure(example, told(example), sure(example.sure)),
    );
    if (!shown.length || !Number.isFinite(one.count)) return null;
    return el(
      "div",
      {},
      el(
        "p",
        {},
        el("b", { dir: "auto" }, one.true),
        " predicted as ",
        el("b", { class: "wrong", dir: "auto" }, one.said),
        " ",
        el(
          "small",
          { class: "soft" },
          `${one.count === 1 ? "once" : `${whole(one.count)} times`}${Number.isFinite(one.share) ? `, ${share(one.share)} % of the class` : ""}`,
        ),
      ),
      gallery(shown),
    );
  });
  const single = (/** @type {"wrong" | "right"} */ name) =>
    those(found[name], (one) =>
      figure(
        one,
        told(one),
        el("b", { class: name === "wrong" ? "wrong" : null, dir: "auto" }, one.said),
        ` ${sure(one.sure)}`,
        name === "wrong" && [el("br"), `true: ${one.true}`],
      ),
    );
  /** @type {[title: string, shown: Node[], how: string][]} */
  const parts = [
    ["Most often confused", confused, "grid2"],
    ["Most confident mistakes", single("wrong"), "gallery"],
    ["Most confident correct predictions", single("right"), "gallery"],
  ];
  if (!parts.some(([, shown]) => shown.length)) throw new Error("none");
  host.classList.add("broad");
  const body = frame(host, {
    title: "Examples",
    name: "examples",
    hint: "The most frequent confusions and the most confident predictions, with their probabilities.",
  });
  for (const [title, shown, how] of parts)
    if (shown.length) body.append(el("h3", {}, title), el("div", { class: how }, shown));
}

/**
 * Media with the text of the model and the reference texts.
 * @param {HTMLElement} host
 * @param {DescribedExample[]} all
 */
function drawDescribed(host, all) {
  const shown = those(all, (one) => {
    const right = one.target.split(" │ ").includes(one.output);
    return figure(
      one,
      one.target,
      el("b", { class: right ? null : "wrong", dir: "auto" }, one.output || "(empty)"),
      !right && [el("br"), el("span", { dir: "auto" }, `reference: ${one.target}`)],
    );
  });
  if (!shown.length) throw new Error("none");
  host.classList.add("broad");
  const body = frame(host, {
    title: listed(all)[0].wave ? "Recordings and transcripts" : "Images and captions",
    name: "described",
    hint: "Validation examples. Outputs that differ from the reference are coloured.",
    csv: () => [["reference", "output"], ...listed(all).map((one) => [one.target, one.output])],
  });
  body.append(el("div", { class: "gallery broad" }, shown));
}

/**
 * @type {[name: keyof AnswerFigures, draw: (host: HTMLElement, figure: any, figures: AnswerFigures) => void][]}
 */
const FIGURES = [
  ["confusion", drawConfusion],
  ["calibration", drawReliability],
  ["numbers", drawNumbers],
  ["classes", drawClasses],
  ["verification", drawVerification],
  ["distilled", drawDistilled],
  ["examples", drawExamples],
  ["described", drawDescribed],
];

PANELS.answers = {
  title: "Predictions",
  draw(host, { of, figures }) {
    host.append(
      el(
        "p",
        { class: "soft", style: "margin:0 4px" },
        `Predictions of ${of} on the validation data.`,
      ),
    );
    const grid = el("div", { class: "figures" });
    host.append(grid);
    const all = { ...figures, examples: figures.examples ?? figures.pictures };
    for (const [name, draw] of FIGURES) {
      if (all[name] == null) continue;
      const place = el("div", { class: "figure" });
      grid.append(place);
      try {
        draw(place, all[name], all);
      } catch {
        place.remove(); // a damaged figure is left out
      }
    }
  },
};
