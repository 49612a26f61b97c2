/** Numbers on a line, with the energy as a curve above it. */

import type { Vector } from "../engine/vectors.ts";
import { vector } from "../engine/vectors.ts";
import { type Canvas, drawMarker } from "../page/canvas.ts";
import { shown } from "../page/dom.ts";
import type { Colours } from "../page/theme.ts";
import { PotentialGrid } from "./grid.ts";
import type { Scene } from "./state.ts";
import { FRAME_MS, MARKERS, type Pixel, type View, visibleLimit } from "./view.ts";

const SAMPLES = 201;
const BELOW = 78; // pixels under the line: elements and answers
const ABOVE = 28;

export class NumbersView implements View {
  private width = 1;
  private line = 0; // height of the number line
  private limit = 2;
  private grid: PotentialGrid | null = null;
  private low = 0;
  private high = 1;

  fit(canvas: Canvas, scene: Scene): void {
    const limit = visibleLimit(scene);
    this.width = canvas.width;
    this.line = canvas.height - BELOW;
    if (this.grid?.potential === scene.state.potential && limit === this.limit) return;
    this.limit = limit;
    const points = Array.from({ length: SAMPLES }, (_, i) => vector([limit * ((2 * i) / (SAMPLES - 1) - 1)]));
    this.grid = new PotentialGrid(scene.state.potential, points);
  }

  toPixel(x: Vector): Pixel {
    return [this.across(x[0]), this.line];
  }

  toVector([x]: Pixel): Vector {
    return vector([((2 * x) / this.width - 1) * this.limit]);
  }

  draw(canvas: Canvas, scene: Scene, colours: Colours): boolean {
    const grid = this.grid!;
    const complete = grid.prepare(scene.energy.elements, FRAME_MS);
    canvas.clear();
    this.drawAxis(canvas.context, colours);
    if (!complete) return false;
    const energy = grid.energy(scene.energy);
    const weight = scene.energy.weights.potential;
    const own = scene.energy.elements.map((x) => grid.of(x).map((value) => weight * value));
    this.scale(energy, own);
    this.drawCurves(canvas.context, energy, own, scene, colours);
    this.drawPath(canvas.context, energy, scene, colours);
    this.drawAnswers(canvas.context, scene, colours);
    return true;
  }

  private across(value: number): number {
    return ((value / this.limit + 1) / 2) * this.width;
  }

  private up(energy: number): number {
    const share = (energy - this.low) / (this.high - this.low);
    return this.line - 14 - Math.min(1.2, share) * (this.line - 14 - ABOVE);
  }

  private scale(energy: Vector, own: Vector[]): void {
    this.low = Math.min(...energy, ...own.map((values) => Math.min(...values)));
    this.low = this.low >= 0 ? 0 : this.low;
    this.high = Math.max(...energy.filter(Number.isFinite), this.low + 1e-9);
  }

  private drawAxis(context: CanvasRenderingContext2D, colours: Colours): void {
    context.strokeStyle = colours.line;
    context.fillStyle = colours.faint;
    context.lineWidth = 1;
    context.font = "12px system-ui, sans-serif";
    context.textAlign = "center";
    context.beginPath();
    context.moveTo(0, this.line);
    context.lineTo(this.width, this.line);
    const step = this.limit > 12 ? 10 : this.limit > 5 ? 2 : 1;
    for (let tick = -Math.floor(this.limit / step) * step; tick <= this.limit; tick += step) {
      context.moveTo(this.across(tick), this.line - 4);
      context.lineTo(this.across(tick), this.line + 4);
      context.fillText(shown(tick, 0), this.across(tick), this.line + BELOW - 12);
    }
    context.stroke();
  }

  private drawCurves(
    context: CanvasRenderingContext2D, energy: Vector, own: Vector[], { state }: Scene, colours: Colours,
  ): void {
    own.forEach((values, i) => {
      const selected = i === state.selected;
      context.globalAlpha = selected ? 1 : Math.max(0.12, 0.6 / Math.sqrt(own.length / 4));
      context.strokeStyle = colours.element;
      context.lineWidth = selected ? 2.5 : 1.2;
      this.trace(context, values);
    });
    context.globalAlpha = 1;
    context.strokeStyle = colours.y;
    context.lineWidth = 3.5;
    this.trace(context, energy);
  }

  private trace(context: CanvasRenderingContext2D, values: Vector): void {
    context.beginPath();
    for (let i = 0; i < values.length; i++) {
      context.lineTo((i / (values.length - 1)) * this.width, this.up(values[i]));
    }
    context.stroke();
  }

  /** The place above a number on the drawn curve. */
  private onCurve(curve: Vector, x: number): Pixel {
    const place = Math.min(SAMPLES - 1.001, Math.max(0, ((x / this.limit + 1) / 2) * (SAMPLES - 1)));
    const at = Math.floor(place);
    return [this.across(x), this.up(curve[at] + (place - at) * (curve[at + 1] - curve[at]))];
  }

  private drawPath(
    context: CanvasRenderingContext2D, curve: Vector, { descent, y }: Scene, colours: Colours,
  ): void {
    for (const point of descent.path) {
      drawMarker(context, "circle", this.onCurve(curve, point[0]), 4, colours.y, colours.card);
    }
    const [x, height] = this.onCurve(curve, y[0]);
    context.strokeStyle = colours.y;
    context.lineWidth = 1.5;
    context.setLineDash([4, 4]);
    context.beginPath();
    context.moveTo(x, height);
    context.lineTo(x, this.line + 30);
    context.stroke();
    context.setLineDash([]);
    drawMarker(context, "circle", [x, height], 9, colours.y, colours.card);
  }

  private drawAnswers(context: CanvasRenderingContext2D, { answer, rivals, y }: Scene, colours: Colours): void {
    const height = this.line + 38;
    for (const rival of rivals) {
      drawMarker(context, MARKERS[rival.name], [this.across(rival.y[0]), height], 8, colours[rival.name], colours.card);
    }
    drawMarker(context, MARKERS.answer, [this.across(answer[0]), height], 9, colours.answer, colours.card);
    drawMarker(context, "circle", [this.across(y[0]), height], 5, colours.y, colours.card);
  }
}
