import { expect, test } from "vitest";
import { sideBySide } from "./exports";
import { csvOf } from "./sheet";

test("curves of different steps stand side by side, and a name is no formula", () => {
  const one = (tensor: number, name: string, step: number[], mean: number[]) => ({
    tensor,
    numbers: {
      texts: { [`${tensor}.name`]: name, [`${tensor}.stat`]: "l2" },
      arrays: new Map<string, Float64Array>([
        [`${tensor}.step`, Float64Array.from(step)],
        [`${tensor}.mean`, Float64Array.from(mean)],
      ]),
    },
  });
  const sheet = sideBySide([one(3, "a", [0, 2], [1, NaN]), one(5, "=cmd()", [1, 2], [5, 6])]);
  expect(sheet.columns).toEqual(["step", "a (l2)", "=cmd() (l2)"]);
  expect(sheet.rows).toEqual([
    [0, 1, null],
    [1, null, 5],
    [2, NaN, 6],
  ]);
  expect(csvOf(sheet)).toBe("step,a (l2),\"'=cmd() (l2)\"\r\n0,1,\r\n1,,5\r\n2,NaN,6\r\n");
});
