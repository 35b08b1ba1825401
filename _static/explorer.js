/* The explorer of chapter 15: which algorithm wins, computed in the reader's browser.
 *
 * The library gives the closed form of each algorithm for each rank count: rounds, and bytes sent
 * and added for each byte of the buffer; several triples where it may be cut into pieces. Here they
 * are only priced: tests/test_explorer.py holds `tokenlife.collective.time` to the library's.
 */
(function () {
  "use strict";

  /** The least time over the ways in which an algorithm may be cut.
   * @param {number[][]} ways  triples: rounds, bytes sent, bytes added, the last two per byte
   * @param {{alpha: number, beta: number, gamma: number, size: number}} at  seconds, and bytes
   */
  function time(ways, at) {
    const price = ([rounds, sent, added]) =>
      rounds * at.alpha + at.size * (sent * at.beta + added * at.gamma);
    return Math.min(...ways.map(price));
  }

  /** Who is fastest at each size: runs of [name, smallest size, largest size]. */
  function winners(algorithms, at, sizes) {
    const runs = [];
    for (const size of sizes) {
      const timed = Object.entries(algorithms).map(([name, ways]) => [time(ways, { ...at, size }), name]);
      const best = timed.reduce((a, b) => (b[0] < a[0] ? b : a))[1];
      if (runs.length && runs.at(-1)[0] === best) runs.at(-1)[2] = size;
      else runs.push([best, size, size]);
    }
    return runs;
  }

  function seconds(value) {
    const [unit, scale] = [["s", 1], ["ms", 1e-3], ["µs", 1e-6], ["ns", 1e-9]]
      .find(([, s]) => Number((value / s).toPrecision(3)) >= 1) ?? ["ns", 1e-9];
    return `${Number((value / scale).toPrecision(3)).toLocaleString("en")} ${unit}`;
  }

  function bytes(value) {
    const power = Math.min(4, Math.floor(Math.log2(value) / 10));
    return `${Number((value / 1024 ** power).toPrecision(3))} ${["B", "KiB", "MiB", "GiB", "TiB"][power]}`;
  }

  const gigabytes = (rate) => `${(rate / 1e9).toLocaleString("en")} GB/s`;

  const tenths = (from, to) => // 1, 2, 5 in each decade
    Array.from({ length: 3 * (to - from) + 1 }, (_, i) => [1, 2, 5][i % 3] * 10 ** (from + Math.floor(i / 3)));
  const SIZES = Array.from({ length: 35 }, (_, i) => 2 ** i);
  const CONTROLS = [ // key, label, values, how a value is shown, where it starts
    ["alpha", "α, latency of a message", tenths(-7, -3), seconds, 5e-6],
    ["rate", "1/β, bandwidth of a rank", tenths(8, 12), gigabytes, 5e10],
    ["adding", "1/γ, adding", tenths(9, 13), gigabytes, 1e12],
    ["ranks", "ranks", null, (v) => v.toLocaleString("en"), 64],
    ["size", "S, buffer of a rank", SIZES, bytes, 2 ** 20],
  ];

  function element(name, attributes, ...children) {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...children);
    return node;
  }

  /** Build the explorer inside `root`, which holds the closed forms as JSON in a script. */
  function explorer(root, number) {
    const given = JSON.parse(root.querySelector('script[type="application/json"]').textContent);
    const inputs = {};
    const outputs = {};
    const kind = element("select", { id: `explorer-${number}-kind` });
    for (const name of Object.keys(given.collectives)) kind.append(element("option", {}, name));
    const controls = element("div", { class: "calculator-controls" },
      element("label", { for: kind.id }, "collective"), kind, element("span", {}));
    for (const [key, label, fixed, show, start] of CONTROLS) {
      const values = fixed ?? given.ranks;
      const id = `explorer-${number}-${key}`;
      const at = values.findIndex((v) => v >= start * 0.999);
      inputs[key] = element("input", { id, type: "range", min: 0, max: values.length - 1, step: 1, value: at });
      inputs[key].values = values;
      outputs[key] = element("output", { for: id });
      controls.append(element("label", { for: id }, label), inputs[key], outputs[key]);
      inputs[key].addEventListener("input", refresh);
      inputs[key].show = show;
    }
    const said = element("p", { "aria-live": "polite" });
    const body = element("tbody", {});
    const head = element("tr", {}, ...["algorithm", "time", "times the best"].map((text, i) =>
      element("th", { scope: "col", class: i ? "" : "words" }, text)), element("td", { "aria-hidden": "true" }));
    const table = element("div", { class: "data-table" }, element("table", {},
      element("caption", {}, "Slowest last (modelled in your browser)"), element("thead", {}, head), body));
    root.replaceChildren(controls, said, table);
    kind.addEventListener("change", refresh);

    function refresh() {
      const chosen = {};
      for (const [key, input] of Object.entries(inputs)) {
        chosen[key] = input.values[Number(input.value)];
        outputs[key].textContent = input.show(chosen[key]);
        input.setAttribute("aria-valuetext", outputs[key].textContent);
      }
      const at = { alpha: chosen.alpha, beta: 1 / chosen.rate, gamma: 1 / chosen.adding, size: chosen.size };
      const place = given.ranks.indexOf(chosen.ranks);
      const able = Object.fromEntries(Object.entries(given.collectives[kind.value])
        .map(([name, byRanks]) => [name, byRanks[place]]).filter(([, ways]) => ways));
      const timed = Object.entries(able).map(([name, ways]) => [name, time(ways, at)]).sort((a, b) => a[1] - b[1]);
      body.replaceChildren(...timed.map(([name, takes]) => {
        const times = takes / timed[0][1];
        const bar = element("div", { class: "bar", style: `--times:${Math.min(10, times)}` });
        return element("tr", {}, element("th", { scope: "row", class: "words" }, name),
          element("td", {}, seconds(takes)), element("td", {}, times.toFixed(times < 10 ? 2 : 0)),
          element("td", { "aria-hidden": "true" }, bar));
      }));
      const runs = winners(able, at, SIZES);
      said.textContent = "Fastest: " + runs.map(([name, , last], i) =>
        i < runs.length - 1 ? `${name} up to ${bytes(last)}` : runs.length > 1 ? `then ${name}` : `${name} at every size`)
        .join(", ") + ".";
    }
    refresh();
  }

  globalThis.tokenlife = { ...globalThis.tokenlife, collective: { time, winners } };
  if (typeof document !== "undefined") {
    document.addEventListener("DOMContentLoaded", () => {
      document.querySelectorAll("[data-explorer]").forEach(explorer);
    });
  }
})();
