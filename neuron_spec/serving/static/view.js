// What is shown: everything a model or a server says goes in as text, never as markup.

import { ORIGINS, parting } from "./run.js";

export const byId = (id) => document.getElementById(id);

export function element(name, { text, ...attributes } = {}, children = []) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  made.append(...children);
  return made;
}

const times = (value) => `${value < 10 ? value.toFixed(2) : value.toFixed(1)} ×`;
const percent = (value) => `${Math.round(100 * value)} %`;

function duration(ms) {
  if (ms === null) return "–";
  if (ms >= 1000) return `${(ms / 1000).toFixed(2)} s`;
  return `${ms < 100 ? ms.toFixed(1) : Math.round(ms)} ms`;
}

const rate = (value) => (value === null ? "–" : value.toFixed(1));

// A run's card

export class RunView {
  constructor(run, title) {
    const card = byId("run-template").content.cloneNode(true).firstElementChild;
    [this.run, this.card] = [run, card];
    const find = (selector) => card.querySelector(selector);
    [this.output, this.told, this.figures] = [".output", ".told", ".figures"].map(find);
    find("h2").textContent = title;
    this.output.setAttribute("aria-label", `Output, ${title.toLowerCase()}`);
    this.output.addEventListener("pointerover", ({ target }) => this.#tell(target.closest(".step")));
    this.output.addEventListener("keydown", (event) => this.#walk(event));
    byId("runs").append(card);
    this.showFigures();
  }

  add(pieces) {
    for (const piece of pieces) {
      if (!piece.text) continue; // a part of a character, or an end token
      const token = element("span", { text: piece.text, class: `token ${piece.origin}` });
      token.title = describe(piece);
      this.#stepOf(piece.step).append(token);
    }
  }

  #stepOf(number) {
    const last = this.output.lastElementChild;
    if (last && Number(last.dataset.step) === number) return last;
    const step = element("span", { class: "step", "data-step": number });
    this.output.append(step);
    return step;
  }

  #walk(event) {
    const move = { ArrowRight: "nextElementSibling", ArrowLeft: "previousElementSibling" }[event.key];
    if (!move) return;
    event.preventDefault();
    const current = this.output.querySelector(".current");
    this.#tell(current ? current[move] : this.output.firstElementChild);
  }

  #tell(step) {
    if (!step || step.classList.contains("current")) return;
    this.output.querySelector(".current")?.classList.remove("current");
    step.classList.add("current");
    const number = Number(step.dataset.step);
    const { positions, accepted } = this.run.steps.get(number) ?? { positions: 0, accepted: 0 };
    const text = JSON.stringify(step.textContent);
    const what = number === 0 ? "From the prompt" : `Step ${number}`;
    const how = positions ? `${accepted} of ${positions} drafted positions accepted` : "nothing drafted";
    this.told.textContent = `${what}: ${how}: ${text}`;
  }

  showFigures() {
    const { run } = this;
    const cached = run.cachedTokens ? ` (${run.cachedTokens} prompt tokens from the cache)` : "";
    const { length } = run.acceptance;
    fill(this.figures, [
      ["TTFT", duration(run.ttft) + cached, "time to first token"],
      ["TPOT", duration(run.tpot), "time per output token after the first"],
      ["Tokens/s", rate(run.tokensPerSecond), "output tokens over the whole time"],
      ["Tokens", String(run.tokens.length), "output tokens"],
      ["Per step", length === null ? "–" : length.toFixed(2), "acceptance length: tokens a verification step"],
    ]);
  }

  end(error) {
    this.output.setAttribute("aria-busy", "false");
    const why = error ? "broke off" : this.run.isStopped ? "stopped by you" : null;
    if (why) this.card.querySelector("h2").append(element("span", { text: why, class: "chip" }));
    this.showFigures();
  }
}

function fill(list, figures) {
  list.replaceChildren(...figures.map(([name, value, title]) =>
    element("div", { title }, [element("dt", { text: name }), element("dd", { text: value })])));
}

function describe({ origin, step, place, num_positions: positions }) {
  if (origin === "held") return "held back until the end";
  if (step === 0) return "plain: the prompt's own next token";
  const what = {
    accepted: `accepted draft, position ${place} of ${positions}`,
    corrected: `corrected: the target's own after ${place} of ${positions} accepted`,
    bonus: `bonus: the target's own after all ${positions} accepted`,
    plain: "plain: nothing was drafted",
  }[origin];
  return `${what}; step ${step}`;
}

// What is beside it

export function showCounts(run) {
  for (const origin of ORIGINS) byId(`num-${origin}`).textContent = run ? run.counts[origin] : "";
}

export function clearBeside() {
  showCounts(null);
  byId("bars").replaceChildren();
  byId("acceptance-note").textContent = "";
}

export function showAcceptance(run) {
  const { rates, length, rate: overall, numSteps } = run.acceptance;
  const parts = [`${numSteps} steps`];
  if (length !== null) parts.push(`${length.toFixed(2)} tokens a step`);
  if (overall !== null) parts.push(`${percent(overall)} of the drafts accepted`);
  byId("acceptance-note").textContent = rates.length ? parts.join(" · ") : "Nothing was drafted.";
  const bars = byId("bars");
  while (bars.children.length > rates.length) bars.lastElementChild.remove();
  rates.forEach((value, index) => {
    const row = bars.children[index] ?? bars.appendChild(makeBar(index));
    row.querySelector(".fill").style.width = `${100 * value}%`;
    row.lastElementChild.textContent = percent(value);
  });
}

function makeBar(index) {
  const fillPart = element("span", { class: "fill" });
  return element("li", {}, [
    element("span", { text: String(index + 1) }),
    element("span", { class: "bar", "aria-hidden": "true" }, [fillPart]),
    element("span", { class: "value" }),
  ]);
}

export function showFailure(failure) {
  const box = byId("error");
  box.hidden = !failure;
  if (!failure) return;
  const field = failure.field ? element("code", { text: failure.field }) : null;
  const wait = failure.retryAfter ? ` Try again in ${failure.retryAfter} s.` : "";
  const head = [failure.status ? `Error ${failure.status}` : "Error", ...(field ? [" in ", field] : [])];
  box.replaceChildren(element("strong", {}, head), element("p", { text: failure.message + wait }));
}

// Both runs of a comparison

export function showVerdict(on, off, { isGreedy, numOthers }) {
  const box = byId("verdict");
  const ratio = on.tpot && off.tpot ? off.tpot / on.tpot : null;
  const head = ratio === null
    ? element("p", { class: "ratio", text: "too short to compare" })
    : element("p", { class: "ratio" }, [
      element("b", { text: times(ratio) }),
      " the speed per token, speculation on against off",
    ]);
  const notes = [sameness(parting(on.tokens, off.tokens), isGreedy)];
  notes.push("One run of each, one after the other, as this browser saw them, the network included.");
  if (numOthers) notes.push(`Other requests were running meanwhile (${numOthers}): the times are of a shared server.`);
  box.replaceChildren(head, comparisonTable(on, off), ...notes.map((text) => element("p", { text })));
  box.hidden = false;
}

function sameness(place, isGreedy) {
  if (place === null) return "The same text, token for token.";
  const where = `The texts part at token ${place + 1}`;
  if (!isGreedy) return `${where}, as samples do.`;
  return `${where}. The rule promises the same text but for rounding at near-ties; neuron-spec verify tells which it was.`;
}

function comparisonTable(on, off) {
  const rows = [
    ["TTFT", on.ttft, off.ttft, duration, false],
    ["TPOT", on.tpot, off.tpot, duration, false],
    ["Tokens/s", on.tokensPerSecond, off.tokensPerSecond, rate, true],
  ].map(([name, a, b, show, isMoreBetter]) => {
    const ratio = a && b ? times(isMoreBetter ? a / b : b / a) : "–";
    return element("tr", {}, [
      element("th", { scope: "row", text: name }),
      ...[show(a), show(b), ratio].map((text) => element("td", { text })),
    ]);
  });
  const names = ["", "on", "off", "speedup"];
  const head = element("tr", {}, names.map((text) => element("th", { scope: "col", text })));
  return element("table", {}, [element("thead", {}, [head]), element("tbody", {}, rows)]);
}
