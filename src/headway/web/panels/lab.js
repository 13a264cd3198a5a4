// @ts-check
// An experiment of the lab: verdict, figures, controls, method, literature.

/**
 * Sign and colour of each verdict.
 * @type {Record<LabVerdict, [sign: string, tone: string]>}
 */
const WORDS = {
  supported: ["✓", "good"],
  refuted: ["✗", "bad"],
  undecided: ["?", "warn"],
  "cannot tell": ["–", "warn"],
};

/** @type {Record<string, string>} */
const STANCES = {
  agrees: "agrees",
  disagrees: "disagrees",
  open: "undecided here",
  differs: "different finding",
  context: "background",
};

/** @param {number | null | undefined} x */
const spoken = (x) => (typeof x === "number" && Number.isFinite(x) ? number(x) : "?");

/**
 * @param {HTMLElement} host
 * @param {LabSection} section
 */
function drawVerdict(host, section) {
  const [sign, tone] = WORDS[section.verdict];
  host.append(
    el(
      "section",
      { class: "card verdict" },
      el(
        "div",
        { class: "word", style: `--tone:var(--${tone})` },
        el("span", { "aria-hidden": "true" }, sign),
        el("b", { "data-verdict": section.verdict }, section.verdict),
      ),
      el(
        "div",
        {},
        el("p", { class: "answer" }, section.answer),
        el("p", { class: "measured" }, section.measured),
        el("p", { class: "soft" }, el("b", {}, "Hypothesis: "), section.hypothesis),
        section.size === "quick" &&
          el(
            "p",
            { class: "soft small" },
            "A quick run with small models. --full uses larger models.",
          ),
      ),
    ),
  );
}

/**
 * @param {HTMLElement} host
 * @param {LabSection} section
 */
function drawEffects(host, section) {
  const rows = section.effect ? [section.effect, ...section.more] : section.more;
  if (!rows.length) return;
  const body = frame(host, {
    title: "Effect sizes",
    name: "effects",
    hint: "The first row decides the verdict. Mean over seeds with its 95 % confidence interval (Student's t); exact values have no interval. Detectable: the smallest distance from a threshold that this number of seeds detects in 80 % of cases.",
    csv: () => [
      ["measure", "unit", "mean", "low", "high", "spread", "seeds", "detectable"],
      ...rows.map((one) => [
        one.name,
        one.unit,
        one.value,
        one.low,
        one.high,
        one.spread,
        one.seeds,
        one.detectable,
      ]),
    ],
  });
  table(
    body,
    ["measure", "mean", "low", "high", "spread over seeds", "detectable", "unit"],
    rows.map((one) => [
      one.name,
      one.value,
      one.exact ? "exact" : spoken(one.low),
      one.exact ? "" : spoken(one.high),
      one.exact ? "" : spoken(one.seeds > 1 ? one.spread : null),
      one.exact ? "" : spoken(one.detectable),
      one.unit,
    ]),
  );
}

/**
 * The numbers of a figure, for export.
 * @param {LabFigure} figure
 * @returns {Row[]}
 */
function rowsOf(figure) {
  switch (figure.kind) {
    case "lines":
      return [
        ["line", "x", "y"],
        ...figure.series.flatMap((one) => one.points.map((p) => [one.name, ...p])),
      ];
    case "bars":
      return [
        ["name", "value", "low", "high"],
        ...figure.bars.map((one) => [one.label, one.value, one.low, one.high]),
      ];
    case "heatmap":
      return [["", ...figure.columns], ...figure.values.map((row, r) => [figure.rows[r], ...row])];
    case "table":
      return [figure.columns, ...figure.rows];
  }
}

/**
 * The card of a figure. All cards are created before the first chart is drawn, because a chart is as
 * wide as its card.
 * @param {HTMLElement} host
 * @param {LabFigure} figure
 */
function figureCard(host, figure) {
  const body = frame(host, {
    title: figure.title,
    hint: figure.hint,
    name: figure.title.toLowerCase().replace(/\W+/g, "-"),
    csv: () => rowsOf(figure),
  });
  const card = /** @type {HTMLElement} */ (body.parentElement);
  card.dataset.figure = figure.kind;
  return body;
}

/**
 * @param {HTMLElement} body
 * @param {LabFigure} figure
 */
function drawFigure(body, figure) {
  if (figure.kind === "lines")
    lines(body, {
      series: figure.series,
      x: figure.x,
      y: figure.y,
      levels: figure.levels,
      height: 280,
    });
  else if (figure.kind === "bars") {
    const most =
      figure.max ??
      Math.max(
        ...figure.bars.map((one) => Math.max(Math.abs(one.value), Math.abs(one.high ?? 0))),
        0,
      );
    bars(
      body,
      figure.bars.map((one) => ({
        ...one,
        range:
          one.low === null || one.high === null || one.low === one.high
            ? null
            : /** @type {[low: number, high: number]} */ ([one.low, one.high]),
      })),
      { max: most || 1, unit: figure.unit && ` ${figure.unit}` },
    );
  } else if (figure.kind === "heatmap") {
    heatmap(body, {
      get: (r, c) => figure.values[r][c],
      rows: figure.rows,
      columns: figure.columns,
      scale: { low: figure.low, high: figure.high, map: figure.map },
      label: figure.title,
    });
    legend(body, { low: figure.low, high: figure.high, map: figure.map, label: figure.label });
  } else table(body, figure.columns, figure.rows);
}

/**
 * @param {HTMLElement} host
 * @param {LabFigure[]} figures
 */
function drawFigures(host, figures) {
  const bodies = figures.map((figure) => figureCard(host, figure));
  figures.forEach((figure, i) => drawFigure(bodies[i], figure));
}

/**
 * @param {HTMLElement} host
 * @param {string} title
 * @param {...Child} inside
 */
const text = (host, title, ...inside) =>
  host.append(el("section", { class: "card" }, el("h2", {}, title), inside));

/**
 * @param {HTMLElement} host
 * @param {LabSection} section
 */
function drawControls(host, section) {
  text(
    host,
    "Controls",
    el("p", { class: "hint" }, section.control),
    el(
      "ul",
      { class: "plain" },
      section.controls.map((one) =>
        el(
          "li",
          { "data-passed": String(one.passed) },
          el(
            "b",
            { style: `color:var(--${one.passed ? "good" : "bad"})` },
            one.passed ? "✓ " : "✗ ",
          ),
          el("b", {}, one.name),
          ": ",
          one.said,
        ),
      ),
    ),
  );
}

PANELS.lab = {
  title: "Result",
  draw(host, section) {
    drawVerdict(host, section);
    drawFigures(host, section.figures.slice(0, 1));
    drawEffects(host, section);
    if (section.figures.length > 1) {
      const grid = el("div", { class: "grid2" });
      host.append(grid);
      drawFigures(grid, section.figures.slice(1));
    }
    drawControls(host, section);
    text(
      host,
      "Method",
      section.method.map((one) => el("p", {}, one)),
    );
    if (section.changes) text(host, "What could change this result", el("p", {}, section.changes));
    text(
      host,
      "Related work",
      el(
        "dl",
        { class: "sources" },
        section.literature.map(([who, says, stance]) => [
          el("dt", {}, who, " ", el("span", { class: "soft small" }, STANCES[stance])),
          el("dd", {}, says),
        ]),
      ),
    );
    const facts = [
      ["date", section.date],
      [
        "duration",
        `${number(section.minutes)} minutes (${number(section.cpu_minutes)} core-minutes)`,
      ],
      ["machine", section.machine],
      ["seeds", section.seeds],
      ["data", section.data],
      ...Object.entries(section.versions),
    ].filter(([, value]) => value !== null);
    text(
      host,
      "How to reproduce it",
      el(
        "p",
        { class: "mono small" },
        `headway lab ${section.experiment}${section.size === "full" ? " --full" : ""} --seeds ${section.seeds}${section.first_seed > 1 ? ` --first-seed ${section.first_seed}` : ""}`,
      ),
      el(
        "dl",
        {},
        facts.map(([name, value]) => [el("dt", {}, name), el("dd", {}, String(value))]),
      ),
    );
  },
};
