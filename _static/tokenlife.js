/* The small calculator of chapter 4: a model's counts, computed in the reader's browser.
 *
 * `tokenlife.count(shape)` knows one family, Llama's (and Mixtral's, where there are experts): norm
 * before, rotary positions, grouped key-value heads, gated MLP, no biases. Its numbers equal those
 * of the Python library: tests/test_calculator.py holds them together on random shapes.
 */
(function () {
  "use strict";

  /** Count parameters, FLOPs and bytes of a shape.
   * @param {{layers: number, hidden: number, heads: number, kvHeads: number, headDim: number,
   *   width: number, experts: number, topK: number, vocab: number, tied: boolean,
   *   length: number, bytesPerNumber: number}} shape  experts 0: a dense MLP
   */
  function count(shape) {
    const { layers, hidden, heads, kvHeads, headDim, width, experts, topK, vocab } = shape;
    const attention = hidden * headDim * (2 * heads + 2 * kvHeads);
    const expert = 3 * hidden * width;
    const router = hidden * experts;
    const mlps = experts || 1;
    const norms = (2 * layers + 1) * hidden;
    const tables = (shape.tied ? 1 : 2) * vocab * hidden;
    const around = tables + norms + layers * (attention + router);
    const parameters = around + layers * mlps * expert;
    const active = around + layers * (experts ? topK : 1) * expert;

    const matrices = layers * (attention + router + (experts ? topK : 1) * expert);
    const pairs = shape.length * shape.length;
    const core = layers * 4 * pairs * heads * headDim;
    const forwardFlops = 2 * shape.length * (matrices + vocab * hidden) + core;
    return {
      parameters,
      active,
      weightBytes: parameters * shape.bytesPerNumber,
      trainingStateBytes: parameters * 16,
      kvBytesPerToken: layers * 2 * kvHeads * headDim * shape.bytesPerNumber,
      forwardFlops,
      trainingFlops: 3 * forwardFlops,
      coreShare: core / forwardFlops,
    };
  }

  /** Write a number with an SI prefix and three significant figures: 124 M, 6.03 kB. */
  function si(value, unit) {
    const prefixes = ["", "k", "M", "G", "T", "P", "E", "Z", "Y"];
    let power = 0;
    while (power < prefixes.length - 1 && Number(Math.abs(value).toPrecision(3)) >= 1000) {
      value /= 1000;
      power += 1;
    }
    return `${Number(value.toPrecision(3)).toString()} ${prefixes[power]}${unit}`;
  }

  const steps = (from, to) => Array.from({ length: to - from + 1 }, (_, i) => from + i);
  const powers = (from, to) => steps(Math.log2(from), Math.log2(to)).map((p) => 2 ** p);
  const multiples = (of, upTo) => steps(1, upTo / of).map((i) => i * of);

  /* Each control: its key, what it is called, and the values its slider steps through. */
  const CONTROLS = [
    ["layers", "layers", steps(1, 128)],
    ["hidden", "width (hidden size)", multiples(64, 16384)],
    ["heads", "query heads", steps(1, 128)],
    ["kvHeads", "key–value heads", steps(1, 128)],
    ["headDim", "width of a head", multiples(8, 256)],
    ["width", "width of the MLP, or of one expert", multiples(64, 65536)],
    ["experts", "experts (0: a dense MLP)", [0, ...powers(2, 512)]],
    ["topK", "experts a token visits", steps(1, 16)],
    ["vocab", "vocabulary", multiples(128, 262144)],
    ["length", "tokens in a sequence", powers(64, 131072)],
  ];

  const RESULTS = [
    ["parameters", "parameters", ""],
    ["active", "of them met by one token", ""],
    ["weightBytes", "weights in bfloat16", "B"],
    ["trainingStateBytes", "weights, gradients and Adam in mixed precision", "B"],
    ["kvBytesPerToken", "key–value cache of one token", "B"],
    ["forwardFlops", "forward pass over one sequence", "FLOP"],
    ["trainingFlops", "forward and backward", "FLOP"],
    ["coreShare", "of the forward pass in attention's square", "%"],
  ];

  /** Move a value that does not fit to the nearest one that does. */
  function fit(shape) {
    const divides = (n) => shape.heads % n === 0;
    let kvHeads = Math.min(shape.kvHeads, shape.heads);
    while (!divides(kvHeads)) kvHeads -= 1;
    return { ...shape, kvHeads, topK: Math.min(shape.topK, Math.max(1, shape.experts)) };
  }

  function nearest(values, wanted) {
    return values.reduce((best, v, i) =>
      Math.abs(v - wanted) < Math.abs(values[best] - wanted) ? i : best, 0);
  }

  function element(name, attributes, ...children) {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...children);
    return node;
  }

  /** Build the calculator inside `root`, which holds named shapes as JSON in a script. */
  function calculator(root, number) {
    const presets = JSON.parse(root.querySelector('script[type="application/json"]').textContent);
    const inputs = {};
    const outputs = {};
    let exact = { ...Object.values(presets)[0] };

    const choice = element("select", { id: `calculator-${number}-preset` });
    for (const name of Object.keys(presets)) choice.append(element("option", {}, name));
    choice.append(element("option", { value: "" }, "a shape of your own"));
    const tied = element("input", { type: "checkbox", id: `calculator-${number}-tied` });
    const controls = element("div", { class: "calculator-controls" },
      element("label", { for: choice.id }, "model"), choice, element("span", {}));
    for (const [key, label, values] of CONTROLS) {
      const id = `calculator-${number}-${key}`;
      inputs[key] = element("input", { id, type: "range", min: 0, max: values.length - 1, step: 1 });
      outputs[key] = element("output", { for: id });
      controls.append(element("label", { for: id }, label), inputs[key], outputs[key]);
    }
    controls.append(element("label", { for: tied.id }, "head tied to the embedding"), tied,
      element("span", {}));

    const cells = {};
    const body = element("tbody", {});
    for (const [key, label] of RESULTS) {
      cells[key] = element("td", {});
      body.append(element("tr", {}, element("th", { scope: "row", class: "words" }, label), cells[key]));
    }
    const results = element("div", { class: "data-table", "aria-live": "polite" },
      element("table", {}, element("caption", {}, "What it costs (modelled in your browser)"), body));
    root.replaceChildren(controls, results);

    function show() {
      const shape = fit({ ...exact, tied: tied.checked, bytesPerNumber: 2 });
      for (const [key, , values] of CONTROLS) {
        inputs[key].value = nearest(values, shape[key]);
        inputs[key].setAttribute("aria-valuetext", shape[key].toLocaleString("en"));
        outputs[key].textContent = shape[key].toLocaleString("en");
      }
      inputs.topK.disabled = shape.experts === 0;
      const counts = count(shape);
      for (const [key, , unit] of RESULTS) {
        cells[key].textContent =
          unit === "%" ? `${(100 * counts[key]).toFixed(1)} %` : si(counts[key], unit);
        if (unit !== "%") cells[key].title = counts[key].toLocaleString("en");
      }
    }
    choice.addEventListener("change", () => {
      if (!choice.value) return;
      exact = { ...presets[choice.value] };
      tied.checked = exact.tied;
      show();
    });
    tied.addEventListener("change", () => { choice.value = ""; show(); });
    for (const [key, , values] of CONTROLS) {
      inputs[key].addEventListener("input", () => {
        exact = { ...exact, [key]: values[Number(inputs[key].value)] };
        choice.value = "";
        show();
      });
    }
    tied.checked = exact.tied;
    show();
  }

  globalThis.tokenlife = { ...globalThis.tokenlife, count, si };
  if (typeof document !== "undefined") {
    document.addEventListener("DOMContentLoaded", () => {
      document.querySelectorAll("[data-calculator]").forEach(calculator);
    });
  }
})();
