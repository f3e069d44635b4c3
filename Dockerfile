# docker build -t normprobe . && docker run --rm -v "$PWD:/home/probe/here" normprobe demo
# On GPUs: --build-arg INDEX=https://download.pytorch.org/whl/cu130, and docker run --gpus all.
FROM python:3.12-slim
ARG INDEX=https://download.pytorch.org/whl/cpu
COPY . /source
RUN pip install --no-cache-dir --extra-index-url $INDEX --constraint /source/.ci/constraints.txt /source \
    && rm -r /source && useradd --create-home probe
USER probe
WORKDIR /home/probe
ENTRYPOINT ["normprobe"]
