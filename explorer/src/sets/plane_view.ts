/** Points in the plane, on the landscape of the energy. */

import type { Vector } from "../engine/vectors.ts";
import { vector } from "../engine/vectors.ts";
import { type Canvas, drawMarker } from "../page/canvas.ts";
import { type Colours, parseColour } from "../page/theme.ts";
import { type Field, traceContour } from "./contours.ts";
import { PotentialGrid } from "./grid.ts";
import type { Scene } from "./state.ts";
import { FRAME_MS, MARKERS, type Pixel, type View, visibleLimit } from "./view.ts";

const CELL = 12; // pixels
const LEVELS = 13;

export class PlaneView implements View {
  private width = 1;
  private height = 1;
  private unit = 1; // pixels
  private columns = 2;
  private rows = 2;
  private grid: PotentialGrid | null = null;
  private shape = "";
  private readonly image = document.createElement("canvas");

  fit(canvas: Canvas, scene: Scene): void {
    this.width = canvas.width;
    this.height = canvas.height;
    this.unit = Math.min(this.width, this.height) / (2 * visibleLimit(scene));
    this.columns = Math.ceil(this.width / CELL) + 1;
    this.rows = Math.ceil(this.height / CELL) + 1;
    const shape = [this.width, this.height, this.unit].join();
    if (this.grid?.potential === scene.state.potential && shape === this.shape) return;
    this.shape = shape;
    const points = Array.from({ length: this.columns * this.rows }, (_, i) =>
      this.toVector([(i % this.columns) * CELL, Math.floor(i / this.columns) * CELL]),
    );
    this.grid = new PotentialGrid(scene.state.potential, points);
  }

  toPixel(x: Vector): Pixel {
    return [this.width / 2 + x[0] * this.unit, this.height / 2 - x[1] * this.unit];
  }

  toVector([x, y]: Pixel): Vector {
    return vector([(x - this.width / 2) / this.unit, (this.height / 2 - y) / this.unit]);
  }

  draw(canvas: Canvas, scene: Scene, colours: Colours): boolean {
    const grid = this.grid!;
    const complete = grid.prepare(scene.energy.elements, FRAME_MS);
    const selected = scene.state.selected;
    canvas.clear();
    if (complete) {
      this.drawLandscape(canvas.context, grid.energy(scene.energy), colours);
      const x = selected === null ? undefined : scene.state.elements[selected];
      if (x !== undefined) this.drawOwn(canvas.context, grid.of(x), colours);
    }
    this.drawPath(canvas.context, scene, colours);
    return complete;
  }

  private drawLandscape(context: CanvasRenderingContext2D, energy: Vector, colours: Colours): void {
    const low = Math.min(...energy);
    const high = Math.max(...energy);
    // The root gives the valley more of the scale than the slopes.
    const heights = energy.map((value) => Math.sqrt((value - low) / (high - low || 1)));
    this.paint(heights, colours);
    context.imageSmoothingEnabled = true;
    context.imageSmoothingQuality = "high";
    const size = [this.columns * CELL, this.rows * CELL] as const;
    context.drawImage(this.image, -CELL / 2, -CELL / 2, ...size);
    context.strokeStyle = colours.text;
    context.globalAlpha = 0.2;
    const levels = Array.from({ length: LEVELS - 1 }, (_, i) => (i + 1) / LEVELS);
    this.drawContours(context, heights, levels, 1);
    context.globalAlpha = 1;
  }

  /** The selected element's own potential, as lines. */
  private drawOwn(context: CanvasRenderingContext2D, values: Vector, colours: Colours): void {
    const low = Math.min(...values);
    const high = Math.max(...values);
    context.strokeStyle = colours.element;
    context.globalAlpha = 0.75;
    context.setLineDash([5, 4]);
    const levels = [0.12, 0.26, 0.42].map((share) => low + share * share * (high - low));
    this.drawContours(context, values, levels, 1.4);
    context.setLineDash([]);
    context.globalAlpha = 1;
  }

  private drawContours(context: CanvasRenderingContext2D, values: Vector, levels: number[], width: number): void {
    const field: Field = { values, columns: this.columns, rows: this.rows };
    context.save();
    context.scale(CELL, CELL);
    context.lineWidth = width / CELL;
    context.beginPath();
    for (const level of levels) traceContour(context, field, level);
    context.restore();
    context.save();
    context.lineWidth = width;
    context.stroke();
    context.restore();
  }

  private paint(heights: Vector, colours: Colours): void {
    const { image, columns, rows } = this;
    if (image.width !== columns || image.height !== rows) [image.width, image.height] = [columns, rows];
    const context = image.getContext("2d")!;
    const pixels = context.createImageData(columns, rows);
    const [low, high] = [parseColour(colours.low), parseColour(colours.high)];
    for (let i = 0; i < heights.length; i++) {
      for (let channel = 0; channel < 3; channel++) {
        pixels.data[4 * i + channel] = low[channel] + heights[i] * (high[channel] - low[channel]);
      }
      pixels.data[4 * i + 3] = 255;
    }
    context.putImageData(pixels, 0, 0);
  }

  private drawPath(context: CanvasRenderingContext2D, scene: Scene, colours: Colours): void {
    const { descent, y, answer, rivals } = scene;
    const pixels = descent.path.map((point) => this.toPixel(point));
    context.strokeStyle = colours.y;
    context.lineWidth = 2.5;
    context.lineJoin = "round";
    context.beginPath();
    for (const [px, py] of pixels) context.lineTo(px, py);
    context.stroke();
    context.fillStyle = colours.y;
    for (const [px, py] of pixels) {
      context.beginPath();
      context.arc(px, py, 3, 0, 2 * Math.PI);
      context.fill();
    }
    for (const rival of rivals) {
      drawMarker(context, MARKERS[rival.name], this.toPixel(rival.y), 9, colours[rival.name], colours.card);
    }
    drawMarker(context, "circle", this.toPixel(y), 11, colours.y, colours.card);
    drawMarker(context, MARKERS.answer, this.toPixel(answer), 7, colours.answer, colours.card);
  }
}
