/** The answers, and what each element contributes, in words and numbers. */

import type { Influences } from "../engine/influence.ts";
import { distance, norm, type Vector } from "../engine/vectors.ts";
import { html, shown, shownVector } from "../page/dom.ts";
import { relativeSizes } from "./points.ts";
import type { Scene } from "./state.ts";

const CONVERGED = 1e-2; // largest component of the gradient
const LIVE_ROWS = 20; // longer lists follow when the page is idle

/** y, the true answer and the rivals' answers. */
export class AnswersPanel {
  readonly element = html("div", { class: "answers" });

  update({ state, y, answer, rivals, residual, energy }: Scene): void {
    const { pooling, numSteps } = state;
    const error = (found: Vector): string => `off by ${shown(distance(found, answer))}`;
    const rows = [
      row("y", "circle", `y after ${numSteps} ${numSteps === 1 ? "step" : "steps"}`, shownVector(y), error(y)),
      row("answer", "diamond", pooling.answerName, shownVector(answer), ""),
      ...rivals.map((rival) =>
        row(rival.name, rival.name === "sum" ? "triangle" : "square", `${rival.name} pooling`, shownVector(rival.y), error(rival.y)),
      ),
    ];
    const stopped =
      residual < CONVERGED ? "the slope is nearly zero" : `the slope is still ${shown(residual)}: take more steps`;
    const kinked = energy.potential.kinked
      ? "This energy has kinks: the search ends within a step of the lowest point."
      : `At y ${stopped}.`;
    const notes = [html("p", { class: "note" }, kinked)];
    if (pooling.trained !== null) {
      const all = [["equilibrium", pooling.trained.rmse] as const, ...rivals.map((r) => [r.name, r.rmse] as const)];
      const errors = all.map(([name, rmse]) => `${name} ${rmse.toFixed(3)}`).join(", ");
      notes.push(html("p", { class: "note" }, `Error on 2,000 new sets, root mean square: ${errors}.`));
    }
    this.element.replaceChildren(html("dl", {}, ...rows), ...notes);
  }
}

function row(kind: string, marker: string, name: string, value: string, note: string): HTMLElement {
  return html(
    "div", { class: "answer" },
    html("dt", {}, html("span", { class: `key ${kind} ${marker}`, "aria-hidden": "true" }), name),
    html("dd", {}, html("b", {}, value), " ", html("span", { class: "note" }, note)),
  );
}

/** What each element contributes: y with it minus y without it, by searching again and by a Newton step. */
export class ContributionsPanel {
  readonly element = html("div", { class: "contributions" });
  private exact: Influences | null = null;
  private last: Influences = []; // known before the last change
  private scene: Scene | null = null;

  constructor(private readonly select: (position: number) => void) {}

  update(scene: Scene): void {
    this.last = this.influences();
    this.scene = scene;
    this.exact = null;
    if (scene.state.elements.length <= LIVE_ROWS) this.show();
  }

  /** Searching again takes a moment, so its results come later. */
  setExact(exact: Influences): void {
    this.exact = exact;
    this.show();
  }

  /** The best known influences. While an energy with kinks changes, these are the last ones. */
  influences(): Influences {
    const newton = this.scene?.newton ?? [];
    if (this.exact !== null || !newton.includes(null)) return this.exact ?? newton;
    return this.last.length === newton.length ? this.last : newton;
  }

  private show(): void {
    const scene = this.scene;
    if (scene === null) return;
    const best = this.influences();
    const sizes = relativeSizes(best);
    const order = [...best.keys()].sort((a, b) => sizes[b] - sizes[a]);
    const rows = order.map((i) => this.row(scene, i, sizes[i]));
    const head = html("tr", {}, ...["element", "", "exact", "Newton"].map((text) => html("th", { scope: "col" }, text)));
    this.element.replaceChildren(html("table", {}, html("thead", {}, head), html("tbody", {}, ...rows)));
  }

  private row(scene: Scene, i: number, size: number): HTMLElement {
    const cell = (text: string): HTMLElement => html("td", { class: "number" }, text);
    const bar = html("td", { class: "bar" }, html("span", { style: `width:${(100 * size).toFixed(1)}%` }));
    const element = html(
      "tr", { class: i === scene.state.selected ? "selected" : "" },
      html("td", {}, `${i + 1} at ${shownVector(scene.state.elements[i])}`),
      bar, cell(moved(this.exact?.[i])), cell(moved(scene.newton[i])),
    );
    element.addEventListener("click", () => this.select(i));
    return element;
  }
}

/** The signed contribution to a number, the length of that to a vector. */
function moved(influence: Vector | null | undefined): string {
  if (influence === null || influence === undefined) return "–";
  if (influence.length > 1) return shown(norm(influence));
  return influence[0] > 0.005 ? `+${shown(influence[0])}` : shown(influence[0]);
}
