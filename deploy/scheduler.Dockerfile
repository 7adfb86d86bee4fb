# The scheduler, without torch. From the repository's root: docker build -f deploy/scheduler.Dockerfile .

FROM python:3.11-slim AS dependencies
RUN python -m venv --without-pip /opt/citybus
WORKDIR /src
# pyproject.toml alone is a package without modules: a change of ours leaves this layer as it is.
COPY pyproject.toml README.md deploy/constraints.txt ./
RUN --mount=type=cache,target=/root/.cache/pip \
    pip --python /opt/citybus/bin/python install --root-user-action=ignore -c constraints.txt '.[scheduler]'

FROM python:3.11-slim AS wheel
COPY . /src
RUN --mount=type=cache,target=/root/.cache/pip pip wheel --no-deps --wheel-dir /dist /src

FROM python:3.11-slim
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /tmp citybus \
    && install -d -o citybus -g citybus /models /var/lib/citybus \
    && install -d -o citybus -g citybus -m 0700 /credentials
COPY --from=dependencies /opt/citybus /opt/citybus
RUN --mount=type=bind,from=wheel,source=/dist,target=/dist \
    pip --python /opt/citybus/bin/python --no-cache-dir install --root-user-action=ignore --no-deps --force-reinstall \
    /dist/*.whl
ENV PATH=/opt/citybus/bin:$PATH \
    GRPC_VERBOSITY=NONE \
    PYTHONSAFEPATH=1 \
    CITYBUS_SCHEDULER_LISTEN=0.0.0.0:50051 \
    CITYBUS_SCHEDULER_ADMIN_LISTEN=0.0.0.0:50052 \
    CITYBUS_SCHEDULER_JOURNAL=/var/lib/citybus/scheduler.journal
USER 10001:10001
EXPOSE 50051 50052
HEALTHCHECK --interval=10s --timeout=8s --start-period=60s --start-interval=1s --retries=3 \
    CMD ["citybus", "health", "--address", "127.0.0.1:50051", "--timeout", "5"]
ENTRYPOINT ["python", "-m", "scheduler_svc"]
