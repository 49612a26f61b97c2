/** The energy of one set: E(y) = a w |y|^2 + b sum_i F(x_i, y), where the scaling gives a and b. */

import type { Potential } from "./potentials.ts";
import { type Vector, zeros } from "./vectors.ts";

export type Scaling = "log" | "log-mean" | "sum" | "mean";

export interface Weights {
  readonly regularizer: number;
  readonly potential: number;
}

/** Weights of the two parts. An empty set has no energy. */
export function scalingWeights(scaling: Scaling, count: number): Weights {
  if (count === 0) return { regularizer: 0, potential: 0 };
  const log = Math.log2(count + 1) / (count + 1e-8);
  if (scaling === "log") return { regularizer: log, potential: log };
  return { regularizer: 1, potential: { "log-mean": log, sum: 1, mean: 1 / count }[scaling] };
}

const STEP = 1e-5; // of the finite differences

export class Energy {
  readonly weights: Weights;

  /** `regularizer` is the weight w of the squared norm. */
  constructor(
    readonly potential: Potential,
    readonly regularizer: number,
    readonly scaling: Scaling,
    readonly elements: readonly Vector[],
  ) {
    this.weights = scalingWeights(scaling, elements.length);
  }

  value(y: Vector): number {
    let sum = 0;
    for (const x of this.elements) sum += this.potential.value(x, y);
    return this.regularizerValue(y) + this.weights.potential * sum;
  }

  /** The regulariser's part of the energy. */
  regularizerValue(y: Vector): number {
    let square = 0;
    for (const value of y) square += value * value;
    return this.weights.regularizer * this.regularizer * square;
  }

  gradient(y: Vector): Vector {
    const out = y.map((value) => 2 * this.weights.regularizer * this.regularizer * value);
    for (const x of this.elements) this.potential.addGradient(x, y, this.weights.potential, out);
    return out;
  }

  /** The gradient of one element's potential, without a weight. */
  elementGradient(x: Vector, y: Vector): Vector {
    const out = zeros(y.length);
    this.potential.addGradient(x, y, 1, out);
    return out;
  }

  /** The Hessian of one element's potential, `[K * K]`, by central differences of the gradient. */
  elementHessian(x: Vector, y: Vector): Vector {
    const size = y.length;
    const hessian = zeros(size * size);
    const point = y.slice();
    for (let k = 0; k < size; k++) {
      const step = STEP * Math.max(1, Math.abs(y[k]));
      point[k] = y[k] + step;
      const after = this.elementGradient(x, point);
      point[k] = y[k] - step;
      const before = this.elementGradient(x, point);
      point[k] = y[k];
      for (let j = 0; j < size; j++) hessian[j * size + k] = (after[j] - before[j]) / (2 * step);
    }
    return hessian;
  }

  without(position: number): Energy {
    const rest = this.elements.filter((_, i) => i !== position);
    return new Energy(this.potential, this.regularizer, this.scaling, rest);
  }
}
