/** Light and dark: as the system has it, until the reader chooses. */

const DARK = "(prefers-color-scheme: dark)";

export function isDark(): boolean {
  const chosen = document.documentElement.dataset["theme"];
  return chosen === undefined ? matchMedia(DARK).matches : chosen === "dark";
}

/** Let a button switch the theme, and report every change. */
export function watchTheme(toggle: HTMLButtonElement, changed: () => void): void {
  const update = (): void => {
    toggle.textContent = isDark() ? "Light" : "Dark";
    toggle.setAttribute("aria-label", isDark() ? "Use light colours" : "Use dark colours");
    changed();
  };
  toggle.addEventListener("click", () => {
    document.documentElement.dataset["theme"] = isDark() ? "light" : "dark";
    update();
  });
  matchMedia(DARK).addEventListener("change", update);
  update();
}

export interface Colours {
  readonly text: string;
  readonly faint: string;
  readonly line: string;
  readonly card: string;
  readonly y: string;
  readonly element: string;
  readonly answer: string;
  readonly sum: string;
  readonly attention: string;
  readonly low: string;
  readonly high: string;
}

const NAMES: (keyof Colours)[] = [
  "text", "faint", "line", "card", "y", "element", "answer", "sum", "attention", "low", "high",
];

/** The colours of the style sheet, for drawing. */
export function readColours(): Colours {
  const style = getComputedStyle(document.documentElement);
  const entries = NAMES.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]);
  return Object.fromEntries(entries) as unknown as Colours;
}

export function parseColour(hex: string): [number, number, number] {
  const value = parseInt(hex.slice(1), 16);
  return [value >> 16, (value >> 8) & 255, value & 255];
}
