# InferX on NVIDIA's Triton container. Mount a model repository at /models:
#   docker build -t inferx .
#   docker run --rm --gpus all --shm-size=1g --stop-timeout=40 \
#     -p 127.0.0.1:8000-8002:8000-8002 \
#     -v "$PWD/models:/models:ro" inferx

FROM python:3.12-slim-bookworm AS wheel
WORKDIR /source
COPY ci/constraints.txt ci/constraints.txt
COPY pyproject.toml README.md LICENSE ./
COPY backend backend
COPY kernels kernels
COPY client client
# The build's own packages are held to the same versions.
ENV PIP_CONSTRAINT=/source/ci/constraints.txt
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM nvcr.io/nvidia/tritonserver:25.12-py3
COPY ci/constraints.txt /opt/inferx/constraints.txt
COPY --from=wheel /wheels /opt/inferx/wheels
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# An environment of its own: the system's packages belong to the system's package manager.
# Triton's Python backend runs the first python3 on PATH.
RUN python3 -m venv --without-pip /opt/inferx/env \
    && wheel="$(ls /opt/inferx/wheels/inferx-*.whl)" \
    && pip --python /opt/inferx/env/bin/python install --no-cache-dir \
        --constraint /opt/inferx/constraints.txt "${wheel}[gpu,openai,traces]"
ENV PATH=/opt/inferx/env/bin:${PATH}
COPY backend/model.py /opt/tritonserver/backends/inferx/model.py
# What is derived from a model, its tokenizer file for one, is kept here.
RUN install -d -o triton-server -g triton-server /var/cache/inferx /models
ENV XDG_CACHE_HOME=/var/cache/inferx \
    INFERX_MODEL_ROOTS=/models
# triton-server, by number so that an orchestrator can check that it is not root.
USER 1000:1000
WORKDIR /models
EXPOSE 8000 8001 8002
HEALTHCHECK --interval=10s --timeout=5s --start-period=10m --retries=3 \
    CMD ["python3", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/v2/health/ready', timeout=4)"]
# Callers' traces and clients' pings pass, as in `inferx serve`.
CMD ["tritonserver", "--model-repository=/models", "--exit-timeout-secs=30", \
     "--grpc-header-forward-pattern=traceparent", \
     "--grpc-http2-min-recv-ping-interval-without-data=1000"]
