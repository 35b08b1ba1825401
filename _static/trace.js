/* The trace page: words become pieces, ids, tensors, messages, packets and bits in the reader's browser.
 *
 * The page holds the book's vocabulary and the sizes of some models as JSON; here the text is cut and
 * merged, and one data-parallel step is counted as tokenlife.jobs.trace counts it: a ring all-reduce
 * of float32 gradients among hosts on one switch, TCP over Ethernet. tests/test_trace_page.py holds
 * `tokenlife.trace.encode` and `tokenlife.trace.ledger` to the library's numbers.
 */
(function () {
  "use strict";
  const LINKS = 2; // up to the switch and down again
  const NUMBER = 4; // bytes of a float32

  /** Prepare a vocabulary: `pattern`, `merges` as [left, right] ids, `bytes`: the id of each byte.
   * @returns {(text: string) => {piece: string, ids: number[]}[]}
   */
  function encoder({ pattern, merges, products, bytes }) {
    const cut = new RegExp(pattern, "gu");
    const ranks = new Map(merges.map(([left, right], rank) => [left * 65536 + right, rank]));
    const utf8 = new TextEncoder();
    const merge = (ids) => {
      for (;;) {
        let best = Infinity, at = -1;
        for (let i = 0; i + 1 < ids.length; i += 1) {
          const rank = ranks.get(ids[i] * 65536 + ids[i + 1]) ?? Infinity;
          if (rank < best) [best, at] = [rank, i];
        }
        if (at < 0) return ids;
        ids.splice(at, 2, products[best]);
      }
    };
    return (text) => (text.match(cut) ?? []).map((piece) => (
      { piece, ids: merge([...utf8.encode(piece)].map((byte) => bytes[byte])) }
    ));
  }

  /** Frames of one message: as tokenlife.wire.framing counts them. */
  function frame(message, mtu, wire) {
    const overhead = wire.headers.reduce((sum, [, size]) => sum + size, 0);
    const payload = mtu - (overhead - wire.ethernet);
    const full = Math.floor(message / payload), rest = message % payload;
    const packets = full + (rest > 0);
    const fullSize = Math.max(payload + overhead, wire.smallest);
    const last = rest ? Math.max(rest + overhead, wire.smallest) : 0;
    const frames = full * fullSize + last;
    const acks = Math.ceil(packets / 2);
    return {
      packets, frames, padding: frames - message - packets * overhead, acks,
      ackBytes: acks * Math.max(overhead, wire.smallest),
    };
  }

  /** Count every level of a step: {level, bytes, overheads}, as the library's ledger.
   * @param {{textBytes: number, tokens: number, ranks: number, mtu: number}} job
   * @param {{parameters: number, hidden: number, vocab: number}} model
   */
  function ledger(job, model, wire) {
    const { ranks, mtu } = job;
    const owned = model.parameters * NUMBER;
    const handed = ranks * owned;
    const sent = 2 * (ranks - 1) * owned;
    // The buffer is cut into as many chunks as ranks, the first ones larger by one number; each chunk
    // goes around twice, and every message crosses two links.
    const share = Math.floor(model.parameters / ranks), larger = model.parameters % ranks;
    const sizes = [[share + 1, larger], [share, ranks - larger]].filter(([size, n]) => size && n);
    const total = { packets: 0, frames: 0, padding: 0, acks: 0, ackBytes: 0 };
    for (const [size, chunks] of sizes) {
      const one = frame(size * NUMBER, mtu, wire);
      for (const key of Object.keys(total)) total[key] += one[key] * chunks * 2 * (ranks - 1) * LINKS;
    }
    const headers = Object.fromEntries(wire.headers.map(([name, size]) => [name, size * total.packets]));
    const packets = total.frames + total.ackBytes;
    const silent = wire.silent * (total.packets + total.acks);
    return [
      { level: "text", bytes: job.textBytes, overheads: {} },
      { level: "ids", bytes: job.tokens * (model.vocab <= 65536 ? 2 : 4), overheads: {} },
      { level: "tensors", bytes: job.tokens * model.hidden * NUMBER, overheads: {} },
      { level: "operations", bytes: owned, overheads: {} },
      { level: "communication", bytes: handed, overheads: {} },
      { level: "messages", bytes: sent, overheads: { "replication by the algorithm": sent - handed } },
      { level: "flows", bytes: LINKS * sent, overheads: { hops: (LINKS - 1) * sent } },
      { level: "packets", bytes: packets,
        overheads: { ...headers, padding: total.padding, acknowledgements: total.ackBytes } },
      { level: "bits", bytes: packets + silent, overheads: { "preamble and gap": silent } },
    ];
  }

  function element(name, attributes, ...children) {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...children);
    return node;
  }

  function select(label, options) {
    const id = `trace-${label.replace(/\W/g, "-")}`;
    const box = element("select", { id });
    for (const [text, value] of options) box.append(element("option", { value }, text));
    return [box, element("label", { for: id }, `${label} `, box)];
  }

  const DECADES = 17; // of the axis: from 1 byte to 100 PB
  const visible = (piece) => piece.replaceAll(" ", "·").replaceAll("\n", "↵").replaceAll("\t", "→");
  const digits = (value) => value.toLocaleString("en");

  /** Build the page inside `root`, which holds its data as JSON in a script. */
  function page(root) {
    const data = JSON.parse(root.querySelector('script[type="application/json"]').textContent);
    const encode = encoder(data.vocabulary);
    const bits = Math.ceil(Math.log2(data.vocabulary.size));
    const words = element("textarea", { id: "trace-words", rows: 2, maxlength: 2000 });
    words.value = data.sentence;
    const [model, modelLabel] = select("model", Object.keys(data.models).map((name) => [name, name]));
    const [ranks, ranksLabel] = select("data-parallel ranks",
      data.ranks.map((n) => [digits(n), n]));
    const [mtu, mtuLabel] = select("MTU", data.mtus.map((n) => [`${digits(n)} bytes`, n]));
    const said = element("p", { role: "status", class: "trace-said" });
    const pieces = element("ol", { class: "trace-pieces", tabindex: 0, "aria-label": "pieces and their ids" });
    const body = element("tbody", {});
    const head = element("tr", {});
    for (const [name, style] of [["level", "words"], ["bytes", ""], ["1 B to 100 PB, each line ten times more", "words"]]) {
      head.append(element("th", { scope: "col", class: style }, name));
    }
    const table = element("div", { class: "data-table", role: "region", tabindex: 0, "aria-label": "the ledger" },
      element("table", { class: "trace-ledger" },
        element("caption", {}, "One training step, from your words to bits (modelled in your browser)"),
        element("thead", {}, head), body));
    root.replaceChildren(
      element("div", { class: "trace-controls" },
        element("label", { for: "trace-words" }, "words"), words, modelLabel, ranksLabel, mtuLabel),
      said, pieces, table);

    function row(name, bytes, level) {
      const shown = level ? digits(bytes) : `${bytes < 0 ? "−" : "+"}${digits(Math.abs(bytes))}`;
      const place = 100 * Math.log10(Math.max(1, bytes)) / DECADES;
      const dot = level && bytes > 0 ? [element("span", { class: "trace-dot", style: `left: ${place}%` })] : [];
      body.append(element("tr", level ? {} : { class: "trace-term" },
        element("th", { scope: "row", class: "words" }, name),
        element("td", {}, shown), element("td", { class: "trace-axis" }, ...dot)));
    }

    function show() {
      const text = words.value.replace(/[\uD800-\uDBFF](?![\uDC00-\uDFFF])|(?<![\uD800-\uDBFF])[\uDC00-\uDFFF]/g, "\uFFFD");
      const found = encode(text);
      const ids = found.flatMap((piece) => piece.ids);
      pieces.replaceChildren(...found.map(({ piece, ids: own }) => element("li", {
        title: own.map((id) => `${id} = ${id.toString(2).padStart(bits, "0")}`).join(", "),
      }, element("span", {}, visible(piece)), element("small", {}, own.join(" ")))));
      body.replaceChildren();
      const chosen = data.models[model.value];
      if (!ids.length || ids.length > chosen.positions) {
        said.textContent = ids.length
          ? `${digits(ids.length)} tokens, more than the ${digits(chosen.positions)} positions of ${model.value}: shorten the text.`
          : "An empty text has no tokens to follow: type some words.";
        return;
      }
      const textBytes = new TextEncoder().encode(text).length;
      const job = { textBytes, tokens: ids.length, ranks: Number(ranks.value), mtu: Number(mtu.value) };
      const levels = ledger(job, chosen, data.wire);
      for (const { level, bytes, overheads } of levels) {
        row(level, bytes, true);
        for (const [name, extra] of Object.entries(overheads)) if (extra) row(name, extra, false);
      }
      const per = 8 * levels.at(-1).bytes / (job.tokens * job.ranks);
      said.textContent = `${digits(ids.length)} tokens of the book's vocabulary, ${bits} bits each. ` +
        `A step of ${model.value} on ${digits(job.ranks)} ranks that all read these words puts ` +
        `${tokenlife.si(8 * levels.at(-1).bytes, "bit")} on the links: ${tokenlife.si(per, "bit")} for each token.`;
    }
    for (const control of [words, model, ranks, mtu]) control.addEventListener("input", show);
    show();
  }

  globalThis.tokenlife = { ...globalThis.tokenlife, trace: { encoder, ledger } };
  if (typeof document !== "undefined") {
    document.addEventListener("DOMContentLoaded", () => document.querySelectorAll("[data-trace]").forEach(page));
  }
})();
