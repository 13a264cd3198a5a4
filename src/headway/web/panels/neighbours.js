// @ts-check
// For the selected token: the tokens of a corpus with the nearest hidden states, one column per layer.

/** @param {NeighbourLayer} layer */
const stackOf = (layer) => (layer.layer ? `layer ${layer.layer}` : "embedding");

/**
 * The layers of the selected stream.
 * @param {NeighboursSection} s
 * @param {Page} page
 */
function layersOf(s, page) {
  const streams = s.layers.map((l) => l.stream),
    name = streams.find((one) => one === page.state.neighboursStream) ?? streams[0];
  return s.layers.filter((l) => l.stream === name);
}

PANELS.neighbours = {
  title: "Neighbours",
  draw(host, s, page) {
    const streams = [...new Set(s.layers.map((l) => l.stream))],
      layers = layersOf(s, page),
      name = layers[0].stream,
      stream = page.stream(name),
      places = layers[0].places;
    const asked = places.indexOf(page.state.row ?? -1),
      row = asked >= 0 ? asked : Math.floor(places.length / 2),
      place = places.at(row);
    const body = frame(host, {
      title: "Nearest tokens in a corpus",
      name: "neighbours",
      hint: `Select a token to see the tokens of ${s.corpus} (${s.tokens[name].toLocaleString("en")} tokens) with the most similar hidden states, by cosine similarity after the mean state is subtracted. In the embedding they are mostly the same word; in higher layers they have the same role or meaning.`,
      csv: () => [
        ["token", "layer", "rank", "cosine", "found", "context"],
        ...layers.flatMap((l) =>
          l.places.flatMap((p, r) =>
            l.hits[r].map((t, k) => [
              stream.pieces[p],
              l.layer,
              k + 1,
              sub(l.cosines, r, k),
              s.texts[t][1][s.texts[t][0]].trim(),
              s.texts[t][1].join("").trim(),
            ]),
          ),
        ),
      ],
    });
    if (streams.length > 1)
      chips(
        body,
        streams.map((key) => ({ key, label: key })),
        name,
        (key) => page.set({ neighboursStream: key, row: null }),
      );
    tokens(body, stream, {
      picked: place,
      onclick: (i) => places.includes(i) && page.set({ neighboursStream: name, row: i }),
    });
    const columns = el("div", { class: "hits" });
    body.append(columns);
    for (const l of layers) {
      const column = el("div", { "data-layer": l.layer }, el("h3", {}, stackOf(l)));
      columns.append(column);
      l.hits.at(row)?.forEach((t, k) => {
        const [at, pieces, seen] = s.texts[t],
          cosine = sub(l.cosines, row, k),
          rgb = colour(clamp(cosine, 0, 1), "oranges");
        column.append(
          el(
            "div",
            { class: "small hit", "data-hit": k },
            el("span", { class: "num soft", "data-value": cosine }, number(cosine, 2)),
            el(
              "span",
              {},
              patch(seen),
              `…${pieces.slice(0, at).join("")}${pieces[at].startsWith(" ") ? " " : ""}`,
              el(
                "b",
                {
                  "data-found": pieces[at].trim(),
                  class: "lit",
                  style: `background:${css(rgb)};color:${ink(rgb)}`,
                },
                pieces[at].trim(),
              ),
              `${pieces.slice(at + 1).join("")}…`,
            ),
          ),
        );
      });
    }
  },
  limits(s, page) {
    return { row: Math.max(-1, ...layersOf(s, page)[0].places) + 1 };
  },
};
