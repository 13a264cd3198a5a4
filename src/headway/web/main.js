// @ts-check
// Header, tabs, keyboard and start.

const OF_TOKENS = [
  ["← →", "previous or next token"],
  ["↑ ↓", "next or previous layer"],
  ["1 … 9", "select a head"],
];
const HELP = [
  ["[ ]", "previous or next tab"],
  ["/", "search"],
  ["?", "show this help"],
];

/**
 * The panels that have data and whose script is in the page.
 * @param {Page} page
 */
function panelNames(page) {
  const has = (/** @type {PanelName} */ name) =>
    page.data.shared[name] || page.data.looks.some((look) => look.sections[name]);
  return page.data.order.filter(
    (name) => document.querySelector(`script[data-panel=${name}]`) && has(name),
  );
}

/** @param {Page} page */
function helpDialog(page) {
  const [tab] = panelNames(page).filter((name) => name === page.state.tab);
  const hasKeys = Object.keys(page.look.streams).length > 0 || Boolean(PANELS[tab]?.limits);
  const keys = hasKeys ? [...OF_TOKENS, ...HELP] : HELP;
  /** @type {HTMLDialogElement} */
  const dialog = el(
    "dialog",
    { "aria-label": "Keyboard shortcuts" },
    el("h2", {}, "Keyboard shortcuts"),
    el(
      "dl",
      {},
      keys.map(([key, what]) => [el("dt", {}, el("kbd", {}, key)), el("dd", {}, what)]),
    ),
    el("button", { class: "chip", onclick: () => dialog.close() }, "Close"),
  );
  document.body.append(dialog);
  dialog.addEventListener("close", () => dialog.remove());
  dialog.showModal();
}

/** @param {Page} page */
function lookPicker(page) {
  const { looks } = page.data,
    here = looks.indexOf(page.look),
    box = el("div", { class: "looks" });
  if (looks.length < 2) return null;
  const compare = el(
    "label",
    {},
    "compare with ",
    el(
      "select",
      { "data-key": "other", onchange: (event) => page.set({ other: Number(event.target.value) }) },
      el("option", { value: -1 }, "none"),
      looks.map(
        (look, i) =>
          i !== here && el("option", { value: i, selected: look === page.other }, look.label),
      ),
    ),
  );
  if (page.steps) {
    box.append(
      el(
        "label",
        {},
        "checkpoint ",
        el("input", {
          type: "range",
          min: 0,
          max: looks.length - 1,
          value: here,
          "data-key": "look",
          "aria-valuetext": page.look.label,
          oninput: (event) => page.set({ look: Number(event.target.value) }),
        }),
      ),
      el("output", { class: "num" }, page.look.label),
    );
  } else
    chips(
      box,
      looks.map((look, i) => ({ key: i, label: look.label })),
      here,
      (i) => page.set({ look: i }),
    );
  box.append(compare);
  return box;
}

/**
 * @param {Page} page
 * @param {PanelName[]} names
 * @param {PanelName} current
 * @returns {Child[]}
 */
function header(page, names, current) {
  const run = page.data.run || {},
    other = themeName() === "dark" ? "light" : "dark";
  return [
    el(
      "div",
      { class: "top" },
      el("h1", {}, run.name || page.data.title),
      el(
        "span",
        { class: "facts soft" },
        (run.facts || []).map((fact) => el("span", {}, fact)),
      ),
      el(
        "span",
        { class: "tools noprint" },
        el(
          "button",
          {
            class: "tool",
            "data-key": "theme",
            "aria-label": "switch between dark and light theme",
            onclick: () => {
              ROOT.dataset.theme = other;
              page.set({});
            },
          },
          other === "light" ? "☀" : "☾",
        ),
        el(
          "button",
          {
            class: "tool",
            "data-key": "help",
            "aria-label": "keyboard shortcuts",
            onclick: () => helpDialog(page),
          },
          "?",
        ),
      ),
    ),
    page.look.text && !page.live && el("p", { class: "text" }, page.look.text),
    lookPicker(page),
    el(
      "nav",
      { role: "tablist", class: "tabs noprint", "aria-label": "Panels" },
      names.map((name) =>
        el(
          "button",
          {
            role: "tab",
            id: "tab-" + name,
            "aria-selected": String(name === current),
            "aria-controls": "panel",
            tabindex: name === current ? 0 : -1,
            "data-tab": name,
            onclick: () => page.set({ tab: name }),
          },
          PANELS[name] ? PANELS[name].title : name,
        ),
      ),
    ),
  ];
}

/**
 * @param {Element} host
 * @param {string} name
 * @param {unknown} error
 */
function failure(host, name, error) {
  console.error(`panel ${name}:`, error);
  host.append(
    el(
      "section",
      { class: "card failed", role: "alert" },
      el("h2", {}, `The panel “${name}” could not be drawn`),
      el("pre", {}, (error instanceof Error && error.stack) || String(error)),
    ),
  );
}

/**
 * @param {HTMLElement} host
 * @param {PanelName} name
 * @param {Page} page
 */
function drawPanel(host, name, page) {
  const panel = /** @type {Panel<unknown> | undefined} */ (PANELS[name]),
    section = page.section(name);
  if (!panel)
    return failure(
      host,
      name,
      new Error("its script did not run; see the browser console for the reason"),
    );
  if (!section)
    return host.append(
      el("section", { class: "card empty" }, `This panel has no data for ${page.look.label}.`),
    );
  try {
    panel.draw(host, section, page);
  } catch (error) {
    host.replaceChildren();
    failure(host, name, error);
  }
  return undefined;
}

/**
 * The place in the tree of the node that has the focus, to find it again after a redraw.
 * @param {Element} root
 */
function focusPath(root) {
  /** @type {number[]} */
  const path = [];
  for (let node = document.activeElement; node && node !== root; node = node.parentElement) {
    if (!node.parentElement) return null;
    path.unshift([...node.parentElement.children].indexOf(node));
  }
  return path;
}

/**
 * @param {Element} root
 * @param {number[] | null} path
 */
function focusAgain(root, path) {
  const node = path?.reduce((/** @type {Element | undefined} */ at, i) => at?.children[i], root);
  if (!node || node === root) return;
  /** @type {HTMLElement | SVGElement} */ (node).focus({ preventScroll: true });
}

/**
 * @param {Page} page
 * @param {PanelName} name
 * @returns {Limits}
 */
function limitsOf(page, name) {
  for (const one of /** @type {PanelName[]} */ ([name, "attention"])) {
    const panel = /** @type {Panel<unknown> | undefined} */ (PANELS[one]),
      section = page.section(one);
    if (panel?.limits && section) return panel.limits(section, page);
  }
  return {};
}

/**
 * @param {KeyboardEvent} event
 * @param {Page} page
 * @param {PanelName[]} names
 * @param {PanelName} current
 */
function onKey(event, page, names, current) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]"))
    return;
  const target = event.target instanceof Element ? event.target : document.body;
  if (target.closest("input, textarea, select")) return;
  const limits = limitsOf(page, current);
  /** @type {(key: "row" | "layer", by: 1 | -1) => boolean} */
  const move = (key, by) => {
    const n = limits[key];
    if (!n) return false;
    const at = page.state[key] ?? limits.now?.[key] ?? (by > 0 ? -1 : n);
    page.set({ [key]: clamp(at + by, 0, n - 1) });
    return true;
  };
  const turn = (/** @type {1 | -1} */ by) =>
    page.set({ tab: names[(names.indexOf(current) + by + names.length) % names.length] });
  const tabbed = target.closest("[role=tablist]");
  /** @type {Record<string, () => boolean | void>} */
  const acts = {
    ArrowLeft: () => (tabbed ? turn(-1) : move("row", -1)),
    ArrowRight: () => (tabbed ? turn(1) : move("row", 1)),
    ArrowUp: () => move("layer", 1),
    ArrowDown: () => move("layer", -1),
    "[": () => turn(-1),
    "]": () => turn(1),
    "?": () => helpDialog(page),
    "/": () => {
      /** @type {HTMLElement | null} */
      const box = document.querySelector("#panel [data-search]");
      if (box) box.focus();
      else if (names.includes("neighbours")) page.set({ tab: "neighbours" });
    },
  };
  const head = /^[1-9]$/.test(event.key) && (limits.head ?? 0) >= Number(event.key);
  if (!acts[event.key] && !head) return;
  if (head) page.set({ head: Number(event.key) - 1 });
  else if (acts[event.key]() === false) return;
  event.preventDefault();
}

/**
 * Draws the page again. Keeps the scroll positions and the focus.
 * @param {Page} page
 * @param {HTMLElement} root
 * @returns {[names: PanelName[], current: PanelName]}
 */
function drawPage(page, root) {
  const names = panelNames(page),
    current = names.find((name) => name === page.state.tab) ?? names[0];
  const path = focusPath(root),
    [x, y] = [scrollX, scrollY];
  const held = [...root.querySelectorAll(".scroll")].map((node) => node.scrollLeft);
  const host = el("main", {
    id: "panel",
    role: "tabpanel",
    "aria-labelledby": "tab-" + current,
    tabindex: -1,
  });
  tip(null);
  const top = el("header", { class: "page" }, header(page, names, current));
  page.shown = null;
  root.replaceChildren(top, host);
  drawPanel(host, current, page);
  page.live?.bar(top, page);
  root.querySelectorAll(".scroll").forEach((node, i) => {
    node.scrollLeft = held[i] || 0;
  });
  /** @type {HTMLElement | null} */
  const tab = root.querySelector("[role=tab][aria-selected=true]"),
    tabs = tab?.parentElement;
  if (tab && tabs) tabs.scrollLeft = tab.offsetLeft - tabs.clientWidth / 2;
  scrollTo(x, y);
  focusAgain(root, path);
  root.dataset.drawn = current;
  return [names, current];
}

/**
 * A node of `page.html`.
 * @param {string} id
 */
const byId = (id) => /** @type {HTMLElement} */ (document.getElementById(id));

async function start() {
  const [root, packed] = [byId("root"), byId("data")];
  /** @type {[names: PanelName[], current: PanelName]} */
  let shown;
  try {
    const data = await openPacked(packed.textContent);
    const page = makePage(data, () => {
      shown = drawPage(page, root);
    });
    if (typeof LIVE !== "undefined") page.live = LIVE;
    ROOT.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
    page.set({});
    addEventListener("keydown", (event) => onKey(event, page, ...shown));
    addEventListener("hashchange", () => {
      page.state = readState();
      page.set({});
    });
    let width = innerWidth,
      before = themeName();
    addEventListener("resize", () => {
      if (innerWidth !== width) {
        width = innerWidth;
        page.set({});
      }
    });
    matchMedia("print").onchange = ({ matches }) => {
      [before, ROOT.dataset.theme] = [themeName(), matches ? "light" : before];
      page.set({});
    };
  } catch (error) {
    failure(root, "page", error);
  }
}
start();
