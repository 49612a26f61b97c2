/** The explorer of one's own model: a bag, its prediction, and what each element contributes. */

import { Canvas } from "../page/canvas.ts";
import { button, byId, html, shown } from "../page/dom.ts";
import { IdleTask } from "../page/idle.ts";
import { type Colours, readColours } from "../page/theme.ts";
import { Bag, type ModelData, type Prediction } from "./bag.ts";
import { type Axis, ramp, Scatter } from "./scatter.ts";

const CONTRIBUTION = "contribution";
const MANY = 200; // rows of the list

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
    byId("about").textContent = `${on} of ${this.active.length} elements are on. Bold is the ${what} for these; “all” is the ${what} for the whole bag.`;
  }

  /** How the chosen output changes without each element. */
  private effects(): (number | null)[] {
    return this.influences.map((values) => (values === null ? null : values[this.chosen.output]));
  }

  private showContributions(): void {
    const effects = this.effects();
    const most = Math.max(...effects.map((effect) => Math.abs(effect ?? 0)), 1e-12);
    const order = [...effects.keys()].sort((a, b) => Math.abs(effects[b] ?? 0) - Math.abs(effects[a] ?? 0)).slice(0, MANY);
    const output = this.data.output.names[this.chosen.output];
    const measured = this.data.output.kind === "numbers" ? `“${output}”` : `the log odds of “${output}”`;
    byId("contributions-note").textContent = `How ${measured} would change without the element, ${this.bag.isSmall(this.active) ? "predicted again" : "estimated by one Newton step"}. Larger dots contribute more: red ones raise it, blue ones lower it.`;
    const rows = order.map((i) => {
      const effect = effects[i];
      const style = `width:${((100 * Math.abs(effect ?? 0)) / most).toFixed(1)}%;background:${ramp(0.5 - 0.5 * Math.sign(effect ?? 0), true)}`;
      const row = html("tr", { class: this.active[i] ? "" : "off" },
        html("td", {}, this.data.names[i]), html("td", { class: "bar" }, html("span", { style })),
        html("td", { class: "number" }, this.active[i] ? (effect === null ? "–" : this.shownChange(effect)) : "off"));
      row.addEventListener("click", () => this.scatter.focus(i));
      return row;
    });
    const head = html("tr", {}, ...["element", "", "without it"].map((text) => html("th", { scope: "col" }, text)));
    byId("contributions").replaceChildren(html("div", { class: "contributions" }, html("table", {}, html("thead", {}, head), html("tbody", {}, ...rows))));
  }

  private shownChange(effect: number): string {
    const text = this.data.output.kind === "numbers" ? String(Number(effect.toPrecision(3))).replace("-", "−") : shown(effect);
    return effect > 0 && Number(effect.toPrecision(3)) > 0 ? `+${text}` : text;
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
      ? shares.map((share) => ramp(0.5 - 0.5 * share, true))
      : relative(this.axes[Number(this.chosen.colour)].values).map((share) => ramp(share, false));
    const labels = this.active.map((on, i) => `${this.data.names[i]}, ${on ? "on" : "off"}${effects[i] === null ? "" : `, without it ${this.shownChange(effects[i]!)}`}`);
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

/** From 0 to 1 of the range. */
function relative(values: readonly number[]): number[] {
  const low = Math.min(...values);
  const span = Math.max(...values) - low;
  return values.map((value) => (span > 0 ? (value - low) / span : 0.5));
}
