"use strict";
// The page at `/` of `headway serve`. The server's description of its models decides what is shown;
// no task is known by its name. Output of a model is inserted as text, never as markup.
const KEY = "headway-key";
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

const keyHeader = () =>
  sessionStorage.getItem(KEY) ? { Authorization: "Bearer " + sessionStorage.getItem(KEY) } : {};
const $ = (name) => document.querySelector(`[data-serve=${name}]`);
const own = () => APP.model.headway;
const isMedia = () => own().reads !== "text";
const KINDS = {
  image: ["an image", "image/*"],
  video: ["a video", "video/*,image/gif"],
  audio: ["a recording", "audio/*"],
};

async function ask(path, options = {}) {
  const answer = await fetch(path, { ...options, headers: { ...keyHeader(), ...options.headers } });
  if (answer.ok) return answer;
  let said = {};
  try {
    said = await answer.json();
  } catch {
    /* the error of a proxy may not be JSON */
  }
  const error = new Error(said.error?.message || `${answer.status} ${answer.statusText}`);
  error.status = answer.status;
  error.wait = answer.headers.get("Retry-After");
  throw error;
}

// -- the request

function shownOptions() {
  const found = {};
  for (const [name, value] of Object.entries(APP.options))
    if (value !== "" && value != null) found[name] = value;
  return found;
}

function inputNames() {
  return own().fields.length ? own().fields : own().inputs.filter((name) => name !== "path");
}

function theInput() {
  const names = inputNames();
  if (names.length > 1 || own().fields.length) {
    return Object.fromEntries(
      names.map((name) => [name, APP.texts[name] || ""]).filter(([, text]) => text),
    );
  }
  return APP.texts[names[0] || "text"] || "";
}

// Translation models are trained on single lines, so each line of the box is a separate input.
const byLine = (given) =>
  own().writes && !own().continues && typeof given === "string" && given.trim().includes("\n");
const isLine = (line) => line.trim() !== "";

function theRequest() {
  const options = shownOptions(),
    more = Object.keys(options).length ? { options } : {},
    given = theInput();
  const asked = byLine(given) ? { inputs: given.split("\n").filter(isLine) } : { input: given };
  return { model: APP.model.id, ...asked, ...more };
}

// The message about missing input. The prompt of a language model may be empty.
function missing() {
  if (isMedia()) return APP.file ? "" : `Choose ${KINDS[own().reads][0]} first.`;
  const names = inputNames().length ? inputNames() : ["text"],
    empty = names.filter((name) => !(APP.texts[name] || "").trim());
  if (own().fields.length ? empty.length < names.length : !empty.length) return "";
  return names.length > 1 && empty.length < names.length
    ? `Enter a text first: ${empty.join(", ")}.`
    : "Enter a text first.";
}

// Joins the answers for several lines into one answer with the same lines.
function together(answers, given) {
  const failed = answers.find((answer) => answer.error);
  if (failed) throw new Error(failed.error);
  const lined = (k) => {
    const outputs = answers.map((answer) => answer.outputs[Math.min(k, answer.outputs.length - 1)]),
      texts = outputs.map((output) => output.text);
    return {
      text: given
        .split("\n")
        .map((line) => (isLine(line) ? texts.shift() : ""))
        .join("\n"),
      token_log_probs: outputs.flatMap((output) => output.token_log_probs || []),
    };
  };
  return {
    outputs: answers
      .reduce((a, b) => (a.outputs.length > b.outputs.length ? a : b))
      .outputs.map((_, k) => lined(k)),
  };
}

async function send() {
  const given = theInput();
  if (APP.stop) return;
  APP.wrong = own().continues ? "" : missing();
  if (APP.wrong) {
    APP.last = null;
    refresh();
    return;
  }
  const begun = performance.now(),
    control = new AbortController(),
    last = {
      pieces: {},
      answer: null,
      whole: null,
      first: null,
      took: null,
      body: null,
      file: APP.file,
    };
  Object.assign(APP, { stop: control, last });
  refresh();
  try {
    let answer;
    if (isMedia()) {
      const form = new FormData();
      form.append("model", APP.model.id);
      form.append("options", JSON.stringify(shownOptions()));
      form.append("file", APP.file, APP.file.name || "input");
      last.body = { model: APP.model.id, options: shownOptions() };
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
      await follow(answer, begun);
    else {
      const said = await answer.json();
      last.answer = said.answers ? together(said.answers, given) : said.answer;
      last.whole = said.answers || said.answer;
    }
  } catch (error) {
    if (APP.last !== last) return; // another model was selected in the meantime
    if (error.name === "AbortError") APP.wrong = "Stopped.";
    else APP.wrong = error.message + (error.wait ? ` (retry in ${error.wait} s)` : "");
    if (error.status === 401) {
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

// Server-sent events: pieces as they arrive, then the complete answer.
async function follow(answer, begun) {
  const reader = answer.body.getReader(),
    decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    rest += decoder.decode(value, { stream: true });
    const events = rest.split("\n\n");
    rest = events.pop();
    for (const event of events) {
      if (!event.startsWith("data: ") || event === "data: [DONE]") continue;
      const said = JSON.parse(event.slice(6));
      if (said.error) throw new Error(said.error.message);
      if (said.answers) {
        [APP.last.answer] = said.answers;
        APP.last.whole = APP.last.answer;
        if (APP.last.answer.error) throw new Error(APP.last.answer.error);
      } else {
        APP.last.first ??= performance.now() - begun;
        APP.last.pieces[said.output] = (APP.last.pieces[said.output] || "") + said.text;
        drawAnswer();
      }
    }
  }
}

// -- display of an answer, depending on its keys

const score = (output) =>
  output.token_log_probs?.length
    ? Math.exp(output.token_log_probs.reduce((a, b) => a + b, 0) / output.token_log_probs.length)
    : null;

function written(host, answer) {
  const outputs = answer.outputs || [{ text: answer.text ?? "" }];
  const [best, ...others] = outputs,
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
  } else if (score(best) != null)
    host.append(
      el(
        "p",
        { class: "small soft" },
        `geometric mean of the token probabilities: ${percent(score(best))}`,
      ),
    );
}

function spoken(host, answer) {
  written(host, { text: answer.text });
  if (answer.words?.length) {
    host.append(
      el(
        "div",
        { class: "words" },
        answer.words.map((word) =>
          el(
            "span",
            { title: `confidence ${percent(word.confidence ?? 0)}` },
            word.word,
            el("small", { class: "num" }, `${word.start.toFixed(2)}–${word.end.toFixed(2)} s`),
          ),
        ),
      ),
    );
  }
}

function labelled(host, answer) {
  const shares = Object.entries(answer.probabilities || {})
    .sort((a, b) => b[1] - a[1])
    .slice(0, 12);
  const named = answer.labels ? answer.labels.join(", ") || "none" : answer.label;
  host.append(el("p", { class: "said", "data-serve": "text" }, named));
  if (shares.length)
    bars(
      host,
      shares.map(([label, value]) => ({
        label,
        value,
        shown: percent(value),
        picked: label === answer.label,
      })),
      { max: 1 },
    );
}

function tagged(host, answer) {
  const words = answer.words || [],
    tags = answer.tags || [];
  host.append(
    el(
      "div",
      { class: "words", "data-serve": "text" },
      words.map((word, i) => el("span", {}, word, el("small", {}, tags[i]))),
    ),
  );
}

function filled(host, answer) {
  host.append(el("p", { class: "said", "data-serve": "text" }, answer.text ?? ""));
  for (const gap of answer.gaps || [])
    bars(
      host,
      (gap.words || gap).map(({ word, token, probability }) => ({
        label: word ?? token,
        value: probability,
        shown: percent(probability),
      })),
      { max: 1 },
    );
}

function vector(host, answer) {
  const values = answer.vector,
    most = Math.max(...values.map(Math.abs));
  host.append(
    el("p", { class: "said", "data-serve": "text" }, `Vector with ${values.length} components`),
  );
  bars(
    host,
    values.slice(0, 12).map((value, i) => ({ label: String(i), value, digits: 4 })),
    { max: most },
  );
}

function show(host, answer, whole) {
  if (answer.tags) tagged(host, answer);
  else if (answer.vector) vector(host, answer);
  else if (answer.gaps) filled(host, answer);
  else if (answer.probabilities || "label" in answer || "labels" in answer) labelled(host, answer);
  else if (answer.segments) spoken(host, answer);
  else if (answer.outputs || "text" in answer) written(host, answer);
  else if ("number" in answer || "value" in answer)
    host.append(
      el("p", { class: "said", "data-serve": "text" }, number(answer.number ?? answer.value, 4)),
    );
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

const quoted = (text) => "'" + text.replaceAll("'", "'\\''") + "'";
function python(value) {
  if (value === null || typeof value === "boolean")
    return { null: "None", true: "True", false: "False" }[value];
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (typeof value !== "object") return JSON.stringify(value);
  return `{${Object.entries(value)
    .map(([key, one]) => `${JSON.stringify(key)}: ${python(one)}`)
    .join(", ")}}`;
}

function curlLine() {
  const { body, file } = APP.last,
    url = new URL("v1/predict", location.href).href;
  const key = sessionStorage.getItem(KEY) ? ` -H "Authorization: Bearer $KEY"` : "";
  if (file) {
    const options = Object.keys(body.options).length
      ? ` -F ${quoted("options=" + JSON.stringify(body.options))}`
      : "";
    return `curl ${url}${key} -F ${quoted("model=" + body.model)}${options} -F ${quoted("file=@" + file.name)}`;
  }
  return `curl ${body.stream ? "-N " : ""}${url}${key} -H 'Content-Type: application/json' -d ${quoted(JSON.stringify(body))}`;
}

function pythonLines() {
  const { body, file } = APP.last,
    options = Object.entries(body.options || {})
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
    `print(json.load(urllib.request.urlopen(request))["${body.inputs ? "answers" : "answer"}"])\n\n# or without a server:\nimport headway\n\nprint(headway.load("${APP.model.id}")(${given}${options}))`
  );
}

// The clipboard API exists only on HTTPS pages and on localhost; elsewhere the lines are selected.
function copyable(name, text) {
  const lines = el("pre", { class: "mono", "data-serve": name }, text);
  const copy = async () => {
    if (navigator.clipboard) await navigator.clipboard.writeText(text);
    else getSelection().selectAllChildren(lines);
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

// The decoding options that both pages have. A temperature means sampling on the look page.
function lookOptions() {
  const usual = (name) => own().options.find((option) => option.name === name)?.default,
    now = shownOptions(),
    found = {};
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
  const add = (name, value) => form.append(el("input", { type: "hidden", name, value }));
  add("model", APP.model.id);
  if (sessionStorage.getItem(KEY)) add("api_key", sessionStorage.getItem(KEY));
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
  if (APP.model !== model || APP.recorder) {
    stream.getTracks().forEach((track) => track.stop());
    return;
  } // the permission prompt took long
  const context = new AudioContext(),
    source = context.createMediaStreamSource(stream);
  const node = context.createScriptProcessor(4096, 1, 1),
    parts = [];
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

function wav(parts, rate) {
  const n = parts.reduce((sum, part) => sum + part.length, 0),
    view = new DataView(new ArrayBuffer(44 + 2 * n));
  const text = (at, word) =>
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

async function take(file) {
  if (!file) return;
  if (isMedia()) {
    hold(file);
    drawMedia();
    return;
  }
  const name = inputNames()[0] || "text";
  APP.texts[name] = await file.text();
  if ($("input")) $("input").value = APP.texts[name];
}

// The input file and the object URL under which the page shows it.
function hold(file) {
  if (APP.url) URL.revokeObjectURL(APP.url);
  Object.assign(APP, { file, url: file && URL.createObjectURL(file) });
}

function drawMedia() {
  const box = $("drop"),
    held = box?.contains(document.activeElement) && document.activeElement.dataset.serve;
  box?.replaceWith(mediaBox());
  if (held) $(held)?.focus();
}

const dropping = {
  ondragover: (event) => {
    event.preventDefault();
    event.currentTarget.classList.add("over");
  },
  ondragleave: (event) => event.currentTarget.classList.remove("over"),
  ondrop: (event) => {
    event.preventDefault();
    event.currentTarget.classList.remove("over");
    take(event.dataTransfer.files[0]);
  },
};

function mediaBox() {
  const [name, accept] = KINDS[own().reads],
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
          onchange: (event) => take(event.target.files[0]),
        }),
      ),
      own().reads === "audio" &&
        navigator.mediaDevices &&
        el(
          "button",
          {
            class: "plain",
            "data-serve": "record",
            onclick: () =>
              record().catch((error) => {
                APP.wrong = `Cannot use the microphone: ${error.message}`;
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

// The most frequently used options come first; the others follow in their listed order.
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
const rank = ({ name }) => FIRST.indexOf(name) + 1 || FIRST.length + 1;

function optionBox(option) {
  const set = (value) => {
    APP.options[option.name] = value;
  };
  const now = APP.options[option.name],
    attrs = { "data-option": option.name, "aria-describedby": `help-${option.name}` };
  let box;
  if (option.kind === "boolean" || option.kind === "choice") {
    const choices =
      option.kind === "choice"
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
      value: many ? (now || []).join(" | ") : (now ?? ""),
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
    const times = [
      `${Math.round(last.took)} ms`,
      last.first != null && `first token after ${Math.round(last.first)} ms`,
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

function tryTab(host) {
  const options = [...own().options]
    .sort((a, b) => rank(a) - rank(b))
    .map(optionBox)
    .filter(Boolean);
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

// Updates everything that changes during a request. The input boxes keep their state and the caret.
function refresh() {
  const busy = Boolean(APP.stop);
  if ($("go")) {
    $("go").disabled = busy;
    $("stop").hidden = !busy;
    drawAnswer();
    $("lines").replaceChildren(
      ...(APP.last?.answer
        ? [copyable("curl", curlLine()), copyable("python", pythonLines())]
        : []),
    );
  }
  document.getElementById("root").dataset.drawn = `${theTab()} ${busy ? "busy" : "done"}`;
}

// -- the routes, from the server's OpenAPI description

const FITS = {
  "/v1/completions": (model) => model.continues,
  "/v1/chat/completions": (model) => model.continues,
  "/v1/embeddings": (model) => model.answers === "vector" && model.reads === "text",
  "/v1/audio/transcriptions": (model) => model.writes && model.reads === "audio",
};

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

function fieldsOf(schema) {
  const rows = Object.entries(schema.properties || {});
  if (!rows.length) return el("p", { class: "small" }, typeOf(schema));
  const needed = (name) => (schema.required || []).includes(name) && el("b", {}, " required");
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

// The schemas, each with the media types that use it.
function alike(content) {
  const found = new Map();
  for (const [kind, { schema }] of Object.entries(content || {})) {
    const key = JSON.stringify(schema);
    found.set(key, found.has(key) ? `${found.get(key)}, ${kind}` : kind);
  }
  return [...found].map(([key, kinds]) => [JSON.parse(key), kinds]);
}

function exampleOf(method, path, about) {
  const fits =
    FITS[path] ||
    (path === "/v1/predict" || path === "/v1/look" ? (model) => model.reads === "text" : null);
  const named = fits && APP.models.find((model) => fits(model.headway)),
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

// A plain link could not send the API key.
function save(text, name) {
  const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  el("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

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
  for (const [path, methods] of Object.entries(JSON.parse(text).paths)) {
    for (const [method, about] of Object.entries(methods))
      card.append(routeOf(method, path, about));
  }
}

const theTab = () => (location.hash === "#api" ? "api" : "try");

function draw() {
  const root = document.getElementById("root"),
    tab = theTab(),
    held = document.activeElement?.dataset;
  const host = el("div", { id: "panel", role: "tabpanel", "aria-labelledby": `tab-${tab}` });
  const sign = () => (themeName() === "dark" ? "☀" : "☾");
  const turn = (event) => {
    ROOT.dataset.theme = themeName() === "dark" ? "light" : "dark";
    event.target.textContent = sign();
  };
  const step = (event) => {
    if (!["ArrowLeft", "ArrowRight"].includes(event.key)) return;
    document.querySelector(`[data-tab]:not([data-tab="${tab}"])`).focus();
    document.activeElement.click();
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
            { class: "tool", "aria-label": "dark or light", "data-serve": "theme", onclick: turn },
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
    apiTab(host).catch((error) => host.append(el("p", { class: "wrong" }, error.message)));
  else tryTab(host);
  const again =
    held &&
    Object.entries(held)
      .map(([key, value]) => `[data-${key}="${CSS.escape(value)}"]`)
      .join("");
  if (again) document.querySelector(again)?.focus();
  refresh();
}

function leave() {
  APP.stop?.abort();
  APP.recorder?.(false);
  hold(null);
  Object.assign(APP, { options: {}, last: null, wrong: "", stop: null });
}

function pick(model) {
  leave();
  APP.typed[model.id] ??= {};
  Object.assign(APP, { model, texts: APP.typed[model.id] });
  draw();
}

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
  document.getElementById("root").replaceChildren(
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
  document.getElementById("root").dataset.drawn = "key";
  box.focus();
}

async function begin(wrong = "") {
  leave();
  try {
    APP.version = (await (await fetch("version")).json()).version;
    APP.models = (await (await ask("v1/models")).json()).data;
    pick(APP.models[0]);
  } catch (error) {
    if (error.status === 401) {
      sessionStorage.removeItem(KEY);
      askForKey(wrong);
    } else
      document
        .getElementById("root")
        .replaceChildren(
          el(
            "p",
            { class: "wrong", role: "alert" },
            `The server is not responding: ${error.message}`,
          ),
        );
  }
}

ROOT.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
addEventListener("hashchange", () => {
  APP.recorder?.(true);
  if (APP.model) draw();
});
begin();
