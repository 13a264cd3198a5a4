// @ts-check
// Colour maps that colour-blind people can read: lightness rises in one direction, and the diverging
// map runs from blue to orange. In the dark theme they start from the colour of the card.

/**
 * @type {Record<"light" | "dark", Record<ColourMap, string[]>>}
 */
const STOPS = {
  light: {
    blues: ["#f7f9fc", "#d3e2f4", "#92bfe6", "#4a90d0", "#1f5fae", "#0b2f6b"],
    oranges: ["#fdf8f2", "#fbdfbd", "#f6b26b", "#df7d1f", "#a9500a", "#5f2a04"],
    diverging: ["#0b3d82", "#3f82c4", "#a8cbe8", "#f6f6f4", "#f7c68c", "#d97a1c", "#7d3a02"],
  },
  dark: {
    blues: ["#191e25", "#1d3450", "#22568c", "#3a86cf", "#86bdf0", "#e6f3ff"],
    oranges: ["#1f1c1a", "#4a2f16", "#8a4f12", "#d07f22", "#f4b768", "#fff0dc"],
    diverging: ["#9ccdfb", "#4a94dc", "#25507f", "#1c2127", "#7a4516", "#e08a30", "#ffd9a6"],
  },
};

/** @type {Record<string, Rgb[]>} */
const tables = {};

const ROOT = document.documentElement;
const themeName = () => (ROOT.dataset.theme === "dark" ? "dark" : "light");

/** @param {ColourMap} map */
function colourTable(map) {
  const key = themeName() + map;
  if (tables[key]) return tables[key];
  const stops = STOPS[themeName()][map].map((hex) =>
    [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)),
  );
  return (tables[key] = Array.from({ length: 256 }, (_, i) => {
    const at = (i / 255) * (stops.length - 1),
      left = Math.min(Math.floor(at), stops.length - 2);
    return stops[left].map((value, channel) =>
      Math.round(value + (at - left) * (stops[left + 1][channel] - value)),
    );
  }));
}

/**
 * The colour of a number between 0 and 1. The diverging map has its middle at 0.5.
 * @type {(x: number, map?: ColourMap) => Rgb}
 */
const colour = (x, map = "blues") => colourTable(map)[Math.round(255 * clamp(x || 0, 0, 1))];

/** @type {(rgb: Rgb) => string} */
const css = (rgb) => `rgb(${rgb.join(",")})`;

/**
 * The colour of readable text on this background.
 * @type {(rgb: Rgb) => string}
 */
const ink = ([r, g, b]) => (0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#14181d" : "#ffffff");

/**
 * The colour of the i-th line of a chart.
 * @type {(i: number) => string}
 */
const series = (i) => `var(--s${1 + (i % 5)})`;

/**
 * Fills an ImageData of columns × rows with one pixel per cell.
 * @param {ImageData} image
 * @param {Numbers} data
 * @param {number} rows
 * @param {number} columns
 * @param {number} low
 * @param {number} high
 * @param {ColourMap} [map]
 */
function drawCells(image, data, rows, columns, low, high, map) {
  const table = colourTable(map || "blues"),
    pixels = image.data,
    by = 255 / (high - low || 1);
  for (let i = 0; i < rows * columns; i++) {
    const code = Math.round((data[i] - low) * by);
    const rgb = table[code < 0 ? 0 : code > 255 ? 255 : code || 0],
      at = 4 * i;
    pixels[at] = rgb[0];
    pixels[at + 1] = rgb[1];
    pixels[at + 2] = rgb[2];
    pixels[at + 3] = 255;
  }
}

/**
 * The largest value of each block (furthest from the middle, for differences), so that no weight is
 * lost when a matrix is shown smaller than it is.
 * @param {Numbers} data
 * @param {number} rows
 * @param {number} columns
 * @param {number} high
 * @param {number} wide
 * @param {number} [middle]
 */
function blockMax(data, rows, columns, high, wide, middle = 0) {
  if (rows <= high && columns <= wide) return { data, rows, columns };
  const R = Math.min(rows, high),
    C = Math.min(columns, wide),
    out = new Float32Array(R * C).fill(middle);
  const place = Int32Array.from({ length: columns }, (_, c) => Math.floor((c * C) / columns));
  for (let r = 0; r < rows; r++) {
    const base = Math.floor((r * R) / rows) * C,
      from = r * columns;
    for (let c = 0; c < columns; c++) {
      const value = data[from + c],
        at = base + place[c];
      if (Math.abs(value - middle) > Math.abs(out[at] - middle)) out[at] = value;
    }
  }
  return { data: out, rows: R, columns: C };
}

/**
 * Draws a matrix on a small canvas.
 * @param {HTMLCanvasElement} canvas
 * @param {Numbers} data
 * @param {number} rows
 * @param {number} columns
 * @param {number} [low]
 * @param {number} [high]
 * @param {ColourMap} [map]
 */
function thumbnail(canvas, data, rows, columns, low = 0, high = 1, map = "blues") {
  const small = blockMax(data, rows, columns, 64, 64, map === "diverging" ? (low + high) / 2 : 0);
  canvas.width = small.columns;
  canvas.height = small.rows;
  const brush = brushOf(canvas),
    image = brush.createImageData(small.columns, small.rows);
  drawCells(image, small.data, small.rows, small.columns, low, high, map);
  brush.putImageData(image, 0, 0);
}
