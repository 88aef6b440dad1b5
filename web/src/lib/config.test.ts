import { expect, test } from "vitest";
import { captureCommand, configLines } from "./config";

test("says what would record a tensor, whatever it is called", () => {
  expect(configLines({ name: "fc.weight", role: "weight" }, "histogram")).toBe(
    `[[capture.collections]]\nname = "looked_at"\ninclude = ["^fc\\\\.weight$"]\nforms = ["summary", "histogram"]\nsave = { save_interval = 10 }`,
  );
  expect(configLines({ name: "attention/a_0", role: "attention" }, "raw", 5)).toContain(`roles = ["attention"]`);
  expect(captureCommand("a b", { name: "it's(1)" }, "raw")).toBe(`luff capture 'a b' --include '^it'\\''s\\(1\\)$' --forms raw --every 10 --for-steps 200`);
});
