// @ts-check
// All experiments of a folder: question, verdict and conclusion.

/**
 * Sign and colour of each verdict.
 * @type {Record<LabVerdict, [sign: string, tone: string]>}
 */
const TONES = {
  supported: ["✓", "good"],
  refuted: ["✗", "bad"],
  undecided: ["?", "warn"],
  "cannot tell": ["–", "warn"],
};

PANELS.labindex = {
  title: "Experiments",
  draw(host, { rows }) {
    const counts = Object.keys(TONES).map((word) => ({
      name: word,
      value: String(rows.filter((row) => row.verdict === word).length),
      note: "",
    }));
    tiles(host, counts);
    const body = frame(host, {
      title: "Questions and answers",
      name: "experiments",
      hint: 'Verdicts: supported, refuted, undecided (more seeds may decide) or "cannot tell" (the task is too easy or too hard). Click a question to open its page.',
      csv: () => [
        ["number", "question", "verdict", "answer", "measured"],
        ...rows.map((row) => [row.number, row.question, row.verdict, row.answer, row.measured]),
      ],
    });
    body.append(
      el(
        "ol",
        { class: "questions" },
        rows.map((row) => {
          const [sign, tone] = (row.verdict && TONES[row.verdict]) || ["·", "soft"];
          return el(
            "li",
            { value: row.number, "data-verdict": row.verdict || "none" },
            el(row.page ? "a" : "b", { href: row.page }, row.question),
            " ",
            el("b", { style: `color:var(--${tone})` }, `${sign} ${row.verdict || "not run yet"}`),
            " ",
            el("span", { class: "soft small" }, row.size || `headway lab ${row.experiment}`),
            row.answer && el("p", {}, row.answer),
            row.measured && el("p", { class: "soft small" }, row.measured),
          );
        }),
      ),
    );
  },
};
