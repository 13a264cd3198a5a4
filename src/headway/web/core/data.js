// @ts-check
// The data of the page, as `pack.py` packs them.

/**
 * Unpacks the data of a page: deflated bytes in base64, of a JSON header and then arrays.
 * @param {string} text
 * @returns {Promise<PageData>}
 */
async function openPacked(text) {
  if (typeof DecompressionStream === "undefined")
    throw new Error(
      "This browser cannot unpack the page because it does not support DecompressionStream. Use a newer browser.",
    );
  const binary = atob(text.trim()),
    packed = new Uint8Array(binary.length);
  for (let i = 0; i < packed.length; i++) packed[i] = binary.charCodeAt(i); // `Uint8Array.from` takes seconds for a large page
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  const size = new DataView(bytes.buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + size)));
  const start = 4 + size;
  return revive({ tree: header }, bytes.buffer, start).tree;
}

/**
 * Puts the arrays of a buffer into a tree. They are decoded on first access, so that a page with many
 * looks opens at once.
 * @param {any} node
 * @param {ArrayBuffer} buffer
 * @param {number} start
 */
function revive(node, buffer, start) {
  for (const [key, value] of Object.entries(node)) {
    if (value === null || typeof value !== "object") continue;
    if (!Array.isArray(value.$)) {
      revive(value, buffer, start);
      continue;
    }
    Object.defineProperty(node, key, {
      configurable: true,
      enumerable: true,
      get() {
        const array = decodeArray(value.$, buffer, start);
        Object.defineProperty(node, key, { value: array, enumerable: true });
        return array;
      },
    });
  }
  return node;
}

/**
 * Kinds that need no table.
 * @type {Record<string, typeof Float32Array | typeof Int32Array | typeof Uint16Array>}
 */
const PLAIN = { f32: Float32Array, i32: Int32Array, u16: Uint16Array };

/**
 * @param {ArrayRecord} record
 * @param {ArrayBuffer} buffer
 * @param {number} start
 * @returns {Packed}
 */
function decodeArray([kind, shape, offset, low, high], buffer, start) {
  const length = shape.reduce((a, b) => a * b, 1);
  /** @type {Float32Array | Int32Array | Uint16Array} */
  let array;
  if (PLAIN[kind]) array = new PLAIN[kind](buffer, start + offset, length);
  else {
    const codes =
      kind === "f16"
        ? new Uint16Array(buffer, start + offset, length)
        : new Uint8Array(buffer, start + offset, length);
    const table = codeTable(kind, low, high);
    array = new Float32Array(length);
    for (let i = 0; i < length; i++) array[i] = table[codes[i]];
  }
  return shaped(array, shape);
}

/**
 * Gives an array a shape.
 * @template {Float32Array | Int32Array | Uint16Array} A
 * @template {number[]} S
 * @param {A} array
 * @param {S} shape
 */
const shaped = (array, shape) => Object.assign(array, { shape });

/** @type {Float32Array | null} */
let halves = null;

/**
 * The number of each code.
 * @param {string} kind
 * @param {number} low
 * @param {number} high
 */
function codeTable(kind, low, high) {
  if (kind === "f16")
    return (halves = halves || Float32Array.from({ length: 65536 }, (_, code) => half(code)));
  const step = (high - low) / 255;
  return Float32Array.from({ length: 256 }, (_, code) =>
    kind === "u8" ? low + code * step : low + (high - low) * (code / 255) ** 2,
  );
}

/**
 * The number of a half-precision code.
 * @param {number} code
 */
function half(code) {
  const sign = code & 0x8000 ? -1 : 1;
  const exponent = (code >> 10) & 31,
    rest = code & 1023;
  if (exponent === 31) return rest ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + rest / 1024) : 2 ** -24 * rest);
}

/**
 * The part of an array at these first indices, without a copy; a number when all are given.
 * @template {Packed} A
 * @template {number[]} I
 * @param {A} array
 * @param {I} index
 * @returns {Part<A, I>}
 */
function sub(array, ...index) {
  let [from, size] = [0, array.length];
  index.forEach((i, axis) => {
    size /= array.shape[axis];
    from += i * size;
  });
  const { shape } = array;
  const part =
    index.length === shape.length
      ? array[from]
      : shaped(array.subarray(from, from + size), shape.slice(index.length));
  return /** @type {Part<A, I>} */ (part);
}
