// @ts-check
// All evaluations and events of a training run.
PANELS.log = {
  title: "Log",
  draw(host, { metrics, evaluations, events, more }) {
    const heads = ["step", ...metrics.map((one) => one.label + (one.unit && `, ${one.unit}`))];
    if (evaluations.length) {
      const body = frame(host, {
        title: "All evaluations",
        name: "evaluations",
        hint: "On the validation data or a part of it. Click a column heading to sort.",
        csv: () => [heads, ...evaluations],
      });
      table(body, heads, evaluations);
    }
    if (events.length) {
      const body = frame(host, {
        title: "Events",
        name: "events",
        csv: () => [["step", "event"], ...events],
      });
      table(body, ["step", "event"], events);
      if (more) body.append(el("p", { class: "soft small" }, more));
    }
  },
};
