// Every number that an experiment measured, a column for each seed.
PANELS.labnumbers = {
  title: "Numbers",
  draw(host, { rows }) {
    const seeds = rows.length ? rows[0].length - 1 : 0, heads = ["number", ...Array.from({ length: seeds }, (_, i) => `seed ${i + 1}`)];
    const body = frame(host, { title: "All that was measured", name: "numbers", hint: "As in numbers.json, which has long lists in full.", csv: () => [heads, ...rows] });
    table(body, heads, rows.map(([name, ...values]) => [name, ...values.map((one) => (typeof one === "number" ? one : String(one ?? "–")))]));
  },
};
