# The same image as `make image` builds without Docker: the files are made by the same command, hack/image, and are the same.
#
#   docker buildx build --build-arg VERSION=... --build-arg REVISION=$(git rev-parse HEAD) --platform linux/amd64,linux/arm64 .
FROM --platform=$BUILDPLATFORM golang:1.26-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
COPY hack/go.mod hack/go.sum hack/
RUN go mod download && go -C hack mod download
COPY . .
ARG TARGETARCH
ARG VERSION=dev
ARG REVISION=
ARG CREATED=1970-01-01T00:00:00Z
RUN make --no-print-directory tree ARCH="${TARGETARCH}" VERSION="${VERSION}" REVISION="${REVISION}" CREATED="${CREATED}"

FROM scratch
ARG VERSION=dev
ARG REVISION=
ARG CREATED=1970-01-01T00:00:00Z
LABEL org.opencontainers.image.title="tortie" \
      org.opencontainers.image.description="Calico-compatible pod network for Kubernetes" \
      org.opencontainers.image.source="https://github.com/tortie-net/tortie" \
      org.opencontainers.image.documentation="https://github.com/tortie-net/tortie/tree/main/docs" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}"
ENV PATH=/usr/bin:/opt/cni/bin
COPY --from=build /src/dist/tree/ /
USER 65532:65532
ENTRYPOINT ["/usr/bin/node"]
