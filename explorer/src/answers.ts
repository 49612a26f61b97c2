/** The true answers of a set, computed directly. */

import { distance, type Vector, vector, zeros } from "./engine/vectors.ts";

export type Answer = (elements: readonly Vector[]) => Vector;

/** Apply a function of numbers to each coordinate. */
function byCoordinate(f: (numbers: number[]) => number): Answer {
  return (elements) => elements[0].map((_, k) => f(elements.map((x) => x[k])));
}

export const sum = byCoordinate((numbers) => numbers.reduce((a, b) => a + b, 0));
export const mean = byCoordinate((numbers) => numbers.reduce((a, b) => a + b, 0) / numbers.length);
export const maximum = byCoordinate((numbers) => Math.max(...numbers));

/** The mean of the two middle numbers of an even set. */
export const median = byCoordinate((numbers) => {
  const ordered = [...numbers].sort((a, b) => a - b);
  const last = ordered.length - 1;
  return (ordered[Math.floor(last / 2)] + ordered[Math.ceil(last / 2)]) / 2;
});

/** The smallest element that has at least tau N elements at or below it. */
export function quantile(tau: number): Answer {
  return byCoordinate((numbers) => {
    const ordered = [...numbers].sort((a, b) => a - b);
    return ordered[Math.max(0, Math.ceil(tau * ordered.length - 1e-9) - 1)];
  });
}

/** Where the pulls balance, found by bisection. */
export function huber(delta: number): Answer {
  return byCoordinate((numbers) => {
    let low = Math.min(...numbers);
    let high = Math.max(...numbers);
    for (let i = 0; i < 60; i++) {
      const middle = (low + high) / 2;
      const pull = numbers.reduce((total, x) => total + Math.min(Math.max(x - middle, -delta), delta), 0);
      if (pull > 0) low = middle;
      else high = middle;
    }
    return (low + high) / 2;
  });
}

/** The point with the least sum of distances, by Weiszfeld's method. */
export const geometricMedian: Answer = (elements) => {
  let y = mean(elements);
  for (let i = 0; i < 200; i++) {
    const next = zeros(y.length);
    let total = 0;
    for (const x of elements) {
      const weight = 1 / Math.max(distance(x, y), 1e-6);
      total += weight;
      for (let k = 0; k < next.length; k++) next[k] += weight * x[k];
    }
    y = next.map((value) => value / total);
  }
  return y;
};

interface Circle {
  readonly centre: Vector;
  readonly radius: number;
}

/** The centre of the smallest circle around the points, by Welzl's method without recursion. */
export const enclosingCentre: Answer = (elements) => {
  let circle: Circle = { centre: elements[0], radius: 0 };
  for (let i = 1; i < elements.length; i++) {
    if (holds(circle, elements[i])) continue;
    circle = { centre: elements[i], radius: 0 };
    for (let j = 0; j < i; j++) {
      if (holds(circle, elements[j])) continue;
      circle = between(elements[i], elements[j]);
      for (let k = 0; k < j; k++) {
        if (!holds(circle, elements[k])) circle = through(elements[i], elements[j], elements[k]);
      }
    }
  }
  return circle.centre;
};

function holds({ centre, radius }: Circle, x: Vector): boolean {
  return distance(centre, x) <= radius + 1e-9;
}

function between(a: Vector, b: Vector): Circle {
  return { centre: vector([(a[0] + b[0]) / 2, (a[1] + b[1]) / 2]), radius: distance(a, b) / 2 };
}

function through(a: Vector, b: Vector, c: Vector): Circle {
  const [bx, by, cx, cy] = [b[0] - a[0], b[1] - a[1], c[0] - a[0], c[1] - a[1]];
  const cross = 2 * (bx * cy - by * cx);
  if (Math.abs(cross) < 1e-12) {
    const circles = [between(a, b), between(a, c), between(b, c)];
    return circles.reduce((most, circle) => (circle.radius > most.radius ? circle : most));
  }
  const [b2, c2] = [bx * bx + by * by, cx * cx + cy * cy];
  const centre = vector([a[0] + (cy * b2 - by * c2) / cross, a[1] + (bx * c2 - cx * b2) / cross]);
  return { centre, radius: distance(centre, a) };
}
