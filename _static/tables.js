// Sorts a table by the column whose name was clicked: numbers by value, words by alphabet.
document.addEventListener("DOMContentLoaded", () => {
  const key = (cell) => cell.dataset.sort ?? cell.textContent;
  const compare = (a, b) => a - b || String(a).localeCompare(String(b), "en", { numeric: true });
  for (const table of document.querySelectorAll("table[data-sortable]")) {
    const heads = [...table.querySelectorAll("thead th")];
    heads.forEach((head, column) =>
      head.querySelector("button").addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const rows = [...table.tBodies[0].rows];
        rows.sort((a, b) => compare(key(a.cells[column]), key(b.cells[column])) * (down ? -1 : 1));
        table.tBodies[0].append(...rows);
      }),
    );
  }
});
