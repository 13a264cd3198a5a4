// @ts-check
// Importance and roles of each head, and the pruning curve where it was measured.

/**
 * The name of a head. A pruned model renumbers its heads; the grid shows them at their original places.
 * @type {(page: Page, one: HeadMetrics) => string}
 */
const nameOf = (page, one) =>
  page.head(one.kind, one.layer, one.head) +
  (one.number === one.head ? "" : ` (was ${one.number + 1})`);

/** @type {(page: Page, one: HeadMetrics) => void} */
const open = (page, one) =>
  page.set({ tab: "attention", kind: one.kind, layer: one.layer, head: one.head, map: null });

/**
 * The roles for which this model has scores.
 * @param {HeadsSection} section
 */
const rolesIn = (section) =>
  section.roles.filter((role) => section.heads.some((one) => role.name in one.scores));

/**
 * @param {HeadsSection} section
 * @param {Page} page
 * @param {HeadMetrics} one
 */
function about(section, page, one) {
  const scores = Object.entries(one.scores)
    .sort((a, b) => b[1] - a[1])
    .map(([name, score]) => `${name} ${number(score, 2)}`);
  return (
    `${nameOf(page, one)}${one.roles.length ? ": " + one.roles.join(", ") : ""}\n` +
    `${section.measures.map(({ key, unit }) => `${key} ${number(one[key])} ${unit}`).join(", ")}\n${scores.join(" · ")}`
  );
}

/**
 * @param {HTMLElement} host
 * @param {HeadsSection} section
 * @param {Page} page
 * @param {HeadKind} kind
 * @param {HeadMeasure} by
 * @param {number} high
 */
function drawKind(host, section, page, kind, by, high) {
  const size = clamp(Math.floor(((host.clientWidth || 640) - 30) / kind.n_heads) - 4, 18, 44),
    { state } = page;
  const label = (/** @type {Child} */ text) => el("span", { class: "small soft" }, text);
  const columns = Array.from({ length: kind.n_heads }, (_, h) => h),
    rows = Array.from({ length: kind.n_layers }, (_, i) => kind.n_layers - 1 - i);
  const box = `height:${size}px;padding:0;border:1px solid var(--line);border-radius:4px;`;
  const cell = (/** @type {number} */ layer, /** @type {number} */ column) => {
    const one = section.heads.find(
      (each) => each.kind === kind.name && each.layer === layer && each.number === column,
    );
    if (!one) return el("span", { title: "pruned", style: box + "border:1px dashed var(--edge)" });
    const rgb = colour(one[by.key] / (high || 1), by.map),
      role = section.roles.find((each) => each.name === one.roles[0]);
    const picked = state.kind === kind.name && state.layer === layer && state.head === one.head;
    if (picked) page.shown = { kind: kind.name, layer, head: one.head };
    return el(
      "button",
      {
        "data-head": `${kind.name}.${layer}.${one.head}`,
        "data-value": one[by.key],
        "aria-label": about(section, page, one),
        style: `${box}cursor:pointer;font:600 ${size > 26 ? 13 : 11}px system-ui;background:${css(rgb)};color:${ink(rgb)};${picked ? "box-shadow:0 0 0 2px var(--s2)" : ""}`,
        onclick: () => open(page, one),
        onpointermove: (event) => tip(event, about(section, page, one)),
        onpointerleave: () => tip(null),
      },
      role && role.mark,
    );
  };
  host.append(
    el(
      "h3",
      {},
      kind.name,
      el(
        "span",
        { class: "soft small plain" },
        `  ${kind.rows} → ${kind.columns}${kind.shared ? ", all layers share their weights" : ""}`,
      ),
    ),
    el(
      "div",
      {
        class: "scroll roles",
        style: `grid-template-columns:20px repeat(${kind.n_heads},${size}px)`,
      },
      label(""),
      columns.map((h) => label(h + 1)),
      rows.map((layer) => [label(layer + 1), columns.map((h) => cell(layer, h))]),
    ),
  );
}

/**
 * @param {HTMLElement} host
 * @param {HeadsSection} section
 */
function drawRoles(host, section) {
  host.append(
    el(
      "dl",
      { class: "small" },
      rolesIn(section).map((role) => {
        const n = section.heads.filter((one) => one.roles.includes(role.name)).length;
        return [
          el("dt", {}, el("b", { class: "mono" }, role.mark), " ", role.name),
          el(
            "dd",
            {},
            `${role.meaning}, at least ${percent(role.threshold)} `,
            el(
              "span",
              { class: "soft", "data-role": role.name, "data-value": n },
              n === 1 ? "(1 head)" : `(${n} heads)`,
            ),
          ),
        ];
      }),
    ),
    el("p", { class: "small soft" }, section.role_note),
  );
}

/**
 * @param {HTMLElement} host
 * @param {HeadsSection} section
 */
function drawCurve(host, { curve, command }) {
  if (!curve && !command) return;
  const body = frame(host, {
    title: "Pruning curve",
    name: "pruning",
    hint: curve ? curve.hint : "The score as heads are removed.",
    csv:
      curve &&
      (() => [
        ["order", "heads removed", curve.metric],
        ...curve.series.flatMap((one) => one.points.map((point) => [one.name, ...point])),
      ]),
  });
  if (!curve) {
    body.append(
      el(
        "p",
        { class: "empty" },
        "Not measured for this run. This command measures the curve for this page and all later ones:",
      ),
      el("p", {}, el("code", {}, command)),
    );
    return;
  }
  const scores = curve.series.flatMap((one) => one.points.map((point) => point[1] ?? 0));
  lines(body, {
    series: curve.series.map((one) => ({
      ...one,
      colour: /important/.test(one.name) ? "var(--bad)" : null,
    })),
    height: 260,
    x: { label: `heads removed, of ${curve.n_heads}`, low: 0 },
    y: { label: curve.metric, low: Math.min(0, ...scores), high: Math.max(...scores) * 1.05 },
  });
  body.append(el("p", { class: "small soft" }, curve.note));
}

/**
 * @param {HTMLElement} host
 * @param {HeadsSection} section
 * @param {Page} page
 */
function drawTable(host, section, page) {
  const roles = rolesIn(section),
    names = roles.map((role) => role.name),
    plain = section.measures.map(({ key }) => key);
  const heads = [...section.heads].sort((a, b) => b.importance - a.importance);
  /** @type {(one: HeadMetrics) => (string | number | null)[]} */
  const row = (one) => [
    nameOf(page, one),
    ...plain.map((key) => one[key]),
    one.roles.join(", ") || "–",
    ...names.map((name) => one.scores[name] ?? null),
  ];
  const body = frame(host, {
    title: "All heads",
    name: "heads-table",
    hint: "Click a column heading to sort, or a row to see the attention of its head. The columns on the right are the scores that decide the roles.",
    csv: () => [["head", ...plain, "roles", ...names], ...heads.map(row)],
  });
  table(
    body.appendChild(el("div", { class: "tall" })),
    [
      "head",
      ...section.measures.map(({ key, title }) => ({ name: key, title })),
      "roles",
      ...roles.map(({ name, meaning }) => ({ name, digits: 2, title: meaning })),
    ],
    heads.map((one) =>
      row(one).map((x, i) => (i > 4 && typeof x === "number" ? Math.round(100 * x) / 100 : x)),
    ),
    { onclick: (_, i) => open(page, heads[i]) },
  );
}

PANELS.heads = {
  title: "Heads",
  draw(host, section, page) {
    const by =
        section.measures.find(({ key }) => key === page.state.heads_by) || section.measures[0],
      high = Math.max(...section.heads.map((one) => one[by.key]));
    const body = frame(host, {
      title: "Head importance and roles",
      name: "heads",
      hint: "Colours show the selected measure, letters the role of a head. Layer 1 is at the bottom. Click a head to see its attention.",
      csv: () => [
        ["head", by.key],
        ...section.heads.map((one) => [nameOf(page, one), one[by.key]]),
      ],
    });
    const bar = el("div", { class: "row noexport" }),
      side = el("div", { class: "grid3" });
    body.append(
      el("p", { class: section.one_text ? "note" : "small soft", "data-scope": "" }, section.scope),
      bar,
      side,
    );
    chips(
      bar,
      section.measures.map(({ key, title }) => ({ key, title })),
      by.key,
      (key) => page.set({ heads_by: key }),
    );
    for (const kind of section.kinds)
      drawKind(side.appendChild(el("div")), section, page, kind, by, high);
    legend(body, { low: 0, high, map: by.map, label: `${by.key}, ${by.unit}` });
    drawRoles(body, section);
    drawCurve(host, section);
    drawTable(host, section, page);
  },
};
