/** A canvas that fills its container, in device pixels, under an SVG layer of the same size. */

import { html, svg } from "./dom.ts";

export class Canvas {
  readonly element = html("div", { class: "canvas" });
  readonly layer = svg("svg", { class: "layer" });
  readonly context: CanvasRenderingContext2D;
  width = 0;
  height = 0;
  private readonly canvas = html("canvas", { "aria-hidden": "true" });

  constructor(private readonly resized: () => void) {
    const context = this.canvas.getContext("2d");
    if (context === null) throw new Error("this browser cannot draw on a canvas");
    this.context = context;
    this.element.append(this.canvas, this.layer);
    new ResizeObserver(() => this.fit()).observe(this.element);
  }

  /** Clear, and use CSS pixels as units. */
  clear(): void {
    const ratio = this.canvas.width / Math.max(1, this.width);
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.context.clearRect(0, 0, this.width, this.height);
  }

  private fit(): void {
    const { width, height } = this.element.getBoundingClientRect();
    if (width === 0 || (width === this.width && height === this.height)) return;
    this.width = width;
    this.height = height;
    const ratio = Math.min(2, devicePixelRatio);
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.layer.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.resized();
  }
}

export type Marker = "circle" | "diamond" | "triangle" | "square";

/** Draw a marker with a border in the colour of the background. */
export function drawMarker(
  context: CanvasRenderingContext2D, kind: Marker, [x, y]: readonly [number, number], radius: number, fill: string,
  border: string,
): void {
  context.beginPath();
  if (kind === "circle") context.arc(x, y, radius, 0, 2 * Math.PI);
  else tracePolygon(context, kind, x, y, radius);
  context.fillStyle = fill;
  context.strokeStyle = border;
  context.lineWidth = 2;
  context.stroke();
  context.fill();
}

function tracePolygon(
  context: CanvasRenderingContext2D, kind: Exclude<Marker, "circle">, x: number, y: number, radius: number,
): void {
  const corners = { diamond: [0, 90, 180, 270], triangle: [270, 30, 150], square: [45, 135, 225, 315] }[kind];
  for (const corner of corners) {
    const angle = (corner * Math.PI) / 180;
    context.lineTo(x + radius * Math.cos(angle), y + radius * Math.sin(angle));
  }
  context.closePath();
}
