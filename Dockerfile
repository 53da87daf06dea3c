# Images of Kiln: `cpu` and `cuda`. docs/containers.md says how they are built and used.
#
#   docker build --target cuda -t kiln:cuda .
#   docker build --target cpu -t kiln:cpu --build-arg PROGRAM=archive --build-arg ARCHIVE=dist/kiln.tar.xz .
#
# Both hold the same program. The second one adds cuBLAS and cuDNN, which the program loads when it runs.

# The origin of the program: `source` compiles it, `archive` takes it from an archive of a release.
ARG PROGRAM=source

FROM rust:1.95-slim-trixie AS program-source
# `cuda` compiles the kernels for NVIDIA's GPUs, with a compiler from PyPI. Empty: a program for CPUs alone, which builds sooner.
ARG FEATURES=cuda
ARG KILN_CUDA_ARCHS=75,80,86,89,90,100,120
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends g++ python3 python3-pip && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY . .
# The system's Python refuses packages unless it is asked; this stage has no other use for it.
ENV PIP_BREAK_SYSTEM_PACKAGES=1
RUN case ",$FEATURES," in *,cuda,*) toolkit=$(scripts/cuda-toolkit.sh); eval "$toolkit" ;; esac; \
    cargo build --release --locked --package kiln-cli --bin kiln --features "$FEATURES"; \
    install -D --mode=0755 --strip target/release/kiln /program/kiln

FROM debian:trixie-slim AS program-archive
# A path below the build's folder. SHA256 is the archive's line in SHA256SUMS; without it nothing is compared.
ARG ARCHIVE=dist/kiln.tar.xz
ARG SHA256=
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends xz-utils && rm -rf /var/lib/apt/lists/*
COPY ${ARCHIVE} /archive
RUN if [[ -n "$SHA256" ]]; then echo "$SHA256  /archive" | sha256sum --check; fi; \
    mkdir /unpacked; tar --extract --no-same-owner --file /archive --directory /unpacked; \
    mapfile -t programs < <(find /unpacked -type f -name kiln -perm /0111); \
    if [[ ${#programs[@]} != 1 ]]; then echo "error: the archive holds ${#programs[@]} programs named kiln, not one" >&2; exit 1; fi; \
    install -D --mode=0755 "${programs[0]}" /program/kiln

# hadolint ignore=DL3006
FROM program-${PROGRAM} AS program

# NVIDIA's libraries from PyPI. The base images of nvidia/cuda hold the same files together with NPP, cuSPARSE, cuFFT, NCCL and others
# that Kiln never loads, and tie the image to another distribution.
FROM python:3.13-slim-trixie AS libraries
ARG CUBLAS=13.1.0.3
ARG CUDNN=9.19.0.56
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
RUN pip install --no-cache-dir --no-deps --no-compile --target /wheels "nvidia-cublas==$CUBLAS" "nvidia-cudnn-cu13==$CUDNN"; \
    mkdir /libraries; \
    find /wheels/nvidia -name 'libcublas.so.*' -exec mv --target-directory=/libraries {} +; \
    find /wheels/nvidia -name 'libcublasLt.so.*' -exec mv --target-directory=/libraries {} +; \
    find /wheels/nvidia -name 'libcudnn*.so.*' -exec mv --target-directory=/libraries {} +; \
    ls /libraries/libcublas.so.13 /libraries/libcublasLt.so.13 /libraries/libcudnn.so.9; \
    mkdir /licenses; find /wheels -ipath '*dist-info*licen*' -type f -exec cp --parents {} /licenses \;

# Debian instead of a distroless base: its shell asks for the server's health and computes the number of a shard in a Job.
FROM debian:trixie-slim AS cpu
# Certificates for downloads from the Hugging Face Hub.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends ca-certificates && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 10001 kiln && useradd --uid 10001 --gid kiln --no-create-home --home-dir /cache --shell /usr/sbin/nologin kiln \
    && install -d -o kiln -g kiln /models /cache /images
COPY --from=program /program/kiln /usr/local/bin/kiln
COPY --chmod=0755 deploy/kiln-health /usr/local/bin/kiln-health
COPY LICENSE-APACHE LICENSE-MIT /usr/share/doc/kiln/
# Nothing is written outside of /cache, /images and /tmp, so that the root file system can be read-only.
ENV KILN_MODELS=/models HOME=/cache XDG_CACHE_HOME=/cache HF_HOME=/cache/huggingface
USER 10001:10001
WORKDIR /images
VOLUME ["/models", "/cache", "/images"]
EXPOSE 7860
STOPSIGNAL SIGTERM
# Weights may take minutes to load; until then the server is not ready.
HEALTHCHECK --interval=15s --timeout=5s --start-period=10m --retries=3 CMD ["kiln-health"]
ENTRYPOINT ["kiln"]
CMD ["serve", "--listen", "0.0.0.0:7860"]

FROM cpu AS cuda
# The program searches ../lib/kiln, seen from its own folder.
COPY --from=libraries /libraries/ /usr/local/lib/kiln/
COPY --from=libraries /licenses/wheels/ /usr/share/doc/kiln/nvidia/
# What NVIDIA's container runtime adds: the driver's libraries.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
