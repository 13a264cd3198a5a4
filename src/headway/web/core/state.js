// @ts-check
// The state of the view is in the `#` of the address, so that a link restores the same view.
// Links are untrusted: numbers must be integers, and names of Object.prototype are skipped.
const NUMBERS = /^(look|other|layer|head|row|column|neuronsN|overview_item)$|(Node|Token|Factor)$/;

/** @returns {State} */
function readState() {
  /** @type {Record<string, string | number>} */
  const state = {};
  for (const [key, value] of new URLSearchParams(location.hash.slice(1))) {
    if (key in {} || value in {}) continue;
    if (!NUMBERS.test(key)) state[key] = value;
    else if (/^-?\d+$/.test(value)) state[key] = Number(value);
  }
  return state;
}

/** @param {State} state */
function writeState(state) {
  const words = new URLSearchParams(Object.entries(state).filter(([, value]) => value != null));
  try {
    history.replaceState(null, "", "#" + words);
  } catch {
    // A sandboxed frame has no address of its own; the state then lives only in the page.
  }
}

/**
 * What a page gives its panels. `redraw` draws the tab again.
 * @param {PageData} data
 * @param {() => void} redraw
 * @returns {Page}
 */
function makePage(data, redraw) {
  /** @type {Page} */
  const page = {
    data,
    state: readState(),
    live: null,
    // The last checkpoint is the finished model; the page starts with it.
    get steps() {
      return page.data.looks.every((look) => look.step != null);
    },
    get look() {
      const last = page.data.looks.length - 1;
      return page.data.looks[clamp(page.state.look ?? (page.steps ? last : 0), 0, last)];
    },
    get other() {
      const looks = page.data.looks,
        here = looks.indexOf(page.look);
      const at = page.state.other ?? (page.steps ? -1 : here === 0 ? 1 : 0);
      return at === here ? null : looks[at] || null;
    },
    section: (name) => page.look.sections[name] || page.data.shared[name] || null,
    otherSection: (name) => page.other?.sections[name] || null,
    stream: (name) => page.look.streams[name],
    head: (kind, layer, head) => `${kind} ${layer + 1}.${head + 1}`,
    set(changes) {
      const state = Object.entries({ ...page.state, ...changes });
      page.state = Object.fromEntries(state.filter(([, value]) => value !== null));
      writeState(page.state);
      redraw();
    },
    get truths() {
      return page.look.truth || page.data.shared.truth;
    },
    truth(map) {
      const found = page.truths?.maps[map];
      if (!found) return "not validated";
      const random = found.random == null ? "" : ` (random ${found.random.toFixed(2)})`;
      return `P@1 ${found.p1.toFixed(2)}${random}, ${found.n} ${page.truths.unit || "cases"}`;
    },
    async open(packed) {
      page.data = await openPacked(packed);
      redraw();
    },
  };
  return page;
}
