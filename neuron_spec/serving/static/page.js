// The form, and what its buttons do.

import { Failure, curlCommand, getHealth, getModel, requestBody, stream } from "./api.js";
import { showModel } from "./model.js";
import { Run } from "./run.js";
import { RunView, byId, clearBeside, showAcceptance, showCounts, showFailure, showVerdict } from "./view.js";

let model = null;
let key = ""; // nowhere else, so that it is gone with the page
let running = null; // the AbortController of what runs

const canSpeculate = () => model !== null && model.speculation !== false;
const number = (id) => (byId(id).value === "" ? null : Number(byId(id).value));

function readForm() {
  return {
    prompt: byId("prompt").value,
    endpoint: document.querySelector("[name=endpoint]:checked").value,
    maxTokens: number("max_tokens"),
    temperature: number("temperature"),
    seed: number("seed"),
    speculate: true,
  };
}

async function loadModel() {
  try {
    model = await getModel(key);
  } catch (failure) {
    byId("headline").textContent = failure.status === 401 ? "an API key is needed" : "not available";
    showError(failure);
    return;
  }
  byId("key-form").hidden = true;
  showFailure(null);
  showModel(model);
  const temperature = byId("temperature");
  temperature.value = model.default_temperature;
  temperature.disabled = !model.can_sample;
  byId("greedy-only").hidden = model.can_sample;
  if (!canSpeculate()) {
    byId("compare-hint").textContent = "This server decodes without a draft: there is nothing to compare.";
    byId("acceptance-note").textContent = "This server decodes without a draft: every token is plain.";
  }
  setButtons();
  showCurl();
}

function setButtons() {
  byId("generate").disabled = running !== null || model === null;
  byId("compare").disabled = running !== null || !canSpeculate();
  byId("stop").disabled = running === null;
}

function showError(failure) {
  if (!(failure instanceof Failure)) throw failure;
  const isFirstAsk = failure.status === 401 && key === "";
  if (!isFirstAsk) showFailure(failure);
  const field = { messages: "prompt", max_completion_tokens: "max_tokens" }[failure.field] ?? failure.field;
  if (failure.status === 401) {
    byId("key-form").hidden = false;
    byId("key").focus();
  } else if (field && byId(field)) {
    byId(field).setAttribute("aria-invalid", "true");
  }
}

function clear() {
  showFailure(null);
  byId("verdict").hidden = true;
  byId("runs").replaceChildren();
  clearBeside();
  for (const wrong of document.querySelectorAll("[aria-invalid]")) wrong.removeAttribute("aria-invalid");
}

const say = (text) => { byId("status").textContent = text; };

async function runOnce(form, signal) {
  const title = !canSpeculate() ? "Without speculation" : form.speculate ? "Speculation on" : "Speculation off";
  const run = new Run();
  const view = new RunView(run, title);
  const isMain = form.speculate;
  try {
    for await (const event of stream(form.endpoint, requestBody(model.id, form), { key, signal })) {
      view.add(run.take(event));
      view.showFigures();
      if (isMain) showBeside(run);
    }
    view.end(null);
    return run;
  } catch (error) {
    run.isStopped = error.name === "AbortError";
    view.end(run.isStopped ? null : error);
    if (!run.tokens.length) view.card.remove();
    throw error;
  }
}

function showBeside(run) {
  showCounts(run);
  showAcceptance(run);
}

// Runs the forms one after the other; null where that was stopped or failed.
async function runAll(forms) {
  running = new AbortController();
  clear();
  setButtons();
  const runs = [];
  let numOthers = 0;
  try {
    for (const form of forms) {
      say(forms.length > 1 ? `Generating, ${runs.length + 1} of ${forms.length}…` : "Generating…");
      numOthers = Math.max(numOthers, (await getHealth()).num_running ?? 0);
      runs.push(await runOnce(form, running.signal));
    }
    const last = runs.at(-1);
    say(`Done: ${runs[0].tokens.length} tokens; ended by ${last.finish === "length" ? "the limit" : "the model"}.`);
    return { runs, numOthers };
  } catch (error) {
    say(error.name === "AbortError" ? "Stopped." : "");
    if (error.name !== "AbortError") showError(error);
    return null;
  } finally {
    running = null;
    setButtons();
  }
}

async function generate() {
  if (running || model === null || !byId("ask").reportValidity()) return;
  await runAll([readForm()]);
}

async function compare() {
  if (running || !canSpeculate() || !byId("ask").reportValidity()) return;
  const form = readForm();
  const done = await runAll([form, { ...form, speculate: false }]);
  if (!done) return;
  const [on, off] = done.runs;
  const isGreedy = form.temperature === 0;
  showVerdict(on, off, { isGreedy, numOthers: done.numOthers });
}

function showCurl() {
  const form = readForm();
  const body = requestBody(model?.id ?? "MODEL", form);
  byId("curl-text").textContent = curlCommand(form.endpoint, body, { needsKey: key !== "" });
}

async function copyCurl() {
  const text = byId("curl-text");
  try {
    await navigator.clipboard.writeText(text.textContent);
    say("Copied.");
  } catch { // only pages from this machine or over https may write to the clipboard
    getSelection().selectAllChildren(text);
    say("Selected: copy it with Ctrl + C.");
  }
}

byId("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  generate();
});
byId("ask").addEventListener("input", showCurl);
byId("compare").addEventListener("click", compare);
byId("stop").addEventListener("click", () => running?.abort());
byId("copy").addEventListener("click", copyCurl);
byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  key = byId("key").value.trim();
  byId("key").value = "";
  loadModel();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.abort();
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) generate();
});

showCurl();
setButtons();
loadModel();
