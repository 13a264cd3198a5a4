// @ts-check
// Outputs for the same examples at several training steps.
PANELS.samples = {
  title: "Samples",
  draw(host, { names, steps, samples }) {
    const body = frame(host, {
      title: "Samples over time",
      name: "samples",
      hint: "Outputs of the model for the same validation examples at several training steps.",
      csv: () => [
        [...names, ...steps.map((step) => `step ${step}`)],
        ...samples.map((one) => [one.source, one.target, ...one.outputs]),
      ],
    });
    /** @type {(label: string, text: string | null, last?: boolean) => Child} */
    const line = (label, text, last) =>
      text != null && [
        el("dt", {}, label),
        el(
          "dd",
          { dir: "auto", class: last ? "last" : null },
          String(text).trim() === "" ? el("em", { class: "soft" }, "empty") : text,
        ),
      ];
    body.append(
      el(
        "div",
        { class: "grid2" },
        samples.map((one) =>
          el(
            "dl",
            { class: "sample" },
            line(names[0], one.source),
            line(names[1], one.target),
            steps.map((step, i) =>
              line(`step ${step.toLocaleString("en")}`, one.outputs[i], i === steps.length - 1),
            ),
          ),
        ),
      ),
    );
  },
};
