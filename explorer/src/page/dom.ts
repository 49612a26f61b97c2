/** Building elements of the page. */

type Attributes = Record<string, string | number | boolean>;
type Child = Node | string;

/** An HTML element; an attribute that is false is left out. */
export function html<K extends keyof HTMLElementTagNameMap>(
  tag: K, attributes: Attributes = {}, ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  setAll(element, attributes);
  element.append(...children);
  return element;
}

export function svg<K extends keyof SVGElementTagNameMap>(
  tag: K, attributes: Attributes = {}, ...children: Child[]
): SVGElementTagNameMap[K] {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  setAll(element, attributes);
  element.append(...children);
  return element;
}

function setAll(element: Element, attributes: Attributes): void {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== false) element.setAttribute(name, value === true ? "" : String(value));
  }
}

/** The element of the page with this id. */
export function byId<T extends HTMLElement = HTMLElement>(id: string): T {
  const found = document.getElementById(id);
  if (found === null) throw new Error(`the page has no element #${id}`);
  return found as T;
}

export function button(label: string, action: () => void, attributes: Attributes = {}): HTMLButtonElement {
  const element = html("button", { type: "button", ...attributes }, label);
  element.addEventListener("click", action);
  return element;
}

/** A number for people: two decimals, a real minus sign. */
export function shown(value: number, digits = 2): string {
  if (!Number.isFinite(value)) return "not finite";
  const text = value.toFixed(digits);
  return (Number(text) === 0 ? text.replace("-", "") : text).replace("-", "−");
}

/** A vector for people. */
export function shownVector(values: ArrayLike<number>): string {
  const all = Array.from(values, (value) => shown(value));
  return all.length === 1 ? all[0] : `(${all.join(", ")})`;
}

export interface RangeOptions {
  label: string;
  min: number;
  max: number;
  step: number;
  value: number;
  id: string;
  format?: (value: number) => string;
}

export interface Range {
  readonly element: HTMLElement;
  set(value: number): void;
}

/** A labelled slider with its value beside it. */
export function range(options: RangeOptions, changed: (value: number) => void): Range {
  const { label, min, max, step, value, id, format = (shownValue) => shown(shownValue) } = options;
  const input = html("input", { type: "range", id, min, max, step, value });
  const output = html("output", { for: id }, format(value));
  input.addEventListener("input", () => {
    output.textContent = format(input.valueAsNumber);
    changed(input.valueAsNumber);
  });
  const set = (next: number): void => {
    input.value = String(next);
    output.textContent = format(next);
  };
  return { element: html("div", { class: "range" }, html("label", { for: id }, label), input, output), set };
}
