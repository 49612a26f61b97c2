/** How a space is drawn: where its vectors are on the canvas, and the picture under the points. */

import type { Vector } from "../engine/vectors.ts";
import type { Canvas, Marker } from "../page/canvas.ts";
import type { Colours } from "../page/theme.ts";
import { LIMIT, type Scene } from "./state.ts";

export type Pixel = readonly [number, number];

export interface View {
  /** Adapt to the canvas and to the values that must be visible. */
  fit(canvas: Canvas, scene: Scene): void;
  toPixel(x: Vector): Pixel;
  toVector(pixel: Pixel): Vector;
  /** Draw the picture; false if it is not complete and wants another frame. */
  draw(canvas: Canvas, scene: Scene, colours: Colours): boolean;
}

export const MARKERS: Record<"answer" | "sum" | "attention", Marker> = {
  answer: "diamond", sum: "triangle", attention: "square",
};

export const MARGIN = 1.1;
export const FRAME_MS = 12; // per frame for pictures that are not complete

/** The largest coordinate to show. */
export function visibleLimit({ state, y, answer }: Scene): number {
  const needed = state.pooling.unbounded ? [...y, ...answer].map(Math.abs) : [];
  return MARGIN * Math.max(LIMIT, ...needed.filter(Number.isFinite).map((value) => Math.min(value, 50)));
}
