// @ts-check
// The search as a tree from left to right: one column per token, the best path on top.

/** Height of a row and gap between two columns, in pixels. */
const ROW = 27,
  GAP = 26;

/** @param {string} piece */
const clean = (piece) => piece.replace(/▁/g, " ").trim() || "␣";

/** @type {(s: BeamSection, i: number) => boolean} */
const isDead = (s, i) => ["cut", "lost"].includes(s.fate[i]);

/**
 * The nodes from the root to node `i`, without the root.
 * @param {BeamSection} s
 * @param {number} i
 * @returns {number[]}
 */
function pathTo(s, i) {
  /** @type {number[]} */
  const path = [];
  for (let at = i; at > 0; at = s.parent[at]) path.unshift(at);
  return path;
}

/**
 * The text of a hypothesis.
 * @type {(s: BeamSection, i: number) => string}
 */
const words = (s, i) =>
  clean(
    pathTo(s, i)
      .map((n) => (s.place[n] || s.fate[n] === "lost" ? "" : s.piece[n]))
      .join(""),
  );

/**
 * The text beside the pointer on node `i`.
 * @type {(s: BeamSection, i: number) => string}
 */
const told = (s, i) =>
  `${words(s, i)}\nlog P ${number(s.log_prob[i])} · score ${number(s.score[i])} · rank ${s.rank[i]} in step ${s.step[i]}\n${s.fate[i]}: ${s.why[i]}`;

/**
 * The visible nodes. A branch that died shows only its first node and the number of nodes after it;
 * selecting it unfolds them.
 * @param {BeamSection} s
 * @param {string} mode
 * @param {number} picked
 * @returns {[shown: number[], folded: number[]]}
 */
function visible(s, mode, picked) {
  const show = [true],
    inside = [false],
    always = new Set(pathTo(s, picked));
  /** @type {number[]} */
  const folded = [];
  for (let i = 1; i < s.parent.length; i++) {
    const up = s.parent[i],
      dead = isDead(s, i);
    inside[i] = mode === "all" || inside[up] || up === picked;
    show[i] =
      always.has(i) ||
      (show[up] && (inside[i] || (dead ? mode === "near" && s.live[up] === 2 : s.live[up] > 0)));
    let at = up;
    while (!show[at]) at = s.parent[at];
    if (!show[i] && !dead) folded[at] = (folded[at] || 0) + 1;
  }
  return [[...show.keys()].filter((i) => show[i]), folded];
}

/**
 * @param {BeamSection} s
 * @param {Page} page
 * @param {number} picked
 * @returns {[drawing: SVGSVGElement, x: number]}
 */
function drawTree(s, page, picked) {
  const [seen, folded] = visible(s, page.state.beamShow || "near", picked),
    mine = new Set(pathTo(s, picked));
  const used = [...new Set(seen.map((i) => s.row[i]))].sort((a, b) => a - b),
    left = [4];
  /** @type {number[]} */
  const wide = [];
  const size = (/** @type {number} */ i) => s.label[i].length * 7.1 + 14,
    whole = (/** @type {number} */ i) => size(i) + (folded[i] ? 26 : 0);
  for (const i of seen) wide[s.step[i]] = Math.max(wide[s.step[i]] || 26, whole(i));
  wide.forEach((w, c) => {
    left[c + 1] = left[c] + w + GAP;
  });
  const X = (/** @type {number} */ i) => left[s.step[i]],
    Y = (/** @type {number} */ i) => 15 + used.indexOf(s.row[i]) * ROW;
  const kind = (/** @type {number} */ i) =>
    `${s.live[i] === 2 ? "best" : isDead(s, i) ? "dead" : ""} ${i === picked ? "picked" : mine.has(i) ? "mine" : ""}`;
  const edge = (/** @type {number} */ i) => {
    const up = s.parent[i],
      m = X(i) - GAP / 2;
    return svg("path", {
      class: kind(i),
      "stroke-width": (0.8 + 2.4 * Math.exp(s.token_log_prob[i])).toFixed(1),
      d: `M${X(up) + whole(up)},${Y(up)}H${X(i) - GAP}C${m},${Y(up)} ${m},${Y(i)} ${X(i)},${Y(i)}`,
    });
  };
  const node = (/** @type {number} */ i) =>
    svg(
      "g",
      {
        class: kind(i),
        "data-node": i,
        "data-value": s.log_prob[i],
        transform: `translate(${X(i)},${Y(i)})`,
        onclick: () => page.set({ beamNode: i }),
        onpointermove: (event) => i > 0 && tip(event, told(s, i)),
        onpointerleave: () => tip(null),
      },
      svg("rect", { y: -11, width: size(i), height: 22, rx: 11 }),
      svg("text", { x: size(i) / 2, y: 4, class: "mid" }, s.label[i]),
      folded[i] > 0 && svg("text", { class: "fold", x: size(i) + 4, y: 4 }, "+" + folded[i]),
    );
  const onkeydown = (/** @type {KeyboardEvent} */ event) => {
    /** @type {(by: 1 | -1, test: (i: number) => boolean) => number | undefined} */
    const first = (by, test) => seen.filter(test).sort((a, b) => by * (s.row[a] - s.row[b]))[0];
    const step = (/** @type {1 | -1} */ by) =>
      first(by, (i) => s.step[i] === s.step[picked] && (s.row[i] - s.row[picked]) * by > 0);
    /** @type {Record<string, number | undefined>} */
    const moves = {
      ArrowLeft: s.parent[picked] || undefined,
      ArrowRight: first(1, (i) => s.parent[i] === picked),
      ArrowUp: step(-1),
      ArrowDown: step(1),
    };
    if (!(event.key in moves)) return;
    event.stopPropagation();
    event.preventDefault();
    if (moves[event.key] !== undefined) page.set({ beamNode: moves[event.key] });
  };
  const [width, height] = [left[left.length - 1], used.length * ROW + 8];
  return [
    svg(
      "svg",
      {
        class: "beam",
        width,
        height,
        viewBox: `0 0 ${width} ${height}`,
        tabindex: 0,
        role: "application",
        onkeydown,
        "aria-label": told(s, picked),
      },
      seen.slice(1).map(edge),
      seen.map(node),
    ),
    X(picked),
  ];
}

/**
 * @param {HTMLElement} host
 * @param {BeamSection} s
 * @param {Page} page
 * @param {number} i
 * @param {number} [asked] the child whose alternatives are shown
 */
function choices(host, s, page, i, asked) {
  host.append(
    el(
      "p",
      { class: "small soft" },
      asked
        ? `Alternatives to “${clean(s.piece[asked])}”, by probability:`
        : "Most probable next tokens:",
    ),
  );
  bars(
    host,
    s.next[i].map(([piece, value, child]) => ({
      label: clean(piece),
      value: Math.exp(value),
      child,
      picked: child === asked,
      note: child < 0 ? "not expanded" : s.fate[child],
    })),
    { max: 1, onclick: (item) => item.child > 0 && page.set({ beamNode: item.child }) },
  );
}

/**
 * @param {HTMLElement} host
 * @param {BeamSection} s
 * @param {Page} page
 * @param {number} i
 */
function detail(host, s, page, i) {
  const path = pathTo(s, i),
    about = el("div"),
    next = el("div"),
    { attention } = s;
  /** @type {(name: string, value: string, exact?: number) => Child} */
  const fact = (name, value, exact) => [
    el("dt", {}, name),
    el("dd", { "data-value": exact }, value),
  ];
  host.append(el("div", { class: "grid2" }, about, next));
  tokens(
    about,
    { pieces: path.map((n) => clean(s.piece[n])) },
    {
      value: (n) => Math.exp(s.token_log_prob[path[n]]),
      onclick: (n) => page.set({ beamNode: path[n] }),
      title: (n) => `log-probability ${number(s.token_log_prob[path[n]])}`,
    },
  );
  about.append(
    el(
      "dl",
      { class: "small" },
      fact(s.fate[i], s.why[i]),
      fact("log P", number(s.log_prob[i]), s.log_prob[i]),
      fact(
        "score",
        `${number(s.score[i])} = log P / ${number(s.log_prob[i] / s.score[i])} for ${s.step[i]} tokens`,
        s.score[i],
      ),
      fact("rank", `${s.rank[i]} in step ${s.step[i]}`, s.rank[i]),
    ),
  );
  choices(next, s, page, s.parent[i], i);
  if (s.next[i]) choices(next, s, page, i);
  if (!attention) return;
  const rows = path.map((n) => attention.row[s.parent[n]]);
  if (rows.some((r) => r < 0)) return;
  const columns = page.stream("source").pieces.map(clean);
  host.append(el("p", { class: "small soft" }, s.seen));
  heatmap(host, {
    get: (r, c) => sub(attention.rows, rows[r], c),
    rows: path.map((n) => clean(s.piece[n])),
    columns,
    label: s.seen,
    size: 22,
  });
}

PANELS.beam = {
  title: "Beam search",
  draw(host, s, page) {
    const { beamNode = 0, beamShow = "near" } = page.state;
    const picked = beamNode > 0 && beamNode < s.parent.length ? beamNode : s.outputs[0];
    const [drawing, x] = drawTree(s, page, picked),
      scroll = el("div", { class: "scroll" }, drawing);
    const body = frame(host, {
      title: "Beam search",
      name: "beam",
      svg: () => drawing,
      hint: s.hint,
      csv: () => [
        ["node", ...s.facts],
        ...s.piece.map((_, i) => [i, ...s.facts.map((name) => s[name][i])]),
      ],
    });
    body.append(el("p", { class: "num", "data-summary": "" }, s.summary));
    chips(
      body,
      [
        { key: "kept", label: "kept only" },
        { key: "near", label: "kept, and cut next to the best path" },
        { key: "all", label: "all" },
      ],
      beamShow,
      (key) => page.set({ beamShow: key }),
    );
    body.append(
      scroll,
      el("p", { class: "small soft" }, s.stopped),
      s.note && el("p", { class: "note" }, s.note),
    );
    const middle = scroll.clientWidth / 2;
    if (beamNode)
      requestAnimationFrame(() => {
        if (Math.abs(x - scroll.scrollLeft - middle) > middle - 70) scroll.scrollLeft = x - middle;
      });
    detail(
      frame(host, { title: words(s, picked), name: "hypothesis", hint: s.about }),
      s,
      page,
      picked,
    );
    const steps = el("details", {}, el("summary", { class: "small" }, "counts for each step"));
    frame(host, {
      title: "Continuations at each step",
      name: "steps",
      hint: s.tally,
      csv: () => [s.columns, ...s.counts],
    }).append(steps);
    table(steps, s.columns, s.counts);
  },
};
