// The page's sections, from a model's history and the latest status.

const PERCENTILES = [50, 90, 99]
const LATENCIES = [
  ["Time to first token", "time_to_first_token_seconds"],
  ["Between tokens", "inter_token_latency_seconds"],
]
const STATES = {
  ready: ["ready", "ready"],
  "not ready": ["down", "not ready"],
  "engine down": ["down", "engine down"],
  unknown: ["unknown", "state unknown"],
}
const NOTICES = {
  "not ready": "Triton says that this model is not ready: it is loading, or has been unloaded.",
  "engine down": "The engine process is not running. Triton starts it again a few times; until then requests are refused.",
}
const DEFAULTS = { max_model_len: "the model's", max_num_batched_tokens: "the device's", block_size: "the device's" }

function showModel(status, model, history) {
  const [mark, text] = STATES[model.state]
  showState(mark, text)
  const seen = history.last && `The figures are those of ${shownTime(history.last.seen)}.`
  const problem = status.problem && [`${status.problem}.`, seen, "Trying again."]
  notice([problem, NOTICES[model.state]])
  showErrors(status.errors)
  fillPairs(byId("settings"), Object.entries(model.settings).map(([name, value]) => [name, shownSetting(name, value)]))
  if (history.last) showFigures(history, status.at)
}

function showState(mark, text) {
  const node = byId("state")
  node.dataset.state = mark
  say(node, text)
}

// Without anything that changes every second: it is read out.
function notice(sentences) {
  const text = sentences.flat().filter(Boolean).join(" ")
  byId("notice").hidden = !text
  say(byId("notice"), text)
}

function showFigures(history, now) {
  const { values, pace } = history.last
  const pages = PAGE_STATES.map((state) => values[`kv_pages_${state}`] ?? 0)
  const allPages = pages.reduce((sum, count) => sum + count, 0)
  fillPairs(byId("tiles"), [
    ["Tokens/s", shownNumber(pace)],
    ["Running", shownNumber(values.num_requests_running)],
    ["Waiting", shownNumber(values.num_requests_waiting)],
    ["Batch size", shownNumber(values.batch_size)],
    ["KV used", shownShare(pages[0], allPages)],
    ["Prefix hits", shownShare(values.prefix_cache_hits_total, values.prefix_cache_queries_total)],
  ], true)
  chart(byId("pace"), [{ name: "to clients", points: history.line((reading) => reading.pace) }], now, shownNumber)
  chart(byId("load"), [
    { name: "running", points: history.line(({ values }) => values.num_requests_running) },
    { name: "waiting", points: history.line(({ values }) => values.num_requests_waiting) },
  ], now, shownNumber)
  const memory = [
    { name: "resident", points: history.line(({ values }) => values.engine_memory_resident_bytes) },
    { name: "peak", points: history.line(({ values }) => values.engine_memory_peak_bytes) },
  ]
  chart(byId("memory"), memory, now, shownBytes, highest(memory) < 2 ** 30 ? 2 ** 20 : 2 ** 30)
  pageMap(pages)
  showLatency(history)
  showTotals(values)
}

function showLatency(history) {
  const { last, minuteAgo } = history
  const span = last.at - minuteAgo.at
  const groups = [
    [span > 55 ? "Last minute" : `Last ${Math.round(span)} s`, minuteAgo.histograms],
    ["Since the start", {}],
  ]
  const rows = groups.flatMap(([name, before]) => [
    element("tr", { class: "group" }, element("th", { colspan: 4, scope: "colgroup" }, name)),
    ...LATENCIES.map(([title, family]) => {
      const buckets = between(last.histograms[family] ?? [], before[family])
      const cells = PERCENTILES.map((p) => element("td", {}, shownSpan(quantile(buckets, p / 100))))
      return element("tr", {}, element("th", { scope: "row" }, title), ...cells)
    }),
  ])
  const heads = PERCENTILES.map((p) => element("th", { scope: "col" }, `p${p}`))
  byId("latency").replaceChildren(
    element("table", {}, element("thead", {}, element("tr", {}, element("td"), ...heads)), element("tbody", {}, ...rows)),
  )
}

function showTotals(values) {
  fillPairs(byId("totals"), [
    ["Answered", "request_success_total"],
    ["Cancelled", "request_cancellations_total"],
    ["Refused", "request_rejections_total"],
    ["Failed", "request_failures_total"],
    ["Prompt tokens", "prompt_tokens_total"],
    ["Generated tokens", "generation_tokens_total"],
    ["Preemptions", "num_preemptions_total"],
    ["Engine restarts", "engine_restarts_total"],
  ].map(([title, name]) => [title, shownNumber(values[name] ?? 0)]))
}

function showErrors(errors) {
  const items = errors.map(({ status, message, count, time, age }) => {
    const when = element("time", { datetime: new Date(time * 1000).toISOString() }, `${shownAge(age)} ago`)
    const often = count > 1 ? `, ${shownNumber(count)} times` : ""
    return element("li", {}, element("b", {}, String(status)), element("span", {}, message), element("small", {}, when, often))
  })
  byId("errors").replaceChildren(...(items.length ? items : [element("li", { class: "empty" }, "None since the start.")]))
}

function shownSetting(name, value) {
  if (value === null) return DEFAULTS[name] ?? "default"
  if (typeof value === "boolean") return value ? "on" : "off"
  return typeof value === "number" ? value.toLocaleString("en") : value
}
