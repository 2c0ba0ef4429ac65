"""The OpenAI-compatible endpoint: HTTP and server-sent events in front of Triton's gRPC.

A request's road: `connection` (sockets), `door` (key, size, number of requests), `app` (paths),
`protocol` (JSON to typed requests), `generation` (a Triton request a prompt), `backlog` (deltas
that wait for the client), `chat` and `completions` (the answers' shapes), `streaming` (sending).
The status page is `page` (the document) and `status` (its figures, `/status.json`).
"""
