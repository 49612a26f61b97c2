/** The explorer of one's own model: a bag, its prediction, and what each element contributes. */

import { Canvas } from "../page/canvas.ts";
import { button, byId, html, shown } from "../page/dom.ts";
import { IdleTask } from "../page/idle.ts";
import { type Colours, readColours } from "../page/theme.ts";
import { Bag, type ModelData, type Prediction } from "./bag.ts";
import { type Axis, ramp, Scatter } from "./scatter.ts";

const CONTRIBUTION = "contribution";
const STRONGEST = 4; // of each list, until the reader asks for all
const DIGITS = 3; // significant ones

/** Equal elements, of which each contributes the same. */
interface Group {
  readonly positions: number[];
  /** Null until it is known. */
  readonly effect: number | null;
}

export class ModelExplorer {
  readonly bag: Bag;
  active: boolean[];
  prediction: Prediction;
  influences: (number[] | null)[];
  private readonly axes: Axis[];
  private readonly whole: Prediction;
  private readonly canvas = new Canvas(() => this.draw());
  private readonly scatter: Scatter;
  private readonly idle = new IdleTask();
  private listsAll = false;
  private readonly chosen: { x: number; y: number; colour: string; output: number };
  private colours: Colours = readColours();

  constructor(private readonly data: ModelData) {
    this.bag = new Bag(data);
    this.active = data.elements.map(() => true);
    this.whole = this.prediction = this.bag.predict(this.active);
    this.influences = this.active.map(() => null);
    this.axes = makeAxes(data);
    const isClass = data.output.kind === "binary" || data.output.kind === "classes";
    const output = isClass ? this.whole.values.indexOf(Math.max(...this.whole.values)) : 0;
    this.chosen = { x: 0, y: 1, colour: CONTRIBUTION, output };
    this.scatter = new Scatter(this.canvas, this.active.length, (position) => this.toggle(position));
    this.build();
    this.update();
  }

  recolour(): void {
    this.colours = readColours();
    this.draw();
  }

  /** Switch an element; the last one stays on. */
  toggle(position: number): void {
    const next = this.active.map((on, i) => (i === position ? !on : on));
    if (next.some(Boolean)) this.setActive(next);
  }

  private setActive(active: boolean[]): void {
    this.active = active;
    this.prediction = this.bag.predict(active);
    this.update();
  }

  private build(): void {
    const { title, output, elements } = this.data;
    document.title = title;
    byId("title").textContent = title;
    byId("lead").textContent = `${elements.length} elements. Click an element to switch it off; the prediction follows at once.`;
    byId("more").hidden = true;
    byId("answers-title").textContent = "Prediction";
    byId("help").textContent = "The network runs in this page, from the model’s own weights. Tab reaches every element; Enter or Space switches it.";
    const axes = this.axes.map((axis, i) => [String(i), axis.name] as const);
    const features = this.axes.flatMap((axis, i) => (axis.name.startsWith("component ") ? [] : [[String(i), axis.name] as const]));
    byId("choices").append(html("div", { class: "choices" },
      this.select("Across", axes, String(this.chosen.x), (value) => { this.chosen.x = Number(value); }),
      this.select("Up", axes, String(this.chosen.y), (value) => { this.chosen.y = Number(value); }),
      this.select("Colour", [[CONTRIBUTION, "what it contributes"], ...features], CONTRIBUTION, (value) => { this.chosen.colour = value; }),
      this.select("Contribution to", output.names.map((name, k) => [String(k), name] as const), String(this.chosen.output), (value) => { this.chosen.output = Number(value); }),
    ));
    byId("stage").append(this.canvas.element);
    byId("toolbar").append(html("div", { class: "buttons" },
      button("Switch off the strongest", () => this.switchOffStrongest()),
      button("Switch all on", () => this.setActive(this.active.map(() => true))),
    ));
  }

  private select(label: string, options: (readonly [string, string])[], value: string, changed: (value: string) => void): HTMLElement {
    const id = `choose-${label.toLowerCase().replaceAll(" ", "-")}`;
    const element = html("select", { id }, ...options.map(([key, name]) => html("option", { value: key, selected: key === value }, name)));
    element.addEventListener("change", () => { changed(element.value); this.show(); });
    return html("div", { class: "group pair" }, html("label", { for: id, class: "label" }, label), element);
  }

  /** Until the new contributions are computed, the last ones are shown, faded. */
  private update(): void {
    this.influences = this.influences.map((one, i) => (this.active[i] ? one : null));
    byId("contributions").classList.add("stale");
    this.show();
    byId("announcement").textContent = `${this.active.filter(Boolean).length} elements on. ${this.described().join(", ")}.`;
    const active = this.active;
    this.idle.run(() => this.bag.influence(active), (influences) => {
      this.influences = influences;
      byId("contributions").classList.remove("stale");
      this.show();
    });
  }

  private show(): void {
    this.showPrediction();
    this.showContributions();
    this.draw();
  }

  private described(): string[] {
    return this.data.output.names.map((name, k) => `${name} ${this.shownValue(this.prediction.values[k])}`);
  }

  private shownValue(value: number): string {
    return this.data.output.kind === "numbers" ? String(Number(value.toPrecision(4))) : `${shown(100 * value, 1)} %`;
  }

  private showPrediction(): void {
    const { names, kind } = this.data.output;
    const rows = names.map((name, k) => html("div", { class: "answer" },
      html("dt", {}, name),
      html("dd", {}, html("b", { "data-output": k }, this.shownValue(this.prediction.values[k])), " ", html("span", { class: "note" }, `all: ${this.shownValue(this.whole.values[k])}`)),
    ));
    byId("answers").replaceChildren(html("dl", {}, ...rows));
    const on = this.active.filter(Boolean).length;
    const what = kind === "numbers" ? "value" : "probability";
    byId("about").textContent = `${on} of ${this.active.length} elements are on. Bold: the ${what} for these alone; “all”: for the whole bag.`;
  }

  /** What each element adds to the chosen output; null for elements that are off. */
  private effects(): (number | null)[] {
    return this.influences.map((values) => (values === null ? null : values[this.chosen.output]));
  }

  /** The elements that are on, equal ones together, the strongest first. */
  private groups(): Group[] {
    const equal = new Map<string, number[]>();
    this.data.elements.forEach((x, i) => {
      if (!this.active[i]) return;
      const key = x.join();
      equal.set(key, [...(equal.get(key) ?? []), i]);
    });
    const effects = this.effects();
    const found = [...equal.values()].map((positions) => ({ positions, effect: effects[positions[0]] }));
    return found.sort((a, b) => Math.abs(b.effect ?? 0) - Math.abs(a.effect ?? 0));
  }

  private showContributions(): void {
    const groups = this.groups();
    const output = this.data.output.names[this.chosen.output];
    const measured = this.data.output.kind === "numbers" ? `“${output}”` : `the log odds of “${output}”`;
    byId("contributions-note").textContent = `What each element adds to ${measured}: the value with it minus the value without it, ${this.bag.isSmall(this.active) ? "predicted again" : "estimated by one Newton step"}. Red dots raise it, blue ones lower it, and larger dots do so more.`;
    const off = this.active.flatMap((on, i) => (on ? [] : [{ positions: [i], effect: null }]));
    const lists: [string, string, Group[]][] = [
      ["for", `For “${output}”`, groups.filter(({ effect }) => effect !== null && effect > 0)],
      ["against", `Against “${output}”`, groups.filter(({ effect }) => effect !== null && effect < 0)],
      ["neither", "Neither", groups.filter(({ effect }) => effect === null || effect === 0)],
      ["off", "Switched off", off],
    ];
    const most = Math.max(...groups.map(({ effect }) => Math.abs(effect ?? 0)), 1e-12);
    const bodies = lists.filter(([, , list]) => list.length > 0).map(([kind, title, list]) => this.listed(kind, title, list, most));
    byId("contributions").replaceChildren(html("div", { class: "contributions" }, html("table", {}, ...bodies)));
  }

  private listed(kind: string, title: string, groups: Group[], most: number): HTMLElement {
    const shown = this.listsAll || groups.length <= STRONGEST + 1 ? groups : groups.slice(0, STRONGEST);
    const head = html("tr", {}, html("th", { scope: "rowgroup", colspan: 3 }, title));
    const rows = shown.map((group) => this.row(group, most));
    const more = groups.length > shown.length ? [this.rowOfMore(groups.length - shown.length)] : [];
    return html("tbody", { "data-list": kind }, head, ...rows, ...more);
  }

  private rowOfMore(count: number): HTMLElement {
    const show = button(`Show ${count} weaker ones`, () => { this.listsAll = true; this.showContributions(); }, { class: "quiet" });
    return html("tr", {}, html("td", { colspan: 3 }, show));
  }

  private row({ positions, effect }: Group, most: number): HTMLElement {
    const style = `width:${((100 * Math.abs(effect ?? 0)) / most).toFixed(1)}%;background:${ramp(0.5 + 0.5 * Math.sign(effect ?? 0), true)}`;
    const first = this.data.names[positions[0]];
    const name = positions.length > 1 ? `${first} and ${positions.length - 1} equal` : first;
    const all = positions.map((i) => this.data.names[i]).join(", ");
    const row = html("tr", { class: this.active[positions[0]] ? "element" : "element off" },
      html("td", { title: all }, name), html("td", { class: "bar" }, html("span", { style })),
      html("td", { class: "number" }, this.active[positions[0]] ? (effect === null ? "–" : shownEffect(effect)) : "off"));
    row.addEventListener("click", () => this.scatter.focus(positions[0]));
    return row;
  }

  private switchOffStrongest(): void {
    const effects = this.effects().map((effect) => Math.abs(effect ?? -1));
    const most = effects.indexOf(Math.max(...effects));
    if (this.active[most]) this.toggle(most);
  }

  private draw(): void {
    if (this.canvas.width === 0) return;
    const effects = this.effects();
    const most = Math.max(...effects.map((effect) => Math.abs(effect ?? 0)), 1e-12);
    const shares = effects.map((effect) => (effect ?? 0) / most);
    const fills = this.chosen.colour === CONTRIBUTION
      ? shares.map((share) => ramp(0.5 + 0.5 * share, true))
      : relative(this.axes[Number(this.chosen.colour)].values).map((share) => ramp(share, false));
    const labels = this.active.map((on, i) => `${this.data.names[i]}, ${on ? "on" : "off"}${effects[i] === null ? "" : `, contributes ${shownEffect(effects[i]!)}`}`);
    this.scatter.draw({
      axes: [this.axes[this.chosen.x], this.axes[this.chosen.y]], fills, sizes: shares.map(Math.abs), active: this.active, labels,
    }, this.colours);
  }
}

function makeAxes({ components, explained, features, elements }: ModelData): Axis[] {
  const all = explained.map((share, k) => ({
    name: `component ${k + 1} (${Math.round(100 * share)} %)`, values: components.map((row) => row[k]),
  }));
  return [...all, ...features.map((name, k) => ({ name, values: elements.map((x) => x[k]) }))];
}

/** With its sign, a real minus and three significant digits. */
function shownEffect(effect: number): string {
  const text = String(Number(effect.toPrecision(DIGITS))).replace("-", "−");
  return effect > 0 ? `+${text}` : text;
}

/** From 0 to 1 of the range. */
function relative(values: readonly number[]): number[] {
  const low = Math.min(...values);
  const span = Math.max(...values) - low;
  return values.map((value) => (span > 0 ? (value - low) / span : 0.5));
}
