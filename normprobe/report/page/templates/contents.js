// The contents follow the reader, and name the parts of the run that is read.

const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
for (const [name, link] of links) {
  const parts = [...document.getElementById(name).querySelectorAll("h3")];
  const list = parts.length ? make(link.parentElement, "ol") : null;
  for (const [place, part] of parts.entries()) {
    part.id = `${name}-${place + 1}`;
    make(make(list, "li"), "a", { href: `#${part.id}` }, part.textContent);
  }
}
const seen = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries)
    if (isIntersecting) {
      for (const link of links.values()) link.removeAttribute("aria-current");
      const link = links.get(target.id), strip = document.querySelector("nav > ol");
      link.setAttribute("aria-current", "true");
      strip.scrollTo({ left: link.offsetLeft - 24, top: link.offsetTop - 80 });
    }
}, { rootMargin: "-30% 0px -65% 0px" });
for (const name of links.keys()) seen.observe(document.getElementById(name));
