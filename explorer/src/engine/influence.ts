/** What each element contributes: how y would move if the element were not there. */

import { type Energy, scalingWeights } from "./energy.ts";
import { type Budget, descend, type SolverData } from "./solvers.ts";
import { difference, solve, type Vector, zeros } from "./vectors.ts";

/**
 * For each element one Newton step from y on the energy without it, `y(without i) - y`; null where
 * that Hessian is singular. Presumes that y is the minimum.
 */
export function newtonInfluence(energy: Energy, y: Vector): (Vector | null)[] {
  const size = y.length;
  const count = energy.elements.length;
  if (energy.potential.kinked || count < 2) return energy.elements.map(() => null);
  const gradients = energy.elements.map((x) => energy.elementGradient(x, y));
  const hessians = energy.elements.map((x) => energy.elementHessian(x, y));
  const gradient = sum(gradients, size);
  const hessian = sum(hessians, size * size);
  const { regularizer, potential } = scalingWeights(energy.scaling, count - 1);
  const curvature = 2 * regularizer * energy.regularizer;
  return energy.elements.map((_, i) => {
    const left = y.map((value, k) => curvature * value + potential * (gradient[k] - gradients[i][k]));
    const matrix = hessian.map((value, k) => potential * (value - hessians[i][k]));
    for (let k = 0; k < size; k++) matrix[k * size + k] += curvature;
    const step = solve(matrix, left);
    return step && step.map((value) => -value);
  });
}

/** The answer without the element minus the answer with it, by solving again. */
export function exactInfluence(
  energy: Energy, solver: SolverData, start: Vector, budget: Budget, y: Vector, position: number,
): Vector {
  return difference(descend(energy.without(position), solver, start, budget).y, y);
}

function sum(vectors: Vector[], size: number): Vector {
  const out = zeros(size);
  for (const values of vectors) for (let k = 0; k < size; k++) out[k] += values[k];
  return out;
}
