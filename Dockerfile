# CometMQ in one image; the command selects the process (namesrv, broker, ...).
#
#   scripts/image       builds it: ./wheels with the project and its dependencies, whose hashes are
#                       checked (requirements.lock), the base image, and this file, without a network
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS install
COPY wheels /wheels
RUN python3 -m venv /opt/cometmq \
    && /opt/cometmq/bin/pip install --no-index --no-cache-dir --find-links /wheels 'cometmq[oidc]' \
    && { ! ls /wheels/cometmq_native-*.whl >/dev/null 2>&1 \
        || /opt/cometmq/bin/pip install --no-index --no-cache-dir --find-links /wheels cometmq-native; } \
    && /opt/cometmq/bin/pip uninstall -y -q pip setuptools

FROM ${BASE}
COPY --from=install /opt/cometmq /opt/cometmq
COPY deploy/image/ready /usr/local/bin/cometmq-ready
ENV PATH=/opt/cometmq/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONUNBUFFERED=1
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin cometmq \
    && mkdir /data && chown cometmq /data
USER cometmq
WORKDIR /data
VOLUME /data
EXPOSE 8081 9876 5557
ENTRYPOINT ["cometmq"]
CMD ["--help"]
