// How the model knows places: the code as a picture, its kernel, its shift, its slow tail, its use.
const KINDS = {
  learned: "A trained vector for each place, added to the token",
  sinusoidal: "Sines and cosines in turns, from fast (left) to slow (right), added to the token",
  "sinusoidal-halves": "All sines, then all cosines, each from fast to slow, added to the token",
  rotary: "Cosines (left half) and sines (right half) of the angles by which queries and keys turn",
  alibi: "A penalty that grows with the distance, at another slope for each head",
  relative: "A trained number for each head and distance",
};

function picture(host, data, size, tall, across, down) {
  const [R, C] = data.shape, small = { class: "small soft", style: "margin:0" };
  const cell = (offset, whole, n) => clamp(Math.floor((offset / whole) * n), 0, n - 1);
  const canvas = el("canvas", { width: C, height: R, role: "img", "aria-label": `${down} by ${across}`, class: "code", style: `max-width:${C * 7}px;height:${R * tall}px`,
    onpointermove: (event) => {
      const c = cell(event.offsetX, canvas.clientWidth, C), r = cell(event.offsetY, canvas.clientHeight, R);
      tip(event, `${down} ${r + 1}, ${across} ${c + 1}: ${number(data[r * C + c])}`);
    }, onpointerleave: () => tip(null) });
  const brush = canvas.getContext("2d"), image = brush.createImageData(C, R);
  drawCells(image, data, R, C, -size, size, "diverging");
  brush.putImageData(image, 0, 0);
  host.append(el("p", small, `${across} 1 … ${C} →`), canvas, el("p", small, `↑ ${down} 1 … ${R}`));
}

const fact = (name, value, text) => el("p", {}, text, el("b", { class: "num", "data-fact": name, "data-value": value }, typeof value === "number" ? number(value) : value));
const said = (text) => el("p", { class: "small soft" }, text);
const points = (values, from = 1) => Array.from(values, (y, i) => [i + from, y]);

function biases(host, { bias, distances, kind }, name) {
  const heads = Array.from({ length: bias.shape[0] }, (_, h) => ({ name: "head " + (h + 1), points: distances.map((d, i) => [d, bias[h * distances.length + i]]) }));
  const body = frame(host, { title: `Positions${name}`, name: "positions", hint: `${KINDS[kind]}. It is added to the scores: a distance that gets more is looked at more.`,
    csv: () => [["distance", ...heads.map((head) => head.name)], ...distances.map((d, i) => [d, ...heads.map((head) => head.points[i][1])])] });
  lines(body, { series: heads, x: "distance (key place less query place)", y: "added to the score", height: 280 });
}

function shifts(host, { turn, shifts: all }) {
  const column = (name, title) => ({ name, title }), one = all[0], exact = turn ? [column("turned", "largest error of the rotation, in 32 bits")] : [];
  if (!one) return;
  host.append(el("h3", {}, "Is a step of k places one and the same matrix?"));
  table(host, ["k", ...exact, column("fitted", "relative error of least squares, on its own places"), column("next places", "the same matrix on the places behind them"),
    ...(turn ? [column("in 2×2 blocks", "fitted pair by pair, on the places behind them")] : [])],
  all.map(({ k, exact: error, fitted, tested, blocks }) => (turn ? [k, error, fitted, tested, blocks] : [k, fitted, tested])));
  host.append(said(turn ? `Yes: code(p + 1) = R·code(p) for every place p, to ${number(one.exact, 1)}. But a matrix fitted freely is right on its own places and off by ${percent(one.tested)} on the next ones, because slow pairs look alike.`
    : `A matrix found on the first places is off by ${percent(one.tested)} on the next ones.`));
  if (turn) {
    host.append(said("R for one place, fastest pairs: each pair turns by its own angle."));
    picture(host, turn, 1, 7, "column", "row");
  }
}

function tables(host, code, name) {
  const { colours: size, spread, kernel, use, use_spearman: rho } = code, rotary = code.kind === "rotary";
  const body = frame(host, { title: `The code of the places${name}`, name: "positions", hint: `${KINDS[code.kind]}. A row is a place, a column a dimension.`,
    csv: () => Array.from({ length: code.picture.shape[0] }, (_, r) => Array.from(sub(code.picture, r))) });
  picture(body, code.picture, size, 5, "dimension", "place");
  legend(body, { low: -size, high: size, map: "diverging" });
  const pair = el("div", { class: "grid2" }, el("div"), el("div"));
  frame(host, { title: "How alike are two places?", name: "kernel", hint: "The cosine of two codes by their distance: a good code falls and never comes back.",
    csv: () => [["distance", "cosine", "spread"], ...Array.from(kernel, (k, d) => [d, k, spread[d]])] }).append(pair);
  const curve = (label, by) => ({ name: label, points: points(kernel.map((k, d) => k + by * spread[d]), 0) });
  lines(pair.children[0], { series: [curve("mean over all places", 0), ...(Math.max(...spread) > 0.01 ? [curve("one spread more", 1), curve("one spread less", -1)] : [])], x: "places apart", y: "cosine" });
  pair.children[0].append(fact("twin", code.twin, `The two most alike places are ${code.twin_apart} apart; as vectors of length 1 they differ by `),
    fact("spearman", code.kernel_spearman, "Are places less alike the further apart they are? 1: always, 0: no rule; here "));
  shifts(pair.children[1], code);
  const third = frame(host, { title: rotary ? "Which speeds do queries and keys use?" : "What is left for meaning?", name: "use",
    hint: rotary ? "Size of the weights of queries times keys, beside the speed of each pair." : "Dimensions in which the code hardly moves are free. The lines show how much code and token embeddings vary.",
    csv: () => [["dimension", "code", "use"], ...Array.from(use, (u, i) => [i + 1, code.code_use[i], u])] });
  third.append(fact("slow", percent(code.slow_here), `Dimensions that move less than a tenth over ${code.n_places} places: `),
    said("By length: " + code.slow.map(([n, share]) => `${percent(share)} at ${n}`).join(", ") + "."));
  const [one, other, unit] = rotary ? ["speed", "queries × keys", "pair"] : ["variance of the code", "variance of the embeddings", "dimension"];
  lines(third, { series: [{ name: one, points: points(code.code_use) }, { name: other, points: points(use) }], x: `${unit} 1 … ${use.length}`, y: "share of the largest" });
  third.append(fact("use", rho, "Do both lines rise and fall together? 1: always, 0: no rule, −1: the other way round; here "), said(Math.abs(rho) < 0.2 ? "No clear pattern." : rotary ? `${rho < 0 ? "Slow" : "Fast"} pairs are used more.` : rho < 0 ? "Meaning keeps to where the code is quiet." : "Both move in the same dimensions."));
}

PANELS.positions = {
  title: "Positions",
  draw(host, section) {
    for (const code of section.codes) (code.bias ? biases : tables)(host, code, code.stacks.length > 1 || code.stacks[0] === "self" ? "" : `, ${code.stacks[0]}`);
  },
};
