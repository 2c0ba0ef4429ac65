// Elements, charts and the map. Text from the server becomes text nodes, never markup.

const SVG = "http://www.w3.org/2000/svg"
const GAP = 6 // seconds without a reading that a line does not bridge
const MAP_CELLS = 640
const PAGE_STATES = ["used", "cached", "free"]

const byId = (id) => document.getElementById(id)

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name)
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value)
  made.append(...children)
  return made
}

function drawn(name, attributes, ...children) {
  const made = document.createElementNS(SVG, name)
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value)
  made.append(...children)
  return made
}

// Replaces text only where it has changed, so that a selection and a screen reader's place stay.
function say(node, text) {
  if (node.textContent !== text) node.textContent = text
}

// `pairs`: [name, value] for a definition list.
function fillPairs(list, pairs, wrap) {
  const names = pairs.map(([name]) => name).join("\n")
  if (list.dataset.names !== names) {
    list.dataset.names = names
    list.replaceChildren(
      ...pairs.flatMap(([name]) => {
        const pair = [element("dt", {}, name), element("dd")]
        return wrap ? [element("div", {}, ...pair)] : pair
      }),
    )
  }
  const values = list.querySelectorAll("dd")
  pairs.forEach(([, value], index) => say(values[index], value))
}

// `lines`: up to two of { name, points: [[at, value or null]] }, over the time until `now`.
// The axis is round in `unit`.
function chart(figure, lines, now, shown, unit = 1) {
  if (!figure.firstChild) {
    figure.append(element("figcaption", { class: "legend" }), element("div", { class: "plot" }))
  }
  const [legend, plot] = figure.children
  const width = Math.max(200, plot.clientWidth)
  const height = Math.max(120, plot.clientHeight)
  const span = Math.min(HISTORY, Math.max(MINUTE, now - lines[0].points[0][0]))
  const box = { left: 0, right: width, top: 16, bottom: height - 18 }
  const top = roundTop(highest(lines) / unit) * unit
  const x = (at) => box.right - ((now - at) / span) * (box.right - box.left)
  const y = (value) => box.bottom - (value / top) * (box.bottom - box.top)
  const grid = [top, top / 2, 0].map((value) =>
    drawn("line", { class: "grid", x1: 0, x2: width, y1: y(value), y2: y(value) }),
  )
  const texts = [
    drawn("text", { x: 0, y: y(top) - 4 }, shown(top)),
    drawn("text", { x: 0, y: y(top / 2) - 4 }, shown(top / 2)),
    drawn("text", { x: 0, y: height - 3 }, `${shownAge(span)} ago`),
    drawn("text", { x: width, y: height - 3, "text-anchor": "end" }, "now"),
  ]
  const kinds = ["first", "second"]
  const paths = lines.map((line, index) =>
    drawn("path", { class: kinds[index], d: path(line.points, x, y) }),
  )
  plot.replaceChildren(drawn(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": described(lines, shown) },
    ...grid, ...paths.reverse(), ...texts,
  ))
  legend.replaceChildren(
    ...lines.map((line, index) => {
      const latest = line.points.at(-1)?.[1] ?? null
      const text = latest === null ? "–" : shown(latest)
      return element("span", {}, element("i", { class: kinds[index] }), line.name, element("b", {}, text))
    }),
  )
}

function highest(lines) {
  return Math.max(0, ...lines.flatMap((line) => line.points.map(([, value]) => value ?? 0)))
}

function path(points, x, y) {
  let before = null
  return points
    .map(([at, value]) => {
      if (value === null) {
        before = null
        return ""
      }
      const joined = before !== null && at - before <= GAP
      before = at
      return `${joined ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`
    })
    .join("")
}

function described(lines, shown) {
  return lines
    .map(({ name, points }) => {
      const values = points.map(([, value]) => value).filter((value) => value !== null)
      if (!values.length) return `${name}: no figures yet`
      return `${name}: now ${shown(values.at(-1))}, at most ${shown(Math.max(...values))} in the last 5 minutes`
    })
    .join("; ")
}

// The next of 1, 2, 4, 5, 8 or 10 times a power of ten: its half is round as well.
function roundTop(value) {
  if (value <= 2) return 2
  const size = 10 ** Math.floor(Math.log10(value))
  return [1, 2, 4, 5, 8, 10].find((factor) => factor * size >= value) * size
}

// One square a page, or for a round number of pages where there are many; ordered by state.
function pageMap(counts) {
  const total = counts.reduce((sum, count) => sum + count, 0)
  const each = total > MAP_CELLS ? roundEach(total / MAP_CELLS) : 1
  const cells = shares(counts, Math.ceil(total / each))
  const map = byId("pages")
  const wanted = PAGE_STATES.flatMap((state, index) => Array(cells[index]).fill(state))
  while (map.childElementCount > wanted.length) map.lastChild.remove()
  while (map.childElementCount < wanted.length) map.append(element("i"))
  wanted.forEach((state, index) => {
    if (map.children[index].className !== state) map.children[index].className = state
  })
  const names = PAGE_STATES.map((state, index) => `${shownNumber(counts[index])} ${state}`)
  map.setAttribute("aria-label", `KV pages: ${names.join(", ")}`)
  byId("pages-legend").replaceChildren(
    ...PAGE_STATES.map((state, index) =>
      element("span", {}, element("i", { class: `cell ${state}` }), state, element("b", {}, shownNumber(counts[index]))),
    ),
  )
  const size = each === 1 ? "1 page" : `${shownNumber(each)} pages`
  say(byId("pages-hint"), total ? `A square is ${size}, ordered by state. Cached pages hold prefixes that nobody uses now.` : "This engine has no KV pages.")
}

function roundEach(value) {
  const size = 10 ** Math.floor(Math.log10(value))
  return [1, 2, 5, 10].find((factor) => factor * size >= value) * size
}
