/** The elements of a bag in two dimensions, each a switch. */

import type { Canvas } from "../page/canvas.ts";
import { svg } from "../page/dom.ts";
import type { Colours } from "../page/theme.ts";

export interface Axis {
  readonly name: string;
  readonly values: readonly number[];
}

export interface ScatterScene {
  readonly axes: readonly [Axis, Axis];
  readonly fills: readonly string[];
  /** From 0 to 1. */
  readonly sizes: readonly number[];
  readonly active: readonly boolean[];
  readonly labels: readonly string[];
}

const PADDING = 44;

export class Scatter {
  private readonly marks: SVGGElement[];

  constructor(
    private readonly canvas: Canvas, count: number, toggle: (position: number) => void,
  ) {
    this.marks = Array.from({ length: count }, (_, i) => {
      const mark = svg("g", { class: "bag-element", tabindex: 0, role: "switch" }, svg("circle", { class: "hit", r: 13 }), svg("circle", { class: "dot" }), svg("text", { class: "count", x: 9, y: -7 }));
      mark.addEventListener("click", () => toggle(i));
      mark.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        toggle(i);
      });
      return mark;
    });
    canvas.layer.append(...this.marks);
  }

  focus(position: number): void {
    this.marks[position].focus({ preventScroll: true });
  }

  draw({ axes, fills, sizes, active, labels }: ScatterScene, colours: Colours): void {
    const { width, height, context } = this.canvas;
    const across = scaleOf(axes[0].values, PADDING, width - PADDING / 2);
    const up = scaleOf(axes[1].values, height - PADDING, PADDING / 2);
    const places = active.map((_, i) => `${across(axes[0].values[i]).toFixed(1)} ${up(axes[1].values[i]).toFixed(1)}`);
    const counts = new Map<string, number>();
    for (const place of places) counts.set(place, (counts.get(place) ?? 0) + 1);
    this.canvas.clear();
    drawAxes(context, width, height, axes, colours);
    this.marks.forEach((mark, i) => {
      mark.setAttribute("transform", `translate(${places[i]})`);
      mark.setAttribute("aria-checked", String(active[i]));
      mark.setAttribute("aria-label", labels[i]);
      mark.classList.toggle("off", !active[i]);
      const dot = mark.children[1] as SVGElement;
      const count = places.indexOf(places[i]) === i ? counts.get(places[i])! : 1;
      mark.children[2].textContent = count > 1 ? `×${count}` : ""; // dots in one place look like one
      dot.setAttribute("r", (5 + 8 * sizes[i]).toFixed(1));
      dot.style.fill = active[i] ? fills[i] : "transparent";
    });
  }
}

function scaleOf(values: readonly number[], from: number, to: number): (value: number) => number {
  const low = Math.min(...values);
  const span = Math.max(...values) - low;
  return (value) => from + (span > 0 ? (value - low) / span : 0.5) * (to - from);
}

function drawAxes(
  context: CanvasRenderingContext2D, width: number, height: number, axes: readonly [Axis, Axis], colours: Colours,
): void {
  context.strokeStyle = colours.line;
  context.lineWidth = 1;
  context.strokeRect(PADDING / 2 + 0.5, PADDING / 4 + 0.5, width - 0.75 * PADDING, height - PADDING);
  context.fillStyle = colours.faint;
  context.font = "12px system-ui, sans-serif";
  const text = (value: number): string => value.toPrecision(3);
  const labelled = ({ name, values }: Axis): string => `${name}, from ${text(Math.min(...values))} to ${text(Math.max(...values))}`;
  context.textAlign = "center";
  context.fillText(labelled(axes[0]), width / 2, height - 12);
  context.save();
  context.translate(14, height / 2);
  context.rotate(-Math.PI / 2);
  context.fillText(labelled(axes[1]), 0, 0);
  context.restore();
}

const VIRIDIS = ["#440154", "#3b528b", "#21918c", "#5ec962", "#fde725"];
const DIVERGING = ["#2166ac", "#92c5de", "#cfcfcf", "#f4a582", "#b2182b"];

/** A colour for a share from 0 to 1. */
export function ramp(share: number, diverging: boolean): string {
  const stops = diverging ? DIVERGING : VIRIDIS;
  const place = Math.min(0.9999, Math.max(0, share)) * (stops.length - 1);
  const at = Math.floor(place);
  return `color-mix(in srgb, ${stops[at + 1]} ${(100 * (place - at)).toFixed(0)}%, ${stops[at]})`;
}
