# likewise on a CPU. `docker build -t likewise .`, then docs/install.md says how photos and indexes come in.
FROM python:3.11-slim

RUN useradd --create-home --uid 1000 likewise \
 && install -d -o likewise -g likewise /photos /index /cache

# PyTorch's own index of CPU builds: the usual torch would bring gigabytes of CUDA. The range is that of pyproject.toml.
RUN pip install --no-cache-dir --index-url https://download.pytorch.org/whl/cpu "torch>=2.8,<2.14"

WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN pip install --no-cache-dir ".[studio,video,heic,raw]"

# What is made once is kept here; what is found again lies in /index, and the photos are only read.
ENV LIKEWISE_CACHE=/cache
VOLUME ["/photos", "/index", "/cache"]
WORKDIR /index
USER likewise
ENTRYPOINT ["likewise"]
CMD ["--help"]
