// @ts-check
// Every number that an experiment measured, one column per seed.
PANELS.labnumbers = {
  title: "Numbers",
  draw(host, { rows }) {
    const seeds = rows.length ? rows[0].length - 1 : 0,
      heads = ["number", ...Array.from({ length: seeds }, (_, i) => `seed ${i + 1}`)];
    const body = frame(host, {
      title: "All measurements",
      name: "numbers",
      hint: "The values of numbers.json. Only the file contains long lists in full.",
      csv: () => [heads, ...rows],
    });
    table(
      body,
      heads,
      rows.map(([name, ...values]) => [
        name,
        ...values.map((one) => (typeof one === "number" ? one : String(one ?? "–"))),
      ]),
    );
  },
};
