// One answer as it comes: its tokens by step, its times as this browser sees them, its acceptance.

export const ORIGINS = ["accepted", "corrected", "bonus", "plain"];

export class Run {
  constructor(now = () => performance.now()) {
    this.now = now;
    this.tokens = [];
    this.steps = new Map(); // number -> {positions, accepted}
    this.counts = Object.fromEntries(ORIGINS.map((origin) => [origin, 0]));
    this.usage = null;
    this.finish = null;
    this.isStopped = false;
    this.startedAt = now();
    this.firstAt = null;
    this.lastAt = null;
  }

  // The pieces that an event adds: tokens, and text that was held back until the end.
  take(event) {
    if (event.usage) this.usage = event.usage;
    const choice = event.choices[0];
    if (!choice) return [];
    this.finish = choice.finish_reason ?? this.finish;
    const tokens = choice.tokens ?? [];
    tokens.forEach((token) => this.#count(token));
    const text = choice.delta ? (choice.delta.content ?? "") : choice.text;
    if (tokens.length || !text) return tokens;
    return [{ text, origin: "held", step: this.tokens.at(-1)?.step ?? 0 }];
  }

  #count(token) {
    this.lastAt = this.now();
    this.firstAt ??= this.lastAt;
    this.tokens.push(token);
    this.counts[token.origin] += 1;
    const step = this.steps.get(token.step) ?? { positions: token.num_positions, accepted: 0 };
    step.accepted += token.origin === "accepted";
    this.steps.set(token.step, step);
    token.place = step.accepted;
  }

  get ttft() {
    return this.firstAt === null ? null : this.firstAt - this.startedAt;
  }

  get tpot() {
    const count = this.tokens.length - 1;
    return count > 0 ? (this.lastAt - this.firstAt) / count : null;
  }

  get tokensPerSecond() {
    return this.tokens.length ? (1000 * this.tokens.length) / (this.lastAt - this.startedAt) : null;
  }

  get cachedTokens() {
    return this.usage?.prompt_tokens_details?.cached_tokens ?? 0;
  }

  // Until the end from the tokens seen; then the server's own counts, in which a step counts whole
  // also where the limit cut its block.
  get acceptance() {
    const told = this.usage?.acceptance;
    if (told) {
      return {
        rates: told.acceptance_rate_by_position,
        length: told.acceptance_length,
        rate: told.acceptance_rate,
        numSteps: told.num_steps,
      };
    }
    const steps = [...this.steps].filter(([number]) => number > 0).map(([, step]) => step);
    const depth = Math.max(0, ...steps.map((step) => step.positions));
    const rates = Array.from({ length: depth }, (_, position) => {
      const drafted = steps.filter((step) => step.positions > position);
      return drafted.filter((step) => step.accepted > position).length / drafted.length;
    });
    const numSteps = steps.length;
    const numTokens = this.tokens.filter((token) => token.step > 0).length;
    return { rates, length: numSteps ? numTokens / numSteps : null, rate: null, numSteps };
  }
}

// The first place where two token lists part, or null where they are the same.
export function parting(one, other) {
  const length = Math.max(one.length, other.length);
  for (let i = 0; i < length; i += 1) if (one[i]?.id !== other[i]?.id) return i;
  return null;
}
