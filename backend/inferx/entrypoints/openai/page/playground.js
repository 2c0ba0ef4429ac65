// A conversation with the model, streamed from /v1/chat/completions.

const messages = []
let asking = null // the AbortController of the answer that is being streamed

async function ask(model, question, maxTokens, temperature) {
  const answer = new AnswerView(question)
  const given = { role: "user", content: question }
  asking = new AbortController()
  busy(true)
  try {
    const response = await fetch("v1/chat/completions", {
      method: "POST",
      headers: { "content-type": "application/json", ...authorization() },
      body: JSON.stringify({
        model, messages: [...messages, given], stream: true,
        stream_options: { include_usage: true }, max_tokens: maxTokens, temperature,
      }),
      signal: asking.signal,
    })
    if (!response.ok) throw new Error(await problemOf(response))
    for await (const event of events(response.body)) answer.take(event)
    answer.end(null)
    messages.push(given, { role: "assistant", content: answer.text })
  } catch (error) {
    // What was cut off is forgotten with its question: the next answer does not build on it
    answer.end(error.name === "AbortError" ? "stopped" : error.message)
  } finally {
    asking = null
    busy(false)
  }
}

// The server's sentence; whatever stands in between may answer with something else.
async function problemOf(response) {
  try {
    return (await response.json()).error.message
  } catch {
    return `status ${response.status}`
  }
}

// The JSON of each event; raises the error that a stream may end with.
async function* events(body) {
  let rest = ""
  for await (const part of chunks(body.pipeThrough(new TextDecoderStream()))) {
    const lines = (rest + part).split("\n\n")
    rest = lines.pop()
    for (const line of lines) {
      const data = line.replace(/^data: /, "")
      if (data === "[DONE]") return
      const event = JSON.parse(data)
      if (event.error) throw new Error(event.error.message)
      yield event
    }
  }
  throw new Error("the connection ended before the answer did")
}

// Not every browser iterates over a stream by itself.
async function* chunks(stream) {
  const reader = stream.getReader()
  for (;;) {
    const { done, value } = await reader.read()
    if (done) return
    yield value
  }
}

class AnswerView {
  constructor(question) {
    this.text = ""
    this.node = document.createTextNode("")
    this.note = element("small", {}, "waiting for the first token")
    this.view = element("div", { class: "answer" }, element("p", {}, this.node), this.note)
    this.begun = performance.now()
    const log = byId("chat")
    if (!messages.length) log.querySelector(".empty")?.remove()
    log.setAttribute("aria-busy", "true") // read out when it is whole, not token by token
    log.append(element("p", { class: "question" }, question), this.view)
    log.scrollTop = log.scrollHeight
  }

  take(event) {
    if (event.usage) this.usage = event.usage
    const choice = event.choices[0]
    if (!choice) return
    if (choice.finish_reason) this.reason = choice.finish_reason
    const text = choice.delta.content
    if (!text) return
    if (this.first === undefined) {
      this.first = performance.now()
      say(this.note, "")
    }
    const log = byId("chat")
    const follows = log.scrollHeight - log.scrollTop - log.clientHeight < 40
    this.text += text
    this.node.appendData(text)
    if (follows) log.scrollTop = log.scrollHeight
  }

  end(problem) {
    const notes = []
    if (this.first !== undefined) {
      notes.push(`first token ${shownSpan({ seconds: (this.first - this.begun) / 1000 })}`)
    }
    const tokens = this.usage?.completion_tokens
    if (tokens !== undefined) notes.push(`${shownNumber(tokens)} tokens`)
    if (tokens > 1 && this.first !== undefined) {
      notes.push(`${shownNumber((tokens - 1) / ((performance.now() - this.first) / 1000))} tokens/s`)
    }
    if (this.reason === "length") notes.push("cut at the limit")
    if (problem) notes.push(problem)
    say(this.note, notes.join(" · "))
    if (problem && problem !== "stopped") this.note.className = "problem"
    this.view.dataset.ended = problem ?? this.reason ?? "stop"
    const log = byId("chat")
    log.setAttribute("aria-busy", "false")
    log.scrollTop = log.scrollHeight
  }
}

function busy(is) {
  byId("send").disabled = is
  byId("clear").disabled = is
  byId("stop").disabled = !is
}

function clearChat() {
  messages.length = 0
  byId("chat").replaceChildren(element("p", { class: "empty" }, "Ask the model something. What you write is sent to it and kept nowhere else."))
}

byId("ask").addEventListener("submit", (event) => {
  event.preventDefault()
  const field = byId("message")
  const question = field.value.trim()
  if (asking || !question) return
  field.value = ""
  ask(chosenModel(), question, byId("max-tokens").valueAsNumber, byId("temperature").valueAsNumber)
})
byId("message").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return
  event.preventDefault()
  byId("ask").requestSubmit()
})
byId("stop").addEventListener("click", () => {
  asking?.abort()
  byId("message").focus()
})
byId("clear").addEventListener("click", clearChat)
clearChat()
