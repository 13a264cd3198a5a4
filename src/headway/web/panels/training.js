// @ts-check
// The same text through all kept checkpoints: small charts by step; a click moves the slider.

/** Most lines of a chart of all layers. */
const MOST_LINES = 6;

/**
 * Ends of the scale that mean something, so that noise does not fill a chart.
 * @param {string} name
 * @param {number[]} values
 */
const scaleOf = (name, values) => {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  if (name === "cka") return { low: Math.min(0.8, Math.floor(low * 10) / 10), high: 1 };
  if (name === "pattern" || name === "residual") return { low: 0, high: Math.max(1, high) };
  return { low: 0, high: high * 1.08 || 1 };
};

/**
 * A selection of many layers: the first, the last, and some in between.
 * @param {TrainingLine[]} all
 */
const chosen = (all) => {
  if (all.length <= MOST_LINES) return all;
  const step = (all.length - 1) / (MOST_LINES - 1);
  return Array.from({ length: MOST_LINES }, (_, i) => all[Math.round(i * step)]);
};

/**
 * Points of all stages but the last. The final weights are not a point of a line: they may be an
 * average or an earlier checkpoint.
 * @type {(line: TrainingLine, section: TrainingSection) => Point[]}
 */
const pointsOf = (line, section) =>
  line.points || line.values.slice(0, -1).map((y, i) => [section.steps[i], y]);

/**
 * @param {Element} host
 * @param {TrainingFigure} figure
 * @param {TrainingSection} section
 */
const card = (host, figure, section) => {
  /** @type {HTMLElement} */
  const body = frame(host, {
    title: figure.title,
    hint: figure.hint,
    name: "training-" + figure.name,
    csv: () => [
      ["line", "stage", "step", figure.unit],
      ...figure.series.flatMap(({ name, points, values }) =>
        points
          ? points.map((point) => [name, "", ...point])
          : values.map((y, i) => [name, section.labels[i], section.steps[i], y]),
      ),
    ],
    svg: () => body.querySelector("svg"),
  });
  body.dataset.figure = figure.name;
  return body;
};

/**
 * @param {HTMLElement} body
 * @param {TrainingFigure} figure
 * @param {TrainingSection} section
 * @param {Page} page
 */
const drawFigure = (body, figure, section, page) => {
  const kind = figure.name.split(".")[0],
    here = page.data.looks.indexOf(page.look);
  const layered = kind === "residual" || kind === "cka";
  const shown = layered ? chosen(figure.series) : figure.series;
  const values = shown
    .flatMap((line) => pointsOf(line, section).map((p) => p[1]))
    .filter(isFiniteNumber);
  lines(body, {
    series: shown.map((line, i) => ({
      name: line.name,
      points: pointsOf(line, section),
      colour: layered ? css(colour(0.42 + (0.55 * i) / Math.max(1, shown.length - 1))) : undefined,
    })),
    x: { label: "step" },
    y: { label: figure.unit, ...scaleOf(kind, values) },
    height: 210,
    mark: section.steps[here],
    onclick: (step) => {
      const far = section.steps.slice(0, -1).map((at) => Math.abs(at - step));
      page.set({ look: far.indexOf(Math.min(...far)) });
    },
  });
  if (figure.series.some((line) => line.points)) return;
  const last = section.labels.length - 1,
    at = (/** @type {number} */ i) =>
      el(
        "p",
        {
          class: "small soft num",
          style: "margin:2px 0 0",
          "data-now": i === here ? figure.name : null,
        },
        el("b", { style: "font-weight:600" }, section.labels[i]),
        ": ",
        shown.map((line, n) => [
          n ? ", " : "",
          shown.length > 1 ? line.name + " " : "",
          el(
            "span",
            { "data-line": line.name, "data-value": line.values?.[i] },
            number(line.values?.[i]),
          ),
        ]),
      );
  body.append(at(here), here === last ? "" : at(last));
};

PANELS.training = {
  title: "Training",
  draw(host, section, page) {
    const n = section.labels.length - 1;
    const what = section.kept
      ? `The final weights are the ${section.kept.replace(/^the /, "")}.`
      : "The last stage is the final model.";
    host.append(
      el(
        "p",
        { class: "soft", style: "margin:0 4px" },
        `The same ${section.n_tokens} tokens in ${n} checkpoint${n === 1 ? "" : "s"} and in the final model. Every stage reads the output of the final model. ${what} `,
        "Lines connect the checkpoints; the dotted line marks the stage that this page shows. Click a chart or move the slider at the top to select another stage.",
      ),
    );
    const grid = el("div", { class: "grid2" });
    host.append(grid);
    // All cards are created before the first chart is drawn, because a chart is as wide as its card.
    const bodies = section.figures.map((figure) => card(grid, figure, section));
    section.figures.forEach((figure, i) => drawFigure(bodies[i], figure, section, page));
    if (section.n_tokens < 10) {
      host.append(
        el(
          "p",
          { class: "note" },
          "With fewer than 10 tokens the similarity of states (CKA) is high even by chance. Use a longer text to compare stages.",
        ),
      );
    }
  },
};
