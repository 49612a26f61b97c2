/** Everything that is chosen beside the picture. */

import type { SolverData } from "../engine/solvers.ts";
import { button, html, type Range, range } from "../page/dom.ts";
import type { Pooling } from "../poolings.ts";
import { MOST_ELEMENTS, type State } from "./state.ts";

export interface ControlActions {
  change(part: Partial<State>): void;
  choose(pooling: Pooling): void;
  setDimension(dimension: 1 | 2): void;
  setParameter(value: number): void;
  add(): void;
  removeSelected(): void;
  double(): void;
  moveStart(): void;
  reset(): void;
}

const MOST_STEPS = 80;
const PLAY_MS = 70; // between two steps
const SOLVERS: Record<SolverData["kind"], string> = {
  "gradient-descent": "gradient descent",
  nesterov: "Nesterov",
  "bounded-nesterov": "Nesterov, bounded steps",
};

export class Controls {
  readonly choices = html("div", { class: "choices" });
  readonly toolbar = html("div", { class: "toolbar" });
  readonly settings = html("div", { class: "settings" });
  private steps: Range | null = null;
  private timer = 0;
  private readonly play = button("Play", () => this.playSteps(), { class: "play", "aria-label": "Play the steps" });
  private readonly remove = button("Remove", () => this.actions.removeSelected());
  private readonly double = button("Double every element", () => this.actions.double());
  private readonly add = button("Add", () => this.actions.add(), { "aria-label": "Add an element" });
  private shownFor = "";

  constructor(
    private readonly poolings: Record<1 | 2, Pooling[]>,
    private readonly actions: ControlActions,
    private readonly state: () => State,
  ) {
    this.steps = range(
      { label: "Steps", min: 0, max: MOST_STEPS, step: 1, value: 20, id: "steps", format: String },
      (numSteps) => { this.stop(); actions.change({ numSteps }); },
    );
    this.toolbar.append(
      html("div", { class: "steps" }, this.steps.element, this.play),
      html("div", { class: "buttons" }, this.add, this.remove, this.double,
        button("Move the start", () => actions.moveStart()), button("Reset", () => actions.reset())),
    );
  }

  update(state: State): void {
    this.steps?.set(state.numSteps);
    this.add.disabled = state.elements.length >= MOST_ELEMENTS;
    this.double.disabled = 2 * state.elements.length > MOST_ELEMENTS;
    this.remove.disabled = state.selected === null || state.elements.length < 2;
    const shownFor = `${state.dimension} ${state.pooling.key}`;
    if (this.shownFor === shownFor) return;
    this.shownFor = shownFor;
    this.showChoices(state);
    this.showSettings(state);
  }

  private showChoices({ dimension, pooling, parameter }: State): void {
    const spaces = ([[1, "Numbers"], [2, "Plane"]] as const).map(([key, name]) =>
      button(name, () => this.actions.setDimension(key), { "aria-pressed": String(dimension === key) }),
    );
    const chips = (trained: boolean): HTMLElement[] =>
      this.poolings[dimension]
        .filter((other) => (other.trained !== null) === trained)
        .map((other) => button(other.label, () => this.actions.choose(other), {
          "aria-pressed": String(other === pooling), "data-pooling": other.key,
        }));
    this.choices.replaceChildren(
      html("div", { class: "space segmented", role: "group", "aria-label": "Sets of" }, ...spaces),
      group("Known potentials", chips(false)),
      group("Trained networks", chips(true)),
    );
    if (pooling.parameter !== null) {
      const options = { ...pooling.parameter, value: parameter, id: "parameter" };
      this.choices.append(range(options, (value) => this.actions.setParameter(value)).element);
    }
  }

  private showSettings({ solver }: State): void {
    const kind = html("select", { id: "solver" });
    for (const [value, name] of Object.entries(SOLVERS)) {
      kind.append(html("option", { value, selected: value === solver.kind }, name));
    }
    kind.addEventListener("change", () => {
      this.actions.change({ solver: converted(this.state().solver, kind.value as SolverData["kind"]) });
      this.showSettings(this.state());
    });
    const rate = range(
      { label: "Step size", min: -2.5, max: 0.5, step: 0.02, value: Math.log10(solver.learning_rate), id: "learning-rate", format: (value) => (10 ** value).toPrecision(2) },
      (value) => this.actions.change({ solver: { ...this.state().solver, learning_rate: 10 ** value } }),
    );
    const parts: HTMLElement[] = [
      html("div", { class: "range" }, html("label", { for: "solver" }, "Solver"), kind), rate.element,
    ];
    if (solver.kind !== "gradient-descent") {
      parts.push(range(
        { label: "Momentum", min: 0, max: 0.98, step: 0.01, value: solver.momentum, id: "momentum" },
        (momentum) => this.actions.change({ solver: { ...this.state().solver, momentum } as SolverData }),
      ).element);
    }
    this.settings.replaceChildren(...parts);
  }

  private playSteps(): void {
    const last = this.state().numSteps || MOST_STEPS;
    this.stop();
    let step = 0;
    this.timer = window.setInterval(() => {
      this.actions.change({ numSteps: step });
      if (step++ >= last) this.stop();
    }, PLAY_MS);
  }

  private stop(): void {
    window.clearInterval(this.timer);
  }
}

function group(label: string, chips: HTMLElement[]): HTMLElement {
  const id = label.toLowerCase().replace(" ", "-");
  return html("div", { class: "group", role: "group", "aria-labelledby": id }, html("span", { id, class: "label" }, label), html("div", { class: "chips" }, ...chips));
}

/** Another solver with the same step size and momentum. */
function converted(solver: SolverData, kind: SolverData["kind"]): SolverData {
  const { learning_rate } = solver;
  const momentum = solver.kind === "gradient-descent" ? 0.5 : solver.momentum;
  if (kind === "gradient-descent") return { kind, learning_rate };
  if (kind === "nesterov") return { kind, learning_rate, momentum };
  return { kind, learning_rate, momentum, max_step: 0.5, curvature_safe: true };
}
