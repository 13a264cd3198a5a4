// Nodes, numbers and small texts. Text from a model enters the page here and only as text.
// `x == null` is true of null and undefined, and of nothing else.
const PANELS = {};

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

function el(tag, attrs, ...children) {
  return fill(
    document.createElement(tag),
    tag === "button" ? { type: "button", ...attrs } : attrs,
    children,
  );
}

function svg(tag, attrs, ...children) {
  return fill(document.createElementNS("http:" + "//www.w3.org/2000/svg", tag), attrs, children);
}

const clamp = (x, low, high) => Math.max(low, Math.min(high, x));

// Digits after the point below 1, significant digits above; a true minus sign.
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

const percent = (x) => (x > 0 && x < 0.005 ? "<1 %" : Math.round(100 * x) + " %");

// One label for the whole page, moved to the pointer.
let tipNode = null;
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
