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
      await window.vegaEmbed(canvas, spec, {
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
