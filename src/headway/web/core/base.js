// @ts-check
// Nodes, numbers and small texts. Text of a model enters the page only here, and only as text.
// `x == null` is true for null and undefined only.

/** @type {Panels} */
const PANELS = {};

/**
 * Sets attributes and listeners of a node and appends its children.
 * @template {HTMLElement | SVGElement} T
 * @param {T} node
 * @param {Record<string, any> | null | undefined} attrs
 * @param {Child[]} children
 * @returns {T}
 */
function fill(node, attrs, children) {
  for (const [name, value] of Object.entries(attrs || {})) {
    if (value == null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style" && typeof value === "object") Object.assign(node.style, value);
    else if (name === "style") node.style.cssText = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(
    ...children
      .flat(9)
      .filter((child) => child != null && child !== false)
      .map((child) => (child instanceof Node ? child : String(child))),
  );
  return node;
}

/**
 * An HTML element. Strings among the children become text, never markup.
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Attributes<HTMLElementTagNameMap[K]>} [attrs]
 * @param {...Child} children
 * @returns {HTMLElementTagNameMap[K]}
 */
function el(tag, attrs, ...children) {
  return fill(
    document.createElement(tag),
    tag === "button" ? { type: "button", ...attrs } : attrs,
    children,
  );
}

/**
 * An SVG element.
 * @template {keyof SVGElementTagNameMap} K
 * @param {K} tag
 * @param {Attributes<SVGElementTagNameMap[K]>} [attrs]
 * @param {...Child} children
 * @returns {SVGElementTagNameMap[K]}
 */
function svg(tag, attrs, ...children) {
  const node = document.createElementNS("http:" + "//www.w3.org/2000/svg", tag);
  return fill(/** @type {SVGElementTagNameMap[K]} */ (node), attrs, children);
}

/**
 * The drawing context of a canvas.
 * @param {HTMLCanvasElement} canvas
 */
const brushOf = (canvas) => /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));

/** @type {(x: number, low: number, high: number) => number} */
const clamp = (x, low, high) => Math.max(low, Math.min(high, x));

/**
 * A number as text: `digits` after the point below 1, significant digits above; a true minus sign.
 * @param {number | null | undefined} x
 * @param {number} [digits]
 */
function number(x, digits = 3) {
  if (x == null || Number.isNaN(x)) return "–";
  const size = Math.abs(x);
  if (size === Infinity) return x > 0 ? "∞" : "−∞";
  let text;
  if (Number.isInteger(x) && size < 1e6) text = String(size);
  else if (size >= 1e6 || size < 10 ** -digits) text = size.toExponential(1).replace("e+", "e");
  else if (size < 1) text = size.toFixed(digits);
  else text = size.toFixed(Math.max(0, digits - String(Math.trunc(size)).length));
  return (x < 0 ? "−" : "") + text;
}

/** @param {number} x */
const percent = (x) => (x > 0 && x < 0.005 ? "<1 %" : Math.round(100 * x) + " %");

/**
 * One label for the whole page, moved to the pointer.
 * @type {HTMLElement | null}
 */
let tipNode = null;

/**
 * Moves the label beside the pointer to an event and shows a text; null removes it.
 * @param {MouseEvent | null} event
 * @param {string} [text]
 */
function tip(event, text) {
  if (tipNode) tipNode.remove();
  tipNode = null;
  if (!event) return;
  tipNode = el("div", { class: "tip", role: "status" }, text);
  document.body.append(tipNode);
  const box = tipNode.getBoundingClientRect();
  const x =
    event.clientX + 14 + box.width > innerWidth
      ? event.clientX - box.width - 10
      : event.clientX + 14;
  tipNode.style.left = Math.max(4, x) + "px";
  tipNode.style.top =
    clamp(event.clientY + 14, 4, Math.max(4, innerHeight - box.height - 4)) + "px";
}
