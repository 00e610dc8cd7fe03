# The same image as `make image` builds without Docker: the files and their places are those of hack/image.
FROM golang:1.26-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=dev
RUN go_build() { CGO_ENABLED=0 GOFLAGS=-buildvcs=false go build -trimpath "$@"; } \
 && go_build -ldflags "-s -w -X github.com/tortie-net/tortie/internal/version.Version=${VERSION}" -o /out/usr/bin/ ./cmd/tortie \
 && ln -s tortie /out/usr/bin/node && ln -s tortie /out/usr/bin/install \
 && go_build -ldflags "-s -w -X github.com/tortie-net/tortie/internal/version.Version=${VERSION}" -o /out/opt/cni/bin/ ./cmd/calico ./cmd/calico-ipam \
 && go_build -ldflags "-s -w" -o /out/opt/cni/bin/ \
      github.com/containernetworking/plugins/plugins/main/loopback \
      github.com/containernetworking/plugins/plugins/meta/bandwidth \
      github.com/containernetworking/plugins/plugins/meta/portmap \
 && install -D -m 0644 /etc/ssl/certs/ca-certificates.crt /out/etc/ssl/certs/ca-certificates.crt

FROM scratch
ARG VERSION=dev
ARG REVISION=
LABEL org.opencontainers.image.title="tortie" \
      org.opencontainers.image.description="Calico-compatible pod network for Kubernetes" \
      org.opencontainers.image.source="https://github.com/tortie-net/tortie" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
ENV PATH=/usr/bin:/opt/cni/bin
COPY --from=build /out/ /
ENTRYPOINT ["/usr/bin/node"]
