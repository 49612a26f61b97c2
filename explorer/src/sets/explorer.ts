/** The explorer of sets: connects state, picture and controls. */

import type { Vector } from "../engine/vectors.ts";
import { exactInfluence, type Influences } from "../engine/influence.ts";
import { Canvas } from "../page/canvas.ts";
import { byId, shownVector } from "../page/dom.ts";
import { IdleTask } from "../page/idle.ts";
import { type Colours, readColours } from "../page/theme.ts";
import { allPoolings, type Pooling, type TaskData } from "../poolings.ts";
import { Controls } from "./controls.ts";
import { NumbersView } from "./numbers_view.ts";
import { AnswersPanel, ContributionsPanel } from "./panels.ts";
import { PlaneView } from "./plane_view.ts";
import { Points, relativeSizes } from "./points.ts";
import * as states from "./state.ts";
import type { View } from "./view.ts";

const LEAST_STEPS = 40; // of the searches without an element

export class SetsExplorer {
  state: states.State;
  scene: states.Scene;
  private readonly poolings: Record<1 | 2, Pooling[]>;
  private readonly views: Record<1 | 2, View> = { 1: new NumbersView(), 2: new PlaneView() };
  private readonly canvas = new Canvas(() => this.request());
  private readonly points: Points;
  private readonly answers = new AnswersPanel();
  private readonly contributions = new ContributionsPanel((position) => this.points.focus(position));
  private readonly controls: Controls;
  private colours: Colours = readColours();
  private frame = 0;
  private changed = true;
  private readonly idle = new IdleTask();

  constructor(tasks: TaskData[]) {
    this.poolings = allPoolings(tasks);
    this.state = this.initial(1, this.poolings[1][0]);
    this.scene = states.computeScene(this.state);
    this.points = new Points(this.canvas.layer, () => this.view, () => this.state, {
      move: (position, x) => this.change({ elements: replaced(this.state.elements, position, x), selected: position }),
      moveStart: (start) => this.change({ start }),
      add: (x) => this.add(x),
      remove: (position) => this.remove(position),
      select: (selected) => { if (selected !== this.state.selected) this.change({ selected }); },
    });
    this.controls = new Controls(this.poolings, {
      change: (part) => this.change(part),
      choose: (pooling) => this.change(states.withPooling(this.state, pooling)),
      setDimension: (dimension) => this.setDimension(dimension),
      setParameter: (parameter) => this.change({ parameter, potential: this.state.pooling.potential(parameter) }),
      add: () => this.add(states.randomElement(this.state.dimension)),
      removeSelected: () => { if (this.state.selected !== null) this.remove(this.state.selected); },
      double: () => this.change({ elements: [...this.state.elements, ...this.state.elements] }),
      moveStart: () => this.change({ start: states.randomElement(this.state.dimension) }),
      reset: () => this.change(this.initial(this.state.dimension, this.state.pooling)),
    }, () => this.state);
    byId("choices").append(this.controls.choices);
    byId("stage").append(this.canvas.element);
    byId("toolbar").append(this.controls.toolbar);
    byId("settings").append(this.controls.settings);
    byId("answers").append(this.answers.element);
    byId("contributions").append(this.contributions.element);
    this.request();
  }

  /** Colours have changed. */
  recolour(): void {
    this.colours = readColours();
    this.request();
  }

  change(part: Partial<states.State>): void {
    this.state = { ...this.state, ...part };
    this.changed = true;
    this.request();
  }

  setDimension(dimension: 1 | 2): void {
    if (dimension !== this.state.dimension) this.change(this.initial(dimension, this.poolings[dimension][0]));
  }

  private get view(): View {
    return this.views[this.state.dimension];
  }

  private initial(dimension: 1 | 2, pooling: Pooling): states.State {
    const start = states.firstStart(dimension);
    const elements = states.firstElements(dimension);
    return states.withPooling({ dimension, elements, start, selected: null }, pooling);
  }

  private add(x: Vector): void {
    const { elements } = this.state;
    if (elements.length >= states.MOST_ELEMENTS) return;
    this.change({ elements: [...elements, x], selected: elements.length });
    this.render();
    this.points.focus(elements.length);
  }

  private remove(position: number): void {
    const elements = this.state.elements.filter((_, i) => i !== position);
    if (elements.length === 0) return;
    this.change({ elements, selected: null });
    this.render();
    this.points.focus(Math.min(position, elements.length - 1));
  }

  private request(): void {
    if (this.frame === 0) this.frame = requestAnimationFrame(() => { this.frame = 0; this.render(); });
  }

  private render(): void {
    if (this.changed) {
      this.changed = false;
      this.scene = states.computeScene(this.state);
      this.controls.update(this.state);
      this.answers.update(this.scene);
      this.contributions.update(this.scene);
      byId("about").textContent = this.state.pooling.about;
      const scene = this.scene;
      this.idle.run(() => this.rest(scene), (exact) => {
        this.contributions.setExact(exact);
        this.request();
      });
    }
    if (this.canvas.width === 0) return;
    this.view.fit(this.canvas, this.scene);
    this.points.update(this.scene, relativeSizes(this.contributions.influences()));
    if (!this.view.draw(this.canvas, this.scene, this.colours)) this.request();
  }

  /** When nothing has changed for a moment: announce the answer, and leave out each element. */
  private *rest(scene: states.Scene): Generator<void, Influences> {
    const { y, answer, state, energy } = scene;
    byId("announcement").textContent =
      `${state.pooling.label} of ${state.elements.length} elements: y is ${shownVector(y)} after ` +
      `${state.numSteps} steps; the ${state.pooling.answerName} is ${shownVector(answer)}.`;
    const budget = { num_steps: Math.max(LEAST_STEPS, state.numSteps), stop_at: null };
    return yield* exactInfluence(energy, state.solver, state.start, budget, y);
  }
}

function replaced(elements: readonly Vector[], position: number, x: Vector): Vector[] {
  return elements.map((other, i) => (i === position ? x : other));
}
