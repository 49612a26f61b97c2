/** Values of a potential on a grid of y, kept for each element: dragging one computes one. */

import type { Energy } from "../engine/energy.ts";
import type { Potential } from "../engine/potentials.ts";
import type { Vector } from "../engine/vectors.ts";

export class PotentialGrid {
  private readonly kept = new WeakMap<Vector, Vector>();

  constructor(
    readonly potential: Potential,
    readonly points: readonly Vector[],
  ) {}

  /** The element's potential at every point, without a weight. */
  of(x: Vector): Vector {
    let values = this.kept.get(x);
    if (values === undefined) {
      values = new Float64Array(this.points.length);
      for (let i = 0; i < values.length; i++) values[i] = this.potential.value(x, this.points[i]);
      this.kept.set(x, values);
    }
    return values;
  }

  /** Compute what is missing, at least one element; false if the milliseconds did not suffice. */
  prepare(elements: readonly Vector[], milliseconds: number): boolean {
    const end = performance.now() + milliseconds;
    for (const x of elements) {
      if (this.kept.has(x)) continue;
      this.of(x);
      if (performance.now() > end) return elements.every((other) => this.kept.has(other));
    }
    return true;
  }

  /** The energy at every point. */
  energy(energy: Energy): Vector {
    const total = new Float64Array(this.points.length);
    for (const x of energy.elements) {
      const values = this.of(x);
      for (let i = 0; i < total.length; i++) total[i] += values[i];
    }
    for (let i = 0; i < total.length; i++) {
      total[i] = energy.weights.potential * total[i] + energy.regularizerValue(this.points[i]);
    }
    return total;
  }
}
