"use strict";
(() => {
  const all = (selector) => [...document.querySelectorAll(selector)];
  const cards = all(".card");
  const rows = new Map(all("#overview tr[data-for]").map((row) => [row.dataset.for, row]));
  const filter = document.getElementById("filter");
  const chips = all(".chip");

  function apply() {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const wanted = new Set(chips.filter((c) => c.getAttribute("aria-pressed") === "true").map((c) => c.dataset.status));
    let shown = 0;
    for (const card of cards) {
      const fits =
        (wanted.size === 0 || wanted.has(card.dataset.status)) &&
        words.every((word) => card.dataset.words.includes(word));
      card.hidden = !fits;
      rows.get(card.id).hidden = !fits;
      shown += fits;
    }
    const filtered = words.length > 0 || wanted.size > 0;
    document.getElementById("shown").textContent = filtered ? `${shown} of ${cards.length} shown` : "";
    document.getElementById("nothing").hidden = shown > 0 || cards.length === 0;
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
  for (const node of all("#overview [title]")) {
    node.dataset.tip = node.title;
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
