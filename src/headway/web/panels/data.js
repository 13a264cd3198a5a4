// @ts-check
// How the columns of the data are used, the amount of data, and the findings of the data check.
PANELS.data = {
  title: "Data",
  draw(host, { tables, findings, counts, labels }) {
    for (const { file, form, columns } of tables) {
      const body = frame(host, {
        title: file.split("/").pop() || "Files",
        hint: form,
        name: "columns",
        csv: columns && (() => [["column", "used as", "type", "example"], ...columns]),
      });
      if (columns)
        table(
          body,
          ["column", "used as", "type", "example"],
          columns.map(([name, need, kind, value]) => [
            name,
            need ? el("b", {}, need) : el("span", { class: "soft" }, "–"),
            kind,
            el("span", { dir: "auto", class: need ? null : "soft" }, value),
          ]),
        );
    }
    if (findings) {
      const body = frame(host, {
        title: "Data check",
        name: "check",
        csv: () => [["level", "finding"], ...findings.map((one) => [one.level, one.text])],
      });
      for (const line of counts || []) body.append(el("p", { class: "soft" }, line));
      if (!findings.length) body.append(el("p", {}, "No problems found."));
      body.append(
        el(
          "ul",
          { class: "findings" },
          findings.map((one) =>
            el(
              "li",
              {},
              el("i", { class: `level ${one.level}` }, one.level),
              " ",
              el("span", {}, one.text),
              (one.examples || [])
                .slice(0, 3)
                .map(({ place, source, target }) =>
                  el(
                    "small",
                    { dir: "auto" },
                    `${place}: ${source}${target ? ` │ ${target}` : ""}`,
                  ),
                ),
            ),
          ),
        ),
      );
    }
    if (labels?.length) {
      const body = frame(host, {
        title: `${labels.length} label${labels.length > 1 ? "s" : ""}`,
        name: "labels",
        hint: "Number of training examples with each label; next to it, the number of validation examples.",
        csv: () => [["label", "training", "validation"], ...labels],
      });
      bars(
        body,
        labels.slice(0, 40).map(([label, value, valid]) => ({
          label,
          value,
          note: valid ? `${valid.toLocaleString("en")} in validation data` : null,
        })),
      );
      if (labels.length > 40)
        body.append(el("p", { class: "soft small" }, `and ${labels.length - 40} more`));
    }
  },
};
