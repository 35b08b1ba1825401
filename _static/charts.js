// Draws each <figure class="chart"> from the specification it holds. The library that draws (0.9 MB)
// is fetched once, and only on a page whose reader comes near a chart. No formula lives here.
(() => {
  const library = new URL("../vega/vega.js", document.currentScript.src).href;
  let loading;

  const load = () =>
    (loading ??= new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.src = library;
      script.onload = () => (window.vegaEmbed ? resolve() : reject(new Error("vega.js is damaged")));
      script.onerror = () => reject(new Error("vega.js is missing beside this page"));
      document.head.append(script);
    }));

  // A chart wider than the page scrolls inside its box; then the box must be reachable by keyboard.
  const reachable = (canvas) => {
    if (canvas.scrollWidth > canvas.clientWidth) canvas.tabIndex = 0;
    else canvas.removeAttribute("tabindex");
  };

  // A title is the chart's message: on a narrow page it takes as many lines as it needs.
  function wrap(text, room, font) {
    const pen = document.createElement("canvas").getContext("2d");
    pen.font = font;
    const lines = [];
    for (const word of [text].flat().join(" ").split(" ")) {
      const longer = `${lines.at(-1)} ${word}`;
      if (lines.length && pen.measureText(longer).width <= room) lines[lines.length - 1] = longer;
      else lines.push(word);
    }
    return lines;
  }

  function wrapTitles(spec, canvas) {
    if (!spec.config?.title) return spec;
    const { fontSize, fontWeight, subtitleFontSize } = spec.config.title;
    const room = canvas.clientWidth - 24;
    const family = getComputedStyle(canvas).fontFamily;
    for (const part of [spec, ...(spec.layer ?? [])]) {
      if (!part.title) continue;
      const title = part.title.text ? part.title : { text: part.title };
      part.title = { ...title, text: wrap(title.text, room, `${fontWeight} ${fontSize}px ${family}`) };
      if (title.subtitle) part.title.subtitle = wrap(title.subtitle, room, `${subtitleFontSize}px ${family}`);
    }
    return spec;
  }

  // Vega follows the window only, and may measure too early; a sidebar or a fold changes the width too.
  function follow(canvas) {
    let width = canvas.clientWidth;
    new ResizeObserver(() => {
      if (canvas.clientWidth !== width) {
        width = canvas.clientWidth;
        requestAnimationFrame(() => window.dispatchEvent(new Event("resize")));
      }
      reachable(canvas);
    }).observe(canvas);
  }

  async function draw(figure) {
    const canvas = figure.querySelector(".chart-canvas");
    const spec = JSON.parse(figure.querySelector("script").textContent);
    try {
      await load();
      await window.vegaEmbed(canvas, wrapTitles(spec, canvas), {
        mode: "vega-lite",
        renderer: "svg",
        actions: false,
        defaultStyle: false,
        config: { font: getComputedStyle(figure).fontFamily },
      });
      canvas.style.minHeight = "";
      follow(canvas);
      figure.dataset.drawn = "yes";
    } catch (error) {
      figure.dataset.drawn = "no";
      canvas.style.minHeight = "";
      canvas.setAttribute("role", "alert");
      canvas.textContent = `This chart could not be drawn (${error.message}). It shows: ${spec.description}`;
    }
  }

  document.addEventListener("DOMContentLoaded", () => {
    const near = new IntersectionObserver(
      (entries) =>
        entries.filter((entry) => entry.isIntersecting).forEach((entry) => {
          near.unobserve(entry.target);
          draw(entry.target);
        }),
      { rootMargin: "600px" },
    );
    document.querySelectorAll("figure.chart").forEach((figure) => near.observe(figure));
  });
})();
