# The executor and, on top of it, what makes the default model. From the repository's root:
#   docker build -f deploy/executor.Dockerfile --target executor .
#   docker build -f deploy/executor.Dockerfile --target model .

FROM python:3.11-slim AS dependencies
# Where torch comes from. The default has builds for the CPU; empty is the index of everything else, whose builds are
# for NVIDIA GPUs on x86-64 Linux, and gigabytes larger.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN python -m venv --without-pip /opt/citybus
WORKDIR /src
COPY deploy/constraints.txt ./
RUN --mount=type=cache,target=/root/.cache/pip \
    test -z "$TORCH_INDEX" \
    || pip --python /opt/citybus/bin/python install --root-user-action=ignore -c constraints.txt \
    --no-deps --index-url "$TORCH_INDEX" torch
# pyproject.toml alone is a package without modules: a change of ours leaves this layer as it is.
COPY pyproject.toml README.md ./
RUN --mount=type=cache,target=/root/.cache/pip \
    pip --python /opt/citybus/bin/python install --root-user-action=ignore -c constraints.txt '.[executor]' \
    && cd /opt/citybus/lib/python3.11/site-packages/torch && rm -rf include test  # only building extensions needs them

FROM python:3.11-slim AS wheel
# For the native library of kernels/cpu; the images that run need no compiler.
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
COPY . /src
RUN --mount=type=cache,target=/root/.cache/pip pip wheel --no-deps --wheel-dir /dist /src

FROM python:3.11-slim AS executor
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /tmp citybus \
    && install -d -o citybus -g citybus /models /kernels \
    && install -d -o citybus -g citybus -m 0700 /credentials
# Triton, which comes with torch for GPUs, compiles what launches its kernels.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN test -n "$TORCH_INDEX" \
    || { apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*; }
COPY --from=dependencies /opt/citybus /opt/citybus
RUN --mount=type=bind,from=wheel,source=/dist,target=/dist \
    pip --python /opt/citybus/bin/python --no-cache-dir install --root-user-action=ignore --no-deps --force-reinstall \
    /dist/*.whl
ENV PATH=/opt/citybus/bin:$PATH \
    GRPC_VERBOSITY=NONE \
    PYTHONSAFEPATH=1 \
    CITYBUS_EXECUTOR_LISTEN=0.0.0.0:50061
USER 10001:10001
EXPOSE 50061
HEALTHCHECK --interval=10s --timeout=8s --start-period=120s --start-interval=1s --retries=3 \
    CMD ["citybus", "health", "--address", "127.0.0.1:50061", "--timeout", "5"]
ENTRYPOINT ["python", "-m", "executor_svc"]

FROM executor AS model
USER root
RUN --mount=type=bind,source=deploy/constraints.txt,target=/constraints.txt \
    pip --python /opt/citybus/bin/python --no-cache-dir install --root-user-action=ignore -c /constraints.txt \
    pip 'citybus[convert]'
ENV CITYBUS_MODELS_DIR=/models \
    PIP_NO_CACHE_DIR=1
USER 10001:10001
HEALTHCHECK NONE
ENTRYPOINT ["citybus", "model"]
CMD ["add", "default"]
