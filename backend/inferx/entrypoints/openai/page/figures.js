// What the readings of one model say: rates, spans and quantiles. Times are the server's seconds
// on a clock that never jumps.

const HISTORY = 300
const RATE_SPAN = 4.5 // the least over which a rate is formed: counters are written once a second
const MINUTE = 60

class History {
  constructor() {
    this.readings = []
  }

  get last() {
    return this.readings.at(-1)
  }

  // Of a reading that was seen before, or without figures, nothing is kept.
  add(at, values, histograms) {
    const last = this.last
    if (!values || (last && at === last.at)) return
    if (last && (at < last.at || restarted(values, last.values))) this.readings = []
    const reading = { at, values, histograms, seen: new Date() }
    reading.pace = this.#rate(reading, "generation_tokens_total")
    this.readings.push(reading)
    while (at - this.readings[0].at > HISTORY) this.readings.shift()
  }

  // Per second up to `reading`; null before there is a span to form it over.
  #rate(reading, counter) {
    const before = this.readings.findLast((old) => reading.at - old.at >= RATE_SPAN)
    if (!before || reading.at - before.at > 3 * RATE_SPAN) return null
    return (reading.values[counter] - before.values[counter]) / (reading.at - before.at)
  }

  // The oldest reading of the last minute.
  get minuteAgo() {
    return this.readings.find((old) => this.last.at - old.at <= MINUTE)
  }

  line(value) {
    return this.readings.map((reading) => [reading.at, value(reading)])
  }
}

function restarted(now, before) {
  return Object.keys(before).some((name) => name.endsWith("_total") && now[name] < before[name])
}

// Cumulative counts by upper bound, less those of an earlier reading.
function between(now, before = []) {
  return now.map(([bound, count], index) => [bound ?? Infinity, count - (before[index]?.[1] ?? 0)])
}

// As Prometheus' histogram_quantile: even within a bucket. Beyond the last bound, that bound with
// `over`. Null without observations.
function quantile(buckets, share) {
  const total = buckets.at(-1)?.[1] ?? 0
  if (total <= 0) return null
  const rank = share * total
  const index = buckets.findIndex(([, count]) => count >= rank)
  const [lower, below] = index > 0 ? buckets[index - 1] : [0, 0]
  const [upper, count] = buckets[index]
  if (upper === Infinity) return { seconds: lower, over: true }
  const part = count > below ? (rank - below) / (count - below) : 1
  return { seconds: lower + (upper - lower) * part, over: false }
}

// How many of `cells` stand for each count; what is there has one at least.
function shares(counts, cells) {
  const total = counts.reduce((sum, count) => sum + count, 0)
  const found = counts.map((count) => count && Math.max(1, Math.round((count / total) * cells)))
  while (found.reduce((sum, count) => sum + count, 0) !== cells) {
    const excess = found.reduce((sum, count) => sum + count, 0) - cells
    found[found.indexOf(Math.max(...found))] -= Math.sign(excess)
  }
  return found
}

function shownNumber(value) {
  if (value === null || value === undefined) return "–"
  return value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 1 : 0 })
}

function shownSpan(found) {
  if (!found) return "–"
  const { seconds, over } = found
  const text = seconds < 0.9995
    ? `${(seconds * 1000).toFixed(seconds < 0.00995 ? 1 : 0)} ms`
    : `${seconds.toFixed(seconds < 9.995 ? 2 : 1)} s`
  return over ? `> ${text}` : text
}

function shownShare(part, whole) {
  return whole > 0 ? `${((100 * part) / whole).toFixed(part > 0 && part < whole / 10 ? 1 : 0)}%` : "–"
}

function shownBytes(bytes) {
  return bytes < 2 ** 30
    ? `${Math.round(bytes / 2 ** 20).toLocaleString("en")} MiB`
    : `${(bytes / 2 ** 30).toFixed(2)} GiB`
}

function shownTime(date) {
  return date.toLocaleTimeString("en", { hourCycle: "h23" })
}

function shownAge(seconds) {
  if (seconds < 100) return `${Math.round(seconds)} s`
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`
  return `${Math.round(seconds / 3600)} h`
}
