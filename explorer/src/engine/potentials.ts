/** The disagreement F(x, y) between an element and the answer of its set. */

import { ResNetPotential, type ResNetData } from "./resnet.ts";
import type { Vector } from "./vectors.ts";

export interface Potential {
  /** Whether the gradient jumps: then there is no Hessian to speak of. */
  readonly kinked: boolean;
  value(x: Vector, y: Vector): number;
  /** out += weight * dF/dy. */
  addGradient(x: Vector, y: Vector, weight: number, out: Vector): void;
}

export type PotentialData =
  | ResNetData
  | { kind: "mean" | "median" | "max" | "sum" | "distance" }
  | { kind: "quantile"; tau: number }
  | { kind: "huber"; delta: number };

/** F(x, y) = sum over the coordinates of f(x - y). */
class DifferencePotential implements Potential {
  constructor(
    private readonly f: (r: number) => number,
    private readonly slope: (r: number) => number,
    readonly kinked: boolean,
  ) {}

  value(x: Vector, y: Vector): number {
    let sum = 0;
    for (let i = 0; i < y.length; i++) sum += this.f(x[i] - y[i]);
    return sum;
  }

  addGradient(x: Vector, y: Vector, weight: number, out: Vector): void {
    for (let i = 0; i < y.length; i++) out[i] -= weight * this.slope(x[i] - y[i]);
  }
}

/** F(x, y) = |x - y|, minimised by the geometric median. Its gradient at x itself is 0. */
class DistancePotential implements Potential {
  readonly kinked = true;

  value(x: Vector, y: Vector): number {
    let square = 0;
    for (let i = 0; i < y.length; i++) square += (x[i] - y[i]) ** 2;
    return Math.sqrt(square);
  }

  addGradient(x: Vector, y: Vector, weight: number, out: Vector): void {
    const length = this.value(x, y);
    if (length === 0) return;
    for (let i = 0; i < y.length; i++) out[i] += (weight * (y[i] - x[i])) / length;
  }
}

/** F(x, y) = -x . y. */
class SumPotential implements Potential {
  readonly kinked = false;

  value(x: Vector, y: Vector): number {
    let sum = 0;
    for (let i = 0; i < y.length; i++) sum -= x[i] * y[i];
    return sum;
  }

  addGradient(x: Vector, _y: Vector, weight: number, out: Vector): void {
    for (let i = 0; i < out.length; i++) out[i] -= weight * x[i];
  }
}

/** The pinball function; torch halves the gradient where two branches meet. */
function pinball(tau: number): DifferencePotential {
  return new DifferencePotential(
    (r) => Math.max(tau * r, (tau - 1) * r),
    (r) => (r > 0 ? tau : r < 0 ? tau - 1 : tau - 0.5),
    true,
  );
}

function huber(delta: number): DifferencePotential {
  const pull = (r: number): number => Math.min(Math.max(r, -delta), delta);
  return new DifferencePotential((r) => pull(r) * (r - pull(r) / 2), pull, false);
}

export function makePotential(data: PotentialData): Potential {
  switch (data.kind) {
    case "resnet":
      return new ResNetPotential(data);
    case "mean":
      return new DifferencePotential((r) => r * r, (r) => 2 * r, false);
    case "median":
      return new DifferencePotential(Math.abs, Math.sign, true);
    case "max":
      return new DifferencePotential((r) => Math.max(0, r), (r) => (r >= 0 ? 1 : 0), true);
    case "quantile":
      return pinball(data.tau);
    case "huber":
      return huber(data.delta);
    case "sum":
      return new SumPotential();
    case "distance":
      return new DistancePotential();
  }
}
