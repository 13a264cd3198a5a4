// @ts-check
// The card of a panel and its export menu.

/**
 * Appends the card of a panel and returns its body. Its menu exports an image of the body with its
 * style, or the numbers as CSV.
 * @param {Element} host
 * @param {FrameOptions} options
 */
function frame(host, { title, hint, name, csv, svg: drawing }) {
  const body = el("div", { class: "body" });
  const file = (/** @type {string} */ kind) =>
    `${(document.title + " " + (name || title)).replace(/[^\w.-]+/g, "-")}.${kind}`;
  const source = () => (drawing && drawing()) || body;
  /** @type {[label: string, act: () => unknown][]} */
  const choices = [
    ["SVG", () => save(new Blob([standalone(source())], { type: "image/svg+xml" }), file("svg"))],
    ["PNG", async () => save(await painted(source()), file("png"))],
  ];
  if (csv)
    choices.unshift([
      "CSV",
      () => save(new Blob([csvText(csv())], { type: "text/csv" }), file("csv")),
    ]);
  const menu = el(
    "details",
    { class: "menu" },
    el("summary", { title: "Save this panel as a file" }, "Export"),
    el(
      "div",
      {},
      choices.map(([label, act]) =>
        el(
          "button",
          {
            "data-export": label.toLowerCase(),
            onclick: () => {
              menu.open = false;
              act();
            },
          },
          label,
        ),
      ),
    ),
  );
  host.append(
    el(
      "section",
      { class: "card", "data-card": name || null, "aria-label": title },
      el(
        "header",
        {},
        el("div", {}, el("h2", {}, title), hint && el("p", { class: "hint" }, hint)),
        menu,
      ),
      body,
    ),
  );
  return body;
}

/** @param {Row[]} rows */
function csvText(rows) {
  const cell = (/** @type {Row[number]} */ value) => {
    const text = String(value ?? "");
    return /[",\n\r]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
  };
  return rows.map((row) => Array.from(row, cell).join(",")).join("\r\n") + "\r\n";
}

/**
 * Saves a file from the page.
 * @param {Blob} blob
 * @param {string} name
 */
function save(blob, name) {
  const link = el("a", { href: URL.createObjectURL(blob), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

/**
 * SVG source of a node. Canvases become images; other HTML is put into a foreignObject with the
 * page's own style, so that text stays text.
 * @param {Element} node
 */
function standalone(node) {
  const box = node.getBoundingClientRect();
  const [width, height] = [
    Math.ceil(box.width),
    Math.ceil(Math.max(box.height, node.scrollHeight || 0)),
  ];
  const copy = /** @type {Element} */ (node.cloneNode(true));
  const from = [node, ...node.querySelectorAll("*")],
    to = [copy, ...copy.querySelectorAll("*")];
  let whole = copy;
  from.forEach((old, i) => {
    if (!(old instanceof HTMLCanvasElement)) return;
    const size = old.getBoundingClientRect();
    const image = el("img", {
      src: old.toDataURL(),
      alt: "",
      class: old.className || null,
      style: `width:${size.width}px;height:${size.height}px`,
    });
    if (to[i] === copy) whole = image;
    else to[i].replaceWith(image);
  });
  for (const gone of whole.querySelectorAll(".noexport, script")) gone.remove();
  const style = [...document.querySelectorAll("style")]
    .map((sheet) => sheet.textContent)
    .join("\n");
  const inside =
    node instanceof SVGElement
      ? copy
      : svg("foreignObject", { width, height }, el("div", { class: "image" }, whole));
  const [all, tall] = [width + 24, height + 24];
  const root = svg(
    "svg",
    { width: all, height: tall, viewBox: `-12 -12 ${all} ${tall}`, "data-theme": themeName() },
    svg("style", {}, style),
    svg("rect", { x: -12, y: -12, width: all, height: tall, style: "fill:var(--card)" }),
    inside,
  );
  return new XMLSerializer().serializeToString(root);
}

/** Longest side of a canvas in pixels: browsers cannot make a PNG of a larger one. */
const LONGEST_SIDE = 16384;

/**
 * A PNG of a node at twice its size, or at the largest size that a canvas can have.
 * @param {Element} node
 * @returns {Promise<Blob>}
 */
async function painted(node) {
  const image = new Image();
  image.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(standalone(node));
  await image.decode();
  const scale = Math.min(2, LONGEST_SIDE / Math.max(image.width, image.height));
  const canvas = el("canvas", {
    width: Math.floor(scale * image.width),
    height: Math.floor(scale * image.height),
  });
  brushOf(canvas).drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done, fail) =>
    canvas.toBlob((blob) => (blob ? done(blob) : fail(new Error("cannot make a PNG")))),
  );
}
