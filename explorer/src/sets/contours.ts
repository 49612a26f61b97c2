/** Contour lines of a grid, by marching squares. */

export interface Field {
  readonly values: ArrayLike<number>;
  readonly columns: number;
  readonly rows: number;
}

/** Trace the line where the field, one unit per cell, has this level. */
export function traceContour(context: CanvasRenderingContext2D, field: Field, level: number): void {
  const { values, columns, rows } = field;
  for (let row = 0; row + 1 < rows; row++) {
    for (let column = 0; column + 1 < columns; column++) {
      const at = row * columns + column;
      const [a, b] = [values[at] - level, values[at + 1] - level];
      const [d, c] = [values[at + columns] - level, values[at + columns + 1] - level];
      if (a > 0 === b > 0 && b > 0 === c > 0 && c > 0 === d > 0) continue;
      traceCell(context, column, row, a, b, c, d);
    }
  }
}

/** Corners in a circle from the top left, as differences from the level. */
function traceCell(
  context: CanvasRenderingContext2D, x: number, y: number, a: number, b: number, c: number, d: number,
): void {
  let started = false;
  const visit = (px: number, py: number): void => {
    if (started) context.lineTo(px, py);
    else context.moveTo(px, py);
    started = !started;
  };
  if (a > 0 !== b > 0) visit(x + a / (a - b), y);
  if (b > 0 !== c > 0) visit(x + 1, y + b / (b - c));
  if (d > 0 !== c > 0) visit(x + d / (d - c), y + 1);
  if (a > 0 !== d > 0) visit(x, y + a / (a - d));
}
