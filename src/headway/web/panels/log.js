// Every evaluation, and what happened besides.
PANELS.log = {
  title: "Log",
  draw(host, { metrics, evaluations, events, more }) {
    const heads = ["step", ...metrics.map((one) => one.label + (one.unit && `, ${one.unit}`))];
    if (evaluations.length) {
      const body = frame(host, { title: "All evaluations", name: "evaluations", hint: "On the validation data, or a part of it; a click on a heading sorts.", csv: () => [heads, ...evaluations] });
      table(body, heads, evaluations);
    }
    if (events.length) {
      const body = frame(host, { title: "Events", name: "events", csv: () => [["step", "what happened"], ...events] });
      table(body, ["step", "what happened"], events);
      if (more) body.append(el("p", { class: "soft small" }, more));
    }
  },
};
