// @ts-check
// Summary of a run: scores compared with baselines and other candidates, first curves, model card.

/** @param {Metric} metric */
const better = ({ lower }) => (lower ? "lower ↓" : "higher ↑");

/** @type {(value: number | null, digits: number) => string} */
const written = (value, digits) => (value === null ? "–" : value.toFixed(digits));

/**
 * @param {HTMLElement} host
 * @param {{rows: Metric[], columns: ScoreColumn[]}} scores
 */
function drawScores(host, { rows, columns }) {
  const named = columns.map(
    (one) => (one.kept ? "✓ " : one.baseline ? "baseline: " : "") + one.name,
  );
  const body = frame(host, {
    title: "Scores on the validation data",
    name: "scores",
    hint: "All metrics of the task, their direction, and the scores of each candidate for the final model. ✓ marks the weights in model.safetensors. A baseline is a score without a trained model.",
    csv: () => [
      ["metric", "unit", "better", ...named],
      ...rows.map((row, r) => [
        row.label,
        row.unit,
        row.lower ? "lower" : "higher",
        ...columns.map((one) => one.values[r]),
      ]),
    ],
  });
  table(
    body,
    ["metric", "better", ...named],
    rows.map((row, r) => [
      row.label + (row.unit && `, ${row.unit}`),
      better(row),
      ...columns.map((one) =>
        el(
          one.kept ? "b" : "span",
          { class: "num", "data-value": one.values[r] },
          written(one.values[r], row.digits),
        ),
      ),
    ]),
  );
}

/**
 * The metric that selects the checkpoint, compared with baselines.
 * @param {HTMLElement} host
 * @param {{metric: Metric, rows: ComparedScore[]}} compared
 */
function drawCompared(host, { metric, rows }) {
  const body = frame(host, {
    title: `Validation ${metric.label}${metric.unit && `, ${metric.unit}`}, compared with baselines`,
    name: "compared",
    hint: `${better(metric)} is better.${rows.some((one) => one.low !== null) ? " The thin line is the 95 % interval of the score." : ""}`,
    csv: () => [
      ["name", "value", "low", "high"],
      ...rows.map((one) => [one.name, one.value, one.low, one.high]),
    ],
  });
  const most =
    metric.unit === "%" && !metric.lower
      ? 100
      : Math.max(...rows.flatMap((one) => [one.value, one.high ?? 0]).map(Math.abs)) || 1;
  bars(
    body,
    rows.map(({ name, value, low, high }, i) => ({
      label: name,
      value,
      picked: i === rows.length - 1,
      colour: i === rows.length - 1 ? "var(--s1)" : "var(--s5)",
      shown: written(value, metric.digits),
      range: low !== null && high !== null ? [low, high] : null,
      note:
        low !== null && high !== null
          ? `${written(low, metric.digits)} – ${written(high, metric.digits)}`
          : "",
    })),
    { max: most },
  );
}

/**
 * Accuracy of simple methods with fewer labels: would more labels help, and is training worth it?
 * @param {HTMLElement} host
 * @param {Series[]} all
 */
function drawFew(host, all) {
  const body = frame(host, {
    title: "Validation accuracy with fewer labels, %",
    name: "few-labels",
    hint: "Accuracy of two cheap methods with 8, 32 and 128 labels per class, each with three random samples: nearest neighbours by the vectors of the pretrained encoder of this run, and a bag of words. This model was trained on all labels. If a line still rises, more labels will help.",
    csv: () => [
      ["method", "labels per class", "accuracy"],
      ...all.flatMap((one) => one.points.map((point) => [one.name, ...point])),
    ],
  });
  lines(body, {
    series: all,
    x: { label: "labels per class, at most", log: true },
    y: { label: "accuracy, %" },
    height: 250,
  });
}

PANELS.summary = {
  title: "Summary",
  draw(host, section, page) {
    if (section.status)
      host.append(el("p", { class: "note", "data-status": "", style: "margin:0" }, section.status));
    if (section.tiles.length) tiles(host, section.tiles);
    if (section.said.length)
      host.append(
        el(
          "section",
          { class: "card said" },
          section.said.map((line) => el("p", {}, line)),
        ),
      );
    if (section.compared.rows) drawCompared(host, section.compared);
    if (section.few.lines) drawFew(host, section.few.lines);
    const charts = page.section("curves")?.charts.slice(0, 2) || [];
    if (charts.length) drawCharts(host, charts);
    if (section.scores.rows) drawScores(host, section.scores);
    if (section.card.length) {
      const body = frame(host, { title: "Model card", name: "card", csv: () => section.card });
      body.append(
        el(
          "dl",
          {},
          section.card.map(([name, value]) => [
            el("dt", {}, name),
            el("dd", { "data-fact": name, dir: "auto" }, value),
          ]),
        ),
      );
    }
  },
};
