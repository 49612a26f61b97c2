/** The elements and the start as things that can be dragged, focused and moved by keys. */

import { norm, type Vector, vector } from "../engine/vectors.ts";
import { shownVector, svg } from "../page/dom.ts";
import { clamp, LIMIT, type Scene, type State } from "./state.ts";
import type { Pixel, View } from "./view.ts";

export interface PointActions {
  move(position: number, x: Vector): void;
  moveStart(x: Vector): void;
  add(x: Vector): void;
  remove(position: number): void;
  select(position: number | null): void;
}

const KEY_STEP = 0.05;
const ARROWS: Record<string, readonly [number, number]> = {
  ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1],
};
const START = -1; // the position of the start among the points

export class Points {
  private readonly marks: SVGGElement[] = [];
  private readonly start = this.makeMark(START);
  private readonly described = new WeakMap<SVGGElement, Vector>();

  /** `state` is newer than the last scene when several keys are pressed within a frame. */
  constructor(
    private readonly layer: SVGSVGElement,
    private readonly view: () => View,
    private readonly state: () => State,
    private readonly actions: PointActions,
  ) {
    layer.append(this.start);
    this.start.append(svg("rect", { x: -7, y: -7, width: 14, height: 14, rx: 2 }));
    layer.addEventListener("click", (event) => {
      if (event.target === layer) actions.add(clamp(this.view().toVector(this.pixelOf(event))));
    });
  }

  /** Put every mark where it belongs; larger ones contribute more. */
  update(scene: Scene, sizes: readonly number[]): void {
    const { elements, selected, dimension, start } = scene.state;
    while (this.marks.length < elements.length) {
      const mark = this.makeMark(this.marks.length);
      mark.append(svg("circle", { class: "dot", r: 8 }));
      this.marks.push(mark);
      this.layer.append(mark);
    }
    while (this.marks.length > elements.length) this.marks.pop()!.remove();
    const stacked = new Map<string, number>();
    elements.forEach((x, i) => {
      const [px, py] = this.view().toPixel(x);
      const key = `${px.toFixed(0)},${py.toFixed(0)}`;
      const below = stacked.get(key) ?? 0;
      stacked.set(key, below + 1);
      const mark = this.marks[i];
      mark.setAttribute("transform", `translate(${px + (dimension - 1) * 4 * below} ${py - 5 * below})`);
      mark.setAttribute("class", i === selected ? "point selected" : "point");
      mark.querySelector(".dot")!.setAttribute("r", (6 + 6 * sizes[i]).toFixed(1));
      this.describe(mark, `Element ${i + 1}`, x, "Arrow keys move it, Delete removes it.");
    });
    const [px, py] = this.view().toPixel(start);
    this.start.setAttribute("transform", `translate(${px} ${dimension === 1 ? py + 18 : py})`);
    this.start.setAttribute("class", "start");
    this.describe(this.start, "Start of the search", start, "Arrow keys move it.");
  }

  /** Focus an element, as after adding one. */
  focus(position: number): void {
    this.marks[position]?.focus({ preventScroll: true });
  }

  private makeMark(position: number): SVGGElement {
    const mark = svg("g", { tabindex: 0 }, svg("circle", { class: "hit", r: 17 }));
    mark.addEventListener("pointerdown", (event) => this.drag(event, mark, position));
    mark.addEventListener("keydown", (event) => this.press(event, position));
    mark.addEventListener("dblclick", () => this.remove(position));
    mark.addEventListener("focus", () => this.actions.select(position === START ? null : position));
    return mark;
  }

  private drag(down: PointerEvent, mark: SVGGElement, position: number): void {
    if (down.button !== 0) return;
    down.preventDefault();
    mark.focus({ preventScroll: true });
    mark.setPointerCapture(down.pointerId);
    const moved = (event: PointerEvent): void => this.move(position, this.view().toVector(this.pixelOf(event)));
    const ended = (): void => {
      mark.removeEventListener("pointermove", moved);
      mark.removeEventListener("pointerup", ended);
      mark.removeEventListener("pointercancel", ended);
    };
    mark.addEventListener("pointermove", moved);
    mark.addEventListener("pointerup", ended);
    mark.addEventListener("pointercancel", ended);
  }

  private press(event: KeyboardEvent, position: number): void {
    const arrow = ARROWS[event.key];
    if (arrow !== undefined) {
      const { elements, start, dimension } = this.state();
      const x = position === START ? start : elements[position];
      const step = KEY_STEP * (event.shiftKey ? 5 : 1);
      const by = dimension === 1 ? [arrow[0] || arrow[1]] : arrow;
      this.move(position, vector(x.map((value, k) => value + step * by[k])));
      event.preventDefault();
    } else if (event.key === "Delete" || event.key === "Backspace") {
      this.remove(position);
      event.preventDefault();
    }
  }

  private move(position: number, x: Vector): void {
    if (position === START) this.actions.moveStart(clamp(x));
    else this.actions.move(position, clamp(x));
  }

  /** Name a mark for screen readers, unless it is where it was. */
  private describe(mark: SVGGElement, name: string, x: Vector, help: string): void {
    if (this.described.get(mark) === x) return;
    this.described.set(mark, x);
    describe(mark, name, x, help);
  }

  private remove(position: number): void {
    if (position !== START) this.actions.remove(position);
  }

  private pixelOf(event: MouseEvent): Pixel {
    const box = this.layer.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }
}

function describe(mark: SVGGElement, name: string, x: Vector, help: string): void {
  if (x.length === 1) {
    mark.setAttribute("role", "slider");
    mark.setAttribute("aria-valuemin", String(-LIMIT));
    mark.setAttribute("aria-valuemax", String(LIMIT));
    mark.setAttribute("aria-valuenow", x[0].toFixed(2));
  } else {
    mark.setAttribute("role", "button");
    mark.setAttribute("aria-roledescription", "movable point");
    mark.removeAttribute("aria-valuenow");
  }
  mark.setAttribute("aria-label", `${name} at ${shownVector(x)}. ${help}`);
}

/** How much each element contributes, from 0 to 1 of the largest. */
export function relativeSizes(influences: readonly (Vector | null)[]): number[] {
  const sizes = influences.map((influence) => (influence === null ? 0 : norm(influence)));
  const most = Math.max(...sizes, 1e-12);
  return sizes.map((size) => (Number.isFinite(size) ? size / most : 0));
}
