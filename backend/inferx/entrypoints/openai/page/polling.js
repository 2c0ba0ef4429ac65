// Asks for the status once a second while the page is seen, and passes it on.

const INTERVAL = 1000 // milliseconds
const LONGEST_WAIT = 8000 // between two tries of a server that does not answer
const TIMEOUT = 8000

const histories = new Map() // by model
let key = null // in memory alone
let status = null
let heard = null // Date of the last status
let failures = 0
let timer = null
let polling = false

function authorization() {
  return key === null ? {} : { authorization: `Bearer ${key}` }
}

function chosenModel() {
  return byId("model-select").value
}

async function poll() {
  if (polling || document.hidden) return
  polling = true
  clearTimeout(timer)
  try {
    const response = await fetch("status.json", {
      headers: authorization(), cache: "no-store", signal: AbortSignal.timeout(TIMEOUT),
    })
    if (response.status === 401) {
      askForKey(key === null ? "" : "The server does not take this key.")
      return
    }
    if (!response.ok) throw new Error(`status ${response.status}`)
    take(await response.json())
    failures = 0
  } catch {
    failures += 1
    showFailure()
  } finally {
    polling = false
  }
  timer = setTimeout(poll, failures ? Math.min(INTERVAL * 2 ** failures, LONGEST_WAIT) : INTERVAL)
}

function take(found) {
  status = found
  heard = new Date()
  byId("key-form").hidden = true
  byId("main").hidden = false
  for (const { name, values, histograms } of status.models) {
    if (!histories.has(name)) histories.set(name, new History())
    histories.get(name).add(status.at, values, histograms)
  }
  offerModels(status.models.map(({ name }) => name))
  say(byId("version"), status.version)
  show()
}

function show() {
  const model = status.models.find(({ name }) => name === chosenModel())
  document.title = `${model.name} · ${model.state} · InferX`
  say(byId("model-name"), model.name)
  showModel(status, model, histories.get(model.name))
}

function showFailure() {
  const since = heard ? `has not answered since ${shownTime(heard)}` : "does not answer"
  document.title = "no answer · InferX"
  showState("stale", "no answer")
  notice([`The server ${since}. Trying again.`])
}

function offerModels(names) {
  const select = byId("model-select")
  const offered = Array.from(select.options, (option) => option.value)
  if (offered.join("\n") !== names.join("\n")) {
    const chosen = select.value
    select.replaceChildren(...names.map((name) => element("option", { value: name }, name)))
    if (names.includes(chosen)) select.value = chosen
  }
  byId("model-choice").hidden = names.length < 2
  byId("model-name").hidden = names.length > 1
}

function askForKey(problem) {
  key = null
  byId("main").hidden = true
  byId("key-form").hidden = false
  say(byId("key-problem"), problem)
  showState("waiting", "key needed")
  notice([])
  byId("key").focus()
}

byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault()
  const given = byId("key").value.trim()
  if (!/^[\x21-\x7e]+$/.test(given)) {
    say(byId("key-problem"), "A key has letters, digits and punctuation, and no spaces.")
    return
  }
  key = given
  byId("key").value = ""
  say(byId("key-problem"), "")
  poll()
})
byId("model-select").addEventListener("change", () => {
  asking?.abort()
  clearChat()
  show()
})
document.addEventListener("visibilitychange", poll)
window.addEventListener("resize", () => status && !byId("main").hidden && show())
if (document.documentElement.dataset.key === "required") askForKey("")
else poll()
