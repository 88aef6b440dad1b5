import { expect, test } from "vitest";
import { duration, number } from "./format";

test("numbers are short, and what is not finite has a name", () => {
  expect([0, 1234567, 0.25, -1.5e-9, 3.14159, 2e23, NaN, Infinity].map(number)).toEqual(["0", "1,234,567", "0.25", "−1.5e−9", "3.142", "2e23", "NaN", "∞"]);
  expect(number("-Infinity")).toBe("−∞");
  expect(number(undefined)).toBe("–");
});

test("durations have one unit", () => {
  expect([0.42, 90, 600, 8000, 200000].map(duration)).toEqual(["0.4 s", "90 s", "10 min", "2.2 h", "2.3 d"]);
});
