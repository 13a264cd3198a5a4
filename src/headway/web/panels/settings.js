// Every setting, with the reason why it is as it is.
PANELS.settings = {
  title: "Settings",
  draw(host, { rows, text }, page) {
    if (!rows) return frame(host, { title: "config.toml", name: "settings", hint: "It is no TOML that can be read." }).append(el("pre", { class: "scroll" }, text));
    const body = frame(host, { title: "Settings", name: "settings", hint: "What someone asked for, what was chosen and why, and what is as it always is.",
      csv: () => [["setting", "value", "how", "reason"], ...rows] });
    const picked = page.state.settingsHow || "all", counts = (how) => rows.filter((row) => how === "all" || row[2] === how || (how === "usual" && !row[2])).length;
    const bar = body.appendChild(el("div", { class: "row noexport" }));
    chips(bar, ["all", "asked", "chosen", "usual"].map((key) => ({ key, note: counts(key) })), picked, (settingsHow) => page.set({ settingsHow }));
    const search = el("input", { type: "search", placeholder: "search", "aria-label": "search in settings", "data-search": "" }), place = el("div");
    const show = () => {
      place.replaceChildren();
      const words = search.value.toLowerCase();
      const shown = rows.filter((row) => (picked === "all" || (row[2] || "usual") === picked) && row.join(" ").toLowerCase().includes(words));
      const cells = shown.map(([key, value, how, reason]) => [el("span", { class: "mono small value" }, key), el("span", { class: "mono small value" }, value),
        el("span", { class: how ? null : "soft", dir: "auto" }, how ? `${how}: ${reason}` : "as always")]);
      // Where there is little room the reason stands below the value.
      if (innerWidth > 560) table(place, ["setting", "value", "why"], cells);
      else table(place, ["setting", "value and why"], cells.map(([key, value, why]) => [key, el("div", {}, value, el("br"), why)]));
    };
    bar.append(search);
    body.append(place);
    search.addEventListener("input", show);
    show();
    return undefined;
  },
};
