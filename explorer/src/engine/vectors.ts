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
 * The solution of `matrix * w = b` by Cholesky's method, or null if the symmetric matrix `[n * n]`
 * is not positive definite beyond rounding.
 */
export function solvePositive(matrix: Vector, b: Vector): Vector | null {
  const n = b.length;
  const root = zeros(n * n);
  let smallest = Infinity;
  let most = 0;
  for (let row = 0; row < n; row++) {
    for (let column = 0; column <= row; column++) {
      let value = (matrix[row * n + column] + matrix[column * n + row]) / 2;
      for (let k = 0; k < column; k++) value -= root[row * n + k] * root[column * n + k];
      if (column < row) {
        root[row * n + column] = value / root[column * n + column];
        continue;
      }
      smallest = Math.min(smallest, value);
      most = Math.max(most, value);
      if (!(smallest > ROUNDING * most)) return null;
      root[row * n + row] = Math.sqrt(value);
    }
  }
  const w = b.slice();
  for (let row = 0; row < n; row++) {
    for (let k = 0; k < row; k++) w[row] -= root[row * n + k] * w[k];
    w[row] /= root[row * n + row];
  }
  for (let row = n - 1; row >= 0; row--) {
    for (let k = row + 1; k < n; k++) w[row] -= root[k * n + row] * w[k];
    w[row] /= root[row * n + row];
  }
  return w;
}

const ROUNDING = 1e-9; // of the finite differences that Hessians are made of
