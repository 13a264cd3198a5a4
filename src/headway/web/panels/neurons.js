// @ts-check
// Factors of feed-forward activations: which neurons fire together, drawn below the text.

/** Height of the bars of a row and width of a token, in pixels. */
const HIGH = 26,
  STEP = 13;

/**
 * The weights of a factor by token, as a button with bars.
 * @param {Floats<1>} weights
 * @param {number} most
 * @param {Stream} stream
 * @param {boolean} picked
 * @param {() => void} onclick
 */
function spark(weights, most, stream, picked, onclick) {
  const n = weights.length,
    width = n * STEP;
  const drawing = svg(
    "svg",
    {
      class: "spark",
      width,
      height: HIGH + 2,
      viewBox: `0 0 ${width} ${HIGH + 2}`,
      role: "img",
      "aria-label": `activation by token, highest ${number(Math.max(...weights))}`,
      onpointermove: (event) => {
        const box = drawing.getBoundingClientRect(),
          i = clamp(Math.floor(((event.clientX - box.left) / box.width) * n), 0, n - 1);
        tip(event, `${stream.pieces[i]}: ${number(weights[i])}`);
      },
      onpointerleave: () => tip(null),
    },
    svg("line", { x1: 0, x2: width, y1: HIGH + 0.5, y2: HIGH + 0.5, stroke: "var(--line)" }),
    Array.from(weights, (w, i) =>
      svg("rect", {
        x: i * STEP + 1,
        width: STEP - 2,
        y: HIGH - HIGH * (w / most),
        height: HIGH * (w / most),
        rx: 1.5,
        fill: picked ? "var(--s1)" : "var(--s5)",
        "data-value": w,
      }),
    ),
  );
  return el(
    "button",
    { class: "sparkrow", type: "button", onclick, "aria-pressed": String(picked) },
    drawing,
  );
}

/**
 * The tokens with the largest weights.
 * @type {(weights: Floats<1>, stream: Stream) => string[]}
 */
const best = (weights, stream) =>
  [...weights.keys()]
    .sort((a, b) => weights[b] - weights[a])
    .slice(0, 4)
    .filter((i) => weights[i] > 0.15 * Math.max(...weights))
    .map((i) => stream.pieces[i]);

PANELS.neurons = {
  title: "Neurons",
  draw(host, section, page) {
    const names = Object.keys(section.stacks),
      name = names.find((one) => one === page.state.neuronsStack) ?? names[names.length - 1];
    const stack = section.stacks[name],
      stream = page.stream(stack.stream),
      numbers = Object.keys(stack.choices).map(Number);
    const n = numbers.find((one) => one === page.state.neuronsN) ?? stack.usual,
      found = stack.choices[n];
    const at = clamp(page.state.neuronsFactor ?? 0, 0, n - 1),
      all = Array.from({ length: n }, (_, k) => sub(found.weights, k));
    const most = Math.max(...all.map((w) => Math.max(...w))) || 1,
      top = Math.max(...all[at]) || 1;
    const body = frame(host, {
      title: "Neurons that fire together",
      name: "neurons",
      hint: `Non-negative factors of the feed-forward activations (${stack.layers} layers × ${stack.neurons.toLocaleString("en")} neurons). Each row is a group of neurons that fire together on this text; bars are tokens, from left to right. Click a row to colour the text by it.`,
      csv: () => [["factor", ...stream.pieces], ...all.map((w, k) => [k + 1, ...w])],
    });
    if (names.length > 1)
      chips(
        body,
        names.map((key) => ({ key, label: key })),
        name,
        (key) => page.set({ neuronsStack: key, neuronsFactor: null, neuronsN: null }),
      );
    const choice = el("div", { class: "row small" }, el("span", { class: "soft" }, "factors"));
    body.append(choice);
    chips(
      choice,
      numbers.map((key) => ({ key: String(key), label: String(key) })),
      String(n),
      (key) => page.set({ neuronsN: Number(key), neuronsFactor: null }),
    );
    tokens(body, stream, {
      value: (i) => all[at][i],
      low: 0,
      high: top,
      title: (i) => `${stream.pieces[i]}: ${number(all[at][i])}`,
    });
    legend(body, { low: 0, high: top, label: `factor ${at + 1}` });
    const rows = el(
      "div",
      { class: "factorrows" },
      all.map((w, k) => [
        el("span", { class: "small num " + (k === at ? "strong" : "soft") }, `factor ${k + 1}`),
        spark(w, most, stream, k === at, () => page.set({ neuronsFactor: k })),
        el("span", { class: "small soft" }, best(w, stream).join(" · ")),
      ]),
    );
    for (const button of rows.querySelectorAll("button"))
      button.style.cssText =
        "border:0;background:none;padding:0;cursor:pointer;line-height:0;text-align:left";
    body.append(el("div", { class: "scroll" }, rows));
    body.append(
      el(
        "p",
        { class: "small soft" },
        `${n} factors explain `,
        el(
          "b",
          { "data-explained": found.explained, "data-value": found.explained },
          percent(found.explained),
        ),
        " of the sum of squares of the positive activations. " +
          (stack.clipped
            ? `Negative activations (${percent(stack.clipped)} of all squares) are set to zero first, as in Ecco.`
            : ""),
      ),
    );
    const sides = el("div", { class: "grid2" }),
      left = el("div"),
      right = el("div");
    const card = frame(host, {
      title: `Factor ${at + 1}`,
      name: "neurons-factor",
      hint: "The layers of its neurons, and the neurons with the largest loadings.",
      csv: () => [
        ["layer", "neuron", "loading"],
        ...found.top[at].map(([l, i, v]) => [l + 1, i, v]),
      ],
    });
    card.append(sides);
    sides.append(left, right);
    left.append(el("h3", {}, "Share by layer"));
    bars(
      left,
      Array.from(sub(found.layers, at), (value, l) => ({ label: `layer ${l + 1}`, value })),
      { max: 1 },
    );
    right.append(el("h3", {}, "Strongest neurons"));
    bars(
      right,
      found.top[at].map(([l, i, value]) => ({ label: `layer ${l + 1}, neuron ${i}`, value })),
    );
  },
};
