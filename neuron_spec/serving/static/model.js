// The model card in words.

import { byId, element } from "./view.js";

const RULES = {
  greedy: "A drafted token is kept while it is the target's own first choice.",
  rejection: "A drafted token is kept with the target's probability over the draft's, 1 at most; a refused one is drawn anew from what is left.",
  lenient: "As rejection sampling, but more forgiving: more drafts are kept, and the output is no longer the target's own.",
  typical: "A drafted token is kept where the target finds it typical enough, by a threshold.",
  "sample-match": "A drafted token is kept where it equals the token that the target itself samples.",
};

export function headline(model) {
  if (model.speculation === false) return `${model.id} · decodes with the target alone`;
  const k = model.num_draft_tokens;
  const lookup = model.lookup_method ? `${model.lookup_method} lookup before ` : "";
  const method = model.draft_method ? ` · ${lookup}${model.draft_method} draft` : "";
  return model.id + method + (k ? ` · up to ${k} drafted tokens a step` : "");
}

export function showModel(model) {
  byId("headline").textContent = headline(model);
  const parts = [];
  if (model.verification_rule) {
    parts.push(element("p", {}, [
      element("b", { text: model.verification_rule }),
      ` verification. ${RULES[model.verification_rule] ?? ""}`,
    ]));
  }
  if (model.claims?.length) {
    parts.push(element("h3", { text: "What the rule promises" }));
    parts.push(element("ul", { class: "claims" }, model.claims.map(claim)));
  }
  if (model.numerics) parts.push(element("p", { class: "muted", text: `Each is ${model.numerics}.` }));
  const limits = [["Prompt", model.max_prompt_tokens], ["Prompt and output", model.max_model_len]];
  parts.push(element("dl", { class: "figures" }, limits.map(([name, value]) =>
    element("div", {}, [element("dt", { text: name }), element("dd", { text: `${value} tokens` })]))));
  byId("model").replaceChildren(...parts);
}

function claim({ level, status, source }) {
  const kind = { stated: "yes", "not stated": "no" }[status] ?? "measured";
  const summary = element("summary", {}, [`${level} `, element("span", { text: status, class: `chip ${kind}` })]);
  return element("li", {}, [element("details", {}, [summary, element("p", { class: "muted", text: source })])]);
}
