/** Vectors and small matrices. */

export type Vector = Float64Array<ArrayBuffer>;

export function vector(values: ArrayLike<number>): Vector {
  return Float64Array.from(values);
}

export function zeros(size: number): Vector {
  return new Float64Array(size);
}

export function norm(a: Vector): number {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i] * a[i];
  return Math.sqrt(sum);
}

export function distance(a: Vector, b: Vector): number {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += (a[i] - b[i]) ** 2;
  return Math.sqrt(sum);
}

/** The largest absolute component. */
export function largest(a: Vector): number {
  let most = 0;
  for (let i = 0; i < a.length; i++) most = Math.max(most, Math.abs(a[i]));
  return most;
}

export function difference(a: Vector, b: Vector): Vector {
  return a.map((value, i) => value - b[i]);
}

export function isFinite(a: Vector): boolean {
  return a.every((value) => Number.isFinite(value));
}

/** A linear map with a bias, its weights row by row. */
export interface Affine {
  readonly weight: Vector;
  readonly bias: Vector;
  readonly inputs: number;
  readonly outputs: number;
}

export interface AffineData {
  weight: number[][];
  bias: number[] | null;
}

export function affine(data: AffineData): Affine {
  const outputs = data.weight.length;
  const inputs = data.weight[0].length;
  const bias = data.bias === null ? zeros(outputs) : vector(data.bias);
  return { weight: vector(data.weight.flat()), bias, inputs, outputs };
}

/** out = W z + b. */
export function apply(map: Affine, z: Vector, out: Vector): void {
  const { weight, bias, inputs, outputs } = map;
  for (let row = 0, at = 0; row < outputs; row++) {
    let sum = bias[row];
    for (let column = 0; column < inputs; column++) sum += weight[at++] * z[column];
    out[row] = sum;
  }
}

/** out += transpose(W) d, in the columns from `first` on. */
export function addTransposed(map: Affine, d: Vector, out: Vector, first: number): void {
  const { weight, inputs, outputs } = map;
  for (let row = 0; row < outputs; row++) {
    const factor = d[row];
    const at = row * inputs;
    for (let column = first; column < inputs; column++) out[column] += weight[at + column] * factor;
  }
}

/**
 * The solution of `matrix * w = b` by elimination with pivoting, or null if the matrix `[n * n]`,
 * row by row, is singular to the precision of the numbers.
 */
export function solve(matrix: Vector, b: Vector): Vector | null {
  const n = b.length;
  const m = matrix.slice();
  const w = b.slice();
  const scale = largest(m);
  for (let column = 0; column < n; column++) {
    let pivot = column;
    for (let row = column + 1; row < n; row++) {
      if (Math.abs(m[row * n + column]) > Math.abs(m[pivot * n + column])) pivot = row;
    }
    if (!(Math.abs(m[pivot * n + column]) > 1e-9 * scale)) return null;
    swapRows(m, w, n, column, pivot);
    for (let row = column + 1; row < n; row++) {
      const factor = m[row * n + column] / m[column * n + column];
      for (let k = column; k < n; k++) m[row * n + k] -= factor * m[column * n + k];
      w[row] -= factor * w[column];
    }
  }
  for (let row = n - 1; row >= 0; row--) {
    for (let k = row + 1; k < n; k++) w[row] -= m[row * n + k] * w[k];
    w[row] /= m[row * n + row];
  }
  return w;
}

function swapRows(m: Vector, w: Vector, n: number, a: number, b: number): void {
  if (a === b) return;
  for (let k = 0; k < n; k++) {
    const kept = m[a * n + k];
    m[a * n + k] = m[b * n + k];
    m[b * n + k] = kept;
  }
  const kept = w[a];
  w[a] = w[b];
  w[b] = kept;
}
