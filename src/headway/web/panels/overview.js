// What the model is, what it answered, what strikes the eye.
const big = (value) => (typeof value === "number" ? value.toLocaleString("en") : value);

function drawAnswer(host, answer, page) {
  if (answer.size) return host.append(el("p", {}, answer.said || `A vector of ${answer.size} numbers, of length ${number(answer.length)}.`));
  const stream = Object.values(page.look.streams).pop();
  const word = (row) => stream.pieces.filter((_, i) => i === row || (stream.words[row] >= 0 && stream.words[i] === stream.words[row])).join("").replaceAll("##", "");
  const named = (item) => (answer.kind === "tags" ? `${word(item.row)}: ${item.name}` : item.name);
  const { items } = answer, shown = clamp(page.state.overview_item ?? answer.given ?? 0, 0, items.length - 1);
  const written = answer.writes;
  if (items.length > 1) {
    const part = (title, from, to) => {
      if (title) host.append(el("h3", {}, title));
      const some = items.slice(from, to);
      tokens(host, { pieces: some.map(named), words: written ? some.map((item) => stream.words[item.row + 1] ?? -1) : [] }, {
        value: (i) => some[i].p, title: (i) => `${some[i].name}: probability ${number(some[i].p)}`, picked: shown - from,
        onclick: (i) => page.set({ overview_item: from + i, row: some[i].row }),
      });
    };
    if (answer.given) part("Given: how well the model would have guessed it", 0, answer.given);
    part(answer.given ? "Written by the model" : "", answer.given || 0, items.length);
    legend(host, { label: "probability" });
  }
  const item = items[shown];
  host.append(el("h3", {}, written ? `Instead of “${item.name}”` : answer.kind === "tags" ? `Choices for “${word(item.row)}”` : "Choices" + (answer.kind === "gaps" ? ` for token ${item.row + 1}` : "")));
  bars(host, item.choices.map(([label, value]) => ({ label, value, picked: label === item.name })), { max: 1 });
}

function drawThumbnails(host, page) {
  const attention = page.section("attention");
  if (!attention) return;
  const body = frame(host, { title: "Attention at a glance", name: "glance",
    hint: "The mean over the heads of a layer; rows look at columns. Click one to see all of its heads." });
  const all = attention.kinds.flatMap((kind) => kind.layers.map((weights, layer) => ({ kind, layer, weights }))), per = Math.ceil(all.length / 12);
  body.append(el("div", { class: "thumbs" }, all.filter(({ kind, layer }) => (kind.layers.length - 1 - layer) % per === 0).map(({ kind, layer, weights }) => {
    const [H, T, S] = weights.shape, mean = new Float32Array(T * S), canvas = el("canvas");
    weights.forEach((x, i) => { mean[i % (T * S)] += x / H; });
    thumbnail(canvas, mean, T, S, 0, mean.reduce((a, b) => Math.max(a, b), 0.01));
    return el("button", { onclick: () => page.set({ tab: "attention", kind: kind.name, layer, head: null, map: "mean" }) },
      canvas, el("span", { class: "small soft" }, `${kind.name} ${layer + 1}`));
  })));
}

// What it looked at, as it is.
function drawSeen(host, page) {
  const frames = page.section("picture") && PANELS.picture ? PANELS.picture.frames(page) : [], moving = frames.length > 1;
  if (!frames.length) return;
  frame(host, { title: moving ? "The video" : "The picture", name: "seen" }).append(el("div", { class: "frames" }, frames.map((from, t) => {
    const canvas = el("canvas", { role: "img", "aria-label": moving ? `part ${t + 1} of the video` : "the picture", width: from.width, height: from.height,
      style: `width:${moving ? 110 : 200}px;border-radius:6px;image-rendering:${from.width < 128 ? "pixelated" : "auto"}` });
    canvas.getContext("2d").drawImage(from, 0, 0);
    return canvas;
  })));
}

PANELS.overview = {
  title: "Overview",
  draw(host, section, page) {
    tiles(host, section.numbers.map((one) => ({ ...one, value: big(one.value) })));
    drawSeen(host, page);
    // A trace from elsewhere may have no outputs.
    const { answer } = section;
    if (answer.size || answer.items?.length) drawAnswer(frame(host, { title: "The answer", name: "answer", hint: answer.said ? "" : answer.length ? "This model answers with a point in space: texts that mean the same lie close together."
      : answer.kind === "label" ? "How probable the model finds each label." : "How probable each part of the answer was when it was chosen; click one to see what it competed with.",
      csv: () => [["token", "probability"], ...(answer.items || []).map((item) => [item.name, item.p])] }), answer, page);
    drawThumbnails(host, page);
    const notes = frame(host, { title: "Worth knowing", name: "notes" });
    for (const { text, heads } of section.warnings) {
      const line = el("p", { class: "warning" }, text);
      if (heads.length) line.append(" ", el("span", { class: "chips" }, heads.slice(0, 24).map(([name, token, share]) => {
        const [kind, layer, head] = name.split(".");
        return el("button", { class: "chip", title: `${token} ${percent(share)}`.trim(), onclick: () => page.set({ tab: "attention", kind, layer: Number(layer), head: Number(head), map: null }) },
          page.head(kind, Number(layer), Number(head)));
      }), heads.length > 24 && ` and ${heads.length - 24} more`));
      notes.append(line);
    }
    notes.append(el("p", { class: "note" }, "Weights are not importance. Attention says where a head looks, not whether the answer hangs on it. Each map says how often it was right where the truth is known, or “not validated”."));
  },
};
