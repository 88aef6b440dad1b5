import { expect, test } from "vitest";
import { csvOf, jsonOf } from "./sheet";

test("nothing in a cell is a formula, a new cell or a new row", () => {
  const text = csvOf({
    columns: ["step", '=HYPERLINK("http://evil")'],
    rows: [[1, "=cmd()"], [2, "+1"], [3, "-2+3"], [4, "@SUM(A1)"], [5, "\t=1"], [6, ' =1'], [7, 'a"b,c\r\nd'], [8, "fc.weight"], [9, "|calc"], [10, "%0A"]],
  });
  expect(text.split("\r\n").slice(0, 7)).toEqual(["step,\"'=HYPERLINK(\"\"http://evil\"\")\"", "1,\"'=cmd()\"", "2,\"'+1\"", "3,\"'-2+3\"", "4,\"'@SUM(A1)\"", "5,\"'\t=1\"", "6,\"' =1\""]);
  expect(text).toContain('7,"a""b,c\r\nd"');
  expect(text).toContain("8,fc.weight\r\n");
  expect(text).toContain("\"'|calc\"");
  expect(text).toContain("\"'%0A\"");
});

test("numbers are exact, negative ones stay numbers, and none is lost", () => {
  expect(csvOf({ columns: ["a"], rows: [[-0.1], [1e-300], [0.1 + 0.2], [NaN], [-Infinity], [null]] })).toBe("a\r\n-0.1\r\n1e-300\r\n0.30000000000000004\r\nNaN\r\n-Infinity\r\n\r\n");
  expect(JSON.parse(jsonOf({ columns: ["a", "__proto__"], rows: [[NaN, 1]] }))[0].a).toBe("NaN");
});
