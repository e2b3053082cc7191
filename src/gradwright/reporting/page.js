"use strict";
(() => {
  const all = (selector) => [...document.querySelectorAll(selector)];
  const cards = all(".card");
  const rows = all("tr[data-for]");
  document.body.classList.remove("plain");
  const filter = document.getElementById("filter");
  const chips = all(".chip");

  function apply() {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const wanted = new Set(chips.filter((c) => c.getAttribute("aria-pressed") === "true").map((c) => c.dataset.status));
    const fitting = new Set();
    for (const card of cards) {
      const fits =
        (wanted.size === 0 || wanted.has(card.dataset.status)) &&
        words.every((word) => card.dataset.words.includes(word));
      card.hidden = !fits;
      if (fits) fitting.add(card.id);
    }
    for (const row of rows) row.hidden = !fitting.has(row.dataset.for);
    const filtered = words.length > 0 || wanted.size > 0;
    document.getElementById("shown").textContent = filtered ? `${fitting.size} of ${cards.length} shown` : "";
    document.getElementById("nothing").hidden = fitting.size > 0 || cards.length === 0;
  }
  filter.addEventListener("input", apply);
  for (const chip of chips) {
    chip.addEventListener("click", () => {
      chip.setAttribute("aria-pressed", chip.getAttribute("aria-pressed") === "true" ? "false" : "true");
      apply();
    });
  }
  document.querySelector(".controls").addEventListener("submit", (event) => event.preventDefault());
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && document.activeElement !== filter && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      filter.focus();
    } else if (event.key === "Escape") {
      hide();
      if (document.activeElement === filter) {
        filter.value = "";
        apply();
      }
    }
  });

  // Rows are sorted by the column whose head is pressed, and cards follow the rows of the overview.
  function sort(head, table) {
    const down = head.getAttribute("aria-sort") === "ascending";
    for (const other of table.querySelectorAll("th[aria-sort]")) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const column = head.querySelector("button").dataset.column;
    const value = (row) => row.children[column]?.dataset.sort ?? null;
    const compare = (a, b) => (isNaN(a) || isNaN(b) ? a.localeCompare(b) : a - b);
    const body = table.tBodies[0];
    const pairs = [...body.rows].map((row) => [row, value(row)]);
    // What has no value in the column comes last in either order.
    pairs.sort(([, a], [, b]) => (a === null || b === null ? (a === null) - (b === null) : (down ? -1 : 1) * compare(a, b)));
    body.append(...pairs.map(([row]) => row));
    if (table.closest("#overview")) {
      document.getElementById("subjects").append(...pairs.map(([row]) => document.getElementById(row.dataset.for)));
    }
  }
  for (const button of all(".sort")) {
    button.addEventListener("click", () => sort(button.closest("th"), button.closest("table")));
  }

  // A table is one stop of the Tab key; the arrow keys move within it.
  for (const table of all(".scroll table")) {
    const links = [...table.querySelectorAll("tbody a, thead button")];
    const stop = (node) => links.forEach((link) => (link.tabIndex = link === node ? 0 : -1));
    stop(links[0]);
    table.addEventListener("focusin", (event) => links.includes(event.target) && stop(event.target));
    table.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
      if (!step || !links.includes(event.target)) return;
      const grid = [...table.rows].map((row) => links.filter((link) => row.contains(link) && link.offsetParent !== null));
      const lines = grid.filter((line) => line.length > 0);
      const row = lines.findIndex((line) => line.includes(event.target));
      let next = null;
      if (step[1]) {
        next = lines[row][lines[row].indexOf(event.target) + step[1]];
      } else if (lines[row + step[0]]) {
        const middle = (node) => node.getBoundingClientRect().left + node.offsetWidth / 2;
        const here = middle(event.target);
        next = lines[row + step[0]].reduce((a, b) => (Math.abs(middle(a) - here) <= Math.abs(middle(b) - here) ? a : b));
      }
      event.preventDefault();
      if (next) next.focus();
    });
  }

  // A link to something inside closed details opens them first.
  function reveal() {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (let node = target; node; node = node.parentElement) {
      if (node.tagName === "DETAILS") node.open = true;
    }
    if (target) target.scrollIntoView();
  }
  addEventListener("hashchange", reveal);
  if (location.hash) reveal();
  // A link to where the page already is changes no hash.
  document.addEventListener("click", (event) => {
    const link = event.target.closest('a[href^="#"]');
    if (link && link.getAttribute("href") === location.hash) reveal();
  });
  const openAll = (open) => cards.forEach((card) => (card.open = open));
  document.getElementById("open-all").addEventListener("click", () => openAll(true));
  document.getElementById("close-all").addEventListener("click", () => openAll(false));

  for (const button of all(".copy")) {
    button.addEventListener("click", async () => {
      const code = button.parentElement.querySelector("code");
      try {
        await navigator.clipboard.writeText(code.textContent);
      } catch {
        // Without a clipboard (an insecure address) the text is selected, ready to be copied by hand.
        getSelection().selectAllChildren(code);
        button.textContent = "Selected";
        return;
      }
      button.textContent = "Copied";
      setTimeout(() => (button.textContent = "Copy"), 1500);
    });
  }
  document.getElementById("save").addEventListener("click", () => {
    const text = JSON.stringify(JSON.parse(document.getElementById("report-data").textContent), null, 2);
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
    link.download = "gradwright.json";
    link.click();
    URL.revokeObjectURL(link.href);
  });

  // The browser's own tooltips are slow and do not come with the keyboard.
  const tip = document.getElementById("tip");
  for (const node of all(".scroll [title], .scroll .mark[href]")) {
    node.dataset.tip = node.title || node.getAttribute("aria-label");
    node.removeAttribute("title");
  }
  function show(event) {
    const node = event.target.closest ? event.target.closest("[data-tip]") : null;
    if (!node) return hide();
    tip.textContent = node.dataset.tip;
    tip.hidden = false;
    const place = node.getBoundingClientRect();
    const below = place.bottom + 8 + tip.offsetHeight < innerHeight;
    tip.style.top = `${below ? place.bottom + 8 : place.top - 8 - tip.offsetHeight}px`;
    tip.style.left = `${Math.max(8, Math.min(place.left, innerWidth - tip.offsetWidth - 8))}px`;
  }
  function hide() {
    tip.hidden = true;
  }
  document.addEventListener("mouseover", show);
  document.addEventListener("focusin", show);
  document.addEventListener("focusout", hide);
})();
