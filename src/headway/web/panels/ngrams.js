// @ts-check
// Predictions of the two members of a model, and the n-grams of this text for and against them.
PANELS.ngrams = {
  title: "N-grams",
  limits: (section, page) => ({ row: 1 + (page.look.outputs.at(-1)?.row ?? 0) }),
  draw(host, section, page) {
    const outputs = page.look.outputs,
      at = page.state.row ?? 0,
      r = Math.max(
        0,
        outputs.findIndex((one) => (one.row ?? 0) >= at),
      );
    const { label, members, effects } = section.outputs[r],
      [stream] = Object.values(page.look.streams).slice(-1),
      weights = sub(section.tokens, r);
    const body = frame(host, {
      title: "Predictions of the two members",
      name: "members",
      hint: `This model combines its layers with an n-gram table. The prediction is the weighted mean of their logits: ${percent(section.share)} n-grams, ${percent(1 - section.share)} layers. Attention, heads and neurons concern the layers only; the logit lens, saliency maps and hidden tokens concern the whole model.`,
      csv: () => [
        ["output", "member", "its label", "probability", "probability of the final prediction"],
        ...section.outputs.flatMap((one, i) => one.members.map((row) => [outputs[i].name, ...row])),
      ],
    });
    if (outputs.length > 1)
      tokens(
        body,
        { pieces: outputs.map((one) => `${stream.pieces[one.row ?? 0]}: ${one.name}`) },
        { picked: r, onclick: (i) => page.set({ row: outputs[i].row }) },
      );
    const isNumber = section.kind === "number";
    const target = isNumber
      ? "distance of the number from the training mean"
      : section.kind === "labels"
        ? "logit of this label"
        : "margin of the prediction (its logit minus the mean of the other logits)";
    body.append(el("h3", {}, isNumber ? "Number" : `Probability of “${label}”`));
    bars(
      body,
      members.map(([name, own, p, value], i) => ({
        label: name,
        value,
        picked: i === members.length - 1,
        note: own === label ? "" : `its most probable label: “${own}” (${number(p)})`,
      })),
      { max: isNumber ? null : 1 },
    );
    const most = Math.max(...weights.map(Math.abs), 1e-12);
    const card = frame(host, {
      title: `N-grams for and against “${label}”`,
      name: "ngrams",
      hint: `Each n-gram of the text has a fixed logit for each label. A bar is its effect on the ${target}, including the weight of the n-gram table. All bars add up to this value.`,
      csv: () => [
        ["output", "n-gram", "effect"],
        ...section.outputs.flatMap((one, i) => one.effects.map((row) => [outputs[i].name, ...row])),
      ],
    });
    tokens(card, stream, { value: (i) => weights[i], low: -most, high: most, map: "diverging" });
    legend(card, {
      low: -most,
      high: most,
      map: "diverging",
      label: "n-grams of a token: against … for",
    });
    bars(
      card,
      effects.map(([name, value]) => ({
        label: name,
        value,
        colour: css(colour(value < 0 ? 0.15 : 0.85, "diverging")),
      })),
    );
  },
};
