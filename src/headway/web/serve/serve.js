// @ts-check
"use strict";

// The page at `/` of `headway serve`. The server's description of its models decides what is shown;
// no task is known by its name. Output of a model is inserted as text, never as markup.

const KEY = "headway-key";

/** @type {ServeState} */
const APP = {
  models: [],
  model: null,
  file: null,
  url: null,
  typed: {},
  texts: {},
  options: {},
  last: null,
  stop: null,
  version: "",
  wrong: "",
  recorder: null,
};

/** @returns {Record<string, string>} */
const keyHeader = () =>
  sessionStorage.getItem(KEY) ? { Authorization: "Bearer " + sessionStorage.getItem(KEY) } : {};

/**
 * A node by its name in `data-serve`.
 * @param {string} name
 * @returns {HTMLElement | null}
 */
const $ = (name) => document.querySelector(`[data-serve=${name}]`);
const theModel = () => /** @type {ServedModel} */ (APP.model);
const root = /** @type {HTMLElement} */ (document.getElementById("root"));

/** An error response of the server. */
class ServerError extends Error {
  /**
   * @param {string} message
   * @param {Response} response
   */
  constructor(message, response) {
    super(message);
    this.status = response.status;
    this.wait = response.headers.get("Retry-After");
  }
}

const messageOf = (/** @type {unknown} */ error) =>
  error instanceof Error ? error.message : String(error);

/** @returns {ModelFacts} */
const own = () => theModel().headway;
const isMedia = () => own().reads !== "text";

/**
 * Name and file types of each kind of media.
 * @type {Record<MediaKind, [name: string, accept: string]>}
 */
const KINDS = {
  image: ["an image", "image/*"],
  video: ["a video", "video/*,image/gif"],
  audio: ["a recording", "audio/*"],
};

/**
 * A response of the server; an error response is thrown.
 * @param {string} path
 * @param {RequestInit} [options]
 */
async function ask(path, options = {}) {
  const answer = await fetch(path, { ...options, headers: { ...keyHeader(), ...options.headers } });
  if (answer.ok) return answer;
  /** @type {{error?: {message?: string}} | null} */
  const said = await answer.json().catch(() => null); // the error of a proxy may not be JSON
  const message = said?.error?.message || `${answer.status} ${answer.statusText}`;
  throw new ServerError(message, answer);
}

// -- the request

/** The options that are set. */
function shownOptions() {
  const options = Object.entries(APP.options);
  return Object.fromEntries(options.filter(([, value]) => value !== "" && value != null));
}

function inputNames() {
  return own().fields.length ? own().fields : own().inputs.filter((name) => name !== "path");
}

/** @returns {string | Record<string, string>} */
function theInput() {
  const names = inputNames();
  if (names.length > 1 || own().fields.length) {
    return Object.fromEntries(
      names.map((name) => [name, APP.texts[name] || ""]).filter(([, text]) => text),
    );
  }
  return APP.texts[names[0] || "text"] || "";
}

/**
 * Whether each line of the box is a separate input: translation models are trained on single lines.
 * @type {(given: string | Record<string, string>) => given is string}
 */
const byLine = (given) =>
  own().writes && !own().continues && typeof given === "string" && given.trim().includes("\n");

/** @param {string} line */
const isLine = (line) => line.trim() !== "";

/** @returns {PredictBody} */
function theRequest() {
  const options = shownOptions(),
    more = Object.keys(options).length ? { options } : {},
    given = theInput();
  const asked = byLine(given) ? { inputs: given.split("\n").filter(isLine) } : { input: given };
  return { model: theModel().id, ...asked, ...more };
}

/**
 * The message about missing input, or an empty text. The prompt of a language model may be empty.
 */
function missing() {
  const { reads } = own();
  if (reads !== "text") return APP.file ? "" : `Choose ${KINDS[reads][0]} first.`;
  const names = inputNames().length ? inputNames() : ["text"],
    empty = names.filter((name) => !(APP.texts[name] || "").trim());
  if (own().fields.length ? empty.length < names.length : !empty.length) return "";
  return names.length > 1 && empty.length < names.length
    ? `Enter a text first: ${empty.join(", ")}.`
    : "Enter a text first.";
}

/**
 * Joins the answers for several lines into one answer with the same lines.
 * @param {ServedAnswer[]} answers
 * @param {string} given
 * @returns {ServedAnswer}
 */
function together(answers, given) {
  const failed = answers.find((answer) => answer.error);
  if (failed) throw new Error(failed.error);
  const lists = answers.map(({ outputs = [] }) => outputs);
  const lined = (/** @type {number} */ k) => {
    const outputs = lists.map((list) => list[Math.min(k, list.length - 1)]),
      texts = outputs.map((output) => output.text);
    return {
      text: given
        .split("\n")
        .map((line) => (isLine(line) ? texts.shift() : ""))
        .join("\n"),
      token_log_probs: outputs.flatMap((output) => output.token_log_probs || []),
    };
  };
  const most = Math.max(...lists.map((list) => list.length));
  return { outputs: Array.from({ length: most }, (_, k) => lined(k)) };
}

async function send() {
  const given = theInput(),
    { file } = APP;
  if (APP.stop) return;
  APP.wrong = own().continues ? "" : missing();
  if (APP.wrong) {
    APP.last = null;
    refresh();
    return;
  }
  const begun = performance.now(),
    control = new AbortController();
  /** @type {LastRequest} */
  const last = {
    pieces: {},
    answer: null,
    whole: null,
    first: null,
    took: null,
    body: null,
    file,
  };
  Object.assign(APP, { stop: control, last });
  refresh();
  try {
    let answer;
    if (file && isMedia()) {
      const form = new FormData();
      form.append("model", theModel().id);
      form.append("options", JSON.stringify(shownOptions()));
      form.append("file", file, file.name || "input");
      last.body = { model: theModel().id, options: shownOptions() };
      answer = await ask("v1/predict", { method: "POST", body: form, signal: control.signal });
    } else {
      last.body = { ...theRequest(), ...(own().continues && { stream: true }) };
      answer = await ask("v1/predict", {
        method: "POST",
        body: JSON.stringify(last.body),
        signal: control.signal,
        headers: { "Content-Type": "application/json" },
      });
    }
    if ((answer.headers.get("Content-Type") || "").startsWith("text/event-stream"))
      await follow(answer, last, begun);
    else {
      const said = await answer.json();
      last.answer = said.answers ? together(said.answers, String(given)) : said.answer;
      last.whole = said.answers || said.answer;
    }
  } catch (error) {
    if (APP.last !== last) return; // another model was selected in the meantime
    const { status, wait } = error instanceof ServerError ? error : { status: 0, wait: null };
    APP.wrong = control.signal.aborted
      ? "Stopped."
      : messageOf(error) + (wait ? ` (retry in ${wait} s)` : "");
    if (status === 401) {
      sessionStorage.removeItem(KEY);
      begin();
      return;
    }
  } finally {
    last.took = performance.now() - begun;
    if (APP.stop === control) APP.stop = null;
  }
  refresh();
}

/**
 * Reads server-sent events: pieces as they arrive, then the complete answer.
 * @param {Response} answer
 * @param {LastRequest} last
 * @param {number} begun
 */
async function follow(answer, last, begun) {
  const reader = answer.body?.getReader(),
    decoder = new TextDecoder();
  let rest = "";
  while (reader) {
    const { done, value } = await reader.read();
    if (done) return;
    rest += decoder.decode(value, { stream: true });
    const events = rest.split("\n\n");
    rest = events.pop() ?? "";
    for (const event of events) {
      if (!event.startsWith("data: ") || event === "data: [DONE]") continue;
      const said = JSON.parse(event.slice(6));
      if (said.error) throw new Error(said.error.message);
      if (said.answers) {
        const [whole] = /** @type {ServedAnswer[]} */ (said.answers);
        Object.assign(last, { answer: whole, whole });
        if (whole.error) throw new Error(whole.error);
      } else {
        last.first ??= performance.now() - begun;
        last.pieces[said.output] = (last.pieces[said.output] || "") + said.text;
        drawAnswer();
      }
    }
  }
}

// -- display of an answer, depending on its keys

/**
 * Geometric mean of the token probabilities.
 * @param {ServedOutput} output
 */
const score = (output) =>
  output.token_log_probs?.length
    ? Math.exp(output.token_log_probs.reduce((a, b) => a + b, 0) / output.token_log_probs.length)
    : null;

/**
 * @param {HTMLElement} host
 * @param {ServedAnswer} answer
 */
function written(host, answer) {
  const outputs = answer.outputs || [{ text: answer.text ?? "" }];
  const [best, ...others] = outputs,
    mean = score(best),
    given = own().continues && typeof answer.source === "string" ? answer.source : "";
  host.append(
    el(
      "p",
      { class: "said", dir: "auto", "data-serve": "text" },
      given && el("span", { class: "given" }, given),
      best.text,
    ),
  );
  if (others.length) {
    host.append(
      el(
        "ol",
        { class: "others", "aria-label": "alternatives" },
        outputs.map((output) =>
          el(
            "li",
            {},
            el(
              "span",
              { class: "num soft", title: "geometric mean of the token probabilities" },
              percent(score(output) ?? 0),
            ),
            el("bdi", { "data-serve": "alternative" }, output.text),
          ),
        ),
      ),
    );
  } else if (mean !== null)
    host.append(
      el(
        "p",
        { class: "small soft" },
        `geometric mean of the token probabilities: ${percent(mean)}`,
      ),
    );
}

/**
 * @param {HTMLElement} host
 * @param {ServedAnswer} answer
 */
function spoken(host, answer) {
  written(host, { text: answer.text });
  const words = answer.words?.map((word) =>
    typeof word === "string"
      ? el("span", {}, word)
      : el(
          "span",
          { title: `confidence ${percent(word.confidence ?? 0)}` },
          word.word,
          el("small", { class: "num" }, `${word.start.toFixed(2)}–${word.end.toFixed(2)} s`),
        ),
  );
  if (words?.length) host.append(el("div", { class: "words" }, words));
}

/**
 * @param {HTMLElement} host
 * @param {ServedAnswer} answer
 */
function labelled(host, answer) {
  const { probabilities, top = [] } = answer;
  const shares = probabilities
    ? Object.entries(probabilities).sort((a, b) => b[1] - a[1])
    : top.map(
        (one) => /** @type {[label: string, value: number]} */ ([one.label, one.probability]),
      );
  const named = answer.labels ? answer.labels.join(", ") || "none" : answer.label;
  host.append(el("p", { class: "said", "data-serve": "text" }, named));
  if (shares.length)
    bars(
      host,
      shares.slice(0, 12).map(([label, value]) => ({
        label,
        value,
        shown: percent(value),
        picked: label === answer.label,
      })),
      { max: 1 },
    );
}

/**
 * @param {HTMLElement} host
 * @param {ServedAnswer} answer
 */
function tagged(host, answer) {
  const words = /** @type {string[]} */ (answer.words || []),
    tags = answer.tags || [];
  host.append(
    el(
      "div",
      { class: "words", "data-serve": "text" },
      words.map((word, i) => el("span", {}, word, el("small", {}, tags[i]))),
    ),
  );
}

/**
 * @param {HTMLElement} host
 * @param {ServedAnswer} answer
 */
function filled(host, answer) {
  host.append(el("p", { class: "said", "data-serve": "text" }, answer.text ?? ""));
  for (const gap of answer.gaps || [])
    bars(
      host,
      gap.map(({ word, probability }) => ({
        label: word,
        value: probability,
        shown: percent(probability),
      })),
      { max: 1 },
    );
}

/**
 * @param {HTMLElement} host
 * @param {number[]} values
 */
function vector(host, values) {
  const most = Math.max(...values.map(Math.abs));
  host.append(
    el("p", { class: "said", "data-serve": "text" }, `Vector with ${values.length} components`),
  );
  bars(
    host,
    values.slice(0, 12).map((value, i) => ({ label: String(i), value, digits: 4 })),
    { max: most },
  );
}

/**
 * @param {HTMLElement} host
 * @param {ServedAnswer} answer
 * @param {unknown} whole
 */
function show(host, answer, whole) {
  if (answer.tags) tagged(host, answer);
  else if (answer.vector) vector(host, answer.vector);
  else if (answer.gaps) filled(host, answer);
  else if (answer.probabilities || "label" in answer || "labels" in answer) labelled(host, answer);
  else if (answer.segments) spoken(host, answer);
  else if (answer.outputs || "text" in answer) written(host, answer);
  else if ("value" in answer)
    host.append(el("p", { class: "said", "data-serve": "text" }, number(answer.value, 4)));
  host.append(
    el(
      "details",
      { class: "small" },
      el("summary", { class: "soft" }, "full response (JSON)"),
      el("pre", { class: "mono scroll" }, JSON.stringify(whole, null, 1)),
    ),
  );
}

// -- code to copy

/**
 * A text as a word of a shell.
 * @param {string} text
 */
const quoted = (text) => "'" + text.replaceAll("'", "'\\''") + "'";

/**
 * A value as Python writes it.
 * @param {unknown} value
 * @returns {string}
 */
function python(value) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (typeof value !== "object") return JSON.stringify(value);
  return `{${Object.entries(value ?? {})
    .map(([key, one]) => `${JSON.stringify(key)}: ${python(one)}`)
    .join(", ")}}`;
}

/**
 * @param {PredictBody} body
 * @param {File | null} file
 */
function curlLine(body, file) {
  const { options } = body,
    url = new URL("v1/predict", location.href).href;
  const key = sessionStorage.getItem(KEY) ? ` -H "Authorization: Bearer $KEY"` : "";
  if (file) {
    const more = Object.keys(options ?? {}).length
      ? ` -F ${quoted("options=" + JSON.stringify(options))}`
      : "";
    return `curl ${url}${key} -F ${quoted("model=" + body.model)}${more} -F ${quoted("file=@" + file.name)}`;
  }
  return `curl ${body.stream ? "-N " : ""}${url}${key} -H 'Content-Type: application/json' -d ${quoted(JSON.stringify(body))}`;
}

/**
 * @param {PredictBody} body
 * @param {File | null} file
 */
function pythonLines(body, file) {
  const options = Object.entries(body.options || {})
    .map(([name, value]) => `, ${name}=${python(value)}`)
    .join("");
  const given = file
    ? `open(${python(file.name)}, "rb").read()`
    : python(body.inputs ?? body.input);
  const asked = file
    ? { model: body.model, options: body.options }
    : { ...body, stream: undefined };
  const url = new URL("v1/predict", location.href).href,
    key = sessionStorage.getItem(KEY) ? `, "Authorization": "Bearer " + KEY` : "";
  const fields = Object.entries(asked)
    .filter(([, value]) => value !== undefined)
    .map(([name, value]) => `"${name}": ${python(value)}`);
  if (file) fields.push(`"input": {"data": base64.b64encode(${given}).decode()}`);
  return (
    `import ${file ? "base64, " : ""}json, urllib.request\n\nbody = {${fields.join(", ")}}\nrequest = urllib.request.Request(\n    "${url}", json.dumps(body).encode(), {"Content-Type": "application/json"${key}})\n` +
    `print(json.load(urllib.request.urlopen(request))["${body.inputs ? "answers" : "answer"}"])\n\n# or without a server:\nimport headway\n\nprint(headway.load("${body.model}")(${given}${options}))`
  );
}

/**
 * Code with a button that copies it. The clipboard API exists only on HTTPS pages and on localhost;
 * elsewhere the button selects the code.
 * @param {string} name
 * @param {string} text
 */
function copyable(name, text) {
  const lines = el("pre", { class: "mono", "data-serve": name }, text);
  const copy = async () => {
    if (navigator.clipboard) await navigator.clipboard.writeText(text);
    else getSelection()?.selectAllChildren(lines);
    button.textContent = navigator.clipboard ? "copied" : "selected";
  };
  const button = el(
    "button",
    { class: "chip small", "aria-label": `copy the ${name} code`, onclick: copy },
    "copy",
  );
  return el("div", {}, el("header", {}, el("h3", {}, name), button), lines);
}

// -- the look page: a form that opens it in a new tab

/** The decoding options that both pages have. A temperature means sampling on the look page. */
function lookOptions() {
  const usual = (/** @type {string} */ name) =>
      own().options.find((option) => option.name === name)?.default,
    now = shownOptions();
  /** @type {Record<string, OptionValue>} */
  const found = {};
  for (const name of ["beam", "length_penalty_alpha"]) if (name in now) found[name] = now[name];
  if (now.sample ?? usual("sample"))
    Object.assign(found, {
      temperature: now.temperature ?? usual("temperature") ?? 1,
      seed: now.seed ?? usual("seed") ?? 1,
    });
  return found;
}

function look() {
  APP.wrong = missing();
  if (APP.wrong) {
    APP.last = null;
    refresh();
    return;
  }
  const form = el("form", {
    method: "post",
    action: "v1/look",
    enctype: "multipart/form-data",
    target: "_blank",
    rel: "opener",
    hidden: true,
  });
  const add = (/** @type {string} */ name, /** @type {string | null} */ value) =>
    value && form.append(el("input", { type: "hidden", name, value }));
  add("model", theModel().id);
  add("api_key", sessionStorage.getItem(KEY));
  if (APP.file && isMedia()) {
    const box = el("input", { type: "file", name: "file" }),
      carried = new DataTransfer();
    carried.items.add(APP.file);
    box.files = carried.files;
    form.append(box);
    add("request", JSON.stringify(lookOptions()));
  } else {
    const given = theInput(),
      text =
        typeof given === "string"
          ? given
          : own().fields.length
            ? JSON.stringify(given)
            : Object.values(given).join("\t");
    add("request", JSON.stringify({ text, ...lookOptions() }));
  }
  document.body.append(form);
  form.submit();
  form.remove();
}

// -- recording: samples as they arrive, written to a WAV file

async function record() {
  if (APP.recorder) {
    APP.recorder(true);
    return;
  }
  const { model } = APP,
    stream = await navigator.mediaDevices.getUserMedia({ audio: true });
  // The permission prompt may have taken long.
  if (APP.model !== model || APP.recorder) {
    stream.getTracks().forEach((track) => track.stop());
    return;
  }
  const context = new AudioContext(),
    source = context.createMediaStreamSource(stream);
  const node = context.createScriptProcessor(4096, 1, 1);
  /** @type {Float32Array[]} */
  const parts = [];
  node.onaudioprocess = (event) => parts.push(event.inputBuffer.getChannelData(0).slice());
  source.connect(node);
  node.connect(context.destination);
  APP.recorder = (keep) => {
    node.disconnect();
    stream.getTracks().forEach((track) => track.stop());
    APP.recorder = null;
    if (keep)
      take(new File([wav(parts, context.sampleRate)], "recording.wav", { type: "audio/wav" }));
    context.close();
  };
  drawMedia();
}

/**
 * @param {Float32Array[]} parts
 * @param {number} rate
 */
function wav(parts, rate) {
  const n = parts.reduce((sum, part) => sum + part.length, 0),
    view = new DataView(new ArrayBuffer(44 + 2 * n));
  const text = (/** @type {number} */ at, /** @type {string} */ word) =>
    [...word].forEach((letter, i) => view.setUint8(at + i, letter.charCodeAt(0)));
  text(0, "RIFF");
  view.setUint32(4, 36 + 2 * n, true);
  text(8, "WAVEfmt ");
  view.setUint32(16, 16, true);
  view.setUint16(20, 1, true);
  view.setUint16(22, 1, true);
  view.setUint32(24, rate, true);
  view.setUint32(28, 2 * rate, true);
  view.setUint16(32, 2, true);
  view.setUint16(34, 16, true);
  text(36, "data");
  view.setUint32(40, 2 * n, true);
  let at = 44;
  for (const part of parts)
    for (const x of part) {
      view.setInt16(at, Math.round(clamp(x, -1, 1) * 32767), true);
      at += 2;
    }
  return view.buffer;
}

// -- drawing

/**
 * Uses a file as the input.
 * @param {File | undefined} file
 */
async function take(file) {
  if (!file) return;
  if (isMedia()) {
    hold(file);
    drawMedia();
    return;
  }
  const name = inputNames()[0] || "text",
    box = $("input");
  APP.texts[name] = await file.text();
  if (box instanceof HTMLTextAreaElement) box.value = APP.texts[name];
}

/**
 * Sets the input file and the address under which the page shows it.
 * @param {File | null} file
 */
function hold(file) {
  if (APP.url) URL.revokeObjectURL(APP.url);
  Object.assign(APP, { file, url: file && URL.createObjectURL(file) });
}

function drawMedia() {
  const box = $("drop"),
    active = document.activeElement,
    held = active instanceof HTMLElement && box?.contains(active) && active.dataset.serve;
  box?.replaceWith(mediaBox());
  if (held) $(held)?.focus();
}

/** @type {Attributes<HTMLElement>} */
const dropping = {
  ondragover: (event) => {
    event.preventDefault();
    event.currentTarget.classList.add("over");
  },
  ondragleave: (event) => event.currentTarget.classList.remove("over"),
  ondrop: (event) => {
    event.preventDefault();
    event.currentTarget.classList.remove("over");
    take(event.dataTransfer?.files[0]);
  },
};

function mediaBox() {
  const [name, accept] = KINDS[/** @type {MediaKind} */ (own().reads)],
    { url } = APP;
  const isVideo = APP.file?.type.startsWith("video/");
  const shown = !APP.file
    ? null
    : own().reads === "audio"
      ? el("audio", { src: url, controls: true })
      : isVideo
        ? el("video", { src: url, controls: true, muted: true })
        : el("img", { src: url, alt: "input image" });
  return el(
    "div",
    { class: "drop", "data-serve": "drop", ...dropping },
    shown,
    el(
      "span",
      { class: "soft" },
      APP.file ? APP.file.name : `Drop ${name} here, or choose a file.`,
    ),
    el(
      "div",
      { class: "row" },
      el(
        "label",
        { class: "plain" },
        "Choose a file",
        el("input", {
          type: "file",
          accept,
          class: "unseen",
          "data-serve": "file",
          onchange: (event) => take(event.target.files?.[0]),
        }),
      ),
      own().reads === "audio" &&
        "mediaDevices" in navigator &&
        el(
          "button",
          {
            class: "plain",
            "data-serve": "record",
            onclick: () =>
              record().catch((error) => {
                APP.wrong = `Cannot use the microphone: ${messageOf(error)}`;
                refresh();
              }),
          },
          APP.recorder ? "■ Stop recording" : "● Record",
        ),
    ),
  );
}

function textBoxes() {
  const names = inputNames().length ? inputNames() : ["text"];
  return names.map((name) => {
    const box = el("textarea", {
      "aria-label": name,
      "data-serve": "input",
      "data-name": name,
      dir: "auto",
      ...dropping,
      placeholder: own().continues
        ? "Enter a prompt. Ctrl+Enter sends it."
        : "Enter or drop a text. Ctrl+Enter sends it.",
      oninput: (event) => {
        APP.texts[name] = event.target.value;
      },
    });
    box.value = APP.texts[name] || "";
    return names.length > 1 ? el("label", { class: "small soft" }, name, box) : box;
  });
}

/**
 * The most frequently used options, which come first; the others follow in their listed order.
 */
const FIRST = [
  "n_best",
  "max_len",
  "temperature",
  "sample",
  "beam",
  "top_p",
  "top_k",
  "seed",
  "stop",
  "scores",
  "top",
  "length_penalty_alpha",
  "length_penalty",
  "groups",
  "diversity",
];

/** @param {ModelOption} option */
const rank = ({ name }) => FIRST.indexOf(name) + 1 || FIRST.length + 1;

/**
 * @param {ModelOption} option
 * @returns {HTMLElement | null}
 */
function optionBox(option) {
  const set = (/** @type {OptionValue} */ value) => {
    APP.options[option.name] = value;
  };
  const now = APP.options[option.name],
    attrs = { "data-option": option.name, "aria-describedby": `help-${option.name}` };
  /** @type {HTMLElement} */
  let box;
  if (option.kind === "boolean" || option.kind === "choice") {
    /** @type {[label: string, value: string | boolean][]} */
    const choices = option.choices
      ? option.choices.map((one) => [one, one])
      : [
          ["yes", true],
          ["no", false],
        ];
    box = el(
      "select",
      {
        ...attrs,
        onchange: (event) =>
          set(event.target.value === "" ? null : choices[event.target.selectedIndex - 1][1]),
      },
      el(
        "option",
        { value: "" },
        `default${option.default == null ? "" : ` (${option.default === true ? "yes" : option.default === false ? "no" : option.default})`}`,
      ),
      choices.map(([label, value]) =>
        el("option", { value: label, selected: now === value }, label),
      ),
    );
  } else if (option.kind === "integer" || option.kind === "number") {
    box = el("input", {
      ...attrs,
      type: "number",
      min: option.low,
      max: option.high,
      step: option.kind === "integer" ? 1 : "any",
      value: now ?? "",
      placeholder: option.default ?? "none",
      onchange: (event) => set(event.target.value === "" ? null : Number(event.target.value)),
    });
  } else if (option.kind === "objects") return null;
  else {
    const many = option.kind === "texts";
    box = el("input", {
      ...attrs,
      type: "text",
      value: Array.isArray(now) ? now.join(" | ") : (now ?? ""),
      placeholder: many ? "one | another" : "",
      onchange: (event) =>
        set(
          event.target.value === ""
            ? null
            : many
              ? event.target.value
                  .split("|")
                  .map((one) => one.trim())
                  .filter(Boolean)
              : event.target.value,
        ),
    });
  }
  return el(
    "div",
    { class: "option" },
    el("label", {}, option.name.replaceAll("_", " "), box),
    el("small", { id: `help-${option.name}` }, option.help.replaceAll("`", "")),
  );
}

function drawAnswer() {
  const host = $("answer");
  if (!host) return;
  host.replaceChildren();
  const { last } = APP;
  if (APP.wrong)
    host.append(el("p", { class: "wrong", role: "alert", "data-serve": "wrong" }, APP.wrong));
  if (!last || (APP.wrong && !Object.keys(last.pieces).length)) return;
  if (last.answer) show(host, last.answer, last.whole);
  else if (APP.stop || APP.wrong) {
    const texts = Object.values(last.pieces),
      given = own().continues && typeof last.body?.input === "string" ? last.body.input : "";
    host.append(
      el(
        "p",
        { class: APP.stop ? "said busy" : "said", dir: "auto", "data-serve": "growing" },
        given && texts.length ? el("span", { class: "given" }, given) : null,
        texts[0] || "",
      ),
    );
  }
  if (last.took != null) {
    const { took, first } = last;
    const times = [
      `${Math.round(took)} ms`,
      first != null && `first token after ${Math.round(first)} ms`,
    ];
    host.append(
      el(
        "p",
        { class: "small soft num", "data-serve": "latency" },
        times.filter(Boolean).join(" · "),
      ),
    );
  }
}

/** @param {HTMLElement} host */
function tryTab(host) {
  const options = [...own().options]
    .sort((a, b) => rank(a) - rank(b))
    .flatMap((option) => optionBox(option) ?? []);
  const chosen = el(
    "select",
    {
      "aria-label": "model",
      "data-serve": "model",
      onchange: (event) => pick(APP.models[event.target.selectedIndex]),
    },
    APP.models.map((model) =>
      el(
        "option",
        { value: model.id, selected: model === APP.model },
        `${model.id} (${model.headway.task})`,
      ),
    ),
  );
  host.append(
    el(
      "section",
      {
        class: "card ask",
        "aria-label": "Input",
        onkeydown: (event) => {
          if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
            event.preventDefault();
            send();
          }
        },
      },
      el("label", { class: "small soft" }, "model ", chosen),
      isMedia() ? mediaBox() : textBoxes(),
      options.length
        ? el(
            "details",
            { open: Object.keys(shownOptions()).length > 0, "data-serve": "options" },
            el("summary", { class: "small soft" }, `options (${options.length})`),
            el("div", { class: "options" }, options),
          )
        : null,
      el(
        "div",
        { class: "row" },
        el("button", { class: "go", "data-serve": "go", onclick: send }, "Run"),
        el(
          "button",
          { class: "plain", "data-serve": "stop", hidden: true, onclick: () => APP.stop?.abort() },
          "Stop",
        ),
        el(
          "button",
          {
            class: "plain",
            "data-serve": "look",
            title: "Show in a new tab what happens inside the model for this input",
            onclick: look,
          },
          "Look inside",
        ),
      ),
    ),
    el("section", {
      class: "card",
      "aria-label": "Output",
      "aria-live": "polite",
      "data-serve": "answer",
    }),
    el("section", {
      class: "card lines",
      "aria-label": "The same request as code",
      "data-serve": "lines",
    }),
  );
  refresh();
}

/**
 * Updates everything that changes during a request. The input boxes keep their state and the caret.
 */
function refresh() {
  const busy = Boolean(APP.stop),
    [go, stop, lines] = ["go", "stop", "lines"].map($);
  if (go && stop && lines) {
    go.toggleAttribute("disabled", busy);
    stop.hidden = !busy;
    drawAnswer();
    const { body = null, answer = null, file = null } = APP.last ?? {};
    lines.replaceChildren();
    if (answer && body)
      lines.append(
        copyable("curl", curlLine(body, file)),
        copyable("python", pythonLines(body, file)),
      );
  }
  root.dataset.drawn = `${theTab()} ${busy ? "busy" : "done"}`;
}

// -- the routes, from the server's OpenAPI description

/**
 * The models that a route supports.
 * @type {Record<string, ((model: ModelFacts) => boolean) | undefined>}
 */
const FITS = {
  "/v1/completions": (model) => model.continues,
  "/v1/chat/completions": (model) => model.continues,
  "/v1/embeddings": (model) => model.answers === "vector" && model.reads === "text",
  "/v1/audio/transcriptions": (model) => model.writes && model.reads === "audio",
};

/**
 * @param {ApiSchema} schema
 * @returns {string}
 */
function typeOf(schema) {
  const kind = schema.enum
    ? schema.enum.join(" | ")
    : schema.type === "array"
      ? `list of ${typeOf(schema.items || {})}`
      : schema.format === "binary"
        ? "file"
        : schema.type || "any";
  return kind + (schema.nullable ? " or null" : "");
}

/** @param {ApiSchema} schema */
function fieldsOf(schema) {
  const rows = Object.entries(schema.properties || {});
  if (!rows.length) return el("p", { class: "small" }, typeOf(schema));
  const needed = (/** @type {string} */ name) =>
    (schema.required || []).includes(name) && el("b", {}, " required");
  return el(
    "div",
    { class: "scroll" },
    el(
      "table",
      { class: "small" },
      el(
        "tbody",
        {},
        rows.map(([name, one]) =>
          el(
            "tr",
            {},
            el("td", { class: "mono" }, name),
            el("td", {}, typeOf(one), needed(name)),
            el("td", { class: "soft" }, one.description || ""),
          ),
        ),
      ),
    ),
  );
}

/**
 * The schemas, each with the media types that use it.
 * @param {ApiContent | undefined} content
 * @returns {[schema: ApiSchema, kinds: string][]}
 */
function alike(content) {
  const found = new Map();
  for (const [kind, { schema }] of Object.entries(content || {})) {
    const key = JSON.stringify(schema);
    found.set(key, found.has(key) ? `${found.get(key)}, ${kind}` : kind);
  }
  return [...found].map(([key, kinds]) => [JSON.parse(key), kinds]);
}

/**
 * @param {string} method
 * @param {string} path
 * @param {ApiOperation} about
 */
function exampleOf(method, path, about) {
  /** @type {((model: ModelFacts) => boolean) | null} */
  const fits =
    FITS[path] ||
    (path === "/v1/predict" || path === "/v1/look" ? (model) => model.reads === "text" : null);
  const named = APP.models.find((model) => fits?.(model.headway)),
    url = new URL(path.slice(1).replace("{model}", APP.models[0].id), location.href).href;
  const key = about.security ? ` -H "Authorization: Bearer $KEY"` : "",
    kinds = about.requestBody?.content || {};
  if (fits && !named) return null; // no model of this server supports this route
  if (method === "get") return `curl ${url}${key}`;
  if (kinds["application/json"]) {
    const body = { ...(named && { model: named.id }), ...kinds["application/json"].example };
    return `curl ${url}${key} -H 'Content-Type: application/json' -d ${quoted(JSON.stringify(body))}`;
  }
  return `curl ${url}${key}${named ? ` -F ${quoted("model=" + named.id)}` : ""} -F 'file=@example.wav'`;
}

/**
 * @param {string} method
 * @param {string} path
 * @param {ApiOperation} about
 */
function routeOf(method, path, about) {
  const bodies = alike(about.requestBody?.content),
    answers = alike(about.responses["200"]?.content);
  const others = Object.entries(about.responses).filter(([code]) => code !== "200"),
    example = exampleOf(method, path, about);
  return el(
    "details",
    { class: "route" },
    el(
      "summary",
      {},
      el("code", { class: "mono" }, `${method.toUpperCase()} ${path}`),
      " ",
      el("span", { class: "soft" }, about.summary.replaceAll("`", "")),
    ),
    bodies.map(([schema, kinds]) => [
      el("h3", {}, "Request body ", el("span", { class: "soft plain" }, kinds)),
      fieldsOf(schema),
    ]),
    answers.map(([schema, kinds]) => [
      el("h3", {}, "Response ", el("span", { class: "soft plain" }, kinds)),
      fieldsOf(schema),
    ]),
    example && el("div", { class: "lines" }, copyable("example", example)),
    el("h3", {}, "Other status codes"),
    el(
      "ul",
      { class: "small soft" },
      others.map(([code, one]) => el("li", {}, `${code} ${one.description}`)),
    ),
  );
}

/**
 * Saves a file: a plain link could not send the API key.
 * @param {string} text
 * @param {string} name
 */
function save(text, name) {
  const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  el("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

/** @param {HTMLElement} host */
async function apiTab(host) {
  const card = el("section", { class: "card", "aria-label": "API routes" });
  host.append(card);
  const text = await (await ask("openapi.json")).text();
  card.append(
    el(
      "div",
      { class: "row saved small soft" },
      el("span", {}, "The same description for programs:"),
      el(
        "button",
        { class: "chip small", "data-serve": "openapi", onclick: () => save(text, "openapi.json") },
        "save openapi.json",
      ),
    ),
  );
  /** @type {{paths: Record<string, Record<string, ApiOperation>>}} */
  const { paths } = JSON.parse(text);
  for (const [path, methods] of Object.entries(paths)) {
    for (const [method, about] of Object.entries(methods))
      card.append(routeOf(method, path, about));
  }
}

const theTab = () => (location.hash === "#api" ? "api" : "try");

function draw() {
  const tab = theTab(),
    active = document.activeElement,
    held = active instanceof HTMLElement ? active.dataset : {};
  const host = el("div", { id: "panel", role: "tabpanel", "aria-labelledby": `tab-${tab}` });
  const sign = () => (themeName() === "dark" ? "☀" : "☾");
  const turn = (/** @type {On<MouseEvent>} */ event) => {
    ROOT.dataset.theme = themeName() === "dark" ? "light" : "dark";
    event.target.textContent = sign();
  };
  const step = (/** @type {KeyboardEvent} */ event) => {
    if (!["ArrowLeft", "ArrowRight"].includes(event.key)) return;
    /** @type {HTMLElement | null} */
    const other = document.querySelector(`[data-tab]:not([data-tab="${tab}"])`);
    other?.focus();
    other?.click();
  };
  root.replaceChildren(
    el(
      "header",
      { class: "page" },
      el(
        "div",
        { class: "top" },
        el("h1", {}, "headway"),
        el(
          "span",
          { class: "facts soft" },
          APP.version && el("span", {}, APP.version),
          el("span", {}, `${APP.models.length} model${APP.models.length === 1 ? "" : "s"}`),
        ),
        el(
          "span",
          { class: "tools" },
          sessionStorage.getItem(KEY) &&
            el(
              "button",
              {
                class: "tool",
                "data-serve": "forget",
                onclick: () => {
                  sessionStorage.removeItem(KEY);
                  begin();
                },
              },
              "forget the API key",
            ),
          el(
            "button",
            {
              class: "tool",
              "aria-label": "switch between dark and light theme",
              "data-serve": "theme",
              onclick: turn,
            },
            sign(),
          ),
        ),
      ),
      el(
        "div",
        { class: "tabs", role: "tablist", "aria-label": "Views", onkeydown: step },
        [
          ["try", "Try it", "#"],
          ["api", "API", "#api"],
        ].map(([key, label, hash]) =>
          el(
            "button",
            {
              id: `tab-${key}`,
              role: "tab",
              "aria-selected": String(key === tab),
              "aria-controls": "panel",
              tabindex: key === tab ? 0 : -1,
              "data-tab": key,
              onclick: () => {
                location.hash = hash;
              },
            },
            label,
          ),
        ),
      ),
    ),
    el("main", {}, host),
  );
  if (tab === "api")
    apiTab(host).catch((error) => host.append(el("p", { class: "wrong" }, messageOf(error))));
  else tryTab(host);
  const again = Object.entries(held)
    .map(([key, value = ""]) => `[data-${key}="${CSS.escape(value)}"]`)
    .join("");
  /** @type {HTMLElement | null} */
  const same = again ? document.querySelector(again) : null;
  same?.focus();
  refresh();
}

function leave() {
  APP.stop?.abort();
  APP.recorder?.(false);
  hold(null);
  Object.assign(APP, { options: {}, last: null, wrong: "", stop: null });
}

/** @param {ServedModel} model */
function pick(model) {
  leave();
  APP.typed[model.id] ??= {};
  Object.assign(APP, { model, texts: APP.typed[model.id] });
  draw();
}

/** @param {string} wrong */
function askForKey(wrong) {
  const box = el("input", {
    type: "password",
    "aria-label": "API key",
    "data-serve": "key",
    autocomplete: "off",
  });
  const enter = () => {
    if (box.value) {
      sessionStorage.setItem(KEY, box.value);
      begin("The server does not accept this API key.");
    }
  };
  root.replaceChildren(
    el("header", { class: "page" }, el("h1", {}, "headway")),
    el(
      "form",
      {
        class: "card ask",
        "aria-label": "API key",
        onsubmit: (event) => {
          event.preventDefault();
          enter();
        },
      },
      el(
        "p",
        {},
        "This server requires an API key. The key is stored in this tab only and deleted when you close it.",
      ),
      wrong && el("p", { class: "wrong", role: "alert" }, wrong),
      el("div", { class: "row" }, box, el("button", { class: "go", type: "submit" }, "Continue")),
    ),
  );
  root.dataset.drawn = "key";
  box.focus();
}

async function begin(wrong = "") {
  leave();
  try {
    APP.version = (await (await fetch("version")).json()).version;
    APP.models = (await (await ask("v1/models")).json()).data;
    pick(APP.models[0]);
  } catch (error) {
    if (error instanceof ServerError && error.status === 401) {
      sessionStorage.removeItem(KEY);
      askForKey(wrong);
    } else {
      const message = `The server is not responding: ${messageOf(error)}`;
      root.replaceChildren(el("p", { class: "wrong", role: "alert" }, message));
    }
  }
}

ROOT.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
addEventListener("hashchange", () => {
  APP.recorder?.(true);
  if (APP.model) draw();
});
begin();
