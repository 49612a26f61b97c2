/**
 * What each element contributes: the minimum with the element minus the minimum without it, as in
 * `equipool.influence`. Generators yield after each element, so that a page can pause.
 */

import { type Energy, scalingWeights } from "./energy.ts";
import { type Budget, descend, type SolverData } from "./solvers.ts";
import { difference, solvePositive, type Vector, zeros } from "./vectors.ts";

export type Influences = (Vector | null)[];

/** A search that starts at the minimum must not stop there. */
const PRECISION = 1e-6;

/**
 * The difference of two Newton steps from y: of the whole energy and of that without the element.
 * Null where a Hessian is not positive definite, and for energies with kinks.
 */
export function* newtonInfluence(energy: Energy, y: Vector, start: Vector): Generator<void, Influences> {
  const { elements, regularizer, scaling, potential } = energy;
  const size = y.length;
  if (elements.length === 1) return [difference(y, start)];
  if (potential.kinked) return elements.map(() => null);
  const gradients: Vector[] = [];
  const hessians: Vector[] = [];
  for (const x of elements) {
    gradients.push(energy.elementGradient(x, y));
    hessians.push(energy.elementHessian(x, y));
    yield;
  }
  const gradient = sum(gradients, size);
  const hessian = sum(hessians, size * size);
  const step = (count: number, g: Vector, h: Vector): Vector | null => {
    const weights = scalingWeights(scaling, count);
    const curvature = 2 * weights.regularizer * regularizer;
    const matrix = h.map((value) => weights.potential * value);
    for (let k = 0; k < size; k++) matrix[k * size + k] += curvature;
    return solvePositive(matrix, y.map((value, k) => -curvature * value - weights.potential * g[k]));
  };
  const whole = step(elements.length, gradient, hessian);
  const found: Influences = [];
  for (let i = 0; i < elements.length; i++) {
    const rest = step(elements.length - 1, difference(gradient, gradients[i]), difference(hessian, hessians[i]));
    found.push(whole && rest && difference(whole, rest));
    yield;
  }
  return found;
}

/** Searches from y without each element, compared with one with all of them. */
export function* exactInfluence(
  energy: Energy, solver: SolverData, start: Vector, budget: Budget, y: Vector,
): Generator<void, Influences> {
  if (energy.elements.length === 1) return [difference(y, start)];
  const finer = { ...budget, stop_at: PRECISION };
  const whole = descend(energy, solver, y, finer).y;
  const found: Influences = [];
  for (let i = 0; i < energy.elements.length; i++) {
    found.push(difference(whole, descend(energy.without(i), solver, y, finer).y));
    yield;
  }
  return found;
}

/** Take all steps at once. */
export function finish<T>(steps: Generator<void, T>): T {
  for (;;) {
    const { done, value } = steps.next();
    if (done) return value;
  }
}

function sum(vectors: Vector[], size: number): Vector {
  const out = zeros(size);
  for (const values of vectors) for (let k = 0; k < size; k++) out[k] += values[k];
  return out;
}
