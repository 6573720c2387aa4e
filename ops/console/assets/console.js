// Keeps a page up to date. Without it the page is what it was when it was loaded.
(() => {
  "use strict";
  const main = document.getElementById("main");
  const live = document.getElementById("live");
  const find = document.getElementById("find");

  // patch makes the children of one node like those of another, and leaves alone what is alike: focus, selection and scrolling stay.
  const patch = (old, now) => {
    const were = [...old.childNodes], are = [...now.childNodes];
    are.forEach((n, i) => {
      const o = were[i];
      if (!o) {
        old.append(n);
      } else if (o.nodeType !== n.nodeType || o.nodeName !== n.nodeName) {
        o.replaceWith(n);
      } else if (n.nodeType === Node.ELEMENT_NODE) {
        attributes(o, n);
        if (o.nodeName !== "INPUT" && o.nodeName !== "TEXTAREA") patch(o, n);
      } else if (o.nodeValue !== n.nodeValue) {
        o.nodeValue = n.nodeValue;
      }
    });
    were.slice(are.length).forEach((o) => o.remove());
  };

  const attributes = (old, now) => {
    for (const { name } of [...old.attributes]) if (!now.hasAttribute(name)) old.removeAttribute(name);
    for (const { name, value } of now.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  };

  const show = (html) => {
    const box = document.createElement("template");
    box.innerHTML = html;
    patch(main, box.content);
  };

  let stream = null, told = null, late = 0;
  const state = (text, cut) => {
    if (live.textContent !== text) live.textContent = text;
    live.classList.toggle("cut", cut);
    document.body.classList.toggle("cut", cut);
  };

  const close = () => {
    clearTimeout(late);
    late = 0;
    if (stream) stream.close();
    stream = null;
  };

  // open asks for the page's own address as a stream of events. Browsers come back by themselves, unless they were refused.
  const open = () => {
    close();
    stream = new EventSource(location.href.split("#")[0]);
    stream.onmessage = (e) => {
      told = new Date();
      clearTimeout(late);
      late = 0;
      show(e.data);
      state("Live", false);
    };
    stream.onerror = () => {
      // A stream that ended in time is soon there again.
      late ||= setTimeout(() => state(told ? "Not live since " + told.toISOString().slice(11, 19) : "Not live", true), 3000);
      if (stream && stream.readyState === EventSource.CLOSED) {
        stream = null;
        setTimeout(() => { if (!stream && !document.hidden) open(); }, 5000);
      }
    };
  };

  if (live && !document.body.hasAttribute("data-quiet") && window.EventSource) {
    // Browsers allow few connections to a server: pages that nobody sees give theirs back.
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) {
        close();
        state("Paused", false);
      } else {
        open();
      }
    });
    addEventListener("pagehide", close);
    addEventListener("pageshow", (e) => { if (e.persisted) open(); });
    if (!document.hidden) open();
  }

  // "/" goes to the box of exact keys, as in many places.
  addEventListener("keydown", (e) => {
    const typing = e.target instanceof Element && e.target.closest("input, textarea, select");
    if (e.key === "/" && !typing && !e.ctrlKey && !e.metaKey && !e.altKey && find) {
      e.preventDefault();
      find.focus();
      find.select();
    }
  });
})();
