/** Long computations in slices, so that the page stays responsive. */

const DELAY_MS = 150; // without a change, before a computation starts
const SLICE_MS = 8;

export class IdleTask {
  private timer = 0;

  /** Replace what is running: take the steps when the page is idle, then hand over the result. */
  run<T>(begin: () => Generator<void, T>, done: (result: T) => void): void {
    let steps: Generator<void, T> | null = null;
    const slice = (): void => {
      steps ??= begin();
      const end = performance.now() + SLICE_MS;
      while (performance.now() < end) {
        const step = steps.next();
        if (step.done) return done(step.value);
      }
      this.timer = window.setTimeout(slice, 0);
    };
    window.clearTimeout(this.timer);
    this.timer = window.setTimeout(slice, DELAY_MS);
  }
}
