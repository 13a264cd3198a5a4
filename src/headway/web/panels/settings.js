// @ts-check
// Every setting with its value and the reason for it.
PANELS.settings = {
  title: "Settings",
  draw(host, { rows, text }, page) {
    if (!rows) {
      frame(host, {
        title: "config.toml",
        name: "settings",
        hint: "This file could not be parsed as TOML.",
      }).append(el("pre", { class: "scroll" }, text));
      return;
    }
    const body = frame(host, {
      title: "Settings",
      name: "settings",
      hint: "Settings that were given, settings that were chosen automatically with the reason, and defaults.",
      csv: () => [["setting", "value", "how", "reason"], ...rows],
    });
    const picked = page.state.settingsHow || "all",
      counts = (/** @type {string} */ how) =>
        rows.filter((row) => how === "all" || row[2] === how || (how === "usual" && !row[2]))
          .length;
    const bar = body.appendChild(el("div", { class: "row noexport" }));
    chips(
      bar,
      Object.entries({ all: "all", asked: "given", chosen: "chosen", usual: "default" }).map(
        ([key, label]) => ({ key, label, note: counts(key) }),
      ),
      picked,
      (settingsHow) => page.set({ settingsHow }),
    );
    const search = el("input", {
        type: "search",
        placeholder: "search",
        "aria-label": "search settings",
        "data-search": "",
      }),
      place = el("div");
    const show = () => {
      place.replaceChildren();
      const words = search.value.toLowerCase();
      const shown = rows.filter(
        (row) =>
          (picked === "all" || (row[2] || "usual") === picked) &&
          row.join(" ").toLowerCase().includes(words),
      );
      const cells = shown.map(([key, value, how, reason]) => [
        el("span", { class: "mono small value" }, key),
        el("span", { class: "mono small value" }, value),
        el(
          "span",
          { class: how ? null : "soft", dir: "auto" },
          how ? `${how === "asked" ? "given" : how}: ${reason}` : "default",
        ),
      ]);
      // On narrow screens the reason is below the value.
      if (innerWidth > 560) table(place, ["setting", "value", "why"], cells);
      else
        table(
          place,
          ["setting", "value and why"],
          cells.map(([key, value, why]) => [key, el("div", {}, value, el("br"), why)]),
        );
    };
    bar.append(search);
    body.append(place);
    search.addEventListener("input", show);
    show();
  },
};
