// @ts-check
// A matrix of numbers, such as the attention of one head.
const FONT = '12px system-ui, "Segoe UI", Roboto, "Noto Sans", sans-serif';

/**
 * @param {string} text
 * @param {number} [most]
 */
function shortText(text, most = 14) {
  return text.length > most ? text.slice(0, most - 1) + "…" : text;
}

/**
 * A matrix on one canvas with the names of rows and columns. Cells are pixels of an ImageData that is
 * stretched without smoothing, so a large matrix costs no more than a small one.
 * @param {Element} host
 * @param {HeatmapOptions} options
 */
function heatmap(host, options) {
  const { onhover, onclick, label, size = 28 } = options;
  const { rows, columns, get } = options;
  const [R, C] = [rows.length, columns.length];
  const { low = 0, high = 1, map = "blues" } = options.scale || {};
  const data =
    options.data ||
    Float32Array.from({ length: R * C }, (_, i) => get?.(Math.floor(i / C), i % C) ?? NaN);
  let marked = [options.row ?? null, options.column ?? null];
  const canvas = el("canvas", {
    class: "heatmap",
    role: "img",
    "aria-label": label || `matrix of ${R} by ${C}`,
  });
  host.append(el("div", { class: "scroll" }, canvas));
  const brush = brushOf(canvas),
    cells = document.createElement("canvas");
  cells.width = C;
  cells.height = R;
  brush.font = FONT;
  const wide = (/** @type {readonly string[]} */ texts) =>
    Math.ceil(
      Math.max(0, ...texts.map((text) => brush.measureText(shortText(String(text))).width)),
    );
  const left = wide(rows) + 10;
  const room = (options.width || host.clientWidth || 640) - left - 26;
  const cell = clamp(Math.floor(room / C), C <= 64 ? 11 : Math.max(2, Math.min(6, 1100 / C)), size);
  const top = Math.ceil(wide(columns) * 0.75) + 16;
  const overhang = Math.ceil(wide(columns.slice(-1)) * 0.75) + 6;
  const [width, height] = [left + C * cell + overhang, top + R * cell + 2],
    scale = window.devicePixelRatio || 1;
  canvas.width = width * scale;
  canvas.height = height * scale;
  canvas.style.width = width + "px";
  canvas.style.height = height + "px";
  Object.assign(canvas.dataset, { left, top, cell });
  const image = brush.createImageData(C, R);
  drawCells(image, data, R, C, low, high, map);
  brushOf(cells).putImageData(image, 0, 0);

  function redraw() {
    const theme = (/** @type {string} */ name) => getComputedStyle(ROOT).getPropertyValue(name),
      soft = theme("--soft"),
      dark = theme("--ink");
    brush.setTransform(scale, 0, 0, scale, 0, 0);
    brush.clearRect(0, 0, width, height);
    brush.imageSmoothingEnabled = false;
    brush.drawImage(cells, left, top, C * cell, R * cell);
    brush.font = FONT;
    brush.textBaseline = "middle";
    /**
     * Where cells are smaller than letters, some names are left out, but never that of the marked cell.
     * @param {readonly string[]} texts
     * @param {number | null} mark
     * @param {number} room
     * @param {(text: string, i: number) => void} write
     */
    const each = (texts, mark, room, write) =>
      texts.forEach((text, i) => {
        const every = Math.ceil(room / cell);
        if (i !== mark && (i % every || (every > 1 && mark !== null && Math.abs(i - mark) < every)))
          return;
        brush.fillStyle = i === mark ? dark : soft;
        write(shortText(String(text)), i);
      });
    brush.textAlign = "right";
    each(rows, marked[0], 12, (text, r) => brush.fillText(text, left - 6, top + (r + 0.5) * cell));
    brush.textAlign = "left";
    each(columns, marked[1], 17, (text, c) => {
      brush.save();
      brush.translate(left + (c + 0.5) * cell, top - 6);
      brush.rotate(-Math.PI / 4);
      brush.fillText(text, 0, 0);
      brush.restore();
    });
    brush.strokeStyle = theme("--edge");
    brush.strokeRect(left - 0.5, top - 0.5, C * cell + 1, R * cell + 1);
    brush.strokeStyle = dark;
    const [r, c] = marked;
    if (r !== null) brush.strokeRect(left - 0.5, top + r * cell - 0.5, C * cell + 1, cell + 1);
    if (c !== null) brush.strokeRect(left + c * cell - 0.5, top - 0.5, cell + 1, R * cell + 1);
  }

  /**
   * @param {PointerEvent | MouseEvent} event
   * @returns {[row: number, column: number | null] | null}
   */
  function at(event) {
    const r = Math.floor((event.offsetY - top) / cell),
      c = Math.floor((event.offsetX - left) / cell);
    return r < 0 || r >= R || c >= C ? null : [r, c < 0 ? null : c];
  }

  const home = marked;
  const leave = () => {
    tip(null);
    marked = home;
    redraw();
    if (onhover) onhover(null, null, null);
  };
  /** @type {(row: number, column: number | null) => number | null} */
  const value = (r, c) => (c === null ? null : data[r * C + c]);
  canvas.onpointermove = (event) => {
    const spot = at(event);
    if (!spot) {
      leave();
      return;
    }
    const [r, c] = spot;
    if (c !== null) tip(event, `${rows[r]} → ${columns[c]}  ${number(value(r, c))}`);
    if (r === marked[0] && c === marked[1]) return;
    marked = spot;
    redraw();
    if (onhover) onhover(r, c, value(r, c));
  };
  canvas.onpointerleave = leave;
  canvas.onclick = (event) => {
    const spot = at(event);
    if (spot && onclick) onclick(...spot, value(...spot));
  };
  redraw();
  return canvas;
}
