// @ts-check
// A recording over time: waveform, log-mel spectrogram, the map of each word, and word times.

/**
 * What is playing.
 * @type {{stop: () => void} | null}
 */
let player = null;

/**
 * The selected layer, head and map, and the index of the selected word.
 * @param {AudioSection} section
 * @param {Page} page
 */
function pick(section, page) {
  const { state } = page,
    { first, means, maps, groups, aligning } = section;
  const [layer0, head0] =
    first.map === "head" ? [first.layer, first.head] : aligning[0] || [first.layer, 0];
  const layer = clamp(state.layer ?? layer0, 0, Math.max(0, means.length - 1)),
    head = Math.max(0, state.head ?? head0);
  const known = [
    ...(aligning.length ? ["aligning"] : []),
    ...(means.length ? ["head", "mean"] : []),
    ...maps.map(({ key }) => key),
  ];
  const usual =
    state.layer !== undefined || state.head !== undefined
      ? "head"
      : aligning.length && !first.measured
        ? "aligning"
        : first.map;
  const at = groups.findIndex(({ rows }) =>
    rows.some((r) => (page.look.outputs[r].row ?? 0) >= (state.row ?? 0)),
  );
  return {
    layer,
    head,
    map: [state.audioMap, usual].find((one) => one && known.includes(one)) ?? known[0],
    at: Math.max(0, at),
  };
}

/**
 * The map of one head, if the page has it.
 * @type {(section: AudioSection, layer: number, head: number) => Floats<2> | undefined}
 */
const headOf = ({ heads, some }, layer, head) =>
  heads
    ? head < heads[layer].shape[0]
      ? sub(heads[layer], head)
      : undefined
    : some?.[`${layer}.${head}`];

/**
 * The selected map: outputs by rows of the audio.
 * @param {AudioSection} section
 * @param {{map: string, layer: number, head: number}} now
 * @returns {Floats<2>}
 */
function weightsOf(section, { map, layer, head }) {
  const whole = section.maps.find(({ key }) => key === map);
  if (whole) return whole.weights;
  const one = map === "head" && headOf(section, layer, head);
  if (one) return one;
  if (map !== "aligning") return section.means[layer];
  const parts = section.aligning.flatMap((place) => headOf(section, ...place) ?? []);
  const out = new Float32Array(parts[0].length);
  for (const part of parts)
    part.forEach((x, i) => {
      out[i] += x / parts.length;
    });
  return Object.assign(out, { shape: parts[0].shape });
}

/**
 * A matrix of columns in time on a canvas as wide as the tracks.
 * @param {Numbers} data
 * @param {number} rows
 * @param {number} columns
 * @param {number} width
 * @param {number} height
 * @param {Scale & {high: number, share?: number}} options
 */
function track(data, rows, columns, width, height, { low = 0, high, map, share = 1 }) {
  const canvas = el("canvas", { width: columns, height: rows }),
    brush = brushOf(canvas),
    image = brush.createImageData(columns, rows);
  drawCells(image, data, rows, columns, low, high, map);
  brush.putImageData(image, 0, 0);
  Object.assign(canvas.style, { width: width * share + "px", height: height + "px" });
  return canvas;
}

/**
 * Median error of the word times, where it was measured.
 * @param {Page} page
 */
function measured(page) {
  const found = page.truths?.facts?.times,
    list = (/** @type {Record<string, number>} */ errors) =>
      Object.entries(errors)
        .map(([way, ms]) => `${way.startsWith("head") ? "best head" : way} ${Math.round(ms)} ms`)
        .join(", ");
  return (
    found &&
    el(
      "span",
      { "data-times": "" },
      `Boundaries of ${found.words} words, median error: ${found.own_ms ? `unadjusted ${list(found.own_ms)}; ` : ""}moved to pauses ${list(found.median_ms)}. `,
    )
  );
}

/** Most lanes of words, and their height in pixels. */
const LANES = 4,
  LANE = 25;

/**
 * Words at their times, in lanes so that labels do not overlap. A word without a free lane is a tick
 * with a tooltip.
 * @param {TimedWord[]} words
 * @param {"word" | "moved"} key
 * @param {(seconds: number) => number} X
 * @param {number} width
 * @param {(start: number, end: number) => unknown} onclick
 */
function said(words, key, X, width, onclick) {
  const pen = brushOf(el("canvas"));
  /** @type {number[]} */
  const ends = [];
  pen.font = `13px ${getComputedStyle(document.body).fontFamily}`;
  const nodes = words.map(({ text, start, end, confidence }, i) => {
      const from = X(start),
        bar = Math.max(3, X(end) - from),
        wide = Math.max(bar, pen.measureText(text).width + 9),
        left = Math.max(0, Math.min(from, width - wide)),
        free = ends.findIndex((x) => x <= left + 0.5);
      const lane = free < 0 ? Math.min(ends.length, LANES) : free,
        fits = lane < LANES;
      if (fits) ends[lane] = left + wide;
      return el(
        "button",
        {
          [`data-${key}`]: i,
          "data-start": start,
          "data-end": end,
          title: `${text}: ${clock(start)} to ${clock(end)}, probability ${number(confidence)}`,
          "aria-label": text,
          class: fits ? null : "tick",
          style: `top:${lane * LANE}px;left:${fits ? left : from}px;width:${fits ? wide : bar}px`,
          onclick: () => onclick(start, end),
        },
        fits &&
          el("i", {
            style: `left:${Math.max(0, Math.min(from - left, wide - 3))}px;width:${bar}px`,
          }),
        fits && el("span", {}, text),
      );
    }),
    ticks = nodes.some((node) => node.className === "tick");
  return el(
    "div",
    { class: `said ${key}`, style: `height:${ends.length * LANE + (ticks ? 8 : 0)}px` },
    nodes,
  );
}

/** @param {[start: number, end: number]} times */
const span = ([start, end]) => `${start.toFixed(2)}–${end.toFixed(2)}`;

/** @type {(a: number, b: number) => boolean} */
const same = (a, b) => Math.abs(a - b) < 5e-4;

/** @param {TimedWord} word */
const isMoved = ({ start, end, moved }) => !same(start, moved[0]) || !same(end, moved[1]);

/** @param {number} seconds */
const clock = (seconds) => `${number(seconds, 3)} s`;

/**
 * Plays a part of the recording and moves the needle.
 * @param {string} source
 * @param {HTMLElement} needle
 * @param {(seconds: number) => string} place
 * @param {number} from
 * @param {number} to
 */
function play(source, needle, place, from, to) {
  if (player) player.stop();
  const audio = new Audio(source),
    stop = () => {
      audio.pause();
      clearInterval(timer);
      needle.style.display = "none";
      player = null;
    };
  const timer = setInterval(() => {
    needle.style.display = "";
    needle.style.left = place(audio.currentTime);
    if (audio.currentTime >= to || audio.ended) stop();
  }, 30);
  player = { stop };
  audio.currentTime = from;
  audio.play().catch(stop);
}

PANELS.audio = {
  title: "Audio",
  limits(section, page) {
    const { layer, head, at } = pick(section, page),
      { groups, heads } = section;
    return {
      layer: section.means.length,
      head: heads ? heads[layer].shape[0] : 0,
      row: groups.length && 1 + (page.look.outputs.at(-1)?.row ?? 0),
      now: {
        kind: section.kind,
        layer,
        head,
        row: groups.length ? (page.look.outputs[groups[at].rows[0]].row ?? 0) : 0,
      },
    };
  },
  draw(host, section, page) {
    const held = page.data.looks.map((look) => look.sections.audio).findLast((one) => one?.wave);
    const { mel, wave: ends, audio } = held ?? section,
      { groups, n_rows: S, row_s, kind, maps, times } = section;
    const now = pick(section, page),
      { layer, head, map, at } = now,
      whole = maps.find(({ key }) => key === map),
      some = groups.length > 0,
      outputs = page.look.outputs;
    const seconds = Math.max(section.seconds, 1e-6);
    const weights = some ? weightsOf(section, now) : null,
      R = outputs.length,
      name = whole
        ? whole.label
        : map === "aligning"
          ? `${section.aligning.length > 1 ? `${section.aligning.length} heads that` : "one head that"} ${section.follows ? `follow${section.aligning.length > 1 ? "" : "s"}` : `come${section.aligning.length > 1 ? "" : "s"} closest to following`} the audio`
          : map === "head"
            ? page.head(kind, layer, head)
            : `${kind} ${layer + 1}, mean over heads`;
    const key = whole
      ? map
      : map === "aligning"
        ? "aligning"
        : `${kind}.${layer}.${map === "head" ? head : map}`;
    if (!whole && map === "head") page.shown = { kind, layer, head };
    const way = times.find((one) => one.key === page.state.audioTimes) || times[0],
      written = R > 1 || groups[0]?.word >= 0,
      shifted = way?.words.some(isMoved);
    const body = frame(host, {
      title: "Recording",
      name: "audio",
      hint: `From top to bottom: ${way ? `word times by ${way.key}, ${shifted ? "the same times with boundaries moved to pauses, " : ""}` : ""}the waveform, the log-mel spectrogram that the model reads (low frequencies at the bottom), and the attention of ${written ? "each word" : "the prediction"}. Hover for values.`,
      csv: () => [
        ["word", "begins", "ends", "begins, at pauses", "ends, at pauses"],
        ...(way?.words || []).map((word) => [word.text, word.start, word.end, ...word.moved]),
      ],
    });
    const bar = body.appendChild(el("div", { class: "row noexport" })),
      needle = el("i", { class: "needle", style: "display:none" });
    /** @type {(from: number, to: number) => void} */
    const heard = (from, to) => {
      if (audio) play(audio, needle, (at) => `${(100 * at) / seconds}%`, from, to);
    };
    if (audio)
      bar.append(
        el(
          "button",
          {
            class: "chip",
            "data-key": "play",
            onclick: () => (player ? player.stop() : heard(0, section.seconds)),
          },
          "▶ play",
        ),
      );
    else
      bar.append(
        el(
          "span",
          { class: "soft small" },
          "The recording is too long to be included in the page.",
        ),
      );
    const ofHeads = [
      { key: "head", label: "one head" },
      { key: "mean", label: "mean of heads" },
    ];
    const aligned = section.follows ? "heads that align" : "closest to aligning";
    if (some)
      chips(
        bar,
        [
          ...(section.aligning.length ? [{ key: "aligning", label: aligned }] : []),
          ...(section.means.length ? ofHeads : []),
          ...maps.map((one) => ({ key: one.key, label: one.label, title: one.how })),
        ],
        map,
        (audioMap) => page.set({ audioMap }),
      );
    /** @type {(label: "layer" | "head", count: number, value: number) => void} */
    const select = (label, count, value) =>
      bar.append(
        el(
          "label",
          { class: "small soft" },
          label + " ",
          el(
            "select",
            {
              "data-key": label,
              onchange: (event) =>
                page.set({
                  kind,
                  [label]: Number(event.target.value),
                  audioMap: map === "mean" ? "mean" : "head",
                }),
            },
            Array.from({ length: count }, (_, i) =>
              el("option", { value: i, selected: i === value }, i + 1),
            ),
          ),
        ),
      );
    if (map === "head" || map === "mean") select("layer", section.means.length, layer);
    if (map === "head" && section.heads) select("head", section.heads[layer].shape[0], head);
    if (times.length > 1)
      chips(
        bar,
        times.map((one) => ({ key: one.key, label: `times by ${one.key}`, title: one.how })),
        way.key,
        (audioTimes) => page.set({ audioTimes }),
      );

    const label = 66,
      width = Math.max(220, Math.min(body.clientWidth - label - 6, 1120)),
      says = el("p", { class: "says num small", role: "status" });
    const tracks = el("div", { class: "tracks", style: `width:${width}px;margin-left:${label}px` }),
      X = (/** @type {number} */ at) => (width * at) / seconds,
      covered = Math.min(1, (S * row_s) / seconds);
    body.append(el("div", { class: "scroll" }, tracks), says);
    /** @type {(title: string, node: Element) => void} */
    const put = (title, node) =>
      tracks.append(
        el("div", { class: "track" }, title && el("b", { class: "small soft" }, title), node),
      );
    if (way) {
      put("words", said(way.words, "word", X, width, heard));
      if (shifted)
        put(
          "pauses",
          said(
            way.words.map((word) => ({ ...word, start: word.moved[0], end: word.moved[1] })),
            "moved",
            X,
            width,
            heard,
          ),
        );
    }
    if (ends) put("wave", wave(sub(ends, 0), sub(ends, 1), width, 58, "waveform"));
    if (mel) {
      const [A, F] = mel.shape,
        turned = Float32Array.from(
          { length: A * F },
          (_, i) => mel[(i % A) * F + F - 1 - Math.floor(i / A)],
        ),
        sorted = Float32Array.from(mel).sort();
      put(
        "mel",
        track(turned, F, A, width, 130, {
          low: sorted[Math.floor(0.02 * sorted.length)],
          high: sorted[Math.floor(0.995 * sorted.length)],
          map: "blues",
        }),
      );
    }
    if (weights) {
      const high = weights.reduce((a, b) => Math.max(a, b), 0),
        line = clamp(Math.round(260 / R), 9, 22),
        box = el(
          "div",
          { class: "looked", style: `height:${R * line}px` },
          track(weights, R, S, width, R * line, {
            high: high || 1,
            map: "oranges",
            share: covered,
          }),
        );
      if (section.rows && map === "aligning" && R > 1) {
        const path = section.rows
          .map(([a, b], r) =>
            b > a ? `${X(a * row_s)},${(r + 0.5) * line} ${X(b * row_s)},${(r + 0.5) * line}` : "",
          )
          .filter(Boolean)
          .join(" ");
        box.append(
          svg(
            "svg",
            {
              width,
              height: R * line,
              class: section.follows ? "path" : "path loose",
              "aria-label": "best path through the audio",
            },
            svg("polyline", { points: path }),
          ),
        );
      }
      const mine = groups[at].rows;
      if (written)
        box.append(
          el("i", {
            class: "mine",
            style: `top:${mine[0] * line}px;height:${mine.length * line}px`,
          }),
          el(
            "div",
            { class: "names small" },
            (line < 14 ? groups : outputs.map((out, r) => ({ name: out.name, rows: [r] }))).map(
              ({ name: one, rows }) =>
                el(
                  "button",
                  {
                    class: mine.includes(rows[0]) ? "picked" : null,
                    title: one,
                    style: `top:${rows[0] * line}px;height:${rows.length * line}px;line-height:${rows.length * line}px;font-size:${Math.min(12, rows.length * line - 1)}px`,
                    onclick: () => page.set({ row: outputs[rows[0]].row ?? 0 }),
                  },
                  shortText(one, 9),
                ),
            ),
          ),
        );
      put(written ? "" : "attention", box);
      box.onpointermove = (event) => {
        const area = box.getBoundingClientRect(),
          s = Math.floor((((event.clientX - area.left) / width) * seconds) / row_s),
          r = clamp(Math.floor((event.clientY - area.top) / line), 0, R - 1);
        if (s < 0 || s >= S) return tip(null);
        const x = weights[r * S + s];
        says.replaceChildren(
          `${outputs[r].name} at ${clock(s * row_s)} `,
          el("b", { "data-value": x, "data-place": s, "data-row": r }, number(x, 4)),
        );
        return tip(event, `${outputs[r].name}  ${clock(s * row_s)}  ${number(x, 4)}`);
      };
      box.onpointerleave = () => tip(null);
    }
    put(
      "",
      svg(
        "svg",
        { width, height: 20, "aria-hidden": "true" },
        niceTicks(0, seconds, width / 90).map(([v]) => [
          svg("line", { class: "axis", x1: X(v), x2: X(v), y1: 0, y2: 5 }),
          svg(
            "text",
            { x: X(v), y: 17, class: v && X(v) > width - 20 ? "end" : v ? "mid" : "" },
            `${number(v, 2)} s`,
          ),
        ]),
      ),
    );
    tracks.append(needle);
    if (some) {
      body.append(
        el(
          "p",
          { class: "small" },
          whole ? whole.how : `${name[0].toUpperCase()}${name.slice(1)}: `,
          map === "aligning" && [
            section.aligning.map(([l, h]) => page.head(kind, l, h)).join(", "),
            ". ",
            el("span", { "data-says": "" }, section.says),
          ],
        ),
        el(
          "p",
          { class: "note small" },
          el("b", { "data-truth": key }, `Measured: ${page.truth(key)}. `),
          measured(page),
          section.caution,
        ),
      );
    } else body.append(el("p", { class: "empty" }, "There are no outputs to show maps for."));
    if (section.skipped.length)
      body.append(
        el(
          "p",
          { class: "small soft" },
          section.skipped.map(([one, why]) => `${one}: ${why}. `),
        ),
      );
    if (way) {
      const list = frame(host, {
        title: "Word times",
        name: "times",
        hint: `Times in seconds. ${times.map((one) => `${one.key}: ${one.how}`).join("; ")}. ${shifted ? `“At pauses”: boundaries moved to the nearest pauses in the audio${times.length > 1 && times[0].words.every((word, i) => word.moved.every((x, k) => same(x, times[1].words[i].moved[k]))) ? "; both methods then agree, because the pauses determine these times" : ""}.` : "No pause was close enough to move a boundary to."}${audio ? " Click a row to play the word." : ""}`,
        csv: () => [
          [
            "word",
            ...times.flatMap(({ key: one }) =>
              ["begins", "ends", "begins, at pauses", "ends, at pauses"].map((x) => `${one} ${x}`),
            ),
            "probability",
          ],
          ...way.words.map((word, i) => [
            word.text,
            ...times.flatMap(({ words }) => [words[i].start, words[i].end, ...words[i].moved]),
            word.confidence,
          ]),
        ],
      });
      const off = (/** @type {number | null} */ ms) =>
        ms === null ? "" : `, error ${Math.round(ms)} ms`;
      table(
        list,
        [
          "word",
          ...times.flatMap((one) => [
            `by ${one.key}${off(one.own_ms)}`,
            ...(shifted ? [`at pauses${off(one.median_ms)}`] : []),
          ]),
          "probability",
        ],
        way.words.map((word, i) => [
          word.text,
          ...times.flatMap(({ words }) => [
            span([words[i].start, words[i].end]),
            ...(shifted ? [span(words[i].moved)] : []),
          ]),
          word.confidence,
        ]),
        { onclick: audio ? (_, i) => heard(...way.words[i].moved) : null },
      );
    }
    if (section.ctc) {
      const { names, probabilities } = section.ctc,
        card = frame(host, {
          title: "CTC probabilities",
          name: "ctc",
          hint: `Probability of each output symbol over time; ${names.at(-1)} is the blank (no symbol).`,
          csv: () => [
            ["second", ...names],
            ...Array.from({ length: S }, (_, s) => [
              s * row_s,
              ...names.map((_one, i) => probabilities[i * S + s]),
            ]),
          ],
        });
      lines(card, {
        series: names.map((one, i) => ({
          name: one,
          colour: i === names.length - 1 ? "var(--edge)" : null,
          points: Array.from({ length: S }, (_, s) => [s * row_s, probabilities[i * S + s]]),
        })),
        x: "seconds",
        y: { label: "probability", low: 0, high: 1 },
        height: 200,
      });
    }
    if (section.shares && section.heads) {
      const card = frame(host, {
        title: "Heads that follow the audio",
        name: "aligning",
        hint: `The fraction of the attention of each head that is on its own best path through time. 1 follows the speech at every step; uniform attention has ${number(1 / R, 2)}. The line is made from the marked heads of the last layer; heads of lower layers often attend to the previous word.`,
      });
      bars(
        card,
        section.shares
          .flatMap((of, l) =>
            of.map((value, h) => ({
              l,
              h,
              value,
              label: page.head(kind, l, h),
              picked: section.aligning.some(([a, b]) => a === l && b === h),
            })),
          )
          .sort((a, b) => b.value - a.value)
          .slice(0, 16)
          .map((one) => ({
            ...one,
            note: one.picked ? (section.follows ? "used for times" : "closest") : null,
          })),
        { max: 1, onclick: ({ l, h }) => page.set({ layer: l, head: h, audioMap: "head" }) },
      );
    }
  },
};
