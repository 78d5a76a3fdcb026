# docker build --build-arg VERSION="$(git describe --tags --always --dirty)" -t reconciler .
# deploy/image.sh does the same without Docker and checks the result.

FROM --platform=$BUILDPLATFORM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG TARGETOS TARGETARCH VERSION
RUN GOOS=$TARGETOS GOARCH=$TARGETARCH sh deploy/build.sh /out/reconciler "$VERSION"

# No shell, no package manager; CA certificates, time zones and the user 65532.
FROM gcr.io/distroless/static-debian12:nonroot
COPY --from=build /out/reconciler /reconciler
USER 65532:65532
ENV RECONCILER_CONFIG=/etc/reconciler/reconciler.yaml
# The default, 127.0.0.1, cannot be reached from outside of a container. This goes before server.listen of the file.
ENV RECONCILER_SERVER_LISTEN=:9464
EXPOSE 9464
# Docker alone asks this; Kubernetes has probes of its own. It says nothing of the database: a restart would not bring it back.
HEALTHCHECK --interval=30s --timeout=5s --start-period=10s --retries=3 CMD ["/reconciler", "healthcheck"]
ENTRYPOINT ["/reconciler"]
CMD ["serve"]
