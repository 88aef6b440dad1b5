import { expect, test } from "vitest";
import { parseRoute, routeText, splitToken } from "./route.svelte";

test("the address says the whole state, there and back", () => {
  const state = { run: "0123456789abcdef0123456789abcdef", values: { view: "heat", step: "40", name: "fc & <b>" } };
  expect(parseRoute(routeText(state))).toEqual(state);
  expect(routeText({ run: "", values: { where: "" } })).toBe("#/");
  expect(parseRoute("#/run/../../x").run).toBe("");
  expect(parseRoute("")).toEqual({ run: "", values: {} });
});

test("a link with a token may lead somewhere", () => {
  expect(splitToken("#token=a-B_9")).toEqual({ token: "a-B_9", rest: "#/" });
  expect(splitToken("#token=a/run/0?view=heat")).toEqual({ token: "a", rest: "#/run/0?view=heat" });
  expect(splitToken("#token=a<script>")).toEqual({ token: "", rest: "#token=a<script>" });
  expect(splitToken("#/run/0")).toEqual({ token: "", rest: "#/run/0" });
});
