// What a page shows and how it is reached: put behind a page, whose content it replaces by JSON.
const numbers = (text) => (text.match(/[\d.]+/g) || []).map(Number);
const channel = (c) => ((c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
const luminance = ([r, g, b]) =>
  0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
const over = ([r, g, b, a = 1], under, opacity = 1) =>
  [r, g, b].map((c, i) => a * opacity * c + (1 - a * opacity) * under[i]);
// As WCAG 2 has it.
const ratio = (a, b) => {
  const [low, high] = [luminance(a), luminance(b)].sort((x, y) => x - y);
  return (high + 0.05) / (low + 0.05);
};

const above = (element) => {
  const found = [];
  for (let e = element; e; e = e.parentElement) found.push(e);
  return found.reverse();
};
const ground = (element) =>
  above(element).reduce(
    (under, e) => over(numbers(getComputedStyle(e).backgroundColor), under), [255, 255, 255]);
const opacity = (element) =>
  above(element).reduce((whole, e) => whole * getComputedStyle(e).opacity, 1);

// The ground of text in a picture: the boxes that are drawn before it and hold its middle.
const behind = (text) => {
  const box = text.getBBox(), x = box.x + box.width / 2, y = box.y + box.height / 2;
  let found = ground(text.ownerSVGElement);
  for (const shape of text.parentElement.querySelectorAll("rect")) {
    const b = shape.getBBox();
    const before = shape.compareDocumentPosition(text) & Node.DOCUMENT_POSITION_FOLLOWING;
    if (before && b.x <= x && x <= b.x + b.width && b.y <= y && y <= b.y + b.height)
      found = over(numbers(getComputedStyle(shape).fill), found);
  }
  return found;
};

const hasText = (e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
const name = (e) => `${e.tagName}.${e.getAttribute("class") || ""} ${e.textContent.slice(0, 40)}`;
const isShown = (e) => e.checkVisibility({ contentVisibilityAuto: true });

const look = () => {
  const said = { loaded_ms: performance.now(), texts: 0, faint: [], stops: 0, unreached: [],
    unmarked: [], scrolled: [], hidden: [] };
  for (const details of document.querySelectorAll("details:not([open])")) {
    said.hidden.push(...[...details.children].slice(1).filter((e) => !isShown(e)).map(name));
    details.open = true;
  }
  for (const e of document.body.querySelectorAll("*")) {
    if (["SCRIPT", "STYLE", "title"].includes(e.tagName) || !hasText(e)) continue;
    const style = getComputedStyle(e), isDrawn = e instanceof SVGElement;
    const under = isDrawn ? behind(e) : ground(e);
    const ink = numbers(isDrawn ? style.fill : style.color);
    const contrast = ratio(over(ink, under, opacity(e)), under);
    said.texts += 1;
    if (contrast < 4.5) said.faint.push(`${contrast.toFixed(2)} ${name(e)}`);
  }
  for (const e of document.querySelectorAll("a, summary, [tabindex]")) {
    said.stops += 1;
    e.focus();
    const style = getComputedStyle(e), width = parseFloat(style.outlineWidth);
    const contrast = ratio(numbers(style.outlineColor), ground(e.parentElement));
    if (document.activeElement !== e || e.tabIndex < 0) said.unreached.push(name(e));
    else if (style.outlineStyle === "none" || width < 2 || contrast < 3)
      said.unmarked.push(name(e));
  }
  for (const e of document.body.querySelectorAll("*")) {
    const scrolls = ["auto", "scroll"].includes(getComputedStyle(e).overflowX);
    if (scrolls && e.scrollWidth > e.clientWidth + 1 && e.tabIndex < 0)
      said.scrolled.push(name(e));
  }
  document.body.innerHTML = "<pre id=said></pre>";
  document.getElementById("said").textContent = JSON.stringify(said);
};
// The mark of what has the focus is drawn where the page has it.
const wait = () => (document.hasFocus() ? look() : setTimeout(wait, 20));
onload = wait;
