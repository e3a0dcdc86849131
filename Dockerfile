# One image for runner, scheduler and workers; the chart says what each of them starts.
#
#     buildah bud --build-arg BASE=python:3.11-slim-bookworm -t mops:0.1.0 .
#
# A model's libraries go on top of it (examples/sir/Dockerfile), or into the bundle (docs/internals/dependencies.md).
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS build
RUN python -m venv /opt/mops
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
# For a network without the public index: --build-arg PIP_INDEX_URL=https://pypi.example.org/simple
ARG PIP_INDEX_URL
WORKDIR /src
COPY requirements-image.lock ./
RUN /opt/mops/bin/pip install --quiet --require-hashes --no-compile -r requirements-image.lock
COPY pyproject.toml README.md LICENSE ./
COPY runner ./runner
# Tests and headers of libraries are a quarter of their size, and nothing here runs or compiles them.
RUN /opt/mops/bin/pip install --quiet --no-deps --no-compile . \
 && find /opt/mops/lib -depth -type d \( -name tests -o -name include \) -path '*/site-packages/*' \
      -not -path '*/numpy/*' -exec rm -r {} + \
 && /opt/mops/bin/python -m compileall -q -j 0 /opt/mops/lib \
 && /opt/mops/bin/python -c 'import mops, distributed, adlfs, pyarrow.dataset, pyarrow.parquet, kr8s'

FROM ${BASE}
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="mops" \
      org.opencontainers.image.description="Runs simulation studies on Dask with memory bounded by configuration" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
COPY --from=build /opt/mops /opt/mops
# A fixed number, so that runAsNonRoot can be checked and volumes can be given to it. All that is written goes to
# /tmp, which the chart mounts: the root file system is read-only.
RUN groupadd --gid 10001 mops && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp mops
ENV PATH=/opt/mops/bin:$PATH HOME=/tmp XDG_CACHE_HOME=/tmp/cache \
    PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PYTHONFAULTHANDLER=1
USER 10001:10001
WORKDIR /tmp
# The first process of a container inherits what its children leave behind, and passes on signals: to the program alone,
# which ends its own processes in good order.
ENTRYPOINT ["dumb-init", "--single-child", "--"]
CMD ["mops", "--help"]
