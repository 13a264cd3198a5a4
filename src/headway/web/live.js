// @ts-check
// The client of a served page: the only script that sends requests, and only to its own server. The
// controls below the title ask for another text, hide tokens, force a beginning or switch heads off.

/** @param {Page} page */
const liveOf = (page) => /** @type {LiveSection} */ (page.data.shared.live);

/** @type {Live} */
const LIVE = {
  draft: null,
  said: "",
  bad: false,
  busy: false,
  answers: 0,

  async send(request, asked) {
    const { post, ...more } = asked,
      key = sessionStorage.getItem("headway-key");
    const answer = await fetch(post, {
      method: "POST",
      body: JSON.stringify({ ...more, ...request }),
      headers: {
        "Content-Type": "application/json",
        Accept: "application/json",
        ...(key && { Authorization: "Bearer " + key }),
      },
    });
    const said = await answer.json();
    if (!answer.ok) throw new Error(said.error?.message || answer.statusText);
    return said;
  },

  async look(page, changes = {}) {
    if (LIVE.busy) return;
    const live = liveOf(page),
      request = { ...(LIVE.draft ?? live.request), ...changes };
    LIVE.busy = true;
    [LIVE.said, LIVE.bad] = ["computing …", false];
    LIVE.tell();
    try {
      const begun = performance.now(),
        said = await LIVE.send(request, live.asked);
      LIVE.draft = request;
      LIVE.said = `computed in ${Math.round(performance.now() - begun)} ms`;
      LIVE.busy = false;
      LIVE.answers += 1;
      await page.open(said.packed);
    } catch (error) {
      LIVE.busy = false;
      LIVE.answers += 1;
      [LIVE.said, LIVE.bad] = [error instanceof Error ? error.message : String(error), true];
      LIVE.tell();
    }
  },

  tell(root = document) {
    /** @type {HTMLElement | null} */
    const line = root.querySelector("[data-live=said]");
    if (!line) return;
    line.textContent = LIVE.said;
    line.style.color = LIVE.bad ? "var(--bad)" : "";
    line.dataset.answers = String(LIVE.answers);
  },

  bar(top, page) {
    const known = liveOf(page),
      draft = (LIVE.draft ??= { ...known.request });
    /** @type {(changes: Partial<LookRequest>) => unknown} */
    const act = (changes) => LIVE.look(page, changes);
    /** @type {(text: string) => Partial<LookRequest>} */
    const fresh = (text) => (text === page.look.text ? {} : { text, hidden: [], walk: null });
    const words = el("textarea", {
      rows: 1,
      "data-live": "text",
      "aria-label": "text",
      disabled: known.media,
      dir: "auto",
      spellcheck: "false",
      style:
        "flex:1 1 340px;min-width:0;resize:vertical;font:inherit;color:inherit;background:var(--card);border:1px solid var(--edge);border-radius:6px;padding:6px 9px",
      oninput: (event) => {
        draft.text = event.target.value;
      },
      onkeydown: (event) => {
        if (event.key === "Enter" && !event.shiftKey) {
          event.preventDefault();
          act(fresh(draft.text));
        }
      },
    });
    words.value = draft.text;
    /** @type {(key: LookField, label: string, attrs: Attributes<any>, width: string) => Node} */
    const box = (key, label, attrs, width) =>
      el(
        "label",
        { class: "small soft" },
        label + " ",
        el("input", {
          ...attrs,
          "data-live": key,
          value: draft[key] ?? "",
          style: `width:${width};font:inherit;color:var(--ink);background:var(--card);border:1px solid var(--edge);border-radius:6px;padding:2px 7px`,
          onchange: (event) => {
            const typed = event.target.value;
            const value = typed === "" ? known.plain[key] : key === "force" ? typed : Number(typed);
            Object.assign(draft, { [key]: value });
            act({ ...fresh(draft.text), [key]: value });
          },
        }),
      );
    /** @type {(key: LookField, label: string, low: number, high: number, step: number, hint: string | number) => Node} */
    const count = (key, label, low, high, step, hint) =>
      box(key, label, { type: "number", min: low, max: high, step, placeholder: hint }, "6em");
    const strip = el(
      "section",
      {
        class: "card noprint",
        "data-live": "strip",
        "aria-label": "Ask the model",
        style: "margin-top:10px;padding:11px 13px;display:grid;gap:9px",
      },
      el(
        "div",
        { class: "row", style: "align-items:center" },
        words,
        el(
          "button",
          {
            type: "button",
            class: "chip",
            "data-live": "go",
            onclick: () => act(fresh(draft.text)),
          },
          "Look",
        ),
        el(
          "button",
          {
            type: "button",
            class: "chip",
            "data-live": "reset",
            title: "Clear all changes: hidden tokens, forced beginning, heads switched off",
            onclick: () => act({ ...known.plain, text: draft.text }),
          },
          "Reset",
        ),
      ),
    );
    top.insertBefore(strip, top.querySelector("nav"));
    if (!known.media) LIVE.hideable(strip, page, act);
    const line = el(
      "div",
      { class: "row", style: "align-items:center" },
      known.writes &&
        box("force", "output begins with", { type: "text", placeholder: "any text" }, "11em"),
      known.writes && count("beam", "beam", 1, 32, 1, known.usual.beam),
      known.writes &&
        !known.continues &&
        count(
          "length_penalty_alpha",
          "length penalty",
          0,
          5,
          0.1,
          known.usual.length_penalty_alpha,
        ),
      known.writes && count("temperature", "temperature", 0.05, 5, 0.05, "off"),
      known.writes && draft.temperature && count("seed", "seed", 0, 1e9, 1, 1),
      known.continues && count("new", "new tokens", 1, 512, 1, 24),
      !known.media &&
        el(
          "label",
          {
            class: "small soft",
            title: "Saliency maps run the model about a hundred times, so the result takes longer",
          },
          el("input", {
            type: "checkbox",
            "data-live": "maps",
            checked: Boolean(draft.maps),
            onchange: (event) => act({ maps: event.target.checked }),
          }),
          " saliency maps (slow)",
        ),
      known.checkpoints.length > 1 &&
        el(
          "label",
          { class: "small soft" },
          "checkpoint ",
          el(
            "select",
            {
              "data-live": "checkpoint",
              onchange: (event) => act({ checkpoint: event.target.value }),
            },
            known.checkpoints.map((label) =>
              el(
                "option",
                { value: label, selected: label === (draft.checkpoint || "final") },
                label,
              ),
            ),
          ),
        ),
    );
    strip.append(line);
    LIVE.heads(strip, page, act);
    if (known.answer)
      strip.append(
        el(
          "div",
          { "data-live": "answer" },
          el("span", { class: "small soft" }, "output: "),
          el("bdi", {}, known.answer),
        ),
      );
    strip.append(
      el("div", { class: "small soft", role: "status", "data-live": "said" }),
      (known.note && el("div", { class: "small soft" }, known.note)) || "",
    );
    LIVE.tell(strip);
  },

  hideable(strip, page, act) {
    const { given: n, request } = liveOf(page),
      { hidden } = request;
    const name = Object.keys(page.look.streams)[0],
      stream = page.look.streams[name];
    /** @type {(i: number) => boolean} */
    const is = (i) => hidden.some(([s, place]) => s === name && place === i);
    /** @type {(i: number) => LookRequest["hidden"]} */
    const rest = (i) => hidden.filter(([s, place]) => !(s === name && place === i));
    const row = el(
      "div",
      { class: "row small", style: "align-items:center;gap:4px 10px" },
      el("span", { class: "soft" }, "click a token to hide it:"),
    );
    strip.append(row);
    const part = {
      pieces: stream.pieces.slice(0, n),
      words: stream.words.slice(0, n),
      special: stream.special.slice(0, n),
    };
    tokens(row, part, {
      onclick: (i) => act({ hidden: is(i) ? rest(i) : [...hidden, [name, i]] }),
      title: (i) =>
        is(i)
          ? "hidden: no other token can attend to it; click to show it"
          : "hide this token from all other tokens",
    }).forEach((node, i) => {
      node.dataset.hide = String(i);
      node.setAttribute("aria-pressed", String(is(i)));
      if (is(i)) node.style.cssText = "text-decoration:line-through;opacity:.5";
    });
  },

  heads(strip, page, act) {
    const { request, heads } = liveOf(page),
      { off } = request,
      [first] = Object.keys(heads);
    if (first === undefined) return; // a model without attention
    // The head that the panel shows. A panel without a head uses the one that Attention would show.
    const { kind, layer, head } = page.shown ||
      limitsOf(page, "attention").now || { kind: first, layer: 0, head: 0 };
    const name = `${kind}.${layer}.${head}`;
    const shown = (/** @type {string} */ id) => {
      const [k, l, h] = id.split(".");
      return page.head(k, Number(l), Number(h));
    };
    strip.append(
      el(
        "div",
        { class: "row small", style: "align-items:center;gap:4px 10px" },
        el("span", { class: "soft" }, "heads switched off:"),
        off.length ? null : el("span", { class: "soft" }, "none"),
        off.map((id) =>
          el(
            "button",
            {
              type: "button",
              class: "chip",
              "data-off": id,
              title: "switch this head on again",
              onclick: () => act({ off: off.filter((other) => other !== id) }),
            },
            shown(id) + " ✕",
          ),
        ),
        !off.includes(name) &&
          el(
            "button",
            {
              type: "button",
              class: "chip",
              "data-live": "off",
              "data-head": name,
              title: "Switch off the head shown in the panel below (select it with ↑ ↓ and 1–9)",
              onclick: () => act({ off: [...off, name] }),
            },
            "switch off " + shown(name),
          ),
      ),
    );
  },
};
